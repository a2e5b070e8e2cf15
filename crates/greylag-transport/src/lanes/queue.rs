//! The queue of items that wait to be written to one lane of one peer.
//!
//! Any thread pushes, one stream at a time takes. The gate names that stream: a stream is given a number when it is
//! dialled, may take once the gate is opened for its number, and ends once the gate has moved past it; so a stream that
//! was replaced can never take another message. Marks that senders must be able to place are taken even when the queue
//! is full (cluster T22). A queue is full by messages or by bytes, whichever comes first. Heartbeats leave before
//! everything else that waits, so no more than the frame under way is ahead of one (cluster T26).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use greylag_core::Uid;

use crate::endpoints::endpoint::Reply;
use crate::messages::envelope::Envelope;

/// An item to be written.
#[derive(Debug)]
pub(crate) enum Item {
    Envelope(Envelope),
    Reply {
        to: Uid,
        ask_id: u64,
        reply: Reply,
    },
    /// The frame of a numbered message; its sender keeps the message until it is acknowledged.
    Reliable {
        to: Uid,
        frame: Bytes,
    },
    /// To be answered once everything before it was taken at the other end.
    Flush {
        to: Uid,
        id: u64,
    },
    /// The last word on a lane: its answer means that everything before it was read.
    Terminating,
}

impl Item {
    /// The only incarnation that may get the item; `None` for any.
    pub(crate) fn target(&self) -> Option<Uid> {
        match self {
            Self::Envelope(envelope) => envelope.target_uid,
            Self::Reply { to, .. } | Self::Reliable { to, .. } | Self::Flush { to, .. } => Some(*to),
            Self::Terminating => None,
        }
    }

    /// Whether the item is a frame of its own, and never part of a batch.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Reliable { .. } | Self::Flush { .. } | Self::Terminating)
    }

    /// Whether the item leaves before all others.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::Envelope(envelope) if envelope.recipient.is_heartbeat())
    }

    /// The bytes that the item counts for in the queue's bound.
    fn size(&self) -> usize {
        match self {
            Self::Envelope(envelope) => size(envelope),
            Self::Reply { reply: Reply::Value { manifest, payload, .. }, .. } => manifest.len() + payload.len(),
            // No bytes: numbered messages have a bound of their own.
            Self::Reply { .. } | Self::Reliable { .. } | Self::Flush { .. } | Self::Terminating => 0,
        }
    }
}

fn size(Envelope { recipient, manifest, payload, .. }: &Envelope) -> usize {
    recipient.path.len() + recipient.below().len() + manifest.len() + payload.size_hint()
}

/// The result of a stream's poll.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Items were appended to the caller's buffer; they are for this incarnation.
    Items(Uid),
    /// A frame that is ready as it is.
    Notice(Bytes),
    /// The stream has to end.
    Ended,
}

/// A sender that waits for room, with its waker. A sender that polls again is entered once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter<'a> {
    pub(crate) id: u64,
    pub(crate) waker: &'a Waker,
}

/// Limits at which a queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct LaneQueue {
    bounds: Bounds,
    state: Mutex<State>,
    /// Held from taking items until they are written or put back, so that a hand-back misses none of them.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    items: VecDeque<Item>,
    urgent: VecDeque<Item>,
    /// The size of `items` and `urgent` together.
    bytes: usize,
    notices: VecDeque<Bytes>,
    /// The stream that may take items, and the incarnation that reads it.
    open: Option<(u64, Uid)>,
    /// The stream that the peer accepted last; notices go only to this one.
    accepted: u64,
    /// Streams up to this number have ended.
    ended: u64,
    /// Whether no dial is under way or due: then the next push has to request one.
    resting: bool,
    /// Whether an item was taken since the last call of [`LaneQueue::was_used`].
    used: bool,
    waker: Option<Waker>,
    /// Wakers of senders that wait for room. They are woken once half of the queue is free, so that a sender that is
    /// faster than the socket fills many frames between two waits.
    room: BTreeMap<u64, Waker>,
    /// Whether the queue takes no more items: the node ends.
    closed: bool,
}

/// The caller's duty after a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// None: a stream takes the item, or will.
    Queued,
    /// Request a dial: the lane was at rest.
    Wanted,
}

impl LaneQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let state = State {
            items: VecDeque::new(),
            urgent: VecDeque::new(),
            bytes: 0,
            notices: VecDeque::new(),
            open: None,
            accepted: 0,
            ended: 0,
            resting: true,
            used: false,
            waker: None,
            room: BTreeMap::new(),
            closed: false,
        };
        Self { bounds, state: Mutex::new(state), writing: Mutex::default() }
    }

    /// Adds an item, or returns it if there is no room.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave, which is no smaller")]
    pub(crate) fn push(&self, item: Item, force: bool) -> Result<Pushed, Item> {
        let mut item = Some(item);
        let (size, is_urgent) = item.as_ref().map_or((0, false), |item| (item.size(), item.is_urgent()));
        let pushed = self.push_with(size, is_urgent, force, None, || item.take().expect("it is asked for once"));
        pushed.ok_or_else(|| item.expect("it was not asked for"))
    }

    /// Adds the envelope, or leaves it in its place if there is no room. Every message passes here, so it is moved only
    /// once.
    pub(crate) fn push_envelope(
        &self,
        envelope: &mut Option<Envelope>,
        force: bool,
        waiting: Option<Waiter<'_>>,
    ) -> Option<Pushed> {
        let (size, is_urgent) =
            envelope.as_ref().map(|envelope| (size(envelope), envelope.recipient.is_heartbeat()))?;
        self.push_with(size, is_urgent, force, waiting, || Item::Envelope(envelope.take().expect("it is there")))
    }

    /// Adds the item that `item` returns; `item` is called only if there is room.
    fn push_with(
        &self,
        size: usize,
        is_urgent: bool,
        force: bool,
        waiting: Option<Waiter<'_>>,
        item: impl FnOnce() -> Item,
    ) -> Option<Pushed> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        // Into an empty queue an item of any size fits.
        let is_full = state.len() >= self.bounds.items || (state.bytes + size > self.bounds.bytes && state.len() > 0);
        if is_full && !force {
            if let Some(Waiter { id, waker }) = waiting {
                state.room.insert(id, waker.clone());
            }
            return None;
        }
        state.bytes += size;
        if is_urgent { &mut state.urgent } else { &mut state.items }.push_back(item());
        let waker = state.waker.take();
        let wanted = std::mem::take(&mut state.resting);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(if wanted { Pushed::Wanted } else { Pushed::Queued })
    }

    /// Forgets the sender that waited for room under this number.
    pub(crate) fn forget_waiting(&self, id: u64) {
        self.lock().room.remove(&id);
    }

    /// Takes no more items from now on, marks included.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake_room(state);
    }

    /// Closes all of these queues, if nothing is queued, open or waited for in any; all or none. `closing` is called
    /// under their locks, before another task can find one of them closed.
    pub(crate) fn close_unused(queues: &[&Self], closing: impl FnOnce()) -> bool {
        // No other code holds the locks of two queues, so the order cannot deadlock.
        let mut states: Vec<_> = queues.iter().map(|queue| queue.lock()).collect();
        let is_unused = |state: &State| state.len() == 0 && state.open.is_none() && state.room.is_empty();
        let all = states.iter().all(|state| is_unused(state));
        if all {
            closing();
            states.iter_mut().for_each(|state| state.closed = true);
        }
        all
    }

    /// Sends a frame before everything queued, even while the gate is shut for items. Without a stream that could carry
    /// the frame it is dropped.
    pub(crate) fn notify(&self, frame: Bytes) {
        let mut state = self.lock();
        if state.accepted > state.ended {
            state.notices.push_back(frame);
            wake(state);
        }
    }

    /// Opens the gate for stream `seq` only; `uid` reads the stream.
    pub(crate) fn open(&self, seq: u64, uid: Uid) {
        let mut state = self.lock();
        state.notices.clear();
        (state.open, state.accepted) = (Some((seq, uid)), seq);
        wake(state);
    }

    /// Stream `seq` takes no more items, only notices.
    pub(crate) fn shut(&self, seq: u64) {
        let mut state = self.lock();
        if state.open.is_some_and(|(open, _)| open == seq) {
            state.open = None;
            wake_room(state);
        }
    }

    /// Ends stream `seq` and all before it.
    pub(crate) fn end(&self, seq: u64) {
        let mut state = self.lock();
        state.ended = state.ended.max(seq);
        if state.open.is_some_and(|(open, _)| open <= seq) {
            state.open = None;
            let waker = state.waker.take();
            wake_room(state);
            waker.into_iter().for_each(Waker::wake);
            return;
        }
        wake(state);
    }

    /// Puts the lane to rest; returns false, and does not, if items wait.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.lock();
        state.resting = state.len() == 0;
        state.resting
    }

    /// Takes up to `max` items for stream `seq`, or a notice for it, or tells it to end.
    pub(crate) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        seq: u64,
        max: usize,
        into: &mut VecDeque<Item>,
    ) -> Poll<Taken> {
        let mut state = self.lock();
        if seq <= state.ended {
            return Poll::Ready(Taken::Ended);
        }
        if seq == state.accepted
            && let Some(notice) = state.notices.pop_front()
        {
            state.used = true;
            return Poll::Ready(Taken::Notice(notice));
        }
        if let Some((_, uid)) = state.open.filter(|(open, _)| *open == seq)
            && state.len() > 0
        {
            state.take(max, into);
            state.used = true;
            let has_room = state.len() <= self.bounds.items / 2 && state.bytes <= self.bounds.bytes / 2;
            let room = if has_room { std::mem::take(&mut state.room) } else { BTreeMap::new() };
            drop(state);
            room.into_values().for_each(Waker::wake);
            return Poll::Ready(Taken::Items(uid));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Whether any item was taken since the last call, or waits.
    pub(crate) fn was_used(&self) -> bool {
        let mut state = self.lock();
        std::mem::take(&mut state.used) || state.len() > 0 || !state.notices.is_empty()
    }

    /// Takes the lock that a writer holds from taking items until it is done with them.
    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().expect("nothing under this lock panics")
    }

    /// Returns taken items to the front, in their order.
    pub(crate) fn put_back(&self, items: &mut VecDeque<Item>) {
        let mut state = self.lock();
        while let Some(item) = items.pop_back() {
            state.bytes += item.size();
            state.line_of(&item).push_front(item);
        }
    }

    /// Takes out the items that `chosen` selects, in order.
    pub(crate) fn extract(&self, chosen: impl Fn(&Item) -> bool) -> Vec<Item> {
        let _writing = self.writing();
        let mut state = self.lock();
        let mut all = VecDeque::new();
        state.take(usize::MAX, &mut all);
        let (out, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(chosen);
        for item in kept {
            state.bytes += item.size();
            state.line_of(&item).push_back(item);
        }
        wake_room(state);
        out
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().len() == 0
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().open.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing under this lock panics")
    }
}

impl State {
    fn len(&self) -> usize {
        self.items.len() + self.urgent.len()
    }

    fn line_of(&mut self, item: &Item) -> &mut VecDeque<Item> {
        if item.is_urgent() { &mut self.urgent } else { &mut self.items }
    }

    /// Takes out up to `max` items, the urgent ones first.
    fn take(&mut self, max: usize, into: &mut VecDeque<Item>) {
        if into.is_empty() && self.urgent.is_empty() && self.items.len() <= max {
            // Take everything by swapping the queues, without moving items.
            std::mem::swap(into, &mut self.items);
            self.bytes = 0;
            return;
        }
        let before = into.len();
        let urgent = self.urgent.len().min(max);
        into.extend(self.urgent.drain(..urgent));
        let others = self.items.len().min(max - urgent);
        into.extend(self.items.drain(..others));
        // Saturate: a hint that returned another value this time must not cause a panic.
        let size = into.iter().skip(before).map(Item::size).sum();
        self.bytes = self.bytes.saturating_sub(size);
    }
}

/// Wakes the senders that wait for room, which then poll again.
fn wake_room(mut state: MutexGuard<'_, State>) {
    let room = std::mem::take(&mut state.room);
    drop(state);
    room.into_values().for_each(Waker::wake);
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::envelope::Recipient;
    use greylag_core::CodecId;

    fn item(n: u64) -> Item {
        let envelope = Envelope::new(Recipient::new(n.to_string()), CodecId::JSON, "m", Bytes::new());
        Item::Envelope(Envelope { target_uid: Uid::new(n), ..envelope })
    }

    fn take(queue: &LaneQueue, seq: u64, max: usize) -> (Poll<Taken>, Vec<u64>) {
        let mut items = VecDeque::new();
        let taken = queue.poll_take(&mut Context::from_waker(Waker::noop()), seq, max, &mut items);
        (taken, items.iter().filter_map(Item::target).map(Uid::get).collect())
    }

    fn uid(n: u64) -> Uid {
        Uid::new(n).unwrap()
    }

    #[test]
    fn the_message_past_the_last_is_refused_but_a_mark_is_not() {
        let queue = LaneQueue::new(Bounds { items: 3072, bytes: 1 << 20 });
        assert_eq!(queue.push(item(1), false).unwrap(), Pushed::Wanted);
        for n in 2..=3072 {
            assert_eq!(queue.push(item(n), false).unwrap(), Pushed::Queued);
        }
        assert!(queue.push(item(3073), false).is_err());
        assert!(queue.push(item(3074), true).is_ok());
    }

    /// Cluster T22: a future in a `select!` is polled far more often than it has news; it has one place, and a dropped
    /// future gives its place back.
    #[test]
    fn a_waiting_sender_is_entered_once_and_removed_when_dropped() {
        let queue = queue_of(1);
        queue.push(item(1), false).unwrap();
        for id in [7, 8, 7, 8] {
            let waiter = Waiter { id, waker: Waker::noop() };
            let Item::Envelope(envelope) = item(id) else { panic!() };
            assert!(queue.push_envelope(&mut Some(envelope), false, Some(waiter)).is_none());
        }
        assert_eq!(queue.lock().room.len(), 2);
        queue.forget_waiting(7);
        assert_eq!(queue.lock().room.keys().collect::<Vec<_>>(), [&8]);
    }

    /// Cluster T33: an item pushed after the end is refused, so that no item is left uncounted.
    #[test]
    fn a_closed_queue_takes_not_even_a_mark() {
        let queue = queue_of(10);
        queue.close();
        assert!(queue.push(item(1), false).is_err());
        assert!(queue.push(item(2), true).is_err());
    }

    fn queue_of(items: usize) -> LaneQueue {
        LaneQueue::new(Bounds { items, bytes: 1 << 20 })
    }

    fn sized(n: u64, bytes: usize) -> Item {
        let envelope = Envelope::new(Recipient::new(""), CodecId::JSON, "", vec![0; bytes]);
        Item::Envelope(Envelope { target_uid: Uid::new(n), ..envelope })
    }

    /// Cluster T22: senders that are faster than the socket are woken once there is room for many frames, or once the
    /// stream ends and takes no more.
    #[test]
    fn waiting_senders_are_woken_at_half_or_when_the_stream_ends() {
        struct Woken(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Woken {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let woken = std::sync::Arc::new(Woken(false.into()));
        let waker = Waker::from(woken.clone());
        let was_woken = || woken.0.swap(false, std::sync::atomic::Ordering::Relaxed);
        let queue = queue_of(10);
        let wait = || {
            while queue.push(item(1), false).is_ok() {}
            let Item::Envelope(envelope) = item(2) else { panic!() };
            assert!(queue.push_envelope(&mut Some(envelope), false, Some(Waiter { id: 1, waker: &waker })).is_none());
        };
        queue.open(1, uid(9));
        wait();
        assert_eq!(take(&queue, 1, 4).1.len(), 4);
        assert!(!was_woken());
        assert_eq!(take(&queue, 1, 1).1.len(), 1);
        assert!(was_woken());
        wait();
        assert_eq!(take(&queue, 1, 1).1.len(), 1);
        queue.shut(1);
        assert!(was_woken(), "there is room, and no stream takes more");
        queue.open(2, uid(9));
        wait();
        assert_eq!(take(&queue, 2, 1).1.len(), 1);
        queue.end(2);
        assert!(was_woken());
    }

    /// Cluster T5: a few large messages fill a queue as many small ones do, and make room again when taken.
    #[test]
    fn a_queue_is_full_by_bytes_too() {
        let queue = LaneQueue::new(Bounds { items: 100, bytes: 1000 });
        queue.push(sized(1, 5000), false).expect("into an empty queue goes anything");
        assert!(queue.push(sized(2, 1), false).is_err());
        assert!(queue.push(sized(2, 1), true).is_ok(), "a mark is taken");
        queue.open(1, uid(9));
        assert_eq!(take(&queue, 1, 10).1, [1, 2]);
        queue.push(sized(3, 600), false).unwrap();
        assert!(queue.push(sized(4, 401), false).is_err());
        queue.push(sized(5, 400), false).unwrap();
        let mut taken = VecDeque::new();
        assert!(queue.poll_take(&mut Context::from_waker(Waker::noop()), 1, 10, &mut taken).is_ready());
        queue.put_back(&mut taken);
        assert!(queue.push(sized(6, 1), false).is_err(), "what was put back counts again");
        assert_eq!(queue.extract(|item| item.target() == Uid::new(3)).len(), 1);
        queue.push(sized(7, 600), false).unwrap();
        assert_eq!(take(&queue, 1, 10).1, [5, 7]);
    }

    /// Cluster T26: a heartbeat leaves with the next frame, however many items wait.
    #[test]
    fn a_heartbeat_waits_for_nothing_that_is_queued() {
        let heartbeat = |n| match item(n) {
            Item::Envelope(e) => Item::Envelope(Envelope { recipient: Recipient::new(Recipient::HEARTBEAT), ..e }),
            other => other,
        };
        let queue = queue_of(100);
        (1..=20).for_each(|n| drop(queue.push(item(n), false)));
        (101..=102).for_each(|n| drop(queue.push(heartbeat(n), false)));
        queue.open(1, uid(9));
        assert_eq!(take(&queue, 1, 4).1, [101, 102, 1, 2]);
        let mut unwritten = VecDeque::from([heartbeat(102), item(1), item(2)]);
        queue.put_back(&mut unwritten);
        assert_eq!(take(&queue, 1, 4).1, [102, 1, 2, 3]);
    }

    #[test]
    fn only_the_stream_at_the_gate_takes() {
        let queue = queue_of(10);
        (1..=3).for_each(|n| drop(queue.push(item(n), false)));
        assert!(take(&queue, 1, 2).0.is_pending());
        queue.open(1, uid(9));
        assert_eq!(take(&queue, 1, 2), (Poll::Ready(Taken::Items(uid(9))), vec![1, 2]));
        queue.end(1);
        assert_eq!(take(&queue, 1, 2).0, Poll::Ready(Taken::Ended));
        assert!(take(&queue, 2, 2).0.is_pending());
        let mut unwritten = VecDeque::from([item(1), item(2)]);
        queue.put_back(&mut unwritten);
        queue.open(2, uid(9));
        assert_eq!(take(&queue, 2, 5).1, [1, 2, 3]);
    }

    /// Cluster T20: a quarantined process goes on sending for years; notices that cannot be sent are not kept.
    #[test]
    fn notices_without_a_stream_are_not_kept() {
        let queue = queue_of(1);
        let notify = || queue.notify(Bytes::from_static(b"x"));
        notify();
        assert!(!queue.was_used());
        queue.open(1, uid(9));
        notify();
        assert!(queue.was_used());
        queue.end(1);
        queue.lock().notices.clear();
        notify();
        assert!(!queue.was_used());
    }

    #[test]
    fn a_shut_gate_lets_notices_through() {
        let queue = queue_of(10);
        queue.push(item(1), false).unwrap();
        queue.open(1, uid(9));
        queue.shut(1);
        queue.notify(Bytes::from_static(b"x"));
        assert_eq!(take(&queue, 1, 5).0, Poll::Ready(Taken::Notice(Bytes::from_static(b"x"))));
        assert!(take(&queue, 1, 5).0.is_pending());
        queue.notify(Bytes::from_static(b"y"));
        assert!(take(&queue, 2, 5).0.is_pending(), "a stream that was not answered says nothing but its Hello");
        assert_eq!(queue.extract(|item| item.target() == Uid::new(1)).len(), 1);
        assert!(queue.rest());
    }
}
