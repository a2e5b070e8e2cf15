//! How an answer finds its asker.
//!
//! A [`ReplyTo`] is a token that travels inside a message and is consumed by replying. The token holds the asking node
//! and a correlation number, and the port of the node that the token is on; the answer leaves through that port, to a
//! waiting future on the same node or over the wire. On the wire only the [`ReplyAddress`] travels; a node that decodes
//! a message opens a [`ReplyScope`] with its own port first, so that tokens inside are bound to that node. How answers
//! are encoded: `reply/format.rs`.
//!
//! ```text
//! asker: ask(|reply_to| msg) --msg(ReplyAddress)--> entity: reply_to.reply(value)
//!        future <--complete-- port of the asker <--wire-- port of the entity's node
//! ```

mod format;
mod port;
mod reply_to;
mod scope;
mod storage;
mod token;
mod unanswered;

#[cfg(feature = "serde")]
pub use format::serde_impls::{FormatScope, ReadAnswer, ReplyFormat};
pub use format::{AnswerReader, AnswerWriter};
pub use port::{ReplyAddress, ReplyOutcome, ReplyPort};
pub use reply_to::{ReplyTo, UnboundReply};
pub use scope::ReplyScope;
pub use storage::StorageScope;
pub use token::{ReadTokenError, TokenCodec};
pub use unanswered::{answer_dropped, answer_undelivered};
