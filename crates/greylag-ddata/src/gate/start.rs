//! The start after a full stop of the cluster. One member makes it: the first in order, once it has heard all members.
//! Source: ddata Z11.

use greylag_core::UniqueAddress;

use super::members::MemberStanding;
use super::starts::{Start, Starts};
use super::{Gate, GateEffect, GateState, Moment};
use crate::api::settings::omissions::Clause;

impl Gate {
    /// Makes the start if it falls to this replicator.
    pub(super) fn consider_start(&mut self, at: Moment, out: &mut Vec<GateEffect>) {
        if !self.takes_part() {
            return;
        }
        if self.is_current && self.asking.next_at.is_none() && self.members.awaited().next().is_some() {
            // Ask all, as if not current: a closed store does not know this replicator's start.
            self.ask_all(at, out);
        }
        if let Some(base) = self.start_to_make(at.wall_ms) {
            self.make_start(at, base, out);
        }
    }

    /// Whether this replicator may make the start. A replicator that is current by the start of a new history may, as
    /// long as a closed store does not know that start.
    fn takes_part(&self) -> bool {
        if self.state == GateState::Refused || !self.place.is_loaded {
            return false;
        }
        let Some(latest) = self.starts.latest().filter(|_| self.is_current) else { return !self.is_current };
        let is_ignorant = |member: &MemberStanding| member.is_closed() && !member.starts.contains(latest);
        latest.base.is_none() && self.members.unrefused().any(is_ignorant)
    }

    /// The base of the start that this replicator must make now; `None` if it makes none.
    fn start_to_make(&self, wall_ms: i64) -> Option<Option<i64>> {
        if !self.place.is_voter || !self.place.unmet.is_empty() || self.members.is_empty() {
            return None;
        }
        if self.members.awaited().next().is_some() {
            return None;
        }
        let own = self.own_standing(wall_ms);
        if self.omits(Clause::EveryStart) && own.is_closed() {
            return Some(Some(own.time()));
        }
        let others: Vec<&MemberStanding> = self.members.unrefused().collect();
        let is_led = |other: &&MemberStanding| match self.is_current {
            true => other.is_current && !other.is_current_without_base(),
            false => other.is_current_for(&self.starts),
        };
        let any_closed = own.is_closed() || others.iter().any(|other| other.is_closed());
        let is_made = |starts: &Starts| starts.iter().any(|start| is_made_by(&others, start, any_closed));
        if others.iter().any(is_led) || is_made(&self.starts) || others.iter().any(|other| is_made(&other.starts)) {
            return None;
        }
        if self.members.any_came_before() || first(&own, &others) != Some(&own) {
            return None;
        }
        let knows_none = own.starts.is_empty() && others.iter().all(|other| other.starts.is_empty());
        Some((any_closed || !knows_none).then(|| own.time()))
    }

    pub(super) fn make_start(&mut self, at: Moment, base: Option<i64>, out: &mut Vec<GateEffect>) {
        let base = base.map(|base| self.starts.unused_base(self.own, base));
        self.starts.push(Start { maker: self.own, base });
        self.is_current = true;
        if self.is_closed() {
            self.open(self.synced_at.unwrap_or(i64::MIN), out);
        } else {
            out.push(GateEffect::TookOver);
        }
        self.ask_all(at, out);
    }

    /// Whether a member comes before this replicator in order, by their present standings.
    pub(super) fn is_preceded_by(&self, other: &MemberStanding, wall_ms: i64) -> bool {
        let own = self.own_standing(wall_ms);
        !other.is_refused() && first(&own, &[other]) == Some(other)
    }

    /// The member that a closed gate waits for once it has heard all members: a current one, or the first in order.
    pub(super) fn ahead(&self, wall_ms: i64) -> Vec<UniqueAddress> {
        let own = self.own_standing(wall_ms);
        let others: Vec<&MemberStanding> = self.members.unrefused().collect();
        let leader = others.iter().find(|other| other.is_current_for(&self.starts)).copied();
        let Some(ahead) = leader.or_else(|| first(&own, &others)) else { return Vec::new() };
        let is_it = |member: &&UniqueAddress| self.members.standing_of(member) == Some(ahead);
        self.members.addresses().filter(is_it).cloned().collect()
    }
}

/// Whether a known member made a start that this replicator may be about to hear of. A maker that is not current and
/// knows the start made it in an earlier life.
fn is_made_by(others: &[&MemberStanding], start: &Start, any_closed: bool) -> bool {
    let maker = others.iter().find(|other| other.replica == start.maker);
    let is_of_this_life = maker.is_some_and(|maker| maker.is_current || !maker.starts.contains(start));
    is_of_this_life && (start.base.is_some() || !any_closed)
}

/// The first in order among this replicator and others.
fn first<'a>(own: &'a MemberStanding, others: &[&'a MemberStanding]) -> Option<&'a MemberStanding> {
    let all: Vec<&MemberStanding> = others.iter().copied().chain([own]).collect();
    let least = |among: Vec<&'a MemberStanding>| among.into_iter().min_by_key(|member| member.rank());
    if !all.iter().any(|member| member.is_closed()) {
        return least(all);
    }
    let compared: Vec<&MemberStanding> = all.iter().copied().filter(|member| !member.is_passed_over()).collect();
    if compared.is_empty() {
        least(all.into_iter().filter(|member| member.is_closed()).collect())
    } else {
        least(compared)
    }
}
