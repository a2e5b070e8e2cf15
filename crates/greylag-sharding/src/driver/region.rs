//! The task of one region: deadlines, and work that must not be done under the machine's lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{Envelope, Recipient};
use tokio::sync::oneshot;

use super::clock;
use super::data::data_path;
use super::dispatchers::Threads;
use super::event::Event;
use super::handle::Region;
use super::inquiries::Inquiries;
use super::node::Node;
use super::requests::Answers;
use super::shared::{Deferred, Shared, direct_path};
use super::wire::{Path, Wire};
use crate::entity_type::Described;
use crate::extractor::Extractor;
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::inspection::{EntityLocation, InspectionMessage};
use crate::machine::region::{Input, Region as Machine, RegionConfig, RegionState, Request};
use crate::machine::shard::EntityScan;
use crate::routes::Open;
use crate::settings::ShardingSettings;
use crate::wire::inspection::encode_inspection;

/// A region with its message type erased.
pub(crate) trait AnyRegion: Send + Sync {
    /// Passes an input to the machine.
    fn tell(&self, input: Input);
    /// Passes a member's message of `bytes` bytes to the machine. False if too many wait.
    fn offer_peer_input(&self, input: Input, bytes: usize) -> bool;
    /// Takes envelopes of the region back that were never written.
    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>);
    /// Publishes an event to the type's subscribers.
    fn publish(&self, event: Event);
    /// The region's id.
    fn id(&self) -> &RegionId;
    /// Ends the stopped region once a coordinator knows of its end: another region of the type takes over on this node.
    fn retire(&self);
    /// Why the node is not ready for the type.
    fn not_ready(&self) -> Option<String>;
    /// For a downcast to a typed handle.
    fn as_any(&self) -> &(dyn std::any::Any + Send + Sync);
    /// The stage of the region's life.
    fn state(&self) -> RegionState;
    /// Whether its task has answered the last liveness question.
    fn has_answered(&self) -> bool;
    /// Sends its task a liveness question, unless one is open.
    fn ask_liveness(&self);
    /// The entity type.
    fn name(&self) -> &EntityTypeName;
    /// The settings of the type.
    fn settings(&self) -> &ShardingSettings;
    /// The runtime of its tasks.
    fn runtime(&self) -> &tokio::runtime::Handle;
    /// Sends a request to the coordinator.
    fn request(&self, request: Request, timeout: Duration) -> Answers;
    /// The shards hosted here, by name.
    fn hosted(&self) -> Vec<ShardId>;
    /// Makes a shard count its entities. `None` if the shard has no task now, or its inbox is full.
    fn count(&self, shard: &ShardId, scan: EntityScan) -> Option<oneshot::Receiver<EntityScan>>;
    /// Where an entity belongs, by the routes known here.
    fn locate(&self, id: &str) -> Result<EntityLocation, DeadLetterReason>;
    /// The questions to regions of other nodes.
    fn inquiries(&self) -> &Inquiries;
    /// Sends a question or an answer to the region of another node.
    fn send_inspection(&self, to: &UniqueAddress, message: &InspectionMessage);
}

impl<M: Send + 'static> AnyRegion for Region<M> {
    fn tell(&self, input: Input) {
        self.0.defer_input(input);
    }

    fn offer_peer_input(&self, input: Input, bytes: usize) -> bool {
        self.0.offer_peer_input(input, bytes)
    }

    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>) {
        self.0.deferred.push_anyway(Deferred::HandedBack(node, envelopes));
    }

    fn publish(&self, event: Event) {
        self.0.events.send(event).ok();
    }

    fn id(&self) -> &RegionId {
        &self.0.id
    }

    fn retire(&self) {
        self.0.retired.store(true, Ordering::Relaxed);
        self.0.deferred.push_anyway(Deferred::Rearm);
    }

    fn not_ready(&self) -> Option<String> {
        self.0.not_ready()
    }

    fn as_any(&self) -> &(dyn std::any::Any + Send + Sync) {
        self
    }

    fn state(&self) -> RegionState {
        self.0.state()
    }

    fn has_answered(&self) -> bool {
        self.0.liveness.has_answered()
    }

    fn ask_liveness(&self) {
        if let Some(number) = self.0.liveness.ask() {
            self.0.deferred.push_anyway(Deferred::Question(number));
        }
    }

    fn name(&self) -> &EntityTypeName {
        &self.0.name
    }

    fn settings(&self) -> &ShardingSettings {
        &self.0.settings
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.node.runtime
    }

    fn request(&self, request: Request, timeout: Duration) -> Answers {
        self.0.request(request, timeout)
    }

    fn hosted(&self) -> Vec<ShardId> {
        self.0.hosted_shards()
    }

    fn count(&self, shard: &ShardId, scan: EntityScan) -> Option<oneshot::Receiver<EntityScan>> {
        self.0.count_shard(shard, scan)
    }

    fn locate(&self, id: &str) -> Result<EntityLocation, DeadLetterReason> {
        let (_, index) = self.0.shards.target(id)?;
        let shard = self.0.shards.name(index).ok_or(DeadLetterReason::InvalidShardId)?;
        let region = self.0.shards.routes.cell(index).and_then(|cell| match cell.load().as_deref()? {
            Open::Local(_) => Some(self.0.id.clone()),
            Open::Remote(remote) => Some(remote.home.region.clone()),
        });
        Ok(EntityLocation { shard, region })
    }

    fn inquiries(&self) -> &Inquiries {
        &self.0.inquiries
    }

    fn send_inspection(&self, to: &UniqueAddress, message: &InspectionMessage) {
        self.0.send_control(to, encode_inspection(message), None);
    }
}

/// Makes a region and registers its receivers. The region has no state yet: its first input must be `Membership`, and
/// its task must still be started.
#[allow(clippy::too_many_arguments)]
pub(crate) fn open<M: Send + 'static>(
    node: Arc<Node>,
    entity_type: Described<M>,
    name: EntityTypeName,
    fingerprint: Fingerprint,
    settings: ShardingSettings,
    extractor: Arc<dyn Extractor>,
    proxy: bool,
    threads: Threads,
) -> Region<M> {
    let (data, direct) = (Wire::<M>::new(Path::Data), Wire::<M>::new(Path::Direct));
    let incarnation = node.remoting.register(&data_path(&name), data.clone());
    node.remoting.register(&direct_path(&name), direct.clone());
    let digest = fingerprint.digest();
    let (remoting, path) = (node.remoting.clone(), data_path(&name));
    let config = RegionConfig {
        id: RegionId { node: node.remoting.self_address().clone(), incarnation },
        proxy,
        coordinator_role: settings.coordinator_singleton.role_for(&fingerprint.role).to_owned(),
        settings: settings.clone(),
        lane_of: Arc::new(move |shard: &ShardId| {
            let recipient = Recipient::new(path.as_str()).with_sub_path(shard.shared().clone());
            remoting.lane_of(&recipient)
        }),
        fingerprint,
    };
    let machine = Machine::new(config, clock::now());
    let shared = Arc::new(Shared::new(name, machine, digest, entity_type, extractor, settings, node, threads));
    data.connect(&shared);
    direct.connect(&shared);
    Region(shared)
}

/// Runs until the region's node is gone, or another region has taken over from a stopped one.
///
/// `_listed` keeps alive the handle by which coordinators reach the region, since the list of regions gives it up when
/// another region takes over.
pub(crate) async fn run<M: Send + 'static>(shared: Arc<Shared<M>>, _listed: Arc<dyn AnyRegion>) {
    let mut batch = VecDeque::new();
    let mut timer = pin!(tokio::time::sleep_until(clock::now().into()));
    loop {
        let deadline = shared.deadline();
        if let Some(deadline) = deadline {
            timer.as_mut().reset(deadline.into());
        }
        poll_fn(|cx| {
            let told = shared.deferred.poll_take(cx, &mut batch).is_ready();
            let due = deadline.is_some() && timer.as_mut().poll(cx).is_ready();
            if told || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for deferred in batch.drain(..) {
            match deferred {
                Deferred::Input(input) => shared.input(input),
                Deferred::HandedBack(node, envelopes) => shared.handed_back(node, envelopes),
                Deferred::Coordinate(message) => {
                    if let Some(coordination) = shared.coordination.get() {
                        coordination.tell(shared.remoting().self_address().clone(), message);
                    }
                }
                Deferred::Agreement(incarnation, outcome) => {
                    if let Some(coordination) = shared.coordination.get() {
                        coordination.on_agreement(incarnation, outcome);
                    }
                }
                Deferred::Question(number) => shared.liveness.answer(number),
                Deferred::Divide => shared.divide_limit(),
                Deferred::Rearm => {}
            }
        }
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            shared.input(Input::Tick);
        }
        if shared.retired.load(Ordering::Relaxed) && shared.has_ended() {
            return;
        }
    }
}
