//! The processes that nothing may be sent to: a table on the path of every message, cheap to read and expensive to
//! change.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use greylag_core::UniqueAddress;

/// The processes that nothing may be sent to. Mostly there are none; then a look-up reads one flag.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    is_any: AtomicBool,
    all: RwLock<HashSet<UniqueAddress>>,
}

impl Blocked {
    pub(crate) fn contains(&self, peer: &UniqueAddress) -> bool {
        self.is_any.load(Ordering::Acquire) && self.all.read().unwrap_or_else(PoisonError::into_inner).contains(peer)
    }

    pub(crate) fn block(&self, peer: &UniqueAddress) {
        self.change(|all| {
            all.insert(peer.clone());
        });
    }

    pub(crate) fn unblock(&self, peer: &UniqueAddress) {
        self.change(|all| {
            all.remove(peer);
        });
    }

    fn change(&self, change: impl FnOnce(&mut HashSet<UniqueAddress>)) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        self.is_any.store(!all.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unblock_removes_the_process() {
        let (blocked, peer): (_, UniqueAddress) = (Blocked::default(), "a:1#1".parse().unwrap());
        assert!(!blocked.contains(&peer));
        blocked.block(&peer);
        assert!(blocked.contains(&peer));
        assert!(!blocked.contains(&"a:1#2".parse().unwrap()));
        blocked.unblock(&peer);
        assert!(!blocked.contains(&peer) && !blocked.is_any.load(Ordering::Acquire));
    }
}
