//! Settings of the journal.

use std::time::Duration;

/// Settings of one journal in PostgreSQL. The connection string is not among them: see
/// [`PostgresJournal::open`](crate::PostgresJournal::open).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresJournalSettings {
    /// The schema of the tables. It is created if the user may. Default `public`.
    pub schema: String,
    /// The handling of an older schema. Default [`Migrate::Apply`].
    pub migrate: Migrate,
    /// Connections that append, at most 1024; an id always uses the same one. Default 4.
    pub write_lanes: usize,
    /// Statements that a lane has under way at once. Default 2.
    pub pipeline: usize,
    /// Most appends that one statement carries. Default 500.
    pub max_batch_appends: usize,
    /// A statement takes no further append once it has this many bytes; a larger append goes alone. Default 1 MiB.
    pub max_batch_bytes: usize,
    /// While the lanes hold this many bytes of appends, further appends wait. Default 64 MiB.
    pub max_pending_bytes: usize,
    /// Largest sum of payloads, metadata and tags of one append; larger ones are rejected. Default 64 MiB.
    pub max_append_bytes: usize,
    /// Connections for claims, deletions, and writes of snapshots and states. Default 4.
    pub pool_write: usize,
    /// Connections for replay. Default 8.
    pub pool_read: usize,
    /// Connections for offsets and change queries. Default 4.
    pub pool_query: usize,
    /// How long an append is tried, over reconnections, before its outcome is unknown. Default 10 s.
    pub append_timeout: Duration,
    /// How long another call is tried. Default 10 s.
    pub call_timeout: Duration,
    /// How long a snapshot call is tried. Default 20 s.
    pub snapshot_timeout: Duration,
    /// How long one try of a statement may take, on the client and on the server; after it, the connection is dropped.
    /// Default 10 s; for an append at most half of `append_timeout`, so that a second try fits. A snapshot must be
    /// transferred within it.
    pub statement_timeout: Duration,
    /// How long one try to connect may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long bringing the schema up to date may take, including the wait for another node that does so; statements
    /// of a migration are not bounded by `statement_timeout`. Default 10 min.
    pub migration_timeout: Duration,
    /// First wait before connecting again; doubles with each failure. Default 50 ms.
    pub min_backoff: Duration,
    /// Longest wait before connecting again, and so the longest time that entities still wait once the database is
    /// back. Default 500 ms. Source: sharding scenario 114.
    pub max_backoff: Duration,
    /// Change queries hold back events younger than this, so that an event that takes a moment to commit is not passed
    /// over. On databases with several clocks, set it to at least the difference of the clocks. Default 100 ms.
    /// Source: persistence §5 (`query.behind_current_time`).
    pub behind_current_time: Duration,
    /// How far the server's clock may be behind the latest stored event. After a failover to a server whose clock is
    /// behind, new events get the latest stored time until the clock has passed it, and projections see them then. A
    /// clock that is behind by more than `behind_current_time` is warned of; while it is behind by more than this,
    /// nothing is stored. Default 10 min. Source: persistence §4.4, 70.
    pub max_clock_lag: Duration,
    /// Deleted events that one statement removes. Default 1000.
    pub sweep_events: usize,
}

/// The handling of a schema that is older than the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Migrate {
    /// Bring the schema up to date, if the database user may. The default.
    Apply,
    /// Refuse to work until an operator has brought the schema up to date.
    Refuse,
}

impl Default for PostgresJournalSettings {
    fn default() -> Self {
        Self {
            schema: "public".to_owned(),
            migrate: Migrate::Apply,
            write_lanes: 4,
            pipeline: 2,
            max_batch_appends: 500,
            max_batch_bytes: 1 << 20,
            max_pending_bytes: 64 << 20,
            max_append_bytes: 64 << 20,
            pool_write: 4,
            pool_read: 8,
            pool_query: 4,
            append_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            snapshot_timeout: Duration::from_secs(20),
            statement_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            migration_timeout: Duration::from_secs(600),
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            behind_current_time: Duration::from_millis(100),
            max_clock_lag: Duration::from_secs(600),
            sweep_events: 1000,
        }
    }
}

impl PostgresJournalSettings {
    /// For tests: few connections, short waits.
    pub fn test() -> Self {
        Self {
            write_lanes: 2,
            pool_write: 2,
            pool_read: 2,
            pool_query: 2,
            max_backoff: Duration::from_millis(200),
            sweep_events: 10,
            ..Self::default()
        }
    }

    /// Checks that each setting is valid, alone and together with the others.
    ///
    /// # Errors
    /// [`SettingsError`], naming the settings and their values.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let zero = |setting| Err(SettingsError::Zero { setting });
        for (setting, value) in [
            ("write_lanes", self.write_lanes),
            ("pipeline", self.pipeline),
            ("max_batch_appends", self.max_batch_appends),
            ("max_batch_bytes", self.max_batch_bytes),
            ("max_pending_bytes", self.max_pending_bytes),
            ("max_append_bytes", self.max_append_bytes),
            ("pool_write", self.pool_write),
            ("pool_read", self.pool_read),
            ("pool_query", self.pool_query),
            ("sweep_events", self.sweep_events),
        ] {
            if value == 0 {
                return zero(setting);
            }
        }
        for (setting, value) in [
            ("append_timeout", self.append_timeout),
            ("call_timeout", self.call_timeout),
            ("snapshot_timeout", self.snapshot_timeout),
            ("statement_timeout", self.statement_timeout),
            ("connect_timeout", self.connect_timeout),
            ("migration_timeout", self.migration_timeout),
            ("min_backoff", self.min_backoff),
            ("max_backoff", self.max_backoff),
            ("max_clock_lag", self.max_clock_lag),
        ] {
            if value.is_zero() {
                return zero(setting);
            }
        }
        if self.write_lanes > usize::from(greylag_persistence::SLICES) {
            return Err(SettingsError::TooManyLanes { write_lanes: self.write_lanes });
        }
        if self.max_clock_lag <= self.behind_current_time {
            let (max_clock_lag, behind_current_time) = (self.max_clock_lag, self.behind_current_time);
            return Err(SettingsError::ClockLag { max_clock_lag, behind_current_time });
        }
        if self.min_backoff > self.max_backoff {
            return Err(SettingsError::Backoff { min: self.min_backoff, max: self.max_backoff });
        }
        if self.schema.is_empty() || self.schema.contains('\0') {
            return Err(SettingsError::Schema { schema: self.schema.clone() });
        }
        Ok(())
    }

    /// How long a lane waits for the answer to a statement.
    pub(crate) fn try_timeout(&self) -> Duration {
        self.statement_timeout.min(self.append_timeout / 2)
    }
}

/// Invalid settings.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A setting is 0, with which nothing could ever happen.
    #[error("{setting} must not be 0")]
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// More lanes than slices: the lane of an id is its slice modulo the number of lanes.
    #[error("write_lanes = {write_lanes}, but there are only 1024 slices to share among them")]
    TooManyLanes {
        /// Value of `write_lanes`.
        write_lanes: usize,
    },
    /// The longest wait is shorter than the first.
    #[error("min_backoff = {min:?} is longer than max_backoff = {max:?}")]
    Backoff {
        /// `min_backoff`.
        min: Duration,
        /// `max_backoff`.
        max: Duration,
    },
    /// Appends would be refused before the log warns of the clock.
    #[error("max_clock_lag = {max_clock_lag:?} must be longer than behind_current_time = {behind_current_time:?}")]
    ClockLag {
        /// `max_clock_lag`.
        max_clock_lag: Duration,
        /// `behind_current_time`.
        behind_current_time: Duration,
    },
    /// The schema's name is invalid.
    #[error("schema = {schema:?} is not the name of a schema")]
    Schema {
        /// The name.
        schema: String,
    },
}

greylag_core::debug_is_sentence!(SettingsError);

impl SettingsError {
    /// Name of the setting to change.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Zero { setting } => setting,
            Self::TooManyLanes { .. } => "write_lanes",
            Self::Backoff { .. } => "max_backoff",
            Self::ClockLag { .. } => "max_clock_lag",
            Self::Schema { .. } => "schema",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_named() {
        let settings = PostgresJournalSettings::default;
        assert_eq!(settings().validate(), Ok(()));
        assert_eq!(PostgresJournalSettings::test().validate(), Ok(()));
        assert!(settings().max_backoff < Duration::from_secs(1), "sharding scenario 114");
        for (settings, words) in [
            (PostgresJournalSettings { pipeline: 0, ..settings() }, "pipeline"),
            (PostgresJournalSettings { append_timeout: Duration::ZERO, ..settings() }, "append_timeout"),
            (PostgresJournalSettings { write_lanes: 2000, ..settings() }, "2000"),
            (PostgresJournalSettings { min_backoff: Duration::from_secs(9), ..settings() }, "9s is longer"),
            (PostgresJournalSettings { max_clock_lag: Duration::from_millis(99), ..settings() }, "behind_current_time"),
            (PostgresJournalSettings { schema: String::new(), ..settings() }, "schema"),
        ] {
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
