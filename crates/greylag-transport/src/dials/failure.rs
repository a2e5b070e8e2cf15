//! Why a dial reached no node, in words for the person who wrote the address.

use greylag_core::UniqueAddress;

/// Why a dial reached no node, as far as the caller can tell. The transport dials again in every case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialFailure {
    /// The host is there, and no process listens at the port.
    #[error("the connection was refused: nothing listens at that port")]
    Refused,
    /// The network has no route to the address. With the system's error.
    #[error("no route leads there ({0})")]
    NoRoute(String),
    /// The host name has no address. With the resolver's error.
    #[error("the host name cannot be found ({0})")]
    UnknownHost(String),
    /// Nothing came back within `transport.connection_timeout`.
    #[error("nothing came back in time")]
    Silent,
    /// TLS at one end only, or a certificate that is not believed.
    #[error("{0}")]
    Tls(String),
    /// The port belongs to a program that is no node.
    #[error("another protocol is spoken at that port: {0}")]
    OtherProtocol(String),
    /// The port belongs to another gRPC service, possibly of a Greylag node (the text says so then).
    #[error("{0}")]
    OtherService(String),
    /// A node with another address answered: a proxy or a wrong name leads from the dialled address to that node.
    #[error("node {0}, which has another address, answered")]
    OtherNode(UniqueAddress),
    /// A node answered that accepts no streams for the moment. With its answer.
    #[error("the node accepts no streams for now: {0}")]
    NotNow(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
}

impl DialFailure {
    /// Whether time alone may mend the failure: a node that has not started yet, or has just ended, fails the same way.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Refused | Self::NoRoute(_) | Self::Silent | Self::NotNow(_) | Self::Broken(_))
    }
}
