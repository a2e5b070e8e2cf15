//! One session for each client at a time.
//!
//! A client that lost its connection opens another one and sends its unanswered calls again. The server may not have
//! noticed the loss yet, and still be working through calls that it received before. A late copy of an append is
//! recognised (J10), but a late copy of a claim of slices would fence the very owner that repeated the claim, and one
//! of a reset would undo later saves. So a new session makes the previous one end, and waits for its end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedMutexGuard, watch};
use tonic::Status;

/// The seats of all connected clients.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<u128, Arc<Place>>>);

#[derive(Debug)]
struct Place {
    /// Count of sessions that the client has begun.
    latest: watch::Sender<u64>,
    taken: Arc<tokio::sync::Mutex<()>>,
}

/// The right to serve a client, until the client begins another session.
pub(super) struct Seat {
    seats: Arc<Seats>,
    client: u128,
    number: u64,
    latest: watch::Receiver<u64>,
    taken: Option<OwnedMutexGuard<()>>,
}

impl Seats {
    /// Makes the previous session of the client end, and waits for its end.
    pub(super) async fn take(seats: &Arc<Self>, client_id: &[u8]) -> Result<Seat, Status> {
        let unreadable = |_| Status::invalid_argument("a client's id has 16 bytes");
        let client = u128::from_be_bytes(client_id.try_into().map_err(unreadable)?);
        let (mut seat, taken) = {
            let mut places = seats.places();
            let place = places
                .entry(client)
                .or_insert_with(|| Arc::new(Place { latest: watch::Sender::new(0), taken: Arc::default() }));
            place.latest.send_modify(|latest| *latest += 1);
            let latest = place.latest.subscribe();
            let number = *latest.borrow();
            (Seat { seats: seats.clone(), client, number, latest, taken: None }, place.taken.clone())
        };
        let taken = tokio::select! {
            taken = taken.lock_owned() => taken,
            () = seat.given_up() => return Err(Status::aborted("the client has begun another session")),
        };
        seat.taken = Some(taken);
        Ok(seat)
    }

    fn places(&self) -> MutexGuard<'_, HashMap<u128, Arc<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Resolves once the client has begun another session.
    pub(super) async fn given_up(&mut self) {
        let number = self.number;
        // Never an error: the sender lives as long as this seat.
        let _never = self.latest.wait_for(|latest| *latest > number).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut places = self.seats.places();
        let is_last = places.get(&self.client).is_some_and(|place| *place.latest.borrow() == self.number);
        if is_last {
            places.remove(&self.client);
        }
        drop(self.taken.take());
    }
}
