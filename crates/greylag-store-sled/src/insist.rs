//! Asks sled again when the answer may have been about something else.
//!
//! While sled works on one page, it moves others out of a segment that it wants to use again; with a change, and when
//! it splits a page that is read. If one of those is damaged, the caller gets that error, the rest of a batch is left
//! out, and sled does not meet the page again. So a caller that asks once more is told of another page, or is answered;
//! a caller that gets the same error twice asked for a damaged page.

use crate::error::StoreError;

/// The answer, or what sled says twice.
pub(crate) fn insist<T>(mut ask: impl FnMut() -> sled::Result<T>) -> Result<T, StoreError> {
    let mut said = Vec::new();
    loop {
        match ask() {
            Err(error @ sled::Error::Corruption { .. }) if !said.contains(&error) => {
                tracing::debug!(%error, "sled met a damaged page; it is asked once more");
                said.push(error);
            }
            answer => return answer.map_err(StoreError::from_sled),
        }
    }
}

/// An iteration that insists on each of its records.
pub(crate) struct Insistent(pub(crate) sled::Iter);

impl Iterator for Insistent {
    type Item = Result<(sled::IVec, sled::IVec), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        // An iteration that fails stays where it is, so it can be asked again.
        insist(|| self.0.next().transpose()).transpose()
    }
}

impl DoubleEndedIterator for Insistent {
    fn next_back(&mut self) -> Option<Self::Item> {
        insist(|| self.0.next_back().transpose()).transpose()
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
    fn what_is_said_twice_is_meant() {
        let mut said = vec![Ok(1), Err(damaged(None))];
        assert_eq!(insist(|| said.pop().unwrap()).unwrap(), 1);
        let mut said = vec![Ok(1), Err(damaged(None)), Err(damaged(None))];
        assert!(insist(|| said.pop().unwrap()).unwrap_err().is_corruption());
        assert_eq!(said.len(), 1);
        let mut said = vec![Ok(1), Err(damaged(Some(at(1)))), Err(damaged(Some(at(2)))), Err(damaged(Some(at(1))))];
        assert!(insist(|| said.pop().unwrap()).unwrap_err().is_corruption());
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn anything_else_is_meant_at_once() {
        let mut said = vec![Ok(1), Err(sled::Error::Unsupported("it".into()))];
        assert!(matches!(insist(|| said.pop().unwrap()), Err(StoreError::Engine(_))));
    }
}
