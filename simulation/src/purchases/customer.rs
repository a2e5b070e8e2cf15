//! One incarnation of a customer: the consumer controller, and behind it the machine of persistence.

use std::collections::VecDeque;
use std::time::Instant;

use greylag_core::Generation;
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{
    DeliveryHandle, Effect, Input, ShardingConsumer, ShardingConsumerSettings,
};
use greylag_delivery::{Clause, ControllerRef, Epoch, ProducerStopped, SequencedBatch, Upstream};
use greylag_persistence::{
    Action, EntityCore, EntityInit, Incarnation, Input as CoreInput, PhaseName, StoreAnswer, StoreCall,
};
use greylag_sharding::TimerKey;
use greylag_sharding::host::Suspension;
use greylag_sharding::machine::region::Provenance;
use greylag_sharding::machine::shard::{Outcome as Left, TimerChange};
use greylag_testkit::deadlines::assert_moved;

use super::account::{Account, Command, Confirm, Outcome, Outcomes};

/// A message through the regions.
#[derive(Debug, Clone)]
pub(crate) enum Msg {
    Purchases { customer: u32, batch: SequencedBatch<u64> },
    Ask { customer: u32, question: u64 },
}

impl Msg {
    pub(super) fn customer(&self) -> u32 {
        match self {
            Self::Purchases { customer, .. } | Self::Ask { customer, .. } => *customer,
        }
    }
}

/// A message in the shard's machine.
#[derive(Debug)]
pub(crate) enum MailboxMessage {
    User(Msg, Provenance),
    Stopped(ProducerStopped),
    Tick,
    Wakeup(Wakeup),
}

/// The event that ended a suspension.
#[derive(Debug)]
pub(crate) enum Wakeup {
    Permit(Incarnation),
    Answer(Incarnation, StoreAnswer),
    Deadline,
}

/// Requests of a handler, besides those to the shard's machine.
#[derive(Debug, Default)]
pub(super) struct HandlerRequests {
    pub(super) left: Left<MailboxMessage>,
    pub(super) upstream: Vec<(ControllerRef, Option<Epoch>, Upstream)>,
    pub(super) calls: Vec<(Incarnation, StoreCall)>,
    pub(super) permits: Vec<Incarnation>,
    pub(super) wake_at: Option<Instant>,
    pub(super) answers: Vec<(u64, u64)>,
    /// Deliveries that the controller itself suppressed.
    pub(super) suppressed: Vec<(u64, u64)>,
    pub(super) fenced: Option<Option<Generation>>,
    pub(super) failed: Option<String>,
}

pub(crate) struct Customer {
    pub(super) number: u32,
    consumer: ShardingConsumer<u64>,
    core: EntityCore<Account>,
    outcomes: Outcomes,
    ready: VecDeque<(DeliveryHandle, u64)>,
    timer: Option<Instant>,
    armed: Option<Instant>,
    stop: bool,
    finished: bool,
}

impl Customer {
    pub(super) fn start(
        now: Instant,
        number: u32,
        settings: ShardingConsumerSettings,
        init: EntityInit,
    ) -> (Self, HandlerRequests) {
        let outcomes = Outcomes::default();
        let id = format!("Customer|{number}").parse().expect("an id");
        let account = Account { id, outcomes: outcomes.clone(), forgets: settings.link.omissions.has(Clause::Marks) };
        let mut actions = Vec::new();
        let core = EntityCore::start(account.stored(), init, now, &mut actions).expect("settings for tests work");
        let mut customer = Self {
            number,
            consumer: ShardingConsumer::new(settings),
            core,
            outcomes,
            ready: VecDeque::new(),
            timer: None,
            armed: None,
            stop: false,
            finished: false,
        };
        let mut requests = HandlerRequests::default();
        requests.left.direct = true;
        customer.perform(now, actions, &mut requests);
        customer.finish(now, &mut requests);
        (customer, requests)
    }

    pub(super) fn receive(&mut self, now: Instant, message: MailboxMessage) -> HandlerRequests {
        let mut requests = HandlerRequests::default();
        match message {
            MailboxMessage::User(Msg::Purchases { batch, .. }, _) => {
                self.consume(now, Input::Batch(batch), &mut requests);
            }
            MailboxMessage::User(Msg::Ask { question, .. }, _) => {
                self.tell(now, CoreInput::Command(Command::Total { question }), &mut requests);
            }
            MailboxMessage::Stopped(stopped) => self.consume(now, Input::ProducerStopped(stopped), &mut requests),
            MailboxMessage::Tick => {
                self.timer = None;
                self.consume(now, Input::Tick, &mut requests);
            }
            MailboxMessage::Wakeup(Wakeup::Permit(incarnation)) => {
                self.tell(now, CoreInput::PermitGranted(incarnation), &mut requests);
            }
            MailboxMessage::Wakeup(Wakeup::Answer(incarnation, answer)) => {
                self.tell(now, CoreInput::Answer { incarnation, answer }, &mut requests);
            }
            MailboxMessage::Wakeup(Wakeup::Deadline) => {
                self.armed = None;
                self.tell(now, CoreInput::Tick, &mut requests);
            }
        }
        self.settle(now, &mut requests);
        self.finish(now, &mut requests);
        requests
    }

    pub(super) fn stop(&mut self, now: Instant) -> HandlerRequests {
        let mut requests = HandlerRequests::default();
        self.consume(now, Input::Finish, &mut requests);
        if self.is_running() {
            self.stop = true;
            self.settle(now, &mut requests);
        } else {
            self.tell(now, CoreInput::Stop, &mut requests);
        }
        self.finish(now, &mut requests);
        requests
    }

    /// Ends the customer, which may be replaced: producers with unconfirmed deliveries here must start over.
    pub(super) fn end(&mut self, now: Instant) -> HandlerRequests {
        let mut requests = HandlerRequests::default();
        self.collect(now, &mut requests);
        let input = if self.consumer.is_busy() { Input::StartOver } else { Input::Stop };
        self.consume(now, input, &mut requests);
        self.tell(now, CoreInput::StopNow, &mut requests);
        requests
    }

    fn is_running(&self) -> bool {
        self.core.phase() == PhaseName::Running
    }

    /// Hands deliveries to the account for as long as it takes them at once.
    fn settle(&mut self, now: Instant, requests: &mut HandlerRequests) {
        self.collect(now, requests);
        while self.is_running()
            && let Some((handle, number)) = self.ready.pop_front()
        {
            let id = handle.id.clone();
            let confirm = Confirm::new(handle, self.outcomes.clone());
            self.tell(now, CoreInput::Command(Command::Purchase { number, id, confirm }), requests);
            self.collect(now, requests);
        }
        if self.is_running() && self.finished && std::mem::take(&mut self.stop) {
            self.tell(now, CoreInput::Stop, requests);
        }
    }

    fn collect(&mut self, now: Instant, requests: &mut HandlerRequests) {
        let outcomes = std::mem::take(&mut self.outcomes.lock().outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::Confirmed(handle) => {
                    self.outcomes.lock().open.remove(&(handle.id.stream_id, handle.id.seq_nr));
                    self.consume(now, Input::Confirm(handle), requests);
                }
                Outcome::Abandoned(handle) => self.consume(now, Input::Abandon(handle, None), requests),
                Outcome::Recovered(dedupe) => self.consume(now, Input::Start(dedupe), requests),
                Outcome::Answered(question, total) => requests.answers.push((question, total)),
            }
        }
    }

    fn consume(&mut self, now: Instant, input: Input<u64>, requests: &mut HandlerRequests) {
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.consumer.handle(now, input, &mut effects);
        if ticks {
            assert_moved("consumer", now, self.consumer.next_deadline());
        }
        for effect in effects {
            match effect {
                Effect::Deliver { handle, parts } => {
                    let Frames::Whole(number) = parts else { panic!("nothing is sent in chunks") };
                    self.outcomes.lock().open.insert((handle.id.stream_id, handle.id.seq_nr));
                    self.ready.push_back((handle, number));
                }
                Effect::Reply { to, epoch, message } => requests.upstream.push((to, epoch, message)),
                Effect::Suppressed(id) => {
                    self.outcomes.lock().open.remove(&(id.stream_id, id.seq_nr));
                    requests.suppressed.push((u64::from(self.number), id.seq_nr.get()));
                }
                Effect::Busy(busy) => requests.left.veto = Some(busy),
                Effect::Stopped => self.finished = true,
                Effect::Held(id) => {
                    self.outcomes.lock().open.insert((id.stream_id, id.seq_nr));
                }
                // These effects only inform an operator.
                Effect::Overdue(_) | Effect::Replaced { .. } | Effect::SameProducer(_) | Effect::Refused(_) => {}
                Effect::Poisoned { id, .. } => panic!("{id:?} was given up"),
            }
        }
    }

    fn tell(&mut self, now: Instant, input: CoreInput<Command>, requests: &mut HandlerRequests) {
        let mut actions = Vec::new();
        let ticks = matches!(input, CoreInput::Tick);
        self.core.handle(now, input, &mut actions);
        if ticks {
            assert_moved("entity", now, self.core.next_deadline());
        }
        self.perform(now, actions, requests);
    }

    fn perform(&mut self, _now: Instant, actions: Vec<Action<Command>>, requests: &mut HandlerRequests) {
        for action in actions {
            match action {
                Action::RequestPermit(incarnation) => requests.permits.push(incarnation),
                Action::Store { incarnation, call } => requests.calls.push((incarnation, call)),
                Action::Passivate => requests.left.passivate = true,
                Action::HostRequests(requests) => unreachable!("no handler asks its host for {requests:?}"),
                Action::DeadLetter(dropped) => dropped.discard(),
                Action::Fenced(by) => {
                    requests.left.fenced = true;
                    requests.fenced = Some(by.generation());
                }
                Action::Failed(failure) => requests.failed = Some(failure.to_string()),
                Action::Stopped => requests.left.stop = true,
                Action::ReturnPermit(_)
                | Action::Recovered { .. }
                | Action::Unhandled
                // Accounts start nothing besides their commands.
                | Action::Work { .. }
                | Action::ToSelf { .. }
                | Action::Withheld(_)
                | Action::Restarting(_) => {}
            }
        }
    }

    /// Suspends the mailbox while the account does not run, and sets timers for the deadlines.
    fn finish(&mut self, now: Instant, requests: &mut HandlerRequests) {
        let phase = self.core.phase();
        requests.left.suspend = match phase {
            PhaseName::Running | PhaseName::Failed | PhaseName::Stopped => None,
            PhaseName::Persisting => Some(Suspension::Closed),
            _ => Some(Suspension::Stoppable),
        };
        // A wake-up that came while the account ran was ignored, so it does not count as armed.
        let armed = self.armed.filter(|armed| *armed > now);
        if let Some(at) = self.core.next_deadline().filter(|at| armed.is_none_or(|armed| *at < armed)) {
            self.armed = Some(at);
            requests.wake_at = Some(at.max(now));
        }
        if let Some(at) = self.consumer.next_deadline().filter(|at| self.timer.is_none_or(|timer| *at < timer)) {
            self.timer = Some(at);
            let (key, influences, payload) = (TimerKey::Name("delivery"), false, MailboxMessage::Tick);
            requests.left.timers.push(TimerChange::Set { key, at, influences, payload });
        }
    }
}
