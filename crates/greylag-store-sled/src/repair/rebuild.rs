//! Writes the whole messages of a damaged log into a new store, which can be read entirely.
//!
//! The messages of the log are repeated in the order in which they were written. A page stands for all records between
//! its ends, so records that it lacks are removed. Messages in a hole count as never written: a record whose last value
//! is lost keeps its former value, and a record whose removal is lost comes back. The store's planner knows which of
//! its records belong together, and finds such gaps when it opens the new store.
//!
//! Changes name their keys without the prefix of their page. If the page lies in a hole, the prefix is found by trial:
//! the checksum of a record covers its whole key. Source: persistence §4.3, scenario 75.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::batch::{Batch, unseal};
use crate::engine::Engine;
use crate::error::{OpenError, StoreError};
use crate::files::log::{Content, Log, Page};
use crate::settings::StoreSettings;

const CRC_BYTES: usize = 4;
/// A bound that sorts behind every key.
const BEHIND_ALL: [u8; 9] = [0xff; 9];

/// Writes every whole record of the store in `from` into a new store in `to`. `from` is only read; no process may have
/// it open.
///
/// # Errors
/// [`OpenError`] if the log of `from` cannot be read at all, or `to` cannot be written.
pub fn rebuild(from: &Path, to: &Path) -> Result<(), OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: StoreError| OpenError::Failed { path, source }
    };
    let mut log = Log::open(from).map_err(|error| failed(from)(error.into()))?;
    let places = log.places().map_err(|error| failed(from)(error.into()))?;
    let engine = Engine::open(to, &StoreSettings::default(), "remove it")?;
    let mut prefixes = Prefixes::default();
    for place in &places {
        if let Some((_, Content::Page(page))) = log.read(place).map_err(|error| failed(from)(error.into()))? {
            prefixes.all.insert(page.prefix.to_vec());
        }
    }
    for place in &places {
        let read = log.read(place).map_err(|error| failed(from)(error.into()))?;
        if let Some((page, content)) = read {
            repeat(page, &content, &mut prefixes, &engine).map_err(failed(to))?;
        }
    }
    engine.sync().map_err(failed(to))
}

/// The known prefixes of keys.
#[derive(Default)]
struct Prefixes {
    /// The latest prefix of each page.
    of: HashMap<u64, Vec<u8>>,
    all: BTreeSet<Vec<u8>>,
}

impl Prefixes {
    /// The key whose checksum `sealed` matches, of all known prefixes followed by `suffix`.
    fn find(&self, page: u64, suffix: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (value, stored) = sealed.split_last_chunk::<CRC_BYTES>()?;
        let stored = u32::from_be_bytes(*stored);
        let rest = crc32c::crc32c_append(crc32c::crc32c(suffix), value);
        let fits = |prefix: &&Vec<u8>| {
            crc32c::crc32c_combine(crc32c::crc32c(prefix), rest, suffix.len() + value.len()) == stored
        };
        let prefix = self.of.get(&page).into_iter().chain(&self.all).find(fits)?;
        Some([prefix, suffix].concat())
    }
}

fn repeat(page: u64, content: &Content<'_>, prefixes: &mut Prefixes, engine: &Engine) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    match content {
        Content::Page(whole) => {
            prefixes.of.insert(page, whole.prefix.to_vec());
            repeat_page(whole, engine, &mut batch)?;
        }
        Content::Put { suffix, value } => {
            if let Some(key) = prefixes.find(page, suffix, value) {
                put(&key, value, engine, &mut batch)?;
            }
        }
        Content::Remove { suffix } => {
            if let Some(prefix) = prefixes.of.get(&page) {
                batch.remove(&[prefix, *suffix].concat());
            }
        }
    }
    if batch.is_empty() { Ok(()) } else { engine.apply(&batch) }
}

fn repeat_page(page: &Page<'_>, engine: &Engine, batch: &mut Batch) -> Result<(), StoreError> {
    let keys: BTreeSet<Vec<u8>> = page.records.iter().map(|(suffix, _)| [page.prefix, *suffix].concat()).collect();
    for key in engine.keys(page.first, page.end.unwrap_or(&BEHIND_ALL)) {
        let key = key?;
        if !keys.contains(&key[..]) {
            batch.remove(&key);
        }
    }
    for (suffix, sealed) in &page.records {
        put(&[page.prefix, *suffix].concat(), sealed, engine, batch)?;
    }
    Ok(())
}

/// Adds a record to the batch, unless it does not match its checksum: the record before it may.
fn put(key: &[u8], sealed: &[u8], engine: &Engine, batch: &mut Batch) -> Result<(), StoreError> {
    let Ok(value) = unseal(key, sealed) else { return Ok(()) };
    if engine.raw(key)?.is_none_or(|found| found != sealed) {
        batch.put(key, &value);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
