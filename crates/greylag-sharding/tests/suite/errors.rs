//! `docs/errors.md` has a row for every error of `tell` and `ask`, and each row agrees with the code.
//!
//! Source: sharding scenario 113.

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, NotStoredReason, Uid, UniqueAddress};
use greylag_sharding::{AskError, SendError};

/// By error: whether the message may have run, and whether to try again.
type Rows = BTreeMap<String, (bool, bool)>;

fn documented() -> Rows {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    let text = std::fs::read_to_string(path).expect("docs/errors.md is there");
    let yes = |cell: &str| match cell.trim() {
        "yes" => true,
        "no" => false,
        other => panic!("{other:?} is neither yes nor no"),
    };
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').collect();
        let name = cells.get(1)?.trim().strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), (yes(cells[2]), yes(cells[3]))))
    };
    text.lines().filter_map(row).collect()
}

fn sends() -> Vec<SendError> {
    vec![
        SendError::BufferFull,
        SendError::ShardInboxFull,
        SendError::QueueFull,
        SendError::Refused,
        SendError::RegionStopped,
        SendError::NotStarted,
        SendError::EmptyEntityId,
        SendError::EntityIdTooLong,
    ]
}

/// The name of an error in the table. Without a wildcard, so that a new variant does not compile before it has a row.
fn send_name(error: &SendError) -> String {
    match error {
        SendError::BufferFull
        | SendError::ShardInboxFull
        | SendError::QueueFull
        | SendError::Refused
        | SendError::RegionStopped
        | SendError::NotStarted
        | SendError::EmptyEntityId
        | SendError::EntityIdTooLong => format!("SendError::{error:?}"),
        SendError::Dropped(reason) => reason.to_string(),
    }
}

fn entity_errors() -> Vec<EntityError> {
    let words = String::new;
    vec![
        EntityError::NoReply,
        EntityError::Stopped,
        EntityError::StartFailed(words()),
        EntityError::Failed(words()),
        EntityError::StashFull,
        EntityError::ReadOnly,
        EntityError::NotStored(NotStoredReason::Rejected(words())),
        EntityError::NotStored(NotStoredReason::Unavailable(words())),
        EntityError::NotStored(NotStoredReason::Fenced),
        EntityError::OutcomeUnknown,
        EntityError::NotInOrder,
    ]
}

fn entity_name(error: &EntityError) -> &'static str {
    match error {
        EntityError::NoReply => "NoReply",
        EntityError::Stopped => "Stopped",
        EntityError::StartFailed(_) => "StartFailed",
        EntityError::Failed(_) => "Failed",
        EntityError::StashFull => "StashFull",
        EntityError::ReadOnly => "ReadOnly",
        EntityError::NotStored(NotStoredReason::Rejected(_)) => "NotStored(Rejected)",
        EntityError::NotStored(NotStoredReason::Unavailable(_)) => "NotStored(Unavailable)",
        EntityError::NotStored(NotStoredReason::Fenced) => "NotStored(Fenced)",
        EntityError::OutcomeUnknown => "OutcomeUnknown",
        EntityError::NotInOrder => "NotInOrder",
    }
}

fn asks() -> Vec<AskError> {
    let node = || UniqueAddress::new("a:1".parse().unwrap(), Uid::new(1).unwrap());
    let words = String::new;
    let own = [
        AskError::Timeout {
            entity_type: words(),
            entity: words(),
            message_type: words(),
            timeout: Duration::from_secs(1),
        },
        AskError::InvalidTimeout,
        AskError::Codec { type_name: words(), node: node(), cause: words() },
        AskError::Undecodable { message_type: words(), node: node() },
        AskError::PeerRestarted,
        AskError::PeerRemoved,
        AskError::Quarantined,
        AskError::ReplyTooLarge,
        AskError::ShuttingDown,
    ];
    own.into_iter().chain(entity_errors().into_iter().map(AskError::Entity)).collect()
}

fn ask_name(error: &AskError) -> String {
    let name = match error {
        AskError::Timeout { .. } => "Timeout",
        AskError::InvalidTimeout => "InvalidTimeout",
        AskError::Codec { .. } => "Codec",
        AskError::Undecodable { .. } => "Undecodable",
        AskError::PeerRestarted => "PeerRestarted",
        AskError::PeerRemoved => "PeerRemoved",
        AskError::Quarantined => "Quarantined",
        AskError::ReplyTooLarge => "ReplyTooLarge",
        AskError::ShuttingDown => "ShuttingDown",
        AskError::Entity(error) => return format!("AskError::Entity({})", entity_name(error)),
        AskError::Send(error) => return send_name(error),
        AskError::Dropped(reason) => return reason.to_string(),
    };
    format!("AskError::{name}")
}

#[test]
fn scenario_113_every_error_says_whether_the_command_may_have_run_and_whether_to_try_again() {
    let mut coded = Rows::new();
    for error in sends() {
        coded.insert(send_name(&error), (error.may_have_run(), error.is_retryable()));
    }
    for error in asks() {
        coded.insert(ask_name(&error), (error.may_have_run(), error.is_retryable()));
    }
    for reason in DeadLetterReason::ALL {
        let (ask, send) = (AskError::Dropped(*reason), SendError::Dropped(*reason));
        assert_eq!(ask.is_retryable(), send.is_retryable(), "{reason}");
        assert!(!send.may_have_run(), "{reason}");
        coded.insert(reason.to_string(), (ask.may_have_run(), ask.is_retryable()));
    }
    assert_eq!(documented(), coded);
}

/// An error may itself be part of a command.
#[test]
fn every_error_survives_its_way_in_a_message() {
    let errors = asks().into_iter().chain(sends().into_iter().map(AskError::Send));
    let reasons = DeadLetterReason::ALL.iter().map(|reason| AskError::Dropped(*reason));
    for error in errors.chain(reasons) {
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<AskError>(&text).unwrap(), error);
    }
}
