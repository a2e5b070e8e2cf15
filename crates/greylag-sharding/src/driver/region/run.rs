//! The task of one region: deadlines, and work that must not be done under the machine's lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{Envelope, Recipient};
use tokio::sync::oneshot;

use crate::driver::lanes::data::data_path;
use crate::driver::lanes::direct_path;
use crate::driver::lanes::wire::{Path, Wire};
use crate::driver::node::clock;
use crate::driver::node::dispatchers::Threads;
use crate::driver::node::services::Node;
use crate::driver::questions::inquiries::Inquiries;
use crate::driver::questions::requests::Answers;
use crate::driver::region::any_region::AnyRegion;
use crate::driver::region::event::Event;
use crate::driver::region::handle::Region;
use crate::driver::region::shared::RegionInner;
use crate::driver::region::task::Deferred;
use crate::entity_type::Described;
use crate::extractor::Extractor;
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::inspection::{EntityLocation, InspectionMessage};
use crate::machine::omissions::Omissions;
use crate::machine::region::{Input, Region as Machine, RegionConfig, RegionState, Request};
use crate::machine::shard::EntityScan;
use crate::routes::Open;
use crate::settings::ShardingSettings;
use crate::wire::inspection::encode_inspection;

impl<M: Send + 'static> AnyRegion for Region<M> {
    fn tell(&self, input: Input) {
        self.0.defer_input(input);
    }

    fn offer_peer_input(&self, input: Input, bytes: usize) -> bool {
        self.0.offer_peer_input(input, bytes)
    }

    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>) {
        self.0.task.defer(Deferred::HandedBack(node, envelopes));
    }

    fn publish(&self, event: Event) {
        self.0.events.send(event).ok();
    }

    fn id(&self) -> &RegionId {
        &self.0.id
    }

    fn retire(&self) {
        self.0.task.retire();
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
        self.0.task.has_answered()
    }

    fn ask_liveness(&self) {
        self.0.task.ask_liveness();
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
        omissions: Omissions::default(),
    };
    let machine = Machine::new(config, clock::now());
    let shared = Arc::new(RegionInner::new(name, machine, digest, entity_type, extractor, settings, node, threads));
    data.connect(&shared);
    direct.connect(&shared);
    Region(shared)
}

/// Runs until the region's node is gone, or another region has taken over from a stopped one.
///
/// `_listed` keeps alive the handle by which coordinators reach the region, since the list of regions gives it up when
/// another region takes over.
pub(crate) async fn run<M: Send + 'static>(shared: Arc<RegionInner<M>>, _listed: Arc<dyn AnyRegion>) {
    let mut batch = VecDeque::new();
    let mut timer = pin!(tokio::time::sleep_until(clock::now().into()));
    loop {
        let deadline = shared.deadline();
        if let Some(deadline) = deadline {
            timer.as_mut().reset(deadline.into());
        }
        poll_fn(|cx| {
            let told = shared.task.poll_take(cx, &mut batch).is_ready();
            let due = deadline.is_some() && timer.as_mut().poll(cx).is_ready();
            if told || due { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for deferred in batch.drain(..) {
            match deferred {
                Deferred::Input(input) => shared.input(input),
                Deferred::HandedBack(node, envelopes) => shared.handed_back(node, envelopes),
                Deferred::Coordinate(message) => {
                    let own = shared.remoting().self_address().clone();
                    shared.services.tell_coordinator(own, message);
                }
                Deferred::Agreement(incarnation, outcome) => {
                    shared.services.on_agreement(incarnation, outcome);
                }
                Deferred::Question(number) => shared.task.answer_liveness(number),
                Deferred::Divide => shared.divide_limit(),
                Deferred::Rearm => {}
            }
        }
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            shared.input(Input::Tick);
        }
        if shared.task.is_retired() && shared.has_ended() {
            return;
        }
    }
}
