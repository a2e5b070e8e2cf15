//! What the entity's tracker sends: deliveries just stored, and unconfirmed deliveries again.
//!
//! Source: persistence §2.3, §6.

use std::time::Instant;

use crate::entities::behavior::chain::guard;
use crate::entities::behavior::event_sourced::EventSourced;
use crate::entities::behavior::failure::Failure;
use crate::entities::behavior::signal::Signal;
use crate::entities::tracker::TrackerInput;

/// The unconfirmed deliveries of a running entity; the tracker itself is a part of the state.
#[derive(Default)]
pub(super) struct Deliveries {
    /// When the tracker next sends unconfirmed deliveries again; set while the entity runs.
    redeliver_at: Option<Instant>,
}

impl Deliveries {
    /// Passes an input to the tracker, if the behaviour has one; returns its warning.
    ///
    /// # Errors
    /// The behaviour panicked; the caller fails the entity.
    pub(super) fn track<B: EventSourced>(
        &mut self,
        now: Instant,
        behavior: &mut B,
        state: &mut B::State,
        input: TrackerInput,
    ) -> Result<Option<Signal>, Failure> {
        let tracked = guard(|| {
            let mut tracked = behavior.tracker(state)?;
            let warning = tracked.handle(now, input);
            Some((warning, tracked.next_deadline()))
        });
        let tracked = tracked.map_err(|message| Failure::Handler { handler: "tracker", message })?;
        let (warning, redeliver_at) = tracked.unwrap_or_default();
        self.redeliver_at = redeliver_at;
        Ok(warning.map(Signal::Unconfirmed))
    }

    /// When the tracker next sends deliveries again.
    pub(super) fn redeliver_at(&self) -> Option<Instant> {
        self.redeliver_at
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.redeliver_at.is_some_and(|at| at <= now)
    }

    /// Ends with the incarnation.
    pub(super) fn end(&mut self) {
        self.redeliver_at = None;
    }
}
