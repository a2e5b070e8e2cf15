//! The way out for answers, and what leaves by it.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use super::format::{AnswerReader, AnswerWriter};
use crate::address::UniqueAddress;
use crate::dead_letter::DeadLetterReason;
use crate::entity_error::EntityError;

/// Where an answer goes: the asking process and its number for the question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplyAddress {
    /// The process that asked.
    pub node: UniqueAddress,
    /// The process's number for the question; never used twice by that process.
    pub ask_id: u64,
}

/// The answer to an ask, or the reason why there is none.
pub enum ReplyOutcome {
    /// The answer. A port that sends the answer to another node encodes it by `writer` if the writer is the answer's
    /// own ([`AnswerWriter::is_own`]), else by the codec that the node's registry has for the type, else by `writer`.
    Value {
        /// The value, of the type that the asker waits for.
        value: Box<dyn Any + Send>,
        /// Its Rust type, for error texts only.
        type_name: &'static str,
        /// How the question's token says that the answer is encoded.
        writer: Option<AnswerWriter>,
    },
    /// The runtime answers in the entity's stead.
    Failed(EntityError),
    /// The message was dropped before any handler saw it.
    Dropped(DeadLetterReason),
}

impl fmt::Debug for ReplyOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { type_name, .. } => write!(f, "Value({type_name})"),
            Self::Failed(error) => write!(f, "Failed({error})"),
            Self::Dropped(reason) => write!(f, "Dropped({reason})"),
        }
    }
}

/// The way out for answers on one node. Never blocks and never fails: an answer whose asker waits no
/// more is counted as a dead letter.
pub trait ReplyPort: Send + Sync + 'static {
    /// Sends `outcome` on its way to `to`.
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome);

    /// Keeps `reader` for the answer to `to`, a question of this node whose token leaves the node now. A port keeps
    /// nothing for questions of other nodes, which have their readers themselves. Default: keeps nothing, for ports
    /// whose answers stay in the process.
    fn expect(&self, to: &ReplyAddress, reader: AnswerReader) {
        let _ = (to, reader);
    }

    /// An object of type `what` that a layer of the node provides to decoders: see [`ReplyScope::resource`](crate::ReplyScope::resource). Default:
    /// nothing.
    fn resource(&self, what: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = what;
        None
    }
}
