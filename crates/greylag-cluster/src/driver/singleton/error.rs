//! Why a message to a singleton was not taken, or has no answer.

use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError};

/// Why a message was not taken. The message is a dead letter, and will not be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SingletonSendError {
    /// The singleton's node is unknown here, and messages to it are not buffered (`singleton_proxy.buffer_size` = 0).
    /// Send again later.
    #[error("the singleton's node is unknown and the proxy buffer is disabled")]
    NotFound,
    /// The instance runs on this node, and too many messages wait for it. Send slower.
    #[error("the singleton's mailbox is full")]
    MailboxFull,
    /// Too many messages wait on the lane to the instance's node. Send slower.
    #[error("the lane to the singleton's node is full")]
    QueueFull,
    /// The instance runs on another node, and there is no codec for messages to it.
    #[error("the singleton was started without a codec, and its instance runs on another node")]
    NoCodec,
    /// The sending node has left the cluster, or is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// The message was dropped for another reason.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
}

impl From<DeadLetterReason> for SingletonSendError {
    fn from(reason: DeadLetterReason) -> Self {
        match reason {
            DeadLetterReason::ProxyBufferFull => Self::NotFound,
            DeadLetterReason::MailboxFull => Self::MailboxFull,
            DeadLetterReason::QueueFull => Self::QueueFull,
            DeadLetterReason::SerializeFailed => Self::NoCodec,
            DeadLetterReason::ShuttingDown => Self::ShuttingDown,
            other => Self::Dropped(other),
        }
    }
}

/// Why an ask has no answer. The message may have been handled, unless the variant says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SingletonAskError {
    /// No answer came in time.
    #[error("the singleton {singleton:?} did not answer {message_type} within {timeout:?}")]
    Timeout {
        /// The singleton's name.
        singleton: String,
        /// The Rust type of the message, for people only.
        message_type: &'static str,
        /// The timeout of the ask.
        timeout: Duration,
    },
    /// A timeout of zero cannot be met; nothing was sent.
    #[error("the timeout of an ask must not be zero")]
    InvalidTimeout,
    /// The message was not taken and not handled.
    #[error(transparent)]
    Send(#[from] SingletonSendError),
    /// The instance took the message and will not answer: it dropped its reply token, failed, or ended.
    #[error(transparent)]
    Instance(EntityError),
    /// The message, or its answer, was dropped on its way. `NotSingletonHost`: the instance had just ended where the
    /// message arrived; the message was not handled, ask again.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
    /// The transport ended the ask.
    #[error(transparent)]
    Transport(greylag_transport::AskError),
}
