//! An unused entry expires without a trace, and an entry that is used at any replica stays everywhere.

use std::time::Duration;

use greylag_crdt::{GCounter, ReplicatedData, UpdateCx};
use greylag_ddata::{
    BatchItem, Envelope, Input, Message, ReadLevel, ReadReply, Reply, UpdateError, WriteLevel, WriteReply,
};

use crate::expiry::world::{Map, SECOND, Set, World, key, settings};

fn pair(patterns: &[(&str, u64)]) -> World {
    World::new(&[('a', 0), ('b', 0)], &settings(patterns))
}

/// ddata E1, R15: an unused key expires after its lifetime, subscribers are notified, and its id can be used again,
/// with any type. A key that is read again and again stays.
#[test]
fn scenario_38_a_key_expires_after_inactivity_and_can_be_used_again() {
    let mut world = pair(&[("s*", 2)]);
    world.subscribe('b', "s1");
    world.add('a', "s1", "x");
    world.add('a', "other", "y");
    world.run(SECOND);
    assert_eq!(world.told(), [r#"s1 {"x"}"#]);
    for _ in 0..10 {
        assert_eq!(world.read('a', "s1"), "x", "repeated gets keep it");
        world.run(SECOND);
    }
    assert_eq!(world.core('b').digests().len(), 2, "also where it is not read");
    world.run(SECOND * 4);
    assert_eq!((world.read('a', "s1"), world.read('b', "s1")), ("nothing".into(), "nothing".into()));
    assert_eq!((world.read('b', "other").as_str(), world.told()), ("y", vec!["s1 expired".to_owned()]));
    assert_eq!((world.core('a').stats().expired, world.core('b').stats().expired), (1, 1));
    world.all_equal();
    let count = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 3).unwrap();
    world.update('a', "s1", WriteLevel::Local, count).unwrap();
    world.run(SECOND);
    assert_eq!(world.core('b').value(&key::<GCounter>("s1")).map(GCounter::value), Some(3));
}

/// ddata E2: from its deadline on an entry is absent for every request and message, even before any tick.
#[test]
fn an_overdue_entry_is_absent_before_anything_ticks() {
    let mut world = pair(&[("*", 10)]);
    world.add('a', "s", "x");
    world.run(SECOND);
    world.skip(SECOND * 9 - Duration::from_millis(1));
    assert_eq!(world.core('b').digests().len(), 1);
    world.skip(Duration::from_millis(1));
    let asker = "a:1#1".parse().unwrap();
    let tag = Set::TAG.to_string().into();
    let question = Message::Read { request: 1, key: "s".into(), tag, digest: None };
    world.input('b', Input::Received { from: asker, message: question });
    let answers = world.flights.drain(..).filter_map(|(_, _, message)| match message {
        Message::ReadReply { reply, .. } => Some(reply),
        _ => None,
    });
    assert_eq!(answers.collect::<Vec<_>>(), [ReadReply::Absent]);
    assert_eq!(world.read('b', "s"), "nothing");
    assert!(world.core('b').keys("", None, 9).is_empty());
}

/// ddata E1: a refused request does not extend the life of an entry.
#[test]
fn a_refused_request_does_not_touch() {
    let mut world = pair(&[("*", 5)]);
    world.add('a', "s", "x");
    world.run(SECOND);
    for _ in 0..4 {
        world.get::<GCounter>('a', "s", ReadLevel::Local);
        let count = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1).unwrap();
        world.update('b', "s", WriteLevel::Local, count).unwrap_err();
        world.run(SECOND);
    }
    assert_eq!(world.read('a', "s"), "nothing");
}

/// ddata E2: a use is sent on its own only if it matters, and once for many reads.
#[test]
fn touches_are_coalesced() {
    let mut world = pair(&[("*", 100)]);
    world.add('a', "s", "x");
    world.run(SECOND);
    let mut touches = 0;
    for _ in 0..400 {
        world.skip(Duration::from_millis(100));
        assert_eq!(world.read('a', "s"), "x");
        world.input('a', Input::Tick);
        for (_, _, message) in &world.flights {
            if let Message::DeltaBatch { items, .. } = message {
                assert!(items.iter().all(|item| matches!(item, BatchItem::Touch { .. })), "{items:?}");
                touches += items.len();
            }
        }
        world.settle();
    }
    assert_eq!(touches, 4, "one per tenth of the lifetime");
    world.run(SECOND * 65);
    assert_eq!(world.read('b', "s"), "x", "b was told");
}

/// The envelope that a node sends of an entry.
fn envelope<T: ReplicatedData>(world: &mut World, name: char, asker: &str, id: &str) -> Envelope {
    let tag = T::TAG.to_string().into();
    let message = Message::Read { request: 1, key: id.into(), tag, digest: None };
    world.input(name, Input::Received { from: asker.parse().unwrap(), message });
    let replies = world.flights.drain(..).filter_map(|(_, _, message)| match message {
        Message::ReadReply { reply: ReadReply::Value(envelope), .. } => Some(envelope),
        _ => None,
    });
    replies.last().expect("a value")
}

fn arrives(world: &mut World, name: char, from: &str, id: &str, envelope: &Envelope) {
    let entries = vec![(id.into(), envelope.clone())];
    let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
    world.input(name, Input::Received { from: from.parse().unwrap(), message });
}

/// ddata E2: an entry that arrives after its deadline is ignored; an entry without a used-time counts as used on
/// arrival.
#[test]
fn an_entry_that_arrives_expired_is_ignored() {
    let mut world = pair(&[("*", 10)]);
    world.add('a', "s", "x");
    world.run(SECOND);
    let mut late = envelope::<Set>(&mut world, 'a', "b:1#2", "s");
    assert!(late.used_ms.is_some());
    world.run(SECOND * 12);
    arrives(&mut world, 'b', "a:1#1", "s", &late);
    assert_eq!((world.read('b', "s").as_str(), world.core('b').stats().arrived_expired), ("nothing", 1));
    late.used_ms = None;
    arrives(&mut world, 'b', "a:1#1", "s", &late);
    world.cut('a', 'b');
    world.run(SECOND * 9);
    assert_eq!(world.read('b', "s"), "x");
}

/// ddata K6, K7, E3: a replica that created a key again after it had expired retires the own elements that it had
/// forgotten, whether the others get a delta or a full state, and nothing else.
#[test]
fn scenario_83_the_first_update_after_an_absence_retires_what_was_forgotten() {
    let mut outcomes = Vec::new();
    for order in ["delta", "full", "delta full", "full delta"] {
        let mut world = World::new(&[('b', 0), ('r', 0)], &settings(&[("m*", 10)]));
        world.put('r', "m", "k1");
        world.run(SECOND);
        world.put('b', "m", "k2");
        world.run(SECOND);
        assert_eq!(world.fields('r', "m"), "k1 k2");
        world.cut('b', 'r');
        for _ in 0..12 {
            world.get::<Map>('b', "m", ReadLevel::Local);
            world.run(SECOND);
        }
        assert_eq!((world.fields('r', "m").as_str(), world.fields('b', "m").as_str()), ("", "k1 k2"));
        world.flights.clear();
        let remove = |map: &mut Map, cx: &mut UpdateCx<'_>| _ = map.remove(cx, "absent");
        world.update('r', "m", WriteLevel::Local, remove).unwrap();
        world.put('r', "m", "k3");
        let full = envelope::<Map>(&mut world, 'r', "b:1#2", "m");
        world.mend();
        world.skip(Duration::from_millis(150));
        world.input('r', Input::Tick);
        for by in order.split(' ') {
            if by == "full" {
                arrives(&mut world, 'b', "r:1#18", "m", &full);
            } else {
                world.deliver(|from, _, message| from == 'r' && matches!(message, Message::DeltaBatch { .. }));
            }
            assert_eq!(world.fields('b', "m"), "k2 k3", "by {by} of {order}");
        }
        outcomes.push(world.core('b').digests());
    }
    assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]), "{outcomes:?}");
}

/// ddata G14, E2: while an entry is past its deadline by one clock and not by the other, it is exchanged once and then
/// suppressed; after a further use it comes back at once.
#[test]
fn a_difference_of_clocks_is_left_alone_until_the_entry_is_used() {
    let mut world = World::new(&[('a', 0), ('b', 60_000)], &settings(&[("s*", 100)]));
    world.add('a', "keep", "x");
    world.add('a', "s", "x");
    world.run(SECOND * 35);
    // Only b opens rounds, and there is no other traffic.
    let mut sent = 0;
    let mut second = |world: &mut World| {
        world.skip(SECOND);
        world.input('a', Input::Tick);
        world.input('b', Input::Tick);
        for _ in 0..20 {
            let is_a = |from: &greylag_core::UniqueAddress| from.address().host() == "a";
            world.flights.retain(|(from, _, message)| {
                !is_a(from) || !matches!(message, Message::SyncOpen { .. } | Message::DeltaBatch { .. })
            });
            let gossip = |(_, _, message): &&_| matches!(message, Message::Gossip { .. });
            sent += world.flights.iter().filter(|flight| gossip(flight)).count();
            world.deliver(|_, _, _| true);
        }
        sent
    };
    let sent = (0..20).map(|_| second(&mut world)).last();
    assert_eq!((world.read('b', "s").as_str(), sent), ("nothing", Some(1)));
    assert_eq!(world.read('a', "s"), "x");
    for _ in 0..5 {
        second(&mut world);
    }
    assert_eq!(world.read('b', "s"), "x", "it was used");
}

/// ddata C2, E1: an update whose entry expired before others had it is not confirmed by the next life of the entry.
#[test]
fn an_update_whose_entry_expired_is_not_confirmed_by_the_next_life() {
    let mut world = pair(&[("*", 1)]);
    let count = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1).unwrap();
    let level = WriteLevel::All { timeout: SECOND * 30 };
    let first = world.update('a', "c", level, count).unwrap();
    let asked = world.flights.drain(..).find_map(|(_, to, message)| match message {
        Message::DeltaWrite { request, .. } | Message::Write { request, .. } => Some((to, request)),
        _ => None,
    });
    let (b, request) = asked.expect("b is asked");
    // Only a has the increment, and its entry expires.
    world.skip(SECOND * 2);
    let second = world.update('a', "c", level, count).unwrap();
    let message = Message::WriteReply { request, reply: WriteReply::DeltaNack { have: 0, full: true } };
    world.input('a', Input::Received { from: b, message });
    world.settle();
    assert!(
        matches!(world.reply(first), Some(Reply::Update(Err(UpdateError::Timeout { .. })))),
        "{:?}",
        world.reply(first)
    );
    assert!(matches!(world.reply(second), Some(Reply::Update(Ok(())))), "{:?}", world.reply(second));
}

/// ddata R3, E1: an update is answered once, also if a replica says that the entry was deleted when the entry has just
/// expired here and, behind many others, is not removed yet.
#[test]
fn an_update_of_an_overdue_entry_is_answered_once() {
    let mut world = pair(&[("*", 10)]);
    // One input removes so many entries; the one of the update comes after them.
    (0..1_000).for_each(|number| world.add('a', &format!("k{number}"), "x"));
    let add = |set: &mut Set, cx: &mut UpdateCx<'_>| set.add(cx, "x".to_owned());
    let update = world.update('a', "last", WriteLevel::All { timeout: SECOND * 60 }, add).unwrap();
    let asked = world.flights.drain(..).find_map(|(_, to, message)| match message {
        Message::DeltaWrite { request, .. } | Message::Write { request, .. } => Some((to, request)),
        _ => None,
    });
    let (b, request) = asked.expect("b is asked");
    world.skip(SECOND * 10);
    let message = Message::WriteReply { request, reply: WriteReply::Deleted { deleted_at: 1_000_010_000 } };
    world.input('a', Input::Received { from: b, message });
    assert!(
        matches!(world.reply(update), Some(Reply::Update(Err(UpdateError::Timeout { .. })))),
        "{:?}",
        world.reply(update)
    );
    assert_eq!(world.core('a').stats().expired, 1_001);
    assert_eq!(world.read('a', "last"), "deleted");
}
