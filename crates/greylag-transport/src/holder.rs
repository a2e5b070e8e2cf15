//! The members that hold an address, and which other processes are believed there.
//!
//! Membership says which member holds an address and which processes can have replaced the member there; the transport
//! enforces this in the Hello, on both ends of a dial. A name may move to another host while its process still runs on
//! the former one, so another process heard at the address proves nothing about the member. Source: cluster T15, M25,
//! S20 (a).

use std::sync::Arc;

use greylag_core::UniqueAddress;

/// Which processes can have replaced a member at its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacers {
    /// No process: proofs of death are off, or the member told no host.
    None,
    /// Processes that name this host: only one process of a host can listen at an address, so the answer of another one
    /// there proves that the member's socket is closed (cluster T33).
    Host(Arc<str>),
    /// Every process: the operator vouches that an address moves only after its process has ended.
    Any,
}

impl Replacers {
    /// Whether a process that names this host is included.
    pub fn include(&self, host_id: Option<&str>) -> bool {
        match self {
            Self::None => false,
            Self::Host(host) => host_id == Some(host),
            Self::Any => true,
        }
    }
}

/// A member that holds its address until it is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The member.
    pub member: UniqueAddress,
    /// The processes that can have replaced the member.
    pub replacers: Replacers,
    /// The member's status, for people.
    pub status: Arc<str>,
    /// The event that would end its membership, for people.
    pub ends_by: Arc<str>,
}

impl Holder {
    /// The text for a process that has to wait for the removal of this member.
    pub fn detail(&self) -> String {
        let Self { member, status, ends_by, .. } = self;
        format!("{member} is a member at this address ({status}) until it is removed: {ends_by}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster S20 (a): two processes that named no host are not on the same host.
    #[test]
    fn replacers_are_chosen_by_host() {
        let host = Replacers::Host("boot/net".into());
        assert!(host.include(Some("boot/net")));
        assert!(!host.include(Some("boot/other")) && !host.include(None));
        assert!(!Replacers::None.include(Some("boot/net")) && !Replacers::None.include(None));
        assert!(Replacers::Any.include(Some("boot/other")) && Replacers::Any.include(None));
    }
}
