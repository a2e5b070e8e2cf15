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
//! The managers ensure that at most one instance runs; the proxies follow the instance, and keep messages while they do
//! not know where it is.
//!
//! Source: cluster §5.

pub(crate) mod host;
pub(crate) mod lease;
pub(crate) mod lease_outcome;
pub(crate) mod manager;
pub(crate) mod proxy;

use greylag_core::UniqueAddress;

/// The kind of a message between managers of one singleton.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The sender is the oldest and asks the receiver to stop its instance, and to report its end.
    HandOverToMe,
    /// The sender's instance is ending.
    HandOverInProgress,
    /// No instance runs at the sender, and none will start there before the receiver has cleared the sender in turn.
    HandOverDone,
    /// The sender leaves; the receiver is the next oldest and should ask for the hand-over.
    TakeOverFromMe,
}

/// One message between singleton managers. The message travels to an address and names sender and receiver inside, so
/// that a restarted process can answer for its predecessor, which is provably gone. Source: cluster P3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonMessage {
    /// The kind of the message.
    pub kind: Kind,
    /// The process that the message speaks for: the sender, or an older incarnation at its address.
    pub from: UniqueAddress,
    /// The process that the message is for.
    pub to: UniqueAddress,
    /// The number of the request, or of the request that is answered.
    pub attempt: u64,
}

/// A message between a proxy and the node that may run the instance. The transport's stream identifies the sender.
/// Source: cluster P8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMessage {
    /// Asks the receiver to report when the instance runs there, now or later.
    Identify,
    /// The instance runs here.
    Here {
        /// The id of the instance; never 0.
        instance: u64,
    },
    /// The instance does not run here, or is about to end.
    NotHere {
        /// The id of the instance; `None`: any instance that the proxy was told of.
        instance: Option<u64>,
    },
}
