//! Cluster singletons: one instance in the whole cluster, on the oldest member with a role.
//!
//! ```text
//! new oldest --HandOverToMe--> every earlier holder --HandOverInProgress, HandOverDone--> new oldest
//! leaving oldest --TakeOverFromMe--> next oldest
//!
//! every node's proxy --Identify--> oldest --Here--> proxy --messages of users--> the instance
//! oldest --NotHere--> every proxy that has asked, as soon as the instance is told to end
//! ```
//!
//! The managers see to it that one instance runs at most; the proxies follow it, and keep messages
//! while they do not know where it is.
//!
//! Source: cluster §5.

pub(crate) mod host;
pub(crate) mod lease;
pub(crate) mod manager;
pub(crate) mod proxy;

use greylag_core::UniqueAddress;

/// What managers of one singleton say to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// I am the oldest; stop your instance, and tell me when it has ended.
    HandOverToMe,
    /// My instance is ending.
    HandOverInProgress,
    /// Nothing runs here, and nothing will start here before you have cleared me in turn.
    HandOverDone,
    /// I leave; you are the oldest, so ask me to hand over.
    TakeOverFromMe,
}

/// One message between singleton managers. It travels to an address and names sender and receiver inside, so
/// that a restarted process can answer for its predecessor, which is provably gone. Source: cluster P3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonMessage {
    /// What is said.
    pub kind: Kind,
    /// In whose name: the sender, or an older incarnation of its address.
    pub from: UniqueAddress,
    /// To which process.
    pub to: UniqueAddress,
    /// Which request this is, or answers.
    pub attempt: u64,
}

/// What a proxy and the node that may run the instance say to each other. Which processes they are is
/// a property of the stream. Source: cluster P8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMessage {
    /// Tell me when the instance runs at yours, now or later.
    Identify,
    /// The instance runs here.
    Here {
        /// Which one; never 0.
        instance: u64,
    },
    /// The instance does not run here, or is about to end.
    NotHere {
        /// Which one; `None`: whichever you were told of.
        instance: Option<u64>,
    },
}
