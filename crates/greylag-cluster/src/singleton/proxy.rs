//! Routes messages to the singleton, and keeps them while the node of the instance is not known.
//!
//! The instance runs on the oldest member with the role, if at all. The proxy asks that member repeatedly until it
//! confirms that the instance runs there; then messages flow, kept ones first. When another member becomes the oldest,
//! or the oldest reports that the instance ends, the proxy keeps messages and asks anew. The proxy keeps a bounded
//! number and drops the oldest message when the buffer is full. Source: cluster P8.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};

use super::ProxyMessage;
use crate::membership::view::MembershipView;
use crate::settings::SingletonSettings;

/// An input to the [`SingletonProxy`]: the membership, messages for the singleton, and answers to its questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyInput<M> {
    /// The membership, whenever it changed.
    View(Arc<MembershipView>),
    /// A message for the singleton.
    Message(M),
    /// A node reported whether the instance runs there.
    Identified {
        /// The node.
        from: UniqueAddress,
        /// Its report; questions are not for a proxy.
        message: ProxyMessage,
    },
    /// This node shuts down.
    Stop,
    /// Time has passed: ask again if due.
    Tick,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyEffect<M> {
    /// Ask this node whether the instance runs there.
    Identify(UniqueAddress),
    /// Send the message to the instance on this node.
    Forward(UniqueAddress, M),
    /// Make the message a dead letter; it was accepted from its sender before.
    Drop(M, DeadLetterReason),
    /// Refuse the message that was just handed in, and make it a dead letter.
    Refuse(M, DeadLetterReason),
}

/// Routes the messages of one node to one singleton.
#[derive(Debug)]
pub struct SingletonProxy<M> {
    role: Option<String>,
    interval: Duration,
    capacity: usize,
    /// The oldest member, which runs the instance if any member does.
    oldest: Option<UniqueAddress>,
    /// The instance that `oldest` reported.
    instance: Option<u64>,
    identify_at: Option<Instant>,
    buffer: VecDeque<M>,
    /// Whether this node was seen among the members.
    joined: bool,
    stopped: bool,
}

impl<M> SingletonProxy<M> {
    /// A proxy that has seen nothing of the cluster.
    pub fn new(settings: &SingletonSettings) -> Self {
        let proxy = &settings.proxy;
        Self {
            role: proxy.role.clone().or_else(|| settings.role.clone()),
            interval: proxy.identification_interval.max(Duration::from_millis(1)),
            capacity: proxy.buffer_size.min(10_000),
            oldest: None,
            instance: None,
            identify_at: None,
            buffer: VecDeque::new(),
            joined: false,
            stopped: false,
        }
    }

    /// The node that runs the instance, to which messages go at once.
    pub fn identified(&self) -> Option<&UniqueAddress> {
        self.oldest.as_ref().filter(|_| self.instance.is_some())
    }

    /// The number of kept messages.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: ProxyInput<M>, out: &mut Vec<ProxyEffect<M>>) {
        match input {
            ProxyInput::View(view) => self.on_view(now, &view, out),
            ProxyInput::Message(message) => self.on_message(message, out),
            ProxyInput::Identified { from, message } => self.on_identified(now, &from, message, out),
            ProxyInput::Stop => self.stop(out),
            ProxyInput::Tick => {
                if self.identify_at.is_some_and(|at| at <= now) {
                    self.identify(now, out);
                }
            }
        }
        self.check_invariants();
    }

    /// Source: cluster P8.
    fn check_invariants(&self) {
        debug_assert!(self.buffer.len() <= self.capacity, "no more messages are kept than the setting allows");
        debug_assert!(self.instance.is_none() || self.oldest.is_some(), "an instance runs on the oldest");
        debug_assert!(self.instance.is_none() || self.buffer.is_empty(), "no message waits for a known instance");
        let asks = self.oldest.is_some() && self.instance.is_none();
        debug_assert_eq!(self.identify_at.is_some(), asks, "the oldest is asked until it tells of its instance");
        let is_empty = self.oldest.is_none() && self.buffer.is_empty();
        debug_assert!(!self.stopped || is_empty, "a proxy that has stopped keeps nothing");
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.identify_at
    }

    fn on_view(&mut self, now: Instant, view: &MembershipView, out: &mut Vec<ProxyEffect<M>>) {
        let is_member = view.self_member().is_some();
        if self.joined && !is_member {
            return self.stop(out);
        }
        self.joined |= is_member;
        let oldest = view.oldest(self.role.as_deref()).map(|member| &member.address);
        if !self.stopped && oldest != self.oldest.as_ref() {
            self.oldest = oldest.cloned();
            self.identify(now, out);
        }
    }

    fn on_message(&mut self, message: M, out: &mut Vec<ProxyEffect<M>>) {
        if self.stopped {
            return out.push(ProxyEffect::Refuse(message, DeadLetterReason::ShuttingDown));
        }
        if let Some(host) = self.identified() {
            return out.push(ProxyEffect::Forward(host.clone(), message));
        }
        if self.capacity == 0 {
            return out.push(ProxyEffect::Refuse(message, DeadLetterReason::ProxyBufferFull));
        }
        if self.buffer.len() >= self.capacity
            && let Some(oldest) = self.buffer.pop_front()
        {
            out.push(ProxyEffect::Drop(oldest, DeadLetterReason::ProxyBufferFull));
        }
        self.buffer.push_back(message);
    }

    fn on_identified(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        message: ProxyMessage,
        out: &mut Vec<ProxyEffect<M>>,
    ) {
        // Ignore a node that is not the oldest any more, or not yet as far as this node knows.
        if self.oldest.as_ref() != Some(from) {
            return;
        }
        match message {
            ProxyMessage::Here { instance } => {
                self.instance = Some(instance);
                self.identify_at = None;
                out.extend(self.buffer.drain(..).map(|message| ProxyEffect::Forward(from.clone(), message)));
            }
            // Ignore a message about an earlier instance.
            ProxyMessage::NotHere { instance } => {
                if self.instance.is_some() && instance.is_none_or(|ended| self.instance == Some(ended)) {
                    self.identify(now, out);
                }
            }
            ProxyMessage::Identify => {}
        }
    }

    /// Asks the oldest, if there is one, now and then at every interval.
    fn identify(&mut self, now: Instant, out: &mut Vec<ProxyEffect<M>>) {
        self.instance = None;
        self.identify_at = self.oldest.is_some().then(|| now + self.interval);
        out.extend(self.oldest.clone().map(ProxyEffect::Identify));
    }

    /// Drops the messages that are still kept as dead letters.
    fn stop(&mut self, out: &mut Vec<ProxyEffect<M>>) {
        self.stopped = true;
        (self.oldest, self.instance, self.identify_at) = (None, None, None);
        let lost = self.buffer.drain(..);
        out.extend(lost.map(|message| ProxyEffect::Drop(message, DeadLetterReason::ShuttingDown)));
    }
}
