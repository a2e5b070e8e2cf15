//! The split brain resolver: when to decide, and for whom.
//!
//! It runs on every node, but only the leader of each side acts. A decision waits until nothing
//! relevant has changed for `stable_after`, so that both sides of a clean cut decide on the same
//! picture. A reachability that never comes to rest is ended too, by the rules of instability. What
//! is decided is computed by [`strategy`], a pure function of the [`Picture`].
//!
//! Source: cluster S2 to S5, S11 to S13, S17.

mod picture;
mod strategy;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::downing::{DowningDecision, Verdict};
use crate::gossip::{ConfirmedExits, Gossip};
use crate::member::{Member, MemberStatus};
use crate::sabotage::Sabotage;
use crate::settings::{DownAllWhenUnstable, SbrSettings};

pub use picture::{Picture, Record, common_node};
pub use strategy::{Ruling, decide, resolve};
pub use why::Why;

/// Between looks at the deadlines (cluster S4).
const TICK: Duration = Duration::from_secs(1);
/// An instability is cut short by the ordinary verdict only after so much quiet (cluster S13).
const QUIET_BEFORE_ORDINARY: Duration = Duration::from_secs(6);
/// What the responsible node resolves, it resolves by then, or every node ends (cluster S13).
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);

/// The measurement of S13.
#[derive(Debug)]
struct Unstable {
    since: Instant,
    changed_at: Instant,
    /// Something that was unreachable came back since then.
    healed: bool,
    /// Every effective record that existed since then.
    records: BTreeSet<Record>,
}

/// The split brain resolver of one node.
#[derive(Debug)]
pub struct Sbr {
    node: UniqueAddress,
    settings: SbrSettings,
    gossip: Arc<Gossip>,
    exits: ConfirmedExits,
    /// Whether this node is, or was, Up or WeaklyUp.
    was_up: bool,
    /// When nothing relevant changed for `stable_after`.
    stable_at: Instant,
    /// The same, but not put off by proofs of death: from then on a verdict against this very node
    /// is carried out (cluster S20).
    stable_for_self_at: Instant,
    /// Who has seen the state at any time since the deadline was last reset.
    seen_since: BTreeSet<UniqueAddress>,
    unstable: Option<Unstable>,
    tick_at: Instant,
    sabotage: Option<Sabotage>,
}

/// What of a state restarts the wait.
#[derive(Debug, PartialEq, Eq)]
struct Relevant {
    unreachable: BTreeSet<UniqueAddress>,
    statuses: BTreeMap<UniqueAddress, MemberStatus>,
    dead: BTreeSet<UniqueAddress>,
}

impl Relevant {
    fn of(gossip: &Gossip) -> Self {
        let living = |address: &UniqueAddress| gossip.members.get(address).is_some_and(|member| !member.dead);
        let down = |observer: &UniqueAddress| {
            gossip.members.get(observer).is_none_or(|member| member.dead || member.status == MemberStatus::Down)
        };
        let marks =
            gossip.reachability.accusations().filter(|(observer, subject, _)| !down(observer) && living(subject));
        Self {
            unreachable: marks.map(|(_, subject, _)| subject.clone()).collect(),
            statuses: gossip.members.iter().map(|(address, member)| (address.clone(), member.status)).collect(),
            dead: gossip.members.values().filter(|m| m.dead).map(|m| m.address.clone()).collect(),
        }
    }

    /// Members of `statuses` that newly are in `status`.
    fn newly(&self, old: &Self, status: MemberStatus) -> impl Iterator<Item = &UniqueAddress> {
        let is_new = move |(address, now): &(&UniqueAddress, &MemberStatus)| {
            **now == status && old.statuses.get(*address) != Some(&status)
        };
        self.statuses.iter().filter(is_new).map(|(address, _)| address)
    }
}

impl Sbr {
    /// A resolver that knows of nobody.
    pub fn new(node: UniqueAddress, settings: SbrSettings, now: Instant) -> Self {
        Self {
            stable_at: now + settings.stable_after,
            stable_for_self_at: now + settings.stable_after,
            node,
            settings,
            gossip: Arc::default(),
            exits: ConfirmedExits::new(),
            was_up: false,
            seen_since: BTreeSet::new(),
            unstable: None,
            tick_at: now,
            sabotage: None,
        }
    }

    /// The same without a clause. For simulations that prove their checkers.
    pub(crate) fn sabotaged(mut self, sabotage: Option<Sabotage>) -> Self {
        self.sabotage = sabotage;
        if sabotage == Some(Sabotage::StableAfter) {
            self.settings.stable_after = Duration::ZERO;
        }
        self
    }

    /// Takes a new state of the membership.
    pub fn on_state(&mut self, now: Instant, gossip: &Arc<Gossip>, exits: &ConfirmedExits) {
        let old = Relevant::of(&self.gossip);
        let new = Relevant::of(gossip);
        self.gossip = gossip.clone();
        self.exits = exits.clone();
        let own = self.gossip.members.get(&self.node).map(|member| member.status);
        self.was_up |= matches!(own, Some(MemberStatus::WeaklyUp | MemberStatus::Up));
        self.seen_since.extend(gossip.seen.iter().cloned());
        // Whoever was removed or proven dead is no news of the network.
        let still_here = |address: &&UniqueAddress| new.statuses.contains_key(*address) && !new.dead.contains(*address);
        let appeared = new.unreachable.difference(&old.unreachable).next().is_some();
        let healed = old.unreachable.difference(&new.unreachable).any(|address| still_here(&address));
        let downed = new.newly(&old, MemberStatus::Down).any(|address| !new.dead.contains(address));
        let proven = new.dead.difference(&old.dead).next().is_some();
        let up = new.newly(&old, MemberStatus::Up).next().is_some();
        let exited = new.newly(&old, MemberStatus::Exiting).next().is_some();
        if appeared || healed || downed || up || exited {
            self.restart_wait(now);
        } else if proven {
            self.stable_at = now + self.settings.stable_after;
        }
        self.measure(now, &new, appeared || healed, healed);
    }

    fn restart_wait(&mut self, now: Instant) {
        self.stable_at = now + self.settings.stable_after;
        self.stable_for_self_at = self.stable_at;
        self.seen_since = self.gossip.seen.clone();
    }

    fn measure(&mut self, now: Instant, new: &Relevant, changed: bool, healed: bool) {
        let open = |address: &UniqueAddress| new.statuses.get(address).is_some_and(|s| *s < MemberStatus::Exiting);
        if !new.unreachable.iter().any(open) {
            self.unstable = None;
            return;
        }
        let records = self.picture().records;
        let fresh = Unstable { since: now, changed_at: now, healed: false, records: BTreeSet::new() };
        let unstable = self.unstable.get_or_insert(fresh);
        if changed {
            unstable.changed_at = now;
            unstable.healed |= healed;
        }
        unstable.records.extend(records);
    }

    /// When the resolver next wants to be asked.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.unstable.as_ref().map(|_| self.tick_at)
    }

    /// The decision, if one is due. `held`: this node woke from a pause and must not decide yet.
    pub fn decide(&mut self, now: Instant, held: bool) -> Option<DowningDecision> {
        if self.unstable.is_none() || now < self.tick_at {
            return None;
        }
        self.tick_at = now + TICK;
        if held || self.own_status().is_none_or(|status| status == MemberStatus::Down) {
            return None;
        }
        let picture = self.picture();
        if !picture.has_anything_to_decide() {
            return None;
        }
        let decision = self.stable_decision(now, &picture).or_else(|| self.unstable_decision(now, &picture))?;
        self.restart_wait(now);
        self.unstable = None;
        if picture.has_anything_to_decide() && decision.downed.is_empty() {
            // A decision that downs nobody is not repeated each tick, but the measurement goes on.
            self.measure(now, &Relevant::of(&self.gossip.clone()), false, false);
        }
        Some(decision)
    }

    fn own_status(&self) -> Option<MemberStatus> {
        self.gossip.members.get(&self.node).map(|member| member.status)
    }

    /// Source: cluster S2.
    fn is_responsible(&self) -> bool {
        self.was_up && self.gossip.leader(&self.node, None, &self.exits) == Some(&self.node)
    }

    /// Source: cluster S4.
    fn stable_decision(&self, now: Instant, picture: &Picture) -> Option<DowningDecision> {
        if !self.is_responsible() || now < self.stable_for_self_at {
            return None;
        }
        let decision = self.ordinary(picture, "nothing changed for stable_after");
        let leaves_self_alive = !decision.downed.contains(&self.node);
        (!leaves_self_alive || now >= self.stable_at).then_some(decision)
    }

    /// Source: cluster S13.
    fn unstable_decision(&self, now: Instant, picture: &Picture) -> Option<DowningDecision> {
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
        if now < expires_at + RESOLVE_WITHIN {
            if let Some(sick) = common_node(&unstable.records) {
                let downed = picture.downable().filter(|address| **address == sick).cloned().collect();
                let reason = "reachability kept changing around one node";
                return responsible.then(|| self.decision(picture, Verdict::DownIndirectlyConnected, downed, reason));
            }
            let quiet = now.saturating_duration_since(unstable.changed_at) >= QUIET_BEFORE_ORDINARY;
            if !unstable.healed && quiet && picture.indirectly_connected().is_empty() {
                return responsible.then(|| self.ordinary(picture, "reachability came to rest late"));
            }
        }
        let reason = "reachability kept changing";
        Some(if responsible {
            self.decision(picture, Verdict::DownAll, picture.nodes_to_down(Verdict::DownAll), reason)
        } else {
            self.decision(picture, Verdict::DownSelf, picture.nodes_to_down(Verdict::DownSelf), reason)
        })
    }

    fn ordinary(&self, picture: &Picture, reason: &'static str) -> DowningDecision {
        let Ruling { verdict, why } = decide(picture, &self.settings.strategy);
        // Without a lease to ask for, the answer is that of a lease that could not be had (S10).
        let verdict = verdict.denied();
        let limit = self.settings.down_all_when_indirectly_connected;
        let (verdict, downed) = resolve(picture, &self.settings.strategy, verdict, limit);
        self.decision(picture, verdict, downed, &format!("{reason}: {why}"))
    }

    fn decision(
        &self,
        picture: &Picture,
        verdict: Verdict,
        downed: BTreeSet<UniqueAddress>,
        reason: &str,
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
            reason: reason.to_owned(),
        }
    }

    /// What the decision rests on: members that are not proven dead, and the effective records.
    fn picture(&self) -> Picture {
        let members: BTreeMap<UniqueAddress, Member> = self
            .gossip
            .members
            .iter()
            .filter(|(_, member)| !member.dead)
            .map(|(address, member)| (address.clone(), member.clone()))
            .collect();
        let records = self.gossip.reachability.accusations().map(|(o, s, _)| (o.clone(), s.clone())).collect();
        let exits = self.exits.keys().cloned().collect();
        let mut picture = Picture::new(self.node.clone(), members, records, &self.gossip.seen, &self.seen_since, exits);
        picture.without_recheck = self.sabotage == Some(Sabotage::Recheck);
        picture
    }
}

#[cfg(test)]
mod tests;
