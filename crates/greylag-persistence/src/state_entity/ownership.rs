//! Chains of a durable state that persist nothing, held until a read of the store proves ownership.
//!
//! A state store has no claims. An answer is proved current if the stored revision is
//! still the one in memory: even a new owner of the state shows that same revision until it writes.
//! A write of this entity proves as much, since the write names the revision that it follows.
//! Source: persistence §10.5.

use std::time::Instant;

use greylag_core::EntityError;

use super::{DurableState, Out, Phase, StateCall, StateEntityCore};
use crate::behavior::{Failure, FencedBy};
use crate::effect::Chain;
use crate::error::{ReadError, StateWriteError};
use crate::state::StoredState;

impl<B: DurableState> StateEntityCore<B> {
    /// Holds a chain until a read of the store, or a write, proves that the state was still the newest
    /// when its command was handled.
    pub(super) fn hold_until_owned(&mut self, chain: Chain<B::State>, out: &mut Out<B>) {
        self.ownership.hold(chain);
        self.prove_held(out);
    }

    pub(super) fn prove_held(&mut self, out: &mut Out<B>) {
        if self.ownership.begin_check() {
            self.call(StateCall::Get { id: self.id.clone() }, out);
        }
    }

    pub(super) fn on_check(&mut self, now: Instant, row: Result<StoredState, ReadError>, out: &mut Out<B>) {
        let Some(through) = self.ownership.end_check() else { return };
        if !matches!(self.phase, Phase::Running) {
            // The write under way proves at least as much.
            return;
        }
        let head = match row {
            Ok(row) => row.head(),
            Err(_) => {
                self.ownership.retry_later(now);
                return self.stop_if_asked(out);
            }
        };
        if head.revision == self.revision && (self.generation.is_none() || head.generation <= self.generation) {
            if self.run_owned(through, out).is_ok() {
                self.prove_held(out);
                self.drain(now, out);
            }
        } else if self.own_writers.contains(&head.writer_uuid) {
            // A late duplicate of our own write: there is no other writer, so recover again.
            self.back_off(now, Failure::Write(StateWriteError::RevisionMismatch { current: head }), out);
            if matches!(self.phase, Phase::BackingOff { .. }) {
                self.restart_now(now, out);
            }
        } else {
            self.become_fenced(FencedBy::Revision(head), out);
        }
    }

    pub(super) fn retry_check(&mut self, now: Instant, out: &mut Out<B>) {
        if self.ownership.retry_is_due(now) && matches!(self.phase, Phase::Running) {
            self.prove_held(out);
        }
    }

    /// Runs the held chains up to number `through`.
    ///
    /// # Errors
    /// The answer for askers of later side effects, if the entity does not go on.
    pub(super) fn run_owned(&mut self, through: u64, out: &mut Out<B>) -> Result<(), EntityError> {
        while let Some(chain) = self.ownership.pop(through) {
            self.run_chain(chain, out)?;
        }
        if self.stop_after_chain {
            self.stop_now(out);
        }
        if matches!(self.phase, Phase::Stopped) { Err(EntityError::Stopped) } else { Ok(()) }
    }
}
