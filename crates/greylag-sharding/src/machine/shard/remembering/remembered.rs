//! What is remembered of an entity, and how that changes in the store.

use crate::ids::EntityId;

/// The state of a remembered entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// Loaded, and not started here yet.
    NotStarted,
    /// The first message waits until the store knows that the entity is remembered.
    RememberingStart,
    /// The entity runs, or is being made or replaced.
    Active,
    /// The entity was asked to stop for good.
    Passivating,
    /// The entity stopped by itself or failed: it starts again.
    WaitingForRestart,
    /// The entity's end is being stored.
    RememberingStop,
}

/// A change of state that no rule allows: a bug of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid state change of remembered entity {id}: {from:?} to {to:?}")]
pub struct InvalidTransition {
    /// The entity.
    pub id: EntityId,
    /// Its state, which it keeps.
    pub from: Option<Remembered>,
    /// The requested state.
    pub to: Option<Remembered>,
}

/// The changes of one write: ids that start to be remembered, and ids that are forgotten. No id is in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreUpdate {
    /// Remembered from now on.
    pub starts: Vec<EntityId>,
    /// Forgotten from now on.
    pub stops: Vec<EntityId>,
}
