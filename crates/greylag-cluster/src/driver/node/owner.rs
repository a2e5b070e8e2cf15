//! The task that owns the machines of a node.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_transport::{QuarantineReason, Remoting};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::exit::Exit;
use super::hosted::Hosted;
use super::network::Network;
use super::publisher::{Publication, Publisher};
use super::rates::DeadLetterRates;
use crate::core::{ClusterCore, Command, Effect, Input, LogLevel, Standing};
use crate::driver::clock::{sleep_until, wall_clock};
use crate::driver::ending::tasks::ShutdownTasks;
use crate::driver::events::EventHub;
use crate::driver::input::DriverInput;
use crate::driver::lease::Leases;
use crate::driver::lease::in_use::{LeaseEvent, LeaseInUse};
use crate::driver::pulse::{Pulse, PulseSender};
use crate::driver::singleton::instance::Stop;
use crate::driver::singleton::order::StartSingleton;
use crate::driver::singleton::slot::{Slot, lease_input};
use crate::error::JoinError;
use crate::membership::event::ClusterEvent;
use crate::membership::health::Health;
use crate::membership::shutdown::ShutdownReason;
use crate::membership::view::MembershipView;
use crate::settings::{ClusterSettings, Downing, SbrSettings, Strategy};
use crate::singleton::manager::SingletonManager;
use crate::singleton::manager::signals::{ManagerEffect, ManagerInput};

/// Owns the machines, and carries out their effects.
pub(crate) struct Node {
    core: ClusterCore,
    settings: ClusterSettings,
    network: Network,
    publisher: Publisher,
    hosted: Hosted,
    exit: Exit,
    /// The runtime of user code.
    user: Handle,
    resolver_lease: Option<LeaseInUse>,
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
        let mut node = Self {
            core,
            settings,
            network: Network::new(remoting, inbox),
            publisher: Publisher::new(hub, view),
            hosted: Hosted::default(),
            exit: Exit::new(tasks, terminated),
            user,
            resolver_lease: None,
            failed: false,
            rates: DeadLetterRates::default(),
            pulse,
        };
        node.network.register(&node.settings.clock, &node.user);
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
            let is_time = self.rates.sample(now, || self.network.remoting().dead_letter_totals()) && !self.failed;
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
        let node = self.network.remoting().self_address();
        tracing::error!(%node, "a machine of the cluster failed; this node ends");
        self.failed = true;
        self.pulse.publish(now, Standing::Ended);
        self.publisher.fail();
        let stop = AssertUnwindSafe(|| self.tell_managers(now, &ManagerInput::SelfDowned));
        if std::panic::catch_unwind(stop).is_err() {
            // The manager panicked too: tell its instance to stop all the same.
            self.hosted.stop_all();
        }
        self.begin_shutdown(ShutdownReason::CoreFailed, false);
    }

    fn close(self, input: Option<DriverInput>) {
        self.network.unregister(self.hosted.all_names());
        let reason = match input {
            Some(DriverInput::Close(reason)) => reason,
            _ => ShutdownReason::Stopped,
        };
        if self.hosted.anything_runs() || self.exit.anything_runs() {
            tracing::warn!(
                node = %self.network.remoting().self_address(),
                "singletons or shutdown tasks still run; the port stays bound until the process ends"
            );
            self.network.remoting().keep_port();
        }
        self.exit.finish(reason);
        self.publisher.hub().close();
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.failed {
            return None;
        }
        self.core.next_deadline().into_iter().chain(self.hosted.next_deadline()).min()
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
                let remoting = self.network.remoting();
                let dead_letters = self.rates.of_last_minute(remoting.dead_letter_totals());
                let _caller_has_gone = reply.send(Health {
                    dead_letters,
                    certificate_days_left: remoting.certificate_days_left(),
                    ..self.core.health(now)
                });
            }
            DriverInput::Join { seeds, reply } => {
                if self.exit.on_join(reply) {
                    self.core.handle(now, Input::Command(Command::JoinSeeds(seeds)), effects);
                }
            }
            DriverInput::Command(command) => self.core.handle(now, Input::Command(command), effects),
            DriverInput::Core(input) => self.core.handle(now, input, effects),
            DriverInput::Shutdown(reason) => self.begin_shutdown(reason, true),
            DriverInput::Singleton(start) => self.add_singleton(now, start),
            DriverInput::SingletonElsewhere(name) => {
                self.network.register_singleton(&name);
                self.hosted.add_elsewhere(name);
            }
            DriverInput::SingletonMessage { name, message } => {
                if self.hosted.may_run(&name) {
                    self.tell_manager(now, &name, ManagerInput::Message(message));
                    return;
                }
                let (policy, view) = (self.settings.proof_of_death, self.publisher.view());
                if let Some(answer) = SingletonManager::answer_for_predecessor(policy, view, &message) {
                    self.network.send_singleton(&name, &answer);
                }
            }
            DriverInput::Manager { name, input } => self.tell_manager(now, &name, input),
            DriverInput::InstanceEnded { name, instance_id } => {
                if self.hosted.on_instance_ended(&name, instance_id) {
                    self.tell_manager(now, &name, ManagerInput::InstanceEnded);
                }
            }
            DriverInput::ExitingPhase(reply) => {
                self.hosted.begin_exiting_phase(reply);
                self.tell_managers(now, &ManagerInput::ExitingPhase);
                self.hosted.finish_exiting_phase();
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
                Effect::Send { to, message } => self.network.send(&to, &message),
                Effect::View(view) => self.on_view(view),
                Effect::Publish(event) => self.publisher.on_event(event),
                Effect::ClusterId(id) => self.network.remoting().set_cluster_id(id),
                Effect::Quarantine { peer, harmless } => {
                    let reason = QuarantineReason::RemovedFromMembership;
                    self.network.remoting().quarantine(&peer, reason, harmless);
                }
                Effect::AcquireLease => self.resolver_lease().acquire(),
                Effect::ReleaseLease => self.resolver_lease().release(),
                Effect::Dial(peer) => self.network.dial(self.settings.proof_of_death, peer),
                Effect::AskWho(address) => self.network.remoting().ask_who(&address),
                Effect::Holders(members) => self.network.remoting().set_holders(self.settings.holders(&members)),
                Effect::Joined => {
                    self.network.on_joined();
                    self.exit.answer_joining(&Ok(()));
                }
                Effect::JoinFailed(error) => self.exit.answer_joining(&Err(error)),
                Effect::StartExitingTasks => self.begin_shutdown(ShutdownReason::Left, true),
                Effect::Shutdown(reason) => self.on_membership_ended(reason),
                Effect::Dropped { from, reason } => self.network.count_dropped(&from, reason),
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
        for name in self.hosted.without_their_lease() {
            tracing::warn!(node = %self.core.node(), singleton = %name, "the lease of the singleton has expired");
            self.tell_manager(at, &name, ManagerInput::LeaseLost);
        }
        self.pulse.publish(at, standing);
    }

    /// Publishes the view and its events, then tells the managers: an instance that they start finds the view that
    /// caused its start. Source: cluster M32.
    fn publish_pending(&mut self, now: Instant) {
        let Some(Publication { view, events }) = self.publisher.publish() else { return };
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
        // Keep the last members when the membership has ended: then this node believes them and no other process.
        if !view.members.is_empty() {
            self.network.remoting().set_members(&mut view.members.iter().map(|member| &member.address));
        }
        self.publisher.on_view(view);
    }

    fn on_membership_ended(&mut self, reason: ShutdownReason) {
        self.exit.on_membership_ended(reason);
        if reason == ShutdownReason::Downed && !self.settings.shutdown_when_down {
            self.exit.answer_joining(&Err(JoinError::ShuttingDown(reason)));
            return tracing::error!(
                node = %self.core.node(),
                %reason,
                "membership ended (shutdown_when_down = false); the program must end the node"
            );
        }
        self.begin_shutdown(reason, false);
    }

    fn on_handles_gone(&mut self) {
        if !self.exit.is_shutting_down() {
            tracing::warn!(
                node = %self.core.node(),
                "the last handle of this node was dropped without a shutdown; it leaves in order now"
            );
            self.begin_shutdown(ShutdownReason::Stopped, true);
        }
    }

    fn begin_shutdown(&mut self, reason: ShutdownReason, graceful: bool) {
        let leave_timeout = self.settings.stable_after() + Duration::from_secs(15);
        let (hub, inbox) = (self.publisher.hub(), self.network.inbox());
        self.exit.begin(self.core.node(), (reason, graceful), leave_timeout, hub, inbox, &self.user);
    }

    /// The lease of lease_majority, made on first use. Source: cluster S10.
    fn resolver_lease(&mut self) -> LeaseInUse {
        let (settings, node, inbox) = (&self.settings, self.core.node(), self.network.inbox());
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

    // --- singletons -----------------------------------------------------------------------------

    fn add_singleton(&mut self, now: Instant, start: Box<StartSingleton>) {
        let name = start.name.clone();
        self.network.register_singleton(&name);
        let manager = SingletonManager::new(self.core.node().clone(), &start.settings, &self.settings);
        let lease = start.settings.use_lease.then(|| {
            let lease_name = self.settings.leases.as_ref().map(|leases| leases.singleton_name(&name));
            let lease_name = lease_name.unwrap_or_else(|| name.to_string());
            let to_input = lease_input(name.clone());
            LeaseInUse::new(lease_name, &self.settings, self.core.node(), &self.user, self.network.inbox(), to_input)
        });
        self.hosted.add(name.clone(), Slot::new(start, manager, lease));
        self.tell_manager(now, &name, ManagerInput::View(self.publisher.view().clone()));
    }

    fn tell_managers(&mut self, now: Instant, input: &ManagerInput) {
        for name in self.hosted.names() {
            self.tell_manager(now, &name, input.clone());
        }
    }

    fn tell_manager(&mut self, now: Instant, name: &Arc<str>, input: ManagerInput) {
        for effect in self.hosted.handle(now, name, input) {
            match effect {
                ManagerEffect::Send(message) => self.network.send_singleton(name, &message),
                ManagerEffect::StartInstance { up_number } => {
                    tracing::info!(node = %self.core.node(), singleton = %name, "starts here");
                    self.hosted.start_instance(name, up_number, &self.user, self.network.inbox());
                }
                ManagerEffect::StopInstance => self.hosted.stop_instance(name, Stop::InOrder),
                ManagerEffect::CloseMailbox => self.hosted.stop_instance(name, Stop::AtOnce),
                ManagerEffect::AcquireLease => self.hosted.acquire_lease(name),
                ManagerEffect::ReleaseLease => self.hosted.release_lease(name),
                ManagerEffect::ExitingDone => self.hosted.on_exiting_done(name),
                ManagerEffect::Stuck => {
                    tracing::warn!(node = %self.core.node(), singleton = %name, "the hand-over makes no progress");
                    let stuck = ClusterEvent::SingletonStuck { name: name.to_string() };
                    self.publisher.hub().publish(None, &[stuck]);
                }
            }
        }
    }
}
