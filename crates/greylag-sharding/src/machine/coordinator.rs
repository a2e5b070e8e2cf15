//! Decides where each shard of one entity type lives.
//!
//! One coordinator runs per type, as a singleton on the oldest node; an *incarnation* chooses an epoch above all that
//! it can learn of, makes the epoch durable, and takes the inventory of what every node hosts before it allocates
//! anything. A shard is given to another region only with proof that no region has it. Nothing is announced before it
//! is durable, and every message is repeated until it is answered.
//!
//! ```text
//! Recovering --read--> commit epoch --(mode ddata: read again)--> Reconciling --inventory complete--> Active
//! Allocated(O, g) --BeginHandOff, acks--> HandOff --ShardStopped(g)--> Deallocated --> Allocated(N, g')
//! ```
//! The coordinator carries out the effects of its parts: `Nodes` (members, and the `Registry` of regions) and `Homes`,
//! which has a `Ledger` of homes, `Decisions` (allocation, rebalance), `HandOffs` under way, `Orders` that are repeated.
//!
//! Source: sharding §2.7 to §2.16, §9. Differs: as tagged `[D]` there.

mod config;
mod epoch_state;
mod homes;
mod machine;
mod moving;
mod nodes;
mod protocol;
mod reconcile;
pub mod replay;

pub use self::config::{CoordinatorConfig, CoordinatorState};
pub use self::machine::Coordinator;
pub use self::protocol::{
    CoordinatorEvent, Effect, HandOffPhase, Input, Meta, StateEvent, StopReason, StoredHome, StoredState,
};
