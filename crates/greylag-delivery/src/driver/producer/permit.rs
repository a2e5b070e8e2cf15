//! Permits: reserved room for one message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::entity::Entity;
use super::entity_sender::EntitySender;
use crate::driver::sending::{Granted, Permit, Sent};
use crate::error::SendError;
use crate::ids::SeqNr;

/// Room for one message to any entity, with the producer's numbers and demand at the time of the reservation. Using the
/// permit consumes it; dropping the permit gives the room to other senders.
///
/// ```no_run
/// # async fn sell(producer: &greylag_delivery::ShardingProducer<i64>) -> Result<(), Box<dyn std::error::Error>> {
/// let next = producer.request_next().await?;
/// // Who could take a message at once? Entities that the producer does not know could, too.
/// let customer = next.entities_with_demand().first().cloned().unwrap_or_else(|| "alice".into());
/// let sent = next.send(customer, 100)?;
/// # drop(sent);
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery S4.
pub struct ShardingRequestNext<'a, T> {
    sender: &'a EntitySender<T>,
    permit: Permit<T, Entity>,
}

impl<'a, T> ShardingRequestNext<'a, T> {
    pub(super) fn new(sender: &'a EntitySender<T>, permit: Permit<T, Entity>) -> Self {
        Self { sender, permit }
    }

    fn granted(&self) -> &Granted<Entity> {
        &self.permit.granted
    }

    /// The number that the next message gets, unless another sender comes first.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.granted().current_seq_nr
    }

    /// The highest confirmed number; lower ones may be unconfirmed.
    pub fn confirmed_seq_nr(&self) -> SeqNr {
        self.granted().confirmed_seq_nr
    }

    /// The entities with demand: a message to one of them is sent at once.
    pub fn entities_with_demand(&self) -> BTreeSet<Arc<str>> {
        self.granted().demand.entities_with_demand()
    }

    /// Every entity without demand that the producer knows, with the number of messages that wait for demand.
    pub fn buffered_for_entities_without_demand(&self) -> BTreeMap<Arc<str>, usize> {
        self.granted().demand.buffered_for_entities_without_demand()
    }

    /// Whether a message to this entity is sent at once; true for an entity that the producer does not know.
    pub fn has_demand(&self, entity: &str) -> bool {
        self.granted().demand.has_demand(entity)
    }
}

impl<T: Send + Sync + 'static> ShardingRequestNext<'_, T> {
    /// Sends a message in the reserved room, without waiting. The number is known when the message is accepted, see
    /// [`Sent::seq_nr`]; other messages for the same entity may be ahead of it.
    ///
    /// # Errors
    /// [`SendError`] with the message; the room is given back, so another permit is needed.
    pub fn send(self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, SendError<T>> {
        let outgoing = self.sender.prepare(entity.into(), message, false)?;
        self.sender.sending().redeem(self.permit, outgoing)
    }

    /// As [`send`](Self::send), but waits until the message is stored if the producer is durable, and otherwise until
    /// its entity has confirmed it.
    ///
    /// # Errors
    /// As [`ShardingProducer::ask`](crate::ShardingProducer::ask).
    pub async fn ask(self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        let (entity, message) = self.sender.address(entity.into(), message)?;
        self.sender.sending().ask_with_permit(self.permit, entity, message).await
    }
}

impl<T> fmt::Debug for ShardingRequestNext<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingRequestNext")
            .field("current_seq_nr", &self.granted().current_seq_nr)
            .field("confirmed_seq_nr", &self.granted().confirmed_seq_nr)
            .finish_non_exhaustive()
    }
}
