//! What a replica holds: entries by id, kept in step with the sums that peers compare.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use greylag_crdt::{Digest, DotSource, EntryMark, Home, ReplicaId};

use crate::key::KeyId;
use crate::message::{Content, DeltaItem, Envelope, Refusal};
use crate::tree::SyncTree;
use crate::types::{AnyData, Refused, TypeTable};

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) data: Data,
    /// By origin, up to which version its updates are included; of causal types only.
    pub(crate) versions: BTreeMap<ReplicaId, u64>,
    /// An upper bound of the encoded size, so that the limit costs no encoding of every update.
    pub(crate) size_bound: usize,
    /// The highest number drawn here when the entry came into being here.
    born: u64,
    digest: Digest,
    /// The encoding, until the next change.
    encoded: Option<Bytes>,
}

/// What an entry holds.
#[derive(Debug)]
pub(crate) enum Data {
    Value(Box<dyn AnyData>),
    Tombstone { deleted_at: i64 },
}

impl Data {
    /// Over data and type tag, of a tombstone its deletion time; never over bookkeeping.
    fn digest(&self) -> Digest {
        match self {
            Self::Value(value) => value.digest().plus(Digest::of(value.tag().as_bytes())),
            Self::Tombstone { deleted_at } => {
                Digest::of(&[b"tombstone".as_slice(), &deleted_at.to_be_bytes()].concat())
            }
        }
    }
}

impl Entry {
    fn new(data: Data, versions: BTreeMap<ReplicaId, u64>, size_bound: usize, born: u64) -> Self {
        let digest = data.digest();
        Self { data, versions, size_bound, born, digest, encoded: None }
    }

    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }
}

/// What came of merging something that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merged {
    /// Whether the entry changed.
    Done { changed: bool },
    /// A value was offered where a tombstone is held.
    Deleted { deleted_at: i64 },
    /// Deltas are missing in between.
    Gap { have: u64 },
}

/// All entries of a replicator.
#[derive(Debug)]
pub(crate) struct Entries {
    replica: ReplicaId,
    numbers: DotSource,
    map: BTreeMap<KeyId, Entry>,
    pub(crate) tree: SyncTree,
    /// Changed since subscribers were told.
    pub(crate) dirty: BTreeSet<KeyId>,
}

impl Entries {
    /// No entries; `numbers` are those of the replica's process.
    pub(crate) fn new(replica: ReplicaId, numbers: DotSource) -> Self {
        let (map, tree, dirty) = (BTreeMap::new(), SyncTree::default(), BTreeSet::new());
        Self { replica, numbers, map, tree, dirty }
    }

    /// Where the value of an entry lives; of an absent one, where it would if it came into being now.
    pub(crate) fn home(&self, key: &str) -> Home {
        let born = match self.map.get(key) {
            Some(Entry { data: Data::Value(_), born, .. }) => *born,
            _ => self.numbers.last(),
        };
        Home { entry: EntryMark::of(key), replica: self.replica, born }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.map.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&KeyId, &Entry)> {
        self.map.iter()
    }

    /// Ids from `from` on, ascending.
    pub(crate) fn from(&self, from: &str) -> impl Iterator<Item = (&KeyId, &Entry)> {
        self.map.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded))
    }

    pub(crate) fn digest(&self, key: &str) -> Option<Digest> {
        self.map.get(key).map(Entry::digest)
    }

    /// Sets what an entry holds. `size_bound`: an upper bound of its encoded size. `born`: of the value's
    /// [`Home`]; nothing for a tombstone.
    pub(crate) fn set(
        &mut self,
        key: &KeyId,
        data: Data,
        versions: BTreeMap<ReplicaId, u64>,
        size_bound: usize,
        born: u64,
    ) {
        let entry = Entry::new(data, versions, size_bound, born);
        self.tree.set(key, Some(entry.digest));
        self.dirty.insert(key.clone());
        self.map.insert(key.clone(), entry);
    }

    /// The entry as it travels.
    pub(crate) fn envelope(&mut self, key: &str) -> Option<Envelope> {
        let entry = self.map.get_mut(key)?;
        let content = match &entry.data {
            Data::Tombstone { deleted_at } => Content::Tombstone { deleted_at: *deleted_at },
            Data::Value(value) => {
                let bytes = entry.encoded.get_or_insert_with(|| value.to_bytes().into());
                entry.size_bound = bytes.len();
                Content::Value { tag: value.tag(), bytes: bytes.clone() }
            }
        };
        Some(Envelope { content, versions: entry.versions.clone() })
    }

    /// Joins a full state. Source: ddata G6.
    pub(crate) fn merge_envelope(
        &mut self,
        types: &TypeTable,
        max_bytes: usize,
        key: &KeyId,
        envelope: &Envelope,
    ) -> Result<Merged, Refusal> {
        let (tag, bytes) = match &envelope.content {
            Content::Tombstone { deleted_at } => return Ok(self.merge_tombstone(key, *deleted_at)),
            Content::Value { tag, bytes } => (tag, bytes),
        };
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.map.get(key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        self.check_tag(key, tag)?;
        if bytes.len() > max_bytes {
            return Err(Refusal::TooLarge);
        }
        let found = types.find(tag).ok_or(Refusal::UnknownType)?;
        let theirs = found.decode(bytes).map_err(|_| Refusal::Undecodable)?;
        let home = self.home(key);
        let (mut value, mut versions, size) = self.start(key, home, || found.zero());
        let grew = value.merge(&*theirs).map_err(|_| Refusal::Undecodable)?;
        for (origin, version) in &envelope.versions {
            let own = versions.entry(*origin).or_default();
            *own = (*own).max(*version);
        }
        let is_new = !self.map.contains_key(key);
        self.finish(key, home, value, versions, size + bytes.len(), grew.grew() || is_new);
        Ok(Merged::Done { changed: grew.grew() || is_new })
    }

    /// Joins deltas of one origin. Source: ddata G5.
    pub(crate) fn merge_delta(
        &mut self,
        types: &TypeTable,
        origin: ReplicaId,
        item: &DeltaItem,
    ) -> Result<Merged, Refusal> {
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.map.get(&item.key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        self.check_tag(&item.key, &item.tag)?;
        let found = types.find(&item.tag).ok_or(Refusal::UnknownType)?;
        let home = self.home(&item.key);
        let (mut value, mut versions, size) = self.start(&item.key, home, || found.zero());
        if value.is_causal() {
            let have = versions.get(&origin).copied().unwrap_or(0);
            if item.version <= have {
                return Ok(Merged::Done { changed: false });
            }
            if item.prev > have {
                return Ok(Merged::Gap { have });
            }
            versions.insert(origin, item.version);
        }
        let grew = found.merge_delta(&mut *value, &item.delta).map_err(|refused| match refused {
            Refused::Undecodable(_) | Refused::Merge(_) => Refusal::Undecodable,
        })?;
        let changed = grew.grew() || !self.map.contains_key(&item.key);
        self.finish(&item.key, home, value, versions, size + item.delta.len(), changed);
        Ok(Merged::Done { changed })
    }

    /// A tombstone absorbs whatever is there; of two the later time stays. Source: ddata R5.
    pub(crate) fn merge_tombstone(&mut self, key: &KeyId, deleted_at: i64) -> Merged {
        if let Some(Entry { data: Data::Tombstone { deleted_at: own }, .. }) = self.map.get(key)
            && *own >= deleted_at
        {
            return Merged::Done { changed: false };
        }
        self.set(key, Data::Tombstone { deleted_at }, BTreeMap::new(), 16, 0);
        Merged::Done { changed: true }
    }

    fn check_tag(&self, key: &KeyId, tag: &str) -> Result<(), Refusal> {
        match self.map.get(key).map(|entry| &entry.data) {
            Some(Data::Value(value)) if *value.tag() != *tag => Err(Refusal::TypeMismatch),
            _ => Ok(()),
        }
    }

    /// A copy to work on: a merge that is refused half-way leaves the entry as it was.
    fn start(
        &self,
        key: &KeyId,
        home: Home,
        zero: impl FnOnce() -> Box<dyn AnyData>,
    ) -> (Box<dyn AnyData>, BTreeMap<ReplicaId, u64>, usize) {
        match self.map.get(key) {
            Some(Entry { data: Data::Value(value), versions, size_bound, .. }) => {
                (value.boxed_clone(), versions.clone(), *size_bound)
            }
            _ => {
                let mut value = zero();
                value.bind(home);
                (value, BTreeMap::new(), 0)
            }
        }
    }

    fn finish(
        &mut self,
        key: &KeyId,
        home: Home,
        value: Box<dyn AnyData>,
        versions: BTreeMap<ReplicaId, u64>,
        size: usize,
        changed: bool,
    ) {
        if changed {
            self.set(key, Data::Value(value), versions, size, home.born);
        } else if let Some(entry) = self.map.get_mut(key) {
            // The value is the same; what it is known to include may be more.
            entry.versions = versions;
        }
    }
}
