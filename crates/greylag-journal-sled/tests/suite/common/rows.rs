//! Rows of a journal, reached as rows of its store: no guard, no checks.

use std::path::Path;

use greylag_journal_sled::{StoreError, StoreSettings};
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};

/// A planner that reads and changes rows behind the journal's back, as a hole in the log would.
struct Rows;

/// An action on the rows of a store.
pub(crate) enum Do {
    /// Answers the value under a key.
    Get(Vec<u8>),
    /// Puts a value under a key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key, which must be there.
    Remove(Vec<u8>),
    /// Answers one byte for each row in a space.
    Count(u8),
}

impl Request for Do {
    fn bytes(&self) -> usize {
        0
    }
}

impl Planner for Rows {
    type Request = Do;
    type Answer = Vec<u8>;

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, asked: Vec<Do>, reader: &Reader, batch: &mut Batch) -> Result<Vec<Vec<u8>>, StoreError> {
        let found = |key: &[u8]| reader.get(key).unwrap().unwrap_or_else(|| panic!("nothing is under {key:02x?}"));
        let mut answer = |asked| match asked {
            Do::Get(key) => found(&key).to_vec(),
            Do::Put(key, value) => {
                batch.put(&key, &value);
                Vec::new()
            }
            Do::Remove(key) => {
                found(&key);
                batch.remove(&key);
                Vec::new()
            }
            Do::Count(space) => vec![0; reader.keys(&[space], &[space + 1]).count()],
        };
        Ok(asked.into_iter().map(&mut answer).collect())
    }
}

/// Applies `what` to a store that no process has open; answers its result.
pub(crate) fn on_row(path: &Path, what: Do) -> Vec<u8> {
    let store = Store::open(path, StoreSettings::test(), Rows).unwrap();
    let found = store.submit(what).unwrap().wait().unwrap();
    store.close().unwrap();
    found
}
