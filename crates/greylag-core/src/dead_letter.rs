//! Why a message was dropped: one enum for all layers.

use std::fmt;

/// The reason that every dropped message carries, in its event, its log line and its counter.
///
/// Source: cluster T41 and the documents named per variant group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum DeadLetterReason {
    // Transport (cluster §1).
    /// The peer did not complete a handshake in time.
    HandshakeTimeout,
    /// The peer refused the handshake for good.
    HandshakeRejected,
    /// The outbound queue of the lane was full.
    QueueFull,
    /// The incarnation addressed is quarantined.
    Quarantined,
    /// The incarnation addressed is not the one that runs.
    StaleIncarnation,
    /// The instance addressed has ended.
    StaleRecipient,
    /// No receiver is registered under the recipient's path.
    NoSuchRecipient,
    /// The message encodes to more than its lane carries.
    TooLarge,
    /// The codec refused the message.
    SerializeFailed,
    /// The bytes could not be read here.
    Undecodable,
    /// The message was read from a stream that a newer stream of the same lane had superseded.
    SupersededStream,
    /// The recipient's mailbox was full.
    MailboxFull,
    /// The asker of this reply waits no more.
    LateReply,
    /// The stream broke with the message in it; counted, its content is unknown.
    LostInFlight,
    /// A reliable control message was not acknowledged for too long, or too many waited.
    DeliveryGaveUp,
    /// The node is shutting down.
    ShuttingDown,
    /// The sender is not trusted with this recipient.
    Untrusted,
    /// The sender is no member of this node's cluster, and the recipient takes messages of members only.
    NotAMember,
    /// A monotonic number in the message exceeds everything that an honest sender can have reached.
    BeyondReach,
    // Singleton (cluster §5).
    /// The proxy's buffer was full.
    ProxyBufferFull,
    /// The singleton does not run on the node the message reached.
    NotSingletonHost,
    // Sharding.
    /// The region's buffer was full.
    BufferFull,
    /// The deadline of an ask passed while the ask waited.
    Expired,
    /// The region stopped.
    RegionStopped,
    /// The region was refused by the coordinator.
    Refused,
    /// Too many hops between regions.
    RouteLoop,
    /// The message came over an old path after newer messages of the same origin had been taken.
    RouteStraggler,
    /// A former owner's message came too late: the shard serves already, or the message may be older than messages that
    /// were handled (sharding §2.9).
    HandOffStraggler,
    /// The extractor found no entity id.
    ExtractorRejected,
    /// The extractor panicked.
    ExtractorPanicked,
    /// The sender has other rules of mapping entities to shards.
    FingerprintMismatch,
    /// The entity id is empty.
    EmptyEntityId,
    /// The entity id is longer than 1024 bytes.
    EntityIdTooLong,
    /// The shard id is empty or longer than 255 bytes.
    InvalidShardId,
    /// The entity belongs to another shard than the one that received the message, by the extractor here.
    WrongShard,
    /// No entity type of this name runs here.
    UnknownEntityType,
    /// The entity could not be started.
    EntityStartFailed,
    /// The entity stopped with the message unhandled.
    EntityStopped,
    /// Too many messages waited for the entity.
    EntityMailboxFull,
    /// Too many messages waited in the shard.
    ShardInboxFull,
    /// No other region can host the shards of this one.
    NoOtherRegion,
    /// No member has the role that hosts the entity type.
    NoHost,
    // Persistence.
    /// The entity's stash was full.
    StashFull,
    // Delivery.
    /// The producer closed with the message unconfirmed.
    ProducerClosed,
    /// Every attempt at the delivery failed.
    Poisoned,
    /// A message type that the entity did not declare.
    UnexpectedMessage,
}

impl DeadLetterReason {
    /// Every reason, in the order of its layers.
    pub const ALL: &'static [Self] = &[
        Self::HandshakeTimeout,
        Self::HandshakeRejected,
        Self::QueueFull,
        Self::Quarantined,
        Self::StaleIncarnation,
        Self::StaleRecipient,
        Self::NoSuchRecipient,
        Self::TooLarge,
        Self::SerializeFailed,
        Self::Undecodable,
        Self::SupersededStream,
        Self::MailboxFull,
        Self::LateReply,
        Self::LostInFlight,
        Self::DeliveryGaveUp,
        Self::ShuttingDown,
        Self::Untrusted,
        Self::NotAMember,
        Self::BeyondReach,
        Self::ProxyBufferFull,
        Self::NotSingletonHost,
        Self::BufferFull,
        Self::Expired,
        Self::RegionStopped,
        Self::Refused,
        Self::RouteLoop,
        Self::RouteStraggler,
        Self::HandOffStraggler,
        Self::ExtractorRejected,
        Self::ExtractorPanicked,
        Self::FingerprintMismatch,
        Self::EmptyEntityId,
        Self::EntityIdTooLong,
        Self::InvalidShardId,
        Self::WrongShard,
        Self::UnknownEntityType,
        Self::EntityStartFailed,
        Self::EntityStopped,
        Self::EntityMailboxFull,
        Self::ShardInboxFull,
        Self::NoOtherRegion,
        Self::NoHost,
        Self::StashFull,
        Self::ProducerClosed,
        Self::Poisoned,
        Self::UnexpectedMessage,
    ];

    /// Reasons that are normal whenever a node starts or stops: nodes start and stop one by one, and learn of each
    /// other's membership one by one. A protocol that repeats dropped messages need not warn of these reasons.
    pub const OF_STARTS_AND_ENDS: [Self; 4] =
        [Self::NoSuchRecipient, Self::NotAMember, Self::Quarantined, Self::ShuttingDown];

    /// Whether a handler may have run on the dropped message: the message was lost under way, or the message is an
    /// answer that could not be written.
    pub fn may_have_run(self) -> bool {
        matches!(self, Self::LostInFlight | Self::SerializeFailed)
    }

    /// Whether the same message may get through later although neither program nor settings change.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::HandshakeTimeout
            | Self::QueueFull
            | Self::Quarantined
            | Self::StaleIncarnation
            | Self::NoSuchRecipient
            | Self::SupersededStream
            | Self::MailboxFull
            | Self::LostInFlight
            | Self::DeliveryGaveUp
            | Self::NotAMember
            | Self::ProxyBufferFull
            | Self::NotSingletonHost
            | Self::BufferFull
            | Self::Expired
            | Self::RouteLoop
            | Self::RouteStraggler
            | Self::HandOffStraggler
            | Self::EntityStartFailed
            | Self::EntityStopped
            | Self::EntityMailboxFull
            | Self::ShardInboxFull
            | Self::NoOtherRegion
            | Self::NoHost
            | Self::StashFull => true,
            Self::HandshakeRejected
            | Self::StaleRecipient
            | Self::TooLarge
            | Self::SerializeFailed
            | Self::Undecodable
            | Self::LateReply
            | Self::ShuttingDown
            | Self::Untrusted
            | Self::BeyondReach
            | Self::RegionStopped
            | Self::Refused
            | Self::ExtractorRejected
            | Self::ExtractorPanicked
            | Self::FingerprintMismatch
            | Self::EmptyEntityId
            | Self::EntityIdTooLong
            | Self::InvalidShardId
            | Self::WrongShard
            | Self::UnknownEntityType
            | Self::ProducerClosed
            | Self::Poisoned
            | Self::UnexpectedMessage => false,
        }
    }
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reason_is_left_out_of_the_list() {
        let last = DeadLetterReason::UnexpectedMessage as usize;
        let listed: Vec<usize> = DeadLetterReason::ALL.iter().map(|reason| *reason as usize).collect();
        assert_eq!(listed, (0..=last).collect::<Vec<_>>());
    }
}
