//! `cluster.*`, all but downing. Source: cluster §6.

use greylag_cluster::{DetectorKind, OnForeignCluster, ProofOfDeath, RemovalMargin};

use super::Key;
use crate::config::given::{Given, Value, words};

words!(OnForeignCluster { "warn" => Self::Warn, "leave_if_smaller" => Self::LeaveIfSmaller });
words!(ProofOfDeath { "off" => Self::Off, "local" => Self::Local, "on" => Self::On });

/// The kinds of detectors; one of the program's own has no name in a file.
impl Value for DetectorKind {
    fn expected() -> String {
        "\"phi\", \"deadline\"".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match String::read(given)?.as_str() {
            "phi" => Ok(Self::Phi),
            "deadline" => Ok(Self::Deadline),
            _ => Err(None),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Phi => "\"phi\"".to_owned(),
            Self::Deadline => "\"deadline\"".to_owned(),
            Self::Custom(_) => "the program's own".to_owned(),
        }
    }
}

impl Value for RemovalMargin {
    fn expected() -> String {
        "duration, \"derive\" or \"off\"".to_owned()
    }

    fn read(given: &Given) -> Result<Self, Option<String>> {
        match String::read(given)?.as_str() {
            "derive" => Ok(Self::Derive),
            "off" => Ok(Self::Off),
            _ => Value::read(given).map(Self::Fixed),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Derive => "\"derive\"".to_owned(),
            Self::Off => "\"off\"".to_owned(),
            Self::Fixed(margin) => margin.show(),
        }
    }
}

pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "cluster.seed_nodes",
            "cluster M24",
            "The nodes through which to join; the first starts the cluster if none runs. The same list on all nodes.",
            |draft| &mut draft.settings.cluster.seed_nodes,
        ),
        Key::new(
            "cluster.roles",
            "cluster M1",
            "What this node is for; entity types and singletons choose nodes by role.",
            |draft| &mut draft.settings.cluster.roles,
        ),
        Key::new(
            "cluster.app_version",
            "cluster M31",
            "The version of the application; rolling updates prefer the newest.",
            |draft| &mut draft.settings.cluster.app_version,
        ),
        Key::new(
            "cluster.seed_node_timeout",
            "cluster M24",
            "How long to ask the seed nodes before the first of them may start alone.",
            |draft| &mut draft.settings.cluster.seed_node_timeout,
        ),
        Key::new(
            "cluster.retry_unsuccessful_join_after",
            "cluster M25",
            "Without a Welcome for so long, joining starts over.",
            |draft| &mut draft.settings.cluster.retry_unsuccessful_join_after,
        ),
        Key::new(
            "cluster.shutdown_after_unsuccessful_join_seed_nodes",
            "cluster M24",
            "How long a start looks for a seed node that lets this node in. Then it fails, with each seed node and what came back from it last; the node ends.",
            |draft| &mut draft.settings.cluster.shutdown_after_unsuccessful_join_seed_nodes,
        ),
        Key::new(
            "cluster.self_join_alone",
            "cluster M24",
            "The first seed node joins itself even when too few others answer. Two clusters from one list become possible.",
            |draft| &mut draft.settings.cluster.self_join_alone,
        ),
        Key::new(
            "cluster.min_number_of_members",
            "cluster M22",
            "No node becomes Up before so many members are known.",
            |draft| &mut draft.settings.cluster.min_number_of_members,
        ),
        Key::new(
            "cluster.weakly_up_after",
            "cluster M21",
            "Joining members become WeaklyUp after so long without convergence.",
            |draft| &mut draft.settings.cluster.weakly_up_after,
        ),
        Key::new("cluster.periodic_tasks_initial_delay", "cluster M11", "Before the first periodic task.", |draft| {
            &mut draft.settings.cluster.periodic_tasks_initial_delay
        }),
        Key::new("cluster.gossip_interval", "cluster M11", "Between gossips.", |draft| {
            &mut draft.settings.cluster.gossip_interval
        }),
        Key::new(
            "cluster.gossip_time_to_live",
            "cluster M14",
            "Gossip that waited longer in the own inbox is dropped.",
            |draft| &mut draft.settings.cluster.gossip_time_to_live,
        ),
        Key::new(
            "cluster.gossip_different_view_probability",
            "cluster M11",
            "How likely a gossip goes to a member with another view.",
            |draft| &mut draft.settings.cluster.gossip_different_view_probability,
        ),
        Key::new(
            "cluster.reduce_gossip_different_view_probability",
            "cluster M11",
            "From so many members on that probability falls.",
            |draft| &mut draft.settings.cluster.reduce_gossip_different_view_probability,
        ),
        Key::new("cluster.leader_actions_interval", "cluster M19", "Between the leader's actions.", |draft| {
            &mut draft.settings.cluster.leader_actions_interval
        }),
        Key::new(
            "cluster.unreachable_nodes_reaper_interval",
            "cluster F8",
            "Between looks at the failure detectors.",
            |draft| &mut draft.settings.cluster.unreachable_nodes_reaper_interval,
        ),
        Key::new(
            "cluster.prune_gossip_tombstones_after",
            "cluster M29",
            "Tombstones older than this are dropped; no partition may last so long.",
            |draft| &mut draft.settings.cluster.prune_gossip_tombstones_after,
        ),
        Key::new(
            "cluster.quarantine_removed_node_after",
            "cluster T19",
            "A member that left in order is quarantined so much later.",
            |draft| &mut draft.settings.cluster.quarantine_removed_node_after,
        ),
        Key::new("cluster.event_buffer", "cluster M32", "Events buffered per subscriber.", |draft| {
            &mut draft.settings.cluster.event_buffer
        }),
        Key::new(
            "cluster.enforce_config_on_join",
            "cluster M25a",
            "Refuses to join a cluster whose downing settings differ.",
            |draft| &mut draft.settings.cluster.enforce_config_on_join,
        ),
        Key::new(
            "cluster.cluster_threads",
            "cluster C7",
            "Threads of the runtime that carries the cluster's own tasks.",
            |draft| &mut draft.settings.cluster.cluster_threads,
        ),
        Key::new(
            "cluster.proof_of_death",
            "cluster S20",
            "Which processes' deaths this node may prove: of none, of those on its own host, or of all (the operator's word that nothing ever answers in a member's stead, and that an address passes to another host only after its process has ended). A restart at the same address waits for the old process's removal where nothing is proven: always under `off`, on another host under `local`.",
            |draft| &mut draft.settings.cluster.proof_of_death,
        ),
        Key::new("cluster.proof_dials", "cluster S20", "Refused dials in a row that make a proof.", |draft| {
            &mut draft.settings.cluster.proof_dials
        }),
        Key::new(
            "cluster.proof_interval",
            "cluster S20",
            "Between two tries to prove an unreachable member dead.",
            |draft| &mut draft.settings.cluster.proof_interval,
        ),
        Key::new(
            "cluster.down_removal_margin",
            "cluster S14",
            "How long after an unclean removal the duties of the removed start elsewhere; `derive` is `cluster.sbr.stable_after`.",
            |draft| &mut draft.settings.cluster.down_removal_margin,
        ),
        Key::new("cluster.failure_detector.heartbeat_interval", "cluster F1", "Between heartbeats.", |draft| {
            &mut draft.settings.cluster.failure_detector.heartbeat_interval
        }),
        Key::new(
            "cluster.failure_detector.threshold",
            "cluster F5",
            "Suspicion from which a peer counts as unavailable.",
            |draft| &mut draft.settings.cluster.failure_detector.threshold,
        ),
        Key::new("cluster.failure_detector.max_sample_size", "cluster F5", "Intervals remembered per peer.", |draft| {
            &mut draft.settings.cluster.failure_detector.max_sample_size
        }),
        Key::new("cluster.failure_detector.min_std_deviation", "cluster F5", "The least deviation assumed.", |draft| {
            &mut draft.settings.cluster.failure_detector.min_std_deviation
        }),
        Key::new(
            "cluster.failure_detector.acceptable_heartbeat_pause",
            "cluster F5",
            "Silence to add to the expected arrival before suspicion rises.",
            |draft| &mut draft.settings.cluster.failure_detector.acceptable_heartbeat_pause,
        ),
        Key::new(
            "cluster.failure_detector.expected_response_after",
            "cluster F4",
            "A peer that never answered counts as heard once after so long.",
            |draft| &mut draft.settings.cluster.failure_detector.expected_response_after,
        ),
        Key::new(
            "cluster.failure_detector.monitored_by_nr_of_members",
            "cluster F2",
            "How many peers each node watches.",
            |draft| &mut draft.settings.cluster.failure_detector.monitored_by_nr_of_members,
        ),
        Key::new(
            "cluster.failure_detector.local_pause_threshold",
            "cluster F9",
            "A tick so late means that this process stood still; it then finds no member unreachable, and entities and singletons wait for the next tick. Longer than `heartbeat_interval`, and with it at most `stable_after`.",
            |draft| &mut draft.settings.cluster.failure_detector.local_pause_threshold,
        ),
        Key::new(
            "cluster.lease.heartbeat_timeout",
            "cluster S16",
            "A lease that was not renewed for so long is free.",
            |draft| &mut draft.settings.cluster.lease.heartbeat_timeout,
        ),
        Key::new("cluster.lease.heartbeat_interval", "cluster S16", "Between renewals of a lease.", |draft| {
            &mut draft.settings.cluster.lease.heartbeat_interval
        }),
        Key::new(
            "cluster.lease.operation_timeout",
            "cluster S16",
            "How long one request to the store of leases may take before its outcome counts as unknown.",
            |draft| &mut draft.settings.cluster.lease.operation_timeout,
        ),
        Key::new(
            "cluster.lease.postgres.connection",
            "cluster S16",
            "The database of the leases, as for libpq: `host=db.example user=greylag dbname=leases sslmode=verify-full sslrootcert=/etc/greylag/ca.pem`, or a URL. Needs the feature `lease-postgres`.",
            |draft| &mut draft.settings.lease_store.postgres.connection,
        )
        .default_is("required by the store postgres"),
        Key::some(
            "cluster.lease.postgres.password_file",
            "cluster S16",
            "A file with the password, if it does not stand in the connection string.",
            |draft| &mut draft.settings.lease_store.postgres.password_file,
        )
        .default_is("none"),
        Key::new(
            "cluster.singleton.hand_over_retry_interval",
            "cluster P4",
            "Between requests to hand over.",
            |draft| &mut draft.settings.singleton.hand_over_retry_interval,
        ),
        Key::new(
            "cluster.singleton.min_number_of_hand_over_retries",
            "cluster P4",
            "At least so many requests before trouble is reported.",
            |draft| &mut draft.settings.singleton.min_number_of_hand_over_retries,
        ),
        Key::some(
            "cluster.singleton.role",
            "cluster P1",
            "Singletons run on the oldest member with this role.",
            |draft| &mut draft.settings.singleton.role,
        )
        .default_is("none"),
        Key::some("cluster.singleton.removal_margin", "cluster P6", "Wait after unclean removals.", |draft| {
            &mut draft.settings.singleton.removal_margin
        })
        .default_is("cluster.down_removal_margin"),
        Key::new("cluster.data_center", "cluster M1", "Where this node runs; nothing but `default` yet.", |draft| {
            &mut draft.settings.cluster.data_center
        }),
        Key::new(
            "cluster.shutdown_when_down",
            "cluster M27",
            "A node that is declared dead runs its orderly shutdown. Otherwise only its membership ends.",
            |draft| &mut draft.settings.cluster.shutdown_when_down,
        ),
        Key::new(
            "cluster.on_foreign_cluster",
            "cluster M25b",
            "What to do about another cluster of the same name.",
            |draft| &mut draft.settings.cluster.on_foreign_cluster,
        ),
        Key::new(
            "cluster.island_probe_duration",
            "cluster M25b",
            "For so long after it began to lead, a leader asks the seed nodes every 10 s whether they belong to another cluster, then every minute.",
            |draft| &mut draft.settings.cluster.island_probe_duration,
        ),
        Key::new(
            "cluster.publish_stats_interval",
            "cluster §6",
            "How often counters of gossip are published as an event.",
            |draft| &mut draft.settings.cluster.publish_stats_interval,
        ),
        Key::new(
            "cluster.sensitive_config_prefixes",
            "cluster M25a",
            "Checked settings whose keys begin so are never sent.",
            |draft| &mut draft.settings.cluster.sensitive_config_prefixes,
        ),
        Key::new("cluster.failure_detector.kind", "cluster F7", "What judges the silence of a peer.", |draft| {
            &mut draft.settings.cluster.failure_detector.kind
        }),
        Key::new(
            "cluster.singleton.use_lease",
            "cluster P5",
            "An instance runs only while its node holds the lease `<cluster>-singleton-<name>`; needs a store of leases: `cluster.sbr.lease_majority.lease`.",
            |draft| &mut draft.settings.singleton.use_lease,
        ),
        Key::new(
            "cluster.singleton.lease_retry_interval",
            "cluster §5",
            "Between requests for a lease that is denied or fails.",
            |draft| &mut draft.settings.singleton.lease_retry_interval,
        ),
        Key::new(
            "cluster.singleton_proxy.singleton_identification_interval",
            "cluster P8",
            "Between questions to the oldest member whether it runs the instance.",
            |draft| &mut draft.settings.singleton.proxy.identification_interval,
        ),
        Key::new(
            "cluster.singleton_proxy.buffer_size",
            "cluster P8",
            "Messages kept while it is not known where the instance runs; 0 keeps none.",
            |draft| &mut draft.settings.singleton.proxy.buffer_size,
        ),
        Key::some(
            "cluster.singleton_proxy.role",
            "cluster P8",
            "The role whose oldest member hosts the singleton, on nodes that only send to it.",
            |draft| &mut draft.settings.singleton.proxy.role,
        )
        .default_is("cluster.singleton.role"),
    ]
}
