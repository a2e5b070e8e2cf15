//! The gate decides whether this replicator exchanges data with others, and which member judges whose store.
//!
//! ```text
//! closed   a store was loaded that has exchanged something; data go to and come from current members only that
//!          have forgotten nothing since both histories parted
//! open     data are exchanged; *current* is a replicator that made the start or completed a round with a current one
//! refused  the store is too old: the replicator answers questions about itself and does nothing else
//!
//! question   a replicator that is not current --SyncOpen about nothing--> every member --SyncSame--> its standing
//! the start  once all members have answered and none is current, the first in order opens its gate and is current
//! a store    closed --passed by a current member, then a complete round with it--> open and current
//! ```
//!
//! A store may lack what others have pruned or deleted, and forgotten. Two such stores that met and believed each other
//! would count updates twice and bring back what was removed. So only a current member judges a store, and after a full
//! stop exactly one member is current at first. This machine keeps the facts for that (`synced_at`, `forget_horizon`,
//! the starts) and the standing of every member; the replicator handles entries and messages.
//!
//! Source: ddata Z9, Z11.

mod members;
mod standing;
mod start;
mod starts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_crdt::ReplicaId;

pub(crate) use members::MemberStanding;
use members::Members;
pub use standing::{GateState, Standing, StartsOrDigest};
pub(crate) use starts::KEPT as STARTS_KEPT;
pub use starts::{Start, Starts};

use crate::api::settings::ReplicatorSettings;
use crate::api::settings::durable::StaleStore;
use crate::api::settings::omissions::{Clause, Omissions};
use crate::membership::replicas::Replicas;
use crate::pruning::millis;
use crate::storage::store::StoreMeta;

/// How often a closed gate reports the members that it waits for.
const TELLING: Duration = Duration::from_secs(60);

/// The time of an input, by both clocks, with the last number drawn before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) wall_ms: i64,
    pub(crate) last_number: u64,
}

/// An effect of the gate, which the replicator carries out in the order of the effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GateEffect {
    /// Ask a member for its standing.
    Ask(UniqueAddress),
    /// Horizon or starts were taken over: store them before any data, and restart running rounds.
    TookOver,
    /// The horizon rose: store it before anything that was forgotten, or that came from the member that forgot it.
    Raised,
    /// The gate opened. Markers performed since about `parted` count as performed now.
    Opened { parted: i64 },
    /// The own history is older than what a member has forgotten, or has forgotten what that member has not.
    Stale(Stale),
    /// A member's horizon lies so many milliseconds ahead of the own clock, and is ignored.
    Implausible { peer: UniqueAddress, ahead_ms: i64 },
    /// Remembered times lie so many milliseconds ahead of the own clock, and count as now.
    ClockWentBack { by_ms: i64 },
    /// The gate is still closed, because of these members and of peers that were never met.
    Closed { waiting_for: Vec<UniqueAddress>, unmet: Vec<NodeAddress> },
}

/// Why a history is stale, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stale {
    pub(crate) policy: StaleStore,
    pub(crate) synced_at: i64,
    pub(crate) parted: i64,
    pub(crate) own_horizon: Option<i64>,
    pub(crate) horizon: Option<i64>,
    pub(crate) peer: UniqueAddress,
    /// Whether only loaded data are stale; else all data here.
    pub(crate) is_of_store: bool,
}

/// The settings of the gate.
#[derive(Debug)]
struct GateRules {
    stale_store: StaleStore,
    /// The time after which a closed gate opens by itself if no other member is known.
    opens_alone_after: Duration,
    skew_ms: i64,
    interval: Duration,
    omissions: Omissions,
}

/// The place of this replicator in membership, and whether its store is loaded.
#[derive(Debug, Default)]
struct LocalState {
    is_voter: bool,
    /// Configured peers that were never met.
    unmet: BTreeSet<NodeAddress>,
    is_loaded: bool,
}

/// The questions under way.
#[derive(Debug, Default)]
struct Asking {
    /// Only answers to rounds with greater numbers count.
    above: u64,
    /// When members that have not answered are asked again; `None` while no question is open.
    next_at: Option<Instant>,
}

/// The judgement of a current member that let this store pass.
#[derive(Debug, Clone)]
struct Passed {
    /// When the histories of both parted.
    parted: i64,
    /// The starts of the member that judged, with which the gate opens: that member's replicator may restart before
    /// the round is complete, and then knows none.
    starts: Starts,
}

/// The gate's state machine.
#[derive(Debug)]
pub(crate) struct Gate {
    own: ReplicaId,
    rules: GateRules,
    place: LocalState,
    state: GateState,
    is_current: bool,
    /// Whether data, or sums over them, were ever exchanged with another replicator.
    has_exchanged: bool,
    synced_at: Option<i64>,
    forget_horizon: Option<i64>,
    starts: Starts,
    members: Members,
    asking: Asking,
    /// The members that let this store pass while the gate is closed.
    passed: BTreeMap<UniqueAddress, Passed>,
    /// Since when no other member is known.
    alone_since: Option<Instant>,
    tell_at: Option<Instant>,
}

impl Gate {
    /// A gate that is open and not current. If there is a store, nothing is asked before it is loaded.
    pub(crate) fn new(own: ReplicaId, settings: &ReplicatorSettings, now: Instant) -> Self {
        let rules = GateRules {
            stale_store: settings.durable.stale_store,
            opens_alone_after: settings.durable.pruning_marker_time_to_live,
            skew_ms: millis(settings.max_clock_skew),
            interval: settings.gossip_interval,
            omissions: settings.omissions,
        };
        Self {
            own,
            rules,
            place: LocalState { is_loaded: !settings.durable.is_used(), ..LocalState::default() },
            state: GateState::Open,
            is_current: false,
            has_exchanged: false,
            synced_at: None,
            forget_horizon: None,
            starts: Starts::default(),
            members: Members::default(),
            asking: Asking::default(),
            passed: BTreeMap::new(),
            alone_since: Some(now),
            tell_at: None,
        }
    }

    fn omits(&self, clause: Clause) -> bool {
        self.rules.omissions.has(clause)
    }

    /// Notes that the store is loaded. The gate closes if the store has ever exchanged anything.
    pub(crate) fn on_loaded(
        &mut self,
        at: Moment,
        meta: Option<&StoreMeta>,
        has_entries: bool,
        out: &mut Vec<GateEffect>,
    ) {
        self.place.is_loaded = true;
        if let Some(meta) = meta {
            self.has_exchanged = meta.has_met_others;
            self.synced_at = meta.synced_at;
            self.forget_horizon = self.forget_horizon.max(meta.forget_horizon);
            self.starts = meta.starts.clone();
        } else if has_entries {
            // The store has entries but does not say how old they are: treat them as being as old as can be.
            self.has_exchanged = true;
            self.synced_at = Some(i64::MIN);
        }
        self.on_wall(at.wall_ms, out);
        if self.has_exchanged && !self.omits(Clause::StaleStore) {
            self.state = GateState::Closed;
        }
        self.ask_all(at, out);
        self.consider_start(at, out);
    }

    /// Takes the wall clock. Remembered times further ahead of it than clocks may differ count as now.
    pub(crate) fn on_wall(&mut self, wall_ms: i64, out: &mut Vec<GateEffect>) {
        let latest = [self.forget_horizon, self.synced_at].into_iter().flatten().max();
        let Some(latest) = latest.filter(|latest| !self.is_plausible(wall_ms, *latest)) else { return };
        out.push(GateEffect::ClockWentBack { by_ms: latest.saturating_sub(wall_ms) });
        self.forget_horizon = self.forget_horizon.map(|horizon| horizon.min(wall_ms));
        self.synced_at = self.synced_at.map(|synced_at| synced_at.min(wall_ms));
    }

    fn is_plausible(&self, wall_ms: i64, time: i64) -> bool {
        self.omits(Clause::Horizon) || time <= wall_ms.saturating_add(self.rules.skew_ms)
    }

    /// Takes a change of membership. Has no effects while the store is not loaded.
    pub(crate) fn on_replicas(&mut self, at: Moment, replicas: &Replicas, out: &mut Vec<GateEffect>) {
        self.place.is_voter = replicas.own_is_voter();
        self.place.unmet.clone_from(&replicas.unmet);
        let known: BTreeSet<UniqueAddress> = replicas.others.iter().map(|replica| replica.address.clone()).collect();
        let has_changed = self.members.set(&known);
        self.passed.retain(|peer, _| known.contains(peer));
        if known.is_empty() && replicas.unmet.is_empty() {
            self.alone_since.get_or_insert(at.now);
        } else {
            self.alone_since = None;
        }
        if has_changed {
            self.members.forget_answers();
            if !self.is_current {
                self.ask_all(at, out);
            }
        }
        self.consider_start(at, out);
    }

    /// Asks every member for its standing, which also shows it the standing of this replicator.
    fn ask_all(&mut self, at: Moment, out: &mut Vec<GateEffect>) {
        self.members.forget_answers();
        self.asking = Asking { above: at.last_number, next_at: None };
        if !self.place.is_loaded || self.state == GateState::Refused || self.members.is_empty() {
            return;
        }
        self.asking.next_at = Some(at.now + self.rules.interval);
        out.extend(self.members.addresses().cloned().map(GateEffect::Ask));
    }

    /// Keeps asking the members that have not answered, as long as their answers matter.
    fn ask_on(&mut self, at: Moment) {
        if self.place.is_loaded && self.state != GateState::Refused && !self.is_current {
            self.asking.next_at.get_or_insert(at.now + self.rules.interval);
        }
    }

    /// Takes a member's standing, perhaps in answer to the round with this number. Messages overtake each other: a
    /// standing older than one that came before is ignored, but may be the awaited answer.
    pub(crate) fn on_standing(
        &mut self,
        at: Moment,
        from: &UniqueAddress,
        standing: &Standing,
        answers: Option<u64>,
        out: &mut Vec<GateEffect>,
    ) {
        let counts = answers.is_some_and(|number| number > self.asking.above);
        if self.members.is_news(from, standing.number) {
            let Some(starts) = self.resolve(from, &standing.starts) else {
                // The member believes that this replicator knows its starts; the next question corrects that.
                self.members.forget(from);
                return self.ask_on(at);
            };
            self.note_standing(at, from, standing, starts, out);
        }
        if counts {
            self.members.note_answer(from);
        }
        if self.members.awaited().next().is_none() {
            self.asking.next_at = None;
        }
        match self.state {
            GateState::Refused => return,
            GateState::Closed => self.judge(from, out),
            GateState::Open => self.meet(at, from, out),
        }
        self.note_synced_at(from);
        self.consider_start(at, out);
    }

    /// Notes a member's latest standing.
    fn note_standing(
        &mut self,
        at: Moment,
        from: &UniqueAddress,
        standing: &Standing,
        starts: Starts,
        out: &mut Vec<GateEffect>,
    ) {
        let horizon = standing.forget_horizon.filter(|horizon| self.is_plausible(at.wall_ms, *horizon));
        if let (Some(told), None) = (standing.forget_horizon, horizon) {
            let ahead_ms = told.saturating_sub(at.wall_ms);
            out.push(GateEffect::Implausible { peer: from.clone(), ahead_ms });
        }
        // Bound the time: a member whose time in touch lies in the future would come first in the order, at every
        // replicator.
        let latest = at.wall_ms.saturating_add(self.rules.skew_ms);
        let member = MemberStanding {
            replica: ReplicaId(from.uid().get()),
            forget_horizon: horizon,
            synced_at: standing.synced_at.map(|synced_at| synced_at.min(latest)),
            starts,
            state: standing.state,
            is_current: standing.is_current,
        };
        let came_before = self.is_preceded_by(&member, at.wall_ms);
        self.members.set_standing(from, member, came_before);
    }

    fn resolve(&self, from: &UniqueAddress, told: &StartsOrDigest) -> Option<Starts> {
        match told {
            StartsOrDigest::Listed(starts) => Some(starts.clone()),
            StartsOrDigest::Known(digest) => {
                let former = self.members.standing_of(from).map(|member| &member.starts);
                [Some(&self.starts), former].into_iter().flatten().find(|starts| starts.digest() == *digest).cloned()
            }
        }
    }

    /// Lets a member judge this store while the gate is closed, if that member is current.
    fn judge(&mut self, from: &UniqueAddress, out: &mut Vec<GateEffect>) {
        let Some(member) = self.members.standing_of(from).filter(|member| self.may_judge(member)).cloned() else {
            return;
        };
        if !self.passed.is_empty() && self.rules.stale_store == StaleStore::Force {
            // A current member judged this store before; the setting forced the store in, and the operator was told.
            self.note_passed(from, i64::MIN, &member.starts);
            return self.take_horizon(member.forget_horizon, out);
        }
        let synced_at = self.synced_at.unwrap_or(i64::MIN);
        let parted = self.starts.parted(synced_at, &member.starts);
        if self.forget_horizon.max(member.forget_horizon) > Some(parted) {
            return self.become_stale(from, &member, synced_at, parted, out);
        }
        self.note_passed(from, parted, &member.starts);
        self.take_horizon(member.forget_horizon, out);
    }

    /// When the histories of this store and of a member that lets it pass parted; `None` once the gate is open.
    pub(crate) fn parted_from(&self, peer: &UniqueAddress) -> Option<i64> {
        self.passed.get(peer).filter(|_| self.state == GateState::Closed).map(|passed| passed.parted)
    }

    /// Notes that a member judged this store and lets it pass.
    fn note_passed(&mut self, from: &UniqueAddress, parted: i64, starts: &Starts) {
        self.passed.insert(from.clone(), Passed { parted, starts: starts.clone() });
    }

    fn may_judge(&self, member: &MemberStanding) -> bool {
        let is_open = member.state == GateState::Open;
        member.is_current_for(&self.starts)
            || (self.omits(Clause::AnyJudge) && !member.is_refused())
            || (self.omits(Clause::OpenJudge) && is_open)
    }

    /// Meets a member with the gate open: takes over the member's start if it takes precedence.
    fn meet(&mut self, at: Moment, from: &UniqueAddress, out: &mut Vec<GateEffect>) {
        let is_open = |member: &&MemberStanding| member.state == GateState::Open;
        let Some(member) = self.members.standing_of(from).filter(is_open).cloned() else { return };
        if !self.adopts_start_of(&member) {
            return;
        }
        let own = self.own_standing(at.wall_ms);
        let takes_over = if self.starts.is_empty() || member.starts.has_no_base() {
            true
        } else if self.is_older_than(&member) {
            self.become_stale(from, &member, i64::MIN, i64::MIN, out);
            return if self.state == GateState::Open {
                self.meet(at, from, out);
            };
        } else {
            member.is_current && (!self.is_current || own.is_current_without_base())
        };
        if takes_over {
            self.starts = member.starts;
            // The own data are those of the former history until a round in the new one is complete.
            self.is_current = false;
            self.forget_horizon = self.forget_horizon.max(member.forget_horizon);
            out.push(GateEffect::TookOver);
            self.ask_all(at, out);
        }
    }

    /// Whether a member's start takes precedence over the one known here: because it is later, or because no member
    /// went on from the one known here, so that waiting for such a member would never end. So a replicator that hears
    /// of two histories goes over once, and not back and forth for ever.
    fn adopts_start_of(&self, member: &MemberStanding) -> bool {
        let Some(latest) = member.starts.latest().filter(|latest| !self.starts.contains(latest)) else { return false };
        let has_a_leader = || self.members.unrefused().any(|other| other.went_on_from(&self.starts));
        member.starts.are_later_than(&self.starts) || (latest.base.is_some() && !self.is_current && !has_a_leader())
    }

    /// Whether this replicator, with an open gate and not current, is too old for a current member with a later start:
    /// it may hold data of a former history, and one of both has forgotten something. If only the start of a new
    /// history is known here, all data here were made in that history; the other history never knew them and so never
    /// forgot them.
    fn is_older_than(&self, member: &MemberStanding) -> bool {
        let has_forgotten = self.forget_horizon.max(member.forget_horizon).is_some();
        member.is_current && !self.is_current && has_forgotten && !self.starts.has_no_base()
    }

    /// Notes that this history and that of a current member differ in what they have forgotten.
    fn become_stale(
        &mut self,
        from: &UniqueAddress,
        member: &MemberStanding,
        synced_at: i64,
        parted: i64,
        out: &mut Vec<GateEffect>,
    ) {
        let (policy, is_of_store) = (self.rules.stale_store, self.state == GateState::Closed);
        let (own_horizon, horizon, peer) = (self.forget_horizon, member.forget_horizon, from.clone());
        out.push(GateEffect::Stale(Stale { policy, synced_at, parted, own_horizon, horizon, peer, is_of_store }));
        match policy {
            StaleStore::Refuse => {
                self.state = GateState::Refused;
                self.asking.next_at = None;
                self.passed.clear();
            }
            StaleStore::Discard => {
                self.state = GateState::Open;
                self.starts = Starts::default();
                (self.has_exchanged, self.synced_at) = (false, None);
                self.passed.clear();
            }
            StaleStore::Force => {
                self.starts = Starts::default();
                if is_of_store {
                    self.note_passed(from, parted, &member.starts);
                }
                self.take_horizon(member.forget_horizon, out);
            }
        }
    }

    fn take_horizon(&mut self, horizon: Option<i64>, out: &mut Vec<GateEffect>) {
        if horizon > self.forget_horizon {
            self.forget_horizon = horizon;
            out.push(GateEffect::TookOver);
        }
    }

    /// Notes that a round with a member is complete, which began at `began_ms`, told this horizon, and exchanged
    /// everything.
    pub(crate) fn on_complete_round(
        &mut self,
        at: Moment,
        peer: &UniqueAddress,
        began_ms: i64,
        all_were_reachable: bool,
        out: &mut Vec<GateEffect>,
    ) {
        let Some(member) = self.members.standing_of(peer).filter(|_| self.exchanges_with(peer)).cloned() else {
            return;
        };
        self.note_exchange(peer);
        if !member.is_closed() && all_were_reachable {
            self.synced_at = self.synced_at.max(Some(began_ms));
        }
        self.raise_horizon(member.forget_horizon, out);
        if let Some(passed) = self.passed.get(peer).cloned().filter(|_| self.state == GateState::Closed) {
            self.starts = passed.starts;
            self.open(passed.parted, out);
            self.ask_all(at, out);
        } else if !self.is_current && member.is_current_for(&self.starts) {
            self.is_current = true;
        }
    }

    fn open(&mut self, parted: i64, out: &mut Vec<GateEffect>) {
        self.state = GateState::Open;
        self.is_current = true;
        self.passed.clear();
        self.tell_at = None;
        out.push(GateEffect::Opened { parted });
        out.push(GateEffect::TookOver);
    }

    /// Notes that data, or sums over them, went to or came from a member. Returns whether this is the first exchange
    /// ever.
    pub(crate) fn note_exchange(&mut self, peer: &UniqueAddress) -> bool {
        if self.has_exchanged || self.state != GateState::Open {
            return false;
        }
        self.has_exchanged = true;
        self.synced_at = Some(i64::MIN);
        self.note_synced_at(peer);
        true
    }

    /// Takes over a member's time in touch: until its first complete round a replicator is as old as the member with
    /// which it exchanged data.
    fn note_synced_at(&mut self, peer: &UniqueAddress) {
        if self.state == GateState::Open && self.has_exchanged && self.synced_at == Some(i64::MIN) {
            self.synced_at = self.members.standing_of(peer).and_then(|member| member.synced_at).or(self.synced_at);
        }
    }

    /// Raises the horizon: something was forgotten, here or at a member, that others may still hold.
    pub(crate) fn raise_horizon(&mut self, horizon: Option<i64>, out: &mut Vec<GateEffect>) {
        if horizon > self.forget_horizon {
            self.forget_horizon = horizon;
            out.push(GateEffect::Raised);
        }
    }

    /// Takes over the horizon that a member told, because its data come. A closed gate took it over when it was passed.
    pub(crate) fn take_horizon_of(&mut self, peer: &UniqueAddress, out: &mut Vec<GateEffect>) {
        let told = self.members.standing_of(peer).and_then(|member| member.forget_horizon);
        if self.state == GateState::Open {
            self.raise_horizon(told, out);
        }
    }

    /// Does everything that is due.
    pub(crate) fn on_tick(&mut self, at: Moment, out: &mut Vec<GateEffect>) {
        if self.asking.next_at.is_some_and(|next| next <= at.now) {
            let awaited: Vec<GateEffect> = self.members.awaited().cloned().map(GateEffect::Ask).collect();
            self.asking.next_at = (!awaited.is_empty()).then(|| at.now + self.rules.interval);
            out.extend(awaited);
        }
        if self.opens_alone_at().is_some_and(|opens_alone_at| opens_alone_at <= at.now) {
            self.make_start(at, self.synced_at, out);
        }
        self.tell_closed(at, out);
    }

    fn tell_closed(&mut self, at: Moment, out: &mut Vec<GateEffect>) {
        if !self.excludes_members() {
            self.tell_at = None;
            return;
        }
        let tell_at = *self.tell_at.get_or_insert(at.now + TELLING);
        if tell_at <= at.now {
            self.tell_at = Some(at.now + TELLING);
            let awaited: Vec<UniqueAddress> = self.members.awaited().cloned().collect();
            let unmet: Vec<NodeAddress> = self.place.unmet.iter().cloned().collect();
            let waiting_for = if awaited.is_empty() && unmet.is_empty() { self.ahead(at.wall_ms) } else { awaited };
            out.push(GateEffect::Closed { waiting_for, unmet });
        }
    }

    /// When the next thing is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [self.asking.next_at, self.opens_alone_at(), self.tell_at].into_iter().flatten().min()
    }

    /// When a closed gate that knows no other member opens by itself.
    fn opens_alone_at(&self) -> Option<Instant> {
        let waits = self.state == GateState::Closed && self.place.is_voter && self.members.is_empty();
        self.alone_since.filter(|_| waits).and_then(|since| since.checked_add(self.rules.opens_alone_after))
    }

    /// Whether data are exchanged with a member.
    pub(crate) fn exchanges_with(&self, peer: &UniqueAddress) -> bool {
        match self.state {
            GateState::Refused => false,
            GateState::Closed => self.passed.contains_key(peer),
            GateState::Open => match self.members.standing_of(peer) {
                None => self.starts.is_empty(),
                Some(member) => match member.state {
                    GateState::Refused => false,
                    GateState::Closed => self.is_current,
                    GateState::Open => self.starts.latest().is_none_or(|latest| member.starts.contains(latest)),
                },
            },
        }
    }

    /// Whether a member has told its standing.
    pub(crate) fn has_heard(&self, peer: &UniqueAddress) -> bool {
        self.members.standing_of(peer).is_some()
    }

    /// Whether a round with a member may be opened: its standing may still be unknown.
    pub(crate) fn may_open(&self, peer: &UniqueAddress) -> bool {
        let is_unheard = self.members.standing_of(peer).is_none();
        self.exchanges_with(peer) || (is_unheard && self.state == GateState::Open)
    }

    /// Whether deltas may go to a member: a member whose gate is closed takes data in rounds only.
    pub(crate) fn takes_deltas(&self, peer: &UniqueAddress) -> bool {
        self.exchanges_with(peer) && self.members.standing_of(peer).is_none_or(|member| !member.is_closed())
    }

    /// The standing of this replicator for a member; `number` was never used before.
    pub(crate) fn standing_for(&self, peer: &UniqueAddress, number: u64, wall_ms: i64) -> Standing {
        let knows = |member: &MemberStanding| !self.starts.is_empty() && member.starts == self.starts;
        let starts = match self.members.standing_of(peer).is_some_and(knows) {
            true => StartsOrDigest::Known(self.starts.digest()),
            false => StartsOrDigest::Listed(self.starts.clone()),
        };
        Standing {
            number,
            forget_horizon: self.forget_horizon,
            synced_at: self.synced_at_now(wall_ms),
            starts,
            state: self.state,
            is_current: self.is_current,
        }
    }

    fn synced_at_now(&self, wall_ms: i64) -> Option<i64> {
        if self.has_exchanged { self.synced_at } else { Some(wall_ms) }
    }

    fn own_standing(&self, wall_ms: i64) -> MemberStanding {
        MemberStanding {
            replica: self.own,
            forget_horizon: self.forget_horizon,
            synced_at: self.synced_at_now(wall_ms),
            starts: self.starts.clone(),
            state: self.state,
            is_current: self.is_current,
        }
    }

    /// Writes the gate's part of the store's own record.
    pub(crate) fn remember(&self, wall_ms: i64, meta: &mut StoreMeta) {
        meta.synced_at = self.synced_at_now(wall_ms);
        meta.has_met_others = self.has_exchanged;
        meta.forget_horizon = self.forget_horizon;
        meta.starts = self.starts.clone();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == GateState::Closed
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.state == GateState::Refused
    }

    /// Whether this replicator judges the stores of others.
    pub(crate) fn is_current(&self) -> bool {
        self.is_current
    }

    /// Whether the gate is closed, and that keeps out a member or a configured peer that was never met.
    pub(crate) fn excludes_members(&self) -> bool {
        self.is_closed() && !(self.members.is_empty() && self.place.unmet.is_empty())
    }

    pub(crate) fn refused(&self) -> BTreeSet<UniqueAddress> {
        self.members.refused().cloned().collect()
    }

    /// Whether markers may be forgotten: neither this replicator nor any known member can bring back what the markers
    /// removed. Source: ddata Z9.
    pub(crate) fn may_forget(&self) -> bool {
        let is_one = self.is_current || (self.state == GateState::Open && self.members.is_empty());
        is_one && self.members.all(|member| member.is_current)
    }

    /// Whether anything may be pruned: no store is kept out that may hold more data. Source: ddata Z2.
    pub(crate) fn may_prune(&self) -> bool {
        !self.is_refused() && !self.excludes_members() && self.members.all(|member| !member.is_closed())
    }
}
