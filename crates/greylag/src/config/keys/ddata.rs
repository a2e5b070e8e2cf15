//! `ddata.*`. Source: ddata §8.

use greylag_ddata::{OnBadRecord, StaleStore};

use super::Key;
use crate::config::given::words;

words!(OnBadRecord { "stop" => Self::Stop, "quarantine" => Self::Quarantine });
words!(StaleStore { "refuse" => Self::Refuse, "discard" => Self::Discard, "force" => Self::Force });

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "ddata.name",
            "ddata §8",
            "The instance's name; peers are the replicators of the same name.",
            |draft| &mut draft.settings.ddata.name,
        ),
        Key::new(
            "ddata.roles",
            "ddata I1",
            "All roles that a node needs to have a replica; only such members are peers.",
            |draft| &mut draft.settings.ddata.roles,
        ),
        Key::new(
            "ddata.gossip_interval",
            "ddata G10",
            "Every so often a round of anti-entropy is begun with one peer.",
            |draft| &mut draft.settings.ddata.gossip_interval,
        ),
        Key::new(
            "ddata.delta_propagation_interval",
            "ddata G3",
            "Every so often some peers get the changes they lack.",
            |draft| &mut draft.settings.ddata.delta_propagation_interval,
        ),
        Key::new(
            "ddata.notify_subscribers_interval",
            "ddata R16",
            "Every so often subscribers are told what changed.",
            |draft| &mut draft.settings.ddata.notify_subscribers_interval,
        ),
        Key::new("ddata.max_delta_elements", "ddata §8", "Entries in one message.", |draft| {
            &mut draft.settings.ddata.max_delta_elements
        }),
        Key::bytes(
            "ddata.max_message_bytes",
            "ddata §8",
            "Bytes in one message; it must fit an ordinary lane.",
            |draft| &mut draft.settings.ddata.max_message_bytes,
        ),
        Key::bytes(
            "ddata.bulk_fragment_bytes",
            "ddata G11",
            "Larger messages travel in pieces of this size; it must fit the large lane.",
            |draft| &mut draft.settings.ddata.bulk_fragment_bytes,
        ),
        Key::bytes("ddata.max_entry_bytes", "ddata E4", "The limit of updates to one entry.", |draft| {
            &mut draft.settings.ddata.max_entry_bytes
        }),
        Key::bytes(
            "ddata.eager_full_state_bytes",
            "ddata §8",
            "Full states up to this size travel with the deltas.",
            |draft| &mut draft.settings.ddata.eager_full_state_bytes,
        ),
        Key::new("ddata.delta_crdt.enabled", "ddata G16", "Whether deltas are kept and sent.", |draft| {
            &mut draft.settings.ddata.delta_enabled
        }),
        Key::new(
            "ddata.delta_crdt.max_delta_size",
            "ddata G4",
            "A group of deltas above this many leaves is sent as full state if that is not much larger.",
            |draft| &mut draft.settings.ddata.max_delta_size,
        ),
        Key::new("ddata.delta_log_max_entries", "ddata G8", "Records in the delta log.", |draft| {
            &mut draft.settings.ddata.delta_log_max_entries
        }),
        Key::bytes("ddata.delta_log_max_bytes", "ddata G8", "Bytes in the delta log.", |draft| {
            &mut draft.settings.ddata.delta_log_max_bytes
        }),
        Key::new(
            "ddata.delta_resend_timeout",
            "ddata G8",
            "An unacknowledged batch of deltas is sent again after this.",
            |draft| &mut draft.settings.ddata.delta_resend_timeout,
        ),
        Key::new(
            "ddata.sync_window",
            "ddata §8",
            "Unacknowledged messages of one round of anti-entropy, per direction.",
            |draft| &mut draft.settings.ddata.sync_window,
        ),
        Key::new(
            "ddata.sync_parallel_peers",
            "ddata G13",
            "How many peers a new node synchronizes with at a time.",
            |draft| &mut draft.settings.ddata.sync_parallel_peers,
        ),
        Key::new(
            "ddata.sync_timeout",
            "ddata G13",
            "Syncing ends after this even if not enough peers answered.",
            |draft| &mut draft.settings.ddata.sync_timeout,
        ),
        Key::new(
            "ddata.mismatch_suppress_rounds",
            "ddata G14",
            "A difference that exchanging did not settle is left alone for so many rounds.",
            |draft| &mut draft.settings.ddata.mismatch_suppress_rounds,
        ),
        Key::new(
            "ddata.type_conflict_log_interval",
            "ddata A5",
            "A type conflict of one entry is told once in this time.",
            |draft| &mut draft.settings.ddata.type_conflict_log_interval,
        ),
        Key::new("ddata.prefer_oldest", "ddata R10", "Whether the oldest nodes are asked first.", |draft| {
            &mut draft.settings.ddata.prefer_oldest
        }),
        Key::new("ddata.majority_min_cap", "ddata §8", "The default of `min_cap` of majority levels.", |draft| {
            &mut draft.settings.ddata.majority_min_cap
        }),
        Key::new("ddata.max_in_flight", "ddata §8", "Requests that wait for other replicas.", |draft| {
            &mut draft.settings.ddata.max_in_flight
        }),
        Key::new("ddata.mailbox_capacity", "ddata §8", "Local requests that wait for the replicator.", |draft| {
            &mut draft.settings.ddata.mailbox_capacity
        }),
        Key::new(
            "ddata.read_repair_push",
            "ddata R13",
            "Whether a read pushes its result to replicas that answered with less.",
            |draft| &mut draft.settings.ddata.read_repair_push,
        ),
        Key::new(
            "ddata.encode_cache_time_to_live",
            "ddata R14",
            "Encodings of entries are kept for so long, so that several recipients share one.",
            |draft| &mut draft.settings.ddata.encode_cache_time_to_live,
        ),
        Key::new(
            "ddata.pruning_interval",
            "ddata Z2",
            "Every so often removed replicas are pruned and old markers forgotten.",
            |draft| &mut draft.settings.ddata.pruning_interval,
        ),
        Key::new(
            "ddata.max_pruning_dissemination",
            "ddata Z3",
            "How long a change takes at worst to reach all replicas while all are healthy.",
            |draft| &mut draft.settings.ddata.max_pruning_dissemination,
        ),
        Key::new(
            "ddata.pruning_marker_time_to_live",
            "ddata Z5",
            "For how long copies that name a removed replica are expected, of entries that are not durable.",
            |draft| &mut draft.settings.ddata.pruning_marker_time_to_live,
        ),
        Key::new(
            "ddata.max_clock_skew",
            "ddata Z9",
            "How far another member's wall clock may be ahead; times of pruning further ahead are refused.",
            |draft| &mut draft.settings.ddata.max_clock_skew,
        ),
        Key::new(
            "ddata.custom_clocks",
            "ddata Y6",
            "Entries whose timestamps are no wall times, and never compared with the clock: ids, or prefixes and `*`.",
            |draft| &mut draft.settings.ddata.custom_clocks,
        ),
        Key::new(
            "ddata.expire_keys_after_inactivity",
            "ddata E1",
            "Entries that no node uses for so long are removed, by pattern, such as \"session-*=30m\".",
            |draft| &mut draft.settings.ddata.expire_keys_after_inactivity,
        ),
        Key::new(
            "ddata.delete_tombstone_ttl",
            "ddata R5",
            "Tombstones of deleted entries are dropped this long after the deletion.",
            |draft| &mut draft.settings.ddata.delete_tombstone_ttl,
        ),
        Key::new(
            "ddata.log_data_size_exceeding",
            "ddata E4",
            "Entries of so many bytes or more are told of once, and again when they have grown by a tenth.",
            |draft| &mut draft.settings.ddata.log_data_size_exceeding,
        ),
        Key::new(
            "ddata.durable.keys",
            "ddata U1",
            "The entries that are stored on disk: ids, or prefixes and `*`. Needs the feature `ddata-sled`.",
            |draft| &mut draft.settings.ddata.durable.keys,
        ),
        Key::new(
            "ddata.durable.path",
            "ddata U6",
            "Where; a name that ends in `ddata` is completed by cluster, replicator and port.",
            |draft| &mut draft.settings.ddata_store.path,
        ),
        Key::bytes("ddata.durable.cache_bytes", "ddata §8", "Page cache of the store.", |draft| {
            &mut draft.settings.ddata_store.cache_bytes
        }),
        Key::bytes(
            "ddata.durable.min_free_bytes",
            "ddata U2",
            "With less room on the disk, updates of durable entries end with `StoreFailed`; 0 switches it off.",
            |draft| &mut draft.settings.ddata_store.min_free_bytes,
        ),
        Key::bytes(
            "ddata.durable.ballast_bytes",
            "ddata U2",
            "Size of a file that is given up when a full disk would not let the store open; 0 for none.",
            |draft| &mut draft.settings.ddata_store.ballast_bytes,
        ),
        Key::new(
            "ddata.durable.write_behind_interval",
            "ddata U3",
            "Changes are acknowledged at once and written every so often; off: they are flushed first.",
            |draft| &mut draft.settings.ddata.durable.write_behind_interval,
        ),
        Key::new(
            "ddata.durable.pruning_marker_time_to_live",
            "ddata Z5",
            "For how long a node with a store may be down.",
            |draft| &mut draft.settings.ddata.durable.pruning_marker_time_to_live,
        ),
        Key::new(
            "ddata.durable.load_retries",
            "ddata U5",
            "How often loading is tried again before the replicator stops.",
            |draft| &mut draft.settings.ddata.durable.load_retries,
        ),
        Key::new("ddata.durable.load_retry_window", "ddata U5", "Over how long these tries are spread.", |draft| {
            &mut draft.settings.ddata.durable.load_retry_window
        }),
        Key::new(
            "ddata.durable.on_bad_record",
            "ddata U5",
            "What a stored record leads to that cannot be read.",
            |draft| &mut draft.settings.ddata.durable.on_bad_record,
        ),
        Key::new(
            "ddata.durable.stale_store",
            "ddata Z9",
            "What a store leads to that is older than what peers have forgotten.",
            |draft| &mut draft.settings.ddata.durable.stale_store,
        ),
        Key::new(
            "ddata.stash_capacity",
            "ddata U4",
            "Local requests that wait while durable entries are loaded.",
            |draft| &mut draft.settings.ddata.stash_capacity,
        ),
        Key::new(
            "ddata.shutdown_flush_timeout",
            "ddata G15",
            "How long an orderly stop waits for one voter to hold everything.",
            |draft| &mut draft.settings.ddata.shutdown_flush_timeout,
        ),
        Key::new(
            "ddata.unreachable_after",
            "ddata §8",
            "Static membership only: a peer silent for so long counts as unreachable.",
            |draft| &mut draft.settings.ddata.unreachable_after,
        ),
    ]
}
