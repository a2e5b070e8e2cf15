//! The producer controller of one entity type: admits messages, numbers them, and sends them over one link per entity.
//!
//! Senders wait until there is room, first at their entity and then in the whole; the machine never refuses a message
//! for want of room. A message is given to its link when the link may transmit it, and waits in the entity's buffer
//! until then.
//!
//! ```text
//! Admit ─▶ [waiters of the entity] ─▶ room? ─▶ [store] ─▶ [buffer of the entity] ─▶ demand? ─▶ link ─▶ Transmit
//! ```
//!
//! A durable producer numbers messages when it stores them, and transmits none before. Without storing, totals are
//! assigned in the order in which senders ask, not in which they get room: otherwise a stuck entity would change the
//! numbers of other messages, and a producer that runs again over the same input would give the same message another
//! number, so that it would be applied twice.
//!
//! Messages to entities of the producer's own node are not encoded; see `linking`.
//!
//! The cost of an input depends only on the entity concerned, except for inputs about a shard.
//! Source: delivery §3.1, S1 to S8, S10, K7.

mod accepting;
mod admission;
mod demand;
mod entity_state;
mod linking;
mod links;
mod progress;
mod protocol;
mod recovery;
mod stats;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::ids::{Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId};
use crate::machine::portable::Portable;
use crate::machine::producer_link;
use crate::machine::storing::{self, Storing, StoringSettings, StoringState};
use crate::queue::TimestampMillis;
use admission::{Admission, Limits};
use entity_state::Waiter;
use links::Links;
use progress::Progress;
use recovery::Recovery;

pub use demand::DemandSets;
pub use protocol::{Effect, Input, RoutedMessage, ShardingProducerSettings};
pub use stats::ProducerStats;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The queue is not loaded yet; senders wait.
    Loading,
    Running,
    /// Links have ended; the remaining confirmations are being stored.
    Closing,
    Closed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ShardingProducer<P> {
    settings: ShardingProducerSettings,
    life: Life,
    /// An instant, with the wall clock at that time.
    clock: Option<(Instant, TimestampMillis)>,
    /// Senders that came before the queue was loaded.
    early: VecDeque<(Arc<str>, Arc<str>, Waiter<P>)>,
    links: Links<P>,
    admission: Admission,
    storing: Storing<RoutedMessage<P>>,
    recovery: Recovery,
    demand: DemandSets,
    progress: Progress,
    scratch: Vec<producer_link::Effect<P>>,
    stored: Vec<storing::Effect<RoutedMessage<P>>>,
}

impl<P: Portable> ShardingProducer<P> {
    /// A controller at `path` of `node`. Its links are numbered from 1, so the path must never be given to another
    /// controller of the same process.
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
            life: Life::Running,
            clock: None,
            early: VecDeque::new(),
            links: Links::new(&settings, identity, node, path),
            admission: Admission::new(limits),
            storing: Storing::in_memory(),
            recovery: Recovery::new(settings.recovery_parallelism, patience),
            demand: DemandSets::default(),
            progress: Progress::default(),
            scratch: Vec::new(),
            stored: Vec::new(),
            settings,
        }
    }

    /// A controller that stores its messages, with stream and epoch from its queue. `clock` is an instant, with the
    /// wall clock at that time.
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

    /// Polls the queue, whose messages others write, at this interval while no messages are found.
    pub fn polling(mut self, interval: Duration) -> Self {
        self.storing = self.storing.polling(interval);
        self
    }

    /// Handles one input.
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
                    self.progress.stats.waiting += 1;
                    self.early.push_back((entity, shard, waiter));
                } else {
                    self.on_admit(now, entity, shard, waiter);
                }
            }
            Input::Withdraw { ticket, entity } => self.on_withdraw(now, ticket, &entity),
            Input::RequestPermit { permit } => self.admission.request_permit(permit),
            Input::UsePermit { permit, ticket } => self.admission.use_permit(permit, ticket),
            Input::ReleasePermit { permit } => self.admission.release(permit),
            Input::Queue { call, answer } => self.tell_store(now, storing::Input::Answered { call, answer }, out),
            Input::Received(message) => self.on_received(now, message, out),
            Input::ShardMoved(shard) => self.on_moved(now, &shard, out),
            Input::RouteChanged { shard, routed } => {
                if self.links.route_changed(&shard, routed) {
                    self.tell_shard(now, &shard, &producer_link::Input::RouteChanged(routed), out);
                }
            }
            Input::Homed { shard, is_here } => self.on_homed(now, &shard, is_here, out),
            Input::NotBuffered(shard) => self.tell_shard(now, &shard, &producer_link::Input::NotBuffered, out),
            Input::NotKept(entity) => {
                if let Some(instance) = self.links.instance_of(&entity) {
                    self.handle_input(now, instance, producer_link::Input::NotBuffered, out);
                }
            }
            Input::Refused { instance, from, to } => {
                self.handle_input(now, instance, producer_link::Input::Refused { from, to }, out);
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

    /// Handles an input after the links have ended.
    fn handle_closed(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match input {
            Input::Admit { ticket, frames, .. } => out.push(Effect::Refused { ticket, frames }),
            Input::Queue { call, answer } => self.tell_store(now, storing::Input::Answered { call, answer }, out),
            Input::Tick => self.tell_store(now, storing::Input::Tick, out),
            _ => {}
        }
    }

    /// Ends all links, and gives the storing machine the reason: closed, or fenced.
    fn end(&mut self, now: Instant, how: storing::Input<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
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

    /// The next time at which a tick may have an effect; may be early.
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

    /// Counters as of `now`, including a silence that still lasts.
    pub fn stats(&self, now: Instant) -> ProducerStats {
        let (storing, slots) = (self.storing.pending(), self.admission.slots());
        ProducerStats {
            storing: storing as u64,
            buffered: slots.saturating_sub(storing) as u64,
            entities: self.links.len() as u64,
            with_demand: self.demand().with_demand() as u64,
            ..self.progress.read(now)
        }
    }

    /// Number of messages without waiting for which there is room.
    pub fn room(&self) -> u64 {
        let taken = self.progress.stats.waiting.saturating_add(self.storing.pending() as u64);
        (self.settings.buffer_size as u64).saturating_sub(taken)
    }

    /// The settings of the controller.
    pub fn settings(&self) -> &ShardingProducerSettings {
        &self.settings
    }

    /// The highest total up to which all messages are confirmed.
    pub fn confirmed(&self) -> SeqNr {
        self.progress.settled_up_to()
    }

    /// The highest confirmed total; lower ones may be unconfirmed.
    pub fn highest_confirmed(&self) -> SeqNr {
        self.progress.highest_confirmed()
    }

    /// The number of the next message; valid for a durable producer once its queue is loaded.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.storing.current_seq_nr()
    }

    /// Whether messages of the queue are unconfirmed, or not loaded yet.
    pub fn has_unconfirmed_recovered(&self) -> bool {
        self.life == Life::Loading || self.admission.has_unconfirmed_recovered()
    }

    /// State of the queue.
    pub fn storing_state(&self) -> StoringState {
        self.storing.state()
    }

    /// The entities with and without demand; updated with each message.
    pub fn demand(&self) -> &DemandSets {
        &self.demand
    }

    /// The shards with links, and shards known to be without a route or on another node.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<str>> {
        self.links.shards()
    }

    fn wall_ms(&self, now: Instant) -> TimestampMillis {
        let Some((at, wall_ms)) = self.clock else { return 0 };
        let since = now.saturating_duration_since(at).as_millis();
        wall_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
