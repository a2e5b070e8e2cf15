//! The producer controller of one entity type: admits messages, numbers them, and spreads them over
//! one link per entity.
//!
//! Senders wait until there is room, first at their entity and then in the whole; nothing is ever
//! refused for want of room. A message goes to its link when the link may transmit it, and waits in
//! the entity's buffer until then.
//!
//! ```text
//! Admit ─▶ total ─▶ [waiters of the entity] ─▶ room? ─▶ [buffer of the entity] ─▶ demand? ─▶ link ─▶ Transmit
//! ```
//!
//! Totals are given in the order in which senders ask, not in which they find room: a stuck entity
//! must not renumber the others, or a producer that runs again over the same input would give the
//! same message another number and have it applied twice.
//!
//! No input looks at more than the entity it concerns, but for those about a shard.
//! Source: delivery §3.1, S1 to S7, S10.

mod admission;
mod contiguous;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::ids::{ControllerRef, Epoch, ProducerIdentity, SeqNr};
use crate::machine::deadlines::{Armed, Deadlines};
use crate::machine::producer_link::{self, Frames, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, UpstreamMessage};
use admission::{Admission, Waiter};
use contiguous::Contiguous;

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
}

/// An input to the producer controller of one entity type: messages to send, answers of consumer controllers, moves of
/// shards, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
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
    /// No more is sent; links end.
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
    /// A message was confirmed by its entity.
    Confirmed {
        /// Its sender.
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
        /// Its sender.
        ticket: u64,
        /// Its entity.
        entity: Arc<str>,
        /// Its number.
        total: SeqNr,
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
}

/// What the controller has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed.
    pub unconfirmed: u64,
    /// Messages that wait for their entity's demand.
    pub buffered: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Entities with a link.
    pub entities: u64,
    /// Longest time with something unconfirmed in which no consumer said anything.
    pub longest_silence: Duration,
    /// Longest time from acceptance to confirmation of one message.
    pub slowest_confirmation: Duration,
    /// Confirmations of frames that were never sent, and messages to links that have ended.
    pub ignored: u64,
}

/// A message that is accepted.
#[derive(Debug, Clone)]
struct Accepted {
    total: SeqNr,
    ticket: u64,
    bytes: usize,
    accepted_at: Instant,
}

/// One entity's state (S1).
#[derive(Debug, Clone)]
struct OutState<P> {
    entity: Arc<str>,
    shard: Arc<str>,
    controller: ControllerRef,
    link: ProducerLink<P>,
    /// Accepted, and waiting for demand.
    buffered: VecDeque<(SeqNr, Frames<P>, bool)>,
    /// Accepted and not confirmed, buffered ones too; in the order of totals.
    unconfirmed: VecDeque<Accepted>,
    waiters: VecDeque<Waiter<P>>,
    bytes: usize,
    used_at: Instant,
    armed: Armed,
    /// What the demand sets say of this entity: the count of `without`, or `None` for with demand.
    shown: Option<usize>,
}

impl<P: Clone> OutState<P> {
    fn has_demand(&self) -> bool {
        self.buffered.is_empty() && self.link.demand() > 0
    }

    fn is_unused(&self) -> bool {
        self.unconfirmed.is_empty() && self.waiters.is_empty()
    }
}

/// The entities of one shard.
#[derive(Debug, Clone, Default)]
struct ShardLinks {
    instances: BTreeSet<u64>,
    unrouted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Closed,
}

/// Which entities could take a message at once. Source: delivery S4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DemandSets {
    /// Entities with demand.
    pub entities_with_demand: BTreeSet<Arc<str>>,
    /// Every other entity with a link, with the number of messages that wait for it.
    pub buffered_for_entities_without_demand: BTreeMap<Arc<str>, usize>,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ShardingProducer<P> {
    settings: ShardingProducerSettings,
    identity: ProducerIdentity,
    node: UniqueAddress,
    path: Arc<str>,
    next_instance: u64,
    next_total: u64,
    life: Life,
    by_entity: BTreeMap<Arc<str>, u64>,
    links: BTreeMap<u64, Box<OutState<P>>>,
    shards: BTreeMap<Arc<str>, ShardLinks>,
    admission: Admission,
    demand: DemandSets,
    deadlines: Deadlines<u64>,
    contiguous: Contiguous,
    silent_since: Option<Instant>,
    stats: ProducerStats,
    scratch: Vec<producer_link::Effect<P>>,
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
        Self {
            settings,
            identity,
            node,
            path,
            next_instance: 1,
            next_total: 1,
            life: Life::Running,
            by_entity: BTreeMap::new(),
            links: BTreeMap::new(),
            shards: BTreeMap::new(),
            admission: Admission::default(),
            demand: DemandSets::default(),
            deadlines: Deadlines::new(),
            contiguous: Contiguous::default(),
            silent_since: None,
            stats: ProducerStats::default(),
            scratch: Vec::new(),
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        if self.life == Life::Closed {
            if let Input::Admit { ticket, frames, .. } = input {
                out.push(Effect::Refused { ticket, frames });
            }
            return;
        }
        match input {
            Input::Admit { ticket, entity, shard, frames, bytes, ack } => {
                let total = SeqNr(self.next_total);
                self.next_total += 1;
                let waiter = Waiter { ticket, total, frames, bytes, ack };
                self.on_admit(now, entity, shard, waiter);
            }
            Input::Withdraw { ticket, entity } => self.on_withdraw(now, ticket, &entity),
            Input::Received(message) => self.on_received(now, message, out),
            Input::ShardMoved(shard) => self.tell_shard(now, &shard, &producer_link::Input::Reassociate, out),
            Input::RouteChanged { shard, routed } => self.on_route_changed(now, &shard, routed, out),
            Input::Close => self.close(out),
            Input::Tick => self.on_tick(now, out),
        }
        self.admit_waiting(now, out);
        self.check_invariants();
    }

    /// When a tick next has work to do; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.life == Life::Closed { None } else { self.deadlines.next() }
    }

    /// Counters as of `now`; a silence that still lasts is counted.
    pub fn stats(&self, now: Instant) -> ProducerStats {
        let silence = self.silent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ProducerStats {
            longest_silence: self.stats.longest_silence.max(silence),
            unconfirmed: self.stats.sent - self.stats.confirmed,
            buffered: self.admission.buffered as u64,
            entities: self.links.len() as u64,
            ..self.stats
        }
    }

    /// The last of the contiguously confirmed totals.
    pub fn confirmed(&self) -> SeqNr {
        SeqNr(self.contiguous.last())
    }

    /// The number that the next message gets.
    pub fn current_seq_nr(&self) -> SeqNr {
        SeqNr(self.next_total)
    }

    /// Which entities could take a message at once; kept up to date message by message.
    pub fn demand(&self) -> &DemandSets {
        &self.demand
    }

    /// Shards that have links at present.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.keys()
    }

    /// A link for an entity that has none (S1).
    fn open(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>) -> u64 {
        let instance = self.next_instance;
        self.next_instance += 1;
        let mut link = ProducerLink::new(
            ProducerLinkSettings {
                mode: LinkMode::Sharding,
                stream_id: self.identity.stream_id,
                epoch: self.identity.epoch,
                resend_first_interval: self.settings.resend_first_interval,
                resend_first_unconfirmed_idle_timeout: self.settings.resend_first_unconfirmed_idle_timeout,
            },
            now,
        );
        let links = self.shards.entry(shard.clone()).or_default();
        links.instances.insert(instance);
        if links.unrouted {
            link.handle(now, producer_link::Input::RouteChanged(false), &mut self.scratch);
        }
        let controller = ControllerRef { node: self.node.clone(), path: self.path.clone(), instance };
        self.by_entity.insert(entity.clone(), instance);
        self.demand.entities_with_demand.insert(entity.clone());
        let state = OutState {
            entity,
            shard,
            controller,
            link,
            buffered: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            waiters: VecDeque::new(),
            bytes: 0,
            used_at: now,
            armed: Armed::default(),
            shown: None,
        };
        self.links.insert(instance, Box::new(state));
        instance
    }

    fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        if let Some(since) = self.silent_since.replace(now) {
            self.stats.longest_silence = self.stats.longest_silence.max(now.saturating_duration_since(since));
        }
        let known = self.links.get(&to.instance).is_some_and(|state| state.controller == to);
        if known {
            self.tell(now, to.instance, producer_link::Input::Received { from, epoch, message }, out);
        } else {
            self.stats.ignored += 1;
        }
        if self.stats.confirmed == self.stats.sent {
            self.silent_since = None;
        }
    }

    fn on_route_changed(&mut self, now: Instant, shard: &Arc<str>, routed: bool, out: &mut Vec<Effect<P>>) {
        if let Some(links) = self.shards.get_mut(shard) {
            links.unrouted = !routed;
            self.tell_shard(now, shard, &producer_link::Input::RouteChanged(routed), out);
        }
    }

    fn tell_shard(
        &mut self,
        now: Instant,
        shard: &Arc<str>,
        input: &producer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        let Some(links) = self.shards.get(shard) else { return };
        for instance in links.instances.clone() {
            self.tell(now, instance, input.clone(), out);
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some((entry, instance)) = self.deadlines.pop_due(now) {
            let Some(state) = self.links.get_mut(&instance) else { continue };
            if !state.armed.fired(entry) {
                continue;
            }
            let unused_for = now.saturating_duration_since(state.used_at);
            if state.is_unused() && unused_for >= self.settings.cleanup_unused_after {
                self.drop_link(instance, out);
            } else {
                self.tell(now, instance, producer_link::Input::Tick, out);
            }
        }
    }

    /// S6: the next message to the entity begins a new link, with numbers from 1, of the same stream.
    fn drop_link(&mut self, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.remove(&instance) else { return };
        self.by_entity.remove(&state.entity);
        self.demand.entities_with_demand.remove(&state.entity);
        self.demand.buffered_for_entities_without_demand.remove(&state.entity);
        if let Some(links) = self.shards.get_mut(&state.shard) {
            links.instances.remove(&instance);
            // A shard without a route keeps its entry, since the region does not tell again that it has none.
            if links.instances.is_empty() && !links.unrouted {
                self.shards.remove(&state.shard);
            }
        }
        if let Some(consumer) = state.link.consumer() {
            let message = ProducerStopped { controller: state.controller.clone(), epoch: self.identity.epoch };
            out.push(Effect::Stop { to: consumer.clone(), message });
        }
    }

    fn close(&mut self, out: &mut Vec<Effect<P>>) {
        self.life = Life::Closed;
        let instances: Vec<u64> = self.links.keys().copied().collect();
        for instance in instances {
            if let Some(state) = self.links.get_mut(&instance) {
                let entity = state.entity.clone();
                let refused = |waiter: Waiter<P>| Effect::Refused { ticket: waiter.ticket, frames: waiter.frames };
                out.extend(state.waiters.drain(..).map(refused));
                out.extend(state.unconfirmed.drain(..).map(|message| Effect::Undelivered {
                    ticket: message.ticket,
                    entity: entity.clone(),
                    total: message.total,
                }));
            }
            self.drop_link(instance, out);
        }
        self.admission = Admission::default();
    }

    /// Gives one link an input and, while it has demand, the entity's buffered messages; carries its effects on.
    fn tell(&mut self, now: Instant, instance: u64, input: producer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(&instance) else { return };
        state.link.handle(now, input, &mut self.scratch);
        while let Some((total, frames, ack)) = state.buffered.pop_front_if(|_| state.link.demand() > 0) {
            self.admission.buffered -= 1;
            state.link.handle(now, producer_link::Input::Accept { total, frames, ack }, &mut self.scratch);
        }
        self.carry_on(now, instance, out);
        self.refresh(instance);
    }

    fn carry_on(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(&instance) else { return };
        let mut fenced = None;
        for effect in self.scratch.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    self.stats.resent += u64::from(again);
                    let header = BatchHeader {
                        producer_id: self.identity.producer_id.clone(),
                        stream_id: self.identity.stream_id,
                        epoch: self.identity.epoch,
                        controller: state.controller.clone(),
                        ordered: true,
                        lowest,
                    };
                    let message = SequencedMessage { frame, first };
                    out.push(Effect::Transmit { entity: state.entity.clone(), header, message });
                }
                producer_link::Effect::ConfirmedUpTo(total) => {
                    while let Some(done) = state.unconfirmed.pop_front_if(|message| message.total <= total) {
                        state.bytes -= done.bytes;
                        state.used_at = now;
                        self.admission.bytes -= done.bytes;
                        self.admission.messages -= 1;
                        self.stats.confirmed += 1;
                        let took = now.saturating_duration_since(done.accepted_at);
                        self.stats.slowest_confirmation = self.stats.slowest_confirmation.max(took);
                        self.contiguous.insert(done.total.get());
                        out.push(Effect::Confirmed { ticket: done.ticket, total: done.total });
                    }
                }
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => fenced = Some(newer),
            }
        }
        if let Some(newer) = fenced {
            out.push(Effect::Fenced { newer });
            self.close(out);
        }
    }

    /// Brings the values derived from one entity's state up to date: sets, queues, deadline.
    fn refresh(&mut self, instance: u64) {
        let Some(state) = self.links.get_mut(&instance) else { return };
        let shown = (!state.has_demand()).then_some(state.buffered.len());
        if shown != state.shown {
            state.shown = shown;
            let without = &mut self.demand.buffered_for_entities_without_demand;
            match shown {
                Some(count) => {
                    self.demand.entities_with_demand.remove(&state.entity);
                    without.insert(state.entity.clone(), count);
                }
                None => {
                    without.remove(&state.entity);
                    self.demand.entities_with_demand.insert(state.entity.clone());
                }
            }
        }
        self.admission.place(&self.settings, instance, state);
        let cleanup_at = state.is_unused().then(|| state.used_at + self.settings.cleanup_unused_after);
        let deadline = [state.link.next_deadline(), cleanup_at].into_iter().flatten().min();
        self.deadlines.arm(instance, &mut state.armed, deadline);
    }

    fn check_invariants(&self) {
        debug_assert_eq!(self.by_entity.len(), self.links.len());
        debug_assert!(self.admission.buffered <= self.settings.buffer_size);
        #[cfg(test)]
        {
            let bytes: usize = self.links.values().map(|state| state.bytes).sum();
            assert_eq!(bytes, self.admission.bytes);
            let buffered: usize = self.links.values().map(|state| state.buffered.len()).sum();
            assert_eq!(buffered, self.admission.buffered);
        }
    }
}
