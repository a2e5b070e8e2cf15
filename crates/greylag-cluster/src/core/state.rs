//! The state that this node gossips, the view that it shows of that state, and the exits that members have confirmed.
//!
//! The gossip is replaced as a whole. [`State::refresh`] then derives the view, and says what has changed in it; where
//! only the members that have seen the state differ, the rest is taken from the view before.

use std::sync::Arc;

use greylag_core::{NodeAddress, UniqueAddress};

use super::{Effect, LogLevel};
use crate::gossip::reachability::{Reachability, Status};
use crate::gossip::shared::Shared;
use crate::gossip::state::{Blockers, ConfirmedExits, Gossip};
use crate::membership::event::{ClusterEvent, diff};
use crate::membership::member::{Member, MemberStatus};
use crate::membership::message::Island;
use crate::membership::view::MembershipView;
use crate::settings::ProofOfDeath;

/// This node's knowledge of the cluster.
#[derive(Debug)]
pub(super) struct State {
    node: UniqueAddress,
    gossip: Arc<Gossip>,
    view: Arc<MembershipView>,
    /// The table that was last published to subscribers.
    shown_reachability: Shared<Reachability>,
    /// The confirmed exits when the view was made.
    shown_exits: ConfirmedExits,
    exits: ConfirmedExits,
    /// Confirmed exits of members that are not Exiting yet in this node's view (cluster M26).
    early_exits: ConfirmedExits,
}

/// A new view, and its difference from the view before.
#[derive(Debug)]
pub(super) struct Change {
    /// The view before.
    pub(super) old: Arc<MembershipView>,
    /// The events that lead from the view before to the new one.
    pub(super) events: Vec<ClusterEvent>,
    /// Whether no more has changed than which members have seen the state.
    pub(super) only_seen: bool,
    /// Whether the table of reachability differs from the one that was last published.
    pub(super) reachability_changed: bool,
}

impl State {
    /// The state of a node that knows no member.
    pub(super) fn new(node: UniqueAddress) -> Self {
        Self {
            gossip: Arc::default(),
            view: Arc::new(MembershipView::empty(node.clone())),
            shown_reachability: Shared::default(),
            shown_exits: ConfirmedExits::new(),
            exits: ConfirmedExits::new(),
            early_exits: ConfirmedExits::new(),
            node,
        }
    }

    /// The address of this process.
    pub(super) fn node(&self) -> &UniqueAddress {
        &self.node
    }

    /// The state that this node gossips.
    pub(super) fn gossip(&self) -> &Arc<Gossip> {
        &self.gossip
    }

    /// The view that this node shows.
    pub(super) fn view(&self) -> &Arc<MembershipView> {
        &self.view
    }

    /// The confirmed exits of members that are Exiting.
    pub(super) fn exits(&self) -> &ConfirmedExits {
        &self.exits
    }

    // --- questions ------------------------------------------------------------------------------

    pub(super) fn is_member(&self, peer: &UniqueAddress) -> bool {
        self.gossip.members.contains_key(peer)
    }

    /// Whether this node itself finds `peer` reachable, whatever other members find.
    pub(super) fn finds_reachable(&self, peer: &UniqueAddress) -> bool {
        self.gossip.reachability.status(&self.node, peer) == Status::Reachable
    }

    /// Whether this node leads the cluster.
    pub(super) fn leads(&self) -> bool {
        self.view.leader.as_ref() == Some(&self.node)
    }

    /// Whether the whole cluster is about to shut down. Source: cluster M30.
    pub(super) fn prepares_shutdown(&self) -> bool {
        self.gossip.members.summary().any_preparing
    }

    /// Whether a proven death awaits its removal.
    pub(super) fn is_urgent(&self) -> bool {
        self.gossip.members.summary().any_dead
    }

    /// Whether this node is Exiting or further, or no member.
    pub(super) fn is_leaving_for_good(&self) -> bool {
        self.view.self_status().is_none_or(|status| status >= MemberStatus::Exiting)
    }

    /// Whether no other living member is left that could have removed this node.
    pub(super) fn is_alone(&self) -> bool {
        self.gossip.members.values().all(|member| member.address == self.node || member.dead)
    }

    pub(super) fn has_confirmed_exit(&self, peer: &UniqueAddress) -> bool {
        self.exits.contains_key(peer) || self.early_exits.contains_key(peer)
    }

    /// The members at an address.
    pub(super) fn members_at<'a>(&'a self, address: &'a NodeAddress) -> impl Iterator<Item = &'a Member> {
        self.gossip.members.values().filter(move |member| member.address.address() == address)
    }

    /// The member at the address of `peer` that `peer`, which is no member itself, cannot have replaced.
    pub(super) fn holder_against(
        &self,
        peer: &UniqueAddress,
        host_id: Option<&str>,
        policy: ProofOfDeath,
    ) -> Option<UniqueAddress> {
        let mut there = self.members_at(peer.address());
        let holder = there.find(|member| !policy.replacers(member.host_id.as_ref()).include(host_id));
        holder.map(|member| member.address.clone())
    }

    /// The conditions that keep the leader from acting; `None` if it may act.
    pub(super) fn blockers(&self) -> Option<Blockers> {
        self.gossip.blockers(&self.node, &self.exits)
    }

    /// The two members that would lead next without this node.
    pub(super) fn next_leaders(&self) -> Vec<UniqueAddress> {
        let mut exits = self.exits.clone();
        exits.insert(self.node.clone(), true);
        let mut leaders = Vec::new();
        while leaders.len() < 2 {
            let Some(leader) = self.gossip.leader(&self.node, None, &exits).cloned() else { break };
            exits.insert(leader.clone(), true);
            leaders.push(leader);
        }
        leaders
    }

    /// This cluster, as told to other clusters.
    pub(super) fn island(&self) -> Island {
        let size = u32::try_from(self.gossip.members.len()).unwrap_or(u32::MAX);
        Island { cluster_id: self.gossip.cluster_id, size }
    }

    // --- changes --------------------------------------------------------------------------------

    /// Undoes status steps from this state to `gossip` that cluster M2 does not allow: each is a bug of this node.
    pub(super) fn undo_illegal_steps(&self, gossip: &mut Gossip, out: &mut Vec<Effect>) {
        let illegal = |pair| match pair {
            (Some(before), Some(after)) => {
                let (before, after): (&Member, &Member) = (before, after);
                let wrong = before.status != after.status && !before.status.may_become(after.status);
                wrong.then(|| (before.clone(), after.status))
            }
            _ => None,
        };
        let illegal: Vec<(Member, MemberStatus)> =
            self.gossip.members.differences(&gossip.members).filter_map(illegal).collect();
        for (before, after) in illegal {
            debug_assert!(false, "{} from {} to {after}", before.address, before.status);
            let text = format!("{} does not go from {} to {after}: a bug", before.address, before.status);
            out.push(Effect::Log(LogLevel::Error, text));
            gossip.members.insert(before);
        }
    }

    /// Replaces the gossip; the view follows with [`Self::refresh`].
    pub(super) fn replace(&mut self, mut gossip: Gossip) {
        if !gossip.seen.uses_places(gossip.members.places()) {
            gossip.seen.move_to(gossip.members.places().clone());
        }
        self.gossip = Arc::new(gossip);
    }

    /// Notes that a member has confirmed its exit; `clean` if nothing of it can still run.
    pub(super) fn on_exit_confirmed(&mut self, member: UniqueAddress, clean: bool) {
        self.early_exits.insert(member, clean);
    }

    /// Makes the view anew, in which this node distrusts itself or not. `None` if nothing has changed that is shown.
    pub(super) fn refresh(&mut self, suspect: bool) -> Option<Change> {
        self.settle_exits();
        let reachability_changed = self.shown_reachability != self.gossip.reachability;
        // Keep this path cheap: most changes only concern which members have seen the state (cluster C5).
        let only_seen = !reachability_changed
            && self.shown_exits == self.exits
            && self.view.members == self.gossip.members
            && self.view.tombstones == self.gossip.tombstones
            && self.view.cluster_id == self.gossip.cluster_id;
        let view = if only_seen {
            self.gossip.view_after(&self.view, &self.node, &self.exits, suspect)
        } else {
            self.gossip.view(&self.node, &self.exits, suspect)
        };
        if view == *self.view && !reachability_changed {
            return None;
        }
        self.shown_exits.clone_from(&self.exits);
        if reachability_changed {
            self.shown_reachability = self.gossip.reachability.clone();
        }
        let old = std::mem::replace(&mut self.view, Arc::new(view));
        let events = diff(&old, &self.view);
        Some(Change { old, events, only_seen, reachability_changed })
    }

    /// Shows no member any more, since this node's membership has ended.
    pub(super) fn show_empty(&mut self) -> Change {
        let empty = MembershipView { cluster_id: self.view.cluster_id, ..MembershipView::empty(self.node.clone()) };
        let old = std::mem::replace(&mut self.view, Arc::new(empty));
        let events = diff(&old, &self.view);
        Change { old, events, only_seen: false, reachability_changed: false }
    }

    /// Checks that the view shows the state, and that confirmed exits are of members that exit. Source: cluster M4, M26.
    pub(super) fn check_invariants(&self, suspect: bool) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (gossip, view) = (&self.gossip, &self.view);
        assert!(gossip.is_sound(), "{gossip:?}");
        assert!(view.members == gossip.members && view.tombstones == gossip.tombstones, "the view shows the state");
        assert_eq!(view.cluster_id, gossip.cluster_id, "the view shows the cluster");
        assert_eq!(view.self_suspect, suspect, "the view shows whether this node distrusts itself");
        let status = |address: &UniqueAddress| gossip.members.get(address).map(|member| member.status);
        let exits = |address: &UniqueAddress| status(address).is_some_and(|status| status >= MemberStatus::Exiting);
        assert!(self.exits.keys().all(exits), "an exit counts once its member is Exiting");
        let waits = |address: &UniqueAddress| status(address).is_some_and(|status| status < MemberStatus::Exiting);
        assert!(self.early_exits.keys().all(waits), "an exit that came early counts later");
    }

    /// Lets confirmed exits count once their members are Exiting, and forgets those of removed members.
    fn settle_exits(&mut self) {
        let status = |address: &UniqueAddress| self.gossip.members.get(address).map(|member| member.status);
        self.exits.retain(|address, _| status(address).is_some());
        self.early_exits.retain(|address, _| status(address).is_some());
        let exiting = |(address, clean): (&UniqueAddress, &bool)| {
            (status(address)? >= MemberStatus::Exiting).then(|| (address.clone(), *clean))
        };
        let settled: Vec<(UniqueAddress, bool)> = self.early_exits.iter().filter_map(exiting).collect();
        for (address, clean) in settled {
            self.early_exits.remove(&address);
            self.exits.insert(address, clean);
        }
    }
}
