//! Times, counts and ids at the end of their ranges, from callers and from peers: nothing panics, nothing wraps.

use std::time::Duration;

use greylag_crdt::{GSet, LwwRegister, ReplicatedData};
use greylag_ddata::{
    BatchItem, Content, Envelope, Input, Key, Message, Notice, Refusal, ReplicatorEvent, ReplicatorSettings,
    WriteLevel, WriteReply,
};

use crate::levels::{MAJORITY, TWO, add, count, counter_key};
use crate::world::{SOON, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

fn envelope<T: ReplicatedData>(value: &T, used_ms: Option<i64>) -> Envelope {
    let content = Content::Value { tag: T::TAG.to_string().into(), bytes: value.to_untagged_bytes().into() };
    Envelope { content, versions: [].into(), markers: greylag_crdt::Markers::new(), used_ms }
}

/// ddata R1: whoever wants to wait for ever may; the replicator goes on.
#[test]
fn a_request_may_take_for_ever() {
    let mut world = World::new("abc");
    world.split("a", "bc");
    let written = count(&mut world, 'a', "c", 1, WriteLevel::all(Duration::MAX));
    let read = world.get('a', &counter_key("c"), greylag_ddata::ReadLevel::all(Duration::MAX));
    world.run(SOON);
    assert_eq!((world.written(written), world.found(read).is_some()), (None, false));
    assert_eq!(world.held('a', &counter_key("c")).value(), 1);
}

/// ddata R8: however many more than a majority are wanted, all there are is the most.
#[test]
fn any_number_more_than_a_majority_is_all() {
    let mut world = World::new("abc");
    world.split("a", "c");
    let level = |additional| WriteLevel::MajorityPlus { additional, min_cap: None, timeout: TIMEOUT };
    let ids = [usize::MAX, usize::MAX - 2].map(|additional| count(&mut world, 'a', "c", 1, level(additional)));
    world.settle();
    assert_eq!(ids.map(|id| world.written(id)), [None, None], "c has not confirmed it");
    world.mend();
    world.run(SOON);
    assert_eq!(ids.map(|id| world.written(id)), [Some(Ok(())), Some(Ok(()))]);
}

/// ddata E2: a peer whose clock is at the end of time keeps an entry for good, and nothing else happens.
#[test]
fn a_time_at_the_end_of_all_times_is_only_late() {
    let expire = [("*".to_owned(), 10 * SECOND)].into();
    let settings = ReplicatorSettings { expire_keys_after_inactivity: expire, ..ReplicatorSettings::default() };
    let mut world = World::with("ab", settings);
    count(&mut world, 'a', "c", 1, WriteLevel::Local);
    let touch = BatchItem::Touch { hash: greylag_crdt::hash64(b"c"), used_ms: i64::MAX };
    world.receive('a', 'b', Message::DeltaBatch { from_seq: 1, to_seq: 1, items: vec![touch] });
    for (at, used_ms) in [i64::MAX, i64::MAX - 1, i64::MIN].into_iter().enumerate() {
        let (key, envelope) = (format!("g{at}").into(), envelope(&GSet::<String>::new(), Some(used_ms)));
        world.receive('a', 'b', Message::Write { request: 1, key, envelope });
    }
    for (at, deleted_at) in [i64::MAX, i64::MAX - 1, i64::MIN].into_iter().enumerate() {
        let key = format!("t{at}").into();
        let content = Content::Tombstone { deleted_at };
        let envelope = Envelope { content, versions: [].into(), markers: greylag_crdt::Markers::new(), used_ms: None };
        world.receive('a', 'b', Message::Write { request: 1, key, envelope });
    }
    // What is kept beside the entries is looked at in some states only.
    (0..40).for_each(|_| _ = count(&mut world, 'a', "c", 1, WriteLevel::Local));
    world.run(SOON);
    assert_eq!(world.core('a').keys("", None, 9), ["c".into(), "g0".into(), "g1".into()]);
}

/// ddata §9: an id that no user can name is refused where a peer brings it, and what comes with it is taken.
#[test]
fn an_id_that_nobody_can_name_is_refused() {
    let mut world = World::new("ab");
    let long = "x".repeat(1_025);
    let value = || envelope(&GSet::<String>::new(), None);
    for id in ["", "a*", &long] {
        world.sent.clear();
        world.receive('a', 'b', Message::Write { request: 7, key: id.into(), envelope: value() });
        let refused = format!("{:?}", WriteReply::Nack(Refusal::Undecodable));
        assert!(world.trace.last().is_some_and(|said| said.contains(&refused)), "{:?}", world.trace.last());
    }
    let items = ["", "good", "a*"].map(|id| BatchItem::Full { key: id.into(), envelope: value() });
    world.receive('a', 'b', Message::DeltaBatch { from_seq: 1, to_seq: 3, items: items.into() });
    assert_eq!(world.core('a').keys("", None, 9), ["good".into()]);
    assert_eq!(world.core('a').stats().undecodable, 5);
}

/// ddata R15, R16: who follows the entries of one type hears that an entry is gone, also if its id was used for
/// another type before anybody was told.
#[test]
fn a_follower_hears_of_the_end_though_the_id_has_another_type() {
    let expire = [("*".to_owned(), 2 * SECOND)].into();
    let settings = ReplicatorSettings {
        expire_keys_after_inactivity: expire,
        notify_subscribers_interval: 10 * SECOND,
        ..ReplicatorSettings::default()
    };
    let mut world = World::with("a", settings);
    add(&mut world, 'a', "k", "x", WriteLevel::Local);
    let tag = greylag_crdt::OrSet::<String>::TAG.to_string().into();
    world.input('a', Input::Subscribe { subscriber: 1, pattern: "*".into(), tag });
    world.input('a', Input::Flush);
    world.run(3 * SECOND);
    count(&mut world, 'a', "k", 1, WriteLevel::Local);
    world.input('a', Input::Flush);
    let told: Vec<&Notice> = world.notices.iter().map(|(_, _, notice)| notice).collect();
    assert!(matches!(told[..], [Notice::Value(_), Notice::Expired]), "{told:?}");
}

/// ddata R11: a message that the transport refuses has its own request ask somebody else, and no other one: thousands
/// may wait for the same peer.
#[test]
fn a_message_that_was_not_taken_is_about_one_request() {
    let mut world = World::new("abcde");
    world.split("a", "bcde");
    let ids: Vec<u64> = (0..20).map(|_| count(&mut world, 'a', "c", 1, MAJORITY)).collect();
    let asked = world.requests_to('a', 'b');
    assert!(!asked.is_empty());
    world.sent.clear();
    for request in &asked {
        world.send_failed('a', 'b', *request);
    }
    assert_eq!(world.sent.len(), asked.len(), "one other for each");
    assert!(ids.iter().all(|id| world.written(*id).is_none()));
    assert_eq!(world.core('a').stats().unsent, asked.len() as u64);
}

/// ddata Y6: of entries with a clock of the program's own, such as sharding's homes and epochs, no timestamp is ever
/// compared with the wall clock; of others one that is far ahead is told of once.
#[test]
fn a_custom_clock_is_never_compared_with_the_wall() {
    let settings = ReplicatorSettings { custom_clocks: vec!["epoch-*".into()], ..ReplicatorSettings::default() };
    let mut world = World::with("ab", settings);
    for id in ["epoch-1", "wall"] {
        for timestamp in [i64::MAX / 2, i64::MAX / 2 + 1] {
            let key = Key::<LwwRegister<String>>::new(id).unwrap();
            world.update('a', &key, TWO, |register, cx| {
                register.set_with(cx, timestamp.to_string(), |_, _| timestamp);
            });
            world.run(SOON);
        }
        assert_eq!(world.held('b', &Key::<LwwRegister<String>>::new(id).unwrap()).timestamp(), i64::MAX / 2 + 1);
    }
    let told = world.events.iter().filter_map(|event| match event {
        ReplicatorEvent::ClockAhead { key, .. } => Some(key.to_string()),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["wall"]);
}
