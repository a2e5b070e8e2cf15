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

mod app_version;
mod bootstrap;
mod core;
mod dead_list;
mod detector;
mod downing;
mod driver;
mod error;
mod event;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod member_subset;
#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated {
    include!("generated/greylag.cluster.v1.rs");
}
#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated_watch {
    include!("generated/greylag.watch.v1.rs");
}
mod counter_bounds;
mod gossip;
mod health;
mod heartbeat;
mod holders;
mod member;
mod members;
mod message;
mod phi;
mod places;
mod proof;
mod reachability;
mod ring;
mod sabotage;
mod sbr;
mod seed_report;
mod seen;
mod settings;
mod shared;
mod shutdown;
mod side_by_side;
mod singleton;
mod stats;
#[cfg(feature = "tck")]
pub mod tck;
mod version;
mod view;
mod wire;

/// The resolver's strategies as pure functions: they decide which side of a partition survives.
pub mod strategy {
    pub use crate::sbr::{
        AllBecause, Picture, Record, Resolution, Ruling, SeenBy, Why, common_node, decide, explain, resolve,
    };
}

pub use crate::core::{ClusterCore, Command, Effect, Input, LogLevel, Standing};
pub use app_version::{AppVersion, InvalidAppVersion};
pub use bootstrap::{Bootstrap, BootstrapEffect, BootstrapInput, BootstrapMessage, BootstrapSettings};
pub use dead_list::{DeadList, DeadListError};
pub use detector::{CustomDetector, Deadline, DetectorKind, FailureDetector};
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
pub use error::{ConfigError, JoinError, JoinRejection, MemberError, SingletonError, StartError, Terminated};
pub use event::{ClusterEvent, EventKind, InitialState, Proof, diff};
pub use gossip::{Blockers, ConfirmedExits, Gossip, Merged};
pub use health::{ForeignCluster, Health, HeldAddress};
pub use heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
pub use member::{Member, MemberStatus};
pub use members::Members;
pub use message::{CheckedConfig, Island, Message, PROTOCOL};
pub use phi::PhiAccrual;
pub use proof::{DIAL_SPACING, ProofEffect, ProofInput, Proofs};
pub use reachability::{Reachability, Record, Status};
pub use ring::Ring;
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use sbr::Sbr;
pub use seed_report::{SeedAnswer, SeedReport};
pub use seen::Seen;
pub use settings::{
    ClusterSettings, CoordinatedShutdownSettings, DownAllWhenUnstable, Downing, FailureDetectorSettings,
    InvalidStrategy, OnForeignCluster, ProofOfDeath, RemovalMargin, SbrSettings, SingletonProxySettings,
    SingletonSettings, Strategy, parse_seed_nodes,
};
pub use shared::Shared;
pub use shutdown::{Phase, ShutdownReason};
pub use singleton::host::{HostEffect, HostInput, SingletonHost};
pub use singleton::lease::LeaseOutcome;
pub use singleton::manager::{ManagerEffect, ManagerInput, ManagerState, SingletonManager};
pub use singleton::proxy::{ProxyEffect, ProxyInput, SingletonProxy};
pub use singleton::{Kind, ProxyMessage, SingletonMessage};
pub use stats::{GossipStats, IgnoredGossip};
pub use version::{Relation, VectorVersion};
pub use view::{MembershipView, Tombstone};
