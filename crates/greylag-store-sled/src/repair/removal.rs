//! Removes keys that are no longer needed, without merging a page with a damaged neighbour.
//!
//! sled merges a page that a removal left nearly empty with the page before it. If that page is damaged, hundreds of
//! sound pages become unreadable. So a removal that can wait checks both pages first, and is left out if it would do
//! harm.

use crate::batch::Batch;
use crate::error::{Hex, StoreError};
use crate::reader::Reader;

/// Removes a key that is no longer needed, unless the removal touches a damaged page. In that case the key stays, and
/// takes room: a batch cannot change such a page, and cleaning up must not stop writes to other pages (persistence
/// J11). Returns whether the key is removed.
///
/// # Errors
/// [`StoreError`] if it cannot be told whether a page is damaged.
pub fn remove_unneeded(key: &[u8], reader: &Reader, batch: &mut Batch) -> Result<bool, StoreError> {
    remove_if(reader.check_removal(key), key, batch)
}

/// As [`remove_unneeded`]; `last_goes` says whether this batch removes the preceding key, too.
///
/// # Errors
/// As [`remove_unneeded`].
pub fn remove_next_unneeded(
    last_goes: bool,
    key: &[u8],
    reader: &Reader,
    batch: &mut Batch,
) -> Result<bool, StoreError> {
    let checked = if last_goes { reader.check_page(key) } else { reader.check_removal(key) };
    remove_if(checked, key, batch)
}

fn remove_if(checked: Result<(), StoreError>, key: &[u8], batch: &mut Batch) -> Result<bool, StoreError> {
    match checked {
        Ok(()) => batch.remove(key),
        Err(error) if error.is_corruption() => {
            tracing::warn!(key = %Hex(key), %error, "an unneeded key stays: it lies on a damaged page, or behind one");
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// Removes all keys from `first`, included, to `last`, excluded, as [`remove_unneeded`].
///
/// # Errors
/// As [`remove_unneeded`].
pub fn remove_all_unneeded(first: &[u8], last: &[u8], reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let mut last_goes = false;
    for key in reader.keys(first, last) {
        match key {
            Ok(key) => last_goes = remove_next_unneeded(last_goes, &key, reader, batch)?,
            // Stop: an iteration does not get past a damaged page.
            Err(error) if error.is_corruption() => {
                tracing::warn!(from = %Hex(first), %error, "unneeded keys stay: their page is damaged");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
