//! The order in which the items of one frame reach a shard.

use std::num::NonZeroU32;

use bytes::BytesMut;
use greylag_codec::json;
use greylag_core::{Generation, Registry};
use greylag_persistence::Ctx;
use greylag_transport::Recipient;
use greylag_transport::memory::MemoryNetwork;

use super::*;
use crate::entity::{Entity, Failure};
use crate::ids::{EntityId, RegionId};
use crate::inbox::Inbox;
use crate::machine::message::{Attempt, Mark, Stamp};
use crate::{EntityKey, EntityType, Region, Sharding, ShardingSettings};

const SINK: EntityKey<u32> = EntityKey::new("Sink");

struct Sink;

impl Entity for Sink {
    type Message = u32;

    fn receive(&mut self, _: u32, _: &mut Ctx<'_, u32>) -> Result<(), Failure> {
        Ok(())
    }
}

/// A shard of this node, and a region of another node whose messages the shard admits without the machine.
struct HostedShard {
    region: Region<u32>,
    wire: Arc<Wire<u32>>,
    shard: ShardId,
    inbox: Arc<Inbox<Parcel<u32>>>,
    generation: Generation,
    origin: RegionId,
}

impl HostedShard {
    async fn new() -> Self {
        let node = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let sharding = Sharding::alone(node, None, ShardingSettings::test()).await.unwrap();
        let one_shard = crate::HashV1(NonZeroU32::MIN);
        let sinks = EntityType::new(SINK, |_| Ok(Sink)).codec(json("sink")).extractor(one_shard);
        let region = sharding.init(sinks).unwrap();
        region.start_entity("e").await.unwrap();
        let shared = &region.0;
        let shard = region.shard_of("e").unwrap();
        let number = shared.shards.number(shard.shared()).unwrap();
        let origin = RegionId { node: "b:1#1".parse().unwrap(), incarnation: 7 };
        let route = shared.shards.routes.cell(number).unwrap().load();
        let Some(Open::Local(local)) = route.as_deref() else { panic!("the shard is hosted here") };
        local.admit(origin.clone());
        let (inbox, generation) = (local.inbox.clone(), local.generation);
        drop(route);
        let wire = Wire::new(Path::Data);
        wire.connect(shared);
        Self { region, wire, shard, inbox, generation, origin }
    }

    fn inbound(&self, codec: CodecId, manifest: &str, payload: Bytes) -> Inbound {
        let path = self.region.0.lanes.data.path.clone();
        let recipient = Recipient { path, sub_path: Some(self.shard.shared().clone()), instance: 0 };
        let manifest = Manifest::from(manifest.to_owned());
        Inbound { from: self.origin.node.clone(), recipient, codec, manifest, payload, ask: None }
    }

    /// A message with this header.
    fn message(&self, put_header: impl FnOnce(&mut BytesMut, u32, &EntityId)) -> Inbound {
        let mut payload = BytesMut::new();
        put_header(&mut payload, self.region.0.lanes.data.digest, &EntityId::new("e").unwrap());
        payload.extend_from_slice(b"1");
        self.inbound(CodecId::JSON, "sink", payload.freeze())
    }

    /// A message that bypasses the machine.
    fn straight(&self) -> Inbound {
        let (generation, incarnation) = (self.generation, self.origin.incarnation);
        self.message(|buffer, digest, id| frame::put_straight(buffer, generation, incarnation, digest, id))
    }

    /// A message that must go through the machine.
    fn forwarded(&self) -> Inbound {
        let stamp = Stamp { hops: 1, ..Stamp::straight(self.origin.clone(), self.generation) };
        self.message(|buffer, digest, id| frame::put_header(buffer, &stamp, digest, id))
    }

    fn flush_mark(&self) -> Inbound {
        let mark = Mark::Flush { generation: self.generation, attempt: Attempt(1), from: self.origin.clone() };
        self.inbound(CodecId::INTERNAL, frame::MARK_MANIFEST, frame::encode_mark(&mark))
    }

    /// Receives the items of one frame, and returns how many messages lay in the shard's inbox after each item. The
    /// shard's task cannot run meanwhile, since this method does not await.
    fn receive(&self, items: Vec<Inbound>) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut items = items.into_iter();
        let mut watched = std::iter::from_fn(|| {
            lengths.push(self.inbox.len());
            items.next()
        });
        self.wire.receive_all(&mut watched);
        lengths.remove(0);
        lengths
    }
}

/// Sharding §2.1: a flush mark confirms all messages before it, so these are in the inbox by then.
#[tokio::test]
async fn a_mark_never_overtakes_the_messages_of_its_own_frame() {
    let shard = HostedShard::new().await;
    let lengths = shard.receive(vec![shard.straight(), shard.straight(), shard.flush_mark(), shard.straight()]);
    assert_eq!(lengths, [0, 0, 2, 2], "what follows the mark waits for the end of the frame");
    assert_eq!(shard.inbox.len(), 3);
}

/// Sharding §2.1: messages of one sender keep their order, whichever way each of them takes.
#[tokio::test]
async fn messages_through_the_machine_never_overtake_messages_pushed_directly() {
    let shard = HostedShard::new().await;
    let lengths = shard.receive(vec![shard.straight(), shard.forwarded(), shard.straight()]);
    assert_eq!(lengths, [0, 2, 2]);
    assert_eq!(shard.inbox.len(), 3);
}
