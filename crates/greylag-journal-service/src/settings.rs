//! Limits and timeouts of both ends.

use std::time::Duration;

use greylag_transport::Tls;

use crate::error::SettingsError;

/// Largest gRPC message of a session, either way: one append of the largest size, or one page.
pub(crate) const MAX_FRAME_BYTES: usize = 32 << 20;
/// Largest gRPC message that carries a snapshot.
pub(crate) const MAX_SNAPSHOT_MESSAGE_BYTES: usize = 80 << 20;
/// Largest event or state that is served: a frame carries one with its other fields.
pub(crate) const MAX_VALUE_BYTES: usize = MAX_FRAME_BYTES - (4 << 20);
/// Largest snapshot that is served.
pub(crate) const MAX_SNAPSHOT_BYTES: usize = MAX_SNAPSHOT_MESSAGE_BYTES - (4 << 20);
/// A frame takes no further call or answer once it has this many bytes.
pub(crate) const FRAME_BYTES: usize = 1 << 20;
/// Pages are cut to this size, whatever the reader asks for.
pub(crate) const MAX_PAGE_BYTES: usize = 4 << 20;
/// Events that are read at once while a page is gathered, so that few of the largest are in memory at the same time.
pub(crate) const PAGE_STEP: usize = 32;
/// Most ids of one answer; longer lists are read in parts.
pub(crate) const MAX_IDS: usize = 4096;

/// Settings of the process that serves a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Most calls of one client in progress; the server reads no further until some are answered.
    /// Default 1024. Source: persistence §4.4a (`service.max_in_flight`).
    pub max_in_flight: usize,
    /// No more calls of one client are begun while those in progress and their answers may take this many bytes.
    /// Default 64 MiB.
    pub max_in_flight_bytes: usize,
    /// Most snapshots of one connection on their way in or out. Default 4.
    pub max_snapshots_in_flight: usize,
    /// Whether connections are encrypted, and which certificates clients must have. Default: no encryption, and
    /// loopback only. Source: persistence §4.4a, cluster T40.
    pub tls: Tls,
    /// How long a client may take to say hello, once it is connected (by TLS, where that is on); then its connection is
    /// closed. Default 5 s. Source: persistence 72.
    pub hello_timeout: Duration,
    /// How long a shutdown waits for calls in progress. Default 5 s.
    pub shutdown_timeout: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 1024,
            max_in_flight_bytes: 64 << 20,
            max_snapshots_in_flight: 4,
            tls: Tls::default(),
            hello_timeout: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}

impl ServerSettings {
    /// For tests: as the defaults, with a short shutdown.
    pub fn test() -> Self {
        Self { shutdown_timeout: Duration::from_millis(500), ..Self::default() }
    }

    /// Checks that every setting is valid.
    ///
    /// # Errors
    /// [`SettingsError`], naming the field: a server is set up by its program, not by keys.
    pub fn validate(&self) -> Result<(), SettingsError> {
        not_zero(&[
            ("ServerSettings::max_in_flight", self.max_in_flight == 0),
            ("ServerSettings::max_in_flight_bytes", self.max_in_flight_bytes == 0),
            ("ServerSettings::max_snapshots_in_flight", self.max_snapshots_in_flight == 0),
            ("ServerSettings::hello_timeout", self.hello_timeout.is_zero()),
            ("ServerSettings::shutdown_timeout", self.shutdown_timeout.is_zero()),
        ])
    }
}

fn not_zero(zeroes: &[(&'static str, bool)]) -> Result<(), SettingsError> {
    match zeroes.iter().find(|(_, is_zero)| *is_zero) {
        Some((key, _)) => Err(SettingsError::Zero { key }),
        None => Ok(()),
    }
}

/// Settings of a process that uses a served journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// How long [`connect`](crate::JournalClient::connect) waits for the server. Default 10 s.
    pub connect_timeout: Duration,
    /// How long an append is tried, over reconnections, before its outcome is unknown. Default 10 s.
    pub append_timeout: Duration,
    /// How long another journal call is tried. Default 10 s.
    pub call_timeout: Duration,
    /// How long a snapshot call is tried. Default 20 s.
    pub snapshot_timeout: Duration,
    /// Once the server has been unreachable for this long, calls that were not sent are answered at once as not stored,
    /// or unavailable. Default 3 s.
    pub unavailable_after: Duration,
    /// First wait before connecting again, and before asking again after an unknown outcome;
    /// doubles. Default 50 ms.
    pub min_backoff: Duration,
    /// Longest wait before connecting again, and so the longest time that entities still wait once the server is back.
    /// Default 500 ms. Source: sharding scenario 114.
    pub max_backoff: Duration,
    /// Most calls in progress; more wait. Default 1024.
    pub max_in_flight: usize,
    /// Whether connections are encrypted, with which certificate and which authorities; [`Tls::LoopbackOnly`] and
    /// [`Tls::None`] both mean plain text. Default: plain text. Source: persistence §4.4a, cluster T40.
    pub tls: Tls,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            append_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            snapshot_timeout: Duration::from_secs(20),
            unavailable_after: Duration::from_secs(3),
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            max_in_flight: 1024,
            tls: Tls::default(),
        }
    }
}

impl ClientSettings {
    /// For tests: short waits.
    pub fn test() -> Self {
        Self {
            unavailable_after: Duration::from_millis(200),
            min_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(50),
            ..Self::default()
        }
    }

    /// Checks that each setting is valid, alone and together with the others.
    ///
    /// # Errors
    /// [`SettingsError`], naming the key.
    pub fn validate(&self) -> Result<(), SettingsError> {
        not_zero(&[
            ("service.connect_timeout", self.connect_timeout.is_zero()),
            ("service.append_timeout", self.append_timeout.is_zero()),
            ("service.call_timeout", self.call_timeout.is_zero()),
            ("service.snapshot_timeout", self.snapshot_timeout.is_zero()),
            ("service.unavailable_after", self.unavailable_after.is_zero()),
            ("service.min_backoff", self.min_backoff.is_zero()),
            ("service.max_backoff", self.max_backoff.is_zero()),
            ("service.max_in_flight", self.max_in_flight == 0),
        ])?;
        let (min, max) = (self.min_backoff, self.max_backoff);
        if min > max { Err(SettingsError::Backoff { min, max }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// persistence §9: an invalid setting is refused by name.
    #[test]
    fn invalid_settings_are_named() {
        let (server, client) = (ServerSettings::default, ClientSettings::default);
        for settings in [server(), ServerSettings::test()] {
            assert_eq!(settings.validate(), Ok(()));
        }
        for settings in [client(), ClientSettings::test()] {
            assert_eq!(settings.validate(), Ok(()));
        }
        assert_eq!((server().max_in_flight, client().max_in_flight), (1024, 1024));
        assert!(client().max_backoff < Duration::from_secs(1), "sharding scenario 114");
        let zero = Duration::ZERO;
        for (settings, key) in [
            (ServerSettings { max_in_flight: 0, ..server() }, "max_in_flight"),
            (ServerSettings { max_in_flight_bytes: 0, ..server() }, "max_in_flight_bytes"),
            (ServerSettings { max_snapshots_in_flight: 0, ..server() }, "max_snapshots_in_flight"),
            (ServerSettings { hello_timeout: zero, ..server() }, "hello_timeout"),
            (ServerSettings { shutdown_timeout: zero, ..server() }, "shutdown_timeout"),
        ] {
            // A server's setting is named by its field, since it has no key in a file.
            assert_eq!(settings.validate().unwrap_err().to_string(), format!("ServerSettings::{key} must not be 0"));
        }
        for (settings, key) in [
            (ClientSettings { connect_timeout: zero, ..client() }, "service.connect_timeout"),
            (ClientSettings { append_timeout: zero, ..client() }, "service.append_timeout"),
            (ClientSettings { call_timeout: zero, ..client() }, "service.call_timeout"),
            (ClientSettings { snapshot_timeout: zero, ..client() }, "service.snapshot_timeout"),
            (ClientSettings { unavailable_after: zero, ..client() }, "service.unavailable_after"),
            (ClientSettings { min_backoff: zero, ..client() }, "service.min_backoff"),
            (ClientSettings { max_in_flight: 0, ..client() }, "service.max_in_flight"),
            (ClientSettings { max_backoff: Duration::from_millis(1), ..client() }, "(1ms) must not be below"),
        ] {
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
