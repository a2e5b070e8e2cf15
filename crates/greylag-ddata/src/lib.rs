//! Distributed data: a replicator for CRDTs that works with or without the cluster crate.

mod driver;
mod error;
mod key;
mod level;
mod read;
mod replicas;
mod settings;
mod types;

pub use driver::{Membership, MembershipHandle, Replicator, Subscription};
pub use error::{DeleteError, GetError, RequestError, StartError, StopReason, UpdateError};
pub use key::{InvalidKey, Key, KeyId, MAX_ID_BYTES};
pub use level::{ReadLevel, WriteLevel};
pub use read::{Changed, Lifecycle, Read};
pub use replicas::{Replica, ReplicaStatus, Replicas};
pub use settings::ReplicatorSettings;
pub use types::{AnyData, TypeTable};
