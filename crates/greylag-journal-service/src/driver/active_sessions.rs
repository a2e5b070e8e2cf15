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

/// The sessions of all connected clients.
#[derive(Debug, Default)]
pub(super) struct ActiveSessions(Mutex<HashMap<u128, Arc<ClientSessions>>>);

#[derive(Debug)]
struct ClientSessions {
    /// Count of sessions that the client has begun.
    latest: watch::Sender<u64>,
    /// Held by the session that is served.
    serving: Arc<tokio::sync::Mutex<()>>,
}

/// The right to serve a client, until the client begins another session.
pub(super) struct SessionSlot {
    active: Arc<ActiveSessions>,
    client: u128,
    number: u64,
    latest: watch::Receiver<u64>,
    serving: Option<OwnedMutexGuard<()>>,
}

impl ActiveSessions {
    /// Makes the previous session of the client end, and waits for its end.
    pub(super) async fn begin(active: &Arc<Self>, client_id: &[u8]) -> Result<SessionSlot, Status> {
        let unreadable = |_| Status::invalid_argument("a client's id has 16 bytes");
        let client = u128::from_be_bytes(client_id.try_into().map_err(unreadable)?);
        let (mut slot, serving) = {
            let mut clients = active.clients();
            let sessions = clients
                .entry(client)
                .or_insert_with(|| Arc::new(ClientSessions { latest: watch::Sender::new(0), serving: Arc::default() }));
            sessions.latest.send_modify(|latest| *latest += 1);
            let latest = sessions.latest.subscribe();
            let number = *latest.borrow();
            (SessionSlot { active: active.clone(), client, number, latest, serving: None }, sessions.serving.clone())
        };
        let serving = tokio::select! {
            serving = serving.lock_owned() => serving,
            () = slot.superseded() => return Err(Status::aborted("the client has begun another session")),
        };
        slot.serving = Some(serving);
        Ok(slot)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u128, Arc<ClientSessions>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionSlot {
    /// Resolves once the client has begun another session.
    pub(super) async fn superseded(&mut self) {
        let number = self.number;
        // Never an error: the sender lives as long as this slot.
        let _never = self.latest.wait_for(|latest| *latest > number).await;
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut clients = self.active.clients();
        let is_last = clients.get(&self.client).is_some_and(|sessions| *sessions.latest.borrow() == self.number);
        if is_last {
            clients.remove(&self.client);
        }
        drop(self.serving.take());
    }
}
