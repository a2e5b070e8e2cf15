//! Permits: room that is set aside for one message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::entrance::OnDrop;
use super::producer::{Command, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::sharding_producer::DemandSets;

/// What the task says of a permit that it grants.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub(crate) permit: u64,
    pub(crate) current_seq_nr: SeqNr,
    pub(crate) confirmed_seq_nr: SeqNr,
    pub(crate) demand: DemandSets,
}

/// Room for one message to any entity, and what the producer knew when it was set aside. Using the permit consumes it;
/// dropped, the room goes to others.
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
    pub(super) producer: &'a ShardingProducer<T>,
    pub(super) granted: Granted,
    pub(super) release: OnDrop<Command<T>>,
}

impl<'a, T> ShardingRequestNext<'a, T> {
    pub(super) fn new(producer: &'a ShardingProducer<T>, granted: (Granted, OnDrop<Command<T>>)) -> Self {
        let (granted, release) = granted;
        Self { producer, granted, release }
    }

    /// The number that the next message gets, if nobody else sends before.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.granted.current_seq_nr
    }

    /// The highest confirmed number; lower ones may be unconfirmed.
    pub fn confirmed_seq_nr(&self) -> SeqNr {
        self.granted.confirmed_seq_nr
    }

    /// The entities that the producer knows and whose next message leaves at once.
    pub fn entities_with_demand(&self) -> BTreeSet<Arc<str>> {
        self.granted.demand.entities_with_demand()
    }

    /// Every other entity that the producer knows, with the number of messages that wait for its demand.
    pub fn buffered_for_entities_without_demand(&self) -> BTreeMap<Arc<str>, usize> {
        self.granted.demand.buffered_for_entities_without_demand()
    }

    /// Whether the entity's next message leaves at once; so it does for an entity that the producer does not know.
    pub fn has_demand(&self, entity: &str) -> bool {
        self.granted.demand.has_demand(entity)
    }
}

impl<T> fmt::Debug for ShardingRequestNext<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingRequestNext")
            .field("current_seq_nr", &self.granted.current_seq_nr)
            .field("confirmed_seq_nr", &self.granted.confirmed_seq_nr)
            .finish_non_exhaustive()
    }
}
