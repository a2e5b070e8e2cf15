//! What the entity's tracker sends: deliveries just stored, and unconfirmed deliveries again.
//!
//! Source: persistence §2.3, §6.

use std::time::Instant;

use super::{Action, EntityCore, Failure, Phase, Signal, TrackerInput, guard};
use crate::behavior::EventSourced;

impl<B: EventSourced> EntityCore<B> {
    /// Passes an input to the tracker, if the behaviour has one. A warning of the tracker is queued with the waiting
    /// signals.
    ///
    /// # Errors
    /// The behaviour panicked; the caller fails the entity.
    pub(super) fn track(&mut self, now: Instant, input: TrackerInput) -> Result<(), Failure> {
        if self.settings.recovery.read_only {
            // A read-only entity may show an old state, and must not repeat the deliveries of that time.
            return Ok(());
        }
        let (behavior, state) = (&mut self.behavior, &mut self.state);
        let tracked = guard(|| {
            let mut tracked = behavior.tracker(state)?;
            let warning = tracked.handle(now, input);
            Some((warning, tracked.next_deadline()))
        });
        let tracked = tracked.map_err(|message| Failure::Handler { handler: "tracker", message })?;
        let (warning, redeliver_at) = tracked.unwrap_or_default();
        self.redeliver_at = redeliver_at;
        self.queued_signals.extend(warning.map(Signal::Unconfirmed));
        Ok(())
    }

    pub(super) fn redeliver(&mut self, now: Instant, out: &mut Vec<Action<B::Command>>) {
        if !matches!(self.phase, Phase::Running) || self.redeliver_at.is_none_or(|at| at > now) {
            return;
        }
        match self.track(now, TrackerInput::Tick) {
            Ok(()) => self.deliver_queued(now, out),
            Err(failure) => self.fail(now, failure, out),
        }
    }
}
