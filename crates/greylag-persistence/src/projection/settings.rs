//! How a projection saves, retries and forgets.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::query::QuerySettings;
use crate::settings::{Backoff, SettingsError};

/// How one projection runs; how it reads is said by its [`ReadJournal`](crate::ReadJournal). Source:
/// persistence §5 (projections), §9.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectionSettings {
    /// Whether it takes its events from the reader that the projections of one
    /// [`ReadJournal`](crate::ReadJournal) share, once it has caught up. Otherwise it has all queries
    /// made for itself. Default true.
    pub share_reader: bool,
    /// Envelopes that the handler gets at once. Larger groups cost less each, and are repeated whole.
    /// Default 1.
    pub group: NonZeroUsize,
    /// Offsets are saved after so many envelopes, in at-least-once mode. Default 100.
    pub save_after_n: NonZeroUsize,
    /// Offsets are saved at the latest this long after an envelope was handled. Default 500 ms.
    pub save_after: Duration,
    /// How often the handler is asked again about an envelope that it failed. Default 5.
    pub max_retries: u32,
    /// What follows when it fails once more. Default [`OnPoison::Fail`].
    pub on_poison: OnPoison,
    /// Waits before the handler is asked again, and before a projection whose store failed starts over. Default as
    /// [`Backoff::default`].
    pub backoff: Backoff,
    /// What was processed of each id is remembered this long, by the time of the events; at least the
    /// window and distance of backtracking together. Default 5 min.
    pub remember: Duration,
    /// Between two removals of what need not be remembered. Default 1 min.
    pub forget_interval: Duration,
}

/// What follows an envelope that the handler cannot process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPoison {
    /// The projection ends with it, and says which envelope it was; nothing is passed over.
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
    /// For tests: waits little. Goes with [`QuerySettings::test`].
    pub fn test() -> Self {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(100));
        Self { save_after: Duration::from_millis(20), backoff: Backoff { min, max, jitter: 0.0 }, ..Self::default() }
    }

    /// Checks what could not be meant, alone and together.
    ///
    /// # Errors
    /// [`SettingsError`], naming the settings.
    pub fn check(&self, query: &QuerySettings) -> Result<(), SettingsError> {
        query.check()?;
        self.backoff.check()?;
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

    /// How often the handler is asked in all.
    pub(crate) fn tries(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.max_retries)
    }
}
