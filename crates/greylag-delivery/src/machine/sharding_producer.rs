//! The producer controller of one entity type: admits messages, numbers them, and spreads them over
//! one link per entity.
//!
//! Senders wait until there is room, first at their entity and then in the whole; nothing is ever
//! refused for want of room. A message goes to its link when the link may transmit it, and waits in
//! the entity's buffer until then.
//!
//! ```text
//! Admit ─▶ [waiters of the entity] ─▶ room? ─▶ [store] ─▶ [buffer of the entity] ─▶ demand? ─▶ link ─▶ Transmit
//! ```
//!
//! A durable producer numbers messages when it stores them, and transmits nothing before. Where nothing is stored, totals
//! are given in the order in which senders ask, not in which they find room: a stuck entity must not renumber the
//! others, or a producer that runs again over the same input would give the same message another number and have it
//! applied twice.
//!
//! No input looks at more than the entity it concerns, but for those about a shard.
//! Source: delivery §3.1, S1 to S8, S10.

mod accepting;
mod admission;
mod demand;
mod linking;
mod links;
mod out_state;
mod recovering;
mod recovery;
mod stats;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::ids::{ControllerRef, Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId};
use crate::machine::contiguous::Contiguous;
use crate::machine::producer_link::{self, Frames};
use crate::machine::storing::{self, Storing, StoringSettings, StoringState};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, UpstreamMessage};
use crate::queue::TimestampMillis;
use admission::{Admission, Limits};
use links::Links;
use out_state::Waiter;
use recovery::Recovery;
use stats::Tally;

pub use demand::DemandSets;
pub use stats::ProducerStats;

/// What the controller needs to know when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingProducerSettings {
    /// Pace of P8 until anything is heard.
    pub resend_first_interval: Duration,
    /// Pace of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// Messages in all buffers.
    pub buffer_size: usize,
    /// Messages in the buffer of one entity.
    pub buffer_size_per_entity: usize,
    /// Messages that are not confirmed; `None` leaves them to the bytes.
    pub max_in_flight_messages: Option<usize>,
    /// Bytes of all messages that are not confirmed.
    pub max_in_flight_bytes: usize,
    /// Bytes of one entity's messages that are not confirmed.
    pub max_in_flight_bytes_per_entity: usize,
    /// An entity's state is dropped after so long without use.
    pub cleanup_unused_after: Duration,
    /// Links of recovered messages whose first frame is unanswered at the same time.
    pub recovery_parallelism: usize,
}

/// A message on its way through the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel<P> {
    /// The shard of its entity.
    pub shard: Arc<str>,
    /// Its size.
    pub bytes: usize,
    /// The message.
    pub frames: Frames<P>,
}

/// An input to the producer controller of one entity type: messages to send, answers of consumer controllers, moves of
/// shards, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// The controller begins: a durable one loads its queue.
    Start,
    /// A sender wants to send a message.
    Admit {
        /// The sender's number; every later one is larger.
        ticket: u64,
        /// The entity.
        entity: Arc<str>,
        /// Its shard.
        shard: Arc<str>,
        /// The message.
        frames: Frames<P>,
        /// Its size.
        bytes: usize,
        /// The sender waits for the confirmation.
        ack: bool,
    },
    /// A sender gave up while it waited for room; nothing was sent.
    Withdraw {
        /// The sender's number.
        ticket: u64,
        /// The entity it wanted to send to.
        entity: Arc<str>,
    },
    /// A sender wants room that is set aside for one message.
    RequestPermit {
        /// The permit's number, of one sequence with tickets.
        permit: u64,
    },
    /// The sender with this ticket, which asks next, uses a permit.
    UsePermit {
        /// The permit.
        permit: u64,
        /// The sender's number.
        ticket: u64,
    },
    /// A permit is not wanted any more.
    ReleasePermit {
        /// The permit.
        permit: u64,
    },
    /// The queue answered.
    Queue {
        /// The call of [`Effect::Queue`].
        call: u64,
        /// The answer.
        answer: storing::Answer<Parcel<P>>,
    },
    /// A consumer controller spoke.
    Received(UpstreamMessage),
    /// The entities of a shard have lost their home, or have a new one (S7).
    ShardMoved(Arc<str>),
    /// Whether the region knows where a shard is.
    RouteChanged {
        /// The shard.
        shard: Arc<str>,
        /// Whether its messages leave now, or wait in the region.
        routed: bool,
    },
    /// The region may have dropped what it kept for the entities of a shard (S7).
    NotBuffered(Arc<str>),
    /// The region has no copy of an entity's frames: it did not take them into its buffer, or dropped them there. The next
    /// copy is due a timeout after the last one (S7).
    NotKept(Arc<str>),
    /// Frames of a link found no room on their lane, or in an inbox; they are transmitted again soon.
    Refused {
        /// The link.
        instance: u64,
        /// The first frame.
        from: u64,
        /// The last frame.
        to: u64,
    },
    /// No more is sent; links end, and confirmations are stored.
    Close,
    /// A deadline may have passed.
    Tick,
}

/// What the controller asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A sender's message was accepted under this number.
    Admitted {
        /// The sender.
        ticket: u64,
        /// The number of its message.
        total: SeqNr,
    },
    /// Send a frame to an entity. Neighbours with equal headers may share a batch.
    Transmit {
        /// The entity.
        entity: Arc<str>,
        /// What the frame's batch says.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A permit is granted.
    Permit {
        /// Which.
        permit: u64,
    },
    /// Call the queue.
    Queue {
        /// Names the call in its answer.
        id: u64,
        /// What to do.
        call: storing::Call<Parcel<P>>,
    },
    /// A message was confirmed by its entity.
    Confirmed {
        /// Its sender; 0 if it was found in the queue.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Tell a consumer controller that its link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// What to say.
        message: ProducerStopped,
    },
    /// The controller closed with this message unconfirmed.
    Undelivered {
        /// Its sender; 0 if it was found in the queue.
        ticket: u64,
        /// Its entity.
        entity: Arc<str>,
        /// Its number.
        total: SeqNr,
    },
    /// It cannot be known whether a sender's message is stored; it is delivered if it is.
    StoreUnknown {
        /// The sender.
        ticket: u64,
        /// The number that it has if it is stored.
        total: SeqNr,
    },
    /// The queue cannot store a sender's message, and has not: it was not accepted.
    Unavailable {
        /// The sender.
        ticket: u64,
        /// Its message.
        frames: Frames<P>,
    },
    /// The controller is closed or fenced: this sender's message was not accepted.
    Refused {
        /// The sender.
        ticket: u64,
        /// Its message.
        frames: Frames<P>,
    },
    /// A newer incarnation of the stream is active. Nothing is sent any more.
    Fenced {
        /// Its epoch.
        newer: Epoch,
    },
    /// Nothing can be stored any more. Nothing is sent any more either.
    QueueEnded(storing::End),
    /// The controller has ended.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The queue is not loaded yet; senders wait.
    Loading,
    Running,
    /// Links have ended; the store is told the rest.
    Closing,
    Closed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ShardingProducer<P> {
    settings: ShardingProducerSettings,
    identity: ProducerIdentity,
    life: Life,
    /// An instant, and what the wall clock said then.
    clock: Option<(Instant, TimestampMillis)>,
    /// Senders that came before the queue was loaded.
    early: VecDeque<(Arc<str>, Arc<str>, Waiter<P>)>,
    links: Links<P>,
    admission: Admission,
    storing: Storing<Parcel<P>>,
    recovery: Recovery,
    demand: DemandSets,
    contiguous: Contiguous,
    highest_confirmed: SeqNr,
    tally: Tally,
    scratch: Vec<producer_link::Effect<P>>,
    stored: Vec<storing::Effect<Parcel<P>>>,
}

impl<P: Clone> ShardingProducer<P> {
    /// A controller that is reached at `path` of `node`. Its links are numbered from 1, so the path
    /// must never be given to another controller of the same process.
    pub fn new(
        settings: ShardingProducerSettings,
        identity: ProducerIdentity,
        node: UniqueAddress,
        path: Arc<str>,
    ) -> Self {
        let limits = Limits {
            buffer_size: settings.buffer_size,
            buffer_size_per_entity: settings.buffer_size_per_entity,
            max_in_flight_messages: settings.max_in_flight_messages,
            max_in_flight_bytes: settings.max_in_flight_bytes,
            max_in_flight_bytes_per_entity: settings.max_in_flight_bytes_per_entity,
        };
        let patience = settings.resend_first_unconfirmed_idle_timeout;
        Self {
            identity,
            life: Life::Running,
            clock: None,
            early: VecDeque::new(),
            links: Links::new(node, path),
            admission: Admission::new(limits),
            storing: Storing::in_memory(),
            recovery: Recovery::new(settings.recovery_parallelism, patience),
            demand: DemandSets::default(),
            contiguous: Contiguous::default(),
            highest_confirmed: SeqNr::NONE,
            tally: Tally::default(),
            scratch: Vec::new(),
            stored: Vec::new(),
            settings,
        }
    }

    /// A controller that stores its messages, and takes stream and epoch from its queue. At `clock.0` the wall clock says
    /// `clock.1`.
    pub fn durable(
        settings: ShardingProducerSettings,
        storing: StoringSettings,
        producer_id: ProducerId,
        node: UniqueAddress,
        path: Arc<str>,
        clock: (Instant, TimestampMillis),
    ) -> Self {
        let identity = ProducerIdentity { producer_id, stream_id: StreamId(0), epoch: Epoch(0) };
        let storing = Storing::durable(storing);
        Self { life: Life::Loading, storing, clock: Some(clock), ..Self::new(settings, identity, node, path) }
    }

    /// The same over a queue whose messages others write: it is asked for them so often while there are none.
    pub fn polling(mut self, interval: Duration) -> Self {
        self.storing = self.storing.polling(interval);
        self
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        if matches!(self.life, Life::Closing | Life::Closed) {
            return self.handle_closed(now, input, out);
        }
        match input {
            Input::Start => self.tell_store(now, storing::Input::Start, out),
            Input::Admit { ticket, entity, shard, frames, bytes, ack } => {
                let reserved = self.storing.reserve();
                let waiter = Waiter { ticket, reserved, frames, bytes, ack };
                if self.life == Life::Loading {
                    self.tally.stats.waiting += 1;
                    self.early.push_back((entity, shard, waiter));
                } else {
                    self.on_admit(now, entity, shard, waiter);
                }
            }
            Input::Withdraw { ticket, entity } => self.on_withdraw(now, ticket, &entity),
            Input::RequestPermit { permit } => self.admission.want(permit),
            Input::UsePermit { permit, ticket } => self.admission.use_permit(permit, ticket),
            Input::ReleasePermit { permit } => self.admission.release(permit),
            Input::Queue { call, answer } => self.tell_store(now, storing::Input::Answered { call, answer }, out),
            Input::Received(message) => self.on_received(now, message, out),
            Input::ShardMoved(shard) => self.tell_shard(now, &shard, &producer_link::Input::Reassociate, out),
            Input::RouteChanged { shard, routed } => {
                if self.links.route_changed(&shard, routed) {
                    self.tell_shard(now, &shard, &producer_link::Input::RouteChanged(routed), out);
                }
            }
            Input::NotBuffered(shard) => self.tell_shard(now, &shard, &producer_link::Input::NotBuffered, out),
            Input::NotKept(entity) => {
                if let Some(instance) = self.links.instance_of(&entity) {
                    self.tell(now, instance, producer_link::Input::NotBuffered, out);
                }
            }
            Input::Refused { instance, from, to } => {
                self.tell(now, instance, producer_link::Input::Refused { from, to }, out);
            }
            Input::Close => self.end(now, storing::Input::Close, out),
            Input::Tick => {
                self.tell_store(now, storing::Input::Tick, out);
                self.take_turns(now, out);
                self.on_tick(now, out);
            }
        }
        self.take_turns(now, out);
        self.admit_waiting(now, out);
        self.check_invariants();
    }

    /// What still matters when links have ended.
    fn handle_closed(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match input {
            Input::Admit { ticket, frames, .. } => out.push(Effect::Refused { ticket, frames }),
            Input::Queue { call, answer } => self.tell_store(now, storing::Input::Answered { call, answer }, out),
            Input::Tick => self.tell_store(now, storing::Input::Tick, out),
            _ => {}
        }
    }

    /// Ends links, and tells the store how: to close, or that a newer incarnation is active.
    fn end(&mut self, now: Instant, how: storing::Input<Parcel<P>>, out: &mut Vec<Effect<P>>) {
        if matches!(self.life, Life::Closing | Life::Closed) {
            return;
        }
        self.life = Life::Closing;
        let early = std::mem::take(&mut self.early).into_iter();
        out.extend(early.map(|(_, _, Waiter { ticket, frames, .. })| Effect::Refused { ticket, frames }));
        self.end_links(out);
        self.tell_store(now, how, out);
        if self.life == Life::Closing && self.storing.state() == StoringState::Ended {
            self.life = Life::Closed;
            out.push(Effect::Closed);
        }
    }

    /// When a tick next has work to do; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_links = match self.life {
            Life::Closed => return None,
            Life::Closing => None,
            Life::Loading | Life::Running => {
                [self.links.next_deadline(), self.recovery.next_deadline()].into_iter().flatten().min()
            }
        };
        [of_links, self.storing.next_deadline()].into_iter().flatten().min()
    }

    /// Counters as of `now`; a silence that still lasts is counted.
    pub fn stats(&self, now: Instant) -> ProducerStats {
        let (storing, slots) = (self.storing.pending(), self.admission.slots());
        ProducerStats {
            storing: storing as u64,
            buffered: slots.saturating_sub(storing) as u64,
            entities: self.links.len() as u64,
            with_demand: self.demand().with_demand() as u64,
            ..self.tally.read(now)
        }
    }

    /// The last of the contiguously confirmed totals.
    pub fn confirmed(&self) -> SeqNr {
        SeqNr(self.contiguous.last())
    }

    /// The highest confirmed total; lower ones may be unconfirmed.
    pub fn highest_confirmed(&self) -> SeqNr {
        self.highest_confirmed
    }

    /// The number that the next message gets; of a durable producer, once its queue is loaded.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.storing.current_seq_nr()
    }

    /// Whether messages of the queue are not confirmed, or not known yet.
    pub fn owes_recovered(&self) -> bool {
        self.life == Life::Loading || self.admission.owes_recovered()
    }

    /// How its store fares.
    pub fn storing_state(&self) -> StoringState {
        self.storing.state()
    }

    /// Which entities could take a message at once; kept up to date message by message.
    pub fn demand(&self) -> &DemandSets {
        &self.demand
    }

    /// Shards that have links at present.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<str>> {
        self.links.shards()
    }

    fn wall_ms(&self, now: Instant) -> TimestampMillis {
        let Some((at, wall_ms)) = self.clock else { return 0 };
        let since = now.saturating_duration_since(at).as_millis();
        wall_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
