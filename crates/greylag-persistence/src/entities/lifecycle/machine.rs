//! The interface of all entity machines to the hosts of this crate.

use std::time::Instant;

use super::input::{Action, EntityCall, Input};
use crate::contract::records::persistence_id::PersistenceId;
use crate::entities::context::background_work::{Work, WorkNo};

/// An entity machine, event-sourced or with a durable state.
pub(crate) trait Machine: Send + 'static {
    type Command: Send + 'static;
    /// The store calls that the machine asks for, and their answers.
    type Call: EntityCall + Send + 'static;
    type Answer: Send + 'static;

    fn handle(
        &mut self,
        now: Instant,
        input: Input<Self::Command, Self::Answer>,
        out: &mut Vec<Action<Self::Command, Self::Call>>,
    );

    fn next_deadline(&self) -> Option<Instant>;

    /// As `next_deadline`, without recurring deadlines (redeliveries, timers): `None` for a machine at rest.
    fn work_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn take_work(&mut self, no: WorkNo) -> Option<Work<Self::Command>>;

    fn take_waiting(&mut self) -> Vec<Self::Command>;

    /// How many commands wait, put aside or not yet handled.
    fn waiting_count(&self) -> usize;

    fn persistence_id(&self) -> &PersistenceId;
}
