//! One update or delete that waits for confirmations.

use super::early::Early;
use super::quorum::{Progress, Quorum};
use crate::api::effect::{Effect, Reply};
use crate::api::error::{DeleteError, RequestError, StopReason, UpdateError};
use crate::api::key::KeyId;
use crate::messages::message::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteKind {
    Update,
    Delete,
}

/// An update or delete that waits for confirmations.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) id: u64,
    pub(super) key: KeyId,
    pub(super) kind: WriteKind,
    /// Whether the request waits only for the own store.
    pub(super) is_local: bool,
    pub(super) quorum: Quorum,
    /// Whether the request changed the entry; if not, others are shown what the entry holds.
    pub(super) changed: bool,
    /// Whether the entry still has to be stored here; `false` for entries that are not durable.
    pub(super) awaits_store: bool,
    /// Whether a replica could not store the entry.
    store_refused: bool,
    /// Whether a replica refused for any other reason.
    otherwise_refused: bool,
    pub(super) early: Option<Early>,
}

impl WriteRequest {
    pub(super) fn new(
        id: u64,
        key: KeyId,
        kind: WriteKind,
        changed: bool,
        is_local: bool,
        quorum: Quorum,
        early: Option<Early>,
    ) -> Self {
        let (awaits_store, store_refused, otherwise_refused) = (false, false, false);
        Self { id, key, kind, is_local, quorum, changed, awaits_store, store_refused, otherwise_refused, early }
    }

    /// Done if enough replicas acknowledged and the entry is on disk here, or another replica made up for a failed
    /// disk.
    pub(super) fn progress(&self) -> Progress {
        match self.quorum.progress() {
            _ if self.early.is_some() => Progress::Pending,
            Progress::Done if self.awaits_store => Progress::Pending,
            progress => progress,
        }
    }

    /// Whether this replica may count: its store has not failed.
    pub(super) fn own_counts(&self) -> bool {
        !self.store_refused
    }

    /// Notes that a replica refused for good.
    pub(super) fn on_refused(&mut self, refusal: Refusal) {
        self.store_refused |= refusal == Refusal::Store;
        self.otherwise_refused |= refusal != Refusal::Store;
    }

    /// Notes that the own store has answered.
    pub(super) fn on_own_store(&mut self, is_stored: bool) {
        self.awaits_store = false;
        self.store_refused |= !is_stored;
    }

    /// Notes that the entry is gone here. Enough others may have confirmed, but the change was also to be on this
    /// replica's disk, and will not be.
    pub(super) fn on_gone(&mut self) {
        self.store_refused |= self.awaits_store && self.quorum.progress() == Progress::Done;
    }

    /// The answer to the caller, as the request stands.
    pub(super) fn reply(&self) -> Effect {
        let done = self.progress() == Progress::Done;
        let only_stores_refused = self.store_refused && !self.otherwise_refused;
        let (needed, acked, refused) = (self.quorum.needed(), self.quorum.got(), self.quorum.refused());
        let key = self.key.clone();
        let reply = match self.kind {
            WriteKind::Update if done => Reply::Update(Ok(())),
            WriteKind::Update if self.store_refused => Reply::Update(Err(UpdateError::StoreFailed { key })),
            WriteKind::Update => Reply::Update(Err(UpdateError::Timeout { needed, acked, refused })),
            WriteKind::Delete if done => Reply::Delete(Ok(())),
            WriteKind::Delete if only_stores_refused => Reply::Delete(Err(DeleteError::StoreFailed { key })),
            WriteKind::Delete => Reply::Delete(Err(DeleteError::ReplicationFailed { needed, acked })),
        };
        Effect::Reply { id: self.id, reply }
    }

    /// The answer to the caller when the replicator stops.
    pub(super) fn stopped_reply(&self, reason: &StopReason) -> Effect {
        let stopped = || RequestError::Stopped(reason.clone());
        let reply = match self.kind {
            WriteKind::Update => Reply::Update(Err(stopped().into())),
            WriteKind::Delete => Reply::Delete(Err(stopped().into())),
        };
        Effect::Reply { id: self.id, reply }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn write(kind: WriteKind, needed: usize) -> WriteRequest {
        let others = vec!["b:1#2".parse().unwrap()];
        let (quorum, _) = Quorum::new(Instant::now(), needed, true, others, Duration::from_secs(5));
        WriteRequest::new(1, "k".into(), kind, true, false, quorum, None)
    }

    /// ddata R12: a failed disk is named as the reason of an update in any case, and of a delete unless a replica
    /// refused for another reason too.
    #[test]
    fn a_failed_disk_is_named_as_the_reason() {
        let reply = |kind, refusals: &[Refusal]| {
            let mut write = write(kind, 1);
            refusals.iter().for_each(|refusal| write.on_refused(*refusal));
            match write.reply() {
                Effect::Reply { id: 1, reply } => reply,
                other => panic!("{other:?}"),
            }
        };
        let (store, other) = (Refusal::Store, Refusal::TooLarge);
        let failed = || Reply::Update(Err(UpdateError::StoreFailed { key: "k".into() }));
        assert_eq!(reply(WriteKind::Update, &[store]), failed());
        assert_eq!(reply(WriteKind::Update, &[store, other]), failed());
        let timeout = UpdateError::Timeout { needed: 2, acked: 1, refused: 0 };
        assert_eq!(reply(WriteKind::Update, &[other]), Reply::Update(Err(timeout)));
        assert_eq!(
            reply(WriteKind::Delete, &[store]),
            Reply::Delete(Err(DeleteError::StoreFailed { key: "k".into() }))
        );
        let failure = DeleteError::ReplicationFailed { needed: 2, acked: 1 };
        assert_eq!(reply(WriteKind::Delete, &[store, other]), Reply::Delete(Err(failure)));
    }

    /// ddata R12, E1: a write is pending as long as the own disk has not answered; if the entry is gone before that,
    /// the own disk counts as failed, however many others confirmed.
    #[test]
    fn a_write_waits_for_the_own_disk() {
        let mut waiting = write(WriteKind::Update, 0);
        waiting.awaits_store = true;
        assert_eq!((waiting.progress(), waiting.own_counts()), (Progress::Pending, true));
        waiting.on_gone();
        assert!(!waiting.own_counts());
        waiting.on_own_store(false);
        assert_eq!((waiting.progress(), waiting.own_counts()), (Progress::Done, false));
        let mut stored = write(WriteKind::Update, 1);
        stored.on_gone();
        assert!(stored.own_counts(), "the disk was not awaited");
    }
}
