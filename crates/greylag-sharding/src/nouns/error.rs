//! Errors of setting an entity type up, and of reading a message of another node.

use greylag_core::{DeadLetterReason, DecodeError};

/// A name that no entity type may have. Nothing was started; choose another one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid entity type name {name:?}: {why}")]
pub struct InvalidTypeName {
    /// The name as given.
    pub name: String,
    /// The fault.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(InvalidTypeName);

/// A setting with an invalid value. Nothing was started. Source: sharding §7.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting sharding.{key} = {value} is invalid: {reason}")]
pub struct InvalidSetting {
    /// The key below `sharding`.
    pub key: &'static str,
    /// The value as given.
    pub value: String,
    /// The fault.
    pub reason: &'static str,
}

greylag_core::debug_is_sentence!(InvalidSetting);

/// Why a message of another node was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes are not valid for this version.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The message names an epoch, generation or attempt that no coordinator can have reached (sharding §2.1).
    #[error("the {0} lies more than a hundred years ahead of this node's clock")]
    BeyondReach(&'static str),
}

impl ReadError {
    /// The reason of the dead letter.
    pub fn reason(&self) -> DeadLetterReason {
        match self {
            Self::Malformed(_) => DeadLetterReason::Undecodable,
            Self::BeyondReach(_) => DeadLetterReason::BeyondReach,
        }
    }
}
