//! Asynchronous work of an entity: what reaches the entity while it waits for the work, and the work's result.

use std::any::Any;

/// The inputs that reach an entity that waits for asynchronous work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspension {
    /// None, before the work is done.
    Closed,
    /// A stop request, if no message waits before it: the work is of no use to an entity that ends.
    Stoppable,
}

/// The result of asynchronous work.
pub(crate) enum Resumption<M> {
    /// A message for [`super::HostedEntity::receive`].
    Message(M),
    /// A value for [`super::HostedEntity::on_resume`].
    Value(Box<dyn Any + Send>),
}
