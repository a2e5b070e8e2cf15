//! How changes reach a subscriber: a mailbox that holds the latest event per entry.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_crdt::ReplicatedData;
use tokio::sync::{Notify, mpsc};

use super::task::{Request, Task};
use crate::key::KeyId;
use crate::message::{Input, Notice};
use crate::read::Changed;

/// The changes of an entry, or of all entries of a prefix. At most one event per key is pending, the
/// latest, so a slow reader costs bounded memory and ends with the final state. Source: ddata R15.
#[derive(Debug)]
pub struct Subscription<T> {
    number: u64,
    mailbox: Arc<Mailbox<T>>,
    control: mpsc::UnboundedSender<Request>,
}

#[derive(Debug)]
struct Mailbox<T> {
    state: Mutex<State<T>>,
    wake: Notify,
}

#[derive(Debug)]
struct State<T> {
    pending: BTreeMap<KeyId, Changed<T>>,
    /// Keys with a pending event, the one that waits longest first.
    order: VecDeque<KeyId>,
    closed: bool,
}

impl<T> Mailbox<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The replicator's end.
pub(super) struct Feed<T> {
    mailbox: Arc<Mailbox<T>>,
}

impl<T: ReplicatedData> Feed<T> {
    pub(super) fn push(&self, key: KeyId, notice: Notice) {
        let event = match notice {
            Notice::Value(snapshot) => match snapshot.to::<T>() {
                Some(value) => Changed::Value { key: key.clone(), value },
                None => return,
            },
            Notice::Deleted => Changed::Deleted { key: key.clone() },
            Notice::Expired => Changed::Expired { key: key.clone() },
        };
        let mut state = self.mailbox.lock();
        if state.pending.insert(key.clone(), event).is_none() {
            state.order.push_back(key);
        }
        drop(state);
        self.mailbox.wake.notify_one();
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        self.mailbox.lock().closed = true;
        self.mailbox.wake.notify_one();
    }
}

pub(super) fn channel<T>(control: mpsc::UnboundedSender<Request>) -> (Subscription<T>, Feed<T>) {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let state = State { pending: BTreeMap::new(), order: VecDeque::new(), closed: false };
    let mailbox = Arc::new(Mailbox { state: Mutex::new(state), wake: Notify::new() });
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    (Subscription { number, mailbox: mailbox.clone(), control }, Feed { mailbox })
}

impl<T> Subscription<T> {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next change; `None` once the replicator has stopped and everything was read.
    ///
    /// Cancel safe: an event is taken only when it is returned.
    pub async fn next(&mut self) -> Option<Changed<T>> {
        loop {
            {
                let mut state = self.mailbox.lock();
                if let Some(key) = state.order.pop_front() {
                    return state.pending.remove(&key);
                }
                if state.closed {
                    return None;
                }
            }
            self.mailbox.wake.notified().await;
        }
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        let subscriber = self.number;
        let unsubscribe = move |task: &mut Task| {
            task.unfollow(subscriber);
            task.handle(Input::Unsubscribe { subscriber });
        };
        drop(self.control.send(Box::new(unsubscribe)));
    }
}
