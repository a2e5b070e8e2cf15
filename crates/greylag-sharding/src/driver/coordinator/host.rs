//! Runs the coordinator of one entity type wherever the cluster's singleton puts it.
//!
//! Every node that sets up a type has a [`Host`]: it receives the messages of regions to the coordinator, remembers the
//! largest epoch named in them, and, while the singleton runs here, runs one incarnation of the machine after the
//! other. An incarnation that fails is followed by the next one after a backoff that doubles up to five times its
//! length.
//!
//! Source: sharding §2.13.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use greylag_cluster::{Cluster, Singleton, StopToken};
use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::{AskError, AskHeader, Inbound, Receiver, Remoting};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::allocation::View;
use crate::driver::coordinator::coordinated::{Coordinated, CoordinatorMetrics, HandoffWatch};
use crate::driver::coordinator::mailbox::{Mailbox, mailbox};
use crate::driver::coordinator::store::failures::Failures;
use crate::driver::coordinator::store::{Backend, NotCommitted, StateStore};
use crate::driver::coordinator::strategy::AllocationStrategy;
use crate::driver::lanes::control::{ControlLane, control_path};
use crate::driver::node::clock;
use crate::driver::node::dispatchers::on_runtime;
use crate::driver::questions::inspect;
use crate::driver::region::any_region::AnyRegion;
use crate::driver::region::event::Event;
use crate::driver::region::type_services::Coordination;
use crate::driver::remember::{Memory, ShardSet};
use crate::error::ReadError;
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::machine::coordinator::{Coordinator, CoordinatorConfig, CoordinatorEvent, Effect, Input, StopReason};
use crate::machine::membership::Members;
use crate::machine::message::{
    AgreementOutcome, CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, RegionMessage,
};
use crate::machine::omissions::Omissions;
use crate::machine::region::answer_without_region;
use crate::parts::{Joiner, PART_MANIFEST};
use crate::remember::RememberError;
use crate::settings::ShardingSettings;
use crate::wire::{self, Control};

/// The part of a type's coordination that is on this node.
pub(crate) struct Host {
    name: EntityTypeName,
    remoting: Arc<dyn Remoting>,
    control_lane: ControlLane,
    /// `None` if the singleton is never here, because the node lacks the role.
    backend: Option<Backend>,
    /// `Some` if the type remembers its entities.
    memory: Option<Arc<Memory>>,
    fingerprint: Fingerprint,
    settings: ShardingSettings,
    margin: Duration,
    strategy: Arc<dyn AllocationStrategy>,
    /// The largest epoch that a `Register` or `StaleEpoch` has named here, even while no coordinator runs.
    seen_epoch: AtomicU64,
    incarnations: AtomicU64,
    coordinated: Arc<Coordinated>,
    now: Mutex<Now>,
}

/// Mutable state of the host.
struct Now {
    members: Arc<Members>,
    suspect: bool,
    /// The number and the inbox of the incarnation that runs here.
    running: Option<(u64, Mailbox)>,
    /// The regions of the type in this process that are still needed: the last one is the newest, the others have
    /// stopped and report that to the coordinator.
    regions: Vec<Weak<dyn AnyRegion>>,
}

impl Now {
    /// The region that a coordinator addresses, or the newest.
    fn region(&self, to: Option<&RegionId>) -> Option<Arc<dyn AnyRegion>> {
        let mut living = self.regions.iter().rev().filter_map(Weak::upgrade);
        living.find(|region| to.is_none_or(|to| region.id() == to))
    }
}

impl Host {
    /// Starts to receive the type's messages, and to coordinate the type whenever the singleton is here.
    pub(crate) fn start(
        cluster: &Cluster,
        (backend, memory): (Option<Backend>, Option<Arc<Memory>>),
        region: &Arc<dyn AnyRegion>,
        (name, fingerprint, settings, strategy): (
            EntityTypeName,
            Fingerprint,
            ShardingSettings,
            Arc<dyn AllocationStrategy>,
        ),
        members: Arc<Members>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let singleton = settings.coordinator_singleton.singleton(&fingerprint.role);
        let host = Arc::new(Self {
            backend,
            memory,
            remoting: cluster.remoting().clone(),
            control_lane: ControlLane::new(name.clone(), cluster.remoting().clone()),
            margin: settings.down_removal_margin.unwrap_or_else(|| cluster.down_removal_margin()),
            strategy,
            fingerprint,
            settings,
            seen_epoch: AtomicU64::new(0),
            incarnations: AtomicU64::new(0),
            coordinated: Arc::default(),
            now: Mutex::new(Now { members, suspect: false, running: None, regions: vec![Arc::downgrade(region)] }),
            name,
        });
        cluster.remoting().register(&control_path(&host.name), Arc::new(ControlReceiver::new(host.clone())));
        let name = format!("sharding/{}/singleton", host.name.encoded());
        let instance = host.clone();
        let runtime = runtime.clone();
        let job = Singleton::job(name, move |context, stop| {
            on_runtime(&runtime, instance.clone().run(context.instance_id, stop))
        });
        cluster
            .singleton(job.settings(singleton))
            .expect("the settings were checked, and no other singleton takes this name");
        host
    }

    /// Takes a new region of the type, whose predecessor has stopped.
    pub(crate) fn take_region(&self, region: &Arc<dyn AnyRegion>) {
        let mut now = self.lock();
        now.regions.retain(|region| region.strong_count() > 0);
        // The newest region speaks for the node: it compares the type's role with the other members.
        if let Some(former) = now.region(None) {
            former.tell(crate::machine::region::Input::Coordinator(None));
        }
        now.regions.push(Arc::downgrade(region));
        if let Some((incarnation, _)) = now.running {
            region.tell(crate::machine::region::Input::Coordinator(Some(incarnation)));
        }
    }

    /// Takes a report of the cluster, as it was given to the newest region.
    pub(crate) fn on_cluster(&self, input: &crate::machine::region::Input) {
        let mut now = self.lock();
        let stopped = now.regions.len() - 1;
        for region in now.regions[..stopped].iter().filter_map(Weak::upgrade) {
            region.tell(input.clone());
        }
        let input = match input {
            crate::machine::region::Input::Membership(members) => {
                now.members = members.clone();
                Input::Membership(members.clone())
            }
            crate::machine::region::Input::SelfSuspect => {
                now.suspect = true;
                Input::SelfSuspect
            }
            crate::machine::region::Input::SelfTrusted => {
                now.suspect = false;
                Input::SelfTrusted
            }
            crate::machine::region::Input::SelfDowned => Input::SelfDowned,
            _ => return,
        };
        if let Some((_, running)) = &now.running {
            running.tell(input);
        }
    }

    /// Notes that an incarnation runs here from now on, or none any more.
    fn run_here(&self, running: Option<(u64, Mailbox)>) {
        let mut now = self.lock();
        let incarnation = running.as_ref().map(|(incarnation, _)| *incarnation);
        if let Some((_, inbox)) = &running {
            inbox.tell(Input::Membership(now.members.clone()));
            if now.suspect {
                inbox.tell(Input::SelfSuspect);
            }
        }
        now.running = running;
        if let Some(region) = now.region(None) {
            region.tell(crate::machine::region::Input::Coordinator(incarnation));
        }
    }

    /// Opens the store of a new incarnation.
    fn open_store(&self) -> Arc<dyn StateStore> {
        let backend = self.backend.as_ref().expect("the singleton runs only where the role is, and there the store is");
        backend.open(&self.name, &self.fingerprint, &self.settings, &self.coordinated)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an epoch that a region has seen, even while no coordinator runs here.
    fn see(&self, node: &UniqueAddress, message: &RegionMessage) {
        let (region, epoch): (&RegionId, Epoch) = match message {
            RegionMessage::Register(register) => (&register.region, register.highest_epoch),
            RegionMessage::StaleEpoch { region, epoch } => (region, *epoch),
            _ => return,
        };
        if region.node == *node {
            self.seen_epoch.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    /// Runs one incarnation after the other, until the singleton moves on.
    async fn run(self: Arc<Self>, instance: u64, mut stop: StopToken) {
        let mut backoff = self.settings.coordinator_failure_backoff;
        while !stop.is_stopped() {
            let began = clock::now();
            let reason = self.incarnation(instance, &mut stop).await;
            self.run_here(None);
            tracing::info!(entity_type = %self.name, ?reason, "coordinator stopped");
            match reason {
                StopReason::HandedOver | StopReason::Downed => return,
                StopReason::GenerationsUsedUp => continue,
                StopReason::Fenced { .. }
                | StopReason::CommitFailed
                | StopReason::Unreadable
                | StopReason::RememberStoreStopped => {}
            }
            if clock::now().saturating_duration_since(began) > backoff * 10 {
                backoff = self.settings.coordinator_failure_backoff;
            }
            // Jitter, so that rivals do not restart in step.
            let pause = backoff.mul_f64(rand::random_range(0.8..1.2));
            tokio::select! {
                () = stop.stopped() => return,
                () = tokio::time::sleep(pause) => {}
            }
            backoff = (backoff * 2).min(self.settings.coordinator_failure_backoff * 5);
        }
    }

    async fn incarnation(self: &Arc<Self>, instance: u64, stop: &mut StopToken) -> StopReason {
        let (sender, mut inbox) = mailbox();
        let number = self.incarnations.fetch_add(1, Ordering::Relaxed);
        // The sum is unique, since singleton instances are drawn at random and incarnations of one instance are
        // consecutive.
        let incarnation = instance.wrapping_add(number);
        let id = CoordinatorId { node: self.remoting.self_address().clone(), incarnation };
        let store = self.open_store();
        let shards = self.memory.as_ref().map(|memory| memory.shards());
        let config = CoordinatorConfig {
            id,
            max_batch: store.max_batch(),
            fingerprint: self.fingerprint.clone(),
            role: self.fingerprint.role.clone(),
            settings: self.settings.clone(),
            down_removal_margin: self.margin,
            omissions: Omissions::default(),
        };
        let mut effects = Vec::new();
        let mut machine = Coordinator::new(config, &mut effects);
        self.strategy.start();
        self.run_here(Some((incarnation, sender.clone())));
        let (mut work, mut handoffs) = (JoinSet::new(), HandoffWatch::default());
        let mut told_to_stop = false;
        loop {
            for effect in std::mem::take(&mut effects) {
                handoffs.on_effect(clock::now(), &effect, &self.coordinated);
                if let Effect::ReadRemembered | Effect::Remember { .. } = effect {
                    self.remember(effect, shards.as_ref(), &sender, &mut work);
                } else if let Some(reason) = self.execute(effect, &store, &sender, &mut work) {
                    return reason;
                }
            }
            let deadline = machine.next_deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                () = stop.stopped(), if !told_to_stop => {
                    told_to_stop = true;
                    Input::Terminate
                }
                () = due => Input::Tick,
                Some(input) = inbox.next() => input,
                Some(_) = work.join_next(), if !work.is_empty() => continue,
            };
            let may_change_regions =
                !matches!(input, Input::FromRegion { message: RegionMessage::GetShardHome { .. }, .. });
            machine.handle(clock::now(), input, &mut effects);
            if may_change_regions {
                self.coordinated.has_regions(machine.hosting_regions().count());
            }
        }
    }

    /// Executes one effect; effects that wait are spawned as tasks that end with the incarnation.
    fn execute(
        self: &Arc<Self>,
        effect: Effect,
        store: &Arc<dyn StateStore>,
        inbox: &Mailbox,
        work: &mut JoinSet<()>,
    ) -> Option<StopReason> {
        let (host, store, inbox) = (self.clone(), store.clone(), inbox.clone());
        match effect {
            Effect::Read => drop(work.spawn(async move {
                inbox.tell(host.read(&*store).await);
            })),
            Effect::Commit { batch, events } => drop(work.spawn(async move {
                let (began, count) = (clock::now(), events.len());
                let answer = match store.commit(events).await {
                    Ok(()) => Input::Committed { batch },
                    Err(failed) => Input::CommitFailed { batch, retryable: failed == NotCommitted::NotStored },
                };
                host.coordinated.commits.record(clock::now().saturating_duration_since(began), count);
                inbox.tell(answer);
            })),
            // The caller executes these two.
            Effect::ReadRemembered | Effect::Remember { .. } => {}
            Effect::Send { to, message } => self.send(to, message, &inbox, work),
            Effect::CallAllocate { call, shards, view } => drop(work.spawn(async move {
                let began = clock::now();
                let homes = host.allocate(shards, view).await;
                host.coordinated.allocations.record(clock::now().saturating_duration_since(began), 1);
                inbox.tell(Input::Allocated { call, homes });
            })),
            Effect::CallRebalance { view, in_progress } => drop(work.spawn(async move {
                let shards = host.rebalance(view, in_progress).await;
                inbox.tell(Input::Rebalance { shards });
            })),
            Effect::Continue => inbox.tell(Input::Continue),
            Effect::Stop(reason) => return Some(reason),
            Effect::Event(event) => {
                self.log(&event);
                let newest = self.lock().region(None);
                if let Some(region) = newest {
                    region.publish(Event::Coordinator(event));
                }
            }
        }
        None
    }

    async fn read(&self, store: &dyn StateStore) -> Input {
        match store.read().await {
            Ok(state) => {
                let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let seen_epoch = self.seen_epoch.load(Ordering::Relaxed);
                Input::Read { state, wall_secs: since_1970.as_secs(), seen_epoch }
            }
            Err(error) => {
                tracing::error!(
                    entity_type = %self.name, %error,
                    "the coordinator's state cannot be read; no new shard of this type can be allocated"
                );
                Input::Unreadable
            }
        }
    }

    /// Sends a request to the store of remembered shards, repeated until it answers.
    fn remember(&self, effect: Effect, shards: Option<&Arc<dyn ShardSet>>, inbox: &Mailbox, work: &mut JoinSet<()>) {
        let Some(shards) = shards.cloned() else { return };
        let (name, inbox, patience) = (self.name.clone(), inbox.clone(), self.settings.updating_state_timeout);
        work.spawn(async move {
            let mut failures = Failures::new(&name, patience, "is the store of remembered entities reachable?");
            loop {
                let (what, done) = match &effect {
                    Effect::Remember { shards: added } => {
                        let done = tokio::time::timeout(patience, shards.add(added.clone())).await;
                        ("write of remembered shards", done.map(|done| done.map(|()| Input::ShardsRemembered(added.clone()))))
                    }
                    _ => {
                        let done = tokio::time::timeout(patience, shards.read()).await;
                        ("read of remembered shards", done.map(|done| done.map(Input::RememberedShards)))
                    }
                };
                let late = || RememberError::Unavailable(format!("no answer within {patience:?}").into());
                match done.unwrap_or_else(|_| Err(late())) {
                    Ok(answer) => return inbox.tell(answer),
                    Err(error @ RememberError::Stopped(_)) => {
                        tracing::error!(entity_type = %name, %error, "coordinator state: {what} failed, the coordinator starts anew");
                        return inbox.tell(Input::RememberStopped);
                    }
                    Err(error) => failures.report(what, &error).await,
                }
            }
        });
    }

    fn send(&self, to: UniqueAddress, message: FromCoordinator, inbox: &Mailbox, work: &mut JoinSet<()>) {
        if to == *self.remoting.self_address() {
            self.send_to_region(to, message, 0);
            return;
        }
        let mut ask = None;
        if message.message == CoordinatorMessage::RegionInquiry {
            // Send an ask, because "no such recipient" is an answer: no region of the type is there.
            let budget = self.settings.retry_interval;
            let asked = self.remoting.open_ask(budget);
            ask = Some(AskHeader { id: asked.address.ask_id, budget });
            let (inbox, node, epoch) = (inbox.clone(), to.clone(), message.epoch);
            work.spawn(async move {
                if let Err(AskError::NoSuchRecipient) = asked.answer.await {
                    inbox.tell(Input::FromRegion { node, message: RegionMessage::NoRegion { epoch } });
                }
            });
        }
        if let Err(refused) = self.control_lane.send(&to, wire::encode_coordinator(&message), ask)
            && let Some(region) = self.lock().region(None)
        {
            region.publish(refused);
        }
    }

    /// Passes a coordinator's message of `bytes` bytes to the region that it addresses. For a region that is gone from
    /// this process, answers that it has stopped. False if too many messages wait for the region.
    fn send_to_region(&self, node: UniqueAddress, message: FromCoordinator, bytes: usize) -> bool {
        let region = self.lock().region(message.to.as_ref());
        if let Some(region) = region {
            return region.offer_peer_input(crate::machine::region::Input::FromCoordinator { node, message }, bytes);
        }
        self.answer_for_stopped(node, &message);
        true
    }

    fn answer_for_stopped(&self, node: UniqueAddress, message: &FromCoordinator) {
        let is_ours = message.to.as_ref().is_some_and(|to| to.node == *self.remoting.self_address());
        let Some(answer) = answer_without_region(message).filter(|_| is_ours) else { return };
        if node == *self.remoting.self_address() {
            return self.tell(node, answer);
        }
        if let Err(refused) = self.control_lane.send(&node, wire::encode_region(&answer), None)
            && let Some(region) = self.lock().region(None)
        {
            region.publish(refused);
        }
    }

    async fn allocate(
        &self,
        shards: Vec<(ShardId, Option<RegionId>)>,
        mut view: View,
    ) -> Vec<(ShardId, Option<RegionId>)> {
        let mut homes = Vec::with_capacity(shards.len());
        for (shard, requester) in shards {
            let choice = self.strategy.allocate(&shard, requester.as_ref(), &view);
            let region = match tokio::time::timeout(self.settings.allocation_timeout, choice).await {
                Ok(Ok(region)) => Some(region),
                Ok(Err(error)) => {
                    tracing::warn!(
                        entity_type = %self.name, %shard, %error,
                        "allocation strategy failed; the shard is not allocated"
                    );
                    None
                }
                Err(_) => None,
            };
            if let Some(region) = &region {
                view.place(region, &shard);
            }
            homes.push((shard, region));
        }
        homes
    }

    async fn rebalance(&self, view: View, in_progress: BTreeSet<ShardId>) -> BTreeSet<ShardId> {
        let choice = self.strategy.rebalance(&view, &in_progress);
        match tokio::time::timeout(self.settings.allocation_timeout, choice).await {
            Ok(Ok(shards)) => shards,
            Ok(Err(error)) => {
                tracing::warn!(entity_type = %self.name, %error, "rebalance strategy failed; no shard is moved");
                BTreeSet::new()
            }
            Err(_) => BTreeSet::new(),
        }
    }

    fn log(&self, event: &CoordinatorEvent) {
        match event {
            CoordinatorEvent::HandOffTimedOut { .. }
            | CoordinatorEvent::HandOffStuck { .. }
            | CoordinatorEvent::AllocationFailed { .. }
            | CoordinatorEvent::RegionRefused(_) => {
                tracing::warn!(entity_type = %self.name, ?event, "coordinator");
            }
            CoordinatorEvent::Active { .. } => tracing::info!(entity_type = %self.name, ?event, "coordinator"),
            _ => tracing::debug!(entity_type = %self.name, ?event, "coordinator"),
        }
    }
}

impl Host {
    /// Passes a region's message of `bytes` bytes to the coordinator that runs here. False if too many wait.
    fn offer(&self, node: UniqueAddress, message: RegionMessage, bytes: usize) -> bool {
        self.see(&node, &message);
        match &self.lock().running {
            Some((_, running)) => running.offer(Input::FromRegion { node, message }, bytes),
            None => true,
        }
    }
}

impl Coordination for Host {
    fn tell(&self, node: UniqueAddress, message: RegionMessage) {
        // A message that does not fit is dropped: its region repeats a message that is not answered.
        self.offer(node, message, 0);
    }

    fn on_agreement(&self, incarnation: Option<u64>, outcome: AgreementOutcome) {
        if let Some((own, running)) = &self.lock().running
            && incarnation == Some(*own)
        {
            running.tell(Input::Agreement(outcome));
        }
    }

    fn metrics(&self) -> Option<CoordinatorMetrics> {
        Some(self.coordinated.metrics(self.lock().running.is_some()))
    }
}

/// Takes the messages of the type's control path.
struct ControlReceiver {
    host: Arc<Host>,
    joiner: Mutex<Joiner>,
}

impl ControlReceiver {
    fn new(host: Arc<Host>) -> Self {
        Self { host, joiner: Mutex::default() }
    }

    /// The message that a frame is or completes, and its length in bytes.
    fn read(&self, frame: &Inbound) -> Result<Option<(Control, usize)>, ReadError> {
        let horizon = crate::driver::node::services::horizon();
        if frame.manifest != PART_MANIFEST {
            let read = wire::decode(&frame.manifest, frame.payload.clone(), horizon)?;
            return Ok(Some((read, frame.payload.len())));
        }
        let whole = {
            let mut joiner = self.joiner.lock().unwrap_or_else(PoisonError::into_inner);
            let members = self.host.lock().members.clone();
            // Keep parts of the sender: a node that joined a moment ago may send before this node knows it.
            joiner.retain(|node| *node == frame.from || members.contains(node));
            joiner.take(&frame.from, frame.payload.clone())?
        };
        let Some((manifest, bytes)) = whole else { return Ok(None) };
        let length = bytes.len();
        Ok(Some((wire::decode(manifest, bytes, horizon)?, length)))
    }
}

impl Receiver for ControlReceiver {
    fn receive(&self, frame: Inbound) {
        let host = &self.host;
        let node = frame.from.clone();
        let is_taken = match self.read(&frame) {
            Ok(None) => true,
            Ok(Some((Control::ToCoordinator(message), bytes))) => host.offer(node, message, bytes),
            Ok(Some((Control::FromCoordinator(message), bytes))) => host.send_to_region(node, message, bytes),
            Ok(Some((Control::Peer(message), bytes))) => {
                let region = host.lock().region(None);
                let input = crate::machine::region::Input::FromPeer { node, message };
                region.is_none_or(|region| region.offer_peer_input(input, bytes))
            }
            Ok(Some((Control::Inspection(message), _))) => {
                let (region, is_member) = {
                    let now = host.lock();
                    (now.region(None), now.members.contains(&node))
                };
                if let Some(region) = region.filter(|_| is_member) {
                    inspect::on_message(&region, node, message);
                }
                true
            }
            Err(error) => {
                tracing::warn!(entity_type = %host.name, %error, "control message could not be read");
                return host.remoting.refuse(&frame, error.reason());
            }
        };
        if !is_taken {
            host.remoting.refuse(&frame, DeadLetterReason::QueueFull);
        }
    }
}
