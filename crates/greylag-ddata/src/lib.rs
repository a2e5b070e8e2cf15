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

mod api;
mod data;
mod dissemination;
mod driver;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, unreachable_pub)]
#[path = "generated/greylag.ddata.v1.rs"]
mod generated;
mod gate;
mod membership;
mod messages;
mod pruning;
mod replicator;
mod storage;
#[cfg(feature = "tck")]
pub mod tck;

pub use api::effect::{Effect, Notice, Reply, Snapshot};
pub use api::error::{DeleteError, GetError, ReadError, RequestError, StartError, StopReason, UpdateError};
pub use api::event::{ReplicatorEvent, TypeConflict};
pub use api::input::{DropReason, Input};
pub use api::key::{InvalidKey, Key, KeyId, MAX_ID_BYTES};
pub use api::level::{ReadLevel, WriteLevel};
pub use api::metrics::{Latency, LevelName, Metrics, Traffic};
pub use api::outcome::Outcome;
pub use api::read::{Changed, ChangedAny, Lifecycle, Read};
pub use api::settings::durable::{DurableSettings, OnBadRecord, StaleStore};
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use api::settings::omissions::Clause;
#[doc(hidden)]
pub use api::settings::omissions::Omissions;
pub use api::settings::{DotFloor, ReplicatorSettings};
pub use api::stats::Stats;
pub use data::envelope::{Content, Envelope};
pub use data::tree::{Prefix, Sixteenths, Sum};
pub use data::types::{AnyData, TypeTable};
pub use driver::{
    AnySubscription, Changes, Delete, Events, Get, Membership, MembershipHandle, PeersHandle, Replicated, Replicator,
    Subscription, Update, expect_replicators,
};
pub use gate::{GateState, Standing, Start, Starts, StartsOrDigest};
pub use membership::replicas::{Replica, ReplicaStatus, Replicas};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use messages::fuzzing;
pub use messages::message::{
    BatchItem, DeltaItem, Listed, Message, Nacked, Offer, ReadReply, Refusal, RoundId, Wanted, WriteReply,
};
pub use pruning::{PruningNews, PruningRound};
pub use replicator::ReplicatorCore;
pub use storage::memory_store::{MemoryStore, StoreImage};
pub use storage::store::{DurableStore, LoadBatch, LoadedRecord, StoreError, StoreMeta, StoreOp};
