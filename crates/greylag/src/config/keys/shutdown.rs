//! `cluster.coordinated_shutdown.*`. Source: cluster M35, §6.

use greylag_cluster::Phase;

use super::Key;

/// The phases as a file names them.
const PHASES: [(&str, Phase); 12] = [
    ("before_service_unbind", Phase::BeforeServiceUnbind),
    ("service_unbind", Phase::ServiceUnbind),
    ("service_requests_done", Phase::ServiceRequestsDone),
    ("service_stop", Phase::ServiceStop),
    ("before_cluster_shutdown", Phase::BeforeClusterShutdown),
    ("cluster_sharding_shutdown_region", Phase::ClusterShardingShutdownRegion),
    ("cluster_leave", Phase::ClusterLeave),
    ("cluster_exiting", Phase::ClusterExiting),
    ("cluster_exiting_done", Phase::ClusterExitingDone),
    ("cluster_shutdown", Phase::ClusterShutdown),
    ("before_node_terminate", Phase::BeforeNodeTerminate),
    ("node_terminate", Phase::NodeTerminate),
];

pub(super) fn keys() -> Vec<Key> {
    let default = Key::new(
        "cluster.coordinated_shutdown.default_phase_timeout",
        "cluster M35",
        "How long the tasks of a phase may take that has no timeout of its own.",
        |draft| &mut draft.settings.cluster.coordinated_shutdown.default_phase_timeout,
    );
    let timeouts = PHASES.map(|(name, phase)| {
        let key = Key::some(
            format!("cluster.coordinated_shutdown.{name}.timeout"),
            "cluster M35",
            "How long the tasks of this phase may take.",
            move |draft| draft.phase_timeouts.entry(phase).or_default(),
        );
        let own = matches!(phase, Phase::ClusterShardingShutdownRegion | Phase::ClusterExiting | Phase::NodeTerminate);
        key.default_is(if own { "\"10s\"" } else { "default_phase_timeout" })
    });
    let recoveries = PHASES.map(|(name, phase)| {
        Key::new(
            format!("cluster.coordinated_shutdown.{name}.recover"),
            "cluster M35",
            "Whether the shutdown goes on when a task of this phase fails or is late.",
            move |draft| draft.settings.cluster.coordinated_shutdown.phase_recover.entry(phase).or_insert(true),
        )
    });
    std::iter::once(default).chain(timeouts).chain(recoveries).collect()
}
