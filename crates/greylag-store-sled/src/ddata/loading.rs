//! Loads all entries, one by one. Source: ddata U4, U5.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use greylag_ddata::{KeyId, LoadBatch, LoadedRecord, StoreError as Failure, StoreMeta};

use super::planner::{Change, DELTA, ENTRIES, HEAD, META_KEY, PIECE, parse_key};
use super::record::{self, Head};
use super::shared::{EntryStore, off_thread};
use crate::{Reader, StoreError};

/// About how many bytes a batch of loaded records has.
const BATCH_BYTES: usize = 4 << 20;

type Record = Result<(Bytes, Bytes), StoreError>;

/// The records that remain to be read.
struct Rest {
    records: Box<dyn Iterator<Item = Record> + Send>,
    /// The first record of the next entry.
    ahead: Option<(Bytes, Result<Bytes, String>)>,
    /// Keys of parts that no head names.
    orphans: Vec<Bytes>,
}

/// The stored parts of one entry.
struct Parts {
    id: KeyId,
    damage: Option<String>,
    head: Option<Bytes>,
    pieces: BTreeMap<u64, BTreeMap<u32, (Bytes, Result<Bytes, String>)>>,
    deltas: BTreeMap<(u64, u64), BTreeMap<u32, (Bytes, Result<Bytes, String>)>>,
}

enum Step {
    Begin,
    Go(Box<Rest>),
    Over,
}

pub(super) fn load_all(shared: Arc<EntryStore>) -> BoxStream<'static, Result<LoadBatch, Failure>> {
    stream::unfold(Step::Begin, move |step| {
        let shared = shared.clone();
        async move {
            let worker = shared.clone();
            let read = match step {
                Step::Begin => off_thread(move || begin(&worker)).await,
                Step::Go(rest) => off_thread(move || go_on(&worker, rest)).await,
                Step::Over => return None,
            };
            let read = read.unwrap_or_else(|| Err(shared.failed(&"no thread to read it on")));
            Some(match read {
                Ok((batch, Some(rest))) => (Ok(batch), Step::Go(rest)),
                Ok((batch, None)) => (Ok(batch), Step::Over),
                Err(error) => (Err(error), Step::Over),
            })
        }
    })
    .boxed()
}

type Read = Result<(LoadBatch, Option<Box<Rest>>), Failure>;

fn begin(shared: &EntryStore) -> Read {
    let reader = shared.open()?.reader().map_err(|error| shared.failed(&error))?;
    let meta = read_meta(&reader).map_err(|error| shared.failed(&error))?;
    let records = Box::new(reader.range(&[ENTRIES], &[ENTRIES + 1]));
    let rest = Box::new(Rest { records, ahead: None, orphans: Vec::new() });
    let (batch, rest) = go_on(shared, rest)?;
    Ok((LoadBatch { meta, ..batch }, rest))
}

/// Reads the replicator's own record. Without one the store counts as being as old as can be, which is safe.
fn read_meta(reader: &Reader) -> Result<Option<StoreMeta>, StoreError> {
    let found = match reader.get(META_KEY) {
        Err(error) if error.is_corruption() => Err(error.to_string()),
        found => match found? {
            Some(bytes) => record::read_meta(&bytes).map(Some).map_err(|error| error.to_string()),
            None => Ok(None),
        },
    };
    found.or_else(|why| {
        tracing::error!(why, "the replicator's own record cannot be read; the store counts as very old");
        Ok(None)
    })
}

fn go_on(shared: &EntryStore, mut rest: Box<Rest>) -> Read {
    let (mut records, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES {
        let Some(parts) = next_entry(&mut rest).map_err(|error| shared.failed(&error))? else {
            sweep(shared, std::mem::take(&mut rest.orphans));
            return Ok((LoadBatch { records, meta: None }, None));
        };
        if let Some(record) = read_entry(parts, &mut rest.orphans) {
            bytes += 256 + size(&record);
            records.push(record);
        }
    }
    Ok((LoadBatch { records, meta: None }, Some(rest)))
}

fn size(record: &LoadedRecord) -> usize {
    match record {
        LoadedRecord::Value { bytes, deltas, .. } => bytes.len() + deltas.iter().map(Bytes::len).sum::<usize>(),
        LoadedRecord::Tombstone { .. } | LoadedRecord::Bad { .. } => 0,
    }
}

/// Removes leftovers of stores that failed half-way. Loading does not wait; what is not removed now is removed next
/// time.
fn sweep(shared: &EntryStore, orphans: Vec<Bytes>) {
    if let Some(store) = shared.opened().filter(|_| !orphans.is_empty()) {
        tracing::info!(count = orphans.len(), "removed the leftovers of stores that failed half-way");
        drop(store.submit(Change::RemoveOrphans(orphans)));
    }
}

/// Reads all records of the next entry. Damage becomes part of the result; other errors end the reading.
fn next_entry(rest: &mut Rest) -> Result<Option<Parts>, StoreError> {
    let mut parts: Option<Parts> = None;
    loop {
        let record = match rest.ahead.take() {
            Some(ahead) => Some(ahead),
            None => rest.records.next().map(read_record).transpose()?,
        };
        let Some((key, value)) = record else { return Ok(parts) };
        // Skip the key: this store never wrote one that cannot be parsed, so the key belongs to no entry.
        let Some((id, part, place)) = parse_key(&key) else { continue };
        if parts.as_ref().is_some_and(|parts| *parts.id != *id) {
            rest.ahead = Some((key, value));
            return Ok(parts);
        }
        let parts = parts.get_or_insert_with(|| Parts {
            id: id.into(),
            damage: None,
            head: None,
            pieces: BTreeMap::new(),
            deltas: BTreeMap::new(),
        });
        let number = |at: usize| place.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let piece = |at: usize| place.get(at..).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        match part {
            HEAD => match value {
                Ok(value) => parts.head = Some(value),
                Err(why) => parts.damage = Some(why),
            },
            PIECE => {
                if let Some((snapshot, piece)) = number(0).zip(piece(8)) {
                    parts.pieces.entry(snapshot).or_default().insert(piece, (key.clone(), value));
                }
            }
            DELTA => {
                if let Some(((snapshot, delta), piece)) = number(0).zip(number(8)).zip(piece(16)) {
                    parts.deltas.entry((snapshot, delta)).or_default().insert(piece, (key.clone(), value));
                }
            }
            _ => {}
        }
    }
}

fn read_record(record: Record) -> Result<(Bytes, Result<Bytes, String>), StoreError> {
    match record {
        Ok((key, value)) => Ok((key, Ok(value))),
        Err(error @ StoreError::Checksum { .. }) => {
            let why = error.to_string();
            let StoreError::Checksum { key } = error else { return Err(error) };
            Ok((key.into(), Err(why)))
        }
        Err(error) => Err(error),
    }
}

type Pieces = BTreeMap<u32, (Bytes, Result<Bytes, String>)>;

fn join(pieces: Option<&Pieces>) -> Result<Bytes, String> {
    let pieces = pieces.ok_or("its pieces are missing")?;
    let in_order = pieces.keys().zip(0..).all(|(found, expected)| *found == expected);
    let values: Vec<&Bytes> =
        pieces.values().map(|(_, value)| value.as_ref().map_err(Clone::clone)).collect::<Result<_, _>>()?;
    let whole = record::whole(values).map_err(|error| error.to_string());
    if in_order { whole } else { Err("a piece of it is missing".into()) }
}

/// Assembles the entry; `None` if its parts are leftovers only.
fn read_entry(mut parts: Parts, orphans: &mut Vec<Bytes>) -> Option<LoadedRecord> {
    let key = parts.id.clone();
    if let Some(why) = parts.damage {
        return Some(LoadedRecord::Bad { key, why });
    }
    let snapshot = parts.head.as_ref().map(|head| head.first_chunk::<8>().map(|number| u64::from_be_bytes(*number)));
    let snapshot = match snapshot {
        Some(None) => return Some(LoadedRecord::Bad { key, why: "its head is too short".into() }),
        Some(Some(snapshot)) => Some(snapshot),
        None => None,
    };
    let dead_pieces = parts.pieces.extract_if(.., |number, _| Some(*number) != snapshot).map(|(_, pieces)| pieces);
    orphans.extend(dead_pieces.flat_map(Pieces::into_values).map(|(key, _)| key));
    let dead_deltas = parts.deltas.extract_if(.., |(number, _), _| Some(*number) != snapshot).map(|(_, pieces)| pieces);
    orphans.extend(dead_deltas.flat_map(Pieces::into_values).map(|(key, _)| key));
    let (head, snapshot) = (parts.head?, snapshot?);
    let short = head.slice(8..);
    let record = if short.is_empty() { join(parts.pieces.get(&snapshot)) } else { Ok(short) };
    let read = record.and_then(|record| record::read_head(&record).map_err(|error| error.to_string()));
    let deltas = parts.deltas.values().map(|pieces| {
        join(Some(pieces)).and_then(|record| record::read_delta(&record).map_err(|error| error.to_string()))
    });
    let loaded = read.and_then(|head| Ok((head, deltas.collect::<Result<Vec<Bytes>, String>>()?)));
    Some(match loaded {
        Ok((Head::Value { tag, bytes, markers }, deltas)) => LoadedRecord::Value { key, tag, bytes, markers, deltas },
        Ok((Head::Nothing, _)) => return None,
        Ok((Head::Tombstone { deleted_at }, _)) => LoadedRecord::Tombstone { key, deleted_at },
        Err(why) => LoadedRecord::Bad { key, why },
    })
}
