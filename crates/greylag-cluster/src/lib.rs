//! Membership of a Greylag cluster: who belongs, who is alive, who leads, who is oldest.
//!
//! The crate promises that all nodes come to the same view of the cluster, that a member once
//! removed never returns, and that at most one instance of a singleton runs while partitions and
//! pauses stay within what the settings allow (cluster G1 to G3).

mod app_version;
mod core;
mod downing;
mod driver;
mod error;
mod event;
#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated {
    include!("generated/greylag.cluster.v1.rs");
}
mod gossip;
mod heartbeat;
mod member;
mod message;
mod phi;
mod proof;
mod reachability;
mod sbr;
mod settings;
mod shutdown;
mod singleton;
mod version;
mod view;
mod wire;

pub use crate::core::{ClusterCore, Command, Effect, Input, LogLevel};
pub use app_version::{AppVersion, InvalidAppVersion};
pub use downing::{DowningDecision, Verdict};
pub use driver::{
    BoxFuture, Cluster, ClusterEvents, SingletonContext, SingletonFactory, SingletonHandle, StopToken, Target,
};
pub use error::{ConfigError, JoinError, JoinRejection, MemberError, StartError, Terminated};
pub use event::{ClusterEvent, Proof, diff};
pub use gossip::{Blockers, ConfirmedExits, Gossip, Merged};
pub use heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
pub use member::{Member, MemberStatus};
pub use message::{CheckedConfig, Message, PROTOCOL};
pub use phi::PhiAccrual;
pub use proof::{DIAL_SPACING, ProofEffect, ProofInput, Proofs};
pub use reachability::{Reachability, Record, Status};
pub use sbr::{Sbr, strategy};
pub use settings::{
    ClusterSettings, CoordinatedShutdownSettings, DownAllWhenUnstable, Downing, FailureDetectorSettings, ProofOfDeath,
    RemovalMargin, SbrSettings, SingletonSettings, Strategy, parse_seed_nodes,
};
pub use shutdown::{Phase, ShutdownReason};
pub use singleton::manager::{ManagerEffect, ManagerInput, ManagerState, SingletonManager};
pub use singleton::proxy::{ProxyEffect, SingletonProxy};
pub use singleton::{Kind, SingletonMessage};
pub use version::{Relation, VectorVersion};
pub use view::{MembershipView, Tombstone};
