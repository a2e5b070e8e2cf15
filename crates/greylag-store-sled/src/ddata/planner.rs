//! Turns changes of durable entries into keys and values, on the committer's thread.
//!
//! ```text
//! 00                                    format
//! 01                                    what the replicator remembers
//! 02                                    how often the store was opened
//! 03                                    the last commit: its number, and the sum over all other records
//! 10 length id 00                       the head: snapshot number, then the record or, if that is long, nothing
//! 10 length id 01 snapshot piece        the pieces of a long record
//! 10 length id 02 snapshot delta piece  deltas since that snapshot
//! 20 length id number original-key      moved aside, as it was
//! ```
//!
//! Pieces of a long record are written before its head, in commits of their own. Parts of another snapshot than the
//! head names count for nothing, and are removed when the store is opened. A removal never makes sled merge a page with
//! a damaged neighbour: unneeded parts stay instead, and a head that cannot be removed is overwritten by an empty one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes};
use greylag_ddata::{KeyId, StoreOp};

use super::record;
use crate::{Batch, Commits, Planner, Reader, Request, StoreError, remove_next_unneeded, remove_unneeded};

pub(crate) const FORMAT_KEY: &[u8] = &[0x00];
pub(crate) const META_KEY: &[u8] = &[0x01];
const OPENINGS_KEY: &[u8] = &[0x02];
pub(crate) const ENTRIES: u8 = 0x10;
const ASIDE: u8 = 0x20;
const FORMAT: &[u8] = b"greylag ddata store 2";
/// The format without numbered commits; opening the store turns it into the present one.
const FORMAT_1: &[u8] = b"greylag ddata store 1";
/// The advice to an operator whose store is damaged.
const REPAIR: &str = "restore the directory from a copy, or move it away: the replicator then starts without it, and peers \
                      supply what they have";

pub(crate) const HEAD: u8 = 0;
pub(crate) const PIECE: u8 = 1;
pub(crate) const DELTA: u8 = 2;

/// A request to the committer.
#[derive(Debug)]
pub(crate) enum Change {
    /// These changes, in this order.
    Ops(Vec<StoreOp>),
    /// Some pieces of a long record that is to become this snapshot; the first of them has number `first`.
    WritePieces { id: KeyId, snapshot: u64, first: u32, pieces: Vec<Vec<u8>> },
    /// Writes the head of a long record whose pieces are stored.
    WriteHead { id: KeyId, snapshot: u64 },
    /// Removes parts that no head names.
    RemoveOrphans(Vec<Bytes>),
}

impl Request for Change {
    fn bytes(&self) -> usize {
        match self {
            Self::Ops(ops) => ops.iter().map(bytes_of).sum(),
            Self::WritePieces { pieces, .. } => pieces.iter().map(Vec::len).sum(),
            Self::WriteHead { id, .. } => id.len() + 64,
            Self::RemoveOrphans(keys) => keys.iter().map(Bytes::len).sum(),
        }
    }
}

/// About how many bytes an op takes in the queue.
pub(crate) fn bytes_of(op: &StoreOp) -> usize {
    match op {
        StoreOp::Put { key, bytes, .. } | StoreOp::Delta { key, bytes } => key.len() + bytes.len() + 128,
        StoreOp::Tombstone { key, .. } | StoreOp::Remove { key } | StoreOp::Quarantine { key } => key.len() + 64,
        StoreOp::Meta(meta) => 64 + meta.removed.len() * 8,
    }
}

/// Whether `op` is a record that does not fit into the head.
pub(crate) fn is_long(op: &StoreOp) -> bool {
    match op {
        StoreOp::Put { tag, bytes, markers, .. } => {
            record::PREAMBLE_BYTES + tag.len() + record::encoded(markers).len() + bytes.len() > record::PIECE_BYTES
        }
        _ => false,
    }
}

/// The source of numbers for snapshots, deltas and quarantined parts; no number is used twice in a store.
pub(crate) type Numbers = Arc<AtomicU64>;

pub(crate) struct Entries {
    numbers: Numbers,
    commits: Commits,
}

/// The key of a part of an entry.
pub(crate) fn key_of(id: &str, part: u8) -> Vec<u8> {
    let mut key = Vec::with_capacity(id.len() + 24);
    key.put_u8(ENTRIES);
    key.put_u16(u16::try_from(id.len()).unwrap_or(u16::MAX));
    key.extend_from_slice(id.as_bytes());
    key.put_u8(part);
    key
}

fn piece_key(id: &str, snapshot: u64, piece: u32) -> Vec<u8> {
    let mut key = key_of(id, PIECE);
    key.put_u64(snapshot);
    key.put_u32(piece);
    key
}

/// Splits the key of an entry's part into the id, the part, and the rest.
pub(crate) fn parse_key(key: &[u8]) -> Option<(&str, u8, &[u8])> {
    let (length, rest) = key.strip_prefix(&[ENTRIES])?.split_first_chunk::<2>()?;
    let (id, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (part, rest) = rest.split_first()?;
    Some((std::str::from_utf8(id).ok()?, *part, rest))
}

pub(crate) fn wall_ms() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}

impl Entries {
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self { numbers, commits: Commits::default() }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes the head, together with the record if that is short.
    fn put_head(batch: &mut Batch, id: &str, snapshot: u64, record: &[u8]) {
        let mut value = Vec::with_capacity(record.len() + 16);
        value.put_u64(snapshot);
        value.extend_from_slice(record);
        batch.put_owned(&key_of(id, HEAD), value);
    }

    /// Removes every stored part of an entry that does not belong to the snapshot `keep`. Parts that were added in this
    /// very commit are not seen; without their head they count for nothing.
    fn clear(&self, reader: &Reader, batch: &mut Batch, id: &str, keep: Option<u64>) -> Result<(), StoreError> {
        let kept = keep.map(u64::to_be_bytes);
        let mut last_goes = false;
        for key in reader.keys(&key_of(id, PIECE), &key_of(id, DELTA + 1)) {
            let key = match key {
                Ok(key) => key,
                // Stop: an iteration does not get past a damaged page. Unneeded parts behind it stay, and count for
                // nothing.
                Err(error) if error.is_corruption() => {
                    tracing::warn!(id, %error, "old parts of an entry stay: a page of them is damaged");
                    break;
                }
                Err(error) => return Err(error),
            };
            let belongs = |kept: &[u8; 8]| parse_key(&key).is_some_and(|(_, _, rest)| rest.starts_with(kept));
            last_goes = !kept.as_ref().is_some_and(belongs) && remove_next_unneeded(last_goes, &key, reader, batch)?;
        }
        if keep.is_none() { self.remove_head(reader, batch, id) } else { Ok(()) }
    }

    /// Removes the head. If the removal would harm other pages, an empty head is written in its place.
    fn remove_head(&self, reader: &Reader, batch: &mut Batch, id: &str) -> Result<(), StoreError> {
        let head = key_of(id, HEAD);
        if !remove_unneeded(&head, reader, batch)? {
            Self::put_head(batch, id, self.number(), &record::nothing(wall_ms()));
        }
        Ok(())
    }

    fn apply<'a>(
        &self,
        op: &'a StoreOp,
        heads: &mut Heads<'a>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        let wall_ms = wall_ms();
        match op {
            StoreOp::Put { key, tag, bytes, markers } => {
                let snapshot = self.number();
                let record = record::value(wall_ms, tag, bytes, markers);
                self.clear(reader, batch, key, Some(snapshot))?;
                Self::put_head(batch, key, snapshot, &record);
                heads.set(key, Some(snapshot));
            }
            StoreOp::Tombstone { key, deleted_at } => {
                let snapshot = self.number();
                self.clear(reader, batch, key, Some(snapshot))?;
                Self::put_head(batch, key, snapshot, &record::tombstone(wall_ms, *deleted_at));
                heads.set(key, Some(snapshot));
            }
            StoreOp::Delta { key, bytes } => {
                let snapshot = heads.get(reader, key)?.unwrap_or_default();
                let delta = self.number();
                for (piece, bytes) in (0_u32..).zip(record::pieces(&record::delta(wall_ms, bytes))) {
                    let mut at = key_of(key, DELTA);
                    at.put_u64(snapshot);
                    at.put_u64(delta);
                    at.put_u32(piece);
                    batch.put_owned(&at, bytes);
                }
            }
            StoreOp::Remove { key } => {
                self.clear(reader, batch, key, None)?;
                heads.set(key, None);
            }
            StoreOp::Quarantine { key } => {
                self.set_aside(reader, batch, key)?;
                heads.set(key, None);
            }
            StoreOp::Meta(meta) => batch.put_owned(META_KEY, record::meta(meta)),
        }
        Ok(())
    }

    /// Quarantines all parts of an entry, whatever their content.
    fn set_aside(&self, reader: &Reader, batch: &mut Batch, id: &str) -> Result<(), StoreError> {
        let number = self.number();
        for key in reader.keys(&key_of(id, HEAD), &key_of(id, DELTA + 1)) {
            let key = key?;
            let Some(sealed) = reader.raw(&key)? else { continue };
            let mut at = vec![ASIDE];
            at.extend_from_slice(&key_of(id, HEAD)[1..]);
            at.put_u64(number);
            at.extend_from_slice(&key);
            batch.put_owned(&at, sealed.to_vec());
            // Try to remove the part; parts that stay belong to no head any more.
            if key != key_of(id, HEAD) {
                remove_unneeded(&key, reader, batch)?;
            }
        }
        self.remove_head(reader, batch, id)
    }
}

/// The snapshot that each entry's head names, including the changes of the present commit.
#[derive(Default)]
struct Heads<'a>(BTreeMap<&'a str, Option<u64>>);

impl<'a> Heads<'a> {
    fn set(&mut self, id: &'a str, snapshot: Option<u64>) {
        self.0.insert(id, snapshot);
    }

    fn get(&mut self, reader: &Reader, id: &'a str) -> Result<Option<u64>, StoreError> {
        if let Some(known) = self.0.get(id) {
            return Ok(*known);
        }
        let head = reader.get(&key_of(id, HEAD))?;
        let snapshot = head.and_then(|head| head.first_chunk::<8>().map(|number| u64::from_be_bytes(*number)));
        self.set(id, snapshot);
        Ok(snapshot)
    }
}

impl Planner for Entries {
    type Request = Change;
    type Answer = ();

    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        match reader.get(FORMAT_KEY)? {
            Some(found) if found == FORMAT => {}
            Some(found) if found == FORMAT_1 => batch.put(FORMAT_KEY, FORMAT),
            Some(_) => return Err(StoreError::Corrupt("it is no store of durable entries that is known here".into())),
            None => batch.put(FORMAT_KEY, FORMAT),
        }
        // Each opening begins numbers anew, above all that were given out before.
        let openings = reader.get(OPENINGS_KEY)?.and_then(|found| found.first_chunk().map(|n| u32::from_be_bytes(*n)));
        let opening = openings.unwrap_or_default().saturating_add(1);
        batch.put(OPENINGS_KEY, &opening.to_be_bytes());
        self.numbers.store(u64::from(opening) << 32, Ordering::Relaxed);
        self.commits = Commits::recover(reader)?;
        Ok(())
    }

    fn verify(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.commits.verify(reader)?;
        self.commits.seal(reader, batch)
    }

    fn tail(&self) -> Option<u64> {
        Some(self.commits.number())
    }

    fn repair(&self) -> &'static str {
        REPAIR
    }

    fn plan(&mut self, requests: Vec<Change>, reader: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        let mut heads = Heads::default();
        for request in &requests {
            match request {
                Change::Ops(ops) => ops.iter().try_for_each(|op| self.apply(op, &mut heads, reader, batch))?,
                Change::WritePieces { id, snapshot, first, pieces } => {
                    for (piece, bytes) in (*first..).zip(pieces) {
                        batch.put(&piece_key(id, *snapshot, piece), bytes);
                    }
                }
                Change::WriteHead { id, snapshot } => {
                    self.clear(reader, batch, id, Some(*snapshot))?;
                    Self::put_head(batch, id, *snapshot, &[]);
                    heads.set(id, Some(*snapshot));
                }
                Change::RemoveOrphans(keys) => {
                    keys.iter().try_for_each(|key| remove_unneeded(key, reader, batch).map(drop))?;
                }
            }
        }
        self.commits.seal(reader, batch)?;
        Ok(vec![(); requests.len()])
    }
}
