//! The queue in front of the committer, bounded in bytes: a caller that finds it full waits for room.
//!
//! The store refuses a request that does not fit. A refused append makes its entity recover, and thousands of
//! recovering entities would meet a queue as full. So a request takes room before it reaches the store, first come,
//! first served, and gives the room back when it is planned, whether or not its caller still waits for the answer.
//! Source: persistence §7 (`max_pending_bytes`).

use std::sync::Arc;

use greylag_store_sled::Request as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::unconstrained;

use crate::request::Request;

/// Bytes per semaphore permit, so that permits fit into 32 bits.
const UNIT: usize = 1024;

/// The room of the queue: how many bytes may wait.
#[derive(Debug)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    units: usize,
}

impl Room {
    pub(crate) fn new(max_pending_bytes: usize) -> Self {
        let units = (max_pending_bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { free: Arc::new(Semaphore::new(units)), units }
    }

    /// Waits for room. A request that is dropped before it has room is never carried out.
    pub(crate) async fn admit(&self, request: Request) -> Queued {
        // A request larger than all the room takes all of it, and so goes in alone.
        let units = request.bytes().div_ceil(UNIT).clamp(1, self.units);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // Unconstrained by tokio's task budget: if there is room, the first poll queues the request, so that a request
        // dropped after its first poll is still carried out (J13).
        let room = unconstrained(self.free.clone().acquire_many_owned(units)).await;
        Queued { request, room: Some(room.expect("this semaphore is never closed")) }
    }
}

/// A request with the room that it takes until it is planned.
pub(crate) struct Queued {
    pub(crate) request: Request,
    room: Option<OwnedSemaphorePermit>,
}

impl Queued {
    /// Takes the request out, and adds its room to `freed`.
    pub(crate) fn planned(self, freed: &mut Freed) -> Request {
        if let Some(room) = self.room {
            match &mut freed.0 {
                Some(freed) => freed.merge(room),
                None => freed.0 = Some(room),
            }
        }
        self.request
    }
}

/// The room of a whole group, given back at once when this is dropped.
#[derive(Default)]
pub(crate) struct Freed(Option<OwnedSemaphorePermit>);

/// A request without room of its own, for callers that use the store directly.
impl From<Request> for Queued {
    fn from(request: Request) -> Self {
        Self { request, room: None }
    }
}

impl greylag_store_sled::Request for Queued {
    fn bytes(&self) -> usize {
        self.request.bytes()
    }
}
