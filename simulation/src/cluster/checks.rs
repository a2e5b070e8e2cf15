//! The invariants of a cluster. Each is checked only where something changes.
//!
//! Always: the invariants of M4; one version, one content (M6); statuses only go forward, an `up_number` never rises, a
//! removed member stays removed (G3); nothing is delivered to another incarnation than it was meant for, and messages
//! keep their order per sender and lane (T15, T23, T24).
//!
//! Where G1 promises it: never two instances of the singleton; never two decisions by which each side keeps itself and
//! downs the other. A profile that goes beyond G1 names its excuse; then both are counted instead. If the singleton
//! needs a lease, nothing excuses a second instance. An instance on a paused process does not run: it counts from the
//! moment at which the process wakes (cluster P7).

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use greylag_cluster::{DowningDecision, Gossip, MemberStatus, MembershipView};
use greylag_core::{Uid, UniqueAddress};
use greylag_transport::Lane;

use super::plan::{Excuse, Plan};
use super::world::{Process, ProcessId};
use crate::Violation;

/// Observations of one process so far.
#[derive(Default)]
pub(super) struct Seen {
    /// The furthest status and the lowest `up_number` of each member.
    members: HashMap<UniqueAddress, (MemberStatus, u32)>,
    present: BTreeSet<UniqueAddress>,
    removed: BTreeSet<UniqueAddress>,
    /// Number of the last message from each process on each lane.
    numbers: Vec<[u64; 2]>,
}

struct Decision {
    by: UniqueAddress,
    kept: BTreeSet<UniqueAddress>,
    downed: BTreeSet<UniqueAddress>,
}

/// The checkers of a run.
pub(super) struct Checks {
    /// The first broken promise.
    pub(super) violation: Option<Violation>,
    /// Whether the whole run is an exception of G1.
    excused: bool,
    /// Whether the instance needs a lease: then nothing excuses a second one (P7).
    leased: bool,
    /// Whether a process that was paused for too long excuses a second instance (P7).
    stood_still_excuses: bool,
    /// Count of existing instances of the singleton.
    pub(super) instances: usize,
    /// Whether two instances ran at once, excused.
    pub(super) overlapped: bool,
    /// Count of excused conflicting decisions.
    pub(super) conflicts: u64,
    decisions: Vec<Decision>,
    /// Processes that a decision, a proof or an operator downed; `None` with an omission that this check alone would
    /// find.
    sanctioned: Option<BTreeSet<UniqueAddress>>,
    /// Hash of the content of each version.
    contents: HashMap<u64, u64>,
}

impl Checks {
    pub(super) fn new(plan: &Plan, judges_downs: bool) -> Self {
        let excuse = plan.promises.excuse;
        Self {
            violation: None,
            excused: excuse == Some(Excuse::Unsettled) && plan.is_unsettled(),
            leased: plan.leases.singleton,
            stood_still_excuses: excuse == Some(Excuse::StoodStill),
            instances: 0,
            overlapped: false,
            conflicts: 0,
            decisions: Vec::new(),
            sanctioned: judges_downs.then(BTreeSet::new),
            contents: HashMap::new(),
        }
    }

    /// Whether two sides may have removed each other, by one decision each or several, where G1 promises nothing.
    pub(super) fn may_stay_apart(&self) -> bool {
        self.conflicts > 0 || (self.excused && self.overlapped)
    }

    pub(super) fn broken(&mut self, promise: &'static str, what: String) {
        self.violation.get_or_insert(Violation { promise, what });
    }

    /// Notes that these processes were downed with reason: by a verdict, a proof or a command.
    pub(super) fn sanction(&mut self, downed: impl IntoIterator<Item = UniqueAddress>) {
        if let Some(sanctioned) = &mut self.sanctioned {
            sanctioned.extend(downed);
        }
    }

    /// Checks a proven death.
    pub(super) fn on_proof(&mut self, processes: &[Process], proven: &UniqueAddress) {
        if processes.iter().any(|process| process.address == *proven && !process.gone) {
            self.broken("no living process is proven dead (cluster S20)", format!("{proven} lives"));
        }
        self.sanction([proven.clone()]);
    }

    /// Checks that one instance runs; called when an instance starts or its process wakes.
    pub(super) fn on_instance(&mut self, processes: &[Process], at: ProcessId) {
        if self.instances < 2 {
            return;
        }
        let running = |process: &&Process| process.instance && !process.gone && process.paused.is_none();
        let hosts: Vec<&Process> = processes.iter().filter(running).collect();
        if hosts.len() < 2 {
            return;
        }
        let stood_still = hosts.iter().any(|process| process.stood_still);
        if !self.leased && (self.excused || (self.stood_still_excuses && stood_still)) {
            self.overlapped = true;
        } else {
            let hosts: Vec<String> = hosts.iter().map(|process| process.address.to_string()).collect();
            let what = format!("{} runs beside {hosts:?}", processes[at].address);
            self.broken("never two singletons (cluster G1, P1)", what);
        }
    }

    /// Checks a decision: no other decision may keep the other side and down this one.
    pub(super) fn on_decision(&mut self, by: &UniqueAddress, view: &MembershipView, decision: &DowningDecision) {
        let downed: BTreeSet<UniqueAddress> = decision.downed.iter().cloned().collect();
        self.sanction(downed.iter().cloned());
        if downed.is_empty() || downed.contains(by) {
            return;
        }
        let alive = view.members.iter().filter(|member| member.status != MemberStatus::Down && !member.dead);
        let kept: BTreeSet<UniqueAddress> =
            alive.map(|member| member.address.clone()).filter(|address| !downed.contains(address)).collect();
        let new = Decision { by: by.clone(), kept, downed };
        let conflict = self.decisions.iter().find(|old| {
            old.by != new.by
                && old.downed.contains(&new.by)
                && new.downed.contains(&old.by)
                && old.kept.is_disjoint(&new.kept)
        });
        if let Some(old) = conflict {
            let what = format!("{} downs {:?}, and {} downs {:?}", old.by, old.downed, new.by, new.downed);
            if self.excused || self.stood_still_excuses {
                self.conflicts += 1;
            } else {
                self.broken("no two leaders' decisions conflict (cluster G1)", what);
            }
        }
        self.decisions.push(new);
    }

    /// Checks a new view of a process.
    pub(super) fn on_view(&mut self, seen: &mut Seen, own: &UniqueAddress, view: &MembershipView, gossip: &Gossip) {
        if view.members.is_empty() {
            // The process has ended, or has not joined yet.
            return;
        }
        if !gossip.is_sound() {
            self.broken("the gossip's invariants hold (cluster M4)", format!("{own} has {gossip:?}"));
        }
        let mut present = BTreeSet::new();
        for member in &view.members {
            if seen.removed.contains(&member.address) {
                self.broken("no removed member comes back (cluster G3)", format!("{own} has {} again", member.address));
            }
            let now = (member.status, member.up_number);
            let before = *seen.members.entry(member.address.clone()).or_insert(now);
            if now.0 < before.0 || now.1 > before.1 {
                let what = format!("{own} sees {} go from {before:?} to {now:?}", member.address);
                self.broken("statuses and ages only go one way (cluster G3)", what);
            }
            if member.status == MemberStatus::Down && before.0 != MemberStatus::Down {
                if member.address == *own {
                    self.sanction([own.clone()]);
                }
                if self.sanctioned.as_ref().is_some_and(|sanctioned| !sanctioned.contains(&member.address)) {
                    let what = format!("{own} sees {} Down", member.address);
                    self.broken("no member is Down without a verdict, a proof or a command (cluster M25)", what);
                }
            }
            if now != before {
                seen.members.insert(member.address.clone(), now);
            }
            present.insert(member.address.clone());
        }
        if present != seen.present {
            seen.removed.extend(seen.present.difference(&present).cloned());
            seen.present = present;
        }
        seen.removed.extend(view.tombstones.keys().cloned());
        self.check_version(own, gossip);
    }

    fn check_version(&mut self, own: &UniqueAddress, gossip: &Gossip) {
        let mut version = DefaultHasher::new();
        for (node, count) in gossip.version.iter() {
            (node.uid().get(), count).hash(&mut version);
        }
        let mut content = DefaultHasher::new();
        for member in gossip.members.values() {
            (member.address.uid().get(), member.status, member.up_number, member.dead).hash(&mut content);
        }
        for (observer, subject, status) in gossip.reachability.accusations() {
            (observer.uid().get(), subject.uid().get(), status).hash(&mut content);
        }
        for (removed, tombstone) in &gossip.tombstones {
            (removed.uid().get(), tombstone.clean, tombstone.dead).hash(&mut content);
        }
        let (version, content) = (version.finish(), content.finish());
        if *self.contents.entry(version).or_insert(content) != content {
            let what = format!("{own} has other content under a known version: {gossip:?}");
            self.broken("one version, one content (cluster M6)", what);
        }
    }

    /// Checks a message that reaches a process.
    pub(super) fn on_delivery(
        &mut self,
        seen: &mut Seen,
        from: ProcessId,
        lane: Lane,
        number: u64,
        target: Option<Uid>,
        own: Uid,
    ) {
        if target.is_some_and(|target| target != own) {
            let what = format!("{own} got what was meant for {target:?}");
            self.broken("nothing reaches another incarnation (cluster T15)", what);
        }
        if seen.numbers.len() <= from {
            seen.numbers.resize(from + 1, [0; 2]);
        }
        let last = &mut seen.numbers[from][usize::from(lane != Lane::CONTROL)];
        if number <= *last {
            let what = format!("message {number} after {last} on {lane}");
            self.broken("per sender and lane the order holds (cluster T23, T24)", what);
            return;
        }
        *last = number;
    }
}
