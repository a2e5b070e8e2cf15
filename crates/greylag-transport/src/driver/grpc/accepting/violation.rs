//! Breaches of the protocol, each with the intrusion that it counts as.

use tonic::{Code, Status};

use crate::admission::control::Intrusion;
use crate::wire::Malformed;

/// A breach of the protocol by the peer.
pub(super) struct Violation {
    pub(super) intrusion: Intrusion,
    pub(super) detail: String,
}

impl Violation {
    pub(super) fn new(intrusion: Intrusion, detail: impl Into<String>) -> Self {
        Self { intrusion, detail: detail.into() }
    }

    /// The violation behind tonic's error about a frame. `None`: the connection broke.
    pub(super) fn from_status(status: &Status) -> Option<Self> {
        let is_broken = std::error::Error::source(status).is_some();
        match status.code() {
            Code::OutOfRange => Some(Self::new(Intrusion::Oversized, status.message())),
            Code::Internal if !is_broken => Some(Self::new(Intrusion::Malformed, status.message())),
            _ => None,
        }
    }
}

impl From<Malformed> for Violation {
    fn from(error: Malformed) -> Self {
        Self::new(Intrusion::Malformed, error.to_string())
    }
}
