//! The state of one node's relation to another address: which incarnation runs there, which streams to it are open,
//! which incarnations are never spoken to again.
//!
//! One machine per peer address. Each lane is idle, waiting to dial, dialling, or active with one
//! incarnation; an accepted handshake, in either direction, says which incarnation that is. An older
//! one is *retired*, a *quarantined* one is refused by name. A retired one comes back only by answering,
//! at its address, a dial that began after its retirement: then the Hello that replaced it was late. While a
//! *member* holds the address, the Hello of another process there teaches nothing: where it can have replaced the
//! member, its answer to a dial decides, and where it cannot, it is refused until the member is removed. The machine
//! never sees a message: it opens and shuts the gate of each lane's queue, and says when the messages that wait
//! there are to be failed or handed back.
//!
//! ```text
//! idle --Wanted--> dialing --Accepted--> active --Failed--> waiting (backoff) --> dialing ...
//!            dialing --Failed--> waiting (handshake retry) --handshake timeout--> idle, queue failed
//!            dialing --Rejected for good--> idle, queue failed
//!                                      active --no traffic--> closing --Failed--> idle
//! ```
//!
//! Source: cluster T11, T14, T15, T18 to T21, T24, T31, T32.

mod asking;
mod claims;
mod input;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Uid, UniqueAddress};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use claims::{Claim, Claims};
pub use input::{Effect, Event, Input};

use crate::holder::Holder;
use crate::lanes::lane::Lane;
use crate::remoting::{QuarantineReason, RejectCode};
use crate::settings::TransportSettings;

/// A stream that held this long was good: the next pause is short again.
const GOOD_STREAM: Duration = Duration::from_secs(10);
/// Notices to one quarantined incarnation come at most this often.
const NOTICE_INTERVAL: Duration = Duration::from_secs(5);
/// The patience with an idle peer is divided into this many parts; at the end of each the peer is probed.
const PROBES: u32 = 10;
/// Dead incarnations remembered per address: more than ever restarted at one address in any log of ours.
const MAX_RETIRED: usize = 64;

/// A process that runs no more at its address, as remembered after the association with the address was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetiredUid {
    /// The incarnation.
    pub uid: Uid,
    /// The process was only replaced: if it answers at its address, it is the one that runs.
    pub may_return: bool,
}

/// The association with one peer address.
#[derive(Debug)]
pub struct Association {
    settings: TransportSettings,
    rng: ChaCha8Rng,
    peer: Option<Uid>,
    incarnation: u32,
    /// The incarnation has accepted a stream of ours, so a failing dial is a reconnect.
    established: bool,
    /// The oldest first.
    retired: VecDeque<Retired>,
    quarantined: BTreeMap<Uid, Quarantine>,
    /// Processes that were removed from the cluster: their quarantines do not expire, and such a process is refused
    /// also if it was never quarantined here.
    tombstones: BTreeSet<Uid>,
    /// Retired incarnations that a layer above asked to quarantine: refused already, so each is only reported, once,
    /// and never comes back.
    ignored: BTreeSet<Uid>,
    /// The members that hold the address, and claims of other processes to it.
    claims: Claims,
    probing: ProbeState,
    terminating: Option<(Uid, Instant)>,
    lanes: BTreeMap<Lane, LaneState>,
    next_seq: u64,
    is_shut_down: bool,
}

/// The last sign of life of the peer, and how many probes were due since.
#[derive(Debug, Default)]
struct ProbeState {
    heard_at: Option<Instant>,
    probes: u32,
}

/// A process that was replaced at its address, or one whose quarantine was forgotten.
#[derive(Debug)]
struct Retired {
    uid: Uid,
    /// The first dial that began after the process had been replaced: an answer of the process to this or a later dial
    /// proves that the process runs. `None`: the process never comes back.
    proof_from: Option<u64>,
}

#[derive(Debug)]
struct Quarantine {
    reason: QuarantineReason,
    harmless: bool,
    noticed_at: Option<Instant>,
    used_at: Instant,
}

#[derive(Debug, Default)]
struct LaneState {
    phase: LanePhase,
    /// When the oldest of the messages that wait for a first handshake began to wait.
    wanted_at: Option<Instant>,
    /// Earliest time of the next dial, whatever the dial is wanted for.
    not_before: Option<Instant>,
    failures: u32,
    /// The active stream that a second one is to replace.
    doubled: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LanePhase {
    #[default]
    Idle,
    Waiting {
        until: Instant,
    },
    Dialing {
        seq: u64,
    },
    Active {
        seq: u64,
        since: Instant,
        quiet_since: Instant,
        /// When to ask again whether the stream is still quiet.
        ask_at: Instant,
    },
    /// Closed because no traffic came; the peer still reads the rest of the stream. The next stream begins only after
    /// the end of this one, since a newer stream would make the peer drop the rest.
    Closing {
        seq: u64,
    },
    /// Open for notices only, until it closes.
    Shutting {
        seq: u64,
        until: Instant,
    },
}

impl Association {
    /// Makes an association with an unknown peer. The seed decides the jitter of pauses.
    pub fn new(settings: TransportSettings, seed: u64) -> Self {
        Self {
            settings,
            rng: ChaCha8Rng::seed_from_u64(seed),
            peer: None,
            incarnation: 0,
            established: false,
            retired: VecDeque::new(),
            quarantined: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            ignored: BTreeSet::new(),
            claims: Claims::default(),
            probing: ProbeState::default(),
            terminating: None,
            lanes: BTreeMap::new(),
            next_seq: 1,
            is_shut_down: false,
        }
    }

    /// Adds what a former association remembered of the address, as given by [`Association::retired_uids`].
    #[must_use]
    pub fn remembering(mut self, retired: impl IntoIterator<Item = RetiredUid>) -> Self {
        let proof_from = |entry: &RetiredUid| entry.may_return.then_some(self.next_seq);
        self.retired =
            retired.into_iter().map(|entry| Retired { uid: entry.uid, proof_from: proof_from(&entry) }).collect();
        self
    }

    /// Sets the members that hold the address.
    #[must_use]
    pub fn held_by(mut self, holders: Vec<Holder>) -> Self {
        self.claims = Claims::of(holders);
        self
    }

    /// Sets the processes at the address that were removed from the cluster.
    #[must_use]
    pub fn tombstoned(mut self, uids: BTreeSet<Uid>) -> Self {
        self.tombstones = uids;
        self
    }

    /// The processes that must not come back, the oldest first.
    pub fn retired_uids(&self) -> impl Iterator<Item = RetiredUid> {
        self.retired.iter().map(|Retired { uid, proof_from }| {
            let is_wanted = !self.tombstones.contains(uid) && !self.ignored.contains(uid);
            RetiredUid { uid: *uid, may_return: proof_from.is_some() && is_wanted }
        })
    }

    /// Whether the association can be dropped: no process is known to run there, nothing is under way, and nothing is
    /// remembered but [`Association::retired_uids`].
    pub fn is_droppable(&self) -> bool {
        let is_idle = |state: &LaneState| state.phase == LanePhase::Idle && state.wanted_at.is_none();
        self.peer.is_none()
            && self.quarantined.is_empty()
            && self.terminating.is_none()
            && self.lanes.values().all(is_idle)
    }

    /// Whether nothing is under way, and the incarnation that called from there was never reached.
    pub fn is_unreached(&self) -> bool {
        let is_idle = |state: &LaneState| state.phase == LanePhase::Idle && state.wanted_at.is_none();
        !self.established && self.terminating.is_none() && self.lanes.values().all(is_idle)
    }

    /// Whether a process of this address is quarantined for another reason than leaving in order.
    pub fn has_quarantined(&self) -> bool {
        self.quarantined.values().any(|entry| !entry.harmless)
    }

    /// The processes of this address that left in order and are still quarantined for it.
    pub fn left_in_order(&self) -> impl Iterator<Item = Uid> {
        self.quarantined.iter().filter(|(_, entry)| entry.harmless).map(|(uid, _)| *uid)
    }

    /// The incarnation that runs, as far as is known.
    pub fn peer(&self) -> Option<Uid> {
        self.peer
    }

    /// Whether nothing may go to or come from this incarnation: it is quarantined, a newer one replaced it, or it was
    /// removed from the cluster before this node knew it.
    pub fn is_dead(&self, uid: Uid) -> bool {
        self.is_retired(uid) || self.quarantined.contains_key(&uid) || self.is_tombstoned(uid)
    }

    /// Whether this incarnation was removed from the cluster and was no member here before. A former member is not
    /// included: membership quarantines it by name, a little later if it left in order.
    fn is_tombstoned(&self, uid: Uid) -> bool {
        self.tombstones.contains(&uid) && !self.claims.held(uid)
    }

    fn is_retired(&self, uid: Uid) -> bool {
        self.retired.iter().any(|retired| retired.uid == uid)
    }

    /// The index among the retired of a process that was replaced, if its answer to dial `seq` proves that it runs all
    /// the same. Hellos of several processes come in any order, and may be forged; the process that answers at the
    /// address is the one that runs there. A process that was quarantined or removed by name stays refused.
    fn proven(&self, uid: Uid, seq: u64) -> Option<usize> {
        let is_wanted =
            !self.quarantined.contains_key(&uid) && !self.tombstones.contains(&uid) && !self.ignored.contains(&uid);
        let at = self.retired.iter().position(|retired| retired.uid == uid)?;
        (is_wanted && self.retired[at].proof_from.is_some_and(|first| seq >= first)).then_some(at)
    }

    /// Handles one input. Infallible: an input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Wanted { lane } => self.on_wanted(now, lane, out),
            Input::Accepted { lane, seq, uid, host_id } => {
                self.on_accepted(now, (lane, seq), uid, host_id.as_deref(), out);
            }
            Input::Rejected { lane, seq, code, by, reason, holder, detail } => {
                self.on_rejected(now, (lane, seq), code, by.zip(reason), (holder, detail), out);
            }
            Input::Failed { lane, seq } => self.on_failed(now, lane, seq, out),
            Input::Traffic { lane, seq, any } => self.on_traffic(now, (lane, seq), any, out),
            Input::Hello { uid, host_id } => self.on_hello(now, uid, host_id.as_deref(), out),
            Input::Holders { holders } => self.claims.set_holders(holders),
            Input::Ask => self.ask(now, true, out),
            Input::Intruded { uid } => self.on_intruded(now, uid, out),
            Input::ToldQuarantined { by, reason } => {
                if self.peer == Some(by) {
                    out.push(Effect::Publish(Event::ThisNodeQuarantined { by, reason }));
                }
            }
            Input::Unproven if !self.established => (self.probing.heard_at, self.probing.probes) = (None, 0),
            Input::Unproven => {}
            Input::Terminating { uid } => self.on_terminating(now, uid, out),
            Input::Quarantine { uid, reason, harmless } => self.on_quarantine(now, uid, reason, harmless, out),
            Input::Tombstones { uids } => {
                self.claims.forget_former(|uid| self.tombstones.contains(uid) && !uids.contains(uid));
                self.tombstones = uids;
            }
            Input::Duplicate { lane } => self.on_duplicate(lane, out),
            Input::Shutdown => self.on_shutdown(out),
            Input::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    /// Source: cluster T15, T19.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut speaks = false;
        for (lane, state) in &self.lanes {
            let is_active = matches!(state.phase, LanePhase::Active { .. });
            assert!(!is_active || state.doubled.is_none(), "{lane:?}: the second connection has replaced the first");
            assert!(!self.is_shut_down || state.phase == LanePhase::Idle, "{lane:?}: a node that ends opens no stream");
            speaks |= is_active;
        }
        let is_met = self.peer.is_some_and(|uid| !self.quarantined.contains_key(&uid) && !self.is_retired(uid));
        assert!(is_met || !(speaks || self.established), "a stream is open only to a process that is not refused");
        assert!(self.ignored.iter().all(|uid| self.is_retired(*uid)), "only replaced processes are ignored");
        assert!(self.retired.len() <= MAX_RETIRED, "the processes remembered of one address are bounded");
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lanes = self.lanes.values().filter_map(|lane| match lane.phase {
            LanePhase::Waiting { until } | LanePhase::Shutting { until, .. } => Some(until),
            LanePhase::Active { ask_at, .. } => Some(ask_at),
            LanePhase::Idle | LanePhase::Dialing { .. } | LanePhase::Closing { .. } => None,
        });
        let memory = self.settings.remove_quarantined_association_after;
        let expiring = self.quarantined.iter().filter(|(uid, _)| !self.tombstones.contains(uid));
        let forgotten = expiring.map(|(_, entry)| entry.used_at + memory);
        lanes.chain(forgotten).chain(self.terminating.map(|(_, at)| at)).chain(self.probe_at()).min()
    }

    /// When the next probe is due of a peer to which no stream is open.
    fn probe_at(&self) -> Option<Instant> {
        let is_spoken_to = || self.lanes.values().any(|state| matches!(state.phase, LanePhase::Active { .. }));
        if self.is_shut_down || self.peer.is_none_or(|uid| self.is_dead(uid)) || is_spoken_to() {
            return None;
        }
        let part = self.settings.quarantine_idle_outbound_after / PROBES;
        self.probing.heard_at.map(|at| at + part * (self.probing.probes + 1))
    }

    fn heard(&mut self, now: Instant) {
        self.probing = ProbeState { heard_at: Some(now), probes: 0 };
    }

    /// Dials a peer that was silent for another tenth of its time, or gives the peer up after the last tenth.
    fn probe(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.probing.probes += 1;
        if self.probing.probes < PROBES {
            if self.lane(Lane::CONTROL) == LanePhase::Idle {
                self.dial(Lane::CONTROL, out);
            }
        } else if let Some(uid) = self.peer {
            self.on_quarantine(now, uid, QuarantineReason::DeliveryGaveUp, false, out);
        }
    }

    fn on_wanted(&mut self, now: Instant, lane: Lane, out: &mut Vec<Effect>) {
        if self.is_shut_down {
            return;
        }
        let state = self.lanes.entry(lane).or_default();
        if state.phase != LanePhase::Idle {
            return;
        }
        state.wanted_at.get_or_insert(now);
        match state.not_before {
            Some(until) if until > now => state.phase = LanePhase::Waiting { until },
            _ => self.dial(lane, out),
        }
    }

    fn dial(&mut self, lane: Lane, out: &mut Vec<Effect>) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.lanes.entry(lane).or_default().phase = LanePhase::Dialing { seq };
        out.push(Effect::Dial { lane, seq });
    }

    fn on_accepted(
        &mut self,
        now: Instant,
        (lane, seq): (Lane, u64),
        uid: Uid,
        host_id: Option<&str>,
        out: &mut Vec<Effect>,
    ) {
        if self.lane(lane) != (LanePhase::Dialing { seq }) {
            out.push(Effect::Close { lane, seq });
            return;
        }
        if let Some(at) = self.proven(uid, seq) {
            self.retired.remove(at);
        }
        if self.is_dead(uid) {
            if let Some(entry) = self.quarantined.get_mut(&uid) {
                entry.used_at = now;
            }
            // The answering process is dead to this node: keep dialling until its successor answers.
            out.push(Effect::Close { lane, seq });
            self.retry(now, lane, out);
            return;
        }
        if let Claim::Held(holder) = self.claims.judge(uid, host_id) {
            // The address leads to another host now; the member is not there, and is not known to be gone.
            let holder = holder.member.clone();
            out.push(Effect::Close { lane, seq });
            self.tell_held(now, holder, uid, out);
            self.retry(now, lane, out);
            return;
        }
        self.learn(now, uid, out);
        self.heard(now);
        self.established = true;
        let ask_at = now + self.pause_between_questions();
        let state = self.lanes.entry(lane).or_default();
        state.phase = LanePhase::Active { seq, since: now, quiet_since: now, ask_at };
        (state.wanted_at, state.not_before) = (None, None);
        let doubled = state.doubled.take();
        out.push(Effect::Open { lane, seq, uid });
        out.extend(doubled.map(|seq| Effect::Close { lane, seq }));
    }

    fn on_rejected(
        &mut self,
        now: Instant,
        (lane, seq): (Lane, u64),
        code: RejectCode,
        notice: Option<(Uid, QuarantineReason)>,
        (holder, detail): (Option<UniqueAddress>, String),
        out: &mut Vec<Effect>,
    ) {
        if self.lane(lane) != (LanePhase::Dialing { seq }) {
            return;
        }
        if code.is_retryable() {
            if code == RejectCode::NotReady && holder.is_some() {
                out.push(Effect::Publish(Event::HandshakeRejected { code, holder, detail }));
            }
            self.retry(now, lane, out);
            return;
        }
        if let Some((by, reason)) = notice {
            out.push(Effect::Publish(Event::ThisNodeQuarantined { by, reason }));
        }
        out.push(Effect::FailQueue { lane, reason: DeadLetterReason::HandshakeRejected });
        out.push(Effect::Publish(Event::HandshakeRejected { code, holder, detail }));
        let pause = self.settings.handshake_retry_interval;
        self.rest(lane, Some(now + pause), out);
    }

    fn on_failed(&mut self, now: Instant, lane: Lane, seq: u64, out: &mut Vec<Effect>) {
        match self.lane(lane) {
            LanePhase::Dialing { seq: current } if current == seq => self.retry(now, lane, out),
            LanePhase::Active { seq: current, since, .. } if current == seq => {
                if now.saturating_duration_since(since) >= GOOD_STREAM {
                    self.lanes.entry(lane).or_default().failures = 0;
                }
                self.heard(now);
                out.push(Effect::Close { lane, seq });
                // A process that announced its end is not reported as lost; its quarantine follows (cluster T19 d).
                let terminating = self.terminating.map(|(uid, _)| uid);
                if let Some(uid) = self.peer.filter(|uid| terminating != Some(*uid)) {
                    out.push(Effect::Publish(Event::LinkLost { uid, lane }));
                }
                self.retry(now, lane, out);
            }
            LanePhase::Shutting { seq: current, .. } | LanePhase::Closing { seq: current } if current == seq => {
                self.rest(lane, None, out);
            }
            _ => {}
        }
    }

    /// How often an active stream is asked for traffic: idleness is known to a tenth of its limit.
    fn pause_between_questions(&self) -> Duration {
        (self.settings.stop_idle_outbound_after / 10).max(Duration::from_millis(1))
    }

    fn on_traffic(&mut self, now: Instant, (lane, seq): (Lane, u64), any: bool, out: &mut Vec<Effect>) {
        let limit = self.settings.stop_idle_outbound_after;
        let Some(state) = self.lanes.get_mut(&lane) else { return };
        let LanePhase::Active { seq: current, quiet_since, .. } = &mut state.phase else { return };
        if *current != seq {
            return;
        }
        if any {
            *quiet_since = now;
        } else if now.saturating_duration_since(*quiet_since) >= limit {
            state.phase = LanePhase::Closing { seq };
            out.push(Effect::Close { lane, seq });
            self.heard(now);
        }
    }

    /// Decides when the lane is dialled again, or that its messages wait no longer.
    fn retry(&mut self, now: Instant, lane: Lane, out: &mut Vec<Effect>) {
        if self.established {
            let until = now + self.backoff(lane);
            if lane == Lane::CONTROL {
                self.lanes.entry(lane).or_default().phase = LanePhase::Waiting { until };
            } else {
                // Rest: only a lane with messages is worth a connection. The next message asks for the dial, which
                // waits for the end of the backoff.
                self.rest(lane, Some(until), out);
            }
            return;
        }
        let wanted_at = *self.lanes.entry(lane).or_default().wanted_at.get_or_insert(now);
        let until = now + self.settings.handshake_retry_interval;
        if until > wanted_at + self.settings.handshake_timeout {
            out.push(Effect::FailQueue { lane, reason: DeadLetterReason::HandshakeTimeout });
            self.rest(lane, None, out);
        } else {
            self.lanes.entry(lane).or_default().phase = LanePhase::Waiting { until };
        }
    }

    fn backoff(&mut self, lane: Lane) -> Duration {
        let state = self.lanes.entry(lane).or_default();
        let doubled = self.settings.reconnect_backoff_min.saturating_mul(1 << state.failures.min(20));
        state.failures += 1;
        let jitter = self.settings.reconnect_backoff_jitter;
        let factor = if jitter > 0.0 { self.rng.random_range(1.0 - jitter..=1.0 + jitter) } else { 1.0 };
        doubled.min(self.settings.reconnect_backoff_max).mul_f64(factor)
    }

    fn rest(&mut self, lane: Lane, not_before: Option<Instant>, out: &mut Vec<Effect>) {
        let state = self.lanes.entry(lane).or_default();
        (state.phase, state.not_before, state.wanted_at) = (LanePhase::Idle, not_before, None);
        out.push(Effect::Rest { lane });
    }

    fn on_hello(&mut self, now: Instant, uid: Uid, host_id: Option<&str>, out: &mut Vec<Effect>) {
        if let Some(entry) = self.quarantined.get_mut(&uid) {
            entry.used_at = now;
            let reason = (!entry.harmless).then_some(entry.reason);
            // Count the refusal as a notice.
            entry.noticed_at = Some(now);
            out.push(Effect::Refuse { reason });
            return;
        }
        if self.is_tombstoned(uid) {
            out.push(Effect::Refuse { reason: Some(QuarantineReason::RemovedFromMembership) });
            return;
        }
        let claim = self.claims.judge(uid, host_id);
        let is_heir = claim == Claim::Heir;
        if let Claim::Held(holder) = claim {
            let (holder, detail) = (holder.member.clone(), holder.detail());
            out.push(Effect::Hold { holder: holder.clone(), detail });
            self.tell_held(now, holder, uid, out);
            return;
        }
        if self.is_retired(uid) {
            out.push(Effect::Refuse { reason: None });
            if self.proven(uid, self.next_seq).is_some() {
                // Dial the address: the process may be refused in error, and its answer to the dial decides.
                self.on_wanted(now, Lane::CONTROL, out);
            }
            return;
        }
        if is_heir && self.peer != Some(uid) {
            out.push(Effect::AdmitForJoin);
            self.ask(now, false, out);
            return;
        }
        self.learn(now, uid, out);
        self.heard(now);
        out.push(Effect::Admit);
        // Dial at once: the peer lives, so waiting for the end of a pause gains nothing.
        self.lanes.values_mut().for_each(|state| state.not_before = None);
        let waiting = |state: &LaneState| matches!(state.phase, LanePhase::Waiting { .. });
        for lane in self.lanes_where(waiting) {
            self.dial(lane, out);
        }
    }

    /// Takes over a uid from a handshake. Streams to another uid are closed.
    fn learn(&mut self, now: Instant, uid: Uid, out: &mut Vec<Effect>) {
        if self.peer == Some(uid) {
            return;
        }
        let old = self.peer.replace(uid);
        self.incarnation += 1;
        self.established = false;
        if let Some(old) = old {
            // Do not retire a claimant that gives way to the member: it waits for the member's removal.
            if self.claims.is_holder(old) || !self.claims.is_holder(uid) {
                self.retire(old, Some(self.next_seq));
            }
            for lane in
                self.lanes_where(|state| matches!(state.phase, LanePhase::Active { .. } | LanePhase::Shutting { .. }))
            {
                let (LanePhase::Active { seq, .. } | LanePhase::Shutting { seq, .. }) = self.lane(lane) else {
                    continue;
                };
                out.push(Effect::Close { lane, seq });
                out.push(Effect::Publish(Event::LinkLost { uid: old, lane }));
                let state = self.lanes.entry(lane).or_default();
                (state.phase, state.wanted_at, state.failures) = (LanePhase::Waiting { until: now }, Some(now), 0);
                state.doubled = None;
            }
        }
        out.push(Effect::NewIncarnation { uid, old, incarnation: self.incarnation });
    }

    fn retire(&mut self, uid: Uid, proof_from: Option<u64>) {
        if self.retired.len() >= MAX_RETIRED
            && let Some(forgotten) = self.retired.pop_front()
        {
            self.ignored.remove(&forgotten.uid);
        }
        self.retired.push_back(Retired { uid, proof_from });
    }

    fn on_intruded(&mut self, now: Instant, uid: Uid, out: &mut Vec<Effect>) {
        let Some(entry) = self.quarantined.get_mut(&uid) else { return };
        entry.used_at = now;
        let is_due = entry.noticed_at.is_none_or(|at| now.saturating_duration_since(at) >= NOTICE_INTERVAL);
        if !entry.harmless && is_due {
            entry.noticed_at = Some(now);
            out.push(Effect::Notify { uid, reason: entry.reason });
        }
    }

    /// Whether the peer has announced its end.
    pub fn is_terminating(&self) -> bool {
        self.terminating.is_some()
    }

    /// Whether this incarnation has announced its end, or has left in order.
    pub fn has_taken_leave(&self, uid: Uid) -> bool {
        self.terminating.is_some_and(|(terminating, _)| terminating == uid)
            || self.quarantined.get(&uid).is_some_and(|entry| entry.harmless)
    }

    /// Whether the last process known at the address has taken leave: no process need listen there now.
    pub fn is_vacant(&self) -> bool {
        self.peer.is_some_and(|uid| self.has_taken_leave(uid))
    }

    fn on_terminating(&mut self, now: Instant, uid: Uid, out: &mut Vec<Effect>) {
        if self.peer == Some(uid) && self.terminating.is_none_or(|(known, _)| known != uid) && !self.is_dead(uid) {
            self.terminating = Some((uid, now + self.settings.shutdown_flush_timeout));
            out.push(Effect::Publish(Event::PeerTerminating { uid }));
        }
    }

    fn on_quarantine(
        &mut self,
        now: Instant,
        uid: Uid,
        reason: QuarantineReason,
        harmless: bool,
        out: &mut Vec<Effect>,
    ) {
        self.claims.forget_former(|former| *former == uid);
        if self.is_retired(uid) && !self.quarantined.contains_key(&uid) {
            // Refused already, since a newer incarnation runs there. Tell the listeners all the same: they may wait for
            // the messages that were queued.
            if self.ignored.insert(uid) {
                out.push(Effect::Ignored { uid });
            }
            out.push(Effect::HandBack { uid });
            return;
        }
        let is_new = match self.quarantined.get_mut(&uid) {
            Some(entry) => {
                let is_graver = entry.harmless && !harmless;
                if is_graver {
                    (entry.harmless, entry.reason) = (false, reason);
                }
                is_graver
            }
            None => {
                self.quarantined.insert(uid, Quarantine { reason, harmless, noticed_at: None, used_at: now });
                true
            }
        };
        out.push(Effect::Block { uid, reason });
        if is_new && self.peer == Some(uid) {
            self.shut_lanes(now, !harmless, out);
        }
        if is_new {
            out.push(Effect::Publish(Event::Quarantined { uid, reason, harmless }));
        }
        out.push(Effect::HandBack { uid });
        if is_new && !harmless {
            if let Some(entry) = self.quarantined.get_mut(&uid) {
                entry.noticed_at = Some(now);
            }
            out.push(Effect::Notify { uid, reason });
        }
    }

    /// Closes all streams to the quarantined peer, the control stream only after the notice.
    fn shut_lanes(&mut self, now: Instant, notify: bool, out: &mut Vec<Effect>) {
        for lane in self.lanes_where(|state| matches!(state.phase, LanePhase::Active { .. })) {
            let LanePhase::Active { seq, .. } = self.lane(lane) else { continue };
            if notify && lane == Lane::CONTROL {
                out.push(Effect::Shut { lane, seq });
                let until = now + self.settings.stop_quarantined_after_idle;
                self.lanes.entry(lane).or_default().phase = LanePhase::Shutting { seq, until };
            } else {
                out.push(Effect::Close { lane, seq });
                self.rest(lane, None, out);
            }
        }
        // The next process at the address needs a first handshake of its own.
        self.established = false;
    }

    fn on_shutdown(&mut self, out: &mut Vec<Effect>) {
        self.is_shut_down = true;
        for (lane, state) in &mut self.lanes {
            if let LanePhase::Active { seq, .. } | LanePhase::Shutting { seq, .. } | LanePhase::Dialing { seq } =
                state.phase
            {
                out.push(Effect::Close { lane: *lane, seq });
            }
            state.phase = LanePhase::Idle;
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if let Some((uid, at)) = self.terminating
            && at <= now
        {
            self.terminating = None;
            // The reason has no effect: a harmless quarantine is never told.
            self.on_quarantine(now, uid, QuarantineReason::RemovedFromMembership, true, out);
        }
        for lane in self.lanes_where(|state| matches!(state.phase, LanePhase::Waiting { until } if until <= now)) {
            self.dial(lane, out);
        }
        let pause = self.pause_between_questions();
        for (lane, state) in &mut self.lanes {
            if let LanePhase::Active { seq, ask_at, .. } = &mut state.phase
                && *ask_at <= now
            {
                *ask_at = now + pause;
                out.push(Effect::AskTraffic { lane: *lane, seq: *seq });
            }
        }
        for lane in self.lanes_where(|state| matches!(state.phase, LanePhase::Shutting { until, .. } if until <= now)) {
            if let LanePhase::Shutting { seq, .. } = self.lane(lane) {
                out.push(Effect::Close { lane, seq });
                self.rest(lane, None, out);
            }
        }
        if self.probe_at().is_some_and(|at| at <= now) {
            self.probe(now, out);
        }
        self.forget_quarantined(now, out);
    }

    fn forget_quarantined(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let memory = self.settings.remove_quarantined_association_after;
        let is_over = |(uid, entry): (&Uid, &Quarantine)| {
            (entry.used_at + memory <= now && !self.tombstones.contains(uid)).then_some(*uid)
        };
        let over: Vec<Uid> = self.quarantined.iter().filter_map(is_over).collect();
        for uid in over {
            self.quarantined.remove(&uid);
            // Forget the entry with its reason and notices, not the process: it never comes back.
            self.retire(uid, None);
            if self.peer == Some(uid) {
                (self.peer, self.probing.heard_at) = (None, None);
            }
            out.push(Effect::Forget { uid });
        }
    }

    /// Dials a second connection beside an active one, which stays open until the second takes over.
    fn on_duplicate(&mut self, lane: Lane, out: &mut Vec<Effect>) {
        if let LanePhase::Active { seq, .. } = self.lane(lane) {
            self.lanes.entry(lane).or_default().doubled = Some(seq);
            self.dial(lane, out);
        }
    }

    fn lane(&self, lane: Lane) -> LanePhase {
        self.lanes.get(&lane).map_or(LanePhase::Idle, |state| state.phase)
    }

    fn lanes_where(&self, chosen: impl Fn(&LaneState) -> bool) -> Vec<Lane> {
        self.lanes.iter().filter(|(_, state)| chosen(state)).map(|(lane, _)| *lane).collect()
    }
}

#[cfg(test)]
mod tests;
