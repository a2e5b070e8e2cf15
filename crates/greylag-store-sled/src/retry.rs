//! Asks sled again, because an error may be about another page than the one asked for.
//!
//! While sled works on one page, it moves other pages out of a segment that it wants to reuse: for a change, and when
//! it splits a page that is read. If a moved page is damaged, the caller gets that error, the rest of a batch is left
//! out, and sled does not meet the page again. So a caller that asks once more gets an answer, or the error of another
//! page; a caller that gets the same error twice asked for a damaged page.

use crate::error::StoreError;

/// Returns the answer, or an error that sled returns twice.
pub(crate) fn retry_corruption<T>(mut read: impl FnMut() -> sled::Result<T>) -> Result<T, StoreError> {
    let mut seen = Vec::new();
    loop {
        match read() {
            Err(error @ sled::Error::Corruption { .. }) if !seen.contains(&error) => {
                tracing::debug!(%error, "sled met a damaged page; the read is repeated");
                seen.push(error);
            }
            answer => return answer.map_err(StoreError::from_sled),
        }
    }
}

/// An iteration that asks again for each record.
pub(crate) struct RetryingIter(pub(crate) sled::Iter);

impl Iterator for RetryingIter {
    type Item = Result<(sled::IVec, sled::IVec), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        // A failed iteration stays at its place, so the record can be asked for again.
        retry_corruption(|| self.0.next().transpose()).transpose()
    }
}

impl DoubleEndedIterator for RetryingIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        retry_corruption(|| self.0.next_back().transpose()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(at: Option<sled::DiskPtr>) -> sled::Error {
        sled::Error::Corruption { at, bt: () }
    }

    fn at(place: u64) -> sled::DiskPtr {
        sled::DiskPtr::Inline(place)
    }

    #[test]
    fn an_error_returned_twice_is_final() {
        let mut answers = vec![Ok(1), Err(damaged(None))];
        assert_eq!(retry_corruption(|| answers.pop().unwrap()).unwrap(), 1);
        let mut answers = vec![Ok(1), Err(damaged(None)), Err(damaged(None))];
        assert!(retry_corruption(|| answers.pop().unwrap()).unwrap_err().is_corruption());
        assert_eq!(answers.len(), 1);
        let mut answers = vec![Ok(1), Err(damaged(Some(at(1)))), Err(damaged(Some(at(2)))), Err(damaged(Some(at(1))))];
        assert!(retry_corruption(|| answers.pop().unwrap()).unwrap_err().is_corruption());
        assert_eq!(answers.len(), 1);
    }

    #[test]
    fn other_errors_are_final_at_once() {
        let mut answers = vec![Ok(1), Err(sled::Error::Unsupported("it".into()))];
        assert!(matches!(retry_corruption(|| answers.pop().unwrap()), Err(StoreError::Engine(_))));
    }
}
