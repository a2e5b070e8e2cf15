//! Persistent entities are counted when a shard hosts them. Source: persistence §10.16.

use std::num::NonZeroUsize;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::{Either, select};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Generation, Manifest, UniqueAddress};
use greylag_persistence::EntityStats;

use super::*;
use crate::ids::{EntityId, RegionId};
use crate::machine::message::Stamp;
use crate::machine::region::Input;
use crate::parcel::Parcel;

/// A codec that takes long to encode a state.
struct SlowCodec;

impl Codec<i64> for SlowCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &i64) -> Manifest {
        "ledger.state".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["ledger.state".into()]
    }

    fn encode(&self, state: &i64, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        // The runtime's paused clock advances at the first poll.
        let _ = tokio::time::advance(Duration::from_millis(51)).now_or_never();
        json("ledger.state").encode(state, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<i64, DecodeError> {
        json("ledger.state").decode(manifest, bytes)
    }
}

/// Ledgers with room for one stashed command, and with a snapshot after each event, which takes long to encode.
fn slow() -> EntityType<Command, ByEvents<Ledger>> {
    let entities = EntityType::event_sourced(EntityKey::new("Slow"), |_| {
        let settings = EventSourcedSettings {
            snapshot_every: NonZeroU64::new(1),
            stash_capacity: NonZeroUsize::new(1).unwrap(),
            ..EventSourcedSettings::test()
        };
        Ok(Ledger { settings, ..Ledger::new("") })
    });
    entities.events(json("ledger.added")).snapshots(SlowCodec)
}

/// Waits until the counters satisfy `holds`; time is paused, so this takes none.
async fn until(sharding: &Sharding, what: &str, holds: impl Fn(&EntityStats) -> bool) -> EntityStats {
    for _ in 0..10_000 {
        let stats = sharding.stores().unwrap().entity_stats()[""];
        if holds(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what} does not come about: {:?}", sharding.stores().unwrap().entity_stats());
}

#[tokio::test(start_paused = true)]
async fn event_sourced_entities_are_counted() {
    let settings = ShardingSettings { max_concurrent_recoveries: 1, ..ShardingSettings::test() };
    let sharding = alone_over(Some(Stores::in_memory()), settings).await;
    let entities = sharding.init(slow()).unwrap();
    let one = entities.entity_ref("one");
    let permits = sharding.recovery_permits();
    let held = permits.acquire().await;
    one.tell(Command::Add(100)).unwrap();
    until(&sharding, "one that waits for a permit", |_| permits.waiting() == 1).await;
    drop(held);
    let stats = until(&sharding, "a snapshot", |stats| stats.snapshots == 1).await;
    assert_eq!((stats.recoveries, stats.writes, stats.events, stats.snapshot_bytes), (1, 1, 1, 3));
    assert_eq!((stats.slow_encodings, permits.waiting(), permits.in_use()), (1, 0, 0));

    one.ask(Command::Who).timeout(PATIENCE).await.unwrap_err();
    let silence = || one.ask(Command::Silence).timeout(PATIENCE).send();
    let (first, second) = (pin!(silence()), pin!(silence()));
    let (Either::Left((dropped, _kept)) | Either::Right((dropped, _kept))) = select(first, second).await;
    assert_eq!(dropped, Err(AskError::Entity(EntityError::StashFull)));
    let stats = until(&sharding, "a stash", |stats| stats.stashed == 1).await;
    assert_eq!((stats.unhandled, stats.stash_drops), (1, 1));
    one.tell(Command::Passivate).unwrap();
    until(&sharding, "an empty stash", |stats| stats.stashed == 0).await;
}

#[tokio::test]
async fn entities_with_a_durable_state_are_counted() {
    let (sharding, gauges) = gauges_over(Arc::new(InMemoryStates::default()), ShardingSettings::test()).await;
    gauges.entity_ref("one").tell(Command::Add(1)).unwrap();
    gauges.entity_ref("one").ask(Command::Who).timeout(PATIENCE).await.unwrap_err();
    let stats = sharding.stores().unwrap().entity_stats()[""];
    let expected = EntityStats { recoveries: 1, writes: 1, unhandled: 1, ..EntityStats::default() };
    assert_eq!(EntityStats { recovery_time: Duration::ZERO, longest_recovery: Duration::ZERO, ..stats }, expected);
}

/// A message by a route of an earlier allocation: its sender is told the newer one, and that is counted.
#[tokio::test]
async fn stale_routes_are_counted() {
    let sharding = alone(ShardingSettings::test()).await;
    let counters = sharding.init(counters()).unwrap();
    get(&counters, "1").await;
    let (shard, node) = (counters.shard_of("1").unwrap(), "b:1#9".parse::<UniqueAddress>().unwrap());
    let origin = RegionId { node: node.clone(), incarnation: 1 };
    let generation = Generation::new(1, 1).unwrap();
    let stamp = Stamp::straight(origin, generation);
    let parcel = Parcel::local(EntityId::new("1").unwrap(), Command::Add(1), None);
    assert_eq!(counters.metrics().stale_routes, 0);
    counters.0.input_with(parcel, |message| Input::Frame { node, shard, stamp, message });
    assert_eq!(counters.metrics().stale_routes, 1);
}
