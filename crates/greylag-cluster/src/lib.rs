//! Membership of a Greylag cluster: its members, their reachability, its leader, and its oldest member.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use greylag_cluster::{Cluster, ClusterSettings, Singleton};
//! use greylag_codec::json;
//! use greylag_core::{Registry, ReplyTo};
//! use greylag_transport::memory::MemoryNetwork;
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! // Two nodes in one process; in production each has a `GrpcTransport` of its own.
//! let network = MemoryNetwork::new();
//! let start = |address: &str| {
//!     let registry = Registry::new();
//!     registry.register::<usize>(json("count")).unwrap(); // answers travel too
//!     let remoting = network.node(address.parse().unwrap(), Arc::new(registry));
//!     Cluster::start(ClusterSettings::test(), remoting)
//! };
//! let (one, two) = (start("one:17355#1").await?, start("two:17355#2").await?);
//! one.join_self().await?;
//! two.join_seed_nodes(vec![one.self_address().address().clone()]).await?;
//! two.wait_up().await?;
//! assert_eq!(two.view().oldest(None).unwrap().address, *one.self_address());
//!
//! // One instance in the whole cluster, on the oldest node; it runs until its mailbox ends.
//! #[derive(serde::Serialize, serde::Deserialize)]
//! enum Orders {
//!     Place { item: String },
//!     Count { reply_to: ReplyTo<usize> },
//! }
//! let orders = || {
//!     Singleton::new("orders", |_context, mut mailbox| async move {
//!         let mut placed = Vec::new();
//!         while let Some(message) = mailbox.recv().await {
//!             match message {
//!                 Orders::Place { item } => placed.push(item),
//!                 Orders::Count { reply_to } => reply_to.reply(placed.len()),
//!             }
//!         }
//!     })
//!     .codec(json::<Orders>("orders"))
//! };
//! one.singleton(orders())?;
//! let orders = two.singleton(orders())?; // from here it is reached over the network
//! orders.tell(Orders::Place { item: "goose".into() })?;
//! assert_eq!(orders.ask(|reply_to| Orders::Count { reply_to }, Duration::from_secs(5)).await?, 1);
//!
//! two.shutdown().await; // leaves in order; no failure detector has to find out
//! one.shutdown().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate guarantees that all nodes arrive at the same view of the cluster, that a removed member never returns, and
//! that at most one instance of a singleton runs while partitions and pauses stay within the limits of the settings
//! (cluster G1 to G3). A process whose death its own host proves is removed at once, whatever the downing settings say;
//! a process that is merely silent is never removed by a timeout.
//!
//! The machines ([`ClusterCore`], [`HeartbeatCore`], [`Proofs`], [`Sbr`], [`SingletonManager`],
//! [`SingletonProxy`], [`SingletonHost`]) hold no socket, clock or task; [`Cluster`] runs them over a
//! [`Remoting`](greylag_transport::Remoting).

mod bootstrap;
mod core;
mod detector;
mod downing;
mod driver;
mod error;
mod gossip;
mod membership;
mod settings;
mod singleton;
mod testing;
mod wire;

#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated {
    include!("generated/greylag.cluster.v1.rs");
}
#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated_watch {
    include!("generated/greylag.watch.v1.rs");
}

/// The resolver's strategies as pure functions: they decide which side of a partition survives.
pub mod strategy {
    pub use crate::downing::sbr::{
        AllBecause, Picture, Record, Resolution, Ruling, SeenBy, Why, common_node, decide, explain, resolve,
    };
}

pub use crate::core::{ClusterCore, Command, Effect, Input, LogLevel, Standing};
pub use bootstrap::{Bootstrap, BootstrapEffect, BootstrapInput, BootstrapMessage, BootstrapSettings};
pub use detector::dead_list::{DeadList, DeadListError};
pub use detector::heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
pub use detector::proof::{DIAL_SPACING, ProofEffect, ProofInput, Proofs};
pub use detector::ring::Ring;
pub use detector::{CustomDetector, Deadline, DetectorKind, FailureDetector, FailureDetectorSettings, PhiAccrual};
pub use downing::sbr::Sbr;
pub use downing::{
    CustomDowning, DownCommand, DowningContext, DowningDecision, DowningInput, DowningProvider, Verdict,
};
pub use driver::Watch;
pub use driver::lease::{
    GuardedLease, InMemoryLeases, Lease, LeaseError, LeaseFault, LeaseProvider, LeaseSettings, Leases, OnLost,
};
pub use driver::{
    BoxFuture, Clock, Cluster, ClusterEvents, DeathWitness, Discovery, DiscoveryError, Mailbox, NoMessages, Pulse,
    Readiness, RunningHere, Runs, SeedList, Singleton, SingletonAnswer, SingletonAskError, SingletonContext,
    SingletonRef, SingletonSendError, StopToken, Target,
};
pub use driver::{ChildWitness, FileWitness};
pub use error::seed_report::{SeedAnswer, SeedReport};
pub use error::{ConfigError, JoinError, JoinRejection, MemberError, SingletonError, StartError, Terminated};
pub use gossip::reachability::{Reachability, Record, Status};
pub use gossip::seen::Seen;
pub use gossip::shared::Shared;
pub use gossip::state::{Blockers, ConfirmedExits, Gossip, Merged};
pub use gossip::stats::{GossipStats, IgnoredGossip};
pub use gossip::version::{Relation, VectorVersion};
pub use membership::app_version::{AppVersion, InvalidAppVersion};
pub use membership::event::{ClusterEvent, EventKind, InitialState, Proof, diff};
pub use membership::health::{ForeignCluster, Health, HeldAddress};
pub use membership::member::{Member, MemberStatus};
pub use membership::members::Members;
pub use membership::message::{CheckedConfig, Island, Message, PROTOCOL};
pub use membership::shutdown::{Phase, ShutdownReason};
pub use membership::view::{MembershipView, Tombstone};
pub use settings::{
    ClusterSettings, CoordinatedShutdownSettings, DownAllWhenUnstable, Downing, InvalidStrategy, OnForeignCluster,
    ProofOfDeath, RemovalMargin, SbrSettings, SingletonProxySettings, SingletonSettings, Strategy, parse_seed_nodes,
};
pub use singleton::host::{HostEffect, HostInput, SingletonHost};
pub use singleton::lease_outcome::LeaseOutcome;
pub use singleton::manager::SingletonManager;
pub use singleton::manager::signals::{ManagerEffect, ManagerInput, ManagerState};
pub use singleton::proxy::{ProxyEffect, ProxyInput, SingletonProxy};
pub use singleton::{Kind, ProxyMessage, SingletonMessage};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use testing::fuzzing;
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use testing::omissions::Clause;
#[doc(hidden)]
pub use testing::omissions::Omissions;
#[cfg(feature = "tck")]
pub use testing::tck;
