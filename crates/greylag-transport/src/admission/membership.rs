//! Knows which processes are members of this node's cluster, and which recipients take messages of all other processes,
//! too.
//!
//! Any node of the same cluster name may connect, because joining needs it. A process that is no member is believed
//! only about itself: its messages reach only the recipients that were opened to strangers, such as the join protocol.
//! Source: cluster T17.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use greylag_core::UniqueAddress;

/// The members and the recipients that are open to non-members.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// `None` until there is a membership: a transport without a cluster has no strangers.
    members: RwLock<Option<Arc<HashSet<UniqueAddress>>>>,
    /// Paths of recipients that are open to strangers.
    open: RwLock<HashSet<String>>,
}

impl Membership {
    /// Replaces the members; `None`: there is no membership.
    pub(crate) fn set_members(&self, members: Option<HashSet<UniqueAddress>>) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members.map(Arc::new);
    }

    pub(crate) fn is_stranger(&self, process: &UniqueAddress) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.as_ref().is_some_and(|members| !members.contains(process))
    }

    /// Whether the process is known as a member; false also where there is no membership.
    pub(crate) fn is_member(&self, process: &UniqueAddress) -> bool {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        members.as_ref().is_some_and(|members| members.contains(process))
    }

    /// Opens the recipient at `path` to strangers, or closes it again.
    pub(crate) fn open(&self, path: &str, is_open: bool) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if is_open {
            open.insert(path.to_owned());
        } else {
            open.remove(path);
        }
    }

    pub(crate) fn is_open(&self, path: &str) -> bool {
        self.open.read().unwrap_or_else(PoisonError::into_inner).contains(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_exist_only_with_a_membership() {
        let (membership, a): (_, UniqueAddress) = (Membership::default(), "a:1#1".parse().unwrap());
        assert!(!membership.is_stranger(&a) && !membership.is_member(&a));
        membership.set_members(Some(HashSet::new()));
        assert!(membership.is_stranger(&a));
        membership.set_members(Some([a.clone()].into()));
        assert!(membership.is_member(&a) && !membership.is_stranger(&a));
        assert!(membership.is_stranger(&"a:1#2".parse().unwrap()), "another process at the same address");
        membership.open("x", true);
        assert!(membership.is_open("x") && !membership.is_open("x/y"));
        membership.open("x", false);
        assert!(!membership.is_open("x"));
    }
}
