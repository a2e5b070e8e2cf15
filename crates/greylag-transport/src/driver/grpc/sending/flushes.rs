//! Flushes: a caller waits until all messages sent before were taken at the other end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::UniqueAddress;
use tokio::sync::mpsc;

use crate::driver::grpc::codec::OutFrame;
use crate::endpoints::endpoint::isolated;
use crate::lanes::lane::Lane;

/// Called when a flush is complete.
pub(crate) type Done = Box<dyn FnOnce() + Send + Sync>;

/// The flushes that this node has begun.
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    peer: UniqueAddress,
    lanes: BTreeSet<Lane>,
    since: Instant,
    done: Done,
}

/// How long an open flush is kept: its mark may have been lost with a stream, and no caller waits this long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

impl Flushes {
    /// Begins a flush that waits for the answers of these lanes; returns its number, which the marks carry.
    pub(crate) fn begin(&self, now: Instant, peer: UniqueAddress, lanes: BTreeSet<Lane>, done: Done) -> u64 {
        let mut state = self.state.lock().expect(NO_PANIC);
        state.open.retain(|_, open| now.saturating_duration_since(open.since) < FORGOTTEN_AFTER);
        state.next += 1;
        let id = state.next;
        state.open.insert(id, Open { peer, lanes, since: now, done });
        id
    }

    /// Notes that `from` has taken everything before the mark on this lane.
    pub(crate) fn acked(&self, from: &UniqueAddress, lane: Lane, id: u64) {
        let mut state = self.state.lock().expect(NO_PANIC);
        let Some(open) = state.open.get_mut(&id).filter(|open| open.peer == *from) else { return };
        open.lanes.remove(&lane);
        if !open.lanes.is_empty() {
            return;
        }
        let finished = state.open.remove(&id);
        drop(state);
        if let Some(finished) = finished {
            isolated("a flush", "its end", finished.done);
        }
    }
}

/// Follows messages through the workers; the last worker that passes the mark answers its sender. A mark that is lost
/// on its way is never answered.
pub(crate) struct Mark {
    to_pass: AtomicUsize,
    end: Mutex<Option<MarkEnd>>,
}

enum MarkEnd {
    Answer(mpsc::Sender<Result<OutFrame, tonic::Status>>, Bytes),
    Call(Done),
}

impl Mark {
    /// A mark of another node; the answer is this frame.
    pub(crate) fn remote(replies: mpsc::Sender<Result<OutFrame, tonic::Status>>, frame: Bytes) -> Self {
        Self { to_pass: AtomicUsize::new(1), end: Mutex::new(Some(MarkEnd::Answer(replies, frame))) }
    }

    /// A mark of this node to itself.
    pub(crate) fn local(done: Done) -> Self {
        Self { to_pass: AtomicUsize::new(1), end: Mutex::new(Some(MarkEnd::Call(done))) }
    }

    /// Sets the number of workers that have to pass the mark.
    pub(crate) fn before(mut self, workers: usize) -> Arc<Self> {
        *self.to_pass.get_mut() = workers;
        Arc::new(self)
    }

    /// Called once by each worker when it has taken everything before the mark.
    pub(crate) fn pass(&self) {
        if self.to_pass.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let end = self.end.lock().expect(NO_PANIC).take();
        match end {
            // Drop the answer if there is no room: the peer does not read, and its flush times out.
            Some(MarkEnd::Answer(replies, frame)) => drop(replies.try_send(Ok(OutFrame::Ready(frame)))),
            Some(MarkEnd::Call(done)) => drop(isolated("a flush", "its end", done)),
            None => {}
        }
    }
}

const NO_PANIC: &str = "nothing under this lock panics";
