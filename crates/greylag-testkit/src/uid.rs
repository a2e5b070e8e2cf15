//! Uids for the process incarnations that a test plays.
//!
//! A process keeps some things by the uid of an incarnation, such as the names of its replicators. The tests of one
//! program run beside each other in one process, so that two tests with the same uid would meet there.

use std::sync::atomic::{AtomicU64, Ordering};

/// A uid that no earlier call in this process returned. It is far above the small numbers that tests write out.
pub fn fresh_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_given_once() {
        let (one, next) = (fresh_uid(), fresh_uid());
        assert!(one != next && one >= 1_000_000 && next >= 1_000_000);
    }
}
