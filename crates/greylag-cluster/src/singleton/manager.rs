//! Decides when this node runs the instance of a singleton, and when it may.
//!
//! Being the oldest is not enough to start: everybody who may have run the instance before must be
//! *settled* first. A node is settled when it has answered this attempt that nothing runs there,
//! when it was removed and provably cannot run anything, when the margin after its removal is over,
//! or when it is an older process at this very address. Answering "nothing runs here" to a claimant
//! binds: the one who answered must be cleared by the claimant before it may start itself, and
//! answers that crossed with its own are void (each request has a number). Asking only the latest
//! predecessor is unsafe when several leave together.
//!
//! The membership comes as whole views, so that a new oldest is never judged by half of a change.
//!
//! Source: cluster P1 to P7, P3a.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::{Kind, SingletonMessage};
use crate::member::{Member, MemberStatus};
use crate::sabotage::Sabotage;
use crate::settings::{ClusterSettings, SingletonSettings};
use crate::view::MembershipView;

/// How long removed processes are remembered (cluster P6).
const REMEMBER_REMOVED: Duration = Duration::from_secs(15 * 60);

/// What the machine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerInput {
    /// The membership, whenever it changed. The first one is the state of things so far.
    View(Arc<MembershipView>),
    /// A manager of the same singleton says something.
    Message(SingletonMessage),
    /// The instance has ended, asked or not.
    InstanceEnded,
    /// This node's shutdown has reached the phase in which singletons are handed over.
    ExitingPhase,
    /// This node was declared dead, or ends.
    SelfDowned,
    /// This process stood still; it starts nothing for a while (cluster F9).
    LocalPause,
    /// A deadline may have come.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerEffect {
    /// Send to whoever runs at the address of `message.to`.
    Send(SingletonMessage),
    /// Start the instance.
    StartInstance {
        /// The age of this node, for fencing.
        up_number: u32,
    },
    /// Tell the instance to end; `InstanceEnded` follows when it has.
    StopInstance,
    /// Nothing of this singleton keeps the node from exiting.
    ExitingDone,
    /// A hand-over makes no progress.
    Stuck,
}

/// Where the manager is. Source: the table of cluster §5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerState {
    /// This node is not Up yet.
    Start,
    /// Somebody else is the oldest.
    Younger,
    /// This node is the oldest, and waits until all predecessors are settled.
    BecomingOldest,
    /// This node runs the instance, or it ended by itself.
    Oldest,
    /// Somebody else is the oldest now; the instance still runs.
    WasOldest,
    /// The instance ends, so that a claimant can start its own.
    HandingOver,
    /// The instance ends without hand-over.
    Stopping,
    /// Nothing starts here any more.
    End,
}

/// Manages one singleton on one node.
#[derive(Debug)]
pub struct SingletonManager {
    node: UniqueAddress,
    role: Option<String>,
    retry_interval: Duration,
    hand_over_retries: u32,
    take_over_retries: u32,
    margin: Duration,
    hold_after_pause: Duration,
    state: ManagerState,
    running: bool,
    stopping: bool,
    view: Option<Arc<MembershipView>>,
    /// Who is, or may still act as, a candidate for the oldest; the removed stay until their margin
    /// is over. Source: cluster P2.
    list: BTreeMap<UniqueAddress, Member>,
    /// Earlier oldest members, and whoever claimed or offered the instance.
    noted: BTreeSet<UniqueAddress>,
    /// Removed without proof that nothing of them runs: until when.
    margins: BTreeMap<UniqueAddress, Instant>,
    /// Removed and settled, with the time to forget them.
    gone: BTreeMap<UniqueAddress, Instant>,
    /// The number of the newest request to each.
    asked: BTreeMap<UniqueAddress, u64>,
    /// Who answered its newest request with "nothing runs here".
    cleared: BTreeSet<UniqueAddress>,
    /// Who said that its instance is ending.
    in_progress: BTreeSet<UniqueAddress>,
    /// Who waits for our instance to end, with the request to answer.
    claimants: BTreeMap<UniqueAddress, u64>,
    /// Whom this node last offered its instance to.
    offered: Option<UniqueAddress>,
    attempt: u64,
    retries: u32,
    retry_at: Option<Instant>,
    hold_until: Option<Instant>,
    exiting_phase: bool,
    exiting_told: bool,
    downed: bool,
    /// The latest predecessor, if only that one is asked (see [`Sabotage::Clearance`]).
    latest_only: Option<Option<UniqueAddress>>,
}

impl SingletonManager {
    /// A manager that has seen nothing of the cluster.
    pub fn new(node: UniqueAddress, settings: &SingletonSettings, cluster: &ClusterSettings) -> Self {
        let mut margin = settings.removal_margin.unwrap_or_else(|| cluster.removal_margin());
        if cluster.sabotage == Some(Sabotage::Margin) {
            margin = Duration::ZERO;
        }
        let interval = settings.hand_over_retry_interval.max(Duration::from_millis(1));
        let in_margin = u32::try_from(margin.as_millis() / interval.as_millis()).unwrap_or(u32::MAX - 3);
        let hand_over_retries = settings.min_number_of_hand_over_retries.max(in_margin + 3);
        Self {
            node,
            role: settings.role.clone(),
            retry_interval: interval,
            hand_over_retries,
            take_over_retries: hand_over_retries.saturating_sub(3).max(1),
            margin,
            hold_after_pause: 3 * cluster.failure_detector.heartbeat_interval,
            state: ManagerState::Start,
            running: false,
            stopping: false,
            view: None,
            list: BTreeMap::new(),
            noted: BTreeSet::new(),
            margins: BTreeMap::new(),
            gone: BTreeMap::new(),
            asked: BTreeMap::new(),
            cleared: BTreeSet::new(),
            in_progress: BTreeSet::new(),
            claimants: BTreeMap::new(),
            offered: None,
            attempt: 0,
            retries: 0,
            retry_at: None,
            hold_until: None,
            exiting_phase: false,
            exiting_told: false,
            downed: false,
            latest_only: (cluster.sabotage == Some(Sabotage::Clearance)).then_some(None),
        }
    }

    /// Where the manager is.
    pub fn state(&self) -> ManagerState {
        self.state
    }

    /// Whether the instance exists on this node.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Takes one input. What makes no sense here is dropped.
    pub fn handle(&mut self, now: Instant, input: ManagerInput, out: &mut Vec<ManagerEffect>) {
        match input {
            ManagerInput::View(view) => self.on_view(now, view),
            ManagerInput::Message(message) => self.on_message(now, message, out),
            ManagerInput::InstanceEnded => self.on_instance_ended(out),
            ManagerInput::ExitingPhase => self.on_exiting_phase(),
            ManagerInput::SelfDowned => self.on_self_downed(out),
            ManagerInput::LocalPause => self.hold_until = Some(now + self.hold_after_pause),
            ManagerInput::Tick => {}
        }
        self.hold_until = self.hold_until.filter(|until| now < *until);
        self.end_margins(now);
        self.judge(now, out);
        self.tell_exiting_done(out);
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let hold = self.hold_until.filter(|_| self.state == ManagerState::BecomingOldest);
        [self.retry_at, self.margins.values().min().copied(), hold].into_iter().flatten().min()
    }

    // --- who is the oldest ----------------------------------------------------------------------

    fn on_view(&mut self, now: Instant, view: Arc<MembershipView>) {
        let old = self.view.replace(view.clone());
        let first = old.as_ref().is_none_or(|old| old.members.is_empty());
        for (address, tombstone) in view.tombstones.iter() {
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
                // Exited members are out of the race; this node itself only once it hands over.
                Some(_) if member.status == MemberStatus::Exiting && !is_self => {
                    self.list.remove(&member.address);
                }
                Some(known) => *known = member.clone(),
                None if serves && !(is_self && self.exiting_phase) => {
                    self.list.insert(member.address.clone(), member.clone());
                }
                // Gossip may jump over Up; whoever was never seen serving is only asked (P3a).
                None => {}
            }
        }
        // Before anything was joined there is nothing that could have been missed.
        if first && view.members.is_empty() {
            self.list.clear();
        }
    }

    fn on_removed(&mut self, now: Instant, address: &UniqueAddress, clean: bool, old: Option<&MembershipView>) {
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

    fn settle_removed(&mut self, now: Instant, address: &UniqueAddress) {
        self.margins.remove(address);
        self.list.remove(address);
        self.noted.remove(address);
        self.gone.insert(address.clone(), now + REMEMBER_REMOVED);
    }

    fn end_margins(&mut self, now: Instant) {
        let over = |(address, at): (&UniqueAddress, &Instant)| (*at <= now).then(|| address.clone());
        let over: Vec<UniqueAddress> = self.margins.iter().filter_map(over).collect();
        for address in over {
            self.settle_removed(now, &address);
        }
        self.gone.retain(|_, until| now < *until);
    }

    fn oldest(&self) -> Option<&UniqueAddress> {
        self.list.values().min_by(|a, b| a.age_order(b)).map(|member| &member.address)
    }

    fn is_oldest(&self) -> bool {
        self.oldest() == Some(&self.node)
    }

    fn self_status(&self) -> Option<MemberStatus> {
        self.view.as_ref()?.self_status()
    }

    fn self_leaves(&self) -> bool {
        self.exiting_phase || self.self_status().is_none_or(|status| status >= MemberStatus::Leaving)
    }

    // --- clearance ------------------------------------------------------------------------------

    /// Everybody who may have run the instance and is not settled. Source: cluster P3a.
    fn unsettled(&self) -> BTreeSet<UniqueAddress> {
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

    fn is_settled(&self, address: &UniqueAddress) -> bool {
        let own_predecessor = address.address() == self.node.address();
        own_predecessor || self.cleared.contains(address) || self.gone.contains_key(address)
    }

    /// Source: cluster P5, F9, M30.
    fn may_start(&self, now: Instant) -> bool {
        let Some(view) = &self.view else { return false };
        let preparing = [MemberStatus::PreparingForShutdown, MemberStatus::ReadyForShutdown];
        let shutting_down = view.members.iter().any(|member| preparing.contains(&member.status));
        let held = view.self_suspect || self.hold_until.is_some_and(|until| now < until);
        !shutting_down && !held && !self.downed && !self.exiting_phase
    }

    fn ask(&mut self, peer: &UniqueAddress, out: &mut Vec<ManagerEffect>) {
        let attempt = *self.asked.entry(peer.clone()).or_insert_with(|| {
            self.attempt += 1;
            self.attempt
        });
        self.send(Kind::HandOverToMe, peer.clone(), attempt, out);
    }

    /// Says that nothing runs here. From now on the claimant must clear this node, and whatever it
    /// answered before, or has under way, is void.
    fn clear(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.send(Kind::HandOverDone, claimant.clone(), attempt, out);
        self.cleared.remove(&claimant);
        self.asked.remove(&claimant);
        self.noted.insert(claimant);
    }

    fn send(&self, kind: Kind, to: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        out.push(ManagerEffect::Send(SingletonMessage { kind, from: self.node.clone(), to, attempt }));
    }

    // --- transitions ----------------------------------------------------------------------------

    /// Looks at the state as a whole after every input: the transitions that follow from who is the
    /// oldest, from what is settled, and from deadlines.
    fn judge(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        match self.state {
            ManagerState::Start => self.judge_start(now, out),
            ManagerState::Younger => self.judge_younger(now, out),
            ManagerState::BecomingOldest => self.judge_becoming_oldest(now, out),
            ManagerState::Oldest => self.judge_oldest(now, out),
            ManagerState::WasOldest => self.judge_was_oldest(now, out),
            ManagerState::HandingOver | ManagerState::Stopping | ManagerState::End => {}
        }
    }

    fn judge_start(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let is_up = self.list.contains_key(&self.node);
        if !is_up || self.self_status().is_none_or(|status| status >= MemberStatus::Leaving) {
            return;
        }
        if self.is_oldest() {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    fn become_younger(&mut self) {
        self.state = ManagerState::Younger;
        self.retry_at = None;
        let oldest = self.oldest().filter(|oldest| **oldest != self.node).cloned();
        if let Some(latest) = &mut self.latest_only {
            latest.clone_from(&oldest);
        }
        self.noted.extend(oldest);
    }

    fn judge_younger(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() && !self.exiting_phase {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    fn begin_clearance(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let unsettled = self.unsettled();
        self.state = ManagerState::BecomingOldest;
        self.asked.clear();
        self.cleared.clear();
        self.in_progress.clear();
        self.retries = 0;
        self.retry_at = Some(now + self.retry_interval);
        for peer in &unsettled {
            self.ask(peer, out);
        }
        self.noted.extend(unsettled);
        self.start_if_cleared(now, out);
    }

    fn start_if_cleared(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() && self.may_start(now) && self.unsettled().is_empty() {
            let up_number = self.list.get(&self.node).map_or(Member::NOT_UP, |own| own.up_number);
            self.state = ManagerState::Oldest;
            self.retry_at = None;
            self.noted.clear();
            self.running = true;
            out.push(ManagerEffect::StartInstance { up_number });
        }
    }

    fn judge_becoming_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.downed || self.self_status().is_none_or(|status| status >= MemberStatus::Exiting) {
            self.state = ManagerState::End;
            self.retry_at = None;
            return;
        }
        if !self.is_oldest() {
            let unsettled = self.unsettled();
            self.noted.extend(unsettled);
            return self.become_younger();
        }
        self.start_if_cleared(now, out);
        if self.state != ManagerState::BecomingOldest {
            return;
        }
        let unsettled = self.unsettled();
        let due = self.retry_at.is_some_and(|at| at <= now);
        let all_busy = unsettled.iter().all(|peer| self.in_progress.contains(peer));
        if due {
            self.retry_at = Some(now + self.retry_interval);
            self.retries += u32::from(!all_busy);
        }
        if self.retries > self.hand_over_retries {
            out.push(ManagerEffect::Stuck);
            self.noted.extend(unsettled);
            self.rebuild_list();
            return if self.is_oldest() { self.begin_clearance(now, out) } else { self.become_younger() };
        }
        for peer in unsettled {
            if due || !self.asked.contains_key(&peer) {
                self.ask(&peer, out);
            }
        }
    }

    /// From what is known now; the removed whose margin still runs stay in it.
    fn rebuild_list(&mut self) {
        let Some(view) = self.view.clone() else { return };
        let role = self.role.as_deref();
        let serving = view.by_age(role).into_iter().filter(|member| member.status.is_settled());
        let current: BTreeMap<_, _> = serving.map(|member| (member.address.clone(), member.clone())).collect();
        self.list.retain(|address, _| {
            self.margins.contains_key(address) || view.member(address).is_some_and(|m| m.status == MemberStatus::Down)
        });
        self.list.extend(current);
    }

    fn judge_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() {
            return;
        }
        if self.oldest().is_some_and(|oldest| self.margins.contains_key(oldest)) {
            // It was removed already and will never ask. Whoever comes next does.
            self.state = ManagerState::HandingOver;
            return self.stop_instance(out);
        }
        self.state = ManagerState::WasOldest;
        self.retries = 0;
        self.offered = None;
        self.judge_was_oldest(now, out);
    }

    /// The next oldest that still serves: who is to be asked to take over.
    fn successor(&self) -> Option<UniqueAddress> {
        let view = self.view.as_ref()?;
        let serves = |member: &&Member| view.member(&member.address).is_some_and(|m| m.status.is_settled());
        let others = self.list.values().filter(|member| member.address != self.node).filter(serves);
        others.min_by(|a, b| a.age_order(b)).map(|member| member.address.clone())
    }

    fn judge_was_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() {
            self.state = ManagerState::Oldest;
            self.retry_at = None;
            return;
        }
        let Some(oldest) = self.successor() else {
            // The next change of the membership brings one, or this node back.
            self.retry_at = None;
            if self.self_leaves() {
                self.become_stopping(out);
            }
            return;
        };
        let fresh = self.offered.as_ref() != Some(&oldest);
        if !fresh && self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.offered = Some(oldest.clone());
        self.retry_at = Some(now + self.retry_interval);
        self.retries += 1;
        if self.retries > self.take_over_retries {
            if self.self_leaves() {
                return self.become_stopping(out);
            }
            self.retries = 0;
            out.push(ManagerEffect::Stuck);
        }
        self.send(Kind::TakeOverFromMe, oldest, 0, out);
    }

    fn become_stopping(&mut self, out: &mut Vec<ManagerEffect>) {
        self.retry_at = None;
        self.state = if self.running { ManagerState::Stopping } else { ManagerState::End };
        self.stop_instance(out);
    }

    fn stop_instance(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running && !self.stopping {
            self.stopping = true;
            out.push(ManagerEffect::StopInstance);
        }
    }

    fn begin_hand_over(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.state = ManagerState::HandingOver;
        self.retry_at = None;
        self.claimants.clear();
        self.claim_while_ending(claimant, attempt, out);
        self.stop_instance(out);
        if !self.running {
            self.finish_hand_over(out);
        }
    }

    fn claim_while_ending(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.claimants.insert(claimant.clone(), attempt);
        self.send(Kind::HandOverInProgress, claimant, attempt, out);
    }

    fn finish_hand_over(&mut self, out: &mut Vec<ManagerEffect>) {
        for (claimant, attempt) in std::mem::take(&mut self.claimants) {
            self.clear(claimant, attempt, out);
        }
        if self.self_leaves() || self.downed || self.state == ManagerState::Stopping {
            self.state = ManagerState::End;
        } else {
            self.become_younger();
        }
    }

    // --- inputs ---------------------------------------------------------------------------------

    fn on_instance_ended(&mut self, out: &mut Vec<ManagerEffect>) {
        self.running = false;
        self.stopping = false;
        if matches!(self.state, ManagerState::HandingOver | ManagerState::Stopping) {
            self.finish_hand_over(out);
        }
        // Ended by itself: this node stays the oldest, and starts nothing anew.
    }

    fn on_exiting_phase(&mut self) {
        self.exiting_phase = true;
        self.list.remove(&self.node);
    }

    fn on_self_downed(&mut self, out: &mut Vec<ManagerEffect>) {
        self.downed = true;
        match self.state {
            ManagerState::Oldest | ManagerState::WasOldest => self.become_stopping(out),
            ManagerState::HandingOver | ManagerState::Stopping => {}
            _ => self.state = ManagerState::End,
        }
    }

    fn on_message(&mut self, _now: Instant, message: SingletonMessage, out: &mut Vec<ManagerEffect>) {
        let SingletonMessage { kind, from, to, attempt } = message;
        if to != self.node {
            // For an older process at this address, which cannot run anything any more.
            if kind == Kind::HandOverToMe && to.address() == self.node.address() {
                let done = SingletonMessage { kind: Kind::HandOverDone, from: to, to: from, attempt };
                out.push(ManagerEffect::Send(done));
            }
            return;
        }
        match kind {
            Kind::HandOverToMe if self.may_claim(&from) => self.on_hand_over_to_me(from, attempt, out),
            Kind::HandOverToMe => {}
            Kind::TakeOverFromMe => self.on_take_over_from_me(from, out),
            Kind::HandOverInProgress => {
                if self.asked.get(&from) == Some(&attempt) {
                    self.in_progress.insert(from);
                }
            }
            Kind::HandOverDone => {
                if self.state == ManagerState::BecomingOldest && self.asked.get(&from) == Some(&attempt) {
                    self.in_progress.remove(&from);
                    self.cleared.insert(from);
                }
            }
        }
    }

    /// Claims of processes that could not start anyway are left unanswered; views catch up.
    fn may_claim(&self, claimant: &UniqueAddress) -> bool {
        let member = self.view.as_ref().and_then(|view| view.member(claimant));
        member.is_some_and(|member| member.status < MemberStatus::Exiting)
    }

    fn on_hand_over_to_me(&mut self, from: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => {
                self.clear(from, attempt, out);
            }
            ManagerState::Oldest | ManagerState::WasOldest => self.begin_hand_over(from, attempt, out),
            ManagerState::HandingOver | ManagerState::Stopping => self.claim_while_ending(from, attempt, out),
        }
    }

    fn on_take_over_from_me(&mut self, from: UniqueAddress, out: &mut Vec<ManagerEffect>) {
        if self.gone.contains_key(&from) {
            return;
        }
        match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest => {
                self.cleared.remove(&from);
                self.asked.remove(&from);
                self.noted.insert(from);
            }
            ManagerState::Oldest => {
                self.asked.remove(&from);
                self.ask(&from, out);
            }
            ManagerState::WasOldest | ManagerState::HandingOver | ManagerState::Stopping | ManagerState::End => {}
        }
    }

    fn tell_exiting_done(&mut self, out: &mut Vec<ManagerEffect>) {
        let idle = match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => true,
            _ => !self.running,
        };
        if self.exiting_phase && idle && !self.exiting_told {
            self.exiting_told = true;
            out.push(ManagerEffect::ExitingDone);
        }
    }
}

#[cfg(test)]
mod tests;
