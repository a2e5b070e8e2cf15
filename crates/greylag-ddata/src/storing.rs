//! Keeps what of the durable entries is not on disk, and which requests wait until it is.
//!
//! Changes gather here while a store is under way and go into the next one together, so all entries
//! share one flush and an entry that changes a hundred times meanwhile is stored once. A request that
//! has to confirm that an entry is on disk waits for the store that holds everything the entry held when
//! the request came. After a failure the whole entry is stored anew: by the next request that touches it,
//! by its next change, or after [`RETRY_PAUSE`].
//!
//! An entry is stored as a snapshot; a large one, as long as that is cheaper, as a snapshot and the
//! deltas since. Source: ddata U2, U3, U5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::UniqueAddress;

use crate::durable::DurableSettings;
use crate::entries::{Data, Entries};
use crate::key::KeyId;
use crate::sabotage::Sabotage;
use crate::settings::ReplicatorSettings;
use crate::store::{LoadedRecord, StoreMeta, StoreOp};
use crate::types::{AnyData, TypeTable};

/// Entries above this are stored as a snapshot and deltas.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;
/// An entry that could not be stored, and that no request asks about, is stored again after this.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A request that waits for an entry to be on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A write that began here, by its number.
    Write(u64),
    /// A read that began here.
    Read(u64),
    /// A peer that is to be told with an acknowledgement.
    Peer { to: UniqueAddress, request: u64 },
}

#[derive(Debug)]
struct Waiting {
    key: KeyId,
    waiter: Waiter,
    /// Whether what is waited for was stored on this one's account: its failure is then final. Others get
    /// a store of their own first.
    on_own_account: bool,
}

/// What became of an entry since it was handed to the store.
#[derive(Debug)]
enum Change {
    Deltas(Vec<Bytes>),
    Full,
}

/// What is in the store of a large entry.
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
    waiting: Vec<Waiting>,
}

/// The requests to answer after a store, by its outcome for them.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) safe: Vec<Waiter>,
    pub(crate) failed: Vec<Waiter>,
}

/// How the replicator's own state is to be told to the store.
#[derive(Debug, Default)]
struct Saying {
    /// Horizon and starts have to be there before any change that is gathered.
    goes_first: bool,
    /// That state could not be stored, and waits for the next change or the next try.
    has_failed: bool,
    /// The last time in touch that the store speaks of, with all that was known until then.
    synced_at: Option<i64>,
    /// Whether the store says for certain that this replicator has met others.
    has_met_others: bool,
}

impl Saying {
    /// As it is said while not all is stored that the rounds until now brought: a time in touch speaks of all of that.
    fn of_before(&self, meta: StoreMeta) -> StoreMeta {
        let stored = self.synced_at.unwrap_or(i64::MIN);
        if !meta.has_met_others && self.synced_at != Some(i64::MIN) {
            return meta;
        }
        let synced_at = meta.synced_at.map_or(stored, |at| at.min(stored));
        StoreMeta { synced_at: Some(synced_at), has_met_others: true, ..meta }
    }
}

/// The gathering of changes.
#[derive(Debug)]
pub(crate) struct Storing {
    settings: DurableSettings,
    /// Off until everything is loaded.
    is_on: bool,
    tickets: u64,
    changes: BTreeMap<KeyId, Change>,
    waiting: Vec<Waiting>,
    /// Records that cannot be read, to be moved aside.
    asides: Vec<KeyId>,
    pub(crate) meta_is_due: bool,
    saying: Saying,
    flight: Option<Flight>,
    /// Not stored as they are, and in no store that is under way or gathered.
    failed: BTreeSet<KeyId>,
    retry_at: Option<Instant>,
    /// When gathered changes are written, if they are written behind.
    write_at: Option<Instant>,
    large: BTreeMap<KeyId, Large>,
    /// Whether anything waits for the disk before it is acknowledged.
    acknowledges_flushed: bool,
    /// Stored entries of types that are unknown so far.
    pub(crate) held_back: BTreeMap<KeyId, LoadedRecord>,
}

impl Storing {
    pub(crate) fn new(settings: &ReplicatorSettings) -> Self {
        let is_behind = settings.durable.write_behind_interval.is_some();
        Self {
            settings: settings.durable.clone(),
            acknowledges_flushed: !is_behind && !settings.omits(Sabotage::Flush),
            is_on: false,
            tickets: 0,
            changes: BTreeMap::new(),
            waiting: Vec::new(),
            asides: Vec::new(),
            meta_is_due: false,
            saying: Saying::default(),
            flight: None,
            failed: BTreeSet::new(),
            retry_at: None,
            write_at: None,
            large: BTreeMap::new(),
            held_back: BTreeMap::new(),
        }
    }

    /// From now on changes are stored, beside what the store holds and says of it.
    pub(crate) fn begin(&mut self, stored: Option<&StoreMeta>) {
        self.is_on = true;
        self.meta_is_due = true;
        self.saying.synced_at = stored.and_then(|meta| meta.synced_at);
        self.saying.has_met_others = stored.is_some_and(|meta| meta.has_met_others);
    }

    /// What the store holds was found to be too old and is removed from it: until all of that is, the store says that it is
    /// as old as can be, whatever else it is told.
    pub(crate) fn discard(&mut self) {
        self.meta_is_due = true;
        self.saying.synced_at = Some(i64::MIN);
    }

    /// From now on nothing is stored any more.
    pub(crate) fn end(&mut self) {
        self.is_on = false;
    }

    /// An entry changed, by this delta if it is known, or is gone.
    pub(crate) fn changed(&mut self, key: &KeyId, delta: Option<&Bytes>) {
        if self.is_on && self.settings.covers(key) {
            self.gather(key, delta);
        }
    }

    /// Stores an entry whatever became of it; one that is not durable any more is removed from the store.
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

    /// What the replicator goes by changed: the store has it before any data of a peer that it was taken over from, and
    /// before any entry of which something was forgotten.
    pub(crate) fn meta_is_first(&mut self) {
        self.saying.goes_first = true;
        self.meta_is_due = true;
    }

    /// Whether the store says that this replicator has met others, or nothing is ever stored.
    pub(crate) fn says_met_others(&self) -> bool {
        self.saying.has_met_others || !self.settings.is_used()
    }

    /// What is stored for an entry was read and is this large.
    pub(crate) fn loaded(&mut self, key: &KeyId, snapshot: usize, deltas: usize) {
        if snapshot > LARGE_BYTES {
            self.large.insert(key.clone(), Large { snapshot, deltas });
        }
    }

    /// What is stored for an entry cannot be read.
    pub(crate) fn set_aside(&mut self, key: KeyId) {
        self.asides.push(key);
    }

    /// Has a request wait until all that an entry holds now is on disk. Returns whether there is anything
    /// to wait for. `changed_it` if that is so because of this request.
    pub(crate) fn wait(&mut self, key: &KeyId, waiter: Waiter, changed_it: bool) -> bool {
        if !self.acknowledges_flushed {
            return false;
        }
        let mut waiting = Waiting { key: key.clone(), waiter, on_own_account: changed_it };
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

    /// The store answered. `None` if that is not the answer that is awaited.
    pub(crate) fn on_stored(&mut self, now: Instant, ticket: u64, is_ok: bool) -> Option<Told> {
        let flight = self.flight.take_if(|flight| flight.ticket == ticket)?;
        let mut told = Told::default();
        if is_ok {
            if let Some(meta) = &flight.meta {
                self.saying.synced_at = meta.synced_at;
                self.saying.has_met_others = meta.has_met_others;
            }
            told.safe = flight.waiting.into_iter().map(|waiting| waiting.waiter).collect();
            return Some(told);
        }
        self.saying.has_failed |= flight.meta.is_some();
        self.saying.goes_first |= flight.meta_goes_first;
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
                told.failed.push(waiting.waiter);
            } else {
                self.gather(&waiting.key, None);
                waiting.on_own_account = true;
                self.waiting.push(waiting);
            }
        }
        self.retry_at = Some(now + RETRY_PAUSE);
        Some(told)
    }

    /// How many entries are not stored as they are.
    pub(crate) fn unstored(&self) -> usize {
        let flying = self.flight.as_ref().map_or(0, |flight| flight.keys.len());
        flying + self.changes.len() + self.failed.len()
    }

    /// Whether nothing is under way and nothing gathered.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.is_none() && !self.has_something()
    }

    fn has_something(&self) -> bool {
        self.is_on && (!self.changes.is_empty() || !self.asides.is_empty() || self.meta_is_due)
    }

    /// What failed is stored with the next store.
    pub(crate) fn retry_now(&mut self) {
        // What was said meanwhile kept silent about the time in touch, because these were missing.
        self.meta_is_due |= std::mem::take(&mut self.saying.has_failed) || !self.failed.is_empty();
        for key in std::mem::take(&mut self.failed) {
            self.changes.insert(key, Change::Full);
        }
        self.retry_at = None;
    }

    /// When there is something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.is_on || self.flight.is_some() {
            return None;
        }
        let retry = self.retry_at.filter(|_| !self.failed.is_empty() || self.saying.has_failed);
        [retry, self.write_at.filter(|_| self.has_something())].into_iter().flatten().min()
    }

    /// Whether a store is due now.
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
}

impl Entries {
    /// What is to be stored now, under a number for it: all that gathered, if no store is under way.
    /// `at_once` writes what would be written behind too.
    pub(crate) fn next_store(
        &mut self,
        now: Instant,
        types: &TypeTable,
        meta: impl FnOnce() -> StoreMeta,
        at_once: bool,
    ) -> Option<(u64, Vec<StoreOp>)> {
        if !self.storing.is_due(now, at_once) {
            return None;
        }
        let storing = &mut self.storing;
        storing.tickets += 1;
        let (asides, changes) = (std::mem::take(&mut storing.asides), std::mem::take(&mut storing.changes));
        let saying = &mut storing.saying;
        let has_meta = std::mem::take(&mut storing.meta_is_due) | std::mem::take(&mut saying.has_failed);
        let meta_goes_first = std::mem::take(&mut saying.goes_first);
        let meta = has_meta.then(meta);
        let first = meta.clone().filter(|_| meta_goes_first).map(|meta| saying.of_before(meta));
        let meta = meta.map(|meta| if storing.failed.is_empty() { meta } else { saying.of_before(meta) });
        // From now on the store may say what this batch makes it say.
        saying.has_met_others &= meta.as_ref().is_none_or(|meta| meta.has_met_others);
        storing.flight = Some(Flight {
            ticket: storing.tickets,
            keys: changes.keys().cloned().collect(),
            asides: asides.clone(),
            meta: meta.clone(),
            meta_goes_first,
            waiting: std::mem::take(&mut storing.waiting),
        });
        let mut ops: Vec<StoreOp> = first.map(StoreOp::Meta).into_iter().collect();
        ops.extend(asides.into_iter().map(|key| StoreOp::Quarantine { key }));
        for (key, change) in changes {
            let op = self.store_op(types, key, change);
            ops.push(op);
        }
        // Last, so that a store that holds this record also holds all that the record speaks of.
        ops.extend(meta.map(StoreOp::Meta));
        Some((self.storing.tickets, ops))
    }

    fn store_op(&mut self, types: &TypeTable, key: KeyId, change: Change) -> StoreOp {
        let (entry, storing, encoded) = self.entry_and_storing(&key);
        let stored = storing.large.remove(&key);
        let Some(entry) = entry.filter(|_| storing.settings.covers(&key)) else { return StoreOp::Remove { key } };
        let value = match &entry.data {
            Data::Tombstone { deleted_at } => return StoreOp::Tombstone { deleted_at: *deleted_at, key },
            Data::Value(value) => value,
        };
        if let Change::Deltas(deltas) = change
            && let Some(bytes) = joined(types, &**value, &deltas)
            && let Some(Large { snapshot, deltas }) = stored
            && deltas + bytes.len() <= snapshot / 2
        {
            storing.large.insert(key.clone(), Large { snapshot, deltas: deltas + bytes.len() });
            return StoreOp::Delta { key, bytes };
        }
        let bytes = encoded.unwrap_or_else(|| value.encoded().into());
        let (tag, markers) = (AnyData::tag(&**value), entry.markers().clone());
        if bytes.len() > LARGE_BYTES {
            storing.large.insert(key.clone(), Large { snapshot: bytes.len(), deltas: 0 });
        }
        StoreOp::Put { key, tag, bytes, markers }
    }
}

/// Many small deltas as one record.
fn joined(types: &TypeTable, value: &dyn AnyData, deltas: &[Bytes]) -> Option<Bytes> {
    if let [only] = deltas {
        return Some(only.clone());
    }
    let parts: Vec<&[u8]> = deltas.iter().map(|delta| &**delta).collect();
    types.find(&value.tag())?.join_deltas(&parts).ok().map(|(bytes, _)| bytes.into())
}
