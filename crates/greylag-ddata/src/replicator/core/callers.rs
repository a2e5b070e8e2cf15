//! Takes the requests of this node's users: updates, deletes and reads. Source: ddata §3.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use greylag_crdt::{Change, Lineage, Markers, ReplicatedData, UpdateCx};

use super::ReplicatorCore;
use crate::api::effect::{Effect, Reply};
use crate::api::error::{DeleteError, RequestError, UpdateError};
use crate::api::key::{InvalidKey, Key, KeyId, problem};
use crate::api::level::{Level, WriteLevel};
use crate::api::read::{Lifecycle, Read};
use crate::data::entries::{Data, Entry, EntryContent};
use crate::dissemination::delta_log::{Record, RecordContent};
use crate::messages::message::DeltaItem;
use crate::replicator::local::LocalReplica;
use crate::storage::store::LoadedRecord;

impl ReplicatorCore {
    /// Changes an entry. The closure runs at once. On `Ok`, a later [`Reply::Update`] with this `id` says how the
    /// replication ended; on `Err` nothing changed, and no reply follows. Source: ddata R2.
    ///
    /// # Errors
    /// [`UpdateError`], except `Timeout` and `StoreFailed`.
    #[expect(clippy::too_many_arguments, reason = "an input, spelled out because a closure is no data")]
    pub fn update<T: ReplicatedData, O, E>(
        &mut self,
        now: Instant,
        wall_ms: i64,
        id: u64,
        key: &Key<T>,
        level: WriteLevel,
        init: impl FnOnce() -> T,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<O, E>,
        out: &mut Vec<Effect>,
    ) -> Result<O, UpdateError<E>> {
        let level = Level::from(level);
        self.set_wall(now, wall_ms, out);
        self.tell_time(now, out);
        self.check_request(key.id(), level)?;
        self.free(now, key.id(), out);
        self.local.add_type::<T>();
        let existing = self.existing(key)?;
        let home = self.local.entries.home(key.id());
        let lineage = Lineage(self.local.writer.draw());
        let mut base = existing.clone().unwrap_or_else(T::zero);
        base.bind(home);
        let LocalReplica { writer, settings, pruning, .. } = &self.local;
        let mut cx = writer.context(settings, &pruning.ranges, home, wall_ms);
        let run = AssertUnwindSafe(|| -> Result<(T, bool, O), UpdateError<E>> {
            let mut value = base.clone();
            // Merge a first value that is not empty: no delta explains it.
            let merged = match existing {
                Some(_) => Ok(()),
                None => Some(init())
                    .filter(|first| *first != T::zero())
                    .map_or(Ok(()), |first| value.merge(&first).map(drop)),
            };
            merged.map_err(UpdateError::Merge)?;
            let seeded = existing.is_none() && value != base;
            value.begin_change(lineage);
            let output = modify(&mut value, &mut cx).map_err(UpdateError::Modify)?;
            Ok((value, seeded, output))
        });
        let (mut value, seeded, output) = catch_unwind(run).map_err(|_| UpdateError::ModifyPanicked)??;
        let mut change = value.take_change(lineage);
        if seeded || change == Change::FullOnly {
            // The closure may have replaced the value, so join the former one: nothing is lost. Clean first: data of a
            // removed replica must not come back that way.
            let markers = self.local.entries.markers(key.id());
            if let Some(pruning) = value.pruning_mut().filter(|_| !markers.is_empty()) {
                markers.clean(pruning);
            }
            let mut joined = base.clone();
            joined.merge(&value).map_err(UpdateError::Merge)?;
            value = joined;
            change = if value == base { Change::None } else { Change::FullOnly };
        }
        self.commit(now, id, key, level, existing.is_some(), home.born, value, change, out)?;
        self.finish_input(now, out);
        Ok(output)
    }

    fn existing<T: ReplicatedData, E>(&self, key: &Key<T>) -> Result<Option<T>, UpdateError<E>> {
        if let Some(LoadedRecord::Value { tag, .. }) = self.local.entries.storing.held_back.get(key.id()) {
            let (expected, found) = (T::TAG.to_string(), tag.to_string());
            return Err(UpdateError::TypeMismatch { key: key.id().clone(), expected, found });
        }
        match self.local.entries.get(key.id()).map(|entry| &entry.data) {
            None => Ok(None),
            Some(Data::Tombstone { .. }) => Err(UpdateError::Deleted { key: key.id().clone() }),
            Some(Data::Value(value)) => match value.as_any().downcast_ref::<T>() {
                Some(value) => Ok(Some(value.clone())),
                None => Err(UpdateError::TypeMismatch {
                    key: key.id().clone(),
                    expected: T::TAG.to_string(),
                    found: value.tag().to_string(),
                }),
            },
        }
    }

    /// Commits a change: sets the entry, logs the change, and has it confirmed.
    #[expect(clippy::too_many_arguments, reason = "the second half of `update`")]
    fn commit<T: ReplicatedData, E>(
        &mut self,
        now: Instant,
        id: u64,
        key: &Key<T>,
        level: Level,
        existed: bool,
        born: u64,
        value: T,
        change: Change<T::Delta>,
        out: &mut Vec<Effect>,
    ) -> Result<(), UpdateError<E>> {
        let delta = match change {
            Change::None => {
                self.local.touch(key.id(), out);
                self.requests.begin_write(&mut self.local, now, id, key.id(), level, None, false, out);
                return Ok(());
            }
            Change::Delta(delta) if self.local.settings.delta_enabled => Some(T::delta_to_bytes(&delta)),
            Change::Delta(_) | Change::FullOnly => None,
        };
        // Look the entry up once: with a million entries the lookup is most of the cost of an update.
        let (mut versions, former, markers, before) = match self.local.entries.get(key.id()) {
            Some(own) => (own.versions.to_map(), own.size_bound, own.markers().clone(), Some(own.digest())),
            None => (BTreeMap::new(), 0, Markers::new(), None),
        };
        let added = delta.as_ref().map_or_else(|| value.to_untagged_bytes().len(), Vec::len);
        let size_bound = self.check_size(key.id(), existed, &value, former + added)?;
        let replica = self.local.writer.replica();
        let prev = versions.get(&replica).copied().unwrap_or(0);
        let version = self.local.writer.draw();
        if T::CAUSAL && self.local.settings.delta_enabled {
            versions.insert(replica, version);
        }
        let tag = self.local.entries.tag_of(&value);
        let (data, used_ms) = (Data::Value(Box::new(value)), Some(self.local.wall.ms(now)));
        let content = EntryContent { data, versions, markers: markers.clone(), size_bound, born, used_ms };
        let delta: Option<bytes::Bytes> = delta.map(Into::into);
        self.local.entries.set_by(key.id(), content, delta.as_ref());
        let used_ms = self.local.entries.note_update(key.id());
        if let Some(delta) = &delta {
            self.local.entries.note_delta(key.id(), delta, before);
        }
        // At the local level no replica is asked, so no delta is sent.
        let asked = delta.as_ref().filter(|_| level != Level::Local);
        let item = asked.map(|delta| DeltaItem {
            key: key.id().clone(),
            tag: tag.clone(),
            prev,
            version,
            delta: delta.clone(),
            markers,
            used_ms,
        });
        let content = delta.map_or(RecordContent::Full, RecordContent::Delta);
        self.local.append(Record { key: key.id().clone(), tag, prev, version, content }, out);
        if self.local.settings.log_data_size_exceeding.is_some_and(|limit| size_bound >= limit) {
            self.local.note_size(key.id(), out);
        }
        self.requests.begin_write(&mut self.local, now, id, key.id(), level, item, true, out);
        Ok(())
    }

    /// Above the limit only updates that grow the value are refused. A value is encoded to measure it only when the
    /// bound says that it may be above the limit. Source: ddata E4.
    fn check_size<T: ReplicatedData, E>(
        &mut self,
        key: &KeyId,
        existed: bool,
        value: &T,
        bound: usize,
    ) -> Result<usize, UpdateError<E>> {
        let max = self.local.settings.max_entry_bytes;
        if bound <= max {
            return Ok(bound);
        }
        let size = value.to_untagged_bytes().len();
        if size <= max {
            return Ok(size);
        }
        let before = if existed { self.local.entries.encoded_size(key).unwrap_or(0) } else { 0 };
        if size > before {
            return Err(UpdateError::EntryTooLarge { key: key.clone(), size, max });
        }
        Ok(size)
    }

    pub(super) fn on_delete(
        &mut self,
        now: Instant,
        id: u64,
        key: KeyId,
        level: Level,
        wall_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        let refused = match self.check_request(&key, level) {
            Err(error) => Some(DeleteError::Request(error)),
            Ok(()) => matches!(self.local.entries.get(&key), Some(Entry { data: Data::Tombstone { .. }, .. }))
                .then(|| DeleteError::AlreadyDeleted { key: key.clone() }),
        };
        if let Some(error) = refused {
            out.push(Effect::Reply { id, reply: Reply::Delete(Err(error)) });
            return;
        }
        self.free(now, &key, out);
        self.local.entries.merge_tombstone(&key, wall_ms);
        self.local.log.clear_deltas(&key);
        let version = self.local.writer.draw();
        self.local
            .append(Record { key: key.clone(), tag: "".into(), prev: 0, version, content: RecordContent::Full }, out);
        self.requests.begin_delete(&mut self.local, now, id, &key, level, out);
    }

    pub(super) fn on_get(
        &mut self,
        now: Instant,
        id: u64,
        key: KeyId,
        tag: Arc<str>,
        level: Level,
        out: &mut Vec<Effect>,
    ) {
        let result = match self.check_request(&key, level) {
            Err(error) => Err(error.into()),
            Ok(()) => self.local.read(&key, &tag),
        };
        if matches!(result, Ok(Read::Found(_))) {
            self.local.touch(&key, out);
        }
        match result {
            // A local tombstone is final; any other result may be outdated, so other replicas are asked.
            Ok(Read::Found(_) | Read::NotFound) if level != Level::Local => {
                self.requests.begin_read(&mut self.local, now, id, key, tag, level, out);
            }
            result => out.push(Effect::Reply { id, reply: Reply::Get(result) }),
        }
    }

    fn check_request(&self, key: &KeyId, level: Level) -> Result<(), RequestError> {
        if let Lifecycle::Stopped(reason) = self.local.lifecycle() {
            return Err(RequestError::Stopped(reason.clone()));
        }
        if let Some(reason) = self.shutdown.reason() {
            return Err(RequestError::Stopped(reason.clone()));
        }
        if *self.local.lifecycle() == Lifecycle::Loading {
            return Err(RequestError::Overloaded);
        }
        if let Some(why) = problem(key) {
            return Err(InvalidKey { id: key.clone(), why }.into());
        }
        if !level.is_valid() {
            return Err(RequestError::InvalidConsistency);
        }
        if level != Level::Local && self.requests.is_overloaded(self.local.settings.max_in_flight) {
            return Err(RequestError::Overloaded);
        }
        Ok(())
    }
}
