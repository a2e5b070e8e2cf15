//! `persistence.*`: what an event-sourced behaviour is told. Source: persistence §9.

use greylag_persistence::{OnUnknownEvent, SnapshotFailurePolicy, StashOverflow};

use super::Key;
use crate::config::given::words;

words!(SnapshotFailurePolicy { "replay_if_complete" => Self::ReplayIfComplete, "fail" => Self::Fail });
words!(OnUnknownEvent { "fail" => Self::Fail, "skip" => Self::Skip });
words!(StashOverflow { "drop" => Self::Drop, "fail" => Self::Fail });

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.recovery_event_timeout",
            "persistence §9",
            "Longest wait for the claim, for the snapshot, and for each replay page.",
            |draft| &mut draft.settings.persistence.recovery_event_timeout,
        ),
        Key::new("persistence.replay_page_events", "persistence §9", "Most records of one replay page.", |draft| {
            &mut draft.settings.persistence.replay_page_events
        }),
        Key::new("persistence.replay_page_bytes", "persistence §9", "Most bytes of one replay page.", |draft| {
            &mut draft.settings.persistence.replay_page_bytes
        }),
        Key::new(
            "persistence.snapshot_every",
            "persistence §2.8",
            "Saves a snapshot whenever an append crosses a multiple of this.",
            |draft| &mut draft.settings.persistence.snapshot_every,
        ),
        Key::new(
            "persistence.keep_n_snapshots",
            "persistence §2.8",
            "How many of those snapshots retention keeps.",
            |draft| &mut draft.settings.persistence.keep_n_snapshots,
        ),
        Key::new(
            "persistence.delete_events",
            "persistence §2.8",
            "Whether retention also deletes the events before the oldest snapshot kept.",
            |draft| &mut draft.settings.persistence.delete_events,
        ),
        Key::new(
            "persistence.snapshot_load_attempts",
            "persistence §9",
            "How many snapshots are tried, newest first.",
            |draft| &mut draft.settings.persistence.snapshot_load_attempts,
        ),
        Key::new(
            "persistence.snapshot_failure",
            "persistence §9",
            "What follows when all tried snapshots are damaged.",
            |draft| &mut draft.settings.persistence.snapshot_failure,
        ),
        Key::new(
            "persistence.allow_partial_history",
            "persistence §9",
            "Replays what is left of a history whose beginning was deleted.",
            |draft| &mut draft.settings.persistence.allow_partial_history,
        ),
        Key::new(
            "persistence.on_unknown_event",
            "persistence §9",
            "What follows when an event cannot be decoded.",
            |draft| &mut draft.settings.persistence.on_unknown_event,
        ),
        Key::new("persistence.stash_capacity", "persistence §9", "Most commands of each stash.", |draft| {
            &mut draft.settings.persistence.stash_capacity
        }),
        Key::new("persistence.stash_overflow", "persistence §9", "What happens to one more.", |draft| {
            &mut draft.settings.persistence.stash_overflow
        }),
        Key::new(
            "persistence.unstash_budget",
            "persistence §9",
            "Stashed commands handled in one go before the executor gets its turn.",
            |draft| &mut draft.settings.persistence.unstash_budget,
        ),
        Key::new(
            "persistence.max_reject_restarts",
            "persistence §9",
            "Most restarts by rejected appends in one minute; one more stops the entity.",
            |draft| &mut draft.settings.persistence.max_reject_restarts,
        ),
    ]
}
