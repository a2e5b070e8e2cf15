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
    /// How the projections of a node share one reader of each entity type.
    pub sharing: SharingSettings,
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

impl BacktrackingSettings {
    /// How far before an offset a first pass begins.
    pub(crate) fn reach(&self) -> Duration {
        self.window + self.behind
    }
}

/// How one reader feeds many projections. Source: persistence §9 (`query.fanout_buffer` and following).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingSettings {
    /// Most envelopes that wait for the slowest projection, beside one page. Default 256.
    pub fanout_buffer: NonZeroUsize,
    /// A projection that has caught up goes on reading by itself for so long, at least, while the
    /// shared reader feeds it already. Default 10 s.
    pub catchup_overlap: Duration,
    /// The shared reader stays for so long after its last projection has left. Default 40 s.
    pub linger: Duration,
    /// A projection is slow that is behind the fastest by more than this. Default 5 s.
    pub slow_consumer_lag: Duration,
    /// One that is slow and holds more than half of the buffer for so long has to read by itself until it
    /// has caught up again. Default 2 s.
    pub abort_after: Duration,
}

impl Default for SharingSettings {
    fn default() -> Self {
        Self {
            fanout_buffer: NonZeroUsize::new(256).expect("not zero"),
            catchup_overlap: Duration::from_secs(10),
            linger: Duration::from_secs(40),
            slow_consumer_lag: Duration::from_secs(5),
            abort_after: Duration::from_secs(2),
        }
    }
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
            sharing: SharingSettings::default(),
        }
    }
}

impl QuerySettings {
    /// For tests: looks often, goes back soon, and leaves reading to the shared reader soon.
    pub fn test() -> Self {
        let backtracking = BacktrackingSettings { behind: Duration::from_millis(300), ..Default::default() };
        let sharing = SharingSettings { catchup_overlap: Duration::from_millis(300), ..Default::default() };
        Self { refresh_interval: Duration::from_millis(20), backtracking, sharing, ..Self::default() }
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
            ("query.catchup_overlap", self.sharing.catchup_overlap),
            ("query.linger", self.sharing.linger),
            ("query.slow_consumer_lag", self.sharing.slow_consumer_lag),
            ("query.abort_after", self.sharing.abort_after),
        ] {
            if value.is_zero() {
                return Err(SettingsError::ZeroDuration { key });
            }
        }
        Ok(())
    }
}
