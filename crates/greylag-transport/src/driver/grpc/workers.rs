//! The workers that hand messages to their receivers.
//!
//! Messages of one lane key from one origin always go to the same worker, so their order holds while others are decoded
//! in parallel. Streams of a saturated worker are not read: its channel is short, and the stream's flow control does
//! the rest. Control messages have a worker of their own on the control runtime. Messages to the own node take the same
//! path, without the wire. Source: cluster T6, T39.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Room, Share, Uid, UniqueAddress};
use tokio::sync::mpsc;

use super::flushes::Mark;
use super::shared::{Shared, SharedPort};
use crate::association::Input;
use crate::endpoint::{LastReceiver, Reply};
use crate::envelope::Inbound;
use crate::lane::{Lane, LaneKind, lane_key_hash};
use crate::queue::Waiter;
use crate::wire::{Arrived, ArrivedContent};

/// The messages of one frame for one worker.
pub(super) struct Delivery {
    pub(super) from: UniqueAddress,
    pub(super) lane: Lane,
    pub(super) arrived: Vec<Arrived>,
    /// When the frame was read: the time that askers have left counts from then.
    pub(super) read_at: Instant,
    /// A mark to pass with this delivery, which then holds no message.
    pub(super) mark: Option<Arc<Mark>>,
}

/// A message or mark that this node sends to itself.
enum Local {
    Message {
        lane: Lane,
        message: Inbound,
        /// `None` for messages that must be taken even if there is no room.
        _share: Option<Share>,
    },
    Mark(Arc<Mark>),
}

/// The sending ends of all workers.
pub(super) struct Workers {
    control: Worker,
    data: Vec<Worker>,
}

struct Worker {
    remote: mpsc::Sender<Delivery>,
    /// Unbounded as a channel; its users keep to the bounds of the two fields below.
    local: mpsc::UnboundedSender<Local>,
    local_depth: Arc<AtomicUsize>,
    local_bytes: Room,
    waiting: Waiting,
}

/// Senders of this node that wait until a worker has caught up.
type Waiting = Arc<Mutex<BTreeMap<u64, Waker>>>;

/// The receiving end of one worker.
struct WorkerReceiver {
    remote: mpsc::Receiver<Delivery>,
    local: mpsc::UnboundedReceiver<Local>,
    local_depth: Arc<AtomicUsize>,
    waiting: Waiting,
}

/// The receiving ends of all workers, to be started once there is something to serve.
pub(super) struct WorkerReceivers {
    control: WorkerReceiver,
    data: Vec<WorkerReceiver>,
}

/// Frames that wait at one worker before its streams are no longer read.
const FRAMES_PER_WORKER: usize = 16;

impl Workers {
    /// Makes the workers. `local_bytes` bounds, at each worker, the messages that a node sends to itself.
    pub(super) fn new(inbound_lanes: u16, local_bytes: usize) -> (Self, WorkerReceivers) {
        let (control, control_receiver) = worker(local_bytes);
        let (data, data_receivers) = (0..inbound_lanes.max(1)).map(|_| worker(local_bytes)).unzip();
        (Self { control, data }, WorkerReceivers { control: control_receiver, data: data_receivers })
    }

    /// The worker of messages with this key from this origin.
    pub(super) fn index(&self, origin: &UniqueAddress, path: &str, sub_path: &str) -> usize {
        if self.data.len() == 1 {
            return 0;
        }
        let hash = lane_key_hash(path, sub_path) ^ origin.uid().get();
        // Use the upper bits: a modulus by few lanes looks at the lower ones, which chose the lane.
        ((hash >> 32) as usize) % self.data.len()
    }

    pub(super) fn count(&self) -> usize {
        self.data.len()
    }

    /// Hands the messages of a frame over to worker `index`; waits while the worker is behind. Returns the messages
    /// that were not taken, because the worker has ended.
    pub(super) async fn deliver(&self, index: usize, delivery: Delivery) -> Vec<Arrived> {
        let worker = if delivery.lane.kind() == LaneKind::Control { &self.control } else { &self.data[index] };
        worker.remote.send(delivery).await.map_or_else(|unsent| unsent.0.arrived, |()| Vec::new())
    }

    /// Queues a message to the own node, or returns it if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(super) fn deliver_locally(
        &self,
        capacity: usize,
        force: bool,
        lane: Lane,
        message: Inbound,
        waiting: Option<Waiter<'_>>,
    ) -> Result<(), Inbound> {
        let worker = match lane.kind() {
            LaneKind::Control => &self.control,
            _ => &self.data[self.index(&message.from, &message.recipient.path, message.recipient.below())],
        };
        let size = message.size();
        let is_full = worker.local_depth.fetch_add(1, Ordering::AcqRel) >= capacity;
        let share = if is_full { None } else { worker.local_bytes.take(size) };
        if share.is_none() && !force {
            worker.local_depth.fetch_sub(1, Ordering::AcqRel);
            if let Some(Waiter { id, waker }) = waiting {
                worker.waiting.lock().expect(NO_PANIC).insert(id, waker.clone());
                // Wake at once if there is room by now: the worker may have emptied its inbox before the waker was
                // entered.
                if worker.local_depth.load(Ordering::Acquire) < capacity && worker.local_bytes.has_room(size) {
                    waker.wake_by_ref();
                }
            }
            return Err(message);
        }
        worker.local.send(Local::Message { lane, message, _share: share }).map_err(|unsent| match unsent.0 {
            Local::Message { message, .. } => message,
            Local::Mark(_) => unreachable!("a message was sent"),
        })
    }

    /// Forgets the sender that waited under this number.
    pub(super) fn forget_waiting(&self, id: u64) {
        for worker in self.data.iter().chain([&self.control]) {
            worker.waiting.lock().expect(NO_PANIC).remove(&id);
        }
    }

    /// Sends a mark behind everything that arrived on this lane.
    pub(super) async fn mark(&self, from: &UniqueAddress, lane: Lane, mark: Mark) {
        let count = if lane.kind() == LaneKind::Control { 1 } else { self.data.len() };
        let mark = mark.before(count);
        for index in 0..count {
            let (from, arrived, read_at, mark) = (from.clone(), Vec::new(), Instant::now(), Some(mark.clone()));
            self.deliver(index, Delivery { from, lane, arrived, read_at, mark }).await;
        }
    }

    /// Sends a mark behind every message that this node has sent to itself.
    pub(super) fn flush_locally(&self, mark: Mark) {
        let mark = mark.before(self.data.len() + 1);
        for worker in self.data.iter().chain([&self.control]) {
            worker.local_depth.fetch_add(1, Ordering::AcqRel);
            worker.local.send(Local::Mark(mark.clone())).ok();
        }
    }
}

fn worker(local_bytes: usize) -> (Worker, WorkerReceiver) {
    let (remote, remote_receiver) = mpsc::channel(FRAMES_PER_WORKER);
    let (local, local_receiver) = mpsc::unbounded_channel();
    let local_depth = Arc::new(AtomicUsize::new(0));
    let waiting = Waiting::default();
    let receiver = WorkerReceiver {
        remote: remote_receiver,
        local: local_receiver,
        local_depth: local_depth.clone(),
        waiting: waiting.clone(),
    };
    // Unbounded in messages: those are bounded by the caller's capacity, which differs by lane.
    let local_bytes = Room::new(usize::MAX, local_bytes);
    (Worker { remote, local, local_depth, local_bytes, waiting }, receiver)
}

impl WorkerReceivers {
    /// Starts the workers.
    pub(super) fn open(self, shared: &Arc<Shared>) {
        shared.control.spawn(work(shared.clone(), self.control));
        for receiver in self.data {
            shared.data.spawn(work(shared.clone(), receiver));
        }
    }
}

async fn work(shared: Arc<Shared>, mut receiver: WorkerReceiver) {
    const LOCAL_AT_ONCE: usize = 256;
    let mut last = LastReceiver::default();
    let mut locals = Vec::with_capacity(LOCAL_AT_ONCE);
    loop {
        tokio::select! {
            delivery = receiver.remote.recv() => match delivery {
                Some(delivery) => take(&shared, delivery, &mut last),
                None => return,
            },
            count = receiver.local.recv_many(&mut locals, LOCAL_AT_ONCE) => {
                receiver.local_depth.fetch_sub(count, Ordering::AcqRel);
                let mut locals = locals.drain(..);
                last.isolated(|last| locals.by_ref().for_each(|local| match local {
                    Local::Message { lane, message, _share } => {
                        let (now, none) = (Instant::now(), std::iter::empty());
                        shared.refuse(shared.endpoint.deliver(now, lane, None, message, none, last));
                    }
                    Local::Mark(mark) => mark.pass(),
                }));
                let waiting = std::mem::take(&mut *receiver.waiting.lock().expect(NO_PANIC));
                waiting.into_values().for_each(Waker::wake);
            }
        }
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

fn take(shared: &Arc<Shared>, delivery: Delivery, last: &mut LastReceiver) {
    let Delivery { from, lane, arrived, read_at, mark } = delivery;
    if let Some(mark) = mark {
        mark.pass();
    }
    if arrived.is_empty() {
        return;
    }
    let now = Instant::now();
    let waited = now.saturating_duration_since(read_at);
    if shared.is_blocked(&from) {
        // Report messages of a blocked process by their kind: its heartbeats, which may go on for as long as it runs,
        // are neither published nor logged.
        for arrived in arrived {
            drop_arrived(shared, now, (&from, lane), arrived.content, DeadLetterReason::Quarantined);
        }
        shared.peer(from.address()).input(shared, Input::Intruded { uid: from.uid() });
        return;
    }
    let is_stranger = shared.is_stranger(&from);
    let mut arrived = arrived.into_iter();
    last.isolated(|last| {
        while let Some(Arrived { target_uid, content }) = arrived.next() {
            match content {
                // Drop the question: its asker has given up by now (cluster T38).
                ArrivedContent::Message(message) if has_expired(&message, waited) => {
                    shared.endpoint.refuse(now, Some(lane), &message, DeadLetterReason::Expired);
                }
                ArrivedContent::Message(message) => {
                    if is_stranger && let Some(reason) = shared.closed_to_strangers(&message.recipient) {
                        let refusal = shared.endpoint.refuse(now, Some(lane), &message, reason);
                        // Refuse only to processes that were reached: an answer would dial the address that the
                        // stranger named (cluster T21).
                        shared.refuse(refusal.filter(|refusal| shared.has_reached(&refusal.to)));
                        continue;
                    }
                    // Hand over the messages that follow to the same receiver too: the checks above hold for them as
                    // well.
                    let next = Following::new(&mut arrived, &message, target_uid, waited);
                    shared.refuse(shared.endpoint.deliver(now, lane, target_uid, message, next, last));
                }
                ArrivedContent::Reply { ask_id, reply } => {
                    take_reply(shared, now, (&from, lane), (target_uid, is_stranger), ask_id, reply);
                }
            }
        }
    });
}

/// The messages of a delivery that follow one message to the same receiver of the same process, up to the first that
/// does not.
struct Following<'a> {
    arrived: &'a mut std::vec::IntoIter<Arrived>,
    path: Arc<str>,
    instance: u64,
    target_uid: Option<Uid>,
    waited: Duration,
}

impl<'a> Following<'a> {
    fn new(
        arrived: &'a mut std::vec::IntoIter<Arrived>,
        message: &Inbound,
        target_uid: Option<Uid>,
        waited: Duration,
    ) -> Self {
        let (path, instance) = (message.recipient.path.clone(), message.recipient.instance);
        Self { arrived, path, instance, target_uid, waited }
    }

    fn follows(&self, Arrived { target_uid, content }: &Arrived) -> bool {
        let ArrivedContent::Message(message) = content else { return false };
        // Compare pointers: equal names of one frame share one text.
        Arc::ptr_eq(&message.recipient.path, &self.path)
            && (message.recipient.instance, *target_uid) == (self.instance, self.target_uid)
            && !has_expired(message, self.waited)
    }
}

impl Iterator for Following<'_> {
    type Item = Inbound;

    fn next(&mut self) -> Option<Inbound> {
        if !self.follows(self.arrived.as_slice().first()?) {
            return None;
        }
        match self.arrived.next()?.content {
            ArrivedContent::Message(message) => Some(message),
            ArrivedContent::Reply { .. } => None,
        }
    }
}

/// Whether an asker has given up by now: its question has waited here for all the time that was left.
fn has_expired(message: &Inbound, waited: Duration) -> bool {
    message.ask.is_some_and(|ask| ask.budget <= waited)
}

fn take_reply(
    shared: &Arc<Shared>,
    now: Instant,
    (from, lane): (&UniqueAddress, Lane),
    (target_uid, is_stranger): (Option<Uid>, bool),
    ask_id: u64,
    reply: Reply,
) {
    let endpoint = &shared.endpoint;
    let reason = if target_uid != Some(endpoint.self_address.uid()) {
        // An answer to the process that ran here before, whose numbers are not ours.
        DeadLetterReason::StaleIncarnation
    } else if is_stranger && !endpoint.asks.was_sent_to(ask_id, from) {
        shared.stranger_reason()
    } else {
        endpoint.accept_reply(now, from, ask_id, reply, || Arc::new(SharedPort(shared.clone())));
        return;
    };
    let what = || format!("the answer of {from} to question {ask_id}");
    endpoint.count_dead_letter(now, reason, Some(lane), Some(from.address()), 1, what);
}

/// Counts a message that arrived and is not delivered, under its path and manifest, so that a message that its protocol
/// repeats causes no warning (cluster T41). An ask is not answered: its asker is quarantined (cluster T18), has a newer
/// stream, or learns by its link that this node ends.
pub(super) fn drop_arrived(
    shared: &Shared,
    now: Instant,
    (from, lane): (&UniqueAddress, Lane),
    content: ArrivedContent,
    reason: DeadLetterReason,
) {
    match content {
        ArrivedContent::Message(message) => {
            let _unanswered = shared.endpoint.refuse(now, Some(lane), &message, reason);
        }
        ArrivedContent::Reply { ask_id, .. } => {
            let what = || format!("the answer of {from} to question {ask_id}");
            shared.endpoint.count_dead_letter(now, reason, Some(lane), Some(from.address()), 1, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{EncodedMessage, Envelope, Recipient};

    fn delivery(mark: Option<Arc<Mark>>) -> Delivery {
        let from: UniqueAddress = "a:1#1".parse().unwrap();
        let envelope = Envelope::new(Recipient::new("inbox"), greylag_core::CodecId::JSON, "m", bytes::Bytes::new());
        let message = Arrived::of(from.clone(), EncodedMessage::new(&envelope).unwrap());
        let arrived = if mark.is_some() { Vec::new() } else { vec![message; 3] };
        let (lane, read_at) = (Lane::ordinary(0), Instant::now());
        Delivery { from, lane, arrived, read_at, mark }
    }

    /// Cluster T38, T39: the messages that follow to the same receiver are handed over with the first, in order, and
    /// nothing else: no answer, no question whose asker has given up, no message for another receiver, instance or
    /// process.
    #[test]
    fn later_messages_to_the_same_receiver_are_handed_over_with_the_first() {
        let from: UniqueAddress = "a:1#1".parse().unwrap();
        let (inbox, other): (Arc<str>, Arc<str>) = ("inbox".into(), "other".into());
        let message = |path: &Arc<str>, number: u8| Inbound {
            from: from.clone(),
            recipient: Recipient { path: path.clone(), sub_path: None, instance: 0 },
            codec: greylag_core::CodecId::JSON,
            manifest: "m".into(),
            payload: vec![number].into(),
            ask: None,
        };
        let arrived = |message| Arrived { target_uid: Uid::new(7), content: ArrivedContent::Message(message) };
        let waited = Duration::from_secs(1);
        let ask = |seconds| Some(crate::envelope::AskHeader { id: 1, budget: Duration::from_secs(seconds) });
        let late = Inbound { ask: ask(1), ..message(&inbox, 9) };
        let in_time = Inbound { ask: ask(2), ..message(&inbox, 4) };
        let mut of_an_instance = message(&inbox, 9);
        of_an_instance.recipient.instance = 3;
        let reply = Reply::Dropped(DeadLetterReason::Expired);
        for stranger in [
            arrived(message(&other, 9)),
            arrived(late),
            arrived(of_an_instance),
            Arrived { target_uid: Uid::new(8), ..arrived(message(&inbox, 9)) },
            Arrived { target_uid: Uid::new(7), content: ArrivedContent::Reply { ask_id: 1, reply } },
        ] {
            let alike = [message(&inbox, 2), message(&inbox, 3), in_time.clone()].map(arrived);
            let all = alike.into_iter().chain([stranger, arrived(message(&inbox, 5))]);
            let mut rest = all.collect::<Vec<_>>().into_iter();
            let following = Following::new(&mut rest, &message(&inbox, 1), Uid::new(7), waited);
            assert_eq!(following.map(|message| message.payload[0]).collect::<Vec<_>>(), [2, 3, 4]);
            assert_eq!(rest.len(), 2, "the others wait for their turn");
        }
    }

    /// Cluster T22, T38: messages of a node to itself are bounded in number and in bytes; a mark is taken even without
    /// room, and a sender that waits is woken once there is room.
    #[tokio::test]
    async fn messages_to_the_own_node_are_bounded_in_bytes() {
        let (workers, receivers) = Workers::new(1, 1000);
        let message = |bytes: usize| Inbound {
            from: "a:1#1".parse().unwrap(),
            recipient: Recipient::new("r"),
            codec: greylag_core::CodecId::JSON,
            manifest: "m".into(),
            payload: vec![0; bytes - 2].into(),
            ask: None,
        };
        let push = |bytes, force| {
            workers.deliver_locally(10, force, Lane::ordinary(0), message(bytes), None).map_err(Box::new)
        };
        assert!(push(600, false).is_ok() && push(400, false).is_ok());
        assert_eq!(push(2, false).unwrap_err().size(), 2, "it comes back");
        assert!(push(2, true).is_ok());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let waiter = Waiter { id: 1, waker: &waker };
        assert!(workers.deliver_locally(10, false, Lane::ordinary(0), message(300), Some(waiter)).is_err());
        assert!(!woken.0.load(Ordering::Relaxed), "there is no room to wake it for");
        let WorkerReceivers { mut data, .. } = receivers;
        let receiver = &mut data[0];
        drop(receiver.local.recv().await.unwrap());
        assert!(push(300, false).is_ok());
        receiver.local_depth.store(10, Ordering::Relaxed);
        assert!(push(2, false).is_err(), "ten messages are there");
        assert_eq!(workers.data[0].local_bytes.bytes(), 700);
    }

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Cluster T41, §7: messages for a worker that has ended are counted, and a mark behind them is not answered.
    #[tokio::test]
    async fn a_worker_that_has_ended_takes_nothing_and_answers_nothing() {
        let (workers, receivers) = Workers::new(2, 1 << 20);
        let (said, mut heard) = mpsc::unbounded_channel();
        let mark = |said: mpsc::UnboundedSender<()>| Mark::local(Box::new(move || said.send(()).unwrap())).before(2);
        let WorkerReceivers { mut data, .. } = receivers;
        let mut alive = data.pop().unwrap();
        drop(data);
        assert_eq!(workers.deliver(0, delivery(None)).await.len(), 3);
        let passing = mark(said.clone());
        for index in 0..2 {
            workers.deliver(index, delivery(Some(passing.clone()))).await;
        }
        drop(passing);
        alive.remote.recv().await.unwrap().mark.unwrap().pass();
        assert!(heard.try_recv().is_err(), "one of two has passed");
        let passed = mark(said);
        passed.pass();
        passed.pass();
        assert!(heard.try_recv().is_ok());
    }

    /// Cluster T39: the key and the origin choose the worker, always the same one.
    #[test]
    fn key_and_origin_choose_the_worker() {
        use std::collections::BTreeSet;
        let (workers, _desks) = Workers::new(4, 1 << 20);
        let of = |uid: u64, path: &str| workers.index(&format!("a:1#{uid}").parse().unwrap(), path, "");
        let origins: BTreeSet<usize> = (0..16).map(|n: u64| of(n << 32 | 1, "inbox")).collect();
        let keys: BTreeSet<usize> = (0..64).map(|n| of(1, &format!("path-{n}"))).collect();
        assert_eq!((origins.len(), keys.len()), (4, 4));
        assert_eq!(of(7 << 32, "inbox"), of(7 << 32, "inbox"));
    }
}
