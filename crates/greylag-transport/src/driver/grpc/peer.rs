//! One peer: its association machine, its queues, and the execution of the machine's effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greylag_core::{DeadLetterReason, NodeAddress, Uid, UniqueAddress};
use tokio::sync::Notify;

use super::fault::FaultCell;
use super::link;
use super::reliable::Numbered;
use super::shared::{Announcement, Shared};
use crate::association::{Association, Effect, Event, Input, RetiredUid};
use crate::dial_warnings::DialWarnings;
use crate::envelope::Envelope;
use crate::lane::{Lane, LaneKind, lane_key_hash};
use crate::queue::{Bounds, Item, LaneQueue, Pushed, Waiter};
use crate::reliable::SenderInput;
use crate::remoting::{AskError, PeerInfo, QuarantineReason, TransportEvent};
use crate::wire::{self, Frame};

/// The state of one peer.
pub(super) struct Peer {
    pub(super) address: NodeAddress,
    pub(super) fault: FaultCell,
    /// Decides which failing dial is worth a warning (cluster T31).
    pub(super) dial_warnings: Mutex<DialWarnings>,
    pub(super) numbered: Numbered,
    machine: Mutex<Association>,
    control: Arc<LaneQueue>,
    ordinary: Vec<Arc<LaneQueue>>,
    large: Arc<LaneQueue>,
    /// The newest stream of each lane.
    links: Mutex<BTreeMap<Lane, (u64, Arc<LinkEnd>)>>,
    pub(super) deadline_moved: Notify,
    is_closed: AtomicBool,
    /// Whether the peer was dropped from the table; its address may have a new peer. Written under the locks of machine
    /// and queues.
    is_dropped: AtomicBool,
}

/// The outcome of dropping a caller that was never reached, once its streams had ended.
pub(super) enum DropOutcome {
    /// The peer is closed. `retired`: its processes that must not come back; `blocked`: those of them that were
    /// blocked.
    Dropped { retired: Vec<RetiredUid>, blocked: Vec<UniqueAddress> },
    /// The peer stays: this node quarantined its process, which is remembered for longer than its streams last.
    Kept,
}

/// Tells the task of a stream to end.
#[derive(Default)]
pub(super) struct LinkEnd {
    /// End in order: the peer may finish reading.
    pub(super) closed: Notify,
    /// End at once, as a fault: messages under way are lost.
    pub(super) killed: Notify,
}

/// The machine's decision on a Hello.
type Verdict = Result<Admission, Refused>;

/// How a Hello was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The caller runs at its address, as far as is known.
    Known,
    /// The caller may ask to join; its answer to a dial decides whether it runs there.
    ForJoin,
}

/// Why a Hello was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// The caller is quarantined (with a reason unless it left in order), or another process runs in its place.
    Dead(Option<QuarantineReason>),
    /// A member holds the caller's address; with the detail for the caller.
    Held(UniqueAddress, String),
}

impl Peer {
    /// Makes the peer of an address, with what is remembered of the address; its deadlines are kept on the control
    /// runtime.
    pub(super) fn start(shared: &Arc<Shared>, address: NodeAddress) -> Arc<Self> {
        let settings = &shared.settings;
        let bytes = settings.outbound_queue_bytes;
        let queue = |kind| Arc::new(LaneQueue::new(Bounds { items: settings.queue_size(kind), bytes }));
        // Seed the jitter: lanes to a thousand peers must not be dialled again in step (cluster C4).
        let seed = shared.endpoint.self_address.uid().get() ^ lane_key_hash(&address.to_string(), "");
        let retired = shared.retired_uids.lock().expect(NO_PANIC).take(&address);
        let machine = Association::new(settings.clone(), seed).remembering(retired);
        let machine = machine.held_by(shared.holders.of(&address));
        let machine = machine.tombstoned(shared.tombstones.of(&address).into_iter().collect());
        let peer = Arc::new(Self {
            address,
            fault: FaultCell::default(),
            dial_warnings: Mutex::default(),
            numbered: Numbered::new(settings),
            machine: Mutex::new(machine),
            control: queue(LaneKind::Control),
            ordinary: (0..settings.outbound_lanes).map(|_| queue(LaneKind::Ordinary)).collect(),
            large: queue(LaneKind::Large),
            links: Mutex::default(),
            deadline_moved: Notify::new(),
            is_closed: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
        });
        shared.control.spawn(keep_deadlines(shared.clone(), peer.clone()));
        peer
    }

    pub(super) fn queue(&self, lane: Lane) -> &Arc<LaneQueue> {
        match lane.kind() {
            LaneKind::Control => &self.control,
            LaneKind::Ordinary => &self.ordinary[usize::from(lane.index()) % self.ordinary.len()],
            LaneKind::Large => &self.large,
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let ordinary = u16::try_from(self.ordinary.len()).unwrap_or(u16::MAX);
        [Lane::CONTROL, Lane::LARGE].into_iter().chain((0..ordinary).map(Lane::ordinary))
    }

    /// Queues an item, and has the lane dialled if no stream takes from it. The item comes back if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(super) fn push(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
        item: Item,
        force: bool,
    ) -> Result<(), Item> {
        if self.queue(lane).push(item, force)? == Pushed::Wanted {
            self.input(shared, Input::Wanted { lane });
        }
        Ok(())
    }

    /// Queues an envelope, and has the lane dialled if no stream takes from it. Returns false, and leaves the envelope
    /// in its place, if there is no room.
    pub(super) fn push_envelope(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
        envelope: &mut Option<Envelope>,
        force: bool,
        waiting: Option<Waiter<'_>>,
    ) -> bool {
        let pushed = self.queue(lane).push_envelope(envelope, force, waiting);
        if pushed == Some(Pushed::Wanted) {
            self.input(shared, Input::Wanted { lane });
        }
        pushed.is_some()
    }

    /// Whether this incarnation runs, as far as is known, and may be spoken to.
    pub(super) fn is_current(&self, uid: Uid) -> bool {
        let machine = self.machine.lock().expect(NO_PANIC);
        machine.peer() == Some(uid) && !machine.is_dead(uid)
    }

    /// Keeps what a handshake with this incarnation taught, and tells the listeners. Returns false and does nothing if
    /// the incarnation is dead by now, or another one runs.
    pub(super) fn introduce(&self, shared: &Shared, info: PeerInfo) -> bool {
        // Held throughout, so that the news of one incarnation cannot come after that of the next.
        let machine = self.machine.lock().expect(NO_PANIC);
        let uid = info.peer.uid();
        if machine.peer() != Some(uid) || machine.is_dead(uid) {
            return false;
        }
        let info = shared.endpoint.learn_peer(info);
        shared.announce(Announcement::Event(TransportEvent::PeerHandshake(info)));
        true
    }

    /// Gives the machine an input and carries out its effects.
    pub(super) fn input(self: &Arc<Self>, shared: &Arc<Shared>, input: Input) {
        self.run(shared, input);
    }

    /// Asks the machine for its decision on a Hello.
    pub(super) fn hello(self: &Arc<Self>, shared: &Arc<Shared>, uid: Uid, host_id: Option<String>) -> Verdict {
        self.run(shared, Input::Hello { uid, host_id }).unwrap_or(Err(Refused::Dead(None)))
    }

    /// Says Hello again on the stream of a lane, if one is open: this node has learned its cluster's id.
    pub(super) fn greet_again(&self, shared: &Shared, lane: Lane) {
        let seq = self.links.lock().expect(NO_PANIC).get(&lane).map_or(0, |(seq, _)| *seq);
        let hello = link::hello(shared, self, lane, seq);
        self.queue(lane).notify(wire::write_frame(&Frame::Hello(hello)));
    }

    /// Breaks every stream to the peer, as a fault: the peer gets no reason.
    pub(super) fn kill_streams(&self) {
        self.links.lock().expect(NO_PANIC).values().for_each(|(_, end)| end.killed.notify_one());
    }

    /// Ends the task that keeps the deadlines of this peer.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.deadline_moved.notify_one();
    }

    /// Whether the peer can be dropped, as far as its machine knows.
    pub(super) fn is_droppable(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_droppable()
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Closes the peer for good, if nothing is queued, waits or is under way; returns the retired uids to be
    /// remembered.
    pub(super) fn close_if_idle(&self) -> Option<Vec<RetiredUid>> {
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
    pub(super) fn close_caller(&self) -> Option<DropOutcome> {
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
    pub(super) fn was_dialled(&self) -> bool {
        !self.links.lock().expect(NO_PANIC).is_empty()
    }

    fn run(self: &Arc<Self>, shared: &Arc<Shared>, input: Input) -> Option<Verdict> {
        let now = Instant::now();
        let mut verdict = None;
        let mut effects = Vec::new();
        // Carry effects out under the lock, so that those of two inputs cannot cross; no effect waits.
        let mut machine = self.machine.lock().expect(NO_PANIC);
        if self.is_dropped() {
            drop(machine);
            shared.await_drop();
            return shared.peer(&self.address).run(shared, input);
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
                    effect => inputs.extend(self.carry_out(shared, now, effect)),
                }
            }
        }
        if machine.next_deadline() != deadline {
            self.deadline_moved.notify_one();
        }
        verdict
    }

    /// Executes one effect; returns the machine's next inputs.
    fn carry_out(self: &Arc<Self>, shared: &Arc<Shared>, now: Instant, effect: Effect) -> Vec<Input> {
        let numbered = |input| self.run_numbered(shared, now, input);
        match effect {
            Effect::Dial { lane, seq } => {
                let runtime = if lane == Lane::CONTROL { &shared.control } else { &shared.data };
                let end = Arc::new(LinkEnd::default());
                self.links.lock().expect(NO_PANIC).insert(lane, (seq, end.clone()));
                runtime.spawn(link::run(shared.clone(), self.clone(), lane, seq, end));
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
                    self.retire(shared, old);
                }
                self.numbered.expect_from(uid);
                return numbered(SenderInput::Incarnation { uid });
            }
            Effect::FailQueue { lane, reason } => {
                for item in self.queue(lane).extract(|_| true) {
                    self.drop_item(shared, now, lane, &item, reason);
                }
                if lane == Lane::CONTROL && reason == DeadLetterReason::HandshakeRejected {
                    return numbered(SenderInput::Refused);
                }
            }
            Effect::Block { uid, reason } => {
                let peer = self.incarnation(uid);
                shared.block(&peer);
                let error = match reason {
                    QuarantineReason::RemovedFromMembership => AskError::PeerRemoved,
                    QuarantineReason::DeliveryGaveUp | QuarantineReason::Manual => AskError::Quarantined,
                };
                shared.endpoint.asks.fail_peer(&peer, &error);
                return numbered(SenderInput::Quarantined { uid });
            }
            Effect::Ignored { uid } => {
                tracing::debug!(peer = %self.address, %uid, "no need to quarantine what has been replaced");
            }
            Effect::HandBack { uid } => self.hand_back(shared, uid, DeadLetterReason::Quarantined),
            Effect::Notify { uid, reason } => {
                let from = shared.endpoint.self_address.clone();
                let frame = wire::write_frame(&Frame::Quarantined { from, to: self.incarnation(uid), reason });
                self.control.notify(frame.clone());
                shared.streams.notify(&self.incarnation(uid), &frame);
            }
            Effect::Forget { uid } => {
                // End the streams of the incarnation: one that was silent all the time would be read again.
                shared.streams.end_all_of(&self.incarnation(uid));
                shared.unblock(&self.incarnation(uid));
            }
            Effect::Publish(event) => self.publish(shared, event),
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
    fn retire(&self, shared: &Shared, old: Uid) {
        shared.streams.end_all_of(&self.incarnation(old));
        self.hand_back(shared, old, DeadLetterReason::StaleIncarnation);
    }

    /// Takes the items that wait for a process that was quarantined or replaced (see `reason`) out of the queues, and
    /// offers them back.
    pub(super) fn hand_back(&self, shared: &Shared, uid: Uid, reason: DeadLetterReason) {
        let (peer, now) = (self.incarnation(uid), Instant::now());
        let mut unsent = Vec::new();
        for lane in self.lanes() {
            for item in self.queue(lane).extract(|item| item.target() == Some(uid)) {
                match item {
                    Item::Envelope(envelope) => unsent.push(envelope),
                    other => self.drop_item(shared, now, lane, &other, reason),
                }
            }
        }
        // No writer holds items any more, so this also fails questions that were being written when the others failed.
        let is_replaced = reason == DeadLetterReason::StaleIncarnation;
        let error = if is_replaced { AskError::PeerRestarted } else { AskError::Quarantined };
        shared.endpoint.asks.fail_peer(&peer, &error);
        shared.announce(Announcement::HandBack { peer, unsent, reason });
    }

    pub(super) fn drop_item(&self, shared: &Shared, now: Instant, lane: Lane, item: &Item, reason: DeadLetterReason) {
        match item {
            Item::Envelope(envelope) => shared.endpoint.drop_unsent(now, lane, &self.address, envelope, reason),
            Item::Reply { ask_id, .. } => {
                let what = || format!("the answer to question {ask_id}");
                shared.endpoint.count_dead_letter(now, reason, Some(lane), Some(&self.address), 1, what);
            }
            Item::Reliable { .. } | Item::Flush { .. } | Item::Terminating => {}
        }
    }

    fn publish(&self, shared: &Shared, event: Event) {
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
                    shared.terminating_done(&address, lane);
                }
                TransportEvent::PeerTerminating(self.incarnation(uid))
            }
        };
        shared.announce(Announcement::Event(event));
    }

    /// Whether the peer has announced its own end, and so accepts no stream any more.
    pub(super) fn is_terminating(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_terminating()
    }

    /// Whether this incarnation has announced its end, or has left in order.
    pub(super) fn has_taken_leave(&self, uid: Uid) -> bool {
        self.machine.lock().expect(NO_PANIC).has_taken_leave(uid)
    }

    /// Whether the last process known at the address has taken leave.
    pub(super) fn is_vacant(&self) -> bool {
        self.machine.lock().expect(NO_PANIC).is_vacant()
    }

    fn incarnation(&self, uid: Uid) -> UniqueAddress {
        UniqueAddress::new(self.address.clone(), uid)
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

/// Ticks the machine at its deadlines.
async fn keep_deadlines(shared: Arc<Shared>, peer: Arc<Peer>) {
    while !peer.is_closed.load(Ordering::Acquire) {
        let machine = peer.machine.lock().expect(NO_PANIC).next_deadline();
        let deadline = machine.into_iter().chain(peer.numbered.next_deadline()).min();
        let due = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {
                peer.input(&shared, Input::Tick);
                peer.numbered_input(&shared, SenderInput::Tick);
            }
            () = peer.deadline_moved.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greylag_core::CodecId;

    use super::*;
    use crate::driver::grpc::GrpcTransport;
    use crate::envelope::{Envelope, Recipient};
    use crate::remoting::Remoting;
    use crate::settings::TransportSettings;

    /// Cluster T15, T16: a Hello that was admitted, but answered only after its sender was replaced, teaches nothing
    /// about the address, and ends no question to the present process.
    #[tokio::test]
    async fn the_word_of_a_process_that_was_replaced_comes_too_late() {
        let node = GrpcTransport::bind(TransportSettings::test(), Arc::default()).await.unwrap();
        let (before, now): (UniqueAddress, UniqueAddress) =
            ("127.0.0.1:9#7".parse().unwrap(), "127.0.0.1:9#8".parse().unwrap());
        let info = |peer: &UniqueAddress| PeerInfo {
            peer: peer.clone(),
            reached: false,
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            host_id: None,
            cluster_id: None,
        };
        let peer = node.shared.peer(now.address());
        peer.hello(&node.shared, before.uid(), None).unwrap();
        peer.hello(&node.shared, now.uid(), None).unwrap();
        assert!(peer.introduce(&node.shared, info(&now)));
        assert!(!peer.introduce(&node.shared, info(&before)));
        assert_eq!(node.peer(now.address()).unwrap().peer, now);
    }

    async fn bind(memory: Duration) -> Arc<GrpcTransport> {
        let settings = TransportSettings { remove_quarantined_association_after: memory, ..TransportSettings::test() };
        GrpcTransport::bind(settings, Arc::default()).await.unwrap()
    }

    fn message() -> Envelope {
        Envelope::new(Recipient::new("inbox"), CodecId::JSON, "number", "1".as_bytes())
    }

    /// Cluster T21: an address where no process runs any more costs nothing after a while, and a process that was
    /// refused there stays refused.
    #[tokio::test]
    async fn an_unused_peer_is_dropped_and_its_retired_uids_stay_refused() {
        let node = bind(Duration::from_millis(20)).await;
        let (gone, other): (UniqueAddress, UniqueAddress) =
            ("127.0.0.1:9#7".parse().unwrap(), "127.0.0.1:10#7".parse().unwrap());
        node.shared.peer(gone.address()).hello(&node.shared, gone.uid(), None).unwrap();
        node.shared.peer(other.address()).hello(&node.shared, other.uid(), None).unwrap();
        node.quarantine(&gone, QuarantineReason::Manual, true);
        let waiting = async {
            while node.shared.peers().len() > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is let go");
        assert_eq!(node.shared.peers()[0].address, *other.address(), "as far as is known that one runs");
        let again = node.shared.peer(gone.address());
        assert_eq!(again.hello(&node.shared, gone.uid(), None), Err(Refused::Dead(None)));
        assert_eq!(again.hello(&node.shared, Uid::new(8).unwrap(), None), Ok(Admission::Known));
    }

    /// Cluster T21, T22: a message sent while a peer is being dropped goes to the next peer of the address; no message
    /// is lost, numbered or not.
    #[tokio::test]
    async fn dropping_a_peer_loses_no_message() {
        let node = bind(Duration::from_secs(3600)).await;
        // Keep a handle of the old peer, as a slow sender may.
        let to: UniqueAddress = "127.0.0.1:9#7".parse().unwrap();
        let old = node.shared.peer(to.address());
        node.shared.drop_peer(&old);
        assert!(old.push(&node.shared, Lane::ordinary(0), Item::Envelope(message()), true).is_err());
        old.input(&node.shared, Input::Hello { uid: to.uid(), host_id: None });
        assert!(node.shared.peer(to.address()).is_current(to.uid()), "the Hello reached the next one");
        for port in 10..400 {
            let to: UniqueAddress = format!("127.0.0.1:{port}#7").parse().unwrap();
            let peer = node.shared.peer(to.address());
            let (start, sender) = (std::sync::Barrier::new(2), &node);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    match port % 2 {
                        0 => sender.send(&to.clone().into(), message()).unwrap(),
                        _ => sender.send_reliable(&to, message()).unwrap(),
                    }
                });
                start.wait();
                node.shared.drop_peer(&peer);
            });
            let now = node.shared.peer(to.address());
            match port % 2 {
                0 => assert!(!now.queue(Lane::ordinary(0)).is_empty(), "{port}: it waits where it is sent from"),
                _ => assert!(!now.numbered.close_unused(|| true), "{port}: it waits to be repeated"),
            }
        }
    }

    /// Cluster T15, T21: a peer is kept while a dial, stream or message is under way, or a quarantine with a reason is
    /// remembered.
    #[tokio::test]
    async fn a_peer_of_use_is_kept() {
        let node = bind(Duration::from_secs(3600)).await;
        let known: UniqueAddress = "127.0.0.1:9#7".parse().unwrap();
        node.shared.peer(known.address()).hello(&node.shared, known.uid(), None).unwrap();
        let quarantined: UniqueAddress = "127.0.0.1:10#7".parse().unwrap();
        node.quarantine(&quarantined, QuarantineReason::Manual, true);
        let spoken_to: UniqueAddress = "127.0.0.1:11#7".parse().unwrap();
        node.send(&spoken_to.clone().into(), message()).unwrap();
        let faulty: UniqueAddress = "127.0.0.1:12#7".parse().unwrap();
        node.fault(faulty.address(), crate::driver::grpc::Fault::Blackhole);
        for peer in [known, quarantined, spoken_to, faulty] {
            let kept = node.shared.peer(peer.address());
            node.shared.drop_peer(&kept);
            assert!(!kept.is_dropped() && Arc::ptr_eq(&kept, &node.shared.peer(peer.address())), "{peer}");
        }
    }
}
