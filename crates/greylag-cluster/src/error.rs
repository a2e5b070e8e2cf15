//! Errors, split by what a caller can do about them.

pub(crate) mod seed_report;

use std::borrow::Cow;

use greylag_core::{InvalidAddress, NodeAddress, UniqueAddress};

use crate::error::seed_report::SeedReport;
use crate::membership::shutdown::ShutdownReason;

/// A setting that cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("cluster.{setting} = {value}: {why}")]
pub struct ConfigError {
    /// The key, without the section.
    pub setting: Cow<'static, str>,
    /// The value found.
    pub value: String,
    /// The rule that the value breaks.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(ConfigError);

/// The cluster did not start. Nothing runs.
#[derive(thiserror::Error)]
pub enum StartError {
    /// All settings that cannot be used.
    #[error("invalid settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<ConfigError>),
    /// The runtime for the cluster's own tasks could not be made.
    #[error("the runtime of the cluster tasks could not be started")]
    Runtime(#[source] std::io::Error),
}

greylag_core::debug_is_sentence!(StartError);

/// Why a singleton was not started on this node. No part of it runs here, and no message is sent.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SingletonError {
    /// All settings that cannot be used.
    #[error("singleton {name:?}: {}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config {
        /// The singleton's name.
        name: String,
        /// All problems of the settings.
        problems: Vec<ConfigError>,
    },
    /// The singleton is to run under a lease, and this node, which may host it, has no lease provider.
    #[error(
        "singleton {name:?}: cluster.singleton.use_lease needs a lease provider; set one in the cluster's settings"
    )]
    NoLeaseProvider {
        /// The singleton's name.
        name: String,
    },
    /// A singleton of this name takes messages of another type.
    #[error("singleton {name:?} was started on this node with messages of another type; choose another name")]
    OtherMessages {
        /// The singleton's name.
        name: String,
    },
    /// This node started the singleton as a proxy before, which only sends.
    #[error("singleton {name:?} was started on this node as a proxy; start it once, with its factory")]
    ProxyOnly {
        /// The singleton's name.
        name: String,
    },
}

greylag_core::debug_is_sentence!(SingletonError);

/// Why a node is not a member.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The list of seed nodes is empty.
    #[error("no seed nodes were given; name at least one")]
    NoSeeds,
    /// This node is a member already; two clusters are never merged.
    #[error("this node is a member already; restart it to join another cluster")]
    AlreadyMember,
    /// This node ends; start a new process.
    #[error("this node is shutting down ({0})")]
    ShuttingDown(ShutdownReason),
    /// A seed node is not an address. Nothing was sent.
    #[error("invalid address {addr:?}: {why}; write it as host:port")]
    InvalidAddress {
        /// The text as it was given.
        addr: String,
        /// The rule that the text breaks.
        why: &'static str,
    },
    /// Every seed node belongs to a cluster of another name. This node is as it was before; correct
    /// the name or the seed nodes, and start again.
    #[error("the seed nodes belong to the cluster {theirs:?}, this node to {ours:?}")]
    WrongCluster {
        /// This node's cluster name.
        ours: String,
        /// The seed nodes' cluster name.
        theirs: String,
    },
    /// The cluster speaks another version of the protocol. This node is as it was before.
    #[error("no common protocol version: {0}")]
    IncompatibleProtocol(String),
    /// No seed node let this node in within `shutdown_after_unsuccessful_join_seed_nodes`. Holds the last outcome of
    /// each seed node but this node. The node ends.
    #[error(
        "no seed node let this node in within the time of cluster.shutdown_after_unsuccessful_join_seed_nodes: {}",
        shown(.0)
    )]
    Unsuccessful(Vec<SeedReport>),
    /// The cluster refused this node for good. The node ends.
    #[error("{by} refused the join: {reason}")]
    Rejected {
        /// The member that refused.
        by: UniqueAddress,
        /// Why the member refused.
        reason: JoinRejection,
    },
    /// Settings of this node that must equal the cluster's differ. The node ends.
    #[error("settings differ from those of {by}: {}", .keys.join(", "))]
    IncompatibleConfig {
        /// The node whose settings differ.
        by: NodeAddress,
        /// The keys, with both values.
        keys: Vec<String>,
    },
}

greylag_core::debug_is_sentence!(JoinError);

fn shown(seeds: &[SeedReport]) -> String {
    seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl From<InvalidAddress> for JoinError {
    fn from(InvalidAddress { address: addr, why }: InvalidAddress) -> Self {
        Self::InvalidAddress { addr, why }
    }
}

/// Why a member does not let a process in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinRejection {
    /// The process was removed; a restarted one may join.
    #[error("this incarnation was removed from the cluster; restart the process")]
    Removed,
    /// The whole cluster is about to shut down.
    #[error("the cluster prepares for its shutdown")]
    PreparingForShutdown,
    /// Another protocol version.
    #[error("protocol version {theirs} is not supported, ours is {ours}")]
    IncompatibleProtocol {
        /// The member's version.
        ours: u32,
        /// The joiner's version.
        theirs: u32,
    },
    /// The joiner named another cluster.
    #[error("the join names another cluster")]
    WrongCluster,
}

/// A command named a process that is no member. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Not a member, in this node's view.
    #[error("{0} is not a member")]
    UnknownMember(String),
}

/// This node ended before it was Up.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node has shut down ({0})")]
pub struct Terminated(pub ShutdownReason);

greylag_core::debug_is_sentence!(Terminated);
