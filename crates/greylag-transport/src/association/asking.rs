//! Measures against a process at an address that a member holds: the address is dialled anew, and listeners hear of the
//! claimant.
//!
//! Source: cluster T15, M25.

use std::time::Instant;

use greylag_core::{Uid, UniqueAddress};

use super::{Association, Effect, Event, LanePhase};
use crate::lanes::lane::Lane;

impl Association {
    /// Dials the address anew: the process that listens there names itself. An open control stream stays, since
    /// messages under way in it would be lost; the lane for large messages, which is mostly at rest, is dialled in its
    /// stead. If that lane is open too, it is doubled only if `even_if_open`.
    pub(super) fn ask(&mut self, now: Instant, even_if_open: bool, out: &mut Vec<Effect>) {
        let rests = |phase| matches!(phase, LanePhase::Idle | LanePhase::Waiting { .. });
        let lane = match (self.lane(Lane::CONTROL), self.lane(Lane::LARGE)) {
            (control, _) if rests(control) => Lane::CONTROL,
            // A dial is under way already.
            (LanePhase::Dialing { .. }, _) | (_, LanePhase::Dialing { .. }) => return,
            (_, large) if rests(large) || even_if_open => Lane::LARGE,
            _ => return,
        };
        if self.is_shut_down || !self.claims.may_ask(now) {
            return;
        }
        match self.lane(lane) {
            LanePhase::Active { .. } => self.on_duplicate(lane, out),
            phase if rests(phase) => self.dial(lane, out),
            _ => {}
        }
    }

    pub(super) fn tell_held(&mut self, now: Instant, holder: UniqueAddress, claimant: Uid, out: &mut Vec<Effect>) {
        if self.claims.may_tell(now) {
            out.push(Effect::Publish(Event::AddressHeld { holder, claimant }));
        }
    }
}
