//! Settings of queries: how often and how much they read.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::contract::settings::SettingsError;

/// Settings of streams of events. Source: persistence §9 (`query.*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySettings {
    /// Time between two queries for new events, while none come. Shorter: less lag. Longer: fewer
    /// queries. Default 3 s.
    pub refresh_interval: Duration,
    /// Most events of one page; a consumer without a demand costs one page. Default 1000.
    pub page: NonZeroUsize,
    /// Backtracking, for stores whose commits become visible out of order.
    pub backtracking: BacktrackingSettings,
    /// The reader of each entity type that the projections of a node share.
    pub sharing: SharingSettings,
}

/// How far a stream backtracks over events that it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacktrackingSettings {
    /// A first pass begins this long (and `behind`) before the offset; and the live cursor is never
    /// more than half of this ahead of the backtracking cursor for long. Default 2 min.
    pub window: Duration,
    /// A pass ends this long before the present: by then all earlier writes are committed.
    /// Default 10 s.
    pub behind: Duration,
}

impl BacktrackingSettings {
    /// How far before an offset the first backtracking pass begins.
    pub(crate) fn reach(&self) -> Duration {
        self.window + self.behind
    }
}

/// Settings of a reader that feeds many projections. Source: persistence §9 (`query.fanout_buffer` and following).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingSettings {
    /// Most envelopes buffered for the slowest projection, besides one page. Default 256.
    pub fanout_buffer: NonZeroUsize,
    /// Shortest time for which a projection that has caught up goes on reading by itself while the
    /// shared reader feeds it already. Default 10 s.
    pub catchup_overlap: Duration,
    /// How long the shared reader stays after its last projection has left. Default 40 s.
    pub linger: Duration,
    /// A projection counts as slow if it is behind the fastest by more than this. Default 5 s.
    pub slow_consumer_lag: Duration,
    /// A slow projection that holds more than half of the buffer for so long is dismissed: it reads by itself until it
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
    /// Settings for tests: short intervals, early backtracking, and an early switch to the shared reader.
    pub fn test() -> Self {
        let backtracking = BacktrackingSettings { behind: Duration::from_millis(300), ..Default::default() };
        let sharing = SharingSettings { catchup_overlap: Duration::from_millis(300), ..Default::default() };
        Self { refresh_interval: Duration::from_millis(20), backtracking, sharing, ..Self::default() }
    }

    /// Checks the values that the types do not rule out.
    ///
    /// # Errors
    /// [`SettingsError`], naming the setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
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
