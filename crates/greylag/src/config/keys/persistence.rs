//! `persistence.*`: the settings that event-sourced behaviours, and those with a durable state, start from. Source:
//! persistence §9.

use greylag_persistence::{OnUnknownEvent, ReplayFilterMode, SnapshotFailurePolicy, StashOverflow};

use super::Key;
use crate::config::given::words;

words!(SnapshotFailurePolicy { "replay_if_complete" => Self::ReplayIfComplete, "fail" => Self::Fail });
words!(OnUnknownEvent { "fail" => Self::Fail, "skip" => Self::Skip });
words!(ReplayFilterMode {
    "fail" => Self::Fail,
    "repair_by_discard_old" => Self::RepairByDiscardOld,
    "warn" => Self::Warn,
    "off" => Self::Off,
});
words!(StashOverflow { "drop" => Self::Drop, "fail" => Self::Fail });

pub(super) fn keys() -> Vec<Key> {
    let keys = vec![
        Key::new(
            "persistence.recovery_event_timeout",
            "persistence §9",
            "Longest wait for the claim, for the snapshot, and for each replay page.",
            |draft| &mut draft.settings.persistence.recovery_event_timeout,
        ),
        Key::new("persistence.recovery_timeout", "persistence §3", "Longest wait for a durable state.", |draft| {
            &mut draft.settings.durable_state.recovery_timeout
        }),
        Key::new("persistence.replay_page_events", "persistence §9", "Most records of one replay page.", |draft| {
            &mut draft.settings.persistence.replay_page_events
        }),
        Key::new("persistence.replay_page_bytes", "persistence §9", "Most bytes of one replay page.", |draft| {
            &mut draft.settings.persistence.replay_page_bytes
        }),
        Key::some(
            "persistence.replay_filter.mode",
            "persistence §2.5",
            "What follows records of writers that overlap; `off` looks for none.",
            |draft| &mut draft.settings.persistence.replay_filter.mode,
        )
        .default_is("fail if the journal fences, else repair_by_discard_old"),
        Key::new(
            "persistence.replay_filter.window",
            "persistence §2.5",
            "How many records are held back to repair.",
            |draft| &mut draft.settings.persistence.replay_filter.window,
        ),
        Key::new(
            "persistence.replay_filter.max_old_writers",
            "persistence §2.5",
            "How many superseded writers are remembered.",
            |draft| &mut draft.settings.persistence.replay_filter.max_old_writers,
        ),
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
            "Replays what is left of a history whose beginning was deleted. No snapshots are taken of what comes out of it.",
            |draft| &mut draft.settings.persistence.allow_partial_history,
        ),
        Key::new(
            "persistence.on_unknown_event",
            "persistence §9",
            "What follows an event of a type, or of a version, that this program does not know: recovery fails, or the event is skipped, counted and logged, and no snapshots are taken from then on. One that is damaged always fails it.",
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
            "Most restarts by rejected appends in one minute; with one more the entity fails, see `on_failure`.",
            |draft| &mut draft.settings.persistence.max_reject_restarts,
        ),
        Key::new(
            "persistence.on_failure",
            "persistence §9",
            "What follows a failed recovery or write: the entity ends, or recovers again after a growing wait.",
            |draft| &mut draft.persistence.on_failure,
        ),
        Key::new("persistence.backoff_min", "persistence §9", "The first of these waits.", |draft| {
            &mut draft.persistence.backoff.min
        }),
        Key::new(
            "persistence.backoff_max",
            "persistence §9",
            "The longest, before `backoff_jitter` is added: up to `backoff_max` × (1 + `backoff_jitter`).",
            |draft| &mut draft.persistence.backoff.max,
        ),
        Key::new("persistence.backoff_jitter", "persistence §9", "Share of the wait that is drawn on top.", |draft| {
            &mut draft.persistence.backoff.jitter
        }),
    ];
    #[cfg(feature = "sharding")]
    let keys = keys.into_iter().chain(of_nodes()).collect();
    keys
}

/// Settings that all sharded entities of the node share.
#[cfg(feature = "sharding")]
fn of_nodes() -> [Key; 2] {
    [
        Key::new(
            "persistence.max_concurrent_recoveries",
            "persistence §2.5",
            "Entities of the node that recover at the same time.",
            |draft| &mut draft.settings.sharding.max_concurrent_recoveries,
        ),
        Key::new(
            "persistence.permit_wait_warn",
            "persistence §2.5",
            "An entity that waits so long for its turn to recover is told of in the log; nothing else follows.",
            |draft| &mut draft.settings.sharding.permit_wait_warn,
        ),
    ]
}
