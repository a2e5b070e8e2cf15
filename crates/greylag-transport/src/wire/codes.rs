//! The numbers of our enums on the wire. A number once given keeps its meaning.

use greylag_core::{DeadLetterReason, EntityError, NotStoredReason};

use crate::generated as pb;
use crate::lanes::lane::LaneKind;
use crate::remoting::{QuarantineReason, RejectCode};

pub(super) fn write_lane(kind: LaneKind) -> pb::LaneKind {
    match kind {
        LaneKind::Control => pb::LaneKind::Control,
        LaneKind::Ordinary => pb::LaneKind::Ordinary,
        LaneKind::Large => pb::LaneKind::Large,
    }
}

pub(super) fn lane(number: i32) -> Option<LaneKind> {
    match pb::LaneKind::try_from(number).ok()? {
        pb::LaneKind::Unspecified => None,
        pb::LaneKind::Control => Some(LaneKind::Control),
        pb::LaneKind::Ordinary => Some(LaneKind::Ordinary),
        pb::LaneKind::Large => Some(LaneKind::Large),
    }
}

pub(super) fn write_quarantine_reason(reason: QuarantineReason) -> pb::QuarantineReason {
    match reason {
        QuarantineReason::RemovedFromMembership => pb::QuarantineReason::RemovedFromMembership,
        QuarantineReason::DeliveryGaveUp => pb::QuarantineReason::DeliveryGaveUp,
        QuarantineReason::Manual => pb::QuarantineReason::Manual,
    }
}

pub(super) fn quarantine_reason(number: i32) -> Option<QuarantineReason> {
    match pb::QuarantineReason::try_from(number).ok()? {
        pb::QuarantineReason::Unspecified => None,
        pb::QuarantineReason::RemovedFromMembership => Some(QuarantineReason::RemovedFromMembership),
        pb::QuarantineReason::DeliveryGaveUp => Some(QuarantineReason::DeliveryGaveUp),
        pb::QuarantineReason::Manual => Some(QuarantineReason::Manual),
    }
}

pub(super) fn write_reject(code: RejectCode) -> pb::RejectCode {
    match code {
        RejectCode::WrongCluster => pb::RejectCode::WrongCluster,
        RejectCode::UnknownAddress => pb::RejectCode::UnknownAddress,
        RejectCode::VersionUnsupported => pb::RejectCode::VersionUnsupported,
        RejectCode::Quarantined => pb::RejectCode::Quarantined,
        RejectCode::Terminating => pb::RejectCode::Terminating,
        RejectCode::NotReady => pb::RejectCode::NotReady,
        RejectCode::UidCollision => pb::RejectCode::UidCollision,
        RejectCode::Unauthorized => pb::RejectCode::Unauthorized,
        RejectCode::SelfConnect => pb::RejectCode::SelfConnect,
        RejectCode::TooManyStreams => pb::RejectCode::TooManyStreams,
        RejectCode::Unknown => pb::RejectCode::Unspecified,
    }
}

pub(super) fn reject(number: i32) -> RejectCode {
    match pb::RejectCode::try_from(number).unwrap_or_default() {
        pb::RejectCode::Unspecified => RejectCode::Unknown,
        pb::RejectCode::WrongCluster => RejectCode::WrongCluster,
        pb::RejectCode::UnknownAddress => RejectCode::UnknownAddress,
        pb::RejectCode::VersionUnsupported => RejectCode::VersionUnsupported,
        pb::RejectCode::Quarantined => RejectCode::Quarantined,
        pb::RejectCode::Terminating => RejectCode::Terminating,
        pb::RejectCode::NotReady => RejectCode::NotReady,
        pb::RejectCode::UidCollision => RejectCode::UidCollision,
        pb::RejectCode::Unauthorized => RejectCode::Unauthorized,
        pb::RejectCode::SelfConnect => RejectCode::SelfConnect,
        pb::RejectCode::TooManyStreams => RejectCode::TooManyStreams,
    }
}

pub(super) fn write_entity_error(error: &EntityError) -> pb::EntityFailure {
    use pb::EntityFailureKind as Kind;
    let (kind, text) = match error {
        EntityError::NoReply => (Kind::NoReply, ""),
        EntityError::Stopped => (Kind::Stopped, ""),
        EntityError::StartFailed(text) => (Kind::StartFailed, text.as_str()),
        EntityError::Failed(text) => (Kind::Failed, text.as_str()),
        EntityError::StashFull => (Kind::StashFull, ""),
        EntityError::ReadOnly => (Kind::ReadOnly, ""),
        EntityError::NotStored(NotStoredReason::Rejected(text)) => (Kind::NotStoredRejected, text.as_str()),
        EntityError::NotStored(NotStoredReason::Unavailable(text)) => (Kind::NotStoredUnavailable, text.as_str()),
        EntityError::NotStored(NotStoredReason::Fenced) => (Kind::NotStoredFenced, ""),
        EntityError::OutcomeUnknown => (Kind::OutcomeUnknown, ""),
        EntityError::NotInOrder => (Kind::NotInOrder, ""),
    };
    pb::EntityFailure { kind: kind.into(), text: text.to_owned() }
}

pub(super) fn entity_error(failure: pb::EntityFailure) -> EntityError {
    use pb::EntityFailureKind as Kind;
    match Kind::try_from(failure.kind).unwrap_or_default() {
        Kind::NoReply => EntityError::NoReply,
        Kind::Stopped => EntityError::Stopped,
        Kind::StartFailed => EntityError::StartFailed(failure.text),
        Kind::Failed => EntityError::Failed(failure.text),
        Kind::StashFull => EntityError::StashFull,
        Kind::ReadOnly => EntityError::ReadOnly,
        Kind::NotStoredRejected => EntityError::NotStored(NotStoredReason::Rejected(failure.text)),
        Kind::NotStoredUnavailable => EntityError::NotStored(NotStoredReason::Unavailable(failure.text)),
        Kind::NotStoredFenced => EntityError::NotStored(NotStoredReason::Fenced),
        // A failure of a newer version is read as one of unknown outcome.
        Kind::OutcomeUnknown | Kind::Unspecified => EntityError::OutcomeUnknown,
        Kind::NotInOrder => EntityError::NotInOrder,
    }
}

/// The reasons that a dropped question may be answered with, and their numbers.
const REASONS: &[(DeadLetterReason, u32)] = &[
    (DeadLetterReason::HandshakeTimeout, 1),
    (DeadLetterReason::HandshakeRejected, 2),
    (DeadLetterReason::QueueFull, 3),
    (DeadLetterReason::Quarantined, 4),
    (DeadLetterReason::StaleIncarnation, 5),
    (DeadLetterReason::StaleRecipient, 6),
    (DeadLetterReason::NoSuchRecipient, 7),
    (DeadLetterReason::TooLarge, 8),
    (DeadLetterReason::SerializeFailed, 9),
    (DeadLetterReason::Undecodable, 10),
    (DeadLetterReason::SupersededStream, 11),
    (DeadLetterReason::MailboxFull, 12),
    (DeadLetterReason::LateReply, 13),
    (DeadLetterReason::LostInFlight, 14),
    (DeadLetterReason::ShuttingDown, 15),
    (DeadLetterReason::Untrusted, 16),
    (DeadLetterReason::ProxyBufferFull, 17),
    (DeadLetterReason::NotSingletonHost, 18),
    (DeadLetterReason::BufferFull, 19),
    (DeadLetterReason::Expired, 20),
    (DeadLetterReason::RegionStopped, 21),
    (DeadLetterReason::Refused, 22),
    (DeadLetterReason::RouteLoop, 23),
    (DeadLetterReason::RouteStraggler, 24),
    (DeadLetterReason::HandOffStraggler, 25),
    (DeadLetterReason::ExtractorRejected, 26),
    (DeadLetterReason::ExtractorPanicked, 27),
    (DeadLetterReason::FingerprintMismatch, 28),
    (DeadLetterReason::EmptyEntityId, 29),
    (DeadLetterReason::EntityIdTooLong, 30),
    (DeadLetterReason::InvalidShardId, 31),
    (DeadLetterReason::WrongShard, 32),
    (DeadLetterReason::UnknownEntityType, 33),
    (DeadLetterReason::EntityStartFailed, 34),
    (DeadLetterReason::EntityStopped, 35),
    (DeadLetterReason::EntityMailboxFull, 36),
    (DeadLetterReason::ShardInboxFull, 37),
    (DeadLetterReason::NoOtherRegion, 38),
    (DeadLetterReason::StashFull, 39),
    (DeadLetterReason::ProducerClosed, 40),
    (DeadLetterReason::Poisoned, 41),
    (DeadLetterReason::UnexpectedMessage, 42),
    (DeadLetterReason::DeliveryGaveUp, 43),
    (DeadLetterReason::NotAMember, 44),
    (DeadLetterReason::BeyondReach, 45),
    (DeadLetterReason::NoHost, 46),
];

pub(super) fn write_drop_reason(reason: DeadLetterReason) -> u32 {
    REASONS.iter().find(|(known, _)| *known == reason).map_or(0, |(_, number)| *number)
}

/// Reads a number as a reason; a reason of a newer version is read as the one that promises least.
pub(super) fn drop_reason(number: u32) -> DeadLetterReason {
    REASONS.iter().find(|(_, known)| *known == number).map_or(DeadLetterReason::Undecodable, |(reason, _)| *reason)
}
