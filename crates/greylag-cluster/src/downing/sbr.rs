//! The split brain resolver: decides when to down members, and which.
//!
//! The resolver runs on every node, but only the leader of each side acts. A decision waits until nothing relevant has
//! changed for `stable_after`, so that both sides of a clean cut decide on the same picture. The rules of instability
//! also end a partition whose reachability never comes to rest. [`strategy`] computes the verdict, as a pure function
//! of the [`Picture`].
//!
//! Source: cluster S2 to S5, S11 to S13, S17.

mod lease;
mod picture;
mod relevant;
mod strategy;
mod unstable;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::downing::{DowningDecision, Verdict};
use crate::gossip::seen::Seen;
use crate::gossip::state::{ConfirmedExits, Gossip};
use crate::membership::member::{Member, MemberStatus};
use crate::settings::{DownAllWhenUnstable, SbrSettings, Strategy};
use crate::singleton::lease_outcome::LeaseOutcome;
use crate::testing::omissions::{Clause, Omissions};

use lease::{Answered, ResolverLease};
use picture::effective;
use relevant::{Changes, Relevant};
use unstable::Unstable;

pub(crate) use lease::LeaseRequest;
pub use picture::{Picture, Record, SeenBy, common_node};
pub use strategy::{AllBecause, Resolution, Ruling, decide, explain, resolve};
pub use why::Why;

/// The interval of checking the deadlines (cluster S4).
const TICK: Duration = Duration::from_secs(1);
/// An instability is ended early by the ordinary verdict only after this much quiet (cluster S13).
const QUIET_BEFORE_ORDINARY: Duration = Duration::from_secs(6);
/// How long the responsible node may take to resolve an instability before every node ends (cluster S13).
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);

/// The result of checking the deadlines.
enum Step {
    Decided(DowningDecision),
    /// The lease decides between the two sides.
    AskLease {
        ruling: Ruling,
        when: String,
        delay: Duration,
    },
}

/// The split brain resolver of one node.
#[derive(Debug)]
pub struct Sbr {
    node: UniqueAddress,
    settings: SbrSettings,
    gossip: Arc<Gossip>,
    relevant: Relevant,
    exits: ConfirmedExits,
    /// Whether this node is, or was, Up or WeaklyUp.
    was_up: bool,
    /// When nothing relevant will have changed for `stable_after`.
    stable_at: Instant,
    /// The same deadline, but not postponed by proofs of death: from then on a verdict against this very node is
    /// carried out (cluster S20).
    stable_for_self_at: Instant,
    /// Members that have seen the state at any time since the deadline was last reset.
    seen_since: Seen,
    /// Those of `seen_since` that have seen a state with all present accusations.
    seen_accused: Seen,
    unstable: Option<Unstable>,
    tick_at: Instant,
    lease: ResolverLease,
    omissions: Omissions,
}

impl Sbr {
    /// A resolver that knows of no member yet.
    pub fn new(node: UniqueAddress, settings: SbrSettings, now: Instant) -> Self {
        Self {
            stable_at: now + settings.stable_after,
            stable_for_self_at: now + settings.stable_after,
            node,
            settings,
            gossip: Arc::default(),
            relevant: Relevant::default(),
            exits: ConfirmedExits::new(),
            was_up: false,
            seen_since: Seen::default(),
            seen_accused: Seen::default(),
            unstable: None,
            tick_at: now,
            lease: ResolverLease::default(),
            omissions: Omissions::default(),
        }
    }

    /// Omits clauses, in simulations.
    pub(crate) fn omitting(mut self, omissions: Omissions) -> Self {
        self.omissions = omissions;
        if omissions.has(Clause::StableAfter) {
            self.settings.stable_after = Duration::ZERO;
        }
        self
    }

    /// Handles a new state of the membership.
    pub fn on_state(&mut self, now: Instant, gossip: &Arc<Gossip>, exits: &ConfirmedExits) {
        if self.lease.queue(gossip, exits) {
            return;
        }
        self.lease.on_state(now, gossip, self.release_after());
        let same = self.gossip.members == gossip.members && self.gossip.reachability == gossip.reachability;
        let news = (!same).then(|| {
            let new = Relevant::of(gossip, &self.node);
            let changes = new.changes_since(&self.relevant);
            if new.accuses_anew(&self.relevant) {
                self.seen_accused.clone_from(&gossip.seen);
            }
            self.relevant = new;
            changes
        });
        let changes = news.unwrap_or_default();
        self.gossip = gossip.clone();
        self.exits = exits.clone();
        // Use the number that only an Up member gets: gossip may have skipped the status.
        let own = self.gossip.members.get(&self.node);
        self.was_up |= own.is_some_and(|m| m.status == MemberStatus::WeaklyUp || m.up_number != Member::NOT_UP);
        if self.relevant.is_quiet() {
            // Start over with every state: the first accusation restarts the wait anyway.
            self.start_seen_over();
        } else {
            self.seen_since.union(&gossip.seen);
            self.seen_accused.union(&gossip.seen);
        }
        if changes.restarts {
            self.restart_wait(now);
        } else if changes.proven {
            self.stable_at = now + self.settings.stable_after;
        }
        self.measure(now, news);
    }

    fn restart_wait(&mut self, now: Instant) {
        self.stable_at = now + self.settings.stable_after;
        self.stable_for_self_at = self.stable_at;
        self.start_seen_over();
    }

    fn start_seen_over(&mut self) {
        self.seen_since.clone_from(&self.gossip.seen);
        self.seen_accused.clone_from(&self.gossip.seen);
    }

    /// Updates the measurement of instability. `changes`: `None` if only the members that have seen the state changed.
    /// Source: cluster S13.
    fn measure(&mut self, now: Instant, changes: Option<Changes>) {
        if self.relevant.open().next().is_none() {
            self.unstable = None;
            return;
        }
        if let (None, Some(unstable), false) = (changes, &mut self.unstable, self.relevant.is_mutual()) {
            return unstable.on_same(now);
        }
        let records = self.records();
        if self.unstable.is_none() {
            self.tick_at = now + TICK;
        }
        let unstable = self.unstable.get_or_insert_with(|| Unstable::new(now));
        unstable.on_state(now, changes.unwrap_or_default(), self.relevant.open(), records);
    }

    /// When the resolver next needs to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let tick = self.unstable.as_ref().filter(|_| !self.lease.is_waiting()).map(|_| self.tick_at);
        [tick, self.lease.next_deadline()].into_iter().flatten().min()
    }

    /// The lease request that is due now; call this after each decision step.
    pub(crate) fn lease_request(&mut self, now: Instant) -> Option<LeaseRequest> {
        self.lease.request(now)
    }

    /// Notes the outcome of a request for the lease.
    pub fn on_lease_outcome(&mut self, outcome: LeaseOutcome) {
        self.lease.on_outcome(outcome);
    }

    /// Notes that a held lease is lost.
    pub fn on_lease_lost(&mut self) {
        self.lease.on_lost();
    }

    fn release_after(&self) -> Duration {
        match self.settings.strategy {
            Strategy::LeaseMajority { release_after, .. } => release_after,
            _ => Duration::ZERO,
        }
    }

    /// The decision, if one is due. `held`: this node must not decide yet, because it woke from a pause or defers
    /// marks.
    pub fn decide(&mut self, now: Instant, held: bool) -> Option<DowningDecision> {
        if self.lease.is_waiting() {
            return if held { None } else { self.decide_by_lease(now) };
        }
        if self.unstable.is_none() || now < self.tick_at {
            return None;
        }
        self.tick_at = now + TICK;
        if held || self.own_status().is_none_or(|status| status == MemberStatus::Down) {
            return None;
        }
        let lasts_since = self.unstable.as_ref().map(|unstable| unstable.since);
        let too_early = |since: Instant| now < since + self.settings.stable_after && now < self.stable_for_self_at;
        if lasts_since.is_some_and(too_early) {
            return None;
        }
        let picture = self.picture();
        if !picture.has_anything_to_decide() {
            return None;
        }
        let step = self.stable_decision(now, &picture).or_else(|| self.unstable_decision(now, &picture))?;
        let decision = match step {
            Step::Decided(decision) => decision,
            Step::AskLease { ruling, when, delay } => {
                self.lease.wait(now, picture, ruling, when, delay);
                return None;
            }
        };
        self.after_decision(now, &decision);
        Some(decision)
    }

    fn after_decision(&mut self, now: Instant, decision: &DowningDecision) {
        self.restart_wait(now);
        self.unstable = None;
        if decision.downed.is_empty() {
            // Restart the measurement, so that a decision that downs no member is not repeated each tick.
            self.measure(now, Some(Changes::default()));
        }
    }

    /// Decides when the lease was granted, denied, or could not be requested. Source: cluster S10.
    fn decide_by_lease(&mut self, now: Instant) -> Option<DowningDecision> {
        let is_decided = self.is_decided_by_others();
        let Answered { picture, ruling, when, granted, queued } = self.lease.answered(now, is_decided)?;
        if is_decided {
            queued.iter().for_each(|(gossip, exits)| self.on_state(now, gossip, exits));
            return None;
        }
        let (verdict, which) = if granted {
            (ruling.verdict.granted(), "the lease was granted")
        } else {
            (ruling.verdict.denied(), "the lease was not to be had")
        };
        let decision = self.carry_out(&picture, &Ruling { verdict, ..ruling }, &format!("{when}, {which}"));
        self.lease.note_downed(&decision.downed);
        self.after_decision(now, &decision);
        self.lease.on_state(now, &self.gossip, self.release_after());
        for (gossip, exits) in queued {
            self.on_state(now, &gossip, &exits);
        }
        Some(decision)
    }

    /// Whether, while this node waited for the lease, it was downed itself, or all members that the lease would have
    /// let it down were. If members are indirectly connected, one side has two leaders, and only one of them gets the
    /// lease. The other one must not end the side that the first one kept.
    fn is_decided_by_others(&self) -> bool {
        let Some((picture, ruling, latest)) = self.lease.pending() else { return false };
        let gone = |address: &UniqueAddress| {
            latest.members.get(address).is_none_or(|member| member.status == MemberStatus::Down)
        };
        let limit = self.settings.down_all_when_indirectly_connected;
        let wanted = resolve(picture, &self.settings.strategy, ruling.verdict.granted(), limit).downed;
        gone(&self.node) || (!wanted.is_empty() && wanted.iter().all(gone))
    }

    /// The decision of a suspect node, which was away for so long that it may have been removed meanwhile. Such a node
    /// decides nothing about others, but carries out a verdict against itself on time: postponed by the whole of
    /// `stable_after`, the verdict would come after the winning side's margin (cluster F9, G1). If a lease decides, the
    /// node requests it; the effect of a grant waits until the node is trusted.
    pub fn decide_against_self(&mut self, now: Instant) -> Option<DowningDecision> {
        if self.lease.is_waiting() {
            let denied = self.lease.is_denied();
            return if denied { self.decide_by_lease(now).and_then(|decision| self.only_self(decision)) } else { None };
        }
        if self.unstable.is_none() || now < self.tick_at {
            return None;
        }
        self.tick_at = now + TICK;
        let picture = self.picture();
        let lives = self.own_status().is_some_and(|status| status != MemberStatus::Down);
        if !lives || !picture.has_anything_to_decide() {
            return None;
        }
        match self.stable_decision(now, &picture)? {
            Step::Decided(decision) => self.only_self(decision),
            Step::AskLease { ruling, when, delay } => {
                self.lease.wait(now, picture, ruling, when, delay);
                None
            }
        }
    }

    fn only_self(&self, decision: DowningDecision) -> Option<DowningDecision> {
        let downed = decision.downed.contains(&self.node).then(|| vec![self.node.clone()])?;
        Some(DowningDecision { verdict: Verdict::DownSelf, downed, ..decision })
    }

    /// Source: cluster S10, S13, S20.
    pub(crate) fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.stable_for_self_at <= self.stable_at, "a proof of death postpones no verdict against this node");
        if self.gossip.members.len() <= 16 {
            let is_since = self.seen_accused.iter().all(|member| self.seen_since.contains(member));
            assert!(is_since, "who has seen the present accusations has seen a state since the deadline was reset");
        }
        if let Some(unstable) = &self.unstable {
            assert!(self.relevant.open().next().is_some(), "an instability ends with its last open member");
            unstable.check_invariants();
        }
        self.lease.check_invariants();
    }

    fn own_status(&self) -> Option<MemberStatus> {
        self.gossip.members.get(&self.node).map(|member| member.status)
    }

    /// Source: cluster S2.
    fn is_responsible(&self) -> bool {
        self.was_up && self.gossip.leader(&self.node, None, &self.exits) == Some(&self.node)
    }

    /// Source: cluster S4.
    fn stable_decision(&self, now: Instant, picture: &Picture) -> Option<Step> {
        if !self.is_responsible() || now < self.stable_for_self_at {
            return None;
        }
        let step = self.ordinary(picture, &format!("nothing relevant changed for {:?}", self.settings.stable_after));
        // Not if the verdict waits for the lease: that may leave this node alive.
        let downs_self = matches!(&step, Step::Decided(decision) if decision.downed.contains(&self.node));
        (downs_self || now >= self.stable_at).then_some(step)
    }

    /// Source: cluster S13.
    fn unstable_decision(&self, now: Instant, picture: &Picture) -> Option<Step> {
        let stable_after = self.settings.stable_after;
        let patience = match self.settings.down_all_when_unstable {
            DownAllWhenUnstable::Off => return None,
            DownAllWhenUnstable::On => (stable_after * 3 / 4).max(Duration::from_secs(4)),
            DownAllWhenUnstable::After(patience) => patience,
        };
        let unstable = self.unstable.as_ref()?;
        let expires_at = unstable.since + stable_after + patience;
        if now < expires_at {
            return None;
        }
        let responsible = self.is_responsible();
        let lasted = now.saturating_duration_since(unstable.since).as_secs();
        if now < expires_at + RESOLVE_WITHIN {
            if let Some(sick) = common_node(&unstable.records_between(|address| self.word_counts(address))) {
                // A node that is merely out of reach is a side of its own and judges itself by the strategy, under
                // which it may be the side that survives. A node that is reached here and accuses the others is no
                // side.
                let is_away = picture.unreachable.contains(&sick) && !picture.indirectly_connected().contains(&sick);
                if sick != self.node && is_away {
                    let when = format!("for {lasted}s no member but {sick} became unreachable");
                    return responsible.then(|| self.ordinary(picture, &when));
                }
                let downed = picture.downable().filter(|address| **address == sick).cloned().collect();
                let reason = format!(
                    "reachability has kept changing for {lasted}s, and every accusation since then is by {sick} or \
                     against it: it is sick, and goes alone"
                );
                let verdict = Verdict::DownIndirectlyConnected;
                return responsible.then(|| Step::Decided(self.decision(picture, verdict, downed, reason)));
            }
            let quiet = now.saturating_duration_since(unstable.changed_at) >= QUIET_BEFORE_ORDINARY;
            // Void only the measured records; S11 uses all records as in any decision, those about Down members
            // included. A Down member that still hears this side can be one half of an indirect connection whose other
            // half no decision resolved. A verdict on half the picture can leave two sides, whereas downing all leaves
            // none.
            if !unstable.has_healed() && quiet && picture.indirectly_connected().is_empty() {
                let when = format!("more and more members became unreachable for {lasted}s, and none came back");
                return responsible.then(|| self.ordinary(picture, &when));
            }
        }
        let reason = format!(
            "reachability has kept changing for {lasted}s and cannot be told apart into sides, so no member can \
             know that it may live"
        );
        let verdict = if responsible { Verdict::DownAll } else { Verdict::DownSelf };
        Some(Step::Decided(self.decision(picture, verdict, picture.nodes_to_down(verdict), reason)))
    }

    /// Whether records by and about this member describe the network: it is neither dead nor Down. No member comes back
    /// from Down, so the check may wait until the records are judged.
    fn word_counts(&self, address: &UniqueAddress) -> bool {
        self.gossip.members.get(address).is_some_and(|member| !member.dead && member.status != MemberStatus::Down)
    }

    /// The verdict of the strategy. `when`: the reason for deciding now, in words.
    fn ordinary(&self, picture: &Picture, when: &str) -> Step {
        let ruling = decide(picture, &self.settings.strategy);
        match ruling.verdict.lease_delay() {
            Some(delay) => Step::AskLease { ruling, when: when.to_owned(), delay },
            None => Step::Decided(self.carry_out(picture, &ruling, when)),
        }
    }

    fn carry_out(&self, picture: &Picture, Ruling { verdict, why }: &Ruling, when: &str) -> DowningDecision {
        let limit = self.settings.down_all_when_indirectly_connected;
        let resolution = resolve(picture, &self.settings.strategy, *verdict, limit);
        let reason = format!("{when}, and {}", explain(picture, why, &resolution));
        self.decision(picture, resolution.verdict, resolution.downed, reason)
    }

    fn decision(
        &self,
        picture: &Picture,
        verdict: Verdict,
        downed: BTreeSet<UniqueAddress>,
        reason: String,
    ) -> DowningDecision {
        let (own, mut others): (Vec<_>, Vec<_>) = downed.into_iter().partition(|address| *address == self.node);
        others.extend(own);
        DowningDecision {
            strategy: self.settings.strategy.to_string(),
            verdict,
            downed: others,
            unreachable: picture.unreachable.clone(),
            counted: picture.counted(self.settings.strategy.role()).map(|member| member.address.clone()).collect(),
            indirectly_connected: picture.indirectly_connected(),
            reason,
        }
    }

    /// The records that [`Sbr::picture`] would hold.
    fn records(&self) -> BTreeSet<Record> {
        let records = self.relevant.records().collect();
        if !self.relevant.is_mutual() {
            return records;
        }
        effective(&self.node, records, |a| self.gossip.seen.contains(a), |a| self.seen_since.contains(a))
    }

    /// The grounds of a decision: members that are not proven dead, and the effective records.
    fn picture(&self) -> Picture {
        let members: BTreeMap<UniqueAddress, Member> = self
            .gossip
            .members
            .iter()
            .filter(|member| !member.dead)
            .map(|member| (member.address.clone(), member.clone()))
            .collect();
        let records = self.gossip.reachability.accusations().map(|(o, s, _)| (o.clone(), s.clone())).collect();
        let exits = self.exits.keys().cloned().collect();
        let (now, since, accused) = (&self.gossip.seen, &self.seen_since, &self.seen_accused);
        let seen_by = SeenBy { now: now.to_set(), since: since.to_set(), accused: accused.to_set() };
        let mut picture = Picture::new(self.node.clone(), members, records, seen_by, exits);
        picture.omissions = self.omissions;
        picture
    }
}

#[cfg(test)]
mod tests;
