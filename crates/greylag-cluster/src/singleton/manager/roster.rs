//! The members that are, or may still act as, candidates for the oldest, and those that were removed.
//!
//! Source: cluster P2, P3a, P6.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::membership::member::{Member, MemberStatus};
use crate::membership::view::MembershipView;
use crate::settings::ProofOfDeath;

/// How long removed processes are remembered (cluster P6).
const REMEMBER_REMOVED: Duration = Duration::from_secs(15 * 60);

/// The membership as the manager of one singleton sees it.
#[derive(Debug)]
pub(super) struct Roster {
    node: UniqueAddress,
    role: Option<String>,
    margin: Duration,
    /// Decides which processes at one address can have replaced which.
    proof_of_death: ProofOfDeath,
    view: Option<Arc<MembershipView>>,
    /// Members that are, or may still act as, candidates for the oldest; removed members stay until their margin is
    /// over. Source: cluster P2.
    list: BTreeMap<UniqueAddress, Member>,
    /// Members removed without proof that no instance runs there, with the end of their margin.
    margins: BTreeMap<UniqueAddress, Instant>,
    /// Members removed and settled, with the time to forget them.
    gone: BTreeMap<UniqueAddress, Instant>,
}

impl Roster {
    /// A roster that has seen nothing of the cluster.
    pub(super) fn new(
        node: UniqueAddress,
        role: Option<String>,
        margin: Duration,
        proof_of_death: ProofOfDeath,
    ) -> Self {
        Self {
            node,
            role,
            margin,
            proof_of_death,
            view: None,
            list: BTreeMap::new(),
            margins: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Takes a new view; `exiting`: this node hands over. Returns the removed members that are settled by it.
    pub(super) fn on_view(&mut self, now: Instant, view: Arc<MembershipView>, exiting: bool) -> Vec<UniqueAddress> {
        let old = self.view.replace(view.clone());
        let first = old.as_ref().is_none_or(|old| old.members.is_empty());
        let mut settled = Vec::new();
        for (address, tombstone) in &view.tombstones {
            let before = old.as_ref().and_then(|old| old.tombstones.get(address));
            let is_news = before.is_none_or(|before| !before.clean && tombstone.clean);
            if is_news && self.on_removed(now, address, tombstone.clean, old.as_deref()) {
                settled.push(address.clone());
            }
        }
        for member in
            view.members.iter().filter(|m| m.has_role_or_any(self.role.as_deref()) && m.up_number != Member::NOT_UP)
        {
            let serves = member.status.is_settled();
            let is_self = member.address == self.node;
            match self.list.get_mut(&member.address) {
                // Remove exited members, which cannot become the oldest; this node itself only once it hands over.
                Some(_) if member.status == MemberStatus::Exiting && !is_self => {
                    self.list.remove(&member.address);
                }
                Some(known) => *known = member.clone(),
                None if serves && !(is_self && exiting) => {
                    self.list.insert(member.address.clone(), member.clone());
                }
                // Skip a member that was never seen serving (gossip may skip Up): it is only asked (P3a).
                None => {}
            }
        }
        // Start empty: a node that has not joined can have missed no member.
        if first && view.members.is_empty() {
            self.list.clear();
        }
        settled
    }

    /// Notes a removed member. Returns true if it is settled by that: no instance can run there.
    fn on_removed(&mut self, now: Instant, address: &UniqueAddress, clean: bool, old: Option<&MembershipView>) -> bool {
        if *address == self.node {
            return false;
        }
        let had_role = old
            .and_then(|old| old.member(address))
            .or_else(|| self.list.get(address))
            .is_none_or(|member| member.has_role_or_any(self.role.as_deref()));
        if clean || !had_role || self.margin.is_zero() {
            self.settle_removed(now, address);
            return true;
        }
        if !self.gone.contains_key(address) {
            self.margins.entry(address.clone()).or_insert(now + self.margin);
        }
        false
    }

    fn settle_removed(&mut self, now: Instant, address: &UniqueAddress) {
        self.margins.remove(address);
        self.list.remove(address);
        self.gone.insert(address.clone(), now + REMEMBER_REMOVED);
    }

    /// Ends the margins that are over. Returns the members that are settled by that.
    pub(super) fn end_margins(&mut self, now: Instant) -> Vec<UniqueAddress> {
        let over = |(address, at): (&UniqueAddress, &Instant)| (*at <= now).then(|| address.clone());
        let over: Vec<UniqueAddress> = self.margins.iter().filter_map(over).collect();
        for address in &over {
            self.settle_removed(now, address);
        }
        self.gone.retain(|_, until| now < *until);
        over
    }

    /// When the next margin ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.margins.values().min().copied()
    }

    /// Takes this node itself out, since it hands over.
    pub(super) fn on_exiting_phase(&mut self) {
        self.list.remove(&self.node);
    }

    // --- the view -------------------------------------------------------------------------------

    pub(super) fn view(&self) -> Option<&MembershipView> {
        self.view.as_deref()
    }

    pub(super) fn proof_of_death(&self) -> ProofOfDeath {
        self.proof_of_death
    }

    pub(super) fn self_status(&self) -> Option<MemberStatus> {
        self.view.as_ref()?.self_status()
    }

    /// Whether this node has reached `status`, or is no member.
    pub(super) fn self_is_at_least(&self, status: MemberStatus) -> bool {
        self.self_status().is_none_or(|own| own >= status)
    }

    /// Whether this node distrusts itself, or has seen nothing of the cluster.
    pub(super) fn is_suspect(&self) -> bool {
        self.view.as_ref().is_none_or(|view| view.self_suspect)
    }

    /// Whether the whole cluster is about to shut down: then no instance is started or handed over. Source: cluster
    /// M30.
    pub(super) fn prepares_shutdown(&self) -> bool {
        let preparing = [MemberStatus::PreparingForShutdown, MemberStatus::ReadyForShutdown];
        self.view.as_ref().is_some_and(|view| view.members.iter().any(|member| preparing.contains(&member.status)))
    }

    /// Whether to answer a claim: not that of a process that could not start anyway, by this node's view, which catches
    /// up.
    pub(super) fn may_claim(&self, claimant: &UniqueAddress) -> bool {
        let member = self.view.as_ref().and_then(|view| view.member(claimant));
        member.is_some_and(|member| member.status < MemberStatus::Exiting)
    }

    // --- the list -------------------------------------------------------------------------------

    /// This node as it stands in the list.
    pub(super) fn own(&self) -> Option<&Member> {
        self.list.get(&self.node)
    }

    pub(super) fn oldest(&self) -> Option<&UniqueAddress> {
        self.list.values().min_by(|a, b| a.age_order(b)).map(|member| &member.address)
    }

    pub(super) fn is_oldest(&self) -> bool {
        self.oldest() == Some(&self.node)
    }

    /// The oldest, if that is another node.
    pub(super) fn other_oldest(&self) -> Option<UniqueAddress> {
        self.oldest().filter(|oldest| **oldest != self.node).cloned()
    }

    /// Whether the oldest was removed, and its margin still runs.
    pub(super) fn is_oldest_removed(&self) -> bool {
        self.oldest().is_some_and(|oldest| self.margins.contains_key(oldest))
    }

    /// The next oldest that still serves: the node to ask to take over.
    pub(super) fn successor(&self) -> Option<UniqueAddress> {
        let view = self.view.as_ref()?;
        let serves = |member: &&Member| view.member(&member.address).is_some_and(|m| m.status.is_settled());
        let others = self.list.values().filter(|member| member.address != self.node).filter(serves);
        others.min_by(|a, b| a.age_order(b)).map(|member| member.address.clone())
    }

    /// Rebuilds the list from the view; removed members whose margin still runs stay in it.
    pub(super) fn rebuild(&mut self) {
        let Some(view) = self.view.clone() else { return };
        let role = self.role.as_deref();
        let serving = view.by_age(role).into_iter().filter(|member| member.status.is_settled());
        let current: BTreeMap<_, _> = serving.map(|member| (member.address.clone(), member.clone())).collect();
        self.list.retain(|address, _| {
            self.margins.contains_key(address) || view.member(address).is_some_and(|m| m.status == MemberStatus::Down)
        });
        self.list.extend(current);
    }

    /// Source: cluster P2, P6.
    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            assert!(self.margins.keys().all(|member| !self.is_gone(member)), "a settled member has no margin");
            assert!(!self.margins.contains_key(&self.node), "a node waits for no margin of its own");
        }
    }

    // --- predecessors ---------------------------------------------------------------------------

    /// The removed members whose margin runs, and the older members that leave, or at the start of this node are about
    /// to. Source: cluster P3a.
    pub(super) fn predecessors(&self, at_start: bool) -> impl Iterator<Item = UniqueAddress> {
        let own_age = self.view().and_then(MembershipView::self_member).map(Member::age_key);
        let members = self.view().into_iter().flat_map(|view| view.members.iter());
        let members = members.filter(|member| member.has_role_or_any(self.role.as_deref()));
        let leaves = move |member: &&Member| {
            let older = own_age.is_none_or(|own| member.age_key() < own);
            let leaving = member.status == MemberStatus::Leaving && at_start;
            older && (leaving || member.status >= MemberStatus::Exiting)
        };
        self.margins.keys().cloned().chain(members.filter(leaves).map(|member| member.address.clone()))
    }

    /// Whether this process was removed and can run no instance.
    pub(super) fn is_gone(&self, address: &UniqueAddress) -> bool {
        self.gone.contains_key(address)
    }

    /// Whether the membership alone shows that no instance runs at this process.
    pub(super) fn is_settled(&self, address: &UniqueAddress) -> bool {
        self.view().is_some_and(|view| replaced(self.proof_of_death, view, address)) || self.is_gone(address)
    }
}

/// Whether `older` ran at the address of this node, and is gone: its death was proven, or this node runs on its host. A
/// name that came here from another host proves nothing about the process that had it. Source: cluster P3, P3a.
pub(super) fn replaced(proof_of_death: ProofOfDeath, view: &MembershipView, older: &UniqueAddress) -> bool {
    if older.address() != view.self_address.address() {
        return false;
    }
    let own = view.self_member().and_then(|own| own.host_id.as_deref());
    let by_host = |host: Option<&Arc<str>>| proof_of_death.replacers(host).include(own);
    match (view.tombstones.get(older), view.member(older)) {
        (Some(tombstone), _) => tombstone.dead || by_host(tombstone.host_id.as_ref()),
        (None, Some(member)) => member.dead || by_host(member.host_id.as_ref()),
        (None, None) => by_host(None),
    }
}
