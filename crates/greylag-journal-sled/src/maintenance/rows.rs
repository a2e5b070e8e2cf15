//! A store that is opened as it is.

use std::path::Path;

use greylag_store_sled::{Batch, Planner, Reader, Request, Store, StoreError, StoreSettings};

use super::failure::Failure;
use crate::planner::REPAIR;

/// A planner that checks nothing: the store is opened as it is, and rows are written as given.
pub(super) struct Rows;

/// Rows to write, in one batch.
pub(super) struct Write(pub(super) Vec<(Vec<u8>, Vec<u8>)>);

impl Request for Write {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl Planner for Rows {
    type Request = Write;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, writes: Vec<Write>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        let count = writes.len();
        writes.into_iter().flat_map(|write| write.0).for_each(|(key, value)| batch.put_owned(&key, value));
        Ok(vec![(); count])
    }

    fn repair(&self) -> &'static str {
        REPAIR
    }
}

pub(super) fn open(path: &Path) -> Result<Store<Rows>, Failure> {
    if !path.join("db").exists() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(Failure::File { path: path.join("db"), source });
    }
    Ok(Store::open(path, StoreSettings::default(), Rows)?)
}

pub(super) fn close(store: Store<Rows>, path: &Path) -> Result<(), Failure> {
    store.close().map_err(|source| Failure::Store { path: path.to_owned(), source })
}
