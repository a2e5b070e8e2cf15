//! Settings of a projection: saving, retries, forgetting.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::contract::settings::{Backoff, SettingsError};
use crate::reading::query::settings::QuerySettings;

/// Settings of one projection; those of reading belong to its [`ReadJournal`](crate::ReadJournal). Source:
/// persistence §5 (projections), §9.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectionSettings {
    /// Whether the projection, once it has caught up, takes its events from the reader that the projections of one
    /// [`ReadJournal`](crate::ReadJournal) share. Otherwise it makes all queries for itself.
    /// Default true.
    pub share_reader: bool,
    /// Most envelopes that the handler gets at once. Larger groups cost less for each envelope, and are repeated whole.
    /// Default 1.
    pub group: NonZeroUsize,
    /// Number of handled envelopes after which offsets are saved, in at-least-once mode. Default 100.
    pub save_after_n: NonZeroUsize,
    /// Longest time from the handling of an envelope to the save of its offset. Default 500 ms.
    pub save_after: Duration,
    /// Most retries of an envelope that the handler failed. Default 5.
    pub max_retries: u32,
    /// What follows when the last retry fails. Default [`OnPoison::Fail`].
    pub on_poison: OnPoison,
    /// Waits between tries of the handler, and before a projection whose store failed starts over. Default as
    /// [`Backoff::default`].
    pub backoff: Backoff,
    /// How long the processed number of each id is kept, by the time of the events; at least the
    /// window and distance of backtracking together. Default 5 min.
    pub remember: Duration,
    /// Time between two removals of ids that need not be kept. Default 1 min.
    pub forget_interval: Duration,
}

/// What follows an envelope that the handler cannot process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPoison {
    /// The projection ends with an error that names the envelope; none is skipped.
    Fail,
    /// The envelope is recorded as skipped, and the projection goes on.
    Skip,
}

impl Default for ProjectionSettings {
    fn default() -> Self {
        Self {
            share_reader: true,
            group: NonZeroUsize::MIN,
            save_after_n: NonZeroUsize::new(100).expect("not zero"),
            save_after: Duration::from_millis(500),
            max_retries: 5,
            on_poison: OnPoison::Fail,
            backoff: Backoff::default(),
            remember: Duration::from_secs(300),
            forget_interval: Duration::from_secs(60),
        }
    }
}

impl ProjectionSettings {
    /// Settings with short waits, for tests. Goes with [`QuerySettings::test`].
    pub fn test() -> Self {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(100));
        Self { save_after: Duration::from_millis(20), backoff: Backoff { min, max, jitter: 0.0 }, ..Self::default() }
    }

    /// Checks the values that the types do not rule out, alone and together.
    ///
    /// # Errors
    /// [`SettingsError`], naming the settings.
    pub fn validate(&self, query: &QuerySettings) -> Result<(), SettingsError> {
        query.validate()?;
        self.backoff.validate()?;
        for (key, value) in
            [("projection.save_after", self.save_after), ("projection.forget_interval", self.forget_interval)]
        {
            if value.is_zero() {
                return Err(SettingsError::ZeroDuration { key });
            }
        }
        let reach = query.backtracking.reach();
        if self.remember < reach {
            return Err(SettingsError::RememberTooShort { remember: self.remember, reach });
        }
        Ok(())
    }

    /// Number of tries of the handler, the first included.
    pub(crate) fn tries(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.max_retries)
    }
}
