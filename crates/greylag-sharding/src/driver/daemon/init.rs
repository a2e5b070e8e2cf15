//! What the factory of a daemon process is told about the worker that it makes.

use crate::entity::EntityInit;

/// The worker for which the factory of a daemon process is called.
#[derive(Debug, Clone)]
pub struct DaemonInit {
    /// Index of the worker, from 0.
    pub index: u32,
    /// The number of workers.
    pub count: u32,
    /// How often that number was changed.
    pub revision: u64,
    /// The worker as an entity.
    pub entity: EntityInit,
}
