//! The settings of a node's transport.
//!
//! [`TransportSettings::validate`] checks all values once, also in combination, and reports every problem and not only the
//! first. Source: cluster §6.

use std::time::Duration;

use crate::error::{ConfigError, ConfigErrors};
use crate::lanes::lane::LaneKind;
use crate::lanes::lane_map::{LaneMap, PathPattern};
use crate::tls::Tls;

/// The reaction when reliable control messages are given up (cluster T29).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnReliableGiveUp {
    /// The peer is quarantined: a process that misses such a message must not go on as if the message had arrived.
    #[default]
    Quarantine,
    /// The messages are dropped and an event reports this; the association stays.
    Notify,
}

/// Settings of the transport; the defaults suit a production LAN.
#[derive(Debug, Clone, PartialEq)]
pub struct TransportSettings {
    /// The cluster's name, the same on all nodes. Required; the default is empty and refused.
    pub cluster_name: String,
    /// The host that peers dial, and that appears in addresses. `None`, the default, takes the address that this host
    /// uses towards others.
    pub canonical_host: Option<String>,
    /// The port that peers dial; 0 means the bound port. Default 17355.
    pub canonical_port: u16,
    /// The host that the node listens on, if not the canonical one.
    pub bind_host: Option<String>,
    /// The port that the node listens on, if not the canonical one; 0 picks a free one.
    pub bind_port: Option<u16>,
    /// How long binding may take, a name look-up included. Default 3 s.
    pub bind_timeout: Duration,
    /// How long one attempt to connect and shake hands may take. Default 5 s.
    pub connection_timeout: Duration,
    /// Ordinary streams per peer. Default 1.
    pub outbound_lanes: u16,
    /// Workers that decode arriving messages. Default 4.
    pub inbound_lanes: u16,
    /// Envelopes that wait per ordinary lane. Default 3072.
    pub outbound_message_queue_size: usize,
    /// Envelopes that wait per control lane. Default 20 000.
    pub outbound_control_queue_size: usize,
    /// Envelopes that wait per large lane. Default 256.
    pub outbound_large_message_queue_size: usize,
    /// Bytes that wait per lane, whatever its kind and however few envelopes they are: names and payloads, and for
    /// values that are encoded late the estimate of [`PayloadValue::size_hint`](crate::PayloadValue::size_hint).
    /// Default 64 MiB.
    pub outbound_queue_bytes: usize,
    /// Recipients that take the large lane, by lane key (path and sub-path): a full path, `*` for one
    /// segment, `**` at the end for all below. `asks/*` are the answers to questions. The same list
    /// on all nodes. Default none. Source: cluster T6.
    pub large_message_destinations: Vec<String>,
    /// Largest message on an ordinary lane, in bytes. Default 256 KiB.
    pub maximum_frame_size: usize,
    /// Largest message on the control lane, in bytes. Default 64 KiB.
    pub maximum_control_frame_size: usize,
    /// Largest message on the large lane, in bytes. Default 2 MiB.
    pub maximum_large_frame_size: usize,
    /// Most messages in one frame. Default 256.
    pub max_batch_messages: usize,
    /// Most bytes in one frame of several messages. Default 128 KiB.
    pub max_batch_bytes: usize,
    /// Paths and manifests per stream that are sent once and numbered from then on; others are always
    /// written out. Default 1024. Source: cluster T37.
    pub intern_table_max: usize,
    /// Frames of the control and large lanes above this size travel compressed, in bytes.
    /// Default 4 KiB. Source: cluster T37.
    pub compress_above: usize,
    /// Compresses frames of ordinary lanes too: costs the sender's time, saves bytes. Default false.
    pub compress_ordinary: bool,
    /// How long messages wait for the first handshake with a peer. Default 20 s.
    pub handshake_timeout: Duration,
    /// Pause between two attempts at the first handshake. Default 1 s.
    pub handshake_retry_interval: Duration,
    /// First pause before a broken stream is opened again. Default 1 s.
    pub reconnect_backoff_min: Duration,
    /// Longest such pause; the pause doubles from attempt to attempt. Default 5 s.
    pub reconnect_backoff_max: Duration,
    /// Fraction by which a pause varies at random. Default 0.1.
    pub reconnect_backoff_jitter: f64,
    /// Interval of keep-alive pings, while idle too. Default 10 s.
    pub http2_keepalive_interval: Duration,
    /// How long a pong may take before the connection is closed; on control lanes (under Linux) also how long written
    /// bytes may stay unacknowledged. Default 5 s.
    pub http2_keepalive_timeout: Duration,
    /// Reliable control messages that wait for their acknowledgement, per peer. Default 20 000.
    pub reliable_buffer_size: usize,
    /// Interval of repeating unacknowledged messages. Default 1 s.
    pub reliable_resend_interval: Duration,
    /// How long reliable messages wait without any acknowledgement. Default 6 h.
    pub give_up_reliable_after: Duration,
    /// The reaction then, and when the buffer is full. Default [`OnReliableGiveUp::Quarantine`].
    pub on_reliable_give_up: OnReliableGiveUp,
    /// How long the notice that a watched recipient has stopped waits until everything sent before the notice has been
    /// taken. Default 3 s.
    pub termination_flush_timeout: Duration,
    /// How long a peer to which no stream is open may leave every probe unanswered until it is
    /// quarantined; it is probed ten times meanwhile. Default 6 h.
    pub quarantine_idle_outbound_after: Duration,
    /// How long the control stream to a quarantined process stays open for the notice. Default 3 s.
    pub stop_quarantined_after_idle: Duration,
    /// How long a quarantined uid is remembered without use. Default 1 h.
    pub remove_quarantined_association_after: Duration,
    /// How long shutting down waits until peers have read everything. Default 1 s.
    pub shutdown_flush_timeout: Duration,
    /// How long shutting down waits for streams to close after that. Default 10 s.
    pub shutdown_streams_timeout: Duration,
    /// Log lines about dead letters per minute, reason and peer. Default 10.
    pub dead_letter_log_rate: u32,
    /// Streams without traffic for this long are closed; the next message opens them again. Default 5 min.
    pub stop_idle_outbound_after: Duration,
    /// From processes that are not members take messages for `trusted_recipients` only, and nothing
    /// for the cluster's own protocols, so that they cannot join here. Default false.
    pub untrusted_mode: bool,
    /// Paths that every process may send to in `untrusted_mode`. Default none.
    pub trusted_recipients: Vec<String>,
    /// Logs the largest message of each manifest above this many bytes, and again when one is larger by a tenth.
    /// Default `None`: off.
    pub log_frame_size_exceeding: Option<usize>,
    /// Whether faults may be put between this node and others (cluster T42). Default false.
    pub fault_injection: bool,
    /// Encryption. Default [`Tls::LoopbackOnly`].
    pub tls: Tls,
    /// Threads that carry control traffic and the sockets' inbound half. Default 2.
    pub control_threads: usize,
    /// Threads that write data lanes and decode messages. Default 2.
    pub data_threads: usize,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            cluster_name: String::new(),
            canonical_host: None,
            canonical_port: 17355,
            bind_host: None,
            bind_port: None,
            bind_timeout: Duration::from_secs(3),
            connection_timeout: Duration::from_secs(5),
            outbound_lanes: 1,
            inbound_lanes: 4,
            outbound_message_queue_size: 3072,
            outbound_control_queue_size: 20_000,
            outbound_large_message_queue_size: 256,
            outbound_queue_bytes: 64 * 1024 * 1024,
            large_message_destinations: Vec::new(),
            maximum_frame_size: 256 * 1024,
            maximum_control_frame_size: 64 * 1024,
            maximum_large_frame_size: 2 * 1024 * 1024,
            max_batch_messages: 256,
            max_batch_bytes: 128 * 1024,
            intern_table_max: 1024,
            compress_above: 4 * 1024,
            compress_ordinary: false,
            handshake_timeout: Duration::from_secs(20),
            handshake_retry_interval: Duration::from_secs(1),
            reconnect_backoff_min: Duration::from_secs(1),
            reconnect_backoff_max: Duration::from_secs(5),
            reconnect_backoff_jitter: 0.1,
            http2_keepalive_interval: Duration::from_secs(10),
            http2_keepalive_timeout: Duration::from_secs(5),
            reliable_buffer_size: 20_000,
            reliable_resend_interval: Duration::from_secs(1),
            give_up_reliable_after: Duration::from_secs(6 * 3600),
            on_reliable_give_up: OnReliableGiveUp::Quarantine,
            termination_flush_timeout: Duration::from_secs(3),
            quarantine_idle_outbound_after: Duration::from_secs(6 * 3600),
            stop_quarantined_after_idle: Duration::from_secs(3),
            remove_quarantined_association_after: Duration::from_secs(3600),
            shutdown_flush_timeout: Duration::from_secs(1),
            shutdown_streams_timeout: Duration::from_secs(10),
            dead_letter_log_rate: 10,
            stop_idle_outbound_after: Duration::from_secs(5 * 60),
            untrusted_mode: false,
            trusted_recipients: Vec::new(),
            log_frame_size_exceeding: None,
            fault_injection: false,
            tls: Tls::LoopbackOnly,
            control_threads: 2,
            data_threads: 2,
        }
    }
}

impl TransportSettings {
    /// The defaults for a cluster of this name.
    pub fn new(cluster_name: impl Into<String>) -> Self {
        Self { cluster_name: cluster_name.into(), ..Self::default() }
    }

    /// On a free port of the loopback interface, with short pauses: for tests and examples.
    pub fn test() -> Self {
        Self {
            cluster_name: "test".to_owned(),
            canonical_host: Some("127.0.0.1".to_owned()),
            canonical_port: 0,
            handshake_retry_interval: Duration::from_millis(50),
            reconnect_backoff_min: Duration::from_millis(20),
            reconnect_backoff_max: Duration::from_millis(200),
            reliable_resend_interval: Duration::from_millis(100),
            fault_injection: true,
            control_threads: 1,
            ..Self::default()
        }
    }

    /// The largest message that a lane carries, in bytes.
    pub fn maximum_message_size(&self, lane: LaneKind) -> usize {
        match lane {
            LaneKind::Control => self.maximum_control_frame_size,
            LaneKind::Ordinary => self.maximum_frame_size,
            LaneKind::Large => self.maximum_large_frame_size,
        }
    }

    /// The largest message that any lane carries, in bytes.
    pub(crate) fn largest_message_size(&self) -> usize {
        self.maximum_large_frame_size.max(self.maximum_frame_size).max(self.maximum_control_frame_size)
    }

    /// How many envelopes wait in a lane of this kind.
    pub fn queue_size(&self, lane: LaneKind) -> usize {
        match lane {
            LaneKind::Control => self.outbound_control_queue_size,
            LaneKind::Ordinary => self.outbound_message_queue_size,
            LaneKind::Large => self.outbound_large_message_queue_size,
        }
    }

    /// The map of recipients to lanes. Patterns that cannot be parsed, which [`TransportSettings::validate`] refuses,
    /// match no recipient.
    pub(crate) fn lane_map(&self) -> LaneMap {
        let patterns = self.large_message_destinations.iter().filter_map(|text| PathPattern::parse(text).ok());
        LaneMap::new(self.outbound_lanes, patterns.collect())
    }

    /// Checks for values that cannot work.
    ///
    /// # Errors
    /// All problems together; nothing was started.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        let mut refuse = |setting, value: String, why| errors.push(ConfigError { setting, value, why });
        if self.cluster_name.is_empty() || self.cluster_name.len() > 255 {
            refuse("transport.cluster_name", format!("{:?}", self.cluster_name), "it must have 1 to 255 bytes");
        }
        for (setting, value) in [
            ("transport.bind_timeout", self.bind_timeout),
            ("transport.connection_timeout", self.connection_timeout),
            ("transport.handshake_timeout", self.handshake_timeout),
            ("transport.handshake_retry_interval", self.handshake_retry_interval),
            ("transport.reconnect_backoff_min", self.reconnect_backoff_min),
            ("transport.reconnect_backoff_max", self.reconnect_backoff_max),
            ("transport.http2_keepalive_interval", self.http2_keepalive_interval),
            ("transport.http2_keepalive_timeout", self.http2_keepalive_timeout),
            ("transport.reliable_resend_interval", self.reliable_resend_interval),
            ("transport.give_up_reliable_after", self.give_up_reliable_after),
            ("transport.termination_flush_timeout", self.termination_flush_timeout),
            ("transport.quarantine_idle_outbound_after", self.quarantine_idle_outbound_after),
            ("transport.stop_quarantined_after_idle", self.stop_quarantined_after_idle),
            ("transport.remove_quarantined_association_after", self.remove_quarantined_association_after),
            ("transport.stop_idle_outbound_after", self.stop_idle_outbound_after),
            ("transport.shutdown_flush_timeout", self.shutdown_flush_timeout),
            ("transport.shutdown_streams_timeout", self.shutdown_streams_timeout),
        ] {
            if value.is_zero() {
                refuse(setting, format!("{value:?}"), "it must be longer than zero");
            }
            if value > LONGEST {
                refuse(setting, format!("{value:?}"), "it must not be longer than ten years");
            }
        }
        for (setting, value) in [
            ("transport.outbound_lanes", usize::from(self.outbound_lanes)),
            ("transport.inbound_lanes", usize::from(self.inbound_lanes)),
            ("transport.outbound_message_queue_size", self.outbound_message_queue_size),
            ("transport.outbound_control_queue_size", self.outbound_control_queue_size),
            ("transport.outbound_large_message_queue_size", self.outbound_large_message_queue_size),
            ("transport.reliable_buffer_size", self.reliable_buffer_size),
            ("transport.maximum_frame_size", self.maximum_frame_size),
            ("transport.maximum_control_frame_size", self.maximum_control_frame_size),
            ("transport.maximum_large_frame_size", self.maximum_large_frame_size),
            ("transport.max_batch_messages", self.max_batch_messages),
            ("transport.max_batch_bytes", self.max_batch_bytes),
            ("transport.intern_table_max", self.intern_table_max),
            ("transport.compress_above", self.compress_above),
            ("transport.control_threads", self.control_threads),
            ("transport.data_threads", self.data_threads),
        ] {
            if value == 0 {
                refuse(setting, value.to_string(), "it must be at least 1");
            }
        }
        for pattern in &self.large_message_destinations {
            if let Err(why) = PathPattern::parse(pattern) {
                refuse("transport.large_message_destinations", format!("{pattern:?}"), why);
            }
        }
        if self.outbound_queue_bytes < self.largest_message_size() {
            let value = self.outbound_queue_bytes.to_string();
            refuse("transport.outbound_queue_bytes", value, "the largest message must fit");
        }
        if self.max_batch_messages > MAX_BATCH_MESSAGES {
            let value = self.max_batch_messages.to_string();
            refuse("transport.max_batch_messages", value, "a frame has at most 65536 messages");
        }
        if self.intern_table_max > MAX_NAMES {
            let value = self.intern_table_max.to_string();
            refuse("transport.intern_table_max", value, "a stream numbers at most 65536 names");
        }
        if self.outbound_lanes > MAX_LANES {
            refuse("transport.outbound_lanes", self.outbound_lanes.to_string(), "there are at most 64");
        }
        if self.reconnect_backoff_max < self.reconnect_backoff_min {
            let value = format!("{:?}", self.reconnect_backoff_max);
            refuse("transport.reconnect_backoff_max", value, "it must not be shorter than reconnect_backoff_min");
        }
        if self.quarantine_idle_outbound_after <= self.stop_idle_outbound_after {
            let value = format!("{:?}", self.quarantine_idle_outbound_after);
            let why = "it must be longer than stop_idle_outbound_after; ten times is advised";
            refuse("transport.quarantine_idle_outbound_after", value, why);
        }
        if !(0.0..=1.0).contains(&self.reconnect_backoff_jitter) {
            let value = self.reconnect_backoff_jitter.to_string();
            refuse("transport.reconnect_backoff_jitter", value, "it must lie between 0 and 1");
        }
        for (setting, value) in [
            ("transport.maximum_control_frame_size", self.maximum_control_frame_size),
            ("transport.maximum_frame_size", self.maximum_frame_size),
            ("transport.maximum_large_frame_size", self.maximum_large_frame_size),
        ] {
            if value > MAX_FRAME {
                refuse(setting, value.to_string(), "messages have at most 512 MiB");
            }
        }
        if self.log_frame_size_exceeding == Some(0) {
            refuse("transport.log_frame_size_exceeding", "0".to_owned(), "it must be at least 1, or off");
        }
        if let Tls::Files(tls) = &self.tls {
            for (setting, file) in
                [("transport.tls_key", &tls.key), ("transport.tls_cert", &tls.cert), ("transport.tls_ca", &tls.ca)]
            {
                if file.as_os_str().is_empty() {
                    refuse(setting, "\"\"".to_owned(), "transport.tls = on needs this file");
                }
            }
            if tls.reload_interval.is_zero() {
                let value = format!("{:?}", tls.reload_interval);
                refuse("transport.tls_reload_interval", value, "it must be longer than zero");
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }
}

/// Most messages in one frame: a reader allocates for each, however small it is. Part of the protocol.
pub(crate) const MAX_BATCH_MESSAGES: usize = 1 << 16;

/// Most names that are numbered on one stream.
const MAX_NAMES: usize = 1 << 16;

/// Most ordinary lanes: a peer with more streams than this, plus the two of control and large messages, is refused.
pub(crate) const MAX_LANES: u16 = 64;

/// Longest duration: adding it to an `Instant` must not overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Largest frame: an HTTP/2 window is twice a frame and has 31 bits.
const MAX_FRAME: usize = 1 << 29;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_need_only_a_name() {
        assert!(TransportSettings::new("shop").validate().is_ok());
        assert!(TransportSettings::test().validate().is_ok());
    }

    /// Cluster §6, "Validation at start", sentence by sentence: durations, probabilities, sizes, and that idle streams
    /// close before their peer is quarantined (cluster T19, T32).
    #[test]
    fn invalid_settings_are_named() {
        type Change = fn(&mut TransportSettings);
        let wrong: [(Change, &str); 16] = [
            (|s| s.quarantine_idle_outbound_after = s.stop_idle_outbound_after, "quarantine_idle_outbound_after"),
            (|s| s.stop_idle_outbound_after = Duration::from_secs(7 * 3600), "quarantine_idle_outbound_after"),
            (|s| s.give_up_reliable_after = Duration::MAX, "give_up_reliable_after"),
            (|s| s.reconnect_backoff_max = Duration::MAX, "reconnect_backoff_max"),
            (
                |s| (s.maximum_control_frame_size, s.outbound_queue_bytes) = (1 << 30, 1 << 31),
                "maximum_control_frame_size",
            ),
            (|s| s.termination_flush_timeout = Duration::ZERO, "termination_flush_timeout"),
            (|s| s.give_up_reliable_after = Duration::ZERO, "give_up_reliable_after"),
            (|s| s.reliable_resend_interval = Duration::ZERO, "reliable_resend_interval"),
            (|s| s.reliable_buffer_size = 0, "reliable_buffer_size"),
            (|s| s.http2_keepalive_timeout = Duration::ZERO, "http2_keepalive_timeout"),
            (|s| s.reconnect_backoff_jitter = 1.5, "reconnect_backoff_jitter"),
            (|s| s.max_batch_messages = 0, "max_batch_messages"),
            (|s| s.inbound_lanes = 0, "inbound_lanes"),
            (|s| s.log_frame_size_exceeding = Some(0), "log_frame_size_exceeding"),
            (|s| s.tls = Tls::Files(crate::TlsSettings::new("", "c", "a")), "tls_key"),
            (|s| s.cluster_name = "x".repeat(256), "cluster_name"),
        ];
        for (change, name) in wrong {
            let mut settings = TransportSettings::new("shop");
            change(&mut settings);
            let problems = settings.validate().unwrap_err().0;
            let named: Vec<_> = problems.iter().map(|problem| problem.setting).collect();
            assert_eq!(named, [format!("transport.{name}")]);
        }
    }

    #[test]
    fn a_time_of_nine_years_is_one_and_of_eleven_is_not() {
        let year = Duration::from_secs(365 * 24 * 3600);
        let checked = |give_up_reliable_after| {
            TransportSettings { give_up_reliable_after, ..TransportSettings::new("shop") }.validate().is_ok()
        };
        assert_eq!([9 * year, 11 * year].map(checked), [true, false]);
    }

    #[test]
    fn all_problems_are_reported_together() {
        let settings = TransportSettings {
            outbound_lanes: 0,
            large_message_destinations: vec!["video".to_owned(), "a/**/b".to_owned()],
            outbound_queue_bytes: 1024,
            connection_timeout: Duration::ZERO,
            reconnect_backoff_jitter: f64::NAN,
            reconnect_backoff_max: Duration::from_millis(1),
            ..TransportSettings::default()
        };
        let errors = settings.validate().unwrap_err();
        let named: Vec<_> = errors.0.iter().map(|error| error.setting).collect();
        assert_eq!(
            named,
            [
                "transport.cluster_name",
                "transport.connection_timeout",
                "transport.outbound_lanes",
                "transport.large_message_destinations",
                "transport.outbound_queue_bytes",
                "transport.reconnect_backoff_max",
                "transport.reconnect_backoff_jitter"
            ]
        );
        assert!(errors.to_string().contains("transport.outbound_lanes = 0: it must be at least 1"));
    }
}
