//! Which replicas are asked, which count, and when a request ends.

use std::time::Duration;

use greylag_crdt::{Flag, GCounter, GSet, LwwRegister, OrSet};
use greylag_ddata::{
    BatchItem, DeleteError, DeltaItem, GetError, Input, Key, Lifecycle, Message, Notice, Read, ReadLevel, Refusal,
    ReplicaStatus, ReplicatorEvent, ReplicatorSettings, RequestError, UpdateError, WriteLevel,
};

use crate::scenarios::world::{SOON, TIMEOUT, World};

type Set = OrSet<String>;

pub(crate) fn set_key(id: &str) -> Key<Set> {
    Key::new(id).unwrap()
}

pub(crate) fn counter_key(id: &str) -> Key<GCounter> {
    Key::new(id).unwrap()
}

pub(crate) fn count(world: &mut World, name: char, id: &str, by: u64, level: WriteLevel) -> u64 {
    world.update(name, &counter_key(id), level, move |counter, cx| counter.increment(cx, by).unwrap())
}

pub(crate) fn add(world: &mut World, name: char, id: &str, element: &str, level: WriteLevel) -> u64 {
    world.update(name, &set_key(id), level, |set, cx| set.add(cx, element.to_owned()))
}

pub(crate) const TWO: WriteLevel = WriteLevel::To { n: 2, timeout: TIMEOUT };
pub(crate) const MAJORITY: WriteLevel = WriteLevel::majority(TIMEOUT);

/// ddata G3, R7: peers are served in slices, round-robin, and an acknowledged log is empty.
#[test]
fn scenario_42_three_peers_are_served_in_two_slices() {
    let mut world = World::new("abcd");
    count(&mut world, 'a', "c", 1, WriteLevel::Local);
    let interval = Duration::from_millis(400);
    let mut slices = Vec::new();
    for _ in 0..3 {
        world.sent.clear();
        world.run(interval);
        slices.push(world.sent_by('a', "DeltaBatch").len());
    }
    assert_eq!((slices, world.core('a').log_len()), (vec![2, 1, 0], 0));
    assert_eq!(world.held('d', &counter_key("c")).value(), 1);
}

/// ddata R10, R11: an unreachable replica is asked only after a fifth of the timeout, and its answer counts
/// nevertheless.
#[test]
fn scenario_44_the_unreachable_are_asked_after_a_fifth_of_the_timeout() {
    let mut world = World::new("abcde");
    world.finds_unreachable('e', "cd");
    world.split("e", "ab");
    world.sent.clear();
    let id = count(&mut world, 'e', "c", 1, MAJORITY);
    world.run(TIMEOUT / 5 - Duration::from_millis(1));
    assert_eq!((world.sent_by('e', "DeltaWrite"), world.sent_by('e', "Write")), ("ab".into(), String::new()));
    assert_eq!(world.written(id), None);
    world.run(Duration::from_millis(1));
    assert_eq!(world.sent_by('e', "Write"), "abcd");
    assert_eq!(world.written(id), Some(Ok(())));
}

/// ddata R11, R12: a silent replica, and one that misses deltas, get more messages; those that have confirmed get none.
#[test]
fn scenario_45_only_the_silent_and_the_refusing_get_more() {
    let mut world = World::new("abcde");
    // d misses an update of e that the others have.
    world.split("e", "d");
    add(&mut world, 'e', "s", "x", WriteLevel::Local);
    world.run(Duration::from_secs(1));
    world.mend();
    world.split("e", "a");
    world.sent.clear();
    let id = add(&mut world, 'e', "s", "y", WriteLevel::all(TIMEOUT));
    world.settle();
    assert_eq!(world.sent_by('e', "DeltaWrite"), "abcdd", "what d misses is in the log");
    assert_eq!(world.written(id), None);
    world.mend();
    world.run(TIMEOUT / 5);
    assert_eq!((world.sent_by('e', "Write"), world.written(id)), ("a".into(), Some(Ok(()))));
    assert_eq!(world.held('d', &set_key("s")).len(), 2);
}

/// ddata R15, G13: a new node gets everything, and a subscriber from before it knew any member is notified.
#[test]
fn scenario_47_a_subscriber_from_before_joining_is_notified() {
    let mut world = World::new("ab");
    for index in 0..50 {
        add(&mut world, 'a', &format!("s{index}"), "x", WriteLevel::Local);
    }
    world.run(SOON);
    world.start('c', 0, ReplicaStatus::Up);
    let tag = <Set as greylag_crdt::ReplicatedData>::TAG.to_string().into();
    world.input('c', Input::Subscribe { subscriber: 1, pattern: "s7".into(), tag });
    world.run(Duration::from_secs(1));
    assert!(world.notices.is_empty());
    world.publish();
    world.run(SOON);
    world.all_equal();
    assert_eq!(world.core('c').digests().len(), 50);
    assert!(matches!(&world.notices[..], [('c', key, Notice::Value(_))] if key == "s7"), "{:?}", world.notices);
}

/// ddata R2, R8.
#[test]
fn scenario_48_every_level_counts_once() {
    let mut world = World::new("ab");
    for name in ['a', 'b'] {
        for _ in 0..20 {
            count(&mut world, name, "c", 1, WriteLevel::Local);
        }
        for level in [TWO, WriteLevel::all(TIMEOUT), MAJORITY] {
            let id = count(&mut world, name, "c", 1, level);
            world.settle();
            assert_eq!(world.written(id), Some(Ok(())));
        }
    }
    world.run(SOON);
    assert_eq!(["a", "b"].map(|name| world.held(name.chars().next().unwrap(), &counter_key("c")).value()), [46, 46]);
}

/// ddata R7, R8: pipelined updates; none waits for another.
#[test]
fn scenario_51_three_times_a_hundred() {
    let mut world = World::new("abc");
    let mut ids = Vec::new();
    for _ in 0..100 {
        for name in ['a', 'b', 'c'] {
            ids.push(count(&mut world, name, "c", 1, TWO));
        }
    }
    assert!(ids.iter().all(|id| world.written(*id).is_none()), "all wait at once");
    world.settle();
    assert!(ids.iter().all(|id| world.written(*id) == Some(Ok(()))));
    world.run(SOON);
    for name in ['a', 'b', 'c'] {
        assert_eq!(world.held(name, &counter_key("c")).value(), 300);
    }
}

/// ddata R13: the data that a read found are joined here before the read is answered.
#[test]
fn scenario_52_a_read_of_all_repairs() {
    let mut world = World::new("abc");
    world.split("a", "bc");
    count(&mut world, 'b', "c", 3, WriteLevel::Local);
    world.settle();
    world.mend();
    let all = world.get('a', &counter_key("c"), ReadLevel::all(TIMEOUT));
    world.settle();
    let local = world.get('a', &counter_key("c"), ReadLevel::Local);
    assert_eq!([all, local].map(|id| world.value_of::<GCounter>(id).value()), [3, 3]);
    assert_eq!(world.held('c', &counter_key("c")).value(), 3, "who answered with less is told");
}

/// ddata R8, R9, G2: a weakly up or joining member replicates and never counts, not even for itself.
#[test]
fn scenario_78_only_voters_count() {
    let mut world = World::new("ab");
    for name in ['c', 'd'] {
        world.start(name, 0, ReplicaStatus::WeaklyUp);
    }
    world.publish();
    world.run(SOON);
    world.sent.clear();
    let write = count(&mut world, 'c', "c", 1, MAJORITY);
    assert_eq!(world.sent_by('c', "DeltaWrite"), "ab", "both voters are needed, and no other member is asked");
    world.settle();
    assert_eq!(world.written(write), Some(Ok(())));
    let read = world.get('d', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.settle();
    assert_eq!(world.value_of::<GCounter>(read).value(), 1);
    // With one of the voters silent neither a write nor a read succeeds.
    world.split("b", "acd");
    let write = count(&mut world, 'c', "c", 1, MAJORITY);
    let read = world.get('d', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.run(TIMEOUT);
    assert_eq!(world.written(write), Some(Err(UpdateError::Timeout { needed: 2, acked: 1, refused: 0 })));
    assert_eq!(world.found(read), Some(Err(GetError::Failure { needed: 2, got: 1 })));
    // Without any voter requests fail at once.
    let mut world = World::new("");
    world.start('a', 0, ReplicaStatus::Joining);
    world.publish();
    let write = count(&mut world, 'a', "c", 1, MAJORITY);
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    assert_eq!(world.written(write), Some(Err(UpdateError::Timeout { needed: 1, acked: 0, refused: 0 })));
    assert_eq!(world.found(read), Some(Err(GetError::Failure { needed: 1, got: 0 })));
    assert_eq!(world.held('a', &counter_key("c")).value(), 1, "the local effect stands");
}

/// ddata G13, R13: a voter that came back empty neither answers nor counts itself before it has caught up with so many
/// others that every majority which knew the write includes one of them.
#[test]
fn scenario_79_a_voter_that_came_back_empty_does_not_hide_a_write() {
    for (names, enough) in [("abc", 2), ("abcde", 3), ("abcdefg", 4)] {
        let mut world = World::new(names);
        // The write is on a smallest majority that includes b, and nowhere else.
        let majority = names.len() / 2 + 1;
        let (holders, others) = (format!("b{}", &names[2..=majority]), format!("a{}", &names[majority + 1..]));
        world.split(&holders, &others);
        let id = count(&mut world, 'b', "c", 1, MAJORITY);
        world.run(TIMEOUT / 5);
        assert_eq!(world.written(id), Some(Ok(())), "{names}: {holders} are a majority");
        world.crash('b');
        world.start('b', 1, ReplicaStatus::Up);
        world.split("b", names.replace('b', "").as_str());
        world.publish();
        world.run(Duration::from_millis(1));
        // b reaches the others one after another, first those without the write.
        let order: Vec<char> = others.chars().chain(holders.chars().skip(1)).collect();
        for (met, peer) in (0..).zip(order.iter().take(enough)) {
            assert_eq!(*world.core('b').lifecycle(), Lifecycle::Syncing, "{names}: after {met}");
            if met > 0 {
                // The peers met so far and b would be a majority that knows nothing of the write.
                let short = ReadLevel::majority(Duration::from_secs(1));
                let reads = ['a', 'b'].map(|reader| world.get(reader, &counter_key("c"), short));
                world.run(Duration::from_secs(1));
                let failed = reads.map(|read| matches!(world.found(read), Some(Err(GetError::Failure { .. }))));
                assert_eq!(failed, [true, true], "{names}: after {met}");
            }
            world.mend_between('b', *peer);
            world.run(Duration::from_secs(6));
        }
        assert_eq!(*world.core('b').lifecycle(), Lifecycle::Running, "{names}: after {enough}");
        assert_eq!(world.held('b', &counter_key("c")).value(), 1, "{names}");
        let reads = ['a', 'b'].map(|reader| world.get(reader, &counter_key("c"), ReadLevel::majority(TIMEOUT)));
        world.run(TIMEOUT);
        assert_eq!(reads.map(|read| world.value_of::<GCounter>(read).value()), [1, 1], "{names}");
    }
}

/// ddata G13: without a peer to catch up with, `sync_timeout` ends catching up; until then a read elsewhere asks
/// another member.
#[test]
fn scenario_79_time_ends_catching_up() {
    let mut world = World::new("abc");
    count(&mut world, 'a', "c", 1, WriteLevel::Local);
    world.run(SOON);
    world.crash('b');
    world.start('b', 1, ReplicaStatus::Up);
    world.split("b", "ac");
    world.publish();
    world.run(Duration::from_secs(29));
    assert_eq!(*world.core('b').lifecycle(), Lifecycle::Syncing);
    let read = world.get('b', &counter_key("c"), ReadLevel::Local);
    assert_eq!(world.found(read), Some(Ok(Read::NotFound)), "local requests are served");
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.run(TIMEOUT / 4);
    assert_eq!(world.value_of::<GCounter>(read).value(), 1);
    assert_eq!(*world.core('b').lifecycle(), Lifecycle::Running);
}

/// ddata R14: requests that wait for others are bounded; local ones do not count.
#[test]
fn requests_in_flight_are_bounded() {
    let settings = ReplicatorSettings { max_in_flight: 2, ..ReplicatorSettings::default() };
    let mut world = World::with("abc", settings);
    world.split("a", "bc");
    count(&mut world, 'a', "c", 1, TWO);
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    let refused = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    assert_eq!(world.found(refused), Some(Err(GetError::Request(RequestError::Overloaded))));
    assert_eq!(world.found(read), None);
    let local = count(&mut world, 'a', "c", 1, WriteLevel::Local);
    assert_eq!(world.written(local), Some(Ok(())));
    world.mend();
    world.run(TIMEOUT);
    let again = count(&mut world, 'a', "c", 1, TWO);
    world.settle();
    assert_eq!(world.written(again), Some(Ok(())));
}

/// ddata R10: with deltas the same replicas are asked for one key each time, and others for other keys.
#[test]
fn consecutive_deltas_of_a_key_go_to_the_same_replicas() {
    let mut world = World::new("abcdefgh");
    let mut asked = std::collections::BTreeSet::new();
    for key in 0..8 {
        let mut of_key = std::collections::BTreeSet::new();
        for element in ["x", "y", "z"] {
            world.sent.clear();
            add(&mut world, 'a', &format!("s{key}"), element, TWO);
            of_key.insert(world.sent_by('a', "DeltaWrite"));
            world.settle();
        }
        assert_eq!(of_key.len(), 1, "{of_key:?}");
        asked.extend(of_key);
    }
    assert!(asked.len() > 2, "load spreads over keys: {asked:?}");
}

/// ddata R12: a delete fails as `StoreFailed` only if all refusals were of stores; an update, if any refusal was.
#[test]
fn a_refused_delete_names_the_store_only_if_nothing_else_refused() {
    // Two of four others are needed, so three refusals end the request, whatever their reasons.
    let (store, other) = (Refusal::Store, Refusal::TooLarge);
    for (refusals, by_store) in [([store; 4], true), ([store, store, other, other], false)] {
        let mut world = World::new("abcde");
        let ids = [count(&mut world, 'a', "c", 1, MAJORITY), world.delete('a', "d", MAJORITY)];
        for _ in 0..4 {
            for (peer, refusal) in ['b', 'c', 'd', 'e'].into_iter().zip(refusals) {
                world.refuse_all('a', peer, refusal);
            }
        }
        assert!(matches!(world.written(ids[0]), Some(Err(UpdateError::StoreFailed { .. }))));
        let deleted = world.delete_error(ids[1]);
        let expected = DeleteError::ReplicationFailed { needed: 3, acked: 1 };
        match by_store {
            true => assert!(matches!(deleted, Some(DeleteError::StoreFailed { .. })), "{deleted:?}"),
            false => assert_eq!(deleted, Some(expected)),
        }
    }
}

/// ddata A5, O4: an entry of an unregistered type is refused, counted and reported once; it is neither stored nor
/// summed, and the rest of the message is taken.
#[test]
fn an_unknown_type_is_refused_and_the_rest_is_taken() {
    let mut world = World::new("ab");
    add(&mut world, 'b', "s", "x", WriteLevel::Local);
    let known = world.batch_of('b');
    let Message::DeltaBatch { from_seq, to_seq, mut items } = known else { panic!("a batch") };
    let BatchItem::Delta(item) = &items[0] else { panic!("a delta") };
    let foreign = DeltaItem { key: "odd".into(), tag: "tags.unknown/1".into(), ..item.clone() };
    items.insert(0, BatchItem::Delta(foreign));
    for _ in 0..2 {
        world.receive('a', 'b', Message::DeltaBatch { from_seq, to_seq, items: items.clone() });
    }
    assert_eq!(world.core('a').keys("", None, 10), ["s".into()]);
    assert_eq!(world.core('a').stats().unknown_types, 2);
    let told = world.events.iter().filter(|event| matches!(event, ReplicatorEvent::UnknownType { .. }));
    assert_eq!(told.count(), 1);
    assert_eq!(world.core('a').root_sum(), world.core('b').root_sum());
}

/// ddata O1, O2, O3: the same inputs and seeds give the same effects in the same order, to the byte.
#[test]
fn the_same_inputs_give_the_same_effects() {
    let run = || {
        let mut world = World::new("abcde");
        for (index, name) in "abcdeabcde".chars().enumerate() {
            add(&mut world, name, &format!("s{}", index % 3), &index.to_string(), MAJORITY);
            count(&mut world, name, "c", 1, WriteLevel::Local);
            world.get(name, &counter_key("c"), ReadLevel::majority(TIMEOUT));
            if index == 5 {
                world.split("ab", "cde");
            }
            world.run(Duration::from_millis(700));
        }
        world.mend();
        world.run(SOON);
        world.trace
    };
    let (one, other) = (run(), run());
    assert!(one.len() > 500, "{} effects", one.len());
    assert!(one == other);
}

/// ddata 70, Y6, I4: a register as a fence: of two acknowledged writes with one timestamp every reader finds the one of
/// the smaller writer, including the other writer; and a smaller timestamp changes nothing.
#[test]
fn scenario_70_two_writes_with_one_timestamp_are_one_for_all_readers() {
    let mut world = World::new("abcde");
    let write = WriteLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT };
    let read = ReadLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT };
    let key = Key::<LwwRegister<String>>::new("fence").unwrap();
    let claim = |world: &mut World, name: char, timestamp: i64| {
        let id = world.update(name, &key, write, |register, cx| {
            register.set_with(cx, format!("{name} at {timestamp}"), |_, _| timestamp);
        });
        world.run(TIMEOUT / 2);
        assert_eq!(world.written(id), Some(Ok(())));
    };
    let all_find = |world: &mut World, value: &str| {
        for reader in "abcde".chars() {
            let id = world.get(reader, &key, read);
            world.run(TIMEOUT / 2);
            let found = world.value_of::<LwwRegister<String>>(id);
            assert_eq!(found.value().map(String::as_str), Some(value), "at {reader}");
        }
    };
    // Neither writer sees the other's write before its own: b's is acknowledged by three others than a.
    world.split("a", "bcde");
    claim(&mut world, 'b', 7);
    world.mend();
    assert_eq!(world.held('a', &key).value(), None);
    claim(&mut world, 'a', 7);
    all_find(&mut world, "a at 7");
    claim(&mut world, 'b', 6);
    all_find(&mut world, "a at 7");
    claim(&mut world, 'b', 8);
    all_find(&mut world, "b at 8");
}

/// ddata 84, G8: without rounds, the records of a lost batch stay in the log although a later batch was acknowledged,
/// and are resent; until then they are missing.
#[test]
fn scenario_84_records_of_a_lost_batch_are_resent() {
    let settings = ReplicatorSettings { gossip_interval: Duration::from_secs(3_600), ..ReplicatorSettings::default() };
    let settings = ReplicatorSettings { delta_propagation_interval: Duration::from_millis(400), ..settings };
    let mut world = World::with("ab", settings);
    let (set, flag) = (Key::<GSet<String>>::new("g").unwrap(), Key::<Flag>::new("f").unwrap());
    let add = |world: &mut World, element: &str| {
        world.update('a', &set, WriteLevel::Local, |set, _| set.add(element.to_owned()));
    };
    let slice = Duration::from_millis(450);
    world.split("a", "b");
    add(&mut world, "x");
    world.update('a', &flag, WriteLevel::Local, |flag: &mut Flag, _| flag.switch_on());
    world.run(slice);
    world.mend_between('a', 'b');
    add(&mut world, "y");
    world.run(slice);
    let held = |world: &World| world.held('b', &set).iter().cloned().collect::<String>();
    assert_eq!((held(&world).as_str(), world.held('b', &flag).enabled()), ("y", false));
    assert!(world.core('a').log_len() > 0, "the first batch is not acknowledged");
    world.run(Duration::from_secs(3));
    assert_eq!((held(&world).as_str(), world.held('b', &flag).enabled()), ("xy", true));
    assert_eq!(world.core('a').log_len(), 0);
    assert!(!world.sent.iter().any(|(_, _, kind)| *kind == "SyncOpen"), "no round has brought it");
}
