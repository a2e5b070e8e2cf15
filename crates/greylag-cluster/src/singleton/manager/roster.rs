//! Determines the oldest member, and the nodes that must be settled before this node may start.
//!
//! Source: cluster P2, P3a, P6.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::{ManagerEffect, ManagerState, SingletonManager, replaced};
use crate::member::{Member, MemberStatus};
use crate::singleton::{Kind, SingletonMessage};
use crate::view::MembershipView;

/// How long removed processes are remembered (cluster P6).
const REMEMBER_REMOVED: Duration = Duration::from_secs(15 * 60);

impl SingletonManager {
    pub(super) fn on_view(&mut self, now: Instant, view: Arc<MembershipView>) {
        let old = self.view.replace(view.clone());
        let first = old.as_ref().is_none_or(|old| old.members.is_empty());
        for (address, tombstone) in &view.tombstones {
            let before = old.as_ref().and_then(|old| old.tombstones.get(address));
            if before.is_none_or(|before| !before.clean && tombstone.clean) {
                self.on_removed(now, address, tombstone.clean, old.as_deref());
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
                None if serves && !(is_self && self.exiting_phase) => {
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
    }

    pub(super) fn on_removed(
        &mut self,
        now: Instant,
        address: &UniqueAddress,
        clean: bool,
        old: Option<&MembershipView>,
    ) {
        if *address == self.node {
            return;
        }
        let had_role = old
            .and_then(|old| old.member(address))
            .or_else(|| self.list.get(address))
            .is_none_or(|member| member.has_role_or_any(self.role.as_deref()));
        if clean || !had_role || self.margin.is_zero() {
            self.settle_removed(now, address);
        } else if !self.gone.contains_key(address) {
            self.margins.entry(address.clone()).or_insert(now + self.margin);
        }
    }

    pub(super) fn settle_removed(&mut self, now: Instant, address: &UniqueAddress) {
        self.margins.remove(address);
        self.list.remove(address);
        self.noted.remove(address);
        self.gone.insert(address.clone(), now + REMEMBER_REMOVED);
    }

    pub(super) fn end_margins(&mut self, now: Instant) {
        let over = |(address, at): (&UniqueAddress, &Instant)| (*at <= now).then(|| address.clone());
        let over: Vec<UniqueAddress> = self.margins.iter().filter_map(over).collect();
        for address in over {
            self.settle_removed(now, &address);
        }
        self.gone.retain(|_, until| now < *until);
    }

    pub(super) fn oldest(&self) -> Option<&UniqueAddress> {
        self.list.values().min_by(|a, b| a.age_order(b)).map(|member| &member.address)
    }

    pub(super) fn is_oldest(&self) -> bool {
        self.oldest() == Some(&self.node)
    }

    pub(super) fn self_status(&self) -> Option<MemberStatus> {
        self.view.as_ref()?.self_status()
    }

    /// Whether this node is seen Exiting or further, or hands over already.
    pub(super) fn self_exits(&self) -> bool {
        self.exiting_phase || self.self_status().is_none_or(|status| status >= MemberStatus::Exiting)
    }

    /// Whether the whole cluster is about to shut down: then no instance is started or handed over. Source: cluster
    /// M30.
    pub(super) fn prepares_shutdown(&self) -> bool {
        let preparing = [MemberStatus::PreparingForShutdown, MemberStatus::ReadyForShutdown];
        self.view.as_ref().is_some_and(|view| view.members.iter().any(|member| preparing.contains(&member.status)))
    }

    /// Rebuilds the list from the view; removed members whose margin still runs stay in it.
    pub(super) fn rebuild_list(&mut self) {
        let Some(view) = self.view.clone() else { return };
        let role = self.role.as_deref();
        let serving = view.by_age(role).into_iter().filter(|member| member.status.is_settled());
        let current: BTreeMap<_, _> = serving.map(|member| (member.address.clone(), member.clone())).collect();
        self.list.retain(|address, _| {
            self.margins.contains_key(address) || view.member(address).is_some_and(|m| m.status == MemberStatus::Down)
        });
        self.list.extend(current);
    }

    /// All nodes that may have run the instance and are not settled. Source: cluster P3a.
    pub(super) fn unsettled(&self) -> BTreeSet<UniqueAddress> {
        if let Some(latest) = &self.latest_only {
            return latest.iter().filter(|address| !self.is_settled(address)).cloned().collect();
        }
        let mut previous = self.noted.clone();
        previous.extend(self.margins.keys().cloned());
        if let Some(view) = &self.view {
            let own_age = view.self_member().map(|own| (own.up_number, own.address.clone()));
            for member in view.members.iter().filter(|member| member.has_role_or_any(self.role.as_deref())) {
                let older = own_age.as_ref().is_none_or(|(number, own)| member.age_key() < (*number, own));
                let leaving = member.status == MemberStatus::Leaving && self.state == ManagerState::Start;
                if older && (leaving || member.status >= MemberStatus::Exiting) {
                    previous.insert(member.address.clone());
                }
            }
        }
        previous.retain(|address| !self.is_settled(address));
        previous
    }

    pub(super) fn is_settled(&self, address: &UniqueAddress) -> bool {
        let view = self.view.as_deref();
        let own_predecessor = view.is_some_and(|view| replaced(self.proof_of_death, view, address));
        own_predecessor || self.cleared.contains(address) || self.gone.contains_key(address)
    }

    /// Whether an instance may start here. A node that leaves starts none either: of the last members that leave
    /// together during the preparation of a full shutdown, no status tells of the preparation any more. Source: cluster
    /// P4, P5, F9, M30.
    pub(super) fn may_start(&self) -> bool {
        let held = self.view.as_ref().is_none_or(|view| view.self_suspect);
        let leaves = self.self_status().is_none_or(|status| status >= MemberStatus::Leaving);
        !held && self.hold_until.is_none() && !leaves && !self.prepares_shutdown() && !self.downed && !self.self_exits()
    }

    pub(super) fn ask(&mut self, peer: &UniqueAddress, out: &mut Vec<ManagerEffect>) {
        let attempt = *self.asked.entry(peer.clone()).or_insert_with(|| {
            self.attempt += 1;
            self.attempt
        });
        self.send(Kind::HandOverToMe, peer.clone(), attempt, out);
    }

    /// Answers that no instance runs here. From now on the claimant must clear this node, and its earlier answers, and
    /// requests to it under way, are void.
    pub(super) fn answer_cleared(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.send(Kind::HandOverDone, claimant.clone(), attempt, out);
        self.cleared.remove(&claimant);
        self.asked.remove(&claimant);
        self.noted.insert(claimant);
    }

    pub(super) fn send(&self, kind: Kind, to: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        out.push(ManagerEffect::Send(SingletonMessage { kind, from: self.node.clone(), to, attempt }));
    }
}
