//! The phases of an entity and its incarnations, from the permit to the end.
//!
//! A recovery under way and a write under way live in the phase itself, so none outlasts its phase. The permit to
//! recover is held from its request until the entity runs, or the incarnation ends.
//! Source: persistence §2.6, §11.

use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::input::{Action, Incarnation};
use super::restarts::Restarts;
use crate::contract::records::event::WriterUuid;
use crate::entities::settings::OnFailure;

/// The phase of an incarnation, with its recovery or write under way.
pub(crate) enum EntityPhase<R, W> {
    AwaitingPermit,
    Recovering(R),
    Running,
    Writing(W),
    BackingOff { until: Instant },
    Failed,
    Stopped,
}

/// The phase of an entity, its incarnation, and its failures across incarnations.
pub(crate) struct Phases<R, W> {
    phase: EntityPhase<R, W>,
    incarnation: Incarnation,
    restarts: Restarts,
    on_failure: OnFailure,
    /// Draws writer uuids and jitter.
    rng: ChaCha8Rng,
}

impl<R, W> Phases<R, W> {
    pub(crate) fn new(start: u64, seed: [u8; 32], on_failure: OnFailure) -> Self {
        Self {
            phase: EntityPhase::AwaitingPermit,
            incarnation: Incarnation { start, restart: 0 },
            restarts: Restarts::default(),
            on_failure,
            rng: ChaCha8Rng::from_seed(seed),
        }
    }

    pub(crate) fn phase(&self) -> &EntityPhase<R, W> {
        &self.phase
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, EntityPhase::Running)
    }

    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.phase, EntityPhase::Writing(_))
    }

    pub(crate) fn is_backing_off(&self) -> bool {
        matches!(self.phase, EntityPhase::BackingOff { .. })
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.phase, EntityPhase::Stopped)
    }

    /// The recovery under way.
    pub(crate) fn recovery(&self) -> Option<&R> {
        if let EntityPhase::Recovering(recovery) = &self.phase { Some(recovery) } else { None }
    }

    /// The recovery under way.
    pub(crate) fn recovery_mut(&mut self) -> Option<&mut R> {
        if let EntityPhase::Recovering(recovery) = &mut self.phase { Some(recovery) } else { None }
    }

    // ---- Recovery and writes --------------------------------------------------------------------

    /// Begins an incarnation, which first asks for a permit; returns the uuid of its writer.
    pub(crate) fn begin<C, Call>(&mut self, out: &mut Vec<Action<C, Call>>) -> WriterUuid {
        self.incarnation.restart += 1;
        self.phase = EntityPhase::AwaitingPermit;
        out.push(Action::RequestPermit(self.incarnation));
        WriterUuid::from_u128(self.rng.random::<u128>())
    }

    /// Whether recovery begins now. Returns a permit that this incarnation does not wait for, so that it does not leak.
    pub(crate) fn on_permit<C, Call>(&mut self, granted: Incarnation, out: &mut Vec<Action<C, Call>>) -> bool {
        let awaited = granted == self.incarnation && matches!(self.phase, EntityPhase::AwaitingPermit);
        if !awaited {
            out.push(Action::ReturnPermit(granted));
        }
        awaited
    }

    pub(crate) fn begin_recovery(&mut self, recovery: R) {
        self.phase = EntityPhase::Recovering(recovery);
    }

    /// The recovery has ended: the entity runs, and needs its permit no longer.
    pub(crate) fn on_recovered<C, Call>(&mut self, out: &mut Vec<Action<C, Call>>) {
        self.phase = EntityPhase::Running;
        out.push(Action::ReturnPermit(self.incarnation));
    }

    pub(crate) fn begin_write(&mut self, write: W) {
        self.phase = EntityPhase::Writing(write);
    }

    /// Takes the write that was answered, and runs on; `None` if no write is under way.
    pub(crate) fn end_write(&mut self) -> Option<W> {
        match std::mem::replace(&mut self.phase, EntityPhase::Running) {
            EntityPhase::Writing(write) => Some(write),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Notes a successful write of the entity.
    pub(crate) fn note_stored(&mut self) {
        self.restarts.note_stored();
    }

    // ---- Ends -----------------------------------------------------------------------------------

    /// Ends the phase: returns the permit if it is held, and takes the write under way. The entity counts as failed
    /// until the caller stops it or begins its back-off.
    pub(crate) fn end<C, Call>(&mut self, out: &mut Vec<Action<C, Call>>) -> Option<W> {
        match std::mem::replace(&mut self.phase, EntityPhase::Failed) {
            EntityPhase::AwaitingPermit | EntityPhase::Recovering(_) => {
                out.push(Action::ReturnPermit(self.incarnation));
            }
            EntityPhase::Writing(write) => return Some(write),
            EntityPhase::Running | EntityPhase::BackingOff { .. } | EntityPhase::Failed | EntityPhase::Stopped => {}
        }
        None
    }

    pub(crate) fn stop(&mut self) {
        self.phase = EntityPhase::Stopped;
    }

    pub(crate) fn back_off(&mut self, until: Instant) {
        self.phase = EntityPhase::BackingOff { until };
    }

    /// When to recover again after a failure of recovery or write; `None` if the host decides what follows.
    pub(crate) fn next_attempt(&mut self, now: Instant) -> Option<Instant> {
        let OnFailure::RestartBackoff(backoff) = self.on_failure else { return None };
        Some(now + self.restarts.wait(now, backoff, self.rng.random::<f64>()))
    }

    /// Whether `max` restarts a minute allow one more, after a rejected append.
    pub(crate) fn allow_rejected(&mut self, now: Instant, max: u32) -> bool {
        self.restarts.allow_rejected(now, max)
    }

    /// End of the back-off.
    pub(crate) fn back_off_until(&self) -> Option<Instant> {
        if let EntityPhase::BackingOff { until } = self.phase { Some(until) } else { None }
    }

    /// Whether the back-off is over.
    pub(crate) fn has_backed_off(&self, now: Instant) -> bool {
        self.back_off_until().is_some_and(|until| until <= now)
    }

    /// Shortens the back-off, since the store answers again.
    pub(crate) fn on_store_back(&mut self, now: Instant) {
        if let EntityPhase::BackingOff { until } = &mut self.phase {
            *until = self.restarts.shorten_backoff(now, *until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contract::settings::Backoff;

    type Out = Vec<Action<(), ()>>;

    fn phases(on_failure: OnFailure) -> Phases<&'static str, &'static str> {
        Phases::new(7, [1; 32], on_failure)
    }

    fn incarnation(restart: u32) -> Incarnation {
        Incarnation { start: 7, restart }
    }

    #[test]
    fn a_permit_is_returned_once_when_the_entity_runs_or_ends() {
        let (mut phases, mut out) = (phases(OnFailure::Stop), Out::new());
        let first = phases.begin(&mut out);
        assert!(!phases.on_permit(incarnation(9), &mut out), "of another incarnation");
        assert!(phases.on_permit(incarnation(1), &mut out));
        phases.begin_recovery("reading");
        assert!(!phases.on_permit(incarnation(1), &mut out), "granted twice");
        phases.on_recovered(&mut out);
        assert_eq!(phases.end(&mut out), None);
        let returned = |restart| Action::ReturnPermit(incarnation(restart));
        assert_eq!(out, [Action::RequestPermit(incarnation(1)), returned(9), returned(1), returned(1)]);
        out.clear();
        assert_ne!(phases.begin(&mut out), first, "a new writer");
        phases.begin_recovery("reading");
        assert_eq!(phases.end(&mut out), None);
        assert_eq!(out, [Action::RequestPermit(incarnation(2)), returned(2)]);
    }

    #[test]
    fn a_write_is_taken_by_its_answer_or_by_the_end() {
        let (mut phases, mut out) = (phases(OnFailure::Stop), Out::new());
        phases.on_recovered(&mut out);
        assert_eq!(phases.end_write(), None);
        phases.begin_write("first");
        assert_eq!((phases.end_write(), phases.is_running()), (Some("first"), true));
        phases.begin_write("second");
        assert_eq!((phases.end(&mut out), phases.is_running()), (Some("second"), false));
    }

    #[test]
    fn only_a_back_off_is_shortened_and_ends() {
        let now = Instant::now();
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(1), jitter: 0.0 };
        let mut phases = phases(OnFailure::RestartBackoff(backoff));
        phases.on_store_back(now);
        assert!(!phases.has_backed_off(now));
        let until = phases.next_attempt(now).unwrap();
        assert_eq!(until, now + backoff.min);
        phases.back_off(until);
        assert!(!phases.has_backed_off(now) && phases.has_backed_off(until));
        phases.on_store_back(now);
        assert!(phases.has_backed_off(now));
    }
}
