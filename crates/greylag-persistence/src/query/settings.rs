//! How often and how much queries read.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::settings::SettingsError;

/// How streams of events read. Source: persistence §9 (`query.*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySettings {
    /// Between two looks for something new, while nothing comes. Shorter: less lag. Longer: fewer
    /// queries. Default 3 s.
    pub refresh_interval: Duration,
    /// Most events of one page; a consumer that asks for nothing costs one page. Default 1000.
    pub page: NonZeroUsize,
    /// Of stores whose commits become visible out of order.
    pub backtracking: BacktrackingSettings,
}

/// How far a stream goes back over what it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacktrackingSettings {
    /// A first pass begins this long (and `behind`) before the offset; and what is read ahead is never
    /// more than half of it before what was read again. Default 2 min.
    pub window: Duration,
    /// A pass ends this long before the present: by then whatever was written has been committed.
    /// Default 10 s.
    pub behind: Duration,
}

impl Default for BacktrackingSettings {
    fn default() -> Self {
        Self { window: Duration::from_secs(120), behind: Duration::from_secs(10) }
    }
}

impl Default for QuerySettings {
    fn default() -> Self {
        Self {
            refresh_interval: Duration::from_secs(3),
            page: NonZeroUsize::new(1000).expect("not zero"),
            backtracking: BacktrackingSettings::default(),
        }
    }
}

impl QuerySettings {
    /// For tests: looks often, and goes back soon.
    pub fn test() -> Self {
        let backtracking = BacktrackingSettings { behind: Duration::from_millis(300), ..Default::default() };
        Self { refresh_interval: Duration::from_millis(20), backtracking, ..Self::default() }
    }

    /// Checks what could not be meant.
    ///
    /// # Errors
    /// [`SettingsError`], naming the setting.
    pub fn check(&self) -> Result<(), SettingsError> {
        for (key, value) in [
            ("query.refresh_interval", self.refresh_interval),
            ("query.backtracking.window", self.backtracking.window),
            ("query.backtracking.behind", self.backtracking.behind),
        ] {
            if value.is_zero() {
                return Err(SettingsError::ZeroDuration { key });
            }
        }
        Ok(())
    }
}
