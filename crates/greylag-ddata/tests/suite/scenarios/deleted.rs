//! Updates of entries that are deleted elsewhere meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, Markers};
use greylag_ddata::{
    Content, Effect, Envelope, Input, Key, Message, Notice, PruningNews, Replica, ReplicaStatus, Replicas,
    ReplicatorCore, ReplicatorSettings, Reply, Sixteenths, Sum, TypeTable, UpdateError, WriteLevel, WriteReply,
};

use crate::scenarios::levels::count;
use crate::scenarios::world::World;

/// ddata R3, R12, C2: a deletion arrives while an update waits for its acknowledgements; the replicas then confirm the
/// deletion, and the caller gets `Deleted`.
#[test]
fn an_update_ends_as_deleted_if_a_deletion_arrives_meanwhile() {
    let now = Instant::now();
    let own: UniqueAddress = "a:1#1".parse().unwrap();
    let peer: UniqueAddress = "b:1#2".parse().unwrap();
    let numbers = DotSource::new();
    let mut core = ReplicatorCore::new(ReplicatorSettings::default(), TypeTable::new(), own, numbers, 1, now);
    let replica = Replica { address: peer.clone(), status: ReplicaStatus::Up, reachable: true, age: 1 };
    let replicas = Replicas { others: vec![replica], ..Replicas::alone() };
    let mut out = Vec::new();
    core.handle(now, Input::Replicas(Arc::new(replicas)), &mut out);
    let (part, root, pruning) = (Sixteenths::NONE, Sum::default(), PruningNews::default());
    let stands = Message::SyncOpen { round: 1, part, root, pruning };
    core.handle(now, Input::Received { from: peer.clone(), message: stands }, &mut out);
    let key = Key::<GCounter>::new("c").unwrap();
    let level = WriteLevel::To { n: 2, timeout: Duration::from_secs(5) };
    core.update(now, 0, 7, &key, level, GCounter::new, |counter, cx| counter.increment(cx, 1), &mut out).unwrap();
    let asked = out.drain(..).find_map(|effect| match effect {
        Effect::Send { message: Message::DeltaWrite { request, .. }, .. } => Some(request),
        _ => None,
    });
    let content = Content::Tombstone { deleted_at: 1 };
    let envelope =
        Envelope { content, versions: std::collections::BTreeMap::new(), markers: Markers::new(), used_ms: None };
    let entries = vec![("c".into(), envelope)];
    let gossip = Message::Gossip { round: None, number: 0, send_back: false, entries };
    core.handle(now, Input::Received { from: peer.clone(), message: gossip }, &mut out);
    let message = Message::WriteReply { request: asked.unwrap(), reply: WriteReply::Ack };
    core.handle(now, Input::Received { from: peer, message }, &mut out);
    let reply = out.into_iter().find_map(|effect| match effect {
        Effect::Reply { id: 7, reply } => Some(reply),
        _ => None,
    });
    assert_eq!(reply, Some(Reply::Update(Err(UpdateError::Deleted { key: "c".into() }))));
}

/// ddata R15, R17: a subscriber is told once that an entry is deleted, even if a later deletion is heard of afterwards.
#[test]
fn that_an_entry_is_deleted_is_told_once() {
    let mut world = World::new("ab");
    let id = count(&mut world, 'a', "c", 1, WriteLevel::Local);
    assert_eq!(world.written(id), Some(Ok(())));
    world.input('a', Input::SubscribeAny { subscriber: 1, pattern: "*".into() });
    world.input('a', Input::Flush);
    world.delete('a', "c", WriteLevel::Local);
    world.input('a', Input::Flush);
    let before = world.core('a').digests();
    let content = Content::Tombstone { deleted_at: 100_000 };
    let envelope =
        Envelope { content, versions: std::collections::BTreeMap::new(), markers: Markers::new(), used_ms: None };
    world.receive('a', 'b', Message::Write { request: 1, key: "c".into(), envelope });
    assert_ne!(world.core('a').digests(), before, "the later time counts");
    world.input('a', Input::Flush);
    let told: Vec<&Notice> = world.notices.iter().map(|(_, _, notice)| notice).collect();
    assert!(matches!(told[..], [Notice::Value(_), Notice::Deleted]), "{told:?}");
}
