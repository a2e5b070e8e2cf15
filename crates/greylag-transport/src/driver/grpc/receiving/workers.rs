//! The inboxes of the workers that hand messages to their receivers.
//!
//! Messages of one lane key from one origin always go to the same worker, so their order holds while others are decoded
//! in parallel. Streams of a saturated worker are not read: its channel is short, and the stream's flow control does
//! the rest. Control messages have a worker of their own on the control runtime. Messages to the own node take the same
//! path, without the wire. Source: cluster T6, T39.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;

use greylag_core::{Room, Share, UniqueAddress};
use tokio::sync::mpsc;

use crate::driver::grpc::sending::Mark;
use crate::lanes::lane::{Lane, LaneKind, lane_key_hash};
use crate::lanes::queue::Waiter;
use crate::messages::envelope::Inbound;
use crate::wire::Arrived;

/// The messages of one frame for one worker.
pub(crate) struct Delivery {
    pub(crate) from: UniqueAddress,
    pub(crate) lane: Lane,
    pub(crate) arrived: Vec<Arrived>,
    /// When the frame was read: the time that askers have left counts from then.
    pub(crate) read_at: Instant,
    /// A mark to pass with this delivery, which then holds no message.
    pub(crate) mark: Option<Arc<Mark>>,
}

/// A message or mark that this node sends to itself.
pub(super) enum Local {
    Message {
        lane: Lane,
        message: Inbound,
        /// `None` for messages that must be taken even if there is no room.
        _share: Option<Share>,
    },
    Mark(Arc<Mark>),
}

/// The sending ends of all workers.
pub(crate) struct Workers {
    control: Worker,
    data: Vec<Worker>,
}

struct Worker {
    remote: mpsc::Sender<Delivery>,
    /// Unbounded as a channel; its users keep to the bounds of the two fields below.
    local: mpsc::UnboundedSender<Local>,
    local_depth: Arc<AtomicUsize>,
    local_bytes: Room,
    waiting: Wakers,
}

/// Senders of this node that wait until a worker has caught up.
type Wakers = Arc<Mutex<BTreeMap<u64, Waker>>>;

/// The receiving end of one worker.
pub(super) struct WorkerReceiver {
    pub(super) remote: mpsc::Receiver<Delivery>,
    pub(super) local: mpsc::UnboundedReceiver<Local>,
    local_depth: Arc<AtomicUsize>,
    waiting: Wakers,
}

/// The receiving ends of all workers, to be started once there is something to serve.
pub(crate) struct WorkerReceivers {
    pub(super) control: WorkerReceiver,
    pub(super) data: Vec<WorkerReceiver>,
}

/// Frames that wait at one worker before its streams are no longer read.
const FRAMES_PER_WORKER: usize = 16;

impl Workers {
    /// Makes the workers. `local_bytes` bounds, at each worker, the messages that a node sends to itself.
    pub(crate) fn new(inbound_lanes: u16, local_bytes: usize) -> (Self, WorkerReceivers) {
        let (control, control_receiver) = worker(local_bytes);
        let (data, data_receivers) = (0..inbound_lanes.max(1)).map(|_| worker(local_bytes)).unzip();
        (Self { control, data }, WorkerReceivers { control: control_receiver, data: data_receivers })
    }

    /// The worker of messages with this key from this origin.
    pub(crate) fn index(&self, origin: &UniqueAddress, path: &str, sub_path: &str) -> usize {
        if self.data.len() == 1 {
            return 0;
        }
        let hash = lane_key_hash(path, sub_path) ^ origin.uid().get();
        // Use the upper bits: a modulus by few lanes looks at the lower ones, which chose the lane.
        ((hash >> 32) as usize) % self.data.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.data.len()
    }

    /// Hands the messages of a frame over to worker `index`; waits while the worker is behind. Returns the messages
    /// that were not taken, because the worker has ended.
    pub(crate) async fn deliver(&self, index: usize, delivery: Delivery) -> Vec<Arrived> {
        let worker = if delivery.lane.kind() == LaneKind::Control { &self.control } else { &self.data[index] };
        worker.remote.send(delivery).await.map_or_else(|unsent| unsent.0.arrived, |()| Vec::new())
    }

    /// Queues a message to the own node, or returns it if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(crate) fn deliver_locally(
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
    pub(crate) fn forget_waiting(&self, id: u64) {
        for worker in self.data.iter().chain([&self.control]) {
            worker.waiting.lock().expect(NO_PANIC).remove(&id);
        }
    }

    /// Sends a mark behind everything that arrived on this lane.
    pub(crate) async fn mark(&self, from: &UniqueAddress, lane: Lane, mark: Mark) {
        let count = if lane.kind() == LaneKind::Control { 1 } else { self.data.len() };
        let mark = mark.before(count);
        for index in 0..count {
            let (from, arrived, read_at, mark) = (from.clone(), Vec::new(), Instant::now(), Some(mark.clone()));
            self.deliver(index, Delivery { from, lane, arrived, read_at, mark }).await;
        }
    }

    /// Sends a mark behind every message that this node has sent to itself.
    pub(crate) fn flush_locally(&self, mark: Mark) {
        let mark = mark.before(self.data.len() + 1);
        for worker in self.data.iter().chain([&self.control]) {
            worker.local_depth.fetch_add(1, Ordering::AcqRel);
            worker.local.send(Local::Mark(mark.clone())).ok();
        }
    }
}

impl WorkerReceiver {
    /// Notes that so many messages and marks of this node were taken out of the inbox.
    pub(super) fn taken_out(&self, count: usize) {
        self.local_depth.fetch_sub(count, Ordering::AcqRel);
    }

    /// Wakes the senders of this node that wait for room.
    pub(super) fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().expect(NO_PANIC));
        waiting.into_values().for_each(Waker::wake);
    }
}

fn worker(local_bytes: usize) -> (Worker, WorkerReceiver) {
    let (remote, remote_receiver) = mpsc::channel(FRAMES_PER_WORKER);
    let (local, local_receiver) = mpsc::unbounded_channel();
    let local_depth = Arc::new(AtomicUsize::new(0));
    let waiting = Wakers::default();
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

const NO_PANIC: &str = "nothing under this lock panics";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::envelope::{EncodedMessage, Envelope, Recipient};

    fn delivery(mark: Option<Arc<Mark>>) -> Delivery {
        let from: UniqueAddress = "a:1#1".parse().unwrap();
        let envelope = Envelope::new(Recipient::new("inbox"), greylag_core::CodecId::JSON, "m", bytes::Bytes::new());
        let message = Arrived::of(from.clone(), EncodedMessage::new(&envelope).unwrap());
        let arrived = if mark.is_some() { Vec::new() } else { vec![message; 3] };
        let (lane, read_at) = (Lane::ordinary(0), Instant::now());
        Delivery { from, lane, arrived, read_at, mark }
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
