//! Limits and waits of both ends.

use std::time::Duration;

/// Largest gRPC message of a session, either way: one append of the largest size, or one page.
pub(crate) const MAX_FRAME_BYTES: usize = 32 << 20;
/// Largest gRPC message that carries a snapshot.
pub(crate) const MAX_SNAPSHOT_MESSAGE_BYTES: usize = 80 << 20;
/// Largest event or state that is served: a frame carries one, and what belongs to it.
pub(crate) const MAX_VALUE_BYTES: usize = MAX_FRAME_BYTES - (4 << 20);
/// Largest snapshot that is served.
pub(crate) const MAX_SNAPSHOT_BYTES: usize = MAX_SNAPSHOT_MESSAGE_BYTES - (4 << 20);
/// A frame is sent once it holds so much.
pub(crate) const FRAME_BYTES: usize = 1 << 20;
/// Pages are cut to this size, whatever the reader asks for.
pub(crate) const MAX_PAGE_BYTES: usize = 4 << 20;
/// What a page is gathered in: of the largest events no more than these stand in memory at once.
pub(crate) const PAGE_STEP: usize = 32;
/// Most ids of one answer; lists that are longer are asked for in parts.
pub(crate) const MAX_IDS: usize = 4096;

/// Settings of the process that serves a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Most calls of one client in progress; the server reads no further until some are answered.
    /// Default 4096. Source: persistence §4.4a (`service.max_in_flight`).
    pub max_in_flight: usize,
    /// Most bytes of calls of one client in progress. Default 64 MiB.
    pub max_in_flight_bytes: usize,
    /// How long a shutdown waits for calls in progress. Default 5 s.
    pub shutdown_timeout: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { max_in_flight: 4096, max_in_flight_bytes: 64 << 20, shutdown_timeout: Duration::from_secs(5) }
    }
}

impl ServerSettings {
    /// For tests: as the defaults, with a short shutdown.
    pub fn test() -> Self {
        Self { shutdown_timeout: Duration::from_millis(500), ..Self::default() }
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
    /// Once the server has been away for so long, calls that were not sent are answered at once as
    /// not stored, or unavailable. Default 3 s.
    pub unavailable_after: Duration,
    /// First wait before connecting again, and before asking again after an unknown outcome;
    /// doubles. Default 50 ms.
    pub min_backoff: Duration,
    /// Longest wait before connecting again. Default 1 s.
    pub max_backoff: Duration,
    /// Most calls in progress; more wait. Default 4096.
    pub max_in_flight: usize,
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
            max_backoff: Duration::from_secs(1),
            max_in_flight: 4096,
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
}
