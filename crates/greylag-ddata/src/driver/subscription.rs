//! The mailbox of a subscriber: it holds the latest event per entry.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_crdt::ReplicatedData;
use tokio::sync::Notify;

use super::controls::Controls;
use super::task::Request;
use crate::api::effect::Notice;
use crate::api::key::KeyId;
use crate::api::read::{Changed, ChangedAny};

/// The changes of an entry, or of all entries of a prefix. At most one event per key is pending, the latest, so a slow
/// reader costs bounded memory and ends with the final state. Dropping the subscription ends it. Source: ddata R15.
pub type Subscription<T> = Changes<Changed<T>>;

/// The changes of entries of all types; each event names the entry and its type. Source: ddata R17.
pub type AnySubscription = Changes<ChangedAny>;

/// Events of one kind, the latest one of each entry. See [`Subscription`].
#[derive(Debug)]
pub struct Changes<C> {
    number: u64,
    mailbox: Arc<Mailbox<C>>,
    controls: Arc<Controls<Request>>,
}

/// The conversion of a notice into an event.
pub(super) trait FromNotice: Sized {
    /// `None` if the notice is not for this subscriber.
    fn from_notice(key: KeyId, notice: Notice) -> Option<Self>;
}

impl<T: ReplicatedData> FromNotice for Changed<T> {
    fn from_notice(key: KeyId, notice: Notice) -> Option<Self> {
        Some(match notice {
            Notice::Value(snapshot) => Self::Value { value: snapshot.to::<T>()?, key },
            Notice::Deleted => Self::Deleted { key },
            Notice::Expired => Self::Expired { key },
        })
    }
}

impl FromNotice for ChangedAny {
    fn from_notice(key: KeyId, notice: Notice) -> Option<Self> {
        Some(match notice {
            Notice::Value(snapshot) => Self::Value { tag: snapshot.data().tag(), key },
            Notice::Deleted => Self::Deleted { key },
            Notice::Expired => Self::Expired { key },
        })
    }
}

#[derive(Debug)]
struct Mailbox<C> {
    state: Mutex<State<C>>,
    wake: Notify,
}

#[derive(Debug)]
struct State<C> {
    pending: BTreeMap<KeyId, C>,
    /// Keys with a pending event, the oldest first.
    order: VecDeque<KeyId>,
    closed: bool,
}

impl<C> Mailbox<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The replicator's end of a mailbox.
pub(super) struct Feed<C> {
    mailbox: Arc<Mailbox<C>>,
}

impl<C: FromNotice> Feed<C> {
    pub(super) fn push(&self, key: KeyId, notice: Notice) {
        let Some(event) = C::from_notice(key.clone(), notice) else { return };
        let mut state = self.mailbox.lock();
        if state.pending.insert(key.clone(), event).is_none() {
            state.order.push_back(key);
        }
        drop(state);
        self.mailbox.wake.notify_one();
    }
}

impl<C> Drop for Feed<C> {
    fn drop(&mut self) {
        self.mailbox.lock().closed = true;
        self.mailbox.wake.notify_one();
    }
}

pub(super) fn channel<C>(controls: Arc<Controls<Request>>) -> (Changes<C>, Feed<C>) {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let state = State { pending: BTreeMap::new(), order: VecDeque::new(), closed: false };
    let mailbox = Arc::new(Mailbox { state: Mutex::new(state), wake: Notify::new() });
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    (Changes { number, mailbox: mailbox.clone(), controls }, Feed { mailbox })
}

impl<C> Changes<C> {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next change; `None` once the replicator has stopped and everything was read.
    ///
    /// Cancel safe: an event is taken only when it is returned.
    pub async fn next(&mut self) -> Option<C> {
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

impl<C> Drop for Changes<C> {
    fn drop(&mut self) {
        self.controls.end(self.number);
    }
}
