//! Distributed data: a replicator for CRDTs that works with or without the cluster crate.

mod delta_log;
mod driver;
mod entries;
mod error;
#[rustfmt::skip]
#[allow(missing_docs, clippy::all, unreachable_pub)]
#[path = "generated/greylag.ddata.v1.rs"]
mod generated;
mod key;
mod level;
mod message;
mod quorum;
mod read;
mod replicas;
mod replicator;
mod settings;
mod static_membership;
mod subscriptions;
mod sync;
mod tree;
mod types;
mod wire;

pub use driver::{Membership, MembershipHandle, Replicator, Subscription};
pub use error::{DeleteError, GetError, RequestError, StartError, StopReason, UpdateError};
pub use key::{InvalidKey, Key, KeyId, MAX_ID_BYTES};
pub use level::{ReadLevel, WriteLevel};
pub use message::{
    BatchItem, Content, DeltaItem, Effect, Envelope, Input, Message, Nacked, Notice, ReadReply, Refusal,
    ReplicatorEvent, Reply, RoundId, Snapshot, WriteReply,
};
pub use read::{Changed, Lifecycle, Read};
pub use replicas::{Replica, ReplicaStatus, Replicas};
pub use replicator::{ReplicatorCore, Stats};
pub use settings::ReplicatorSettings;
pub use tree::{Prefix, Sum};
pub use types::{AnyData, TypeTable};
