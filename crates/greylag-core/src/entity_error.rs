//! The answers that the runtime of an entity gives in the entity's stead.

/// Why an ask was answered by the runtime and not by the entity.
///
/// Source: persistence §2.2, §2.6; sharding §4.11.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EntityError {
    /// The entity finished with the message and dropped its reply token unused.
    #[error("the entity did not reply")]
    NoReply,
    /// The entity stopped before it could answer. Ask again: the next message starts it anew.
    #[error("the entity stopped before it answered")]
    Stopped,
    /// The entity could not be started; nothing was processed.
    #[error("the entity could not be started: {0}")]
    StartFailed(String),
    /// The handler failed on this message; the entity's supervision decides what follows.
    #[error("the entity failed on this message: {0}")]
    Failed(String),
    /// Too many messages wait for this entity; this one was dropped. Ask again later.
    #[error("the entity's stash is full")]
    StashFull,
    /// The entity was opened for reading only.
    #[error("the entity is read-only")]
    ReadOnly,
    /// The effect of this message was not stored, and never will be.
    #[error("the effect was not stored: {0}")]
    NotStored(NotStoredReason),
    /// The effect may or may not be stored; recovery decides. Ask for the state before trying again.
    #[error("it is unknown whether the effect was stored")]
    OutcomeUnknown,
    /// A delivery would be marked as applied while an earlier one of its stream is not (delivery §7).
    #[error("an earlier delivery of the same stream is neither persisted nor confirmed")]
    NotInOrder,
}

impl EntityError {
    /// Whether the message may have had an effect that lasts.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::NoReply | Self::Stopped | Self::Failed(_) | Self::OutcomeUnknown => true,
            Self::StartFailed(_) | Self::StashFull | Self::ReadOnly | Self::NotStored(_) | Self::NotInOrder => false,
        }
    }

    /// Whether the same message may succeed later although neither program nor settings change. If it also
    /// [may have run](Self::may_have_run), look at the state first, or send only what can be done twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Stopped
            | Self::StartFailed(_)
            | Self::StashFull
            | Self::NotStored(NotStoredReason::Unavailable(_) | NotStoredReason::Fenced)
            | Self::OutcomeUnknown
            | Self::NotInOrder => true,
            Self::NoReply | Self::Failed(_) | Self::ReadOnly | Self::NotStored(NotStoredReason::Rejected(_)) => false,
        }
    }
}

/// Why nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NotStoredReason {
    /// The store or the entity refused these events: size, count, tags, encoding, disk space.
    #[error("rejected: {0}")]
    Rejected(String),
    /// The store could not be reached and certainly holds nothing of it.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// Another process owns this entity now.
    #[error("fenced by a newer owner")]
    Fenced,
}
