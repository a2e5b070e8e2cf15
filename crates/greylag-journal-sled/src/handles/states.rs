//! The handle of the state store.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    ChangesOf, CloseError, EncodedValue, Health, Offset, OffsetKind, PersistenceId, QueryError, ReadError, Scope,
    StateCaps, StateChange, StateStore, StateWrite, StateWriteError, StoredState,
};

use super::changes::SledChanges;
use super::inner::{Inner, Lost, mismatch};
use crate::lookup::LookupError;
use crate::request::{Answer, Request, WriteState};

/// The state store of a [`SledJournal`](crate::SledJournal), in the same directory and group commits.
///
/// Changes and events share one order of ordinals. The feed shows only the latest change of each id; a follower of a
/// tag reads every change after its offset.
#[derive(Debug, Clone)]
pub struct SledStates {
    inner: Arc<Inner>,
}

const CAPS: StateCaps = StateCaps::full(Scope::Node, OffsetKind::Ordinal);

impl SledStates {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// The query side, which shows every change once.
    pub fn queries(&self) -> SledChanges {
        SledChanges::new(self.inner.clone())
    }

    async fn write(
        &self,
        write: StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
    ) -> Result<(), StateWriteError> {
        let (value, tag) = content.as_ref().map_or((None, None), |(value, tag)| (Some(value), tag.as_deref()));
        write.check(value, tag, &CAPS).map_err(StateWriteError::Rejected)?;
        match self.inner.ask(Request::WriteState(Box::new(WriteState { write, content }))).await {
            Ok(Answer::WriteState(answer)) => answer,
            Ok(other) => mismatch(&other),
            Err(Lost::NotTaken(cause)) => Err(StateWriteError::NotStored(cause)),
            Err(Lost::Unanswered(cause)) => Err(StateWriteError::Unknown(cause)),
        }
    }
}

#[async_trait]
impl StateStore for SledStates {
    fn caps(&self) -> StateCaps {
        CAPS
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let id = id.clone();
        let reading = self.inner.read(move |reads| reads.state_or_absent(id));
        reading.await.map_err(ReadError::Unavailable)?
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(write, Some((value, tag))).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(write, None).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let after = after.cloned();
        let reading = self.inner.read(move |reads| {
            reads.state_ids(None, after.as_ref(), limit).map_err(|error| reads.read_error(LookupError::Store(error)))
        });
        reading.await.map_err(ReadError::Unavailable)?
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let from = match offset {
            Offset::None => 0,
            Offset::Ordinal(ordinal) => ordinal.saturating_add(1),
            Offset::Timestamp { .. } => {
                let (expected, found) = (OffsetKind::Ordinal, OffsetKind::Timestamp);
                return Err(QueryError::ForeignOffset { expected, found });
            }
        };
        let of = of.clone();
        let reading = self.inner.read(move |reads| {
            let changes = reads.changes(&of, from, limit);
            changes.map_err(|error| QueryError::Read(reads.read_error(error)))
        });
        reading.await.map_err(|failure| QueryError::Read(ReadError::Unavailable(failure)))?
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use greylag_core::CodecId;
    use greylag_persistence::{Revision, WriterUuid};
    use greylag_store_sled::{Batch, OnceDurable, Planner, Reader, Store, StoreError, Watermark};

    use super::*;
    use crate::heads::{Before, Undurable};
    use crate::planner::JournalPlanner;
    use crate::queued::Queued;
    use crate::rows::keys;
    use crate::{SledJournal, SledJournalSettings};

    fn write(id: &PersistenceId, revision: u32) -> (StateWrite, EncodedValue) {
        let writer_uuid = WriterUuid::from_u128(1);
        let write = StateWrite { id: id.clone(), revision: Revision::from(revision), generation: None, writer_uuid };
        let payload = vec![7; 150_000].into();
        (write, EncodedValue { codec_id: CodecId::JSON, manifest: "test".into(), schema_version: 1, payload })
    }

    /// J6: until its group is synced a write is not read, and the previous state is whole, chunks included.
    #[tokio::test]
    async fn states_that_are_not_durable_yet_are_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
        let (states, id) = (journal.states(), PersistenceId::unique("Counter|1").unwrap());
        let key = keys::state(&id);
        let (first, value) = write(&id, 1);
        states.upsert(first, value, None).await.unwrap();
        let durable = states.inner.store.reader().unwrap().get(&key).unwrap();
        let (second, value) = write(&id, 2);
        states.upsert(second, value, None).await.unwrap();
        let of = ChangesOf::Slices { entity_type: "Counter".into(), slices: 0..=1023 };
        let feed = async || {
            let changes = states.changes(&of, &Offset::None, 10).await.unwrap();
            changes.iter().map(|change| change.state.revision.as_u64()).collect::<Vec<_>>()
        };
        // As the committer does between applying a batch and its sync.
        let undurable = &states.inner.undurable;
        undurable.raise_to(1);
        undurable.publish(Before { rows: [(key.clone(), durable)].into(), ..Before::default() });
        assert_eq!(states.get(&id).await.unwrap().revision, Revision::FIRST);
        assert_eq!(feed().await, [1]);
        assert_eq!(states.changes(&of, &Offset::Ordinal(0), 10).await, Ok(vec![]), "nothing is visible after it yet");
        undurable.clear();
        undurable.raise_to(0);
        undurable.publish(Before { rows: [(key, None)].into(), ..Before::default() });
        assert_eq!(states.get(&id).await.unwrap(), StoredState::absent(id.clone()));
        assert_eq!((states.ids(None, 10).await.unwrap(), feed().await), (vec![], vec![]));
        undurable.clear();
        undurable.raise_to(2);
        assert_eq!((states.get(&id).await.unwrap().revision, feed().await), (Revision::from(2), vec![2]));
    }

    /// A planner that notes the row that readers are given until the group is durable.
    struct Watched {
        planner: JournalPlanner,
        undurable: Arc<Undurable>,
        key: Vec<u8>,
        seen: Arc<Mutex<Vec<Option<Option<Bytes>>>>>,
    }

    impl Planner for Watched {
        type Request = Queued;
        type Answer = Answer;

        fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
            self.planner.recover(reader, batch)
        }

        fn plan(&mut self, asked: Vec<Queued>, reader: &Reader, out: &mut Batch) -> Result<Vec<Answer>, StoreError> {
            let answers = self.planner.plan(asked, reader, out)?;
            self.seen.lock().unwrap().push(self.undurable.durable_row(&self.key));
            let removes = "the next plan removes chunks of the state that readers are shown until then";
            assert!(self.planner.needs_durable(), "{removes}");
            Ok(answers)
        }

        fn once_durable(&mut self) -> OnceDurable {
            let (settle, undurable, key) = (self.planner.once_durable(), self.undurable.clone(), self.key.clone());
            Box::new(move || {
                settle();
                assert_eq!(undurable.durable_row(&key), None, "what is durable is shown");
            })
        }
    }

    /// J6, the committer's side: the row before is published before the group is applied.
    #[test]
    fn the_row_before_is_published_before_the_group_is_applied() {
        let directory = tempfile::tempdir().unwrap();
        let (settings, undurable) = (SledJournalSettings::test(), Arc::new(Undurable::default()));
        let id = PersistenceId::unique("Counter|1").unwrap();
        let (key, seen) = (keys::state(&id), Arc::default());
        let watermark = Arc::new(Watermark::new(directory.path(), settings.disk.clone(), 0));
        let planner = JournalPlanner::new("test".into(), &settings, undurable.clone(), watermark);
        let watched = Watched { planner, undurable, key: key.clone(), seen: Arc::clone(&seen) };
        let store = Store::open(directory.path(), settings.store, watched).unwrap();
        let mut expected = vec![None];
        for revision in 1..=3 {
            let (write, value) = write(&id, revision);
            let request = WriteState { write, content: Some((value, None)) };
            store.submit(Request::WriteState(Box::new(request)).into()).unwrap().wait().unwrap();
            expected.push(store.reader().unwrap().get(&key).unwrap());
        }
        expected.pop();
        assert_eq!(*seen.lock().unwrap(), expected.into_iter().map(Some).collect::<Vec<_>>());
    }
}
