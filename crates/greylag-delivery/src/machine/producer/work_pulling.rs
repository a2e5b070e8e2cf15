//! The producer controller of work pulling: one producer, and a changing set of workers, each of which requests as many
//! messages as it can handle.
//!
//! A message is stored before a worker is chosen for it, and keeps its number for any worker. It is *pending*, oldest
//! first, until a worker has demand; then it is a *job* held by that worker's link, until some worker confirms it. The
//! jobs of a worker that is gone or silent become pending again. Messages are not ordered.
//!
//! ```text
//! Admit ─▶ room in the buffer? ─▶ Storing ─▶ [pending] ─▶ a worker with demand ─▶ its link ─▶ Transmit ─▶ Confirmed
//!                                               ▲                                   │
//!                                               └──── worker gone (W5), silent (W6), too slow (work_timeout)
//! ```
//!
//! Source: delivery §2, W2 to W6, W8.

mod dispatching;
mod jobs;
mod settings;
mod workers;

use std::time::Instant;

use super::admission::{Admission, Waiter};
use crate::ids::{Epoch, SeqNr, StreamId};
use crate::machine::controller::{Controller, ControllerStats, Effect, Failure, Input, Message, Refusal};
use crate::machine::omissions::Clause;
use crate::machine::producer_link::{self, Frames};
use crate::machine::storing::{self, Storing, StoringState, Unstored};
use crate::message::{Upstream, UpstreamMessage};
use crate::queue::{Confirmation, QueueState, TimestampMillis};
use jobs::Jobs;
use workers::Workers;

pub use crate::machine::controller::{ListedWorker, WorkerStats};
pub use settings::{WorkPullingSettings, WorkerSelection};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Confirmations are being stored.
    Closing,
    Closed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct WorkPulling<P> {
    settings: WorkPullingSettings,
    life: Life,
    /// Stream and epoch, once known.
    stream: Option<(StreamId, Epoch)>,
    storing: Storing<Frames<P>>,
    admission: Admission<P>,
    /// Numbers of the messages that are being stored.
    in_store: std::collections::BTreeSet<u64>,
    jobs: Jobs<P>,
    workers: Workers<P>,
    /// The highest confirmed number; lower ones may be unconfirmed.
    highest_confirmed: SeqNr,
    stats: ControllerStats,
    from_storing: Vec<storing::Effect<Frames<P>>>,
}

impl<P: Clone> WorkPulling<P> {
    /// A controller without producer and workers. The effects in `out` must be carried out first: a durable controller
    /// needs its queue's answer as first input.
    pub fn new(
        settings: WorkPullingSettings,
        storing: Storing<Frames<P>>,
        now: Instant,
        out: &mut Vec<Effect<P>>,
    ) -> Self {
        let mut machine = Self {
            stream: settings.stream.filter(|_| !storing.is_durable()),
            life: Life::Running,
            storing,
            admission: Admission::default(),
            in_store: std::collections::BTreeSet::new(),
            jobs: Jobs::new(settings.work_timeout),
            workers: Workers::new(&settings),
            highest_confirmed: SeqNr::NONE,
            stats: ControllerStats::default(),
            from_storing: Vec::new(),
            settings,
        };
        machine.store(now, storing::Input::Start, out);
        machine
    }

    /// Numbers of workers, and of messages with and without a worker.
    pub fn workers(&self) -> WorkerStats {
        WorkerStats {
            number_of_workers: self.workers.len() as u64,
            selectable: self.workers.selectable() as u64,
            in_flight: self.jobs.in_flight() as u64,
            pending: self.jobs.pending() as u64,
        }
    }

    fn on_input(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match input {
            Input::Start { session } => {
                self.admission.start(session, out);
            }
            Input::RegisterConsumer(_) => {}
            Input::Workers(listing) => self.on_listing(now, listing, out),
            Input::Admit { session, ticket, message, waits } => {
                let (waiter, room) = (Waiter { ticket, message: Some(message) }, self.free());
                self.admission.admit(session, waiter, waits, room, out);
            }
            Input::Reserve { session, ticket } => {
                self.admission.admit(session, Waiter { ticket, message: None }, true, 0, out);
            }
            Input::Use { permit, ticket, message } => {
                if let Some(message) = self.admission.redeem(permit, ticket, message, out) {
                    self.accept(now, ticket, message, out);
                }
            }
            Input::Withdraw { ticket } => self.admission.withdraw(ticket),
            Input::Received(message) => self.on_received(now, message, out),
            Input::Answered { call, answer } => self.store(now, storing::Input::Answered { call, answer }, out),
            Input::Close => self.close(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.go_on(now, out);
    }

    /// Dispatches pending messages to workers, and admits waiting senders, in turns, since each makes the other
    /// possible.
    fn go_on(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.dispatch(now, out);
        while self.life == Life::Running
            && self.free() > 0
            && let Some(Waiter { ticket, message }) = self.admission.next()
        {
            match message {
                Some(message) => self.accept(now, ticket, message, out),
                None => {
                    let (current_seq_nr, confirmed_seq_nr) = (self.current_seq_nr(), self.highest_confirmed);
                    out.push(Effect::Permitted { ticket, current_seq_nr, confirmed_seq_nr });
                }
            }
            self.dispatch(now, out);
        }
    }

    /// W4: number of further messages for which the buffer has room, whether or not there are workers.
    fn free(&self) -> u64 {
        if !matches!(self.storing.state(), StoringState::InMemory | StoringState::Open) {
            return 0;
        }
        let used = self.jobs.pending() + self.in_store.len();
        (self.settings.buffer_size.saturating_sub(used) as u64).saturating_sub(self.admission.permits())
    }

    fn accept(&mut self, now: Instant, ticket: u64, message: Message<P>, out: &mut Vec<Effect<P>>) {
        let Message { frames, bytes, ack } = message;
        self.in_store.insert(ticket);
        let timestamp_ms = self.timestamp(now);
        let message = Unstored { ticket, qualifier: "".into(), message: frames, bytes, ack, timestamp_ms };
        self.store(now, storing::Input::Accept { message, reserved: None }, out);
    }

    fn timestamp(&self, now: Instant) -> TimestampMillis {
        let (ms, at) = self.settings.clock;
        let since = now.saturating_duration_since(at).as_millis();
        ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Gives the storing machine an input, and carries out its effects.
    fn store(&mut self, now: Instant, input: storing::Input<Frames<P>>, out: &mut Vec<Effect<P>>) {
        let mut effects = std::mem::take(&mut self.from_storing);
        self.storing.handle(now, input, &mut effects);
        // Handle an end first: messages given back are refused because of it.
        let end = effects.iter().position(|effect| matches!(effect, storing::Effect::Ended(_)));
        if let Some(storing::Effect::Ended(end)) = end.map(|index| effects.remove(index)) {
            out.push(Effect::Failed(Failure::from(end)));
            self.end(out);
            self.finish(out);
        }
        for effect in effects.drain(..) {
            match effect {
                storing::Effect::Call { id, call } => out.push(Effect::Call { id, call }),
                storing::Effect::Opened(state) => self.on_opened(now, state, out),
                storing::Effect::Released { ticket, sent } => {
                    self.in_store.remove(&ticket);
                    self.stats.sent += 1;
                    out.push(Effect::Accepted { ticket, total: sent.seq_nr });
                    self.jobs.add(now, sent.seq_nr, sent.message, sent.ack, Some(ticket));
                }
                storing::Effect::Unknown { ticket, seq_nr, .. } => {
                    self.in_store.remove(&ticket);
                    out.push(Effect::Unknown { ticket, total: seq_nr });
                }
                storing::Effect::GivenBack(message) => {
                    self.in_store.remove(&message.ticket);
                    let why = if self.life == Life::Running { Refusal::Unavailable } else { Refusal::Closed };
                    out.push(Effect::Refused { ticket: message.ticket, frames: Some(message.message), why });
                }
                storing::Effect::Closed if self.life == Life::Closing => self.finish(out),
                storing::Effect::Closed | storing::Effect::Ended(_) => {}
            }
        }
        self.from_storing = effects;
    }

    /// W8, D8: handles a loaded queue. Its messages become pending, oldest first; links are replaced, under the epoch
    /// of this load.
    fn on_opened(&mut self, now: Instant, state: QueueState<Frames<P>>, out: &mut Vec<Effect<P>>) {
        let listing = self.workers.listing();
        self.stop_workers(out);
        self.stream = Some((state.stream_id, state.epoch));
        self.highest_confirmed = self.highest_confirmed.max(state.highest_confirmed_seq_nr);
        self.jobs.reload(now, state);
        self.on_listing(now, listing, out);
    }

    fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        let is_ours = to.node == self.settings.node && to.path == self.settings.path;
        if !is_ours || !self.workers.is(to.instance, &from) {
            self.stats.ignored += 1;
            return;
        }
        if self.workers.is_former(to.instance) {
            return self.on_message_from_removed_worker(
                now,
                to.instance,
                producer_link::Input::Received { from, epoch, message },
                out,
            );
        }
        let asks_for_no_repeats = matches!(message, Upstream::Request { support_resend: false, .. });
        if asks_for_no_repeats && self.storing.is_durable() {
            // Stored messages might be lost on the way to this worker, so others get its messages.
            self.stats.ignored += 1;
            return self.mark_suspected(to.instance);
        }
        self.workers.on_message(to.instance);
        self.handle_input(now, to.instance, producer_link::Input::Received { from, epoch, message }, out);
    }

    /// A worker has confirmed a message. The first confirmation counts, from any worker.
    fn on_confirmed(&mut self, now: Instant, total: SeqNr, out: &mut Vec<Effect<P>>) {
        let Some(ticket) = self.jobs.confirm(total) else { return };
        self.highest_confirmed = self.highest_confirmed.max(total);
        self.stats.confirmed += 1;
        if let Some(ticket) = ticket {
            out.push(Effect::Confirmed { ticket, total });
        }
        let timestamp_ms = self.timestamp(now);
        let confirmation = match self.settings.omissions.has(Clause::ExactConfirmations) {
            true => Confirmation::UpTo { qualifier: "".into(), seq_nr: total, timestamp_ms },
            false => Confirmation::Exact { seq_nrs: vec![total], timestamp_ms },
        };
        self.store(now, storing::Input::Confirm { confirmation, messages: 1 }, out);
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.store(now, storing::Input::Tick, out);
        self.jobs.give_out_again(now);
        self.tick_workers(now, out);
    }

    fn close(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.end(out);
        self.life = Life::Closing;
        self.store(now, storing::Input::Close, out);
    }

    fn fail(&mut self, now: Instant, failure: Failure, out: &mut Vec<Effect<P>>) {
        let is_fenced = matches!(failure, Failure::Fenced { .. });
        out.push(Effect::Failed(failure));
        if is_fenced {
            self.end(out);
            self.life = Life::Closed;
            self.store(now, storing::Input::Fence, out);
            out.push(Effect::Closed);
        } else {
            self.close(now, out);
        }
    }

    /// Ends links and senders; unconfirmed messages that are not stored are lost with the controller.
    fn end(&mut self, out: &mut Vec<Effect<P>>) {
        self.admission.refuse_all(Refusal::Closed, out);
        self.stop_workers(out);
        let unconfirmed = self.jobs.drain();
        if !self.storing.is_durable() {
            out.extend(unconfirmed.map(|(total, ticket)| Effect::Undelivered { ticket, total }));
        }
    }

    fn finish(&mut self, out: &mut Vec<Effect<P>>) {
        if self.life != Life::Closed {
            self.life = Life::Closed;
            out.push(Effect::Closed);
        }
    }

    fn check_invariants(&self) {
        self.jobs.check_invariants();
        self.workers.check_invariants(&self.jobs);
    }
}

impl<P: Clone> Controller<P> for WorkPulling<P> {
    fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match (self.life, input) {
            (Life::Running, input) => self.on_input(now, input, out),
            (Life::Closing, Input::Answered { call, answer }) => {
                self.store(now, storing::Input::Answered { call, answer }, out);
            }
            (Life::Closing, Input::Tick) => self.store(now, storing::Input::Tick, out),
            (_, input) => refuse(input, out),
        }
        self.check_invariants();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let storing = if self.life == Life::Closed { None } else { self.storing.next_deadline() };
        let running = [self.workers.next_deadline(), self.jobs.next_deadline()];
        let running = running.into_iter().filter(|_| self.life == Life::Running).flatten();
        running.chain(storing).min()
    }

    fn room(&self) -> u64 {
        if self.life == Life::Running && self.admission.waiting() == 0 { self.free() } else { 0 }
    }

    fn confirmed(&self) -> SeqNr {
        self.jobs.confirmed()
    }

    fn current_seq_nr(&self) -> SeqNr {
        self.storing.current_seq_nr()
    }

    fn stats(&self) -> ControllerStats {
        ControllerStats {
            unconfirmed: (self.jobs.len() + self.in_store.len()) as u64,
            waiting: self.admission.waiting(),
            permits: self.admission.permits(),
            links_with_demand: self.workers.with_demand() as u64,
            ..self.stats
        }
    }

    fn storing_state(&self) -> StoringState {
        self.storing.state()
    }

    fn oldest_unconfirmed(&self) -> Option<Instant> {
        self.jobs.oldest()
    }

    fn has_unconfirmed_recovered(&self) -> bool {
        self.storing.state() == StoringState::Loading || self.jobs.has_unconfirmed_recovered()
    }

    fn worker_stats(&self) -> Option<WorkerStats> {
        Some(self.workers())
    }
}

/// Answers an input of a controller that has ended.
fn refuse<P>(input: Input<P>, out: &mut Vec<Effect<P>>) {
    match input {
        Input::Admit { ticket, message, .. } | Input::Use { ticket, message, .. } => {
            out.push(Effect::Refused { ticket, frames: Some(message.frames), why: Refusal::Closed });
        }
        Input::Reserve { ticket, .. } => {
            out.push(Effect::Refused { ticket, frames: None, why: Refusal::Closed });
        }
        _ => {}
    }
}
