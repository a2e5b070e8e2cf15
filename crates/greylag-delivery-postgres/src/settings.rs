//! Timeouts and limits of the database.

use std::time::Duration;

/// Settings of a store in PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresQueueSettings {
    /// Time limit of a statement on the server, which then cancels it and rolls it back. One second later its outcome
    /// counts as unknown. Between 10 ms and an hour; default 10 s.
    pub call_timeout: Duration,
    /// Time limit of opening a connection, including the creation of the tables. Default 10 s.
    pub connect_timeout: Duration,
    /// The largest message in encoded bytes; at most 256 MiB. Default 16 MiB.
    pub max_message_bytes: usize,
}

impl Default for PostgresQueueSettings {
    fn default() -> Self {
        let (call_timeout, connect_timeout) = (Duration::from_secs(10), Duration::from_secs(10));
        Self { call_timeout, connect_timeout, max_message_bytes: 16 << 20 }
    }
}

/// An invalid setting.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("setting `{field}` {why}")]
pub struct SettingsError {
    /// The name of the setting.
    pub field: &'static str,
    /// What is wrong with its value.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(SettingsError);

impl PostgresQueueSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingsError`] names the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let call_timeout = Duration::from_millis(10)..=Duration::from_secs(3600);
        let checks = [
            (call_timeout.contains(&self.call_timeout), "call_timeout", "must be between 10 ms and an hour"),
            (!self.connect_timeout.is_zero(), "connect_timeout", "must not be zero"),
            (
                (1..=256 << 20).contains(&self.max_message_bytes),
                "max_message_bytes",
                "must be between 1 byte and 256 MiB",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, why)) => Err(SettingsError { field, why }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_named() {
        let good = PostgresQueueSettings::default;
        assert_eq!(good().validate(), Ok(()));
        let field = |settings: PostgresQueueSettings| settings.validate().unwrap_err().field;
        assert_eq!(field(PostgresQueueSettings { call_timeout: Duration::ZERO, ..good() }), "call_timeout");
        assert_eq!(field(PostgresQueueSettings { call_timeout: Duration::MAX, ..good() }), "call_timeout");
        assert_eq!(field(PostgresQueueSettings { connect_timeout: Duration::ZERO, ..good() }), "connect_timeout");
        assert_eq!(field(PostgresQueueSettings { max_message_bytes: 0, ..good() }), "max_message_bytes");
        assert_eq!(field(PostgresQueueSettings { max_message_bytes: usize::MAX, ..good() }), "max_message_bytes");
    }
}
