//! Settings of one entity type. Keys are those of `sharding.*`. Source: sharding §7.

mod allocation;
mod coordinator;
mod daemon;
mod dispatcher;
mod healthcheck;
mod journal;
mod lease;
mod passivation;
mod remember;
mod runtime;

use std::time::Duration;

pub use allocation::{ClassicalLeastShardSettings, ConsistentHashingSettings, ExternalSettings, LeastShardSettings};
pub use coordinator::CoordinatorSingletonSettings;
pub use daemon::DaemonProcessSettings;
pub use dispatcher::{Dispatcher, InvalidDispatcher};
pub use healthcheck::HealthCheckSettings;
pub use journal::StateJournalSettings;
pub use lease::ShardLeaseSettings;

pub use passivation::{PassivationSettings, PassivationStrategy};
pub use remember::{EntityRecovery, OnPermanentFailure, RememberSettings};
pub use runtime::{BlockingPoolSettings, RuntimeSettings, StuckShardAction};

use crate::error::InvalidSetting;
use crate::fingerprint::StateStoreMode;

/// The handling of a new message in a full region buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BufferOverflow {
    /// The new message is dropped. The default.
    #[default]
    DropNew,
    /// The oldest message of the same shard is dropped.
    DropOld,
}

/// The handling of a message that came too late to keep its sender's order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HandoffStraggler {
    /// The message is a dead letter: a gap, never a swap. The default.
    #[default]
    Drop,
    /// The message is delivered; the order of messages (I2) is given up.
    Forward,
}

/// How many replicas beyond a majority a state read or write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MajorityPlus {
    /// A majority and this many more.
    Additional(usize),
    /// Every replica.
    All,
}

/// Settings of one entity type; the defaults suit a production LAN.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardingSettings {
    /// The role of the nodes that host types without a role of their own; empty: all nodes. All nodes must agree.
    /// Default empty.
    pub role: String,
    /// Settings of the coordinators' singletons.
    pub coordinator_singleton: CoordinatorSingletonSettings,
    /// Shards of the built-in extractors, 1 to 1,000,000. All nodes must agree. Default 1000.
    pub number_of_shards: u32,
    /// How long a stopped coordinator waits before it starts again; grows to five times. Default 5 s.
    pub coordinator_failure_backoff: Duration,
    /// Time between repeats of registration, home requests, graceful shutdown. Default 2 s.
    pub retry_interval: Duration,
    /// Messages buffered per region over all shards. Default 100,000.
    pub buffer_size: usize,
    /// Bytes of the messages buffered per region: as they were on the wire, or the size of the value in memory. Default
    /// 256 MiB.
    pub buffer_bytes: usize,
    /// The handling of a new message in a full buffer. Default: drop the new message.
    pub buffer_overflow: BufferOverflow,
    /// The timeout of one shard's handoff; entities get 5 s less to stop (at least 1 s). Default 60 s.
    pub handoff_timeout: Duration,
    /// How long to wait for a mark, an echo or leftovers. Default 2 s.
    pub flush_timeout: Duration,
    /// How long a handoff waits for the acks of proxies. Default 2 s.
    pub proxy_ack_timeout: Duration,
    /// Whether order or delivery is kept if both are impossible. Default: order.
    pub handoff_straggler: HandoffStraggler,
    /// Time between repeats of `HostShard` until it is acked. Default 10 s.
    pub shard_start_timeout: Duration,
    /// Time before a failed shard starts again. Default 10 s.
    pub shard_failure_backoff: Duration,
    /// Time between rebalance checks. Default 10 s.
    pub rebalance_interval: Duration,
    /// The store of the coordinator's homes: replicated data, or a journal that every node reaches. All nodes must
    /// agree. Default: replicated data. Source: sharding §2.14, §2.15.
    pub state_store_mode: StateStoreMode,
    /// Settings of remembered entities.
    pub remember: RememberSettings,
    /// Settings of the journal, if homes are in one.
    pub journal: StateJournalSettings,
    /// How long a shard may take to report its entities before it counts as failed in an inspection. Default 3 s.
    /// Source: sharding §6.1.
    pub shard_region_query_timeout: Duration,
    /// Which types the node waits for before it is ready. A setting of the node, not of a type.
    pub healthcheck: HealthCheckSettings,
    /// Limits of the default allocation strategy.
    pub least_shard: LeastShardSettings,
    /// Limits of the classical strategy, which a limit of 0 in `least_shard` selects.
    pub classical_least_shard: ClassicalLeastShardSettings,
    /// Settings of the external strategy, and of its client.
    pub external: ExternalSettings,
    /// Settings of daemon processes.
    pub daemon: DaemonProcessSettings,
    /// Longest time an allocation strategy may take. Default 10 s.
    pub allocation_timeout: Duration,
    /// Timeout of one read of coordinator state, or of a shard's remembered entities; repeated for ever. Default 2 s.
    pub waiting_for_state_timeout: Duration,
    /// Timeout of one write of coordinator state, repeated for ever; or of a shard's remembered entities, whose shard
    /// fails if the write takes longer. Default 5 s.
    pub updating_state_timeout: Duration,
    /// Replicas besides a majority that a state write reaches. Default 3.
    pub write_majority_plus: MajorityPlus,
    /// Replicas besides a majority that a state read asks. Default 5.
    pub read_majority_plus: MajorityPlus,
    /// Smallest number counted as a majority of the state's replicas. Default 5.
    pub majority_min_cap: usize,
    /// Time before the shards of a member that was removed without proof of its end are allocated again. `None` takes
    /// the cluster's own margin. Source: cluster S14.
    pub down_removal_margin: Option<Duration>,
    /// Hosting regions that must be registered before the first allocation ever; never fewer than the members that the
    /// cluster waits for, those with the type's role if it has one. Default 1. Source: sharding §2.16.
    pub min_regions: usize,
    /// How long no member may have had the hosting role of a type before that is reported, and before messages that
    /// wait for a host are dropped. Default 10 s.
    pub no_host_timeout: Duration,
    /// The timeout of asks without their own, for types without their own. Default 5 s.
    pub ask_timeout: Duration,
    /// When shards end entities by themselves, for types without their own setting. Default: after 120 s without use.
    pub passivation: PassivationSettings,
    /// How long a passivating entity may take before it is stopped by force. Default 60 s.
    pub passivation_stop_timeout: Duration,
    /// Messages one entity handles in a row while others wait. Default 16.
    pub entity_throughput: usize,
    /// Messages a shard handles before it yields. Default 128.
    pub shard_run_budget: usize,
    /// Messages waiting for one entity; an entity that only waits for its turn may have `shard_inbox_capacity` more, so
    /// that a flood does not hold up its neighbours. Default 10,000.
    pub entity_mailbox_capacity: usize,
    /// Bytes of the messages waiting for one entity; an entity that only waits for its turn may have
    /// `shard_inbox_bytes` more. Default 16 MiB.
    pub entity_mailbox_bytes: usize,
    /// Messages waiting in one shard's inbox; its task may have as many more in hand. Default 1,000,000.
    pub shard_inbox_capacity: usize,
    /// Bytes of the messages waiting in one shard's inbox; its task may have as many more in hand. Default 64 MiB.
    pub shard_inbox_bytes: usize,
    /// Restarts of an entity within `restart_window` before it is stopped instead. Default 10.
    pub max_restarts: u32,
    /// The window of `max_restarts`. Default 1 min.
    pub restart_window: Duration,
    /// Settings of the leases that shards hold while they run.
    pub lease: ShardLeaseSettings,
    /// Settings of running entities: timers, and warnings of long operations.
    pub runtime: RuntimeSettings,
    /// Lets event-sourced types, and coordinators in mode persistence, use a journal that only this process can open.
    /// Default false.
    pub allow_local_journal: bool,
    /// Entities of this node that recover at the same time, of all types. Default 50. Source: persistence §2.5.
    pub max_concurrent_recoveries: usize,
    /// An entity that waits this long for its turn to recover is logged; nothing else follows. Default 30 s. Source:
    /// persistence §2.5.
    pub permit_wait_warn: Duration,
}

impl Default for ShardingSettings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            role: String::new(),
            coordinator_singleton: CoordinatorSingletonSettings::default(),
            number_of_shards: 1000,
            coordinator_failure_backoff: seconds(5),
            retry_interval: seconds(2),
            buffer_size: 100_000,
            buffer_bytes: 256 << 20,
            buffer_overflow: BufferOverflow::DropNew,
            handoff_timeout: seconds(60),
            flush_timeout: seconds(2),
            proxy_ack_timeout: seconds(2),
            handoff_straggler: HandoffStraggler::Drop,
            shard_start_timeout: seconds(10),
            shard_failure_backoff: seconds(10),
            rebalance_interval: seconds(10),
            state_store_mode: StateStoreMode::Ddata,
            remember: RememberSettings::default(),
            journal: StateJournalSettings::default(),
            shard_region_query_timeout: seconds(3),
            healthcheck: HealthCheckSettings::default(),
            least_shard: LeastShardSettings::default(),
            classical_least_shard: ClassicalLeastShardSettings::default(),
            external: ExternalSettings::default(),
            daemon: DaemonProcessSettings::default(),
            allocation_timeout: seconds(10),
            waiting_for_state_timeout: seconds(2),
            updating_state_timeout: seconds(5),
            write_majority_plus: MajorityPlus::Additional(3),
            read_majority_plus: MajorityPlus::Additional(5),
            majority_min_cap: 5,
            down_removal_margin: None,
            min_regions: 1,
            no_host_timeout: seconds(10),
            ask_timeout: seconds(5),
            passivation: PassivationSettings::default(),
            passivation_stop_timeout: seconds(60),
            entity_throughput: 16,
            shard_run_budget: 128,
            entity_mailbox_capacity: 10_000,
            entity_mailbox_bytes: 16 << 20,
            shard_inbox_capacity: 1_000_000,
            shard_inbox_bytes: 64 << 20,
            max_restarts: 10,
            restart_window: seconds(60),
            lease: ShardLeaseSettings::default(),
            runtime: RuntimeSettings::default(),
            allow_local_journal: false,
            max_concurrent_recoveries: 50,
            permit_wait_warn: seconds(30),
        }
    }
}

impl ShardingSettings {
    /// Short intervals and few shards, for tests.
    pub fn test() -> Self {
        let millis = Duration::from_millis;
        Self {
            number_of_shards: 12,
            coordinator_failure_backoff: millis(200),
            retry_interval: millis(200),
            buffer_size: 10_000,
            handoff_timeout: millis(6_000),
            flush_timeout: millis(300),
            proxy_ack_timeout: millis(300),
            shard_start_timeout: millis(500),
            shard_failure_backoff: millis(200),
            rebalance_interval: millis(500),
            waiting_for_state_timeout: millis(500),
            updating_state_timeout: millis(500),
            lease: ShardLeaseSettings { retry_interval: millis(200), ..ShardLeaseSettings::default() },
            remember: RememberSettings::test(),
            journal: StateJournalSettings { recovery_timeout: millis(500), ..StateJournalSettings::default() },
            ..Self::default()
        }
    }

    /// How long the entities of a shard that is handed off may take to stop, before they are ended by force: 5 s less
    /// than the handoff, and at least 1 s. Source: sharding §2.9 (3).
    pub fn entity_stop_timeout(&self) -> Duration {
        self.handoff_timeout.saturating_sub(Duration::from_secs(5)).max(Duration::from_secs(1))
    }

    /// Checks the values, single and in combination.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong. Nothing is started then.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let fail = |key, value: String, reason| Err(InvalidSetting { key, value, reason });
        if self.number_of_shards == 0 || self.number_of_shards > 1_000_000 {
            return fail("number_of_shards", self.number_of_shards.to_string(), "it must be from 1 to 1,000,000");
        }
        let durations = [
            ("coordinator_failure_backoff", self.coordinator_failure_backoff),
            ("retry_interval", self.retry_interval),
            ("handoff_timeout", self.handoff_timeout),
            ("flush_timeout", self.flush_timeout),
            ("proxy_ack_timeout", self.proxy_ack_timeout),
            ("shard_start_timeout", self.shard_start_timeout),
            ("shard_failure_backoff", self.shard_failure_backoff),
            ("rebalance_interval", self.rebalance_interval),
            ("external_shard_allocation_strategy.client_timeout", self.external.client_timeout),
            ("allocation_timeout", self.allocation_timeout),
            ("waiting_for_state_timeout", self.waiting_for_state_timeout),
            ("updating_state_timeout", self.updating_state_timeout),
            ("restart_window", self.restart_window),
            ("permit_wait_warn", self.permit_wait_warn),
            ("ask_timeout", self.ask_timeout),
            ("no_host_timeout", self.no_host_timeout),
            ("shard_region_query_timeout", self.shard_region_query_timeout),
            ("recovery_timeout", self.journal.recovery_timeout),
            ("coordinator_singleton.hand_over_retry_interval", self.coordinator_singleton.hand_over_retry_interval),
        ];
        if let Some((key, value)) = durations.into_iter().find(|(_, value)| value.is_zero()) {
            return fail(key, format!("{value:?}"), "it must not be zero");
        }
        let sizes = [
            ("buffer_size", self.buffer_size),
            ("majority_min_cap", self.majority_min_cap),
            ("min_regions", self.min_regions),
            ("entity_throughput", self.entity_throughput),
            ("shard_run_budget", self.shard_run_budget),
            ("entity_mailbox_capacity", self.entity_mailbox_capacity),
            ("shard_inbox_capacity", self.shard_inbox_capacity),
            ("buffer_bytes", self.buffer_bytes),
            ("entity_mailbox_bytes", self.entity_mailbox_bytes),
            ("shard_inbox_bytes", self.shard_inbox_bytes),
            ("max_concurrent_recoveries", self.max_concurrent_recoveries),
            (
                "coordinator_singleton.min_number_of_hand_over_retries",
                self.coordinator_singleton.min_number_of_hand_over_retries as usize,
            ),
        ];
        if let Some((key, value)) = sizes.into_iter().find(|(_, value)| *value == 0) {
            return fail(key, value.to_string(), "it must not be zero");
        }
        self.passivation.chosen().validate()?;
        self.daemon.validate()?;
        self.healthcheck.validate()?;
        self.runtime.validate()?;
        self.lease.validate()?;
        self.remember.validate()?;
        let relative = self.least_shard.rebalance_relative_limit;
        if !(0.0..=1.0).contains(&relative) {
            return fail(
                "least_shard_allocation_strategy.rebalance_relative_limit",
                relative.to_string(),
                "it must be from 0 to 1",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_test_settings_are_valid_and_nonsense_is_named() {
        assert_eq!(ShardingSettings::default().validate(), Ok(()));
        assert_eq!(ShardingSettings::test().validate(), Ok(()));
        let wrong = ShardingSettings { number_of_shards: 0, ..ShardingSettings::default() };
        assert_eq!(wrong.validate().unwrap_err().key, "number_of_shards");
        let wrong = ShardingSettings { retry_interval: Duration::ZERO, ..ShardingSettings::default() };
        assert_eq!(wrong.validate().unwrap_err().key, "retry_interval");
    }

    /// Sharding scenario 31.
    #[test]
    fn scenario_31_entities_get_five_seconds_less_than_a_handoff_and_at_least_one() {
        let timeout = |handoff: u64| {
            let handoff_timeout = Duration::from_secs(handoff);
            ShardingSettings { handoff_timeout, ..ShardingSettings::default() }.entity_stop_timeout().as_secs()
        };
        assert_eq!([timeout(60), timeout(7), timeout(6), timeout(1)], [55, 2, 1, 1]);
    }

    #[test]
    fn no_wait_for_recorded_regions_is_refused() {
        let journal = StateJournalSettings { recovery_timeout: Duration::ZERO, ..StateJournalSettings::default() };
        let wrong = ShardingSettings { journal, ..ShardingSettings::default() };
        assert_eq!(wrong.validate().unwrap_err().key, "recovery_timeout");
    }
}
