//! `cluster.coordinated_shutdown.*`. Source: cluster M35, §6.

use greylag_cluster::Phase;

use super::Key;

pub(super) fn keys() -> Vec<Key> {
    let default = Key::new(
        "cluster.coordinated_shutdown.default_phase_timeout",
        "cluster M35",
        "How long the tasks of a phase may take that has no timeout of its own.",
        |draft| &mut draft.settings.cluster.coordinated_shutdown.default_phase_timeout,
    );
    let timeouts = Phase::ALL.map(|phase| {
        let key = Key::some(
            format!("cluster.coordinated_shutdown.{phase}.timeout"),
            "cluster M35",
            "How long the tasks of this phase may take.",
            move |draft| draft.phase_timeouts.entry(phase).or_default(),
        );
        key.default_is(match phase {
            Phase::ClusterShardingShutdownRegion | Phase::ClusterExiting | Phase::NodeTerminate => "\"10s\"",
            Phase::ClusterLeave => "stable_after and 15 s more",
            _ => "default_phase_timeout",
        })
    });
    let recoveries = Phase::ALL.map(|phase| {
        Key::new(
            format!("cluster.coordinated_shutdown.{phase}.recover"),
            "cluster M35",
            "Whether the shutdown goes on when a task of this phase fails or is late.",
            move |draft| draft.settings.cluster.coordinated_shutdown.phase_recover.entry(phase).or_insert(true),
        )
    });
    std::iter::once(default).chain(timeouts).chain(recoveries).collect()
}
