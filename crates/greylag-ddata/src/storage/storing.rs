//! Tracks the changes of durable entries that are not on disk, and the requests that wait for them.
//!
//! Changes gather while a store request is under way and go into the next one together, so all entries share one flush,
//! and an entry that changes a hundred times meanwhile is stored once. A request that must confirm that an entry is on
//! disk waits for the store request that holds everything the entry held when the request came. After a failure the
//! whole entry is stored again: by the next request that touches it, by its next change, or after [`RETRY_PAUSE`].
//!
//! An entry is stored as a snapshot; a large one as a snapshot and the deltas since, as long as that is cheaper.
//! Source: ddata U2, U3, U5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::UniqueAddress;

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::durable::DurableSettings;
use crate::api::settings::omissions::Clause;
use crate::data::entries::{Data, Entry};
use crate::data::types::{AnyData, TypeTable};
use crate::storage::store::{LoadedRecord, StoreMeta, StoreOp};

/// Larger entries are stored as a snapshot and deltas.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;
/// How long to wait before an entry that could not be stored, and that no request asks about, is stored again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A request that waits for an entry to be on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A local write, by its number.
    Write(u64),
    /// A local read, by its number.
    Read(u64),
    /// A peer that gets an acknowledgement.
    Peer { to: UniqueAddress, request: u64 },
}

#[derive(Debug)]
struct PendingRequest {
    key: KeyId,
    waiter: Waiter,
    /// Whether the entry was stored on account of this request: a failure is then final. Other requests first get a
    /// store request of their own.
    on_own_account: bool,
}

/// The change of an entry since it was last handed to the store.
#[derive(Debug)]
enum Change {
    Deltas(Vec<Bytes>),
    Full,
}

/// The stored bytes of a large entry.
#[derive(Debug, Clone, Copy)]
struct Large {
    snapshot: usize,
    deltas: usize,
}

#[derive(Debug)]
struct Flight {
    ticket: u64,
    keys: BTreeSet<KeyId>,
    asides: Vec<KeyId>,
    /// The replicator's own times, starts and removed set as the batch stores them; `None` if it stores none.
    meta: Option<StoreMeta>,
    meta_goes_first: bool,
    waiting: Vec<PendingRequest>,
}

/// The requests to answer after a store request, by its outcome for them.
#[derive(Debug, Default)]
pub(crate) struct StoreOutcome {
    pub(crate) safe: Vec<Waiter>,
    pub(crate) failed: Vec<Waiter>,
}

/// The state of the store's own record: what must be written next, and what is stored.
#[derive(Debug, Default)]
struct MetaState {
    /// Whether horizon and starts must be stored before any gathered change.
    goes_first: bool,
    /// Whether the own record could not be stored, and waits for the next change or the next try.
    has_failed: bool,
    /// The last time in touch in the store, together with everything that was known until then.
    synced_at: Option<i64>,
    /// Whether the store certainly says that this replicator has met others.
    has_met_others: bool,
}

impl MetaState {
    /// The record to write while data of former rounds are missing in the store: a time in touch vouches for all of
    /// them.
    fn of_before(&self, meta: StoreMeta) -> StoreMeta {
        let stored = self.synced_at.unwrap_or(i64::MIN);
        if !meta.has_met_others && self.synced_at != Some(i64::MIN) {
            return meta;
        }
        let synced_at = meta.synced_at.map_or(stored, |at| at.min(stored));
        StoreMeta { synced_at: Some(synced_at), has_met_others: true, ..meta }
    }
}

/// The gathered changes, and the store request under way.
#[derive(Debug)]
pub(crate) struct Storing {
    settings: DurableSettings,
    /// `false` until the store is loaded.
    is_on: bool,
    tickets: u64,
    changes: BTreeMap<KeyId, Change>,
    waiting: Vec<PendingRequest>,
    /// Entries with unreadable records, which are to be moved aside.
    asides: Vec<KeyId>,
    pub(crate) meta_is_due: bool,
    meta_state: MetaState,
    flight: Option<Flight>,
    /// Entries that could not be stored, and are in no store request under way or gathered.
    failed: BTreeSet<KeyId>,
    retry_at: Option<Instant>,
    /// When gathered changes are written, if they are written behind.
    write_at: Option<Instant>,
    large: BTreeMap<KeyId, Large>,
    /// Whether acknowledgements wait for the disk.
    acknowledges_flushed: bool,
    /// Stored entries whose types are unknown so far.
    pub(crate) held_back: BTreeMap<KeyId, LoadedRecord>,
}

impl Storing {
    pub(crate) fn new(settings: &ReplicatorSettings) -> Self {
        let is_behind = settings.durable.write_behind_interval.is_some();
        Self {
            settings: settings.durable.clone(),
            acknowledges_flushed: !is_behind && !settings.omits(Clause::Flush),
            is_on: false,
            tickets: 0,
            changes: BTreeMap::new(),
            waiting: Vec::new(),
            asides: Vec::new(),
            meta_is_due: false,
            meta_state: MetaState::default(),
            flight: None,
            failed: BTreeSet::new(),
            retry_at: None,
            write_at: None,
            large: BTreeMap::new(),
            held_back: BTreeMap::new(),
        }
    }

    /// Begins to store changes; `stored` is the store's own record.
    pub(crate) fn begin(&mut self, stored: Option<&StoreMeta>) {
        self.is_on = true;
        self.meta_is_due = true;
        self.meta_state.synced_at = stored.and_then(|meta| meta.synced_at);
        self.meta_state.has_met_others = stored.is_some_and(|meta| meta.has_met_others);
    }

    /// Notes that the loaded data were found too old and are removed from the store: until all are removed, the store
    /// says that it is as old as can be, whatever else is stored.
    pub(crate) fn discard(&mut self) {
        self.meta_is_due = true;
        self.meta_state.synced_at = Some(i64::MIN);
    }

    /// Stops storing.
    pub(crate) fn end(&mut self) {
        self.is_on = false;
    }

    /// Notes that an entry changed, by this delta if it is known, or is gone.
    pub(crate) fn changed(&mut self, key: &KeyId, delta: Option<&Bytes>) {
        if self.is_on && self.settings.covers(key) {
            self.gather(key, delta);
        }
    }

    /// Gathers the change of an entry in any case; an entry that is no longer durable is removed from the store.
    pub(crate) fn gather(&mut self, key: &KeyId, delta: Option<&Bytes>) {
        let is_whole = self.failed.remove(key) || !self.large.contains_key(key);
        let delta = delta.filter(|_| !is_whole).cloned();
        match (self.changes.get_mut(key), delta) {
            (Some(Change::Deltas(deltas)), Some(delta)) => deltas.push(delta),
            (Some(Change::Full), _) => {}
            (None, Some(delta)) => drop(self.changes.insert(key.clone(), Change::Deltas(vec![delta]))),
            (_, None) => drop(self.changes.insert(key.clone(), Change::Full)),
        }
    }

    /// Has the own record stored before any data of a peer from which it was taken over, and before any entry of which
    /// something was forgotten.
    pub(crate) fn meta_is_first(&mut self) {
        self.meta_state.goes_first = true;
        self.meta_is_due = true;
    }

    /// Whether the store says that this replicator has met others; also true if nothing is ever stored.
    pub(crate) fn says_met_others(&self) -> bool {
        self.meta_state.has_met_others || !self.settings.is_used()
    }

    /// Notes the sizes of a stored entry that was loaded.
    pub(crate) fn loaded(&mut self, key: &KeyId, snapshot: usize, deltas: usize) {
        if snapshot > LARGE_BYTES {
            self.large.insert(key.clone(), Large { snapshot, deltas });
        }
    }

    /// Notes that the stored record of an entry cannot be read, so that it is moved aside.
    pub(crate) fn set_aside(&mut self, key: KeyId) {
        self.asides.push(key);
    }

    /// Makes a request wait until everything that an entry holds now is on disk. Returns whether there is anything to
    /// wait for. `changed_it` says whether this request made the change.
    pub(crate) fn wait(&mut self, key: &KeyId, waiter: Waiter, changed_it: bool) -> bool {
        if !self.acknowledges_flushed {
            return false;
        }
        let mut waiting = PendingRequest { key: key.clone(), waiter, on_own_account: changed_it };
        if self.failed.contains(key) {
            self.gather(key, None);
            waiting.on_own_account = true;
        }
        if self.changes.contains_key(key) {
            self.waiting.push(waiting);
        } else if let Some(flight) = self.flight.as_mut().filter(|flight| flight.keys.contains(key)) {
            flight.waiting.push(waiting);
        } else {
            return false;
        }
        true
    }

    /// Takes the store's answer. `None` if the answer is not the awaited one.
    pub(crate) fn on_stored(&mut self, now: Instant, ticket: u64, is_ok: bool) -> Option<StoreOutcome> {
        let flight = self.flight.take_if(|flight| flight.ticket == ticket)?;
        let mut outcome = StoreOutcome::default();
        if is_ok {
            if let Some(meta) = &flight.meta {
                self.meta_state.synced_at = meta.synced_at;
                self.meta_state.has_met_others = meta.has_met_others;
            }
            outcome.safe = flight.waiting.into_iter().map(|waiting| waiting.waiter).collect();
            return Some(outcome);
        }
        self.meta_state.has_failed |= flight.meta.is_some();
        self.meta_state.goes_first |= flight.meta_goes_first;
        self.asides.extend(flight.asides);
        for key in flight.keys {
            self.large.remove(&key);
            match self.changes.get_mut(&key) {
                Some(change) => *change = Change::Full,
                None => drop(self.failed.insert(key)),
            }
        }
        for mut waiting in flight.waiting {
            if waiting.on_own_account {
                outcome.failed.push(waiting.waiter);
            } else {
                self.gather(&waiting.key, None);
                waiting.on_own_account = true;
                self.waiting.push(waiting);
            }
        }
        self.retry_at = Some(now + RETRY_PAUSE);
        Some(outcome)
    }

    /// How many entries have changes that are not stored.
    pub(crate) fn unstored(&self) -> usize {
        let flying = self.flight.as_ref().map_or(0, |flight| flight.keys.len());
        flying + self.changes.len() + self.failed.len()
    }

    /// Whether no store request is under way and nothing is gathered.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.is_none() && !self.has_something()
    }

    fn has_something(&self) -> bool {
        self.is_on && (!self.changes.is_empty() || !self.asides.is_empty() || self.meta_is_due)
    }

    /// Stores with the next request what failed.
    fn retry_now(&mut self) {
        // Write the own record again: records since the failure left out the time in touch, because these entries were
        // missing.
        self.meta_is_due |= std::mem::take(&mut self.meta_state.has_failed) || !self.failed.is_empty();
        for key in std::mem::take(&mut self.failed) {
            self.changes.insert(key, Change::Full);
        }
        self.retry_at = None;
    }

    /// Begins the last store request: changes written behind, failed ones, and the replicator's own record.
    pub(crate) fn begin_last(&mut self) {
        self.retry_now();
        self.meta_is_due = true;
    }

    /// When there is something to store.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.is_on || self.flight.is_some() {
            return None;
        }
        let retry = self.retry_at.filter(|_| !self.failed.is_empty() || self.meta_state.has_failed);
        [retry, self.write_at.filter(|_| self.has_something())].into_iter().flatten().min()
    }

    /// Whether a store request is due now.
    fn is_due(&mut self, now: Instant, at_once: bool) -> bool {
        if self.flight.is_some() || !self.is_on {
            return false;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_now();
        }
        if !self.has_something() {
            return false;
        }
        let Some(interval) = self.settings.write_behind_interval.filter(|_| !at_once) else { return true };
        let due = *self.write_at.get_or_insert(now + interval) <= now;
        if due {
            self.write_at = None;
        }
        due
    }

    /// The next store request with its ticket: everything gathered, if no request is under way. `at_once` includes
    /// changes that would be written behind; `find` finds an entry, with its encoding if one is kept.
    pub(crate) fn next_request<'a>(
        &mut self,
        now: Instant,
        types: &TypeTable,
        meta: impl FnOnce() -> StoreMeta,
        at_once: bool,
        find: impl Fn(&KeyId) -> Option<(&'a Entry, Option<Bytes>)>,
    ) -> Option<(u64, Vec<StoreOp>)> {
        if !self.is_due(now, at_once) {
            return None;
        }
        self.tickets += 1;
        let (asides, changes) = (std::mem::take(&mut self.asides), std::mem::take(&mut self.changes));
        let meta_state = &mut self.meta_state;
        let has_meta = std::mem::take(&mut self.meta_is_due) | std::mem::take(&mut meta_state.has_failed);
        let meta_goes_first = std::mem::take(&mut meta_state.goes_first);
        let meta = has_meta.then(meta);
        let first = meta.clone().filter(|_| meta_goes_first).map(|meta| meta_state.of_before(meta));
        let meta = meta.map(|meta| if self.failed.is_empty() { meta } else { meta_state.of_before(meta) });
        // From now on the store may say what this batch says.
        meta_state.has_met_others &= meta.as_ref().is_none_or(|meta| meta.has_met_others);
        self.flight = Some(Flight {
            ticket: self.tickets,
            keys: changes.keys().cloned().collect(),
            asides: asides.clone(),
            meta: meta.clone(),
            meta_goes_first,
            waiting: std::mem::take(&mut self.waiting),
        });
        let mut ops: Vec<StoreOp> = first.map(StoreOp::Meta).into_iter().collect();
        ops.extend(asides.into_iter().map(|key| StoreOp::Quarantine { key }));
        for (key, change) in changes {
            let found = find(&key);
            ops.push(self.store_op(types, key, change, found));
        }
        // Last: a store that holds this record then also holds everything that the record speaks of.
        ops.extend(meta.map(StoreOp::Meta));
        Some((self.tickets, ops))
    }

    /// The operation that stores the change of an entry as it stands now.
    fn store_op(
        &mut self,
        types: &TypeTable,
        key: KeyId,
        change: Change,
        found: Option<(&Entry, Option<Bytes>)>,
    ) -> StoreOp {
        let stored = self.large.remove(&key);
        let Some((entry, encoded)) = found.filter(|_| self.settings.covers(&key)) else {
            return StoreOp::Remove { key };
        };
        let value = match &entry.data {
            Data::Tombstone { deleted_at } => return StoreOp::Tombstone { deleted_at: *deleted_at, key },
            Data::Value(value) => value,
        };
        if let Change::Deltas(deltas) = change
            && let Some(bytes) = joined(types, &**value, &deltas)
            && let Some(Large { snapshot, deltas }) = stored
            && deltas + bytes.len() <= snapshot / 2
        {
            self.large.insert(key.clone(), Large { snapshot, deltas: deltas + bytes.len() });
            return StoreOp::Delta { key, bytes };
        }
        let bytes = encoded.unwrap_or_else(|| value.encoded().into());
        let (tag, markers) = (AnyData::tag(&**value), entry.markers().clone());
        if bytes.len() > LARGE_BYTES {
            self.large.insert(key.clone(), Large { snapshot: bytes.len(), deltas: 0 });
        }
        StoreOp::Put { key, tag, bytes, markers }
    }
}

/// Joins many small deltas into one record.
fn joined(types: &TypeTable, value: &dyn AnyData, deltas: &[Bytes]) -> Option<Bytes> {
    if let [only] = deltas {
        return Some(only.clone());
    }
    let parts: Vec<&[u8]> = deltas.iter().map(|delta| &**delta).collect();
    types.find(&value.tag())?.join_deltas(&parts).ok().map(|(bytes, _)| bytes.into())
}
