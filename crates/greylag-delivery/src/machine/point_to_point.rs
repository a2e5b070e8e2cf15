//! The producer controller of a point-to-point producer: admits messages when its consumer asks for them, has them stored,
//! and sends them over one link.
//!
//! It waits for three things, in any order: a producer, a consumer, and the queue if there is one. From then on a message is
//! admitted for as long as the consumer has granted room for it and nothing that was admitted still waits (P11). A sender
//! may take its room first, as a *permit*, and decide on its message later.
//!
//! ```text
//! Admit ─▶ [waiting, first come first served] ─▶ demand? ─▶ Storing ─▶ Released ─▶ link ─▶ Transmit
//! Reserve ─▶ [waiting] ─▶ demand? ─▶ permit ─▶ Use ─────────▲
//! ```
//!
//! Source: delivery §1.2, P1, P2, P11 to P15, D8, D9.

mod admission;
mod life;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::machine::producer_link::{self, Frames, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::machine::storing::{self, Answer, Call, Storing};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, Upstream, UpstreamMessage};
use crate::queue::{Confirmation, QueueState, TimestampMillis};
use admission::Admission;

/// What the controller needs to know when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointToPointSettings {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The controller itself: consumers register here, and answer to it.
    pub controller: ControllerRef,
    /// The stream and the epoch of a producer that stores nothing; the queue of a durable one names them.
    pub stream: Option<(StreamId, Epoch)>,
    /// Pace of P8 until anything is heard.
    pub resend_first_interval: Duration,
    /// Pace of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// The wall clock when the controller was made, and the instant of that.
    pub clock: (TimestampMillis, Instant),
}

/// A message that a producer wants to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<P> {
    /// Its content.
    pub frames: Frames<P>,
    /// Its size.
    pub bytes: usize,
    /// Its sender waits for the confirmation.
    pub ack: bool,
}

/// An input to the producer controller: of producers, of consumer controllers, of the queue, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A producer takes over (P13). Sessions are numbered from 1; the highest one is the producer.
    Start {
        /// Its number.
        session: u64,
    },
    /// Attach this consumer controller.
    RegisterConsumer(ControllerRef),
    /// A message is to be sent, as soon as there is room for it.
    Admit {
        /// The producer that sends it.
        session: u64,
        /// The sender's number; every later one is larger.
        ticket: u64,
        /// The message.
        message: Message<P>,
        /// Whether it waits for room; otherwise it is refused where there is none.
        waits: bool,
    },
    /// A sender wants room for a message that it does not have yet.
    Reserve {
        /// The producer.
        session: u64,
        /// The sender's number.
        ticket: u64,
    },
    /// A sender with a permit has its message.
    Use {
        /// The number under which the permit was asked for.
        ticket: u64,
        /// The message.
        message: Message<P>,
    },
    /// A sender gave up while it waited for room, or gives its permit back.
    Withdraw {
        /// The sender's number.
        ticket: u64,
    },
    /// A consumer controller spoke.
    Received(UpstreamMessage),
    /// The queue answered.
    Answered {
        /// The call.
        call: u64,
        /// The answer.
        answer: Answer<Frames<P>>,
    },
    /// No more is sent: confirmations are written, and the link ends.
    Close,
    /// A deadline may have passed.
    Tick,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The controller is closed, or has failed.
    Closed,
    /// Another producer has started.
    Superseded,
    /// There is no room, and the message would not wait.
    Full,
    /// The queue cannot store it.
    Unavailable,
}

/// Why a controller ended before it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A newer incarnation of the stream is active (P14).
    Fenced {
        /// Its epoch, where a consumer told.
        newer: Option<Epoch>,
        /// Its controller, where the queue told.
        by: Option<ControllerRef>,
    },
    /// The consumer asks for no repeats, so what is stored would not reach it (§1.6).
    IncompatibleConsumer,
    /// The queue has lost messages that it had acknowledged.
    QueueLost {
        /// The number that the queue would take next.
        expected: SeqNr,
    },
    /// The numbers of the stream are used up.
    Exhausted,
}

/// What the controller asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A sender has a permit.
    Permitted {
        /// The sender.
        ticket: u64,
        /// The number that the next message gets.
        current_seq_nr: SeqNr,
        /// The highest number that was confirmed.
        confirmed_seq_nr: SeqNr,
    },
    /// A message was accepted, and stored if there is a queue.
    Accepted {
        /// Its sender.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Send a frame. Neighbours with equal headers may share a batch.
    Transmit {
        /// The consumer controller.
        to: ControllerRef,
        /// What the frame's batch says.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A message was confirmed by its consumer.
    Confirmed {
        /// Its sender.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Call the queue.
    Call {
        /// Names the call in its answer.
        id: u64,
        /// What to do.
        call: Call<Frames<P>>,
    },
    /// A message, or the wish for a permit, was refused.
    Refused {
        /// The sender.
        ticket: u64,
        /// The message, unless a permit was asked for.
        frames: Option<Frames<P>>,
        /// Why.
        why: Refusal,
    },
    /// It cannot be known whether the message is stored. If it is, it will be delivered.
    Unknown {
        /// The sender.
        ticket: u64,
        /// Its number, if it is stored.
        total: SeqNr,
    },
    /// Tell the consumer controller that the link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// What to say.
        message: ProducerStopped,
    },
    /// The controller ended with this message unconfirmed and kept nowhere.
    Undelivered {
        /// Its sender, unless that was another incarnation of the producer.
        ticket: Option<u64>,
        /// Its number.
        total: SeqNr,
    },
    /// The controller has failed; `Closed` follows.
    Failed(Failure),
    /// The controller has ended, and everything it had to store is stored.
    Closed,
}

/// What the controller has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PointToPointStats {
    /// Messages accepted.
    pub sent: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed, those that wait for their store too.
    pub unconfirmed: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Permits that are not used yet.
    pub permits: u64,
    /// Confirmations of frames that were never sent, and messages to other incarnations.
    pub ignored: u64,
}

/// A message that the link has, and that is not confirmed.
#[derive(Debug, Clone, Copy)]
struct Sent {
    total: SeqNr,
    ticket: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Confirmations are being written.
    Closing,
    Closed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct PointToPoint<P> {
    settings: PointToPointSettings,
    life: Life,
    /// The stream and its epoch, once they are known.
    stream: Option<(StreamId, Epoch)>,
    link: Option<ProducerLink<P>>,
    /// The consumer that was registered before there was a link.
    consumer: Option<ControllerRef>,
    /// What the queue had, until there is a link.
    recovered: Vec<(SeqNr, Frames<P>, bool)>,
    storing: Storing<Frames<P>>,
    admission: Admission<P>,
    unconfirmed: VecDeque<Sent>,
    confirmed: SeqNr,
    stats: PointToPointStats,
    from_link: Vec<producer_link::Effect<P>>,
    from_storing: Vec<storing::Effect<Frames<P>>>,
}

impl<P: Clone> PointToPoint<P> {
    /// A controller without producer and consumer. The first input of a durable one is its queue's answer, so effects are
    /// to be carried out before that.
    pub fn new(
        settings: PointToPointSettings,
        storing: Storing<Frames<P>>,
        now: Instant,
        out: &mut Vec<Effect<P>>,
    ) -> Self {
        let mut machine = Self {
            stream: settings.stream.filter(|_| !storing.is_durable()),
            settings,
            life: Life::Running,
            link: None,
            consumer: None,
            recovered: Vec::new(),
            storing,
            admission: Admission::default(),
            unconfirmed: VecDeque::new(),
            confirmed: SeqNr::NONE,
            stats: PointToPointStats::default(),
            from_link: Vec::new(),
            from_storing: Vec::new(),
        };
        machine.store(now, storing::Input::Start, out);
        machine
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match (self.life, input) {
            (Life::Running, input) => self.on_input(now, input, out),
            (Life::Closing, Input::Answered { call, answer }) => {
                self.store(now, storing::Input::Answered { call, answer }, out);
            }
            (Life::Closing, Input::Tick) => self.store(now, storing::Input::Tick, out),
            (_, Input::Admit { ticket, message, .. } | Input::Use { ticket, message }) => {
                out.push(Effect::Refused { ticket, frames: Some(message.frames), why: Refusal::Closed });
            }
            (_, Input::Reserve { ticket, .. }) => {
                out.push(Effect::Refused { ticket, frames: None, why: Refusal::Closed });
            }
            _ => {}
        }
        self.check_invariants();
    }

    fn on_input(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match input {
            Input::Start { session } => self.on_start(now, session, out),
            Input::RegisterConsumer(consumer) => self.on_register(now, consumer, out),
            Input::Admit { session, ticket, message, waits } => self.on_admit(session, ticket, message, waits, out),
            Input::Reserve { session, ticket } => self.on_reserve(session, ticket, out),
            Input::Use { ticket, message } => self.on_use(now, ticket, message, out),
            Input::Withdraw { ticket } => self.admission.withdraw(ticket),
            Input::Received(message) => self.on_received(now, message, out),
            Input::Answered { call, answer } => self.store(now, storing::Input::Answered { call, answer }, out),
            Input::Close => self.close(now, out),
            Input::Tick => {
                self.store(now, storing::Input::Tick, out);
                self.tell(now, producer_link::Input::Tick, out);
            }
        }
        self.admit_waiting(now, out);
    }

    /// When a tick next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref().filter(|_| self.life == Life::Running).and_then(ProducerLink::next_deadline);
        let storing = if self.life == Life::Closed { None } else { self.storing.next_deadline() };
        [link, storing].into_iter().flatten().min()
    }

    /// Counters so far.
    pub fn stats(&self) -> PointToPointStats {
        PointToPointStats {
            unconfirmed: self.unconfirmed.len() as u64 + self.recovered.len() as u64 + self.admission.storing(),
            waiting: self.admission.waiting(),
            permits: self.admission.permits(),
            ignored: self.stats.ignored + self.link.as_ref().map_or(0, ProducerLink::violations),
            ..self.stats
        }
    }

    /// The last of the contiguously confirmed numbers.
    pub fn confirmed(&self) -> SeqNr {
        self.confirmed
    }

    /// The number that the next accepted message gets.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.storing.current_seq_nr()
    }

    /// How storing fares.
    pub fn storing(&self) -> storing::StoringState {
        self.storing.state()
    }

    /// The consumer controller that frames go to.
    pub fn consumer(&self) -> Option<&ControllerRef> {
        self.link.as_ref().map_or(self.consumer.as_ref(), ProducerLink::consumer)
    }

    fn on_register(&mut self, now: Instant, consumer: ControllerRef, out: &mut Vec<Effect<P>>) {
        self.consumer = Some(consumer.clone());
        let message = Upstream::RegisterConsumer;
        self.tell(now, producer_link::Input::Received { from: consumer, epoch: None, message }, out);
    }

    fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        if to != self.settings.controller {
            self.stats.ignored += 1;
            return;
        }
        if message == Upstream::RegisterConsumer {
            return self.on_register(now, from, out);
        }
        let asks_for_no_repeats = matches!(message, Upstream::Request { support_resend: false, .. });
        if asks_for_no_repeats && self.storing.is_durable() && self.consumer() == Some(&from) {
            return self.fail(now, Failure::IncompatibleConsumer, out);
        }
        self.tell(now, producer_link::Input::Received { from, epoch, message }, out);
    }

    /// Gives the link an input, and carries its effects on. The consumer may be another one afterwards.
    fn tell(&mut self, now: Instant, input: producer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let Some(link) = &mut self.link else { return };
        let mut effects = std::mem::take(&mut self.from_link);
        link.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    self.stats.resent += u64::from(again);
                    self.transmit(SequencedMessage { frame, first }, lowest, out);
                }
                producer_link::Effect::ConfirmedUpTo(total) => self.on_confirmed(now, total, out),
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => {
                    self.fail(now, Failure::Fenced { newer: Some(newer), by: None }, out);
                }
            }
        }
        self.from_link = effects;
    }

    fn transmit(&self, message: SequencedMessage<P>, lowest: u64, out: &mut Vec<Effect<P>>) {
        let (Some(to), Some((stream_id, epoch))) = (self.consumer(), self.stream) else { return };
        let header = BatchHeader {
            producer_id: self.settings.producer_id.clone(),
            stream_id,
            epoch,
            controller: self.settings.controller.clone(),
            ordered: true,
            lowest,
        };
        out.push(Effect::Transmit { to: to.clone(), header, message });
    }

    fn on_confirmed(&mut self, now: Instant, total: SeqNr, out: &mut Vec<Effect<P>>) {
        let mut messages = 0;
        while let Some(done) = self.unconfirmed.pop_front_if(|sent| sent.total <= total) {
            messages += 1;
            self.confirmed = self.confirmed.max(done.total);
            if let Some(ticket) = done.ticket {
                out.push(Effect::Confirmed { ticket, total: done.total });
            }
        }
        self.stats.confirmed += messages as u64;
        if messages > 0 {
            let timestamp_ms = self.timestamp(now);
            let confirmation = Confirmation::UpTo { qualifier: "".into(), seq_nr: total, timestamp_ms };
            self.store(now, storing::Input::Confirm { confirmation, messages }, out);
        }
    }

    fn timestamp(&self, now: Instant) -> TimestampMillis {
        let (ms, at) = self.settings.clock;
        let since = now.saturating_duration_since(at).as_millis();
        ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Gives the storing an input, and carries its effects on.
    fn store(&mut self, now: Instant, input: storing::Input<Frames<P>>, out: &mut Vec<Effect<P>>) {
        let mut effects = std::mem::take(&mut self.from_storing);
        self.storing.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                storing::Effect::Call { id, call } => out.push(Effect::Call { id, call }),
                storing::Effect::Opened(state) => self.on_opened(now, state, out),
                storing::Effect::Released { ticket, sent } => {
                    self.admission.stored(ticket);
                    self.stats.sent += 1;
                    self.unconfirmed.push_back(Sent { total: sent.seq_nr, ticket: Some(ticket) });
                    out.push(Effect::Accepted { ticket, total: sent.seq_nr });
                    let (total, frames, ack) = (sent.seq_nr, sent.message, sent.ack);
                    self.tell(now, producer_link::Input::Accept { total, frames, ack }, out);
                }
                storing::Effect::Unknown { ticket, seq_nr } => {
                    self.admission.stored(ticket);
                    out.push(Effect::Unknown { ticket, total: seq_nr });
                }
                storing::Effect::GivenBack(message) => {
                    self.admission.stored(message.ticket);
                    let why = if self.life == Life::Running { Refusal::Unavailable } else { Refusal::Closed };
                    out.push(Effect::Refused { ticket: message.ticket, frames: Some(message.message), why });
                }
                storing::Effect::Ended(end) => self.on_storing_ended(end, out),
                storing::Effect::Closed => self.on_storing_closed(out),
            }
        }
        self.from_storing = effects;
    }

    fn check_invariants(&self) {
        debug_assert!(self.unconfirmed.iter().map(|sent| sent.total).is_sorted());
        debug_assert!(self.link.is_none() || self.stream.is_some(), "a link has a stream");
        debug_assert!(self.link.is_none() || self.recovered.is_empty(), "a link has what was recovered");
    }
}

/// The link of a stream, which waits for its consumer.
fn new_link<P: Clone>(
    settings: &PointToPointSettings,
    stream: (StreamId, Epoch),
    now: Instant,
) -> ProducerLink<P> {
    let (stream_id, epoch) = stream;
    let settings = ProducerLinkSettings {
        mode: LinkMode::PointToPoint,
        stream_id,
        epoch,
        resend_first_interval: settings.resend_first_interval,
        resend_first_unconfirmed_idle_timeout: settings.resend_first_unconfirmed_idle_timeout,
    };
    ProducerLink::new(settings, now)
}

/// What a queue had, as the link takes it.
fn to_recover<P>(state: QueueState<Frames<P>>) -> Vec<(SeqNr, Frames<P>, bool)> {
    state.unconfirmed.into_iter().map(|sent| (sent.seq_nr, sent.message, sent.ack)).collect()
}
