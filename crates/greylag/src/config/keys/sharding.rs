//! `sharding.*`. Source: sharding §7.

use greylag_sharding::RememberStore;
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::settings::{
    BufferOverflow, EntityRecovery, HandoffStraggler, MajorityPlus, OnPermanentFailure, PassivationStrategy,
};

use super::Key;
use crate::config::given::{Given, Value, words};

words!(BufferOverflow { "drop_new" => Self::DropNew, "drop_old" => Self::DropOld });
words!(HandoffStraggler { "drop" => Self::Drop, "forward" => Self::Forward });
words!(PassivationStrategy {
    "none" => Self::None,
    "default_idle_strategy" => Self::DefaultIdle,
    "default_strategy" => Self::Default
});
words!(EntityRecovery { "all" => Self::All, "constant" => Self::Constant });
words!(OnPermanentFailure { "keep" => Self::Keep, "forget" => Self::Forget });
words!(RememberStore { "ddata" => Self::Ddata, "eventsourced" => Self::EventSourced });
words!(StateStoreMode { "ddata" => Self::Ddata, "persistence" => Self::Persistence });

impl Value for MajorityPlus {
    fn expected() -> String {
        "whole number or \"all\"".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match given {
            Given::Text(text) | Given::Word(text) if text == "all" => Ok(Self::All),
            _ => Value::read(given).map(Self::Additional),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Additional(count) => count.to_string(),
            Self::All => "\"all\"".to_owned(),
        }
    }
}

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "sharding.number_of_shards",
            "sharding §7",
            "Shards of the built-in extractors, 1 to 1,000,000. The same on all nodes.",
            |draft| &mut draft.settings.sharding.number_of_shards,
        ),
        Key::new(
            "sharding.coordinator_failure_backoff",
            "sharding §7",
            "How long a stopped coordinator waits before it starts again; grows to five times.",
            |draft| &mut draft.settings.sharding.coordinator_failure_backoff,
        ),
        Key::new(
            "sharding.retry_interval",
            "sharding §7",
            "Between repeats of registration, home requests, graceful shutdown.",
            |draft| &mut draft.settings.sharding.retry_interval,
        ),
        Key::new("sharding.buffer_size", "sharding §7", "Messages buffered per region over all shards.", |draft| {
            &mut draft.settings.sharding.buffer_size
        }),
        Key::bytes("sharding.buffer_bytes", "sharding §7", "Bytes of the messages buffered per region.", |draft| {
            &mut draft.settings.sharding.buffer_bytes
        }),
        Key::new("sharding.buffer_overflow", "sharding §7", "What a full buffer does.", |draft| {
            &mut draft.settings.sharding.buffer_overflow
        }),
        Key::new(
            "sharding.handoff_timeout",
            "sharding §7",
            "One shard's handoff; entities get 5 s less to stop, at least 1 s.",
            |draft| &mut draft.settings.sharding.handoff_timeout,
        ),
        Key::new(
            "sharding.flush_timeout",
            "sharding §2.6",
            "How long a mark, an echo or leftovers are waited for.",
            |draft| &mut draft.settings.sharding.flush_timeout,
        ),
        Key::new(
            "sharding.proxy_ack_timeout",
            "sharding §2.9",
            "How long a handoff waits for the acks of proxies.",
            |draft| &mut draft.settings.sharding.proxy_ack_timeout,
        ),
        Key::new(
            "sharding.handoff_straggler",
            "sharding §2.9",
            "Order (`drop`) or delivery (`forward`), when both cannot be had.",
            |draft| &mut draft.settings.sharding.handoff_straggler,
        ),
        Key::new(
            "sharding.shard_start_timeout",
            "sharding §7",
            "Between repeats of `HostShard` until it is acked.",
            |draft| &mut draft.settings.sharding.shard_start_timeout,
        ),
        Key::new("sharding.shard_failure_backoff", "sharding §7", "Before a failed shard starts again.", |draft| {
            &mut draft.settings.sharding.shard_failure_backoff
        }),
        Key::new("sharding.rebalance_interval", "sharding §7", "Between rebalance checks.", |draft| {
            &mut draft.settings.sharding.rebalance_interval
        }),
        Key::new(
            "sharding.role",
            "sharding §1.6",
            "The role of the nodes that host types which name no other one; empty for all nodes. The same on all nodes.",
            |draft| &mut draft.settings.sharding.role,
        ),
        Key::new(
            "sharding.coordinator_singleton_role_override",
            "sharding §1.6",
            "Coordinators run where their types are hosted, whatever `coordinator_singleton.role` says. The same on all nodes.",
            |draft| &mut draft.settings.sharding.coordinator_singleton.role_override,
        ),
        Key::new(
            "sharding.coordinator_singleton.role",
            "sharding §1.6",
            "The role of the nodes that run coordinators, without the override; empty for all nodes. The same on all nodes.",
            |draft| &mut draft.settings.sharding.coordinator_singleton.role,
        ),
        Key::new(
            "sharding.coordinator_singleton.hand_over_retry_interval",
            "sharding §7",
            "Between requests to hand a coordinator over.",
            |draft| &mut draft.settings.sharding.coordinator_singleton.hand_over_retry_interval,
        ),
        Key::new(
            "sharding.coordinator_singleton.min_number_of_hand_over_retries",
            "sharding §7",
            "At least so many requests before trouble is reported.",
            |draft| &mut draft.settings.sharding.coordinator_singleton.min_number_of_hand_over_retries,
        ),
        Key::new(
            "sharding.state_store_mode",
            "sharding §7",
            "Where the coordinator keeps homes: replicated data, or a journal. The same on all nodes.",
            |draft| &mut draft.settings.sharding.state_store_mode,
        ),
        Key::new(
            "sharding.remember_entities",
            "sharding §4.8",
            "Entities start again with their shard, of types that do not say it. The same on all nodes.",
            |draft| &mut draft.settings.sharding.remember.enabled,
        ),
        Key::new(
            "sharding.remember_entities_store",
            "sharding §4.8",
            "Where they are remembered, of types that do not say it; mode \"persistence\" implies \"eventsourced\".",
            |draft| &mut draft.settings.sharding.remember.store,
        ),
        Key::new(
            "sharding.distributed_data.durable.keys",
            "sharding §4.8",
            "Of store \"ddata\": what is kept on disk, by ids, or prefixes and `*`. Needs the feature `ddata-sled`.",
            |draft| &mut draft.settings.sharding.remember.durable_keys,
        ),
        Key::new(
            "sharding.entity_recovery_strategy",
            "sharding §4.9",
            "Remembered entities start all at once, or so many in so long.",
            |draft| &mut draft.settings.sharding.remember.recovery,
        ),
        Key::new(
            "sharding.entity_recovery_constant_rate_strategy.frequency",
            "sharding §4.9",
            "Between two lots of starts, for all shards of a node together.",
            |draft| &mut draft.settings.sharding.remember.frequency,
        ),
        Key::new(
            "sharding.entity_recovery_constant_rate_strategy.number_of_entities",
            "sharding §4.9",
            "Starts in one lot.",
            |draft| &mut draft.settings.sharding.remember.number_of_entities,
        ),
        Key::new(
            "sharding.event_sourced_remember_entities_store.max_updates_per_write",
            "sharding §4.8",
            "Of store \"eventsourced\": ids in one event.",
            |draft| &mut draft.settings.sharding.remember.max_updates_per_write,
        ),
        Key::new(
            "sharding.entity_restart_backoff",
            "sharding §4.7",
            "Before a remembered entity starts again that stopped without passivating; doubles from failure to failure.",
            |draft| &mut draft.settings.sharding.remember.entity_restart_backoff,
        ),
        Key::new("sharding.entity_restart_backoff_max", "sharding §4.7", "The longest such wait.", |draft| {
            &mut draft.settings.sharding.remember.entity_restart_backoff_max
        }),
        Key::new(
            "sharding.max_start_failures",
            "sharding §4.7",
            "Failed starts in a row after which a remembered entity is given up; 0: never.",
            |draft| &mut draft.settings.sharding.remember.max_start_failures,
        ),
        Key::new(
            "sharding.on_permanent_failure",
            "sharding §4.7",
            "What giving up means: only a message tries again (`keep`), or the entity is not remembered any more (`forget`).",
            |draft| &mut draft.settings.sharding.remember.on_permanent_failure,
        ),
        Key::new(
            "sharding.fail_on_invalid_entity_state_transition",
            "sharding §4.7",
            "A shard that finds a remembered entity in an impossible state fails, in place of going on with an error event.",
            |draft| &mut draft.settings.sharding.remember.fail_on_invalid_transition,
        ),
        Key::new(
            "sharding.journal_plugin_id",
            "sharding §2.14",
            "Of mode \"persistence\": the journal among the stores that the program gives; empty for the node's own.",
            |draft| &mut draft.settings.sharding.journal.journal_plugin_id,
        ),
        Key::new(
            "sharding.snapshot_plugin_id",
            "sharding §2.14",
            "Of mode \"persistence\": the snapshot store, likewise.",
            |draft| &mut draft.settings.sharding.journal.snapshot_plugin_id,
        ),
        Key::new(
            "sharding.snapshot_every",
            "sharding §2.14",
            "Of mode \"persistence\": events between two snapshots.",
            |draft| &mut draft.settings.sharding.journal.snapshot_every,
        ),
        Key::new(
            "sharding.keep_n_snapshots",
            "sharding §2.14",
            "Of mode \"persistence\": how many snapshots, and their events, are kept behind a new one.",
            |draft| &mut draft.settings.sharding.journal.keep_n_snapshots,
        ),
        Key::new(
            "sharding.strict_recovery",
            "sharding §2.14",
            "Of mode \"persistence\": a history that contradicts itself stops the coordinator, in place of being repaired.",
            |draft| &mut draft.settings.sharding.journal.strict_recovery,
        ),
        Key::new(
            "sharding.recovery_timeout",
            "sharding §2.13",
            "Of mode \"persistence\": how long a new coordinator waits for the regions that its predecessors recorded.",
            |draft| &mut draft.settings.sharding.journal.recovery_timeout,
        ),
        Key::new(
            "sharding.least_shard_allocation_strategy.rebalance_absolute_limit",
            "sharding §3",
            "Most shards moved in one round.",
            |draft| &mut draft.settings.sharding.least_shard.rebalance_absolute_limit,
        ),
        Key::new(
            "sharding.least_shard_allocation_strategy.rebalance_relative_limit",
            "sharding §3",
            "Most shards moved in one round, as a fraction of all.",
            |draft| &mut draft.settings.sharding.least_shard.rebalance_relative_limit,
        ),
        Key::new(
            "sharding.external_shard_allocation_strategy.client_timeout",
            "sharding §3",
            "Longest wait for one read or one write of the locations that the program desires.",
            |draft| &mut draft.settings.sharding.external.client_timeout,
        ),
        Key::new(
            "sharding.healthcheck.names",
            "sharding §6.4",
            "Entity types that the node waits for before it is ready: their regions must have registered once.",
            |draft| &mut draft.settings.sharding.healthcheck.names,
        ),
        Key::new(
            "sharding.healthcheck.timeout",
            "sharding §6.4",
            "How long a region may take to answer that it works.",
            |draft| &mut draft.settings.sharding.healthcheck.timeout,
        ),
        Key::new(
            "sharding.healthcheck.disabled_after",
            "sharding §6.4",
            "How long after the first look at a node that is Up the types are waited for.",
            |draft| &mut draft.settings.sharding.healthcheck.disabled_after,
        ),
        Key::new(
            "sharding.shard_region_query_timeout",
            "sharding §6.1",
            "How long a shard may take to say what it holds, before it counts as failed in what is told of its region.",
            |draft| &mut draft.settings.sharding.shard_region_query_timeout,
        ),
        Key::new(
            "sharding.sharded_daemon_process.keep_alive_interval",
            "sharding §6.2",
            "Between two rounds in which each worker of a daemon process is asked to start.",
            |draft| &mut draft.settings.sharding.daemon.keep_alive_interval,
        ),
        Key::new(
            "sharding.sharded_daemon_process.keep_alive_throttle_interval",
            "sharding §6.2",
            "Between two workers of such a round.",
            |draft| &mut draft.settings.sharding.daemon.keep_alive_throttle_interval,
        ),
        Key::new(
            "sharding.sharded_daemon_process.keep_alive_from_number_of_nodes",
            "sharding §6.2",
            "Accepted and ignored: one node asks.",
            |draft| &mut draft.settings.sharding.daemon.keep_alive_from_number_of_nodes,
        ),
        Key::new(
            "sharding.allocation_timeout",
            "sharding §7",
            "Longest time an allocation strategy may think.",
            |draft| &mut draft.settings.sharding.allocation_timeout,
        ),
        Key::new(
            "sharding.waiting_for_state_timeout",
            "sharding §7",
            "One read of coordinator state, or of a shard's remembered entities; repeated for ever.",
            |draft| &mut draft.settings.sharding.waiting_for_state_timeout,
        ),
        Key::new(
            "sharding.updating_state_timeout",
            "sharding §7",
            "One write of coordinator state, repeated for ever, or of a shard's remembered entities.",
            |draft| &mut draft.settings.sharding.updating_state_timeout,
        ),
        Key::new(
            "sharding.coordinator_state.write_majority_plus",
            "sharding §7",
            "Replicas besides a majority that a state write reaches.",
            |draft| &mut draft.settings.sharding.write_majority_plus,
        ),
        Key::new(
            "sharding.coordinator_state.read_majority_plus",
            "sharding §7",
            "Replicas besides a majority that a state read asks.",
            |draft| &mut draft.settings.sharding.read_majority_plus,
        ),
        Key::new(
            "sharding.distributed_data.majority_min_cap",
            "sharding §7",
            "Smallest number counted as a majority of the state's replicas.",
            |draft| &mut draft.settings.sharding.majority_min_cap,
        ),
        Key::some(
            "sharding.down_removal_margin",
            "sharding §7",
            "Wait before the shards of a member that was removed without proof of its end are allocated again.",
            |draft| &mut draft.settings.sharding.down_removal_margin,
        )
        .default_is("cluster.down_removal_margin"),
        Key::new(
            "sharding.min_regions",
            "sharding §7",
            "Hosting regions that must be registered before the first allocation ever; never fewer than `cluster.min_number_of_members`, or its role's.",
            |draft| &mut draft.settings.sharding.min_regions,
        ),
        Key::new(
            "sharding.no_host_timeout",
            "sharding §2.3",
            "How long no member may have had a type's role before that is told, and before what waits for a host is dropped.",
            |draft| &mut draft.settings.sharding.no_host_timeout,
        ),
        Key::new(
            "sharding.ask_timeout",
            "sharding §1.2",
            "How long an ask waits that does not say it, of an entity type that does not either.",
            |draft| &mut draft.settings.sharding.ask_timeout,
        ),
        Key::new(
            "sharding.passivation.strategy",
            "sharding §4.10",
            "When shards end entities by themselves, of types that do not say it.",
            |draft| &mut draft.settings.sharding.passivation.strategy,
        ),
        Key::new(
            "sharding.passivation.default_idle_strategy.idle_entity.timeout",
            "sharding §4.10",
            "Idle time after which an entity is passivated.",
            |draft| &mut draft.settings.sharding.passivation.idle_timeout,
        ),
        Key::some(
            "sharding.passivation.default_idle_strategy.idle_entity.interval",
            "sharding §4.10",
            "How often idle entities are looked for.",
            |draft| &mut draft.settings.sharding.passivation.idle_interval,
        )
        .default_is("a twentieth of the timeout"),
        Key::new(
            "sharding.passivation.default_strategy.active_entity_limit",
            "sharding §4.10",
            "Most active entities of a region under the strategy with a limit.",
            |draft| &mut draft.settings.sharding.passivation.active_entity_limit,
        ),
        Key::new(
            "sharding.passivation_stop_timeout",
            "sharding §4.5",
            "How long a passivating entity may take before it is stopped by force.",
            |draft| &mut draft.settings.sharding.passivation_stop_timeout,
        ),
        Key::new(
            "sharding.entity_throughput",
            "sharding §4.1",
            "Messages one entity handles in a row while others wait.",
            |draft| &mut draft.settings.sharding.entity_throughput,
        ),
        Key::new("sharding.shard_run_budget", "sharding §4.2", "Messages a shard handles before it yields.", |draft| {
            &mut draft.settings.sharding.shard_run_budget
        }),
        Key::new(
            "sharding.entity_mailbox_capacity",
            "sharding §7",
            "Messages waiting for one entity; one that only waits for its turn may have `sharding.shard_inbox_capacity` more.",
            |draft| &mut draft.settings.sharding.entity_mailbox_capacity,
        ),
        Key::bytes(
            "sharding.entity_mailbox_bytes",
            "sharding §7",
            "Bytes of the messages waiting for one entity; one that only waits for its turn may have `sharding.shard_inbox_bytes` more.",
            |draft| &mut draft.settings.sharding.entity_mailbox_bytes,
        ),
        Key::new(
            "sharding.shard_inbox_capacity",
            "sharding §7",
            "Messages waiting in one shard's inbox; its task may have as many more in hand.",
            |draft| &mut draft.settings.sharding.shard_inbox_capacity,
        ),
        Key::bytes(
            "sharding.shard_inbox_bytes",
            "sharding §7",
            "Bytes of the messages waiting in one shard's inbox; its task may have as many more in hand.",
            |draft| &mut draft.settings.sharding.shard_inbox_bytes,
        ),
        Key::new(
            "sharding.max_restarts",
            "sharding §4.6",
            "Restarts of an entity within `restart_window` before it is stopped instead.",
            |draft| &mut draft.settings.sharding.max_restarts,
        ),
        Key::new("sharding.restart_window", "sharding §4.6", "See `max_restarts`.", |draft| {
            &mut draft.settings.sharding.restart_window
        }),
        Key::new(
            "sharding.allow_local_journal",
            "sharding §2.14",
            "Lets event-sourced types, and coordinators that keep homes in a journal, use one that only this process can open.",
            |draft| &mut draft.settings.sharding.allow_local_journal,
        ),
    ]
}
