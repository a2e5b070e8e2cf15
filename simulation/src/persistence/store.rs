//! The stores that all nodes share: the real ones in memory, perhaps with an omission.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use greylag_persistence::{
    Append, Appended, Caps, Head, InMemoryJournal, InMemorySnapshots, InMemoryStates, Journal, PersistenceId, Scope,
    SnapshotCaps, StateCall, StateCaps, StateHead, StateStore, StateWrite, StoreAnswer, StoreCall, StoredState, Stores,
    Timestamp, Under,
};

use super::machine::{Answer, Call};
use crate::Omission;

pub(super) struct Store {
    stores: Stores,
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    states: InMemoryStates,
    micros: Arc<AtomicU64>,
    without: Option<Omission>,
}

/// The result of a call to a store in memory, which is done at its first poll.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("no future of a store in memory waits"),
    }
}

impl Store {
    pub(super) fn new(latest_only: bool, without: Option<Omission>) -> Self {
        let micros = Arc::new(AtomicU64::new(1));
        let clock = || {
            let micros = micros.clone();
            move || Timestamp::from_micros(micros.load(Ordering::Relaxed))
        };
        let journal = InMemoryJournal::new(Scope::Shared, clock());
        let caps = SnapshotCaps { latest_only, ..SnapshotCaps::full(Scope::Shared) };
        let snapshots = InMemorySnapshots::new(caps, clock());
        let states = InMemoryStates::new(Scope::Shared, clock());
        let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
        Self { stores, journal, snapshots, states, micros, without }
    }

    pub(super) fn caps(&self) -> (Caps, SnapshotCaps, StateCaps) {
        (self.journal.caps(), self.stores.snapshots.caps(), self.states.caps())
    }

    pub(super) fn head(&self, id: &PersistenceId) -> Head {
        now(self.journal.head(id)).expect("memory answers")
    }

    pub(super) fn state_head(&self, id: &PersistenceId) -> StateHead {
        self.states.row(id).unwrap_or_else(|| StoredState::absent(id.clone())).head()
    }

    /// The snapshots of an id, oldest first.
    pub(super) fn snapshots(&self, id: &PersistenceId) -> Vec<greylag_persistence::SeqNr> {
        self.snapshots.snapshots(id).iter().map(|snapshot| snapshot.seq_nr).collect()
    }

    pub(super) fn damage(&self, id: &PersistenceId, seq_nr: greylag_persistence::SeqNr, consistent: bool) {
        self.snapshots.damage(id, seq_nr, consistent);
    }

    pub(super) fn perform(&self, at_micros: u64, call: Call) -> Answer {
        self.micros.store(at_micros, Ordering::Relaxed);
        match call {
            Call::EventEntity(call) => {
                let call = self.weakened(call);
                Answer::EventEntity(now(call.perform(&self.stores)))
            }
            Call::StateEntity(call) => {
                let call = self.weakened_state(call);
                Answer::StateEntity(now(call.perform(&self.states)))
            }
        }
    }

    /// The answer of a store that does not wait until the write is durable.
    pub(super) fn hasty() -> Answer {
        Answer::EventEntity(StoreAnswer::Appended(Ok(Appended { timestamp: Timestamp::from_micros(1) })))
    }

    /// Changes a call so that it passes the check that is omitted.
    fn weakened(&self, call: StoreCall) -> StoreCall {
        match (self.without, call) {
            (Some(Omission::EpochCheck), StoreCall::Append(append)) => {
                let head = self.head(&append.id);
                StoreCall::Append(Append { epoch: head.epoch, writer_uuid: head.writer_uuid, ..append })
            }
            (Some(Omission::NumberCheck), StoreCall::Append(append)) => {
                let first = self.head(&append.id).highest.next().expect("few events");
                StoreCall::Append(Append { first, ..append })
            }
            (Some(Omission::GenerationCheck), StoreCall::Claim { id, writer_uuid, under: Under::Generation(_) })
            | (Some(Omission::SeenCheck), StoreCall::Claim { id, writer_uuid, under: Under::Seen(_) }) => {
                let under = Under::Seen(self.head(&id).epoch);
                StoreCall::Claim { id, writer_uuid, under }
            }
            (_, call) => call,
        }
    }

    fn weakened_state(&self, call: StateCall) -> StateCall {
        let write = |write: StateWrite| match self.without {
            Some(Omission::RevisionCheck) => {
                let revision = self.state_head(&write.id).revision.next().expect("few writes");
                StateWrite { revision, ..write }
            }
            Some(Omission::GenerationCheck) => StateWrite { generation: None, ..write },
            _ => write,
        };
        match call {
            StateCall::Upsert { write: named, value, tag } => StateCall::Upsert { write: write(named), value, tag },
            StateCall::Delete { write: named } => StateCall::Delete { write: write(named) },
            StateCall::Get { id } => StateCall::Get { id },
        }
    }
}
