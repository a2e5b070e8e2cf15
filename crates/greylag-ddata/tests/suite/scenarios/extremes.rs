//! Times, counts and ids at the ends of their ranges, from callers and from peers: nothing panics or wraps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use greylag_crdt::{
    Digest, DotSource, GSet, KeyRange, LwwMap, LwwRegister, MAX_NUMBER, Markers, OrSet, Part, Performed, PnCounterMap,
    Range, RangeSum, ReplicaId, ReplicatedData, UpdateCx, WriterKey,
};
use greylag_ddata::{
    BatchItem, Content, DeltaItem, Envelope, GateState, Input, Key, KeyId, Listed, Message, Nacked, Notice, Offer,
    Prefix, PruningNews, PruningRound, ReadReply, Refusal, ReplicatorEvent, ReplicatorSettings, RoundId, Sixteenths,
    Standing, Start, Starts, StartsOrDigest, Sum, Wanted, WriteLevel, WriteReply,
};

use crate::scenarios::levels::{MAJORITY, TWO, add, count, counter_key, set_key};
use crate::scenarios::world::{SOON, TIMEOUT, World};

type Set = OrSet<String>;
type Votes = PnCounterMap<String>;
type Places = LwwMap<String, String>;

const SECOND: Duration = Duration::from_secs(1);

fn envelope<T: ReplicatedData>(value: &T, used_ms: Option<i64>) -> Envelope {
    let content = Content::Value { tag: T::TAG.to_string().into(), bytes: value.to_untagged_bytes().into() };
    Envelope { content, versions: [].into(), markers: Markers::new(), used_ms }
}

/// ddata R1: a request may have an unlimited timeout; the replicator goes on.
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

/// ddata R8: a majority plus any number needs at most all candidates.
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

/// ddata E2, Z9: a peer whose clock is at the end of time keeps no entry for good: such used-times count as now, and
/// such deletions are refused.
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
        let envelope = Envelope { content, versions: [].into(), markers: Markers::new(), used_ms: None };
        world.receive('a', 'b', Message::Write { request: 1, key, envelope });
    }
    // Repeat: some invariants are checked in some states only.
    (0..40).for_each(|_| _ = count(&mut world, 'a', "c", 1, WriteLevel::Local));
    assert_eq!(world.core('a').keys("", None, 9), ["c".into(), "g0".into(), "g1".into()]);
    assert!(!world.core('a').digests().keys().any(|key| key.starts_with('t')), "no such deletion is taken");
    world.run(SOON);
    assert!(world.core('a').digests().is_empty());
}

/// ddata §9: an id that no user can name is refused in a peer's message, and the rest of the message is taken.
#[test]
fn an_id_that_no_user_can_name_is_refused() {
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

/// ddata §9: an unreadable entry, of another kind or with markers of a newer version, is refused and counted on its
/// own, and the rest of its message is applied.
#[test]
fn an_entry_that_cannot_be_read_is_refused_alone() {
    let mut world = World::new("ab");
    let value = || envelope(&GSet::<String>::new(), None);
    let unreadable = || Envelope::of(Content::Unreadable);
    let entries = vec![("x".into(), unreadable()), ("good".into(), value()), ("y".into(), unreadable())];
    world.receive('a', 'b', Message::Gossip { round: None, number: 0, send_back: true, entries });
    assert_eq!((world.core('a').keys("", None, 9), world.core('a').stats().undecodable), (vec!["good".into()], 2));
    let full = |key: &str, envelope| BatchItem::Full { key: key.into(), envelope };
    let items = vec![full("x", unreadable()), full("better", value())];
    world.receive('a', 'b', Message::DeltaBatch { from_seq: 1, to_seq: 2, items });
    assert_eq!(world.core('a').keys("", None, 9), ["better".into(), "good".into()]);
    assert_eq!(world.core('a').stats().undecodable, 3);
    world.receive('a', 'b', Message::Write { request: 7, key: "good".into(), envelope: unreadable() });
    let refused = format!("{:?}", WriteReply::Nack(Refusal::Undecodable));
    assert!(world.trace.last().is_some_and(|said| said.contains(&refused)), "{:?}", world.trace.last());
    assert_eq!(world.core('a').stats().undecodable, 4);
    world.run(SOON);
    world.all_equal();
}

/// ddata R15, R16: a subscriber to entries of one type is notified that an entry is gone, even if its id serves another
/// type before the flush.
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
    let tag = OrSet::<String>::TAG.to_string().into();
    world.input('a', Input::Subscribe { subscriber: 1, pattern: "*".into(), tag });
    world.input('a', Input::Flush);
    world.run(3 * SECOND);
    count(&mut world, 'a', "k", 1, WriteLevel::Local);
    world.input('a', Input::Flush);
    let told: Vec<&Notice> = world.notices.iter().map(|(_, _, notice)| notice).collect();
    assert!(matches!(told[..], [Notice::Value(_), Notice::Expired]), "{told:?}");
}

/// ddata R11: when the transport refuses a message, its own request asks another replica, and no other request does:
/// thousands may wait for the same peer.
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

/// ddata 89, §9: every number of every message at its largest value, from a member: nothing panics, nothing of it is
/// kept, and the member is served as before.
#[test]
fn scenario_89_every_number_at_its_largest_value() {
    let mut world = World::new("abc");
    count(&mut world, 'a', "c", 1, MAJORITY);
    add(&mut world, 'a', "s", "x", MAJORITY);
    world.run(SOON);
    let before = world.core('b').digests();
    let mut marker = Performed::new(ReplicaId(u64::MAX), ReplicaId(u64::MAX - 1));
    (marker.performed_at, marker.obsolete_at) = (i64::MAX, Some(i64::MAX));
    marker.moved.set_amount(u64::MAX, u64::MAX, u128::MAX);
    // Ranges with larger numbers cannot be decoded.
    marker.add_ranges(&[Range { lo: 0, hi: MAX_NUMBER, offset: 0 }, Range { lo: 1, hi: 2, offset: MAX_NUMBER - 1 }]);
    let mut markers = Markers::new();
    markers.add(&marker);
    let value = world.held('a', &set_key("s"));
    let full = |versions: &[(u64, u64)], content: Option<Content>| {
        let versions = versions.iter().map(|(origin, version)| (ReplicaId(*origin), *version)).collect();
        let content = content.unwrap_or_else(|| envelope(&value, None).content);
        Envelope { content, versions, markers: markers.clone(), used_ms: Some(i64::MAX) }
    };
    let deleted = || full(&[], Some(Content::Tombstone { deleted_at: i64::MAX }));
    let most = u64::MAX;
    let item = || DeltaItem {
        key: "s".into(),
        tag: OrSet::<String>::TAG.to_string().into(),
        prev: most,
        version: most,
        delta: vec![0xff; 9].into(),
        markers: markers.clone(),
        used_ms: Some(i64::MAX),
    };
    // A delta that is valid except for its version.
    let valid = DeltaItem {
        prev: 0,
        delta: value.to_untagged_bytes().into(),
        markers: Markers::new(),
        used_ms: None,
        ..item()
    };
    let round = || RoundId { opened_by_sender: true, number: most };
    let sum = || Sum { count: most, total: Digest(u128::MAX) };
    let news = || {
        let (removed, owner) = (ReplicaId(most), ReplicaId(most - 1));
        let rounds = vec![PruningRound { removed, epoch: most, owner, created_at: i64::MAX }];
        let starts = Starts::of((0..9).map(|_| Start { maker: ReplicaId(most), base: Some(i64::MAX) }));
        let (forget_horizon, synced_at) = (Some(i64::MAX), Some(i64::MAX));
        let state = GateState::Closed;
        let (starts, is_current) = (StartsOrDigest::Listed(starts), false);
        let standing = Standing { number: most, forget_horizon, synced_at, starts, state, is_current };
        PruningNews { rounds, standing }
    };
    let known = || {
        let standing = Standing { starts: StartsOrDigest::Known(most), ..news().standing };
        PruningNews { standing, ..news() }
    };
    let listed = Listed { hash: most, digest: Digest(u128::MAX), used_ms: Some(i64::MAX) };
    let messages = [
        Message::Write { request: most, key: "s".into(), envelope: full(&[(1, most)], None) },
        Message::Write { request: most, key: "s".into(), envelope: full(&[], None) },
        Message::Write { request: most, key: "s".into(), envelope: deleted() },
        Message::DeltaWrite { request: most, item: item() },
        Message::DeltaWrite { request: most, item: valid.clone() },
        Message::DeltaBatch { from_seq: 1, to_seq: 2, items: vec![BatchItem::Delta(valid)] },
        Message::WriteReply { request: most, reply: WriteReply::DeltaNack { have: most, full: true } },
        Message::WriteReply { request: most, reply: WriteReply::Deleted { deleted_at: i64::MAX } },
        Message::ReadReply { request: most, reply: ReadReply::Value(deleted()) },
        Message::DeltaBatch { from_seq: most, to_seq: most, items: vec![BatchItem::Delta(item())] },
        Message::DeltaBatch {
            from_seq: 1,
            to_seq: 2,
            items: vec![
                BatchItem::Full { key: "s".into(), envelope: deleted() },
                BatchItem::Touch { hash: most, used_ms: i64::MAX },
                BatchItem::Hint { hash: most },
            ],
        },
        Message::DeltaAck { from_seq: most, to_seq: most, nacked: Vec::new() },
        Message::DeltaAck { from_seq: 1, to_seq: 2, nacked: vec![Nacked { key: "s".into(), have: most, full: true }] },
        Message::SyncOpen { round: most, part: Sixteenths::ALL, root: sum(), pruning: news() },
        Message::SyncOpen { round: 7, part: Sixteenths::ALL, root: sum(), pruning: news() },
        Message::SyncOpen { round: 8, part: Sixteenths::ALL, root: sum(), pruning: known() },
        Message::SyncSame { round: most, pruning: news() },
        Message::SyncSame { round: 7, pruning: known() },
        Message::SyncDiffers { round: 7, pruning: news() },
        Message::SyncNodes { round: round(), number: most, parents: vec![(Prefix::ROOT, vec![sum(); 16])] },
        Message::SyncList { round: round(), number: most, prefixes: vec![Prefix::ROOT], keys: vec![listed] },
        Message::SyncWant { round: None, number: most, hashes: vec![most] },
        Message::Gossip { round: None, number: most, send_back: true, entries: vec![("s".into(), deleted())] },
        Message::SyncAck { round: round(), number: most, received: most, sent: most, idle: true },
        Message::SyncDone { round: most },
    ];
    for message in messages {
        world.receive('b', 'a', message);
    }
    world.run(SOON * 4);
    let core = world.core('b');
    assert_eq!(core.digests(), before, "no data changed");
    assert_eq!(core.pruning_news().standing.forget_horizon, None);
    assert_eq!(core.pruning_news().rounds, []);
    let (kept, latest) = (core.markers("s"), i64::try_from(world.now.as_millis()).unwrap());
    let ends = |end: i64| end < latest + 20 * 86_400_000;
    let is_bounded = |marker: &Performed| marker.performed_at <= latest && marker.obsolete_at.is_some_and(ends);
    assert!(kept.iter().all(is_bounded), "{kept:?}");
    assert!(core.stats().implausible_times > 0 && core.stats().malformed > 0);
    let told = |event: &&ReplicatorEvent| matches!(event, ReplicatorEvent::ImplausibleHorizon { .. });
    assert!(world.events.iter().any(|event| told(&event)));
    let again = count(&mut world, 'a', "c", 1, WriteLevel::all(TIMEOUT));
    world.run(SECOND);
    assert_eq!(world.written(again), Some(Ok(())));
    // A version of a's own updates was forged.
    let on_s = add(&mut world, 'a', "s", "y", WriteLevel::all(TIMEOUT));
    while world.written(on_s).is_none() {
        world.run(Duration::from_millis(1));
    }
    assert_eq!(world.written(on_s), Some(Ok(())));
    // Check now: anything confirmed and not there would come with the next comparison.
    assert_eq!(world.held('b', &set_key("s")).len(), 2, "no version that a never drew is kept");
    world.run(SECOND);
    world.all_equal();
}

/// Sets and counters of an unknown replica, whose numbers begin above `above`, with their tags.
fn far_out(above: u64) -> Vec<(Arc<str>, Bytes)> {
    let (numbers, writer) = (DotSource::above(above), WriterKey::new(*b"h"));
    let mut cx = UpdateCx::new(&numbers, ReplicaId(77), &writer, 0);
    let (mut set, mut votes, mut map) = (Set::zero(), Votes::zero(), Places::zero());
    set.add(&mut cx, "far".to_owned());
    votes.increment(&mut cx, "far".to_owned(), 1).unwrap();
    map.put_with(&mut cx, "far".to_owned(), "out".to_owned(), |_, _| 1);
    fn of<T: ReplicatedData>(value: &T) -> (Arc<str>, Bytes) {
        (T::TAG.to_string().into(), value.to_untagged_bytes().into())
    }
    vec![of(&set), of(&votes), of(&map)]
}

/// ddata 89, §9, K2: the largest numbers inside of data, and of the messages that compare and send large values in
/// parts. A number that no process can have drawn is refused before it is kept; a number that a process might have
/// drawn makes no replica draw beyond it when that process is pruned.
#[test]
fn scenario_89_numbers_inside_data_at_their_largest_value() {
    let settings = ReplicatorSettings {
        pruning_interval: Some(10 * SECOND),
        max_pruning_dissemination: 20 * SECOND,
        ..ReplicatorSettings::default()
    };
    let mut world = World::with("abc", settings);
    add(&mut world, 'a', "s", "x", MAJORITY);
    world.run(SOON);
    let before = world.core('a').digests();
    let gossip = |values: Vec<(Arc<str>, Bytes)>| {
        let of = |(at, (tag, bytes)): (usize, (Arc<str>, Bytes))| {
            (format!("far-{at}").into(), Envelope::of(Content::Value { tag, bytes }))
        };
        let entries = values.into_iter().enumerate().map(of).collect();
        Message::Gossip { round: None, number: 0, send_back: false, entries }
    };
    for above in [i64::MAX as u64, u64::MAX - 9] {
        let count = far_out(above).len() as u64;
        let refused = world.core('a').stats().undecodable;
        world.receive('a', 'c', gossip(far_out(above)));
        assert_eq!(world.core('a').stats().undecodable, refused + count, "above {above}");
        for (tag, bytes) in far_out(above) {
            let envelope = Envelope::of(Content::Value { tag: tag.clone(), bytes: bytes.clone() });
            world.receive('a', 'c', Message::Write { request: 1, key: "far".into(), envelope });
            let (prev, version, markers, used_ms) = (0, 5, Markers::new(), None);
            let item = DeltaItem { key: "far".into(), tag, prev, version, delta: bytes, markers, used_ms };
            world.receive('a', 'c', Message::DeltaWrite { request: 1, item });
        }
    }
    let (most, digest) = (u64::MAX, Digest(u128::MAX));
    let key = || KeyId::from("s");
    let round = RoundId { opened_by_sender: true, number: 1 };
    world.receive(
        'a',
        'c',
        Message::SyncOpen {
            round: 1,
            part: Sixteenths::ALL,
            root: Sum { count: 1, total: Digest(1) },
            pruning: PruningNews::default(),
        },
    );
    let tag: Arc<str> = Set::TAG.to_string().into();
    let head = || Envelope::of(Content::Value { tag: tag.clone(), bytes: Bytes::new() });
    let context = far_out(most - 9)[0].1.slice(1..);
    let offer = Offer { head: head(), context, send_back: true };
    let nodes = vec![(KeyRange::ALL, RangeSum { count: most, total: digest })];
    let number = 1;
    let messages = [
        Message::Check { request: most, key: key(), digest: Some(digest) },
        Message::Read { request: most, key: key(), tag: tag.clone(), digest: Some(digest) },
        Message::WriteReply { request: most, reply: WriteReply::Ack },
        Message::WriteReply { request: most, reply: WriteReply::Nack(Refusal::Store) },
        Message::InnerNodes { round, number, key: key(), snapshot: digest, offer: Some(Box::new(offer)), nodes },
        Message::InnerNodes { round, number: 2, key: key(), snapshot: digest, offer: None, nodes: Vec::new() },
        Message::InnerWant {
            round,
            number: 3,
            key: key(),
            snapshot: digest,
            ranges: vec![Wanted { range: KeyRange::ALL, split: true }],
        },
        Message::Bucket {
            round,
            number: 4,
            key: key(),
            snapshot: digest,
            part: Part { range: KeyRange::ALL, bytes: vec![0xff; 12] },
        },
        Message::InnerWant { round, number: most, key: key(), snapshot: digest, ranges: Vec::new() },
        Message::Bucket {
            round,
            number: most,
            key: key(),
            snapshot: digest,
            part: Part { range: KeyRange::ALL, bytes: Vec::new() },
        },
    ];
    for message in messages {
        world.receive('a', 'c', message);
    }
    assert_eq!(world.core('a').digests(), before, "nothing is kept");
    world.run(SOON * 4);
    // The data are possible: the leader finds the unknown replica in them, but reserves nothing for such a span.
    for above in [5, (1 << 62) + 5] {
        world.receive('a', 'c', gossip(far_out(above)));
    }
    world.run(SECOND * 600);
    for name in "abc".chars() {
        world.sent.clear();
        let level = WriteLevel::all(TIMEOUT);
        let id = count(&mut world, name, "c", 1, level);
        let drawn = world.requests_from(name);
        assert!(!drawn.is_empty() && drawn.iter().all(|number| *number < 1 << 61), "{name} draws {drawn:?}");
        world.settle();
        assert_eq!(world.written(id), Some(Ok(())), "{name} is heard by all");
    }
    world.all_equal();
}

/// ddata Y6: no timestamp of entries with custom clocks, such as sharding's homes and epochs, is compared with the wall
/// clock; a timestamp of other entries that is far ahead is reported once.
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
