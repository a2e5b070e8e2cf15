//! `docs/errors.md` has a row for every error of `tell` and `ask`, and each row says what the code says.
//!
//! Source: sharding scenario 113.

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, NotStoredReason};
use greylag_sharding::{AskError, SendError};
use greylag_transport::AskError as Transport;

/// By error: whether it may have run, and whether to try again.
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

fn transport_errors() -> Vec<Transport> {
    vec![
        Transport::PeerRestarted,
        Transport::PeerRemoved,
        Transport::Quarantined,
        Transport::NoSuchRecipient,
        Transport::ReplyTooLarge,
        Transport::Undecodable(String::new()),
        Transport::ShuttingDown,
    ]
}

/// `None` for what an ask of an entity names by a variant of its own.
fn transport_name(error: &Transport) -> Option<&'static str> {
    match error {
        Transport::Timeout(_) | Transport::Entity(_) | Transport::Send(_) | Transport::Dropped(_) => None,
        Transport::PeerRestarted => Some("PeerRestarted"),
        Transport::PeerRemoved => Some("PeerRemoved"),
        Transport::Quarantined => Some("Quarantined"),
        Transport::NoSuchRecipient => Some("NoSuchRecipient"),
        Transport::ReplyTooLarge => Some("ReplyTooLarge"),
        Transport::Undecodable(_) => Some("Undecodable"),
        Transport::ShuttingDown => Some("ShuttingDown"),
    }
}

fn asks() -> Vec<AskError> {
    let timeout = AskError::Timeout {
        entity_type: String::new(),
        entity: String::new(),
        message_type: "",
        timeout: Duration::from_secs(1),
    };
    let entities = entity_errors().into_iter().map(AskError::Entity);
    let transport = transport_errors().into_iter().map(AskError::Transport);
    [timeout, AskError::InvalidTimeout].into_iter().chain(entities).chain(transport).collect()
}

fn ask_name(error: &AskError) -> String {
    match error {
        AskError::Timeout { .. } => "AskError::Timeout".to_owned(),
        AskError::InvalidTimeout => "AskError::InvalidTimeout".to_owned(),
        AskError::Entity(error) => format!("AskError::Entity({})", entity_name(error)),
        AskError::Send(error) => send_name(error),
        AskError::Dropped(reason) => reason.to_string(),
        AskError::Transport(error) => format!("AskError::Transport({})", transport_name(error).expect("it has a name")),
    }
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
