//! What a shard's task is told besides messages.

use std::collections::BTreeSet;

use tokio::sync::oneshot;

use crate::driver::remember::LoadError;
use crate::host::Resumption;
use crate::ids::EntityId;
use crate::machine::shard::{EntityScan, SlotId};
use crate::remember::RememberError;

/// Inputs of a shard's task besides messages.
pub(crate) enum Control<M> {
    /// Asynchronous work of an entity is done.
    Resumed { slot: SlotId, incarnation: u64, resumption: Resumption<M>, suspension: bool },
    /// The future of a suspension panicked.
    Broken { slot: SlotId, incarnation: u64, reason: String },
    /// A message to one incarnation.
    Direct { instance: u64, message: M, size: u32 },
    /// The stop marker, behind everything in the inbox.
    Stop,
    /// End everything now.
    Kill,
    /// The shard's lease is lost, for this reason: end everything now.
    LeaseLost(String),
    /// Keep so many entities active (this shard's part of the limit).
    Limit(usize),
    /// No handler runs until `Release`.
    Hold,
    /// Handlers run again.
    Release,
    /// Count the entities.
    Count(EntityScan, oneshot::Sender<EntityScan>),
    /// The result of loading the remembered entities.
    Loaded(Result<BTreeSet<EntityId>, LoadError>),
    /// The result of a write to the store of remembered entities.
    Stored { number: u64, result: Result<(), RememberError> },
    /// Remembered entities that live in other shards.
    Moved(Vec<EntityId>),
}
