//! `sharding.*`, the keys for running entities. Source: sharding §4, §7.

use greylag_sharding::settings::{Dispatcher, StuckShardAction};

use super::Key;
use crate::config::given::{Given, Value, words};

words!(StuckShardAction { "report" => Self::Report, "abort_process" => Self::AbortProcess });

impl Value for Dispatcher {
    fn expected() -> String {
        "\"\", \"dedicated:N\" or a name".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        let text: String = Value::read(given)?;
        text.parse().map_err(|error| Some(format!("{error}")))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

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
        Key::new(
            "sharding.slow_handler_threshold",
            "sharding §7",
            "A handler that takes so long is counted, and told of in the log now and then.",
            |draft| &mut draft.settings.sharding.runtime.slow_handler_threshold,
        ),
        Key::new(
            "sharding.stuck_handler_threshold",
            "sharding §2.10",
            "A handler that has not returned for so long is told of in the log and in an event.",
            |draft| &mut draft.settings.sharding.runtime.stuck_handler_threshold,
        ),
        Key::new(
            "sharding.stuck_shard_action",
            "sharding §2.10",
            "What follows where such a handler keeps its shard from stopping until 10 s after its handoff.",
            |draft| &mut draft.settings.sharding.runtime.stuck_shard_action,
        ),
        Key::new(
            "sharding.entity_dispatcher",
            "sharding §4.1",
            "Threads of the shards: empty for the node's, \"dedicated:N\" for N of each type, or a runtime of the program's.",
            |draft| &mut draft.settings.sharding.runtime.entity_dispatcher,
        ),
        Key::new(
            "sharding.use_dispatcher",
            "sharding §7",
            "The runtime, of those that the program lends, of regions and coordinators; empty for the node's.",
            |draft| &mut draft.settings.sharding.runtime.use_dispatcher,
        ),
        Key::new(
            "sharding.blocking_pool.threads",
            "sharding §4.3",
            "Pieces of blocking work of entities that run at the same time on a node.",
            |draft| &mut draft.settings.sharding.runtime.blocking_pool.threads,
        ),
        Key::new(
            "sharding.blocking_pool.queue",
            "sharding §4.3",
            "Pieces of blocking work that wait for a thread; more is refused to the entity that asks.",
            |draft| &mut draft.settings.sharding.runtime.blocking_pool.queue,
        ),
        Key::new(
            "sharding.serialize_messages",
            "sharding §7",
            "A test aid: each message is written by its codec and read again, also where it stays on its node.",
            |draft| &mut draft.settings.sharding.runtime.serialize_messages,
        ),
        Key::new(
            "sharding.verbose_debug_logging",
            "sharding §7",
            "Tells in the log, at debug, of each message for an entity, and of each entity that starts or ends.",
            |draft| &mut draft.settings.sharding.runtime.verbose_debug_logging,
        ),
        Key::new(
            "sharding.guardian_name",
            "sharding §7",
            "What the names of threads begin with that sharding starts.",
            |draft| &mut draft.settings.sharding.runtime.guardian_name,
        ),
    ]
}
