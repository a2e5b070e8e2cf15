//! One peer: its association machine, its queues, and the execution of the machine's effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greylag_core::{DeadLetterReason, NodeAddress, Uid, UniqueAddress};
use tokio::sync::Notify;

use super::fault::FaultCell;
use super::numbered::{Fed, NotNumbered, Numbered};
use crate::association::{Association, Effect, Event, Input, RetiredUid};
use crate::dials::warnings::DialWarnings;
use crate::driver::grpc::local::{Announcement, LocalNode};
use crate::holder::Holder;
use crate::lanes::lane::{Lane, LaneKind, lane_key_hash};
use crate::lanes::queue::{Bounds, Item, LaneQueue};
use crate::messages::envelope::EncodedMessage;
use crate::reliable::SenderInput;
use crate::remoting::{AskError, PeerInfo, QuarantineReason, TransportEvent};
use crate::wire::{self, Frame};

/// The state of one peer.
pub(crate) struct Peer {
    pub(crate) address: NodeAddress,
    pub(crate) fault: FaultCell,
    /// Decides which failing dial is worth a warning (cluster T31).
    pub(crate) dial_warnings: Mutex<DialWarnings>,
    pub(crate) numbered: Numbered,
    machine: Mutex<Association>,
    control: Arc<LaneQueue>,
    ordinary: Vec<Arc<LaneQueue>>,
    large: Arc<LaneQueue>,
    /// The newest stream of each lane.
    links: Mutex<BTreeMap<Lane, (u64, Arc<LinkEnd>)>>,
    deadline_moved: Notify,
    is_closed: AtomicBool,
    /// Whether the peer was dropped from the table; its address may have a new peer. Written under the locks of machine
    /// and queues.
    is_dropped: AtomicBool,
}

/// The outcome of dropping a caller that was never reached, once its streams had ended.
pub(crate) enum DropOutcome {
    /// The peer is closed. `retired`: its processes that must not come back; `blocked`: those of them that were
    /// blocked.
    Dropped { retired: Vec<RetiredUid>, blocked: Vec<UniqueAddress> },
    /// The peer stays: this node quarantined its process, which is remembered for longer than its streams last.
    Kept,
}

/// Tells the task of a stream to end.
#[derive(Default)]
pub(crate) struct LinkEnd {
    /// End in order: the peer may finish reading.
    pub(crate) closed: Notify,
    /// End at once, as a fault: messages under way are lost.
    pub(crate) killed: Notify,
}

/// What is known of an address before it has a peer.
pub(crate) struct Remembered {
    /// The processes that must not come back there.
    pub(crate) retired: Vec<RetiredUid>,
    /// The members that hold the address.
    pub(crate) holders: Vec<Holder>,
    /// The processes that were removed from the cluster.
    pub(crate) tombstones: Vec<Uid>,
}

/// An order to dial a lane; the task that carries it out ends as `end` says.
pub(crate) struct Dial {
    pub(crate) lane: Lane,
    pub(crate) seq: u64,
    pub(crate) end: Arc<LinkEnd>,
}

/// The machine's decision on a Hello.
pub(crate) type Verdict = Result<Admission, Refused>;

/// How a Hello was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The caller runs at its address, as far as is known.
    Known,
    /// The caller may ask to join; its answer to a dial decides whether it runs there.
    ForJoin,
}

/// Why a Hello was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The caller is quarantined (with a reason unless it left in order), or another process runs in its place.
    Dead(Option<QuarantineReason>),
    /// A member holds the caller's address; with the detail for the caller.
    Held(UniqueAddress, String),
}

impl Peer {
    /// The peer of an address, with what is remembered of the address.
    pub(crate) fn new(node: &LocalNode, address: NodeAddress, remembered: Remembered) -> Self {
        let settings = &node.settings;
        let bytes = settings.outbound_queue_bytes;
        let queue = |kind| Arc::new(LaneQueue::new(Bounds { items: settings.queue_size(kind), bytes }));
        // Seed the jitter: lanes to a thousand peers must not be dialled again in step (cluster C4).
        let seed = node.endpoint.self_address.uid().get() ^ lane_key_hash(&address.to_string(), "");
        let machine = Association::new(settings.clone(), seed).remembering(remembered.retired);
        let machine = machine.held_by(remembered.holders);
        let machine = machine.tombstoned(remembered.tombstones.into_iter().collect());
        let control = queue(LaneKind::Control);
        Self {
            fault: FaultCell::default(),
            dial_warnings: Mutex::default(),
            numbered: Numbered::new(settings, address.clone(), control.clone()),
            machine: Mutex::new(machine),
            control,
            ordinary: (0..settings.outbound_lanes).map(|_| queue(LaneKind::Ordinary)).collect(),
            large: queue(LaneKind::Large),
            links: Mutex::default(),
            deadline_moved: Notify::new(),
            is_closed: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            address,
        }
    }

    pub(crate) fn queue(&self, lane: Lane) -> &Arc<LaneQueue> {
        match lane.kind() {
            LaneKind::Control => &self.control,
            LaneKind::Ordinary => &self.ordinary[usize::from(lane.index()) % self.ordinary.len()],
            LaneKind::Large => &self.large,
        }
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let ordinary = u16::try_from(self.ordinary.len()).unwrap_or(u16::MAX);
        [Lane::CONTROL, Lane::LARGE].into_iter().chain((0..ordinary).map(Lane::ordinary))
    }

    /// Whether this incarnation runs, as far as is known, and may be spoken to.
    pub(crate) fn is_current(&self, uid: Uid) -> bool {
        let machine = self.machine.lock().expect(NO_PANIC);
        machine.peer() == Some(uid) && !machine.is_dead(uid)
    }

    /// Keeps what a handshake with this incarnation taught, and tells the listeners. Returns false and does nothing if
    /// the incarnation is dead by now, or another one runs.
    pub(crate) fn introduce(&self, node: &LocalNode, info: PeerInfo) -> bool {
        // Held throughout, so that the news of one incarnation cannot come after that of the next.
        let machine = self.machine.lock().expect(NO_PANIC);
        let uid = info.peer.uid();
        if machine.peer() != Some(uid) || machine.is_dead(uid) {
            return false;
        }
        let info = node.endpoint.learn_peer(info);
        node.announce(Announcement::Event(TransportEvent::PeerHandshake(info)));
        true
    }

    /// Says Hello again on the stream of a lane, if one is open: this node has learned its cluster's id.
    pub(crate) fn greet_again(&self, node: &LocalNode, lane: Lane) {
        let seq = self.links.lock().expect(NO_PANIC).get(&lane).map_or(0, |(seq, _)| *seq);
        let hello = node.hello(&self.address, lane, seq);
        self.queue(lane).notify(wire::write_frame(&Frame::Hello(hello)));
    }

    /// Breaks every stream to the peer, as a fault: the peer gets no reason.
    pub(crate) fn kill_streams(&self) {
        self.links.lock().expect(NO_PANIC).values().for_each(|(_, end)| end.killed.notify_one());
    }

    /// Ends the task that keeps the deadlines of this peer.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.deadline_moved.notify_one();
    }

    /// Whether the peer can be dropped, as far as its machine knows.
    pub(crate) fn is_droppable(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_droppable()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Closes the peer for good, if nothing is queued, waits or is under way; returns the retired uids to be
    /// remembered.
    pub(crate) fn close_if_idle(&self) -> Option<Vec<RetiredUid>> {
        let machine = self.machine.lock().expect(NO_PANIC);
        if !machine.is_droppable() || !self.close_unused() {
            return None;
        }
        let retired = machine.retired_uids().collect();
        drop(machine);
        self.close();
        Some(retired)
    }

    /// Closes the peer of a process that has called and was never reached. `None`: something is under way.
    pub(crate) fn close_caller(&self) -> Option<DropOutcome> {
        let machine = self.machine.lock().expect(NO_PANIC);
        if machine.has_quarantined() {
            return Some(DropOutcome::Kept);
        }
        if !machine.is_unreached() || !self.close_unused() {
            return None;
        }
        let left = machine.left_in_order().collect::<Vec<_>>();
        let blocked = left.iter().map(|uid| self.incarnation(*uid)).collect();
        let retired =
            machine.retired_uids().chain(left.iter().map(|uid| RetiredUid { uid: *uid, may_return: false })).collect();
        drop(machine);
        self.close();
        Some(DropOutcome::Dropped { retired, blocked })
    }

    /// Closes the queues, if no message is queued and none waits.
    fn close_unused(&self) -> bool {
        let queues: Vec<&LaneQueue> = self.lanes().map(|lane| &**self.queue(lane)).collect();
        let closing = || LaneQueue::close_unused(&queues, || self.is_dropped.store(true, Ordering::Release));
        !self.fault.is_set() && self.numbered.close_unused(closing)
    }

    /// Whether a stream to the peer was ever begun.
    #[cfg(test)]
    pub(crate) fn was_dialled(&self) -> bool {
        !self.links.lock().expect(NO_PANIC).is_empty()
    }

    /// Gives the machine an input and carries out its effects, except that `dial` carries out dials. Returns the
    /// machine's decision if the input was a Hello; an error gives the input back, since the peer was dropped.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(crate) fn handle(&self, node: &LocalNode, input: Input, dial: &dyn Fn(Dial)) -> Result<Option<Verdict>, Input> {
        let now = Instant::now();
        let mut verdict = None;
        let mut effects = Vec::new();
        // Carry effects out under the lock, so that those of two inputs cannot cross; no effect waits.
        let mut machine = self.machine.lock().expect(NO_PANIC);
        if self.is_dropped() {
            return Err(input);
        }
        let deadline = machine.next_deadline();
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            machine.handle(now, input, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Admit => verdict = Some(Ok(Admission::Known)),
                    Effect::AdmitForJoin => verdict = Some(Ok(Admission::ForJoin)),
                    Effect::Refuse { reason } => verdict = Some(Err(Refused::Dead(reason))),
                    Effect::Hold { holder, detail } => verdict = Some(Err(Refused::Held(holder, detail))),
                    Effect::AskTraffic { lane, seq } => {
                        let any = self.queue(lane).was_used();
                        inputs.push_back(Input::Traffic { lane, seq, any });
                    }
                    Effect::Rest { lane } => {
                        if !self.queue(lane).rest() {
                            inputs.push_back(Input::Wanted { lane });
                        }
                    }
                    effect => inputs.extend(self.carry_out(node, now, effect, dial)),
                }
            }
        }
        if machine.next_deadline() != deadline {
            self.deadline_moved.notify_one();
        }
        Ok(verdict)
    }

    /// Feeds the sender of numbered messages; returns the inputs for the association that follow, and the outcome of a
    /// message. Callable under the association's lock.
    pub(crate) fn feed_numbered(
        &self,
        node: &LocalNode,
        now: Instant,
        input: SenderInput<Arc<EncodedMessage>>,
    ) -> (Vec<Input>, Result<(), NotNumbered>) {
        let Fed { inputs, outcome, is_deadline_moved } = self.numbered.feed(node, now, input);
        if is_deadline_moved {
            self.deadline_moved.notify_one();
        }
        (inputs, outcome)
    }

    /// Waits until the association or the sender of numbered messages has work to do; returns false if their deadlines
    /// have moved meanwhile, or the peer is closed.
    pub(crate) async fn is_due(&self) -> bool {
        let machine = self.machine.lock().expect(NO_PANIC).next_deadline();
        let deadline = machine.into_iter().chain(self.numbered.next_deadline()).min();
        let due = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => true,
            () = self.deadline_moved.notified() => false,
        }
    }

    /// Whether the task that keeps the deadlines has to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Executes one effect; returns the machine's next inputs.
    fn carry_out(&self, node: &LocalNode, now: Instant, effect: Effect, dial: &dyn Fn(Dial)) -> Vec<Input> {
        let numbered = |input| self.feed_numbered(node, now, input).0;
        match effect {
            Effect::Dial { lane, seq } => {
                let end = Arc::new(LinkEnd::default());
                self.links.lock().expect(NO_PANIC).insert(lane, (seq, end.clone()));
                dial(Dial { lane, seq, end });
            }
            Effect::Open { lane, seq, uid } => {
                self.queue(lane).open(seq, uid);
                if lane == Lane::CONTROL {
                    return numbered(SenderInput::Opened { stream: seq });
                }
            }
            Effect::Shut { lane, seq } => {
                self.queue(lane).shut(seq);
                if lane == Lane::CONTROL {
                    return numbered(SenderInput::Closed { stream: seq });
                }
            }
            Effect::Close { lane, seq } => {
                self.queue(lane).end(seq);
                let links = self.links.lock().expect(NO_PANIC);
                if let Some((_, end)) = links.get(&lane).filter(|(newest, _)| *newest == seq) {
                    end.closed.notify_one();
                }
                drop(links);
                if lane == Lane::CONTROL {
                    return numbered(SenderInput::Closed { stream: seq });
                }
            }
            Effect::NewIncarnation { uid, old, incarnation } => {
                tracing::info!(peer = %self.address, %uid, ?old, incarnation, "a new incarnation runs");
                if let Some(old) = old {
                    self.retire(node, old);
                }
                self.numbered.expect_from(uid);
                return numbered(SenderInput::Incarnation { uid });
            }
            Effect::FailQueue { lane, reason } => {
                for item in self.queue(lane).extract(|_| true) {
                    self.drop_item(node, now, lane, &item, reason);
                }
                if lane == Lane::CONTROL && reason == DeadLetterReason::HandshakeRejected {
                    return numbered(SenderInput::Refused);
                }
            }
            Effect::Block { uid, reason } => {
                let peer = self.incarnation(uid);
                node.block(&peer);
                let error = match reason {
                    QuarantineReason::RemovedFromMembership => AskError::PeerRemoved,
                    QuarantineReason::DeliveryGaveUp | QuarantineReason::Manual => AskError::Quarantined,
                };
                node.endpoint.asks.fail_peer(&peer, &error);
                return numbered(SenderInput::Quarantined { uid });
            }
            Effect::Ignored { uid } => {
                tracing::debug!(peer = %self.address, %uid, "no need to quarantine what has been replaced");
            }
            Effect::HandBack { uid } => self.hand_back(node, uid, DeadLetterReason::Quarantined),
            Effect::Notify { uid, reason } => {
                let from = node.endpoint.self_address.clone();
                let frame = wire::write_frame(&Frame::Quarantined { from, to: self.incarnation(uid), reason });
                self.control.notify(frame.clone());
                node.streams.notify(&self.incarnation(uid), &frame);
            }
            Effect::Forget { uid } => {
                // End the streams of the incarnation: one that was silent all the time would be read again.
                node.streams.end_all_of(&self.incarnation(uid));
                node.unblock(&self.incarnation(uid));
            }
            Effect::Publish(event) => self.publish(node, event),
            Effect::Admit
            | Effect::AdmitForJoin
            | Effect::Hold { .. }
            | Effect::Refuse { .. }
            | Effect::Rest { .. }
            | Effect::AskTraffic { .. } => {}
        }
        Vec::new()
    }

    /// Ends the streams of an incarnation that is gone; envelopes for it alone are dropped or go back to their senders.
    fn retire(&self, node: &LocalNode, old: Uid) {
        node.streams.end_all_of(&self.incarnation(old));
        self.hand_back(node, old, DeadLetterReason::StaleIncarnation);
    }

    /// Takes the items that wait for a process that was quarantined or replaced (see `reason`) out of the queues, and
    /// offers them back.
    pub(crate) fn hand_back(&self, node: &LocalNode, uid: Uid, reason: DeadLetterReason) {
        let (peer, now) = (self.incarnation(uid), Instant::now());
        let mut unsent = Vec::new();
        for lane in self.lanes() {
            for item in self.queue(lane).extract(|item| item.target() == Some(uid)) {
                match item {
                    Item::Envelope(envelope) => unsent.push(envelope),
                    other => self.drop_item(node, now, lane, &other, reason),
                }
            }
        }
        // No writer holds items any more, so this also fails questions that were being written when the others failed.
        let is_replaced = reason == DeadLetterReason::StaleIncarnation;
        let error = if is_replaced { AskError::PeerRestarted } else { AskError::Quarantined };
        node.endpoint.asks.fail_peer(&peer, &error);
        node.announce(Announcement::HandBack { peer, unsent, reason });
    }

    pub(crate) fn drop_item(&self, node: &LocalNode, now: Instant, lane: Lane, item: &Item, reason: DeadLetterReason) {
        match item {
            Item::Envelope(envelope) => node.endpoint.drop_unsent(now, lane, &self.address, envelope, reason),
            Item::Reply { ask_id, .. } => {
                let what = || format!("the answer to question {ask_id}");
                node.endpoint.count_dead_letter(now, reason, Some(lane), Some(&self.address), 1, what);
            }
            Item::Reliable { .. } | Item::Flush { .. } | Item::Terminating => {}
        }
    }

    fn publish(&self, node: &LocalNode, event: Event) {
        let address = self.address.clone();
        let event = match event {
            Event::LinkLost { uid, lane } => TransportEvent::LinkLost { peer: self.incarnation(uid), lane },
            Event::ThisNodeQuarantined { by, reason } => {
                TransportEvent::ThisNodeQuarantined { by: self.incarnation(by), reason }
            }
            Event::HandshakeRejected { code, holder, detail } => {
                if code.is_retryable() {
                    // Log at debug level: membership logs which member it waits for, at its own pace.
                    tracing::debug!(peer = %address, ?code, detail, "the handshake was refused for now");
                } else {
                    tracing::warn!(peer = %address, ?code, detail, "the handshake was refused");
                }
                TransportEvent::HandshakeRejected { address, code, holder, detail }
            }
            Event::AddressHeld { holder, claimant } => {
                TransportEvent::AddressHeld { holder, claimant: self.incarnation(claimant) }
            }
            Event::Quarantined { uid, reason, harmless } => {
                let peer = self.incarnation(uid);
                tracing::info!(%peer, ?reason, harmless, "quarantined");
                TransportEvent::Quarantined { peer, reason, harmless }
            }
            Event::PeerTerminating { uid } => {
                // The peer opens no stream any more; on open streams it still acknowledges what it reads.
                for lane in self.lanes().filter(|lane| !self.queue(*lane).is_open()) {
                    node.shutdown.terminating_done(&address, lane);
                }
                TransportEvent::PeerTerminating(self.incarnation(uid))
            }
        };
        node.announce(Announcement::Event(event));
    }

    /// Whether the peer has announced its own end, and so accepts no stream any more.
    pub(crate) fn is_terminating(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_terminating()
    }

    /// Whether this incarnation has announced its end, or has left in order.
    pub(crate) fn has_taken_leave(&self, uid: Uid) -> bool {
        self.machine.lock().expect(NO_PANIC).has_taken_leave(uid)
    }

    /// Whether the last process known at the address has taken leave.
    pub(crate) fn is_vacant(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_vacant()
    }

    fn incarnation(&self, uid: Uid) -> UniqueAddress {
        UniqueAddress::new(self.address.clone(), uid)
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
