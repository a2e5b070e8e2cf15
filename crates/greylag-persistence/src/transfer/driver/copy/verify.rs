//! Checks that one store is whole, and that two are equal.

use super::compare::{Comparison, Difference};
use super::counts::Counts;
use super::{CopyError, IDS_PER_PAGE, ids_after, reserve};
use crate::contract::records::persistence_id::PersistenceId;
use crate::transfer::driver::records::Export;

/// The result of a check or comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Number of records in the first store; if [`Verified::is_cut`], in the part that was read.
    pub counts: Counts,
    /// Records that differ or are damaged, by id; empty if there are none.
    pub differences: Vec<Difference>,
    /// Whether the check ended because `limit` was reached, so that there may be more differences.
    pub is_cut: bool,
}

impl Verified {
    /// Whether there are no differences.
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Reads all records of `store`, and checks every checksum, and that no history has a gap. Ends after
/// `limit` damages.
///
/// # Errors
/// [`CopyError::InUse`], [`CopyError::Unreadable`].
pub async fn check(store: &dyn Export, limit: usize) -> Result<Verified, CopyError> {
    run(Comparison::new(store, None, limit), &[store]).await
}

/// Compares all records of two stores, timestamps and writers included. Offsets of
/// projections are not compared. Ends after `limit` differences.
///
/// # Errors
/// [`CopyError::InUse`], [`CopyError::Unreadable`].
pub async fn verify(first: &dyn Export, second: &dyn Export, limit: usize) -> Result<Verified, CopyError> {
    run(Comparison::new(first, Some(second), limit), &[first, second]).await
}

async fn run(mut comparison: Comparison<'_>, stores: &[&dyn Export]) -> Result<Verified, CopyError> {
    let mut after = None;
    while !comparison.is_full() {
        for store in stores {
            reserve(*store).await?;
        }
        let (ids, next) = ids_of_all(stores, after.as_ref()).await?;
        for id in &ids {
            comparison.id(id).await.map_err(CopyError::unreadable(id))?;
            if comparison.is_full() {
                break;
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    for store in stores {
        reserve(*store).await?;
    }
    let is_cut = comparison.is_full();
    Ok(Verified { counts: comparison.counts, differences: comparison.differences, is_cut })
}

/// The next ids of any of the stores, ascending, and the id to continue after.
async fn ids_of_all(
    stores: &[&dyn Export],
    after: Option<&PersistenceId>,
) -> Result<(Vec<PersistenceId>, Option<PersistenceId>), CopyError> {
    let mut all = Vec::new();
    // The last id of a full page limits the result: the store's later ids are not known yet.
    let mut known_to: Option<PersistenceId> = None;
    for store in stores {
        let ids = ids_after(*store, after).await?;
        if let Some(last) = ids.get(IDS_PER_PAGE - 1) {
            known_to = Some(known_to.map_or_else(|| last.clone(), |known| known.min(last.clone())));
        }
        all.extend(ids);
    }
    all.sort_unstable();
    all.dedup();
    if let Some(known_to) = &known_to {
        all.retain(|id| id <= known_to);
    }
    Ok((all, known_to))
}
