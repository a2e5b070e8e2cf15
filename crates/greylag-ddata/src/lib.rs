//! Distributed data: a replicator for CRDTs that works with or without the cluster crate.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use greylag_core::Registry;
//! use greylag_crdt::LwwMap;
//! use greylag_ddata::{Membership, Replicator, ReplicatorSettings, TypeTable};
//! use greylag_transport::memory::MemoryNetwork;
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! // Two nodes. In production the transport is `GrpcTransport` and nothing else changes.
//! let network = MemoryNetwork::new();
//! let start = |own: &str| {
//!     let remoting = network.node(own.parse().unwrap(), Arc::new(Registry::new()));
//!     let peers = Membership::fixed(["a:1".parse().unwrap(), "b:1".parse().unwrap()]);
//!     Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, peers)
//! };
//! let (a, b) = (start("a:1#1")?, start("b:1#2")?);
//! for node in [&a, &b] {
//!     node.wait_synced(Duration::from_secs(5)).await;
//! }
//!
//! let (at_a, at_b) = (a.replicated::<LwwMap<String, String>>("cart-7")?, b.replicated("cart-7")?);
//! at_a.update(|cart, cx| cart.put(cx, "fruit".into(), "apple".into())).all().await?;
//!
//! let seen: LwwMap<String, String> = at_b.get().await?; // b has confirmed it
//! assert_eq!(seen.get("fruit").map(String::as_str), Some("apple"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Guarantees
//! Replicas that received the same updates are equal. An update acknowledged at a level is on that many replicas at
//! that moment. No update is lost while one replica that has it stays and meets others. Local requests complete without
//! the network. Updates of one origin to one entry of a causal type become visible in order. There are no guarantees
//! across entries, and a timeout is no rollback: the change is made and spreads. Source: ddata §9.
//!
//! # How it works
//! [`ReplicatorCore`] is the whole protocol as a machine without clock, task or socket; [`Replicator`] is the handle to
//! a task that runs one. Changes travel as deltas from an acknowledged log; rounds of anti-entropy over a hash trie
//! repair every loss.
//!
//! With the feature `cluster`, `Membership::from_cluster` feeds a replicator from the cluster.

mod bounds;
mod delta_log;
mod driver;
mod durable;
mod effect;
mod entries;
mod envelope;
mod error;
mod event;
mod expiry;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, unreachable_pub)]
#[path = "generated/greylag.ddata.v1.rs"]
mod generated;
mod gate;
mod input;
mod key;
mod level;
mod memory_store;
mod message;
mod metrics;
mod outcome;
mod pruning;
mod quorum;
mod read;
mod repair;
mod replicas;
mod replicator;
mod sabotage;
mod settings;
mod stash;
mod static_membership;
mod stats;
mod store;
mod storing;
mod subscriptions;
mod sync;
#[cfg(feature = "tck")]
pub mod tck;
mod transfers;
mod tree;
mod types;
mod unanswered;
mod wire;

pub use driver::{
    AnySubscription, Changes, Delete, Events, Get, Membership, MembershipHandle, PeersHandle, Replicated, Replicator,
    Subscription, Update, expect_replicators,
};
pub use durable::{DurableSettings, OnBadRecord, StaleStore};
pub use effect::{Effect, Notice, Reply, Snapshot};
pub use envelope::{Content, Envelope};
pub use error::{DeleteError, GetError, ReadError, RequestError, StartError, StopReason, UpdateError};
pub use event::{ReplicatorEvent, TypeConflict};
pub use gate::{GateState, Standing, Start, Starts, StartsOrDigest};
pub use input::{DropReason, Input};
pub use key::{InvalidKey, Key, KeyId, MAX_ID_BYTES};
pub use level::{ReadLevel, WriteLevel};
pub use memory_store::{MemoryStore, StoreImage};
pub use message::{
    BatchItem, DeltaItem, Listed, Message, Nacked, Offer, ReadReply, Refusal, RoundId, Wanted, WriteReply,
};
pub use metrics::{Latency, LevelName, Metrics, Traffic};
pub use outcome::Outcome;
pub use pruning::{PruningNews, PruningRound};
pub use read::{Changed, ChangedAny, Lifecycle, Read};
pub use replicas::{Replica, ReplicaStatus, Replicas};
pub use replicator::ReplicatorCore;
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use settings::{DotFloor, ReplicatorSettings};
pub use stats::Stats;
pub use store::{DurableStore, LoadBatch, LoadedRecord, StoreError, StoreMeta, StoreOp};
pub use tree::{Prefix, Sixteenths, Sum};
pub use types::{AnyData, TypeTable};
