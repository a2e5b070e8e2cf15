//! Shards under the regions: the real shard machine, and a model of the task around it.
//!
//! Handlers run at random moments; a customer's call to the journal is performed later, whether the customer still
//! lives or not, and the answer comes later still, or never.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use greylag_core::Generation;
use greylag_persistence::{EntityInit, EventSourcedSettings, Incarnation, StoreCall};
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::machine::region::{self, Provenance};
use greylag_sharding::machine::shard::{Effect, Input, Shard, SlotId, Weigh};
use greylag_sharding::{FailureCause, Passivation, Supervision};
use greylag_testkit::deadlines::assert_moved;

use super::customer::{Customer, HandlerRequests, MailboxMessage, Msg, Wakeup};
use super::{DirectMessage, Market, Purchases, Timer};
use crate::sharding::world::{MS, Wire};

impl Weigh for MailboxMessage {
    /// All letters have the same weight.
    fn weight(&self) -> usize {
        1
    }
}

type Machine = Shard<Customer, MailboxMessage>;
type Asked = Effect<Customer, MailboxMessage>;

/// A shard as the task around it sees it.
pub(crate) struct Hosted {
    pub(super) generation: Generation,
    pub(super) phase: ShardPhase,
    machine: Machine,
    pub(super) inbox: VecDeque<(Msg, Provenance)>,
    /// Controls that arrived while no handler may run.
    postponed: Vec<Control>,
    scheduled: bool,
    tick_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardPhase {
    Starting,
    Serving,
    Stopping,
}

/// A control of a shard, besides messages.
#[derive(Debug)]
pub(crate) enum Control {
    Resumed { slot: SlotId, incarnation: u64, woken: Wakeup },
    Direct { instance: u64, message: MailboxMessage },
    Stop,
    Kill,
    Tick,
}

impl Market {
    pub(super) fn open_shard(&mut self, node: usize, shard: ShardId, generation: Generation) {
        self.app.shard_serial += 1;
        let settings = Self::settings();
        let serial = self.app.shard_serial;
        // Every other shard has room for fewer customers than it gets, so that customers end and start all the time.
        let passivation = match serial % 2 {
            0 => Passivation::least_recently_used(1),
            _ => settings.passivation.chosen(),
        };
        let machine = Shard::new(settings, Supervision::default(), &passivation, u64::from(serial), serial, self.now());
        let hosted = Hosted {
            generation,
            phase: ShardPhase::Starting,
            machine,
            inbox: VecDeque::new(),
            postponed: Vec::new(),
            scheduled: false,
            tick_at: None,
        };
        let old = self.nodes[node].shards.insert(shard.clone(), hosted);
        assert!(old.is_none(), "one task per shard lives at a time");
        let delay = self.random(0, 80);
        self.later(delay, Timer::Ready { node, shard, generation });
    }

    pub(super) fn hosted(&mut self, node: usize, shard: &ShardId, generation: Generation) -> Option<&mut Hosted> {
        self.nodes[node].shards.get_mut(shard).filter(|hosted| hosted.generation == generation)
    }

    pub(super) fn schedule(&mut self, node: usize, shard: &ShardId) {
        let delay = self.random(0, 15);
        let Some(hosted) = self.nodes[node].shards.get_mut(shard).filter(|hosted| !hosted.scheduled) else { return };
        hosted.scheduled = true;
        let generation = hosted.generation;
        self.later(delay, Timer::Run { node, shard: shard.clone(), generation });
    }

    /// Runs the task once: handles some messages of the shard, then the turns of those that wait.
    pub(super) fn run_shard(&mut self, node: usize, shard: &ShardId, generation: Generation) {
        let (held, most) = (self.nodes[node].held, self.random(1, 5).as_millis());
        let Some(hosted) = self.hosted(node, shard, generation) else { return };
        hosted.scheduled = false;
        if held || hosted.phase == ShardPhase::Starting {
            return;
        }
        for control in std::mem::take(&mut hosted.postponed) {
            self.control(node, shard, generation, control);
        }
        for _ in 0..most {
            let Some(hosted) = self.hosted(node, shard, generation) else { return };
            match hosted.inbox.pop_front() {
                Some((msg, provenance)) => self.deliver(node, shard, msg, provenance),
                None if hosted.machine.has_work() => self.input(node, shard, Input::Turn),
                None => return,
            }
        }
        self.schedule(node, shard);
    }

    fn deliver(&mut self, node: usize, shard: &ShardId, msg: Msg, provenance: Provenance) {
        self.check_exclusive(node, shard);
        let id = EntityId::new(msg.customer().to_string()).expect("a number is an id");
        self.input(node, shard, Input::Deliver { id, payload: MailboxMessage::User(msg, provenance), activity: true });
    }

    pub(super) fn control(&mut self, node: usize, shard: &ShardId, generation: Generation, control: Control) {
        let held = self.nodes[node].held;
        let Some(hosted) = self.hosted(node, shard, generation) else { return };
        if held && !matches!(control, Control::Kill) {
            return hosted.postponed.push(control);
        }
        match control {
            Control::Resumed { slot, incarnation, woken } => {
                let payload = MailboxMessage::Wakeup(woken);
                self.input(node, shard, Input::Resumed { slot, incarnation, payload, suspension: true });
            }
            Control::Direct { instance, message } => {
                self.input(node, shard, Input::Direct { incarnation: instance, payload: message });
            }
            Control::Stop => {
                // The inbox now holds all messages from before the marker.
                while let Some((msg, provenance)) =
                    self.hosted(node, shard, generation).and_then(|hosted| hosted.inbox.pop_front())
                {
                    self.deliver(node, shard, msg, provenance);
                }
                self.input(node, shard, Input::Stop { deadline: Duration::from_secs(2) });
            }
            Control::Kill => self.input(node, shard, Input::Kill),
            Control::Tick => {
                hosted.tick_at = None;
                self.input(node, shard, Input::Tick);
            }
        }
        self.schedule(node, shard);
    }

    pub(super) fn control_later(&mut self, delay: Duration, node: usize, shard: &ShardId, control: Control) {
        let Some(hosted) = self.nodes[node].shards.get(shard) else { return };
        let generation = hosted.generation;
        self.later(delay, Timer::Control { node, shard: shard.clone(), generation, control });
    }

    // --- the machine ---

    fn input(&mut self, node: usize, shard: &ShardId, input: Input<MailboxMessage>) {
        let now = self.now();
        let Some(hosted) = self.nodes[node].shards.get_mut(shard) else { return };
        let mut effects = Vec::new();
        hosted.machine.observe(now);
        let ticks = matches!(input, Input::Tick);
        hosted.machine.handle(now, input, &mut effects);
        if ticks {
            assert_moved("shard", now, hosted.machine.next_deadline());
        }
        for effect in effects {
            self.execute(node, shard, effect);
        }
        self.arm_shard(node, shard);
    }

    fn arm_shard(&mut self, node: usize, shard: &ShardId) {
        let now = self.now();
        let Some(hosted) = self.nodes[node].shards.get_mut(shard) else { return };
        let due = hosted.machine.next_deadline().filter(|at| hosted.tick_at.is_none_or(|armed| *at < armed));
        if let Some(at) = due {
            hosted.tick_at = Some(at);
            self.control_later(at.saturating_duration_since(now), node, shard, Control::Tick);
        }
    }

    fn execute(&mut self, node: usize, shard: &ShardId, effect: Asked) {
        let now = self.now();
        match effect {
            Effect::Start { slot, payload } => self.start_customer(node, shard, slot, payload),
            Effect::Restart { slot } => {
                if let Some(requests) = self.with_customer(node, shard, slot, |customer| customer.end(now)) {
                    self.say_upstream(node, shard, slot, requests);
                }
                self.start_customer(node, shard, slot, None);
            }
            Effect::Run { slot, payload } => {
                self.app.runs += 1;
                self.note(|| format!("n{node}: {slot:?} takes {payload:?}"));
                let requests = self.with_customer(node, shard, slot, |customer| customer.receive(now, payload));
                self.grant(node, shard, slot, requests);
            }
            Effect::SendStop { slot } => {
                let requests = self.with_customer(node, shard, slot, |customer| customer.stop(now));
                self.grant(node, shard, slot, requests);
            }
            Effect::End { id, incarnation, entity, why, .. } => {
                let number: u32 = id.as_str().parse().expect("customers are numbered");
                self.app.live.remove(&(number, node, incarnation));
                self.note(|| format!("n{node}: customer {number} ends: {why:?}"));
                if let Some(mut customer) = entity
                    && why != greylag_sharding::machine::shard::Ended::Killed
                {
                    let requests = customer.end(now);
                    self.reply_upstream(node, shard, incarnation, requests);
                }
            }
            Effect::DeadLetter { id, reason, .. } => self.note(|| format!("n{node}: {id} misses a message: {reason}")),
            Effect::Late(_)
            | Effect::Overdue { .. }
            | Effect::StopOverdue { .. }
            | Effect::Failed { .. }
            | Effect::Notice(_) => {}
            Effect::NotifyReceiveTimeout { .. } => unreachable!("no customer asks to be told of a silence"),
            Effect::Load | Effect::Store { .. } | Effect::Initialized { .. } => {
                unreachable!("customers are not remembered")
            }
            Effect::DropDirect { payload, reason } => {
                self.note(|| format!("n{node}: {payload:?} is not taken: {reason}"));
            }
            Effect::Escalate => unreachable!("the default supervision escalates nothing"),
            Effect::Stopped(leftovers) => self.close_shard(node, shard, leftovers),
        }
    }

    fn close_shard(&mut self, node: usize, shard: &ShardId, leftovers: Vec<(EntityId, MailboxMessage)>) {
        let Some(hosted) = self.nodes[node].shards.remove(shard) else { return };
        let letters = leftovers.into_iter().filter_map(|(_, message)| match message {
            MailboxMessage::User(msg, provenance) => Some((msg, provenance)),
            _ => None,
        });
        let all: Vec<_> = letters.chain(hosted.inbox).collect();
        let leftovers = self.give_back(node, all);
        let generation = hosted.generation;
        self.tell(node, region::Input::ShardStopped { shard: shard.clone(), generation, leftovers });
    }

    fn with_customer(
        &mut self,
        node: usize,
        shard: &ShardId,
        slot: SlotId,
        run: impl FnOnce(&mut Customer) -> HandlerRequests,
    ) -> Option<HandlerRequests> {
        self.check_exclusive(node, shard);
        let hosted = self.nodes[node].shards.get_mut(shard)?;
        hosted.machine.entity(slot).map(|(customer, _, _)| run(customer))
    }

    fn start_customer(&mut self, node: usize, shard: &ShardId, slot: SlotId, payload: Option<MailboxMessage>) {
        let now = self.now();
        let Some(hosted) = self.nodes[node].shards.get(shard) else { return };
        let (id, incarnation) = hosted.machine.identity(slot).expect("a slot that starts has an id");
        let (number, generation): (u32, _) = (id.as_str().parse().expect("a number"), hosted.generation);
        self.check_alone(node, number);
        self.app.live.retain(|(other, at, _)| (*other, *at) != (number, node));
        self.app.live.insert((number, node, incarnation));
        self.app.starts += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.app.starts.to_le_bytes());
        let init = EntityInit {
            generation: (!self.app.unfenced).then_some(generation),
            start: self.app.starts,
            seed,
            caps: self.app.journal.caps(),
            snapshot_caps: self.app.journal.snapshot_caps(),
            settings: EventSourcedSettings::default(),
            host: None,
        };
        self.note(|| format!("n{node}: customer {number} starts at {generation}"));
        let (customer, requests) = Customer::start(now, number, self.app.consumer.clone(), init);
        let Some(hosted) = self.nodes[node].shards.get_mut(shard) else { return };
        hosted.machine.place(slot, customer);
        let outcome = self.fulfil(node, shard, slot, requests);
        self.input(node, shard, Input::Started { slot, outcome, payload });
    }

    /// Checks that no customer has two live incarnations among nodes that share a view.
    fn check_alone(&mut self, node: usize, number: u32) {
        let others: Vec<_> = self.app.live.iter().filter(|(other, at, _)| *other == number && *at != node).collect();
        let seen = others.into_iter().find(|(_, at, _)| self.shares_view(*at)).copied();
        if let Some((_, at, _)) = seen.filter(|_| self.shares_view(node)) {
            self.fail(format!("customer {number} starts on n{node} and still lives on n{at}"));
        }
    }

    // --- requests ---

    fn grant(&mut self, node: usize, shard: &ShardId, slot: SlotId, requests: Option<HandlerRequests>) {
        let Some(mut requests) = requests else { return };
        if let Some(reason) = requests.failed.take() {
            self.note(|| format!("n{node}: a customer failed: {reason}"));
            self.say_upstream(node, shard, slot, requests);
            return self.input(
                node,
                shard,
                Input::Failed { slot, cause: FailureCause::Handler(reason), payload: None },
            );
        }
        let outcome = self.fulfil(node, shard, slot, requests);
        self.input(node, shard, Input::Done { slot, outcome });
    }

    /// Carries out a handler's requests; returns the rest for the shard's machine.
    fn fulfil(
        &mut self,
        node: usize,
        shard: &ShardId,
        slot: SlotId,
        mut requests: HandlerRequests,
    ) -> greylag_sharding::machine::shard::Outcome<MailboxMessage> {
        let now = self.now();
        let left = std::mem::take(&mut requests.left);
        let Some(hosted) = self.nodes[node].shards.get(shard) else { return left };
        let (generation, incarnation) = (hosted.generation, hosted.machine.identity(slot).expect("it lives").1);
        for permit in std::mem::take(&mut requests.permits) {
            let delay = self.random(0, 5);
            self.control_later(
                delay,
                node,
                shard,
                Control::Resumed { slot, incarnation, woken: Wakeup::Permit(permit) },
            );
        }
        for (of, call) in std::mem::take(&mut requests.calls) {
            self.call_journal(node, shard, slot, incarnation, of, call);
        }
        if let Some(at) = requests.wake_at.take() {
            let delay = at.saturating_duration_since(now) + MS;
            self.control_later(delay, node, shard, Control::Resumed { slot, incarnation, woken: Wakeup::Deadline });
        }
        if let Some(stored) = requests.fenced.take() {
            self.note(|| format!("n{node}: a customer of {shard} is fenced by {stored:?}"));
            self.later(MS, Timer::Fenced { node, shard: shard.clone(), generation, stored });
        }
        self.reply_upstream(node, shard, incarnation, requests);
        left
    }

    fn call_journal(
        &mut self,
        node: usize,
        shard: &ShardId,
        slot: SlotId,
        incarnation: u64,
        of: Incarnation,
        call: StoreCall,
    ) {
        let generation = self.nodes[node].shards[shard].generation;
        let slow = self.faulty && self.chance(0.03);
        let delay = if slow { self.random(100, 1500) } else { self.random(1, 25) };
        let shard = shard.clone();
        self.later(delay, Timer::Journal { node, shard, generation, slot, incarnation, of, call: Box::new(call) });
    }

    fn say_upstream(&mut self, node: usize, shard: &ShardId, slot: SlotId, requests: HandlerRequests) {
        let found = self.nodes[node].shards.get(shard).and_then(|hosted| hosted.machine.identity(slot));
        if let Some(incarnation) = found.map(|(_, incarnation)| incarnation) {
            self.reply_upstream(node, shard, incarnation, requests);
        }
    }

    fn reply_upstream(&mut self, node: usize, shard: &ShardId, incarnation: u64, requests: HandlerRequests) {
        let from = self.nodes[node].address.clone();
        let path = format!("shard/{shard}").into();
        let from = greylag_delivery::ControllerRef { node: from, path, instance: incarnation };
        for (to, epoch, message) in requests.upstream {
            let message = greylag_delivery::UpstreamMessage { from: from.clone(), to, epoch, message };
            let to = message.to.node.clone();
            if !(self.faulty && self.chance(0.05)) {
                self.transmit(node, &to, Wire::Beside(DirectMessage::Upstream(message)));
            }
        }
        for (customer, total) in requests.suppressed {
            self.check_suppressed(customer, total);
        }
        for (question, cents) in requests.answers {
            self.on_answer(question, cents);
        }
    }
}

impl Purchases {
    /// Drops the customers of a process, or of a shard, that has crashed.
    pub(super) fn forget(&mut self, node: usize, of: impl Fn(u32) -> bool) {
        self.live.retain(|(number, at, _)| *at != node || !of(*number));
    }
}
