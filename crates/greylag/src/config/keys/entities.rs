//! `sharding.*`, as far as it says how entities run. Source: sharding §4, §7.

use super::Key;

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "sharding.passivation.count_internal",
            "sharding §4.4",
            "Whether messages of an entity's timers and of its receive timeout keep it from being passivated.",
            |draft| &mut draft.settings.sharding.passivation.count_internal,
        ),
        Key::new(
            "sharding.use_lease",
            "sharding §4.12",
            "The node's store of leases, for types whose shards run only while they hold one each; empty for none.",
            |draft| &mut draft.settings.sharding.lease.use_lease,
        ),
        Key::new(
            "sharding.lease_retry_interval",
            "sharding §4.12",
            "Between two requests for a shard's lease that is refused or fails.",
            |draft| &mut draft.settings.sharding.lease.retry_interval,
        ),
        Key::new(
            "sharding.timer_tick",
            "sharding §4.4",
            "Resolution of entities' timers and receive timeouts: each is late by up to so much, and none early.",
            |draft| &mut draft.settings.sharding.runtime.timer_tick,
        ),
        Key::new(
            "sharding.suspend_warn_after",
            "sharding §4.3",
            "An entity that has been suspended for so long is told of in the log and in an event.",
            |draft| &mut draft.settings.sharding.runtime.suspend_warn_after,
        ),
    ]
}
