//! Sends to entities by their ids: finds the shard of each, and whether messages to it stay on this node.

use std::sync::Arc;

use super::entity::Entity;
use crate::driver::region::Downstream;
use crate::driver::sending::{OutgoingMessage, Sending};
use crate::error::SendError;

/// See the module's documentation. Clones are of the same producer.
pub(super) struct EntitySender<T> {
    sending: Sending<T, Entity>,
    downstream: Arc<dyn Downstream<T>>,
}

impl<T> EntitySender<T> {
    pub(super) fn new(sending: Sending<T, Entity>, downstream: Arc<dyn Downstream<T>>) -> Self {
        Self { sending, downstream }
    }

    pub(super) fn sending(&self) -> &Sending<T, Entity> {
        &self.sending
    }

    /// A sender that supersedes all earlier ones (P13).
    pub(super) fn start_again(&self) -> Self {
        Self { sending: self.sending.start_again(), downstream: self.downstream.clone() }
    }

    /// The address of an entity. An invalid id is refused, and the error returns the message.
    pub(super) fn address(&self, id: Arc<str>, message: T) -> Result<(Entity, T), SendError<T>> {
        let shard = match self.downstream.shard_of(&id) {
            Ok(shard) => shard,
            Err(reason) => return Err(SendError::InvalidEntity { message, id: id.to_string(), reason }),
        };
        let stays = self.downstream.home_of(&shard).is_none_or(|home| home.hands_over);
        Ok((Entity { id, shard, stays }, message))
    }
}

impl<T: Send + Sync + 'static> EntitySender<T> {
    /// Encodes the message and adds the address.
    pub(super) fn prepare(
        &self,
        entity: Arc<str>,
        message: T,
        ack: bool,
    ) -> Result<OutgoingMessage<T, Entity>, SendError<T>> {
        let (entity, message) = self.address(entity, message)?;
        self.sending.prepare(entity, message, ack)
    }
}

impl<T> Clone for EntitySender<T> {
    fn clone(&self) -> Self {
        Self::new(self.sending.clone(), self.downstream.clone())
    }
}
