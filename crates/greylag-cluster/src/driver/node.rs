//! The task that owns the machines of a node.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use greylag_core::{CodecId, DeadLetterReason, Room, UniqueAddress};
use greylag_transport::{Destination, Envelope, QuarantineReason, Recipient, Remoting};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::clock::Clock;
use super::dial::dial;
use super::events::EventHub;
use super::inbound::{InboxHandle, Listener, MembershipReceiver, SingletonReceiver, UNREADABLE};
use super::lease::Leases;
use super::lease_in_use::{LeaseEvent, LeaseInUse};
use super::pulse::{Pulse, PulseSender};
use super::rates::DeadLetterRates;
use super::shutdown::CoordinatedShutdown;
use super::singleton::{Slot, StartSingleton, Stop, lease_input};
use super::tasks::ShutdownTasks;
use super::{DriverInput, INBOX_BYTES};
use crate::core::{ClusterCore, Command, Effect, Input, LogLevel, Standing};
use crate::error::JoinError;
use crate::event::{ClusterEvent, diff};
use crate::health::Health;
use crate::message::Message;
use crate::settings::{ClusterSettings, Downing, SbrSettings, Strategy};
use crate::shutdown::ShutdownReason;
use crate::singleton::SingletonMessage;
use crate::singleton::manager::{ManagerEffect, ManagerInput, SingletonManager};
use crate::view::MembershipView;
use crate::wire;

const CLUSTER: &str = "control/cluster";
const HEARTBEAT: &str = Recipient::HEARTBEAT;
const BULK: &str = "bulk/cluster";
const SINGLETON_PREFIX: &str = "control/singleton/";

/// Limit of a state in a control frame, with room for the envelope around it; bigger states take the bulk recipient.
/// Source: cluster T5.
const CONTROL_LIMIT: usize = 60 * 1024;

/// A change of the view, and its events.
#[derive(Default)]
struct PendingPublications {
    view: Option<Arc<MembershipView>>,
    events: Vec<ClusterEvent>,
}

/// Owns the machines, and carries out their effects.
pub(crate) struct Node {
    core: ClusterCore,
    settings: ClusterSettings,
    remoting: Arc<dyn Remoting>,
    inbox: mpsc::Sender<DriverInput>,
    /// The room in the inbox for messages of peers.
    room: Room,
    hub: Arc<EventHub>,
    tasks: Arc<ShutdownTasks>,
    terminated: watch::Sender<Option<ShutdownReason>>,
    /// The runtime of user code.
    user: Handle,
    singletons: BTreeMap<Arc<str>, Slot>,
    /// Singletons that never run here.
    elsewhere: Vec<Arc<str>>,
    joining: Vec<oneshot::Sender<Result<(), JoinError>>>,
    /// Singletons that still keep the node from exiting, and the reply that waits for them.
    exiting: Option<(Vec<Arc<str>>, oneshot::Sender<()>)>,
    resolver_lease: Option<LeaseInUse>,
    view: Arc<MembershipView>,
    /// Changes that are still to be published, in one piece.
    pending: PendingPublications,
    /// Instances of singletons that run here.
    instances: usize,
    shutting_down: bool,
    /// Why the membership has ended, if it has: this node joins no cluster any more.
    ended: Option<ShutdownReason>,
    /// A machine panicked; no machine gets inputs any more.
    failed: bool,
    rates: DeadLetterRates,
    pulse: PulseSender,
}

impl Node {
    #[expect(clippy::too_many_arguments, reason = "what a node is made of")]
    pub(crate) fn new(
        core: ClusterCore,
        settings: ClusterSettings,
        remoting: Arc<dyn Remoting>,
        inbox: mpsc::Sender<DriverInput>,
        hub: Arc<EventHub>,
        tasks: Arc<ShutdownTasks>,
        terminated: watch::Sender<Option<ShutdownReason>>,
        user: Handle,
    ) -> Self {
        let view = core.view().clone();
        let pulse = PulseSender::new(settings.clock.clone(), settings.failure_detector.tick_counts_for());
        let singletons = BTreeMap::new();
        let mut node = Self {
            core,
            settings,
            remoting,
            inbox,
            room: Room::new(usize::MAX, INBOX_BYTES),
            hub,
            tasks,
            terminated,
            user,
            singletons,
            elsewhere: Vec::new(),
            joining: Vec::new(),
            exiting: None,
            resolver_lease: None,
            view,
            pending: PendingPublications::default(),
            instances: 0,
            shutting_down: false,
            ended: None,
            failed: false,
            rates: DeadLetterRates::default(),
            pulse,
        };
        node.register();
        if let Downing::SplitBrainResolver(SbrSettings { strategy: Strategy::LeaseMajority { .. }, .. }) =
            &node.settings.downing
        {
            // Make the lease now, and not in the middle of the partition that it is for.
            node.resolver_lease();
        }
        node
    }

    /// The standing at the tick, for tasks that run user code.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.subscribe()
    }

    fn register(&self) {
        self.remoting.set_members(&mut std::iter::empty());
        for path in [CLUSTER, HEARTBEAT, BULK] {
            // Open to non-members: joining, probing and answering heartbeats involve them. The machine judges each
            // message by its sender (cluster T17, F1).
            self.remoting.open_to_strangers(path, true);
            // Declare chatter: every message there is repeated by its protocol (cluster T41).
            self.remoting.declare_chatter(path);
            let receiver = MembershipReceiver { inbox_handle: self.inbox_handle(), clock: self.settings.clock.clone() };
            self.remoting.register(path, Arc::new(receiver));
        }
        // No warning for these losses: managers begin and end one by one, and repeat a question that was not answered.
        self.remoting.declare_repeated(SINGLETON_PREFIX, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
        self.remoting.listen(None, Arc::new(Listener::new(self.inbox.clone(), self.user.clone())));
    }

    /// Runs until every phase of a shutdown has run.
    pub(crate) async fn run(mut self, mut receiver: mpsc::Receiver<DriverInput>) {
        let mut effects = Vec::new();
        let clock = self.settings.clock.clone();
        loop {
            let input = tokio::select! {
                () = sleep_until(&clock, self.next_deadline()) => None,
                input = receiver.recv() => match input {
                    None | Some(DriverInput::Close(_)) => return self.close(input),
                    // Drop the share when the message is taken out: its room is free for the next.
                    Some(DriverInput::Received(input, _share)) => Some(*input),
                    Some(input) => Some(input),
                },
            };
            let now = clock.now();
            let is_time = self.rates.sample(now, || self.remoting.dead_letter_totals()) && !self.failed;
            let step = AssertUnwindSafe(|| {
                if is_time {
                    // Tell the machine the wall clock anew: it may be set after the start, and dates the tombstones
                    // (cluster M20).
                    self.core.handle(now, Input::WallClock(wall_clock()), &mut effects);
                }
                match input {
                    None => self.on_tick(now, &mut effects),
                    Some(input) => self.on_input(now, input, &mut effects),
                }
                self.execute(now, &mut effects);
            });
            if std::panic::catch_unwind(step).is_err() {
                effects.clear();
                self.on_core_failed(now);
            }
        }
    }

    /// Handles the panic of a machine, whose state is worthless from then on: this node stops everything that it hosts
    /// and ends; the others notice as with any death. Source: cluster §7.
    fn on_core_failed(&mut self, now: Instant) {
        tracing::error!(node = %self.remoting.self_address(), "a machine of the cluster failed; this node ends");
        self.failed = true;
        self.pulse.publish(now, Standing::Ended);
        let PendingPublications { view, events } = std::mem::take(&mut self.pending);
        self.hub.publish(view, &events);
        let empty = Arc::new(MembershipView::empty(self.remoting.self_address().clone()));
        let removals = diff(&self.view, &empty);
        self.view = empty.clone();
        self.hub.publish(None, &[ClusterEvent::ClusterShuttingDown]);
        self.hub.publish(Some(empty), &removals);
        let stop = AssertUnwindSafe(|| self.tell_managers(now, &ManagerInput::SelfDowned));
        if std::panic::catch_unwind(stop).is_err() {
            // The manager panicked too: tell its instance to stop all the same.
            self.singletons.values().for_each(|slot| slot.stop_instance(Stop::AtOnce));
        }
        self.begin_shutdown(ShutdownReason::CoreFailed, false);
    }

    fn close(self, input: Option<DriverInput>) {
        for path in [CLUSTER, HEARTBEAT, BULK] {
            self.remoting.unregister(path);
        }
        for name in self.singletons.keys().chain(&self.elsewhere) {
            self.remoting.unregister(&format!("{SINGLETON_PREFIX}{name}"));
        }
        let reason = match input {
            Some(DriverInput::Close(reason)) => reason,
            _ => ShutdownReason::Stopped,
        };
        if self.instances > 0 || self.tasks.anything_runs() {
            tracing::warn!(
                node = %self.remoting.self_address(),
                "singletons or shutdown tasks still run; the port stays bound until the process ends"
            );
            self.remoting.keep_port();
        }
        self.terminated.send_replace(Some(reason));
        self.hub.close();
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.failed {
            return None;
        }
        let singletons = self.singletons.values().filter_map(|slot| slot.manager.next_deadline());
        self.core.next_deadline().into_iter().chain(singletons).min()
    }

    fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.core.handle(now, Input::Tick, effects);
        self.tell_managers(now, &ManagerInput::Tick);
    }

    fn on_input(&mut self, now: Instant, input: DriverInput, effects: &mut Vec<Effect>) {
        match input {
            // Drop inputs that need the machine, and with them their replies, so that callers learn of the failure at
            // once.
            DriverInput::Join { .. } | DriverInput::Health(_) | DriverInput::Command(_) | DriverInput::Core(_)
                if self.failed => {}
            DriverInput::Health(reply) => {
                let dead_letters = self.rates.of_last_minute(self.remoting.dead_letter_totals());
                let _caller_has_gone = reply.send(Health {
                    dead_letters,
                    certificate_days_left: self.remoting.certificate_days_left(),
                    ..self.core.health(now)
                });
            }
            DriverInput::Join { seeds, reply } => {
                if let Some(reason) = self.ended {
                    let _caller_has_gone = reply.send(Err(JoinError::ShuttingDown(reason)));
                    return;
                }
                self.joining.push(reply);
                self.core.handle(now, Input::Command(Command::JoinSeeds(seeds)), effects);
            }
            DriverInput::Command(command) => self.core.handle(now, Input::Command(command), effects),
            DriverInput::Core(input) => self.core.handle(now, input, effects),
            DriverInput::Shutdown(reason) => self.begin_shutdown(reason, true),
            DriverInput::Singleton(start) => self.add_singleton(now, start),
            DriverInput::SingletonElsewhere(name) => {
                self.receive_for_singleton(&name);
                self.elsewhere.push(name);
            }
            DriverInput::SingletonMessage { name, message } => {
                if self.singletons.contains_key(&name) {
                    self.tell_manager(now, &name, ManagerInput::Message(message));
                } else if let Some(answer) =
                    SingletonManager::answer_for_predecessor(self.settings.proof_of_death, &self.view, &message)
                {
                    self.send_singleton(&name, &answer);
                }
            }
            DriverInput::Manager { name, input } => self.tell_manager(now, &name, input),
            DriverInput::InstanceEnded { name, instance_id } => {
                if self.singletons.get_mut(&name).is_some_and(|slot| slot.instance_ended(instance_id)) {
                    self.instances = self.instances.saturating_sub(1);
                    self.tell_manager(now, &name, ManagerInput::InstanceEnded);
                }
            }
            DriverInput::ExitingPhase(reply) => {
                self.exiting = Some((self.singletons.keys().cloned().collect(), reply));
                self.tell_managers(now, &ManagerInput::ExitingPhase);
                self.finish_exiting_phase();
            }
            DriverInput::HandlesGone => self.on_handles_gone(),
            DriverInput::Received(input, _share) => self.on_input(now, *input, effects),
            DriverInput::Close(_) => {}
        }
    }

    fn execute(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            if !matches!(effect, Effect::Publish(_) | Effect::Log(..)) {
                self.publish_pending(now);
            }
            match effect {
                Effect::Ticked { at, standing } => self.on_ticked(at, standing),
                Effect::Send { to, message } => self.send(&to, &message),
                Effect::View(view) => self.on_view(view),
                Effect::Publish(event) => self.pending.events.push(event),
                Effect::ClusterId(id) => self.remoting.set_cluster_id(id),
                Effect::Quarantine { peer, harmless } => {
                    self.remoting.quarantine(&peer, QuarantineReason::RemovedFromMembership, harmless);
                }
                Effect::AcquireLease => self.resolver_lease().acquire(),
                Effect::ReleaseLease => self.resolver_lease().release(),
                Effect::Dial(peer) => self.dial(peer),
                Effect::AskWho(address) => self.remoting.ask_who(&address),
                Effect::Holders(members) => self.remoting.set_holders(self.settings.holders(&members)),
                Effect::Joined => {
                    // Close the bulk recipient: from now on only members send large states; the Welcome of a stranger
                    // came before.
                    self.remoting.open_to_strangers(BULK, false);
                    self.answer_joining(&Ok(()));
                }
                Effect::JoinFailed(error) => self.answer_joining(&Err(error)),
                Effect::StartExitingTasks => self.begin_shutdown(ShutdownReason::Left, true),
                Effect::Shutdown(reason) => self.on_membership_ended(reason),
                Effect::Dropped { from, reason } => self.count_dropped(&from, reason),
                Effect::Log(LogLevel::Info, text) => tracing::info!(node = %self.core.node(), "{text}"),
                Effect::Log(LogLevel::Warn, text) => tracing::warn!(node = %self.core.node(), "{text}"),
                Effect::Log(LogLevel::Error, text) => tracing::error!(node = %self.core.node(), "{text}"),
            }
        }
        self.publish_pending(now);
    }

    /// Tells an instance, or its machine, whose lease ran out while this process slept to end before any task that
    /// slept with it may go on: the lease's own timer may be late, the tick is not.
    fn on_ticked(&mut self, at: Instant, standing: Standing) {
        let lost: Vec<Arc<str>> = self
            .singletons
            .iter()
            .filter(|(_, slot)| slot.has_lost_its_lease())
            .map(|(name, _)| name.clone())
            .collect();
        for name in lost {
            tracing::warn!(node = %self.core.node(), singleton = %name, "the lease of the singleton has expired");
            self.tell_manager(at, &name, ManagerInput::LeaseLost);
        }
        self.pulse.publish(at, standing);
    }

    /// Publishes the view and its events together, because a subscriber that comes in between would get them twice. An
    /// instance that the managers then start finds the view that caused its start. Source: cluster M32.
    fn publish_pending(&mut self, now: Instant) {
        let PendingPublications { view, events } = std::mem::take(&mut self.pending);
        if view.is_none() && events.is_empty() {
            return;
        }
        self.hub.publish(view.clone(), &events);
        if let Some(view) = view {
            self.tell_managers(now, &ManagerInput::View(view));
        }
        for event in events {
            match event {
                ClusterEvent::SelfDowned | ClusterEvent::ClusterShuttingDown => {
                    self.tell_managers(now, &ManagerInput::SelfDowned);
                }
                ClusterEvent::LocalPause(_) => self.tell_managers(now, &ManagerInput::LocalPause),
                _ => {}
            }
        }
    }

    fn on_view(&mut self, view: Arc<MembershipView>) {
        self.view = view.clone();
        // Keep the last members when the membership has ended: then this node believes them and no other process.
        if !view.members.is_empty() {
            self.remoting.set_members(&mut view.members.iter().map(|member| &member.address));
        }
        self.pending.view = Some(view);
    }

    fn count_dropped(&self, from: &UniqueAddress, reason: DeadLetterReason) {
        tracing::debug!(%from, %reason, "a membership message was dropped");
        // Not a fault: a member that joined a moment ago gossips before all others know it. Other reasons are faults.
        let recipient = if reason == DeadLetterReason::NotAMember { CLUSTER } else { UNREADABLE };
        self.remoting.dead_letter(reason, recipient, "cluster");
    }

    fn answer_joining(&mut self, result: &Result<(), JoinError>) {
        for reply in self.joining.drain(..) {
            let _caller_has_gone = reply.send(result.clone());
        }
    }

    fn on_membership_ended(&mut self, reason: ShutdownReason) {
        self.ended.get_or_insert(reason);
        if reason == ShutdownReason::Downed && !self.settings.shutdown_when_down {
            self.answer_joining(&Err(JoinError::ShuttingDown(reason)));
            return tracing::error!(
                node = %self.core.node(),
                %reason,
                "membership ended (shutdown_when_down = false); the program must end the node"
            );
        }
        self.begin_shutdown(reason, false);
    }

    fn on_handles_gone(&mut self) {
        if !self.shutting_down {
            tracing::warn!(
                node = %self.core.node(),
                "the last handle of this node was dropped without a shutdown; it leaves in order now"
            );
            self.begin_shutdown(ShutdownReason::Stopped, true);
        }
    }

    fn begin_shutdown(&mut self, reason: ShutdownReason, graceful: bool) {
        if self.shutting_down {
            return;
        }
        self.shutting_down = true;
        self.tasks.begin();
        self.ended.get_or_insert(reason);
        self.answer_joining(&Err(JoinError::ShuttingDown(reason)));
        tracing::info!(node = %self.core.node(), %reason, "this node shuts down");
        let shutdown = CoordinatedShutdown {
            node: self.core.node().clone(),
            reason,
            graceful,
            leave_timeout: self.settings.stable_after() + Duration::from_secs(15),
            tasks: self.tasks.clone(),
            hub: self.hub.clone(),
            inbox: self.inbox.clone(),
        };
        let phases = self.user.spawn(shutdown.run());
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            if phases.await.is_err() {
                tracing::warn!(
                    "the program's runtime has ended before its node; what was left of the shutdown does not run"
                );
                let _node_has_ended = inbox.send(DriverInput::Close(reason)).await;
            }
        });
    }

    /// The lease of lease_majority, made on first use. Source: cluster S10.
    fn resolver_lease(&mut self) -> LeaseInUse {
        let (settings, node, inbox) = (&self.settings, self.core.node(), &self.inbox);
        let make = || {
            let named = match &settings.downing {
                Downing::SplitBrainResolver(SbrSettings {
                    strategy: Strategy::LeaseMajority { lease_name: Some(name), .. },
                    ..
                }) => Some(name.clone()),
                _ => settings.leases.as_ref().map(Leases::resolver_name),
            };
            let name = named.unwrap_or_else(|| "greylag-sbr".to_owned());
            LeaseInUse::new(name, settings, node, &self.user, inbox, |event| match event {
                LeaseEvent::Result(outcome) => Some(DriverInput::Core(Input::LeaseResult(outcome))),
                LeaseEvent::Lost => Some(DriverInput::Core(Input::LeaseLost)),
                LeaseEvent::Released => None,
            })
        };
        self.resolver_lease.get_or_insert_with(make).clone()
    }

    // --- the network ----------------------------------------------------------------------------

    fn send(&self, to: &Destination, message: &Message) {
        let bytes = wire::encode(message);
        let path = match message {
            Message::Heartbeat { .. } | Message::HeartbeatRsp { .. } => HEARTBEAT,
            _ if bytes.len() > CONTROL_LIMIT => BULK,
            _ => CLUSTER,
        };
        self.send_bytes(to, path.into(), message.manifest(), bytes);
    }

    fn send_bytes(&self, to: &Destination, path: Arc<str>, manifest: &'static str, bytes: Bytes) {
        let mut envelope = Envelope::new(Recipient::new(path), CodecId::INTERNAL, manifest, bytes);
        if let Destination::Incarnation(address) = to {
            envelope = envelope.to_uid(address.uid());
        }
        if let Err(rejected) = self.remoting.send(to, envelope) {
            // Do not retry: every protocol here repeats itself, and the transport has counted the loss.
            tracing::debug!(to = ?to, manifest, error = %rejected.error, "not sent");
        }
    }

    fn dial(&self, peer: UniqueAddress) {
        let remoting = self.remoting.clone();
        let inbox = self.inbox.clone();
        let policy = self.settings.proof_of_death;
        tokio::spawn(async move {
            let outcome = dial(policy, &*remoting, peer).await;
            let _node_has_ended = inbox.send(DriverInput::Core(outcome)).await;
        });
    }

    // --- singletons -----------------------------------------------------------------------------

    fn add_singleton(&mut self, now: Instant, start: Box<StartSingleton>) {
        let name = start.name.clone();
        self.receive_for_singleton(&name);
        let manager = SingletonManager::new(self.core.node().clone(), &start.settings, &self.settings);
        let lease = start.settings.use_lease.then(|| {
            let lease_name = self.settings.leases.as_ref().map(|leases| leases.singleton_name(&name));
            let lease_name = lease_name.unwrap_or_else(|| name.to_string());
            let to_input = lease_input(name.clone());
            LeaseInUse::new(lease_name, &self.settings, self.core.node(), &self.user, &self.inbox, to_input)
        });
        self.singletons.insert(name.clone(), Slot::new(start, manager, lease));
        self.tell_manager(now, &name, ManagerInput::View(self.view.clone()));
    }

    /// Access to this node's inbox; all messages of peers share one room in it.
    fn inbox_handle(&self) -> InboxHandle {
        let (inbox, room) = (self.inbox.clone(), self.room.clone());
        InboxHandle { inbox, room, remoting: Arc::downgrade(&self.remoting) }
    }

    fn receive_for_singleton(&self, name: &Arc<str>) {
        let path = format!("{SINGLETON_PREFIX}{name}");
        let receiver = SingletonReceiver { name: name.clone(), inbox_handle: self.inbox_handle() };
        self.remoting.register(&path, Arc::new(receiver));
    }

    fn tell_managers(&mut self, now: Instant, input: &ManagerInput) {
        let names: Vec<Arc<str>> = self.singletons.keys().cloned().collect();
        for name in names {
            self.tell_manager(now, &name, input.clone());
        }
    }

    fn tell_manager(&mut self, now: Instant, name: &Arc<str>, input: ManagerInput) {
        let Some(slot) = self.singletons.get_mut(name) else { return };
        let mut effects = Vec::new();
        slot.manager.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                ManagerEffect::Send(message) => self.send_singleton(name, &message),
                ManagerEffect::StartInstance { up_number } => {
                    tracing::info!(node = %self.core.node(), singleton = %name, "starts here");
                    if let Some(slot) = self.singletons.get_mut(name) {
                        self.instances += 1;
                        slot.start_instance(up_number, &self.user, &self.inbox);
                    }
                }
                ManagerEffect::StopInstance => {
                    if let Some(slot) = self.singletons.get(name) {
                        slot.stop_instance(Stop::InOrder);
                    }
                }
                ManagerEffect::CloseMailbox => {
                    if let Some(slot) = self.singletons.get(name) {
                        slot.stop_instance(Stop::AtOnce);
                    }
                }
                ManagerEffect::AcquireLease => {
                    if let Some(lease) = self.singletons.get(name).and_then(|slot| slot.lease.as_ref()) {
                        lease.acquire();
                    }
                }
                ManagerEffect::ReleaseLease => {
                    if let Some(lease) = self.singletons.get(name).and_then(|slot| slot.lease.as_ref()) {
                        lease.release();
                    }
                }
                ManagerEffect::ExitingDone => {
                    if let Some((waiting, _)) = &mut self.exiting {
                        waiting.retain(|other| other != name);
                    }
                    self.finish_exiting_phase();
                }
                ManagerEffect::Stuck => {
                    tracing::warn!(node = %self.core.node(), singleton = %name, "the hand-over makes no progress");
                    self.hub.publish(None, &[ClusterEvent::SingletonStuck { name: name.to_string() }]);
                }
            }
        }
    }

    fn send_singleton(&self, name: &str, message: &SingletonMessage) {
        let to = Destination::Address(message.to.address().clone());
        let path = format!("{SINGLETON_PREFIX}{name}");
        self.send_bytes(&to, path.into(), wire::SINGLETON, wire::encode_singleton(message));
    }

    fn finish_exiting_phase(&mut self) {
        if let Some((_, reply)) = self.exiting.take_if(|(waiting, _)| waiting.is_empty()) {
            let _shutdown_went_on = reply.send(());
        }
    }
}

/// Milliseconds since 1970, by the clock of this host.
pub(super) fn wall_clock() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

pub(super) async fn sleep_until(clock: &Clock, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
