//! Why a node did not start.

use std::time::Duration;

use greylag_cluster::{Cluster, Health, JoinError};
use greylag_core::InvalidAddress;
use greylag_transport::BindError;

use crate::config::ConfigProblems;

/// Why a node did not start. No part of it is left running. `Debug` prints the sentence with its causes, because a
/// `main` that returns an error prints it by `Debug`.
#[derive(thiserror::Error)]
pub enum StartError {
    /// Settings cannot be read, or cannot work; all problems together.
    #[error("invalid configuration:\n{0}")]
    Config(#[from] ConfigProblems),
    /// A seed node is not an address.
    #[error(transparent)]
    Seed(#[from] InvalidAddress),
    /// The listener could not be bound.
    #[error("the transport did not start: {0}")]
    Bind(#[from] BindError),
    /// The cluster's own threads could not be started.
    #[error("membership did not start: {0}")]
    Cluster(#[from] greylag_cluster::StartError),
    /// The journal that the settings name could not be opened.
    #[cfg(feature = "persistence")]
    #[error("the journal did not open: {0}")]
    Journal(#[from] super::journal::JournalError),
    /// The admin service could not be bound.
    #[cfg(feature = "management")]
    #[error(transparent)]
    Management(#[from] greylag_management::StartError),
    /// A sharding setting is invalid.
    #[cfg(feature = "sharding")]
    #[error("sharding did not start: {0}")]
    Sharding(#[from] greylag_sharding::error::InvalidSetting),
    /// An entity type was not set up.
    #[cfg(feature = "sharding")]
    #[error(transparent)]
    Entity(#[from] greylag_sharding::InitError),
    /// A codec was not registered.
    #[error(transparent)]
    Codec(#[from] greylag_core::RegistryError),
    /// The node could not join; the cluster is as it was.
    #[error("the node did not join: {0}")]
    Join(#[from] JoinError),
    /// The node was not Up within the time of [`NodeBuilder::start_timeout`](crate::NodeBuilder::start_timeout).
    #[error("the node was not Up within {after:?}: {waited_for}")]
    TimedOut {
        /// The time limit of the start.
        after: Duration,
        /// The missing condition, as far as the node knew.
        waited_for: String,
    },
    /// The node joined, but ended before it was Up.
    #[error("the node never became Up: {0}")]
    NeverUp(#[from] greylag_cluster::Terminated),
}

greylag_core::debug_is_sentence!(StartError);

impl StartError {
    /// The start took longer than its limit. The error tells how far the node came, by its own knowledge.
    pub(crate) async fn timed_out(after: Duration, cluster: Option<&Cluster>) -> Self {
        let waited_for = match cluster {
            Some(cluster) => missing_condition(&cluster.health().await),
            None => "membership has not started".to_owned(),
        };
        Self::TimedOut { after, waited_for }
    }
}

/// Why a node is not Up.
fn missing_condition(health: &Health) -> String {
    let mut text = match health.status {
        Some(status) => format!("it is {status:?}"),
        None => "no member has accepted its join".to_owned(),
    };
    if let Some(held) = health.held_addresses.first() {
        text += &format!(", and waits for the removal of {}, which has its address", held.holder);
    }
    if !health.unreachable.is_empty() {
        let unreachable: Vec<String> = health.unreachable.keys().map(ToString::to_string).collect();
        text += &format!(", and the leader waits for unreachable members: {}", unreachable.join(", "));
    } else if !health.blockers.unseen.is_empty() {
        let unseen: Vec<String> = health.blockers.unseen.iter().map(ToString::to_string).collect();
        text += &format!(", and these members have not seen the latest state: {}", unseen.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use greylag_cluster::MemberStatus;

    use super::*;

    #[test]
    fn a_timed_out_start_names_the_missing_condition() {
        let told = |change: fn(&mut Health)| {
            let mut health = Health { status: Some(MemberStatus::Joining), ..Health::default() };
            change(&mut health);
            missing_condition(&health)
        };
        assert_eq!(told(|health| health.status = None), "no member has accepted its join");
        assert_eq!(told(|_| {}), "it is Joining");
        let unreachable = told(|health| drop(health.unreachable.insert("a:1#1".parse().unwrap(), [].into())));
        assert_eq!(unreachable, "it is Joining, and the leader waits for unreachable members: a:1#1");
        let unseen = told(|health| health.blockers.unseen.push("b:1#2".parse().unwrap()));
        assert_eq!(unseen, "it is Joining, and these members have not seen the latest state: b:1#2");
    }
}
