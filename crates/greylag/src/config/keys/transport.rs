//! `transport.*`. Source: cluster §6.

use greylag_transport::{OnReliableGiveUp, PeerSubject};

use super::Key;
use crate::config::given::{Given, Value, words};

words!(OnReliableGiveUp { "quarantine" => Self::Quarantine, "notify" => Self::Notify });

impl Value for PeerSubject {
    fn expected() -> String {
        "\"any\", \"shared\" or a name".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        Ok(match String::read(given)?.as_str() {
            "any" => Self::Any,
            "shared" => Self::Shared,
            name => Self::Named(name.to_owned()),
        })
    }

    fn show(&self) -> String {
        match self {
            Self::Any => "\"any\"".to_owned(),
            Self::Shared => "\"shared\"".to_owned(),
            Self::Named(name) => name.show(),
        }
    }
}

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new("transport.cluster_name", "cluster T12", "Must be the same on all nodes.", |draft| {
            &mut draft.settings.transport.cluster_name
        })
        .default_is("required"),
        Key::some(
            "transport.canonical_host",
            "cluster T3",
            "What peers dial, and what appears in addresses.",
            |draft| &mut draft.settings.transport.canonical_host,
        )
        .default_is("the address this host uses towards others"),
        Key::new("transport.canonical_port", "cluster T3", "What peers dial; 0 is the bound port.", |draft| {
            &mut draft.settings.transport.canonical_port
        }),
        Key::some("transport.bind_host", "cluster T3", "What is listened on.", |draft| {
            &mut draft.settings.transport.bind_host
        })
        .default_is("canonical_host"),
        Key::some("transport.bind_port", "cluster T3", "What is listened on; 0 picks a free port.", |draft| {
            &mut draft.settings.transport.bind_port
        })
        .default_is("canonical_port"),
        Key::new(
            "transport.bind_timeout",
            "cluster T3",
            "How long binding may take, a name look-up included.",
            |draft| &mut draft.settings.transport.bind_timeout,
        ),
        Key::new(
            "transport.connection_timeout",
            "cluster T9",
            "How long one attempt to connect and shake hands may take.",
            |draft| &mut draft.settings.transport.connection_timeout,
        ),
        Key::new("transport.outbound_lanes", "cluster T5", "Ordinary streams per peer.", |draft| {
            &mut draft.settings.transport.outbound_lanes
        }),
        Key::new("transport.inbound_lanes", "cluster T39", "Workers that decode what arrives.", |draft| {
            &mut draft.settings.transport.inbound_lanes
        }),
        Key::new(
            "transport.outbound_message_queue_size",
            "cluster T5",
            "Envelopes that wait per ordinary lane.",
            |draft| &mut draft.settings.transport.outbound_message_queue_size,
        ),
        Key::new(
            "transport.outbound_control_queue_size",
            "cluster T5",
            "Envelopes that wait per control lane.",
            |draft| &mut draft.settings.transport.outbound_control_queue_size,
        ),
        Key::new(
            "transport.outbound_large_message_queue_size",
            "cluster T5",
            "Envelopes that wait per large lane.",
            |draft| &mut draft.settings.transport.outbound_large_message_queue_size,
        ),
        Key::bytes(
            "transport.outbound_queue_bytes",
            "cluster T5",
            "Bytes that wait per lane, whatever its kind.",
            |draft| &mut draft.settings.transport.outbound_queue_bytes,
        ),
        Key::bytes("transport.maximum_frame_size", "cluster T5", "Largest message on an ordinary lane.", |draft| {
            &mut draft.settings.transport.maximum_frame_size
        }),
        Key::bytes(
            "transport.maximum_control_frame_size",
            "cluster T5",
            "Largest message on the control lane.",
            |draft| &mut draft.settings.transport.maximum_control_frame_size,
        ),
        Key::bytes("transport.maximum_large_frame_size", "cluster T5", "Largest message on the large lane.", |draft| {
            &mut draft.settings.transport.maximum_large_frame_size
        }),
        Key::new(
            "transport.large_message_destinations",
            "cluster T6",
            "Recipients that take the large lane: a full path, `*` for one segment, `**` at the end. The same list on all nodes.",
            |draft| &mut draft.settings.transport.large_message_destinations,
        ),
        Key::new("transport.max_batch_messages", "cluster T26", "Most messages in one frame.", |draft| {
            &mut draft.settings.transport.max_batch_messages
        }),
        Key::bytes(
            "transport.max_batch_bytes",
            "cluster T26",
            "Most bytes in one frame of several messages.",
            |draft| &mut draft.settings.transport.max_batch_bytes,
        ),
        Key::new(
            "transport.handshake_timeout",
            "cluster T14",
            "How long messages wait for the first handshake with a peer.",
            |draft| &mut draft.settings.transport.handshake_timeout,
        ),
        Key::new(
            "transport.handshake_retry_interval",
            "cluster T14",
            "From one attempt at the first handshake to the next.",
            |draft| &mut draft.settings.transport.handshake_retry_interval,
        ),
        Key::new(
            "transport.reconnect_backoff_min",
            "cluster T31",
            "First pause before a broken stream is opened again.",
            |draft| &mut draft.settings.transport.reconnect_backoff_min,
        ),
        Key::new(
            "transport.reconnect_backoff_max",
            "cluster T31",
            "Longest such pause; it doubles from attempt to attempt.",
            |draft| &mut draft.settings.transport.reconnect_backoff_max,
        ),
        Key::new(
            "transport.reconnect_backoff_jitter",
            "cluster T31",
            "By which part of itself a pause varies at random.",
            |draft| &mut draft.settings.transport.reconnect_backoff_jitter,
        ),
        Key::new(
            "transport.http2_keepalive_interval",
            "cluster T9",
            "From one keep-alive ping to the next, while idle too.",
            |draft| &mut draft.settings.transport.http2_keepalive_interval,
        ),
        Key::new(
            "transport.http2_keepalive_timeout",
            "cluster T9",
            "How long a pong may take before the connection is closed.",
            |draft| &mut draft.settings.transport.http2_keepalive_timeout,
        ),
        Key::new(
            "transport.reliable_buffer_size",
            "cluster T28",
            "Reliable control messages that wait for their acknowledgement, per peer.",
            |draft| &mut draft.settings.transport.reliable_buffer_size,
        ),
        Key::new(
            "transport.reliable_resend_interval",
            "cluster T28",
            "From one repetition of what was not acknowledged to the next.",
            |draft| &mut draft.settings.transport.reliable_resend_interval,
        ),
        Key::new(
            "transport.give_up_reliable_after",
            "cluster T29",
            "How long reliable messages wait without any acknowledgement.",
            |draft| &mut draft.settings.transport.give_up_reliable_after,
        ),
        Key::new(
            "transport.on_reliable_give_up",
            "cluster T29",
            "What follows then, and when the buffer is full: the peer is quarantined, or the messages are dropped and an event says so.",
            |draft| &mut draft.settings.transport.on_reliable_give_up,
        ),
        Key::new(
            "transport.termination_flush_timeout",
            "cluster T30",
            "How long the notice that a watched recipient has stopped waits until everything sent before it was taken.",
            |draft| &mut draft.settings.transport.termination_flush_timeout,
        ),
        Key::new(
            "transport.stop_quarantined_after_idle",
            "cluster T18",
            "How long the control stream to a quarantined process stays open for the notice.",
            |draft| &mut draft.settings.transport.stop_quarantined_after_idle,
        ),
        Key::new(
            "transport.remove_quarantined_association_after",
            "cluster T21",
            "How long a quarantined uid is remembered without use.",
            |draft| &mut draft.settings.transport.remove_quarantined_association_after,
        ),
        Key::new(
            "transport.shutdown_flush_timeout",
            "cluster T33",
            "How long shutting down waits until peers have read everything.",
            |draft| &mut draft.settings.transport.shutdown_flush_timeout,
        ),
        Key::new(
            "transport.shutdown_streams_timeout",
            "cluster T33",
            "How long shutting down waits for streams to close after that.",
            |draft| &mut draft.settings.transport.shutdown_streams_timeout,
        ),
        Key::new(
            "transport.intern_table_max",
            "cluster T37",
            "Paths and manifests per stream that are sent once and numbered from then on.",
            |draft| &mut draft.settings.transport.intern_table_max,
        ),
        Key::bytes(
            "transport.compress_above",
            "cluster T37",
            "Frames of the control and large lanes above this size travel compressed.",
            |draft| &mut draft.settings.transport.compress_above,
        ),
        Key::new("transport.compress_ordinary", "cluster T37", "Compresses frames of ordinary lanes too.", |draft| {
            &mut draft.settings.transport.compress_ordinary
        }),
        Key::new(
            "transport.dead_letter_log_rate",
            "cluster T41",
            "Log lines per minute, reason and peer about dead letters.",
            |draft| &mut draft.settings.transport.dead_letter_log_rate,
        ),
        Key::new(
            "transport.data_threads",
            "cluster C7",
            "Threads that write data lanes and decode messages.",
            |draft| &mut draft.settings.transport.data_threads,
        ),
        Key::new(
            "transport.stop_idle_outbound_after",
            "cluster T32",
            "Streams without traffic for so long close; the next message reopens them.",
            |draft| &mut draft.settings.transport.stop_idle_outbound_after,
        ),
        Key::new(
            "transport.quarantine_idle_outbound_after",
            "cluster T19",
            "How long a peer to which no stream is open may leave every probe unanswered until it is quarantined; longer than `transport.stop_idle_outbound_after`, ten times is advised.",
            |draft| &mut draft.settings.transport.quarantine_idle_outbound_after,
        ),
        Key::new(
            "transport.log_frame_size_exceeding",
            "cluster T41",
            "Logs the largest message of each manifest above so many bytes, and again when one is larger by a tenth.",
            |draft| &mut draft.largest_logged,
        ),
        Key::new(
            "transport.untrusted_mode",
            "cluster T17",
            "Takes from nodes that are no members only what `trusted_recipients` names.",
            |draft| &mut draft.settings.transport.untrusted_mode,
        ),
        Key::new(
            "transport.trusted_recipients",
            "cluster T17",
            "Recipients that every process may write to in untrusted mode.",
            |draft| &mut draft.settings.transport.trusted_recipients,
        ),
        Key::new(
            "transport.tls",
            "cluster T40",
            "`on`: TLS with the files below. `none`: no encryption on any address; the network is trusted. `loopback_only`: nothing was chosen, so only loopback addresses may be bound.",
            |draft| &mut draft.tls,
        ),
        Key::new("transport.tls_key", "cluster T40", "The private key, PEM.", |draft| &mut draft.tls_files.key)
            .default_is("required by tls"),
        Key::new(
            "transport.tls_cert",
            "cluster T40",
            "The certificate of that key first, then the intermediate ones, PEM.",
            |draft| &mut draft.tls_files.cert,
        )
        .default_is("required by tls"),
        Key::new("transport.tls_ca", "cluster T40", "The authorities whose signatures are believed, PEM.", |draft| {
            &mut draft.tls_files.ca
        })
        .default_is("required by tls"),
        Key::new("transport.tls_mutual", "cluster T40", "Whether callers, too, must present a certificate.", |draft| {
            &mut draft.tls_files.mutual
        }),
        Key::new(
            "transport.tls_verify_hostname",
            "cluster T40",
            "Whether hosts must be among the names of the peer's certificate.",
            |draft| &mut draft.tls_files.verify_hostname,
        ),
        Key::new(
            "transport.tls_peer_subject",
            "cluster T40",
            "What else the peer's names must have in common with ours.",
            |draft| &mut draft.tls_files.peer_subject,
        ),
        Key::new("transport.tls_reload_interval", "cluster T40", "From one look at the files to the next.", |draft| {
            &mut draft.tls_files.reload_interval
        }),
    ]
}
