//! Tombstones are dropped, at one time at all replicas.

use greylag_crdt::UpdateCx;
use greylag_ddata::{Content, DeleteError, Envelope, Input, Message, ReplicatorSettings, Reply, WriteLevel};

use crate::expiry::world::{SECOND, Set, World, settings};

/// ddata E1, E2: no replica absorbs a write to a key whose tombstone is past its deadline, and requests do not extend
/// the life of a tombstone.
#[test]
fn scenario_81_a_tombstone_past_its_deadline_absorbs_nothing() {
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings(&[("s*", 30)]));
    world.add('a', "s", "x");
    world.run(SECOND);
    world.delete('a', "s");
    world.run(SECOND);
    for _ in 0..28 {
        assert_eq!((world.read('a', "s").as_str(), world.read('b', "s").as_str()), ("deleted", "deleted"));
        world.run(SECOND);
    }
    // Skip time without ticks.
    world.skip(SECOND);
    let level = WriteLevel::To { n: 2, timeout: SECOND };
    let add = |set: &mut Set, cx: &mut UpdateCx<'_>| set.add(cx, "y".to_owned());
    let written = world.update('a', "s", level, add).unwrap();
    world.settle();
    assert!(matches!(world.reply(written), Some(Reply::Update(Ok(())))));
    assert_eq!((world.read('a', "s").as_str(), world.read('b', "s").as_str()), ("y", "y"));
    world.run(SECOND * 5);
    assert_eq!((world.read('a', "s").as_str(), world.read('b', "s").as_str()), ("y", "y"));
}

/// ddata R5, Z9: one tick plus the difference of the clocks after its age no tombstone is left, none is learned again,
/// and all replicas remember that something was forgotten.
#[test]
fn scenario_82_tombstones_are_dropped_by_age_and_not_learned_again() {
    let ttl = SECOND * 600;
    let settings = ReplicatorSettings { delete_tombstone_ttl: Some(ttl), ..settings(&[]) };
    let mut world = World::new(&[('a', 0), ('b', -2_000), ('c', 2_000)], &settings);
    world.add('a', "s", "x");
    world.run(SECOND);
    world.delete('a', "s");
    world.run(SECOND);
    let deleted_at = 1_000_001_000;
    world.run(ttl - SECOND * 10);
    assert_eq!(world.core('a').digests().len(), 1);
    assert_eq!(world.core('a').pruning_news().standing.forget_horizon, None);
    world.run(SECOND * 9 + SECOND * 4);
    for name in ['a', 'b', 'c'] {
        assert!(world.core(name).digests().is_empty(), "{name}");
        assert_eq!(world.core(name).pruning_news().standing.forget_horizon, Some(deleted_at + 60_000), "{name}");
    }
    let content = Content::Tombstone { deleted_at };
    let entries = vec![("s".into(), Envelope::of(content))];
    let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
    world.input('a', Input::Received { from: "b:1#2".parse().unwrap(), message });
    assert!(world.core('a').digests().is_empty());
    world.add('b', "s", "z");
    world.run(SECOND * 5);
    let late = Message::Gossip {
        round: None,
        number: 0,
        send_back: false,
        entries: vec![("s".into(), Envelope::of(Content::Tombstone { deleted_at }))],
    };
    world.input('a', Input::Received { from: "b:1#2".parse().unwrap(), message: late });
    for name in ['a', 'b', 'c'] {
        assert_eq!(world.read(name, "s"), "z");
    }
}

/// ddata C2, R5: a deletion whose tombstone expires before enough replicas confirmed is not confirmed by a replica that
/// never heard of it.
#[test]
fn a_deletion_is_not_confirmed_after_its_tombstone_has_gone() {
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings(&[("s*", 10)]));
    world.add('a', "s", "x");
    world.run(SECOND);
    world.cut('a', 'b');
    let deleted = world.delete_at('a', "s", WriteLevel::To { n: 2, timeout: SECOND * 60 });
    world.run(SECOND * 5);
    // b goes on using the entry that a has deleted.
    world.add('b', "s", "y");
    world.run(SECOND * 6);
    assert_eq!((world.read('a', "s").as_str(), world.read('b', "s").as_str()), ("nothing", "xy"));
    world.mend();
    world.run(SECOND * 20);
    let reply = world.reply(deleted);
    let expected = Err(DeleteError::ReplicationFailed { needed: 2, acked: 1 });
    assert_eq!(reply, Some(&Reply::Delete(expected)), "b has never heard of it");
}

/// ddata E1, R5: a tombstone dropped because its entry expires does not raise the horizon.
#[test]
fn a_tombstone_of_an_expired_entry_raises_no_horizon() {
    let settings = ReplicatorSettings { delete_tombstone_ttl: Some(SECOND * 600), ..settings(&[("s", 20)]) };
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings);
    world.delete('a', "s");
    world.run(SECOND * 25);
    assert!(world.core('a').digests().is_empty() && world.core('b').digests().is_empty());
    assert_eq!(world.core('a').pruning_news().standing.forget_horizon, None);
}
