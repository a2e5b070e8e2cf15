//! The setup that a seed draws: counts, settings of entities, and faults of the network.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use greylag_persistence::{
    Backoff, DeliveryTrackerSettings, DurableStateSettings, EventSourcedSettings, OnFailure, StashOverflow,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) nodes: usize,
    pub(super) books: usize,
    pub(super) slates: usize,
    /// Whether hosts claim under generations; otherwise under the epochs that they saw.
    pub(super) is_sharded: bool,
    pub(super) permits: usize,
    pub(super) rollback: bool,
    pub(super) latest_only: bool,
    /// Whether handlers delete events. Snapshots are damaged only in other setups, since deleted events would be lost
    /// then.
    pub(super) clears: bool,
    pub(super) damages: bool,
    pub(super) event_entity: EventSourcedSettings,
    pub(super) state_entity: DurableStateSettings,
    pub(super) loss: f64,
    pub(super) copies: f64,
    pub(super) refusals: f64,
    pub(super) slow: f64,
}

impl Setup {
    pub(super) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut pick = |choices: &[u64]| choices[rng.random_range(0..choices.len())];
        let size = |number: u64| NonZeroUsize::new(number as usize).expect("drawn from sizes");
        let stash_capacity = size(pick(&[2, 4, 8, 64, 64]));
        let stash_overflow = if pick(&[0, 0, 1]) == 1 { StashOverflow::Fail } else { StashOverflow::Drop };
        let unstash_budget = size(pick(&[1, 2, 3, 64]));
        let backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_millis(400), jitter: 0.2 };
        let on_failure = if pick(&[0, 0, 1]) == 1 { OnFailure::Stop } else { OnFailure::RestartBackoff(backoff) };
        let delivery_tracker = DeliveryTrackerSettings {
            redeliver_interval: Duration::from_millis(pick(&[200, 400, 1_000])),
            redelivery_burst_limit: size(pick(&[1, 3, 100])),
            warn_after_attempts: NonZeroU32::new(2).expect("not zero"),
            max_unconfirmed: size(pick(&[2, 10, 1_000])),
        };
        let delete_events = pick(&[0, 1]) == 1;
        let clears = pick(&[0, 0, 1]) == 1;
        let latest_only = pick(&[0, 0, 0, 0, 1]) == 1;
        let event_entity = EventSourcedSettings {
            recovery_event_timeout: Duration::from_secs(2),
            replay_page_events: size(pick(&[1, 2, 5, 1_000])),
            stash_capacity,
            stash_overflow,
            unstash_budget,
            snapshot_every: NonZeroU64::new(pick(&[0, 2, 3, 7])),
            keep_n_snapshots: NonZeroU64::new(pick(&[1, 2])).expect("not zero"),
            delete_events,
            on_failure,
            delivery_tracker,
            ..EventSourcedSettings::default()
        };
        let state_entity = DurableStateSettings {
            recovery_timeout: Duration::from_secs(2),
            stash_capacity,
            stash_overflow,
            unstash_budget,
            on_failure,
        };
        let damages = !delete_events && !clears && !latest_only && pick(&[0, 1]) == 1;
        let share = |parts: u64| parts as f64 / 1_000.0;
        Self {
            nodes: pick(&[1, 2, 2, 3]) as usize,
            books: pick(&[1, 1, 2, 3]) as usize,
            slates: pick(&[0, 1, 2]) as usize,
            is_sharded: pick(&[0, 1]) == 1,
            permits: pick(&[1, 2, 3]) as usize,
            rollback: pick(&[0, 1]) == 1,
            latest_only,
            clears,
            damages,
            event_entity,
            state_entity,
            loss: share(pick(&[0, 20, 60, 120])),
            copies: share(pick(&[0, 20, 80])),
            refusals: share(pick(&[0, 5, 30])),
            slow: share(pick(&[0, 5, 20])),
        }
    }
}
