//! Begins and ends rounds of anti-entropy, and decides when a new replica has caught up.

mod catch_up;
mod receiving;
mod suppressed;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::hash64;
use rand::RngExt;

use super::local::LocalReplica;
use crate::api::effect::Effect;
use crate::api::key::KeyId;
use crate::api::read::Lifecycle;
use crate::api::settings::omissions::Clause;
use crate::data::tree::{Prefix, Sixteenths, Sum};
use crate::dissemination::sync::{Round, fill, keys_of};
use crate::messages::message::{Listed, Message, RoundId};
use crate::pruning::RoundsSnapshot;
use catch_up::{CatchUp, Stage};
use suppressed::{Difference, SuppressedDifferences};

/// One round in so many goes to any peer, reachable or not, in case reachability is wrong.
const ANY_PEER_EVERY: u64 = 10;

/// A round of catching up is opened again after so long without an answer.
const INITIAL_RETRY: Duration = Duration::from_millis(500);

/// The most entries that a peer may have asked for after hints; the rest is left to rounds.
const HINTED_PER_PEER: usize = 65_536;

/// The pause between two steps of long work, in which others are served.
pub(super) const STEP_PAUSE: Duration = Duration::from_millis(1);

/// All rounds under way, at most one per peer and direction.
#[derive(Debug)]
pub(super) struct Rounds {
    opened: BTreeMap<UniqueAddress, Round>,
    answered: BTreeMap<UniqueAddress, Round>,
    suppressed: SuppressedDifferences,
    /// Entries that peers asked for after hints and that were not sent yet.
    hinted: BTreeMap<UniqueAddress, VecDeque<KeyId>>,
    count: u64,
    catch_up: CatchUp,
    /// When the next regular round begins.
    gossip_at: Instant,
    /// When the next step of long work is due.
    step_at: Option<Instant>,
}

impl Rounds {
    /// No rounds; the first regular one begins at `gossip_at`.
    pub(super) fn new(gossip_at: Instant) -> Self {
        Self {
            opened: BTreeMap::new(),
            answered: BTreeMap::new(),
            suppressed: SuppressedDifferences::default(),
            hinted: BTreeMap::new(),
            count: 0,
            catch_up: CatchUp::default(),
            gossip_at,
            step_at: None,
        }
    }

    /// When the next regular round, a step of long work, or a repetition is due, or catching up is over.
    pub(super) fn next_deadline(&self, local: &LocalReplica) -> Option<Instant> {
        let may_time_out = !local.gate.excludes_members();
        let syncing = self.catch_up.times_out_at(local.settings.sync_timeout).filter(|_| may_time_out);
        let gossip = (!local.replicas.others.is_empty()).then_some(self.gossip_at);
        [self.step_at, syncing, self.initial_retry_at(local), gossip].into_iter().flatten().min()
    }

    /// Plans a step of long work at this time, if none is planned.
    pub(super) fn plan_step(&mut self, at: Instant) {
        self.step_at.get_or_insert(at);
    }

    /// Begins a step of long work, if one is due.
    pub(super) fn begin_step(&mut self, now: Instant) -> bool {
        self.step_at.take_if(|at| *at <= now).is_some()
    }

    /// Takes the rounds that go on in this step, with their peers.
    pub(super) fn take_unfinished(&mut self) -> Vec<(UniqueAddress, RoundId)> {
        let mut going_on = Vec::new();
        for (peer, id, round) in self.iter_mut() {
            if std::mem::take(&mut round.sums_missing) | std::mem::take(&mut round.has_more) {
                going_on.push((peer.clone(), id));
            }
        }
        going_on
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: &UniqueAddress) {
        self.opened.remove(peer);
        self.answered.remove(peer);
        self.hinted.remove(peer);
        self.suppressed.forget(peer);
    }

    /// Drops rounds that were opened or answered before this replicator could show which history it belongs to: peers
    /// accept no data from it in those rounds.
    pub(super) fn begin_anew(&mut self) {
        self.opened.clear();
        self.answered.clear();
        self.catch_up.begin_anew();
    }

    /// All rounds under way, with their peers and with the names that the peers use.
    fn iter_mut(&mut self) -> impl Iterator<Item = (&UniqueAddress, RoundId, &mut Round)> {
        let name = |opened_by_sender, round: &Round| RoundId { opened_by_sender, number: round.number() };
        let answered = self.answered.iter_mut().map(move |(peer, round)| (peer, name(true, round), round));
        let opened = self.opened.iter_mut().map(move |(peer, round)| (peer, name(false, round), round));
        answered.chain(opened)
    }

    /// Whether a round with this peer is under way, whichever side opened it.
    fn is_running(&self, peer: &UniqueAddress) -> bool {
        self.opened.contains_key(peer) || self.answered.contains_key(peer)
    }

    /// Whether a round with this peer is under way and has got its first answer.
    pub(super) fn is_exchanging(&self, peer: &UniqueAddress) -> bool {
        self.answered.contains_key(peer) || self.opened.get(peer).is_some_and(|round| round.answered)
    }

    fn find(&mut self, peer: &UniqueAddress, round: RoundId) -> Option<&mut Round> {
        let rounds = if round.opened_by_sender { &mut self.answered } else { &mut self.opened };
        rounds.get_mut(peer).filter(|found| found.is(round.number))
    }

    fn open_round(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        peer: &UniqueAddress,
        part: Sixteenths,
        out: &mut Vec<Effect>,
    ) {
        let number = local.writer.draw();
        let mut round = Round::new(now, number, true, part);
        round.own_rounds = local.pruning.collections.snapshot();
        round.all_were_reachable = local.all_are_reachable();
        self.opened.insert(peer.clone(), round);
        local.scheduled.remove(peer);
        self.suppressed.on_round(peer);
        local.observed.stats.rounds_opened += 1;
        let root = local.entries.tree.sum_of(part);
        let pruning = local.news_for(now, peer);
        local.send(peer.clone(), Message::SyncOpen { round: number, part, root, pruning }, out);
    }

    /// Opens a round with a peer that lacks something known to be too large for a message.
    pub(super) fn open_round_soon(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        peer: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        if !self.opened.contains_key(peer) {
            self.open_round(local, now, peer, Sixteenths::ALL, out);
        }
    }

    /// Opens rounds with all other voters while this replica catches up, some at a time: at first each peer is asked
    /// for one share of the hash space, so that all send and none sends what another does.
    pub(super) fn open_initial_rounds(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        self.end_syncing_if_done(local, now, out);
        if *local.lifecycle() != Lifecycle::Syncing || local.replicas.own_status.is_none() {
            return;
        }
        let waiting = local.replicas.others.iter().filter(|replica| replica.status.is_voter() && replica.reachable);
        let waiting = waiting.filter(|replica| local.gate.may_open(&replica.address));
        let waiting = waiting.map(|replica| replica.address.clone());
        let waiting: Vec<UniqueAddress> = waiting
            .filter(|peer| !self.catch_up.is_synced_with(peer) && !self.opened.contains_key(peer))
            .take(local.settings.sync_parallel_peers.saturating_sub(self.opened.len()))
            .collect();
        match self.catch_up.stage() {
            Stage::Before if waiting.len() > 1 => {
                self.catch_up.enter(Stage::Shares);
                let shares = waiting.len().min(16);
                for (index, peer) in waiting.iter().take(shares).enumerate() {
                    self.open_round(local, now, peer, Sixteenths::share(index, shares), out);
                }
            }
            Stage::Shares if self.opened.values().any(|round| round.part != Sixteenths::ALL) => {}
            Stage::One if self.opened.values().any(|round| round.answered || !self.catch_up.has_lost()) => {}
            Stage::Before if waiting.is_empty() => {}
            // An empty replica gets everything from the first peer; other peers would send the same again.
            _ if local.entries.tree.sum(Prefix::ROOT).count == 0
                && !self.catch_up.has_lost()
                && !waiting.is_empty() =>
            {
                self.catch_up.enter(Stage::One);
                for peer in waiting.iter().take(1_usize.saturating_sub(self.opened.len())) {
                    self.open_round(local, now, peer, Sixteenths::ALL, out);
                }
            }
            _ => {
                self.catch_up.enter(Stage::Whole);
                for peer in waiting {
                    self.open_round(local, now, &peer, Sixteenths::ALL, out);
                }
                self.release_held(local, now, out);
            }
        }
    }

    /// Continues rounds of peers that were kept waiting, so that they did not send what the shares bring.
    fn release_held(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let mut released = Vec::new();
        for (peer, id, round) in self.iter_mut() {
            if round.release(&local.entries) {
                released.push((peer.clone(), id));
            }
        }
        for (peer, id) in released {
            self.pump(local, now, &peer, id, out);
        }
    }

    /// Ends `Syncing` after rounds with so many voters that every majority which confirmed a write includes one of
    /// them. Source: ddata G13.
    fn end_syncing_if_done(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        if *local.lifecycle() != Lifecycle::Syncing
            || local.replicas.own_status.is_none()
            || local.gate.excludes_members()
        {
            return;
        }
        let voters = local.replicas.others.iter().filter(|replica| replica.status.is_voter());
        let done = voters.clone().filter(|replica| self.catch_up.is_synced_with(&replica.address)).count();
        let others = voters.count() + local.replicas.unmet.len();
        let all = others + 1;
        if others == 0 || done >= all - all / 2 {
            self.become_running(local, now, out);
        }
    }

    /// Begins to catch up with others, if membership knows this replica.
    pub(super) fn begin_syncing(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        if local.replicas.own_status.is_some() && *local.lifecycle() == Lifecycle::Syncing {
            self.catch_up.begin(now);
            self.open_initial_rounds(local, now, out);
        }
    }

    fn become_running(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        self.catch_up.end();
        local.become_lifecycle(Lifecycle::Running, out);
        self.release_held(local, now, out);
    }

    /// Begins regular rounds, repeats those of catching up that got no answer, and ends catching up when it takes too
    /// long.
    pub(super) fn on_tick(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let is_over = self.catch_up.times_out_at(local.settings.sync_timeout).is_some_and(|at| at <= now);
        if is_over && !local.gate.excludes_members() {
            self.become_running(local, now, out);
        }
        if self.initial_retry_at(local).is_some_and(|at| at <= now) {
            self.drop_unanswered(local, now, out);
            self.open_initial_rounds(local, now, out);
        }
        if self.gossip_at > now || local.replicas.others.is_empty() {
            return;
        }
        self.gossip_at = now + local.jittered(local.settings.gossip_interval);
        // Drop rounds without progress: they have lost a message; the next round begins afresh.
        let goes_on = |round: &mut Round| round.stalls_at(local.settings.gossip_interval) > now;
        self.opened.retain(|_, round| goes_on(round));
        self.answered.retain(|_, round| goes_on(round));
        self.drop_lost_drafts(local, now, out);
        self.open_initial_rounds(local, now, out);
        if self.is_given_everything(local) {
            return;
        }
        if let Some(peer) = self.choose_peer(local) {
            self.open_round(local, now, &peer, Sixteenths::ALL, out);
        }
    }

    /// Gives up rounds that got no answer; shares are asked for once more.
    fn drop_unanswered(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let opened = self.opened.iter();
        let lost = opened.filter(|(_, round)| !round.answered && round.progress_at + INITIAL_RETRY <= now);
        let lost: Vec<(UniqueAddress, Sixteenths)> = lost.map(|(peer, round)| (peer.clone(), round.part)).collect();
        let asks_again = !lost.is_empty() && self.catch_up.on_lost();
        for (peer, part) in lost {
            self.opened.remove(&peer);
            if asks_again && part != Sixteenths::ALL {
                self.open_round(local, now, &peer, part, out);
            }
        }
    }

    /// When an unanswered round of catching up is opened again. Nodes that start together find each other's replicators
    /// missing at first; waiting a whole gossip interval would delay every majority read of the cluster.
    fn initial_retry_at(&self, local: &LocalReplica) -> Option<Instant> {
        let catching_up = *local.lifecycle() == Lifecycle::Syncing && local.replicas.own_status.is_some();
        let unanswered = self.opened.values().filter(|round| !round.answered);
        let opened = unanswered.map(|round| round.progress_at + INITIAL_RETRY);
        catching_up.then(|| opened.min()).flatten()
    }

    fn choose_peer(&mut self, local: &mut LocalReplica) -> Option<UniqueAddress> {
        self.count += 1;
        let any = self.count.is_multiple_of(ANY_PEER_EVERY);
        let own_joins = local.replicas.own_status.is_none_or(|status| !status.is_peer());
        let peers = local.replicas.others.iter().filter(|replica| {
            (any || replica.reachable)
                && (replica.status.is_peer() || own_joins || local.scheduled.contains(&replica.address))
        });
        let free: Vec<&UniqueAddress> = peers.map(|r| &r.address).filter(|peer| !self.is_running(peer)).collect();
        if let Some(peer) = free.iter().find(|peer| local.scheduled.contains(**peer)) {
            return Some((**peer).clone());
        }
        (!free.is_empty()).then(|| free[local.rng.random_range(0..free.len())].clone())
    }

    /// Takes a message of a round under way, except entries. Returns the round if it is complete now.
    pub(super) fn on_message(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        message: Message,
        out: &mut Vec<Effect>,
    ) -> Option<Round> {
        let round = match message {
            Message::SyncNodes { round, number, parents } => {
                let found = self.find(from, round)?;
                if found.receive(now, number) {
                    for (parent, sums) in parents {
                        found.compare_children(&local.entries, parent, &sums);
                    }
                }
                round
            }
            Message::SyncList { round, number, prefixes, keys } => {
                self.on_list(local, now, from, (round, number), &prefixes, keys)?;
                round
            }
            Message::SyncWant { round: Some(round), number, hashes } => {
                let found = self.find(from, round)?;
                if found.receive(now, number) {
                    found.on_want(&local.entries, &hashes);
                }
                round
            }
            Message::SyncWant { round: None, hashes, .. } => {
                self.on_want_after_hint(local, now, from, &hashes, out);
                return None;
            }
            Message::InnerNodes { round, number, key, snapshot, offer, nodes } => {
                self.find(from, round)?;
                if self.receive(now, from, round, number) {
                    self.on_inner_nodes(local, now, from, round, key, snapshot, offer, nodes, out);
                }
                round
            }
            Message::InnerWant { round, number, key, snapshot, ranges } => {
                let found = self.find(from, round)?;
                if found.receive(now, number) {
                    found.on_ranges_wanted(&key, snapshot, ranges);
                }
                round
            }
            Message::Bucket { round, number, key, snapshot, part } => {
                self.find(from, round)?;
                if self.receive(now, from, round, number) {
                    self.on_bucket(local, now, from, round, &key, snapshot, &part, out);
                }
                round
            }
            Message::SyncAck { round, number, received, sent, idle } => {
                self.find(from, round)?.on_ack(now, number, received, sent, idle);
                round
            }
            _ => return None,
        };
        self.after_message(local, now, from, round, out)
    }

    /// Whether a round is under way.
    pub(super) fn is_under_way(&mut self, peer: &UniqueAddress, round: RoundId) -> bool {
        self.find(peer, round).is_some()
    }

    /// Notes a numbered message of a round. Returns whether it is new.
    pub(super) fn receive(&mut self, now: Instant, peer: &UniqueAddress, round: RoundId, number: u64) -> bool {
        self.find(peer, round).is_some_and(|found| found.receive(now, number))
    }

    /// Sends a peer entries within a round, if it is under way.
    pub(super) fn send_entries(&mut self, peer: &UniqueAddress, round: RoundId, keys: impl IntoIterator<Item = KeyId>) {
        if let Some(found) = self.find(peer, round) {
            found.send_entries(keys);
        }
    }

    /// Takes the round that a peer opened and now calls complete.
    pub(super) fn take_answered(&mut self, peer: &UniqueAddress, number: u64) -> Option<Round> {
        self.answered.get(peer).filter(|round| round.is(number))?;
        self.answered.remove(peer)
    }

    /// Takes the round opened here, of which the peer says that nothing differs.
    pub(super) fn take_opened(&mut self, peer: &UniqueAddress, number: u64) -> Option<Round> {
        self.opened.get(peer).filter(|round| round.is(number))?;
        self.opened.remove(peer)
    }

    /// Answers a round that a peer opens, after its standing and its pruning rounds were taken over.
    pub(super) fn on_open(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        round: u64,
        (part, root): (Sixteenths, Sum),
        out: &mut Vec<Effect>,
    ) {
        let pruning = local.news_for(now, from);
        if part == Sixteenths::NONE {
            return local.send(from.clone(), Message::SyncSame { round, pruning }, out);
        }
        local.log.on_round_opened(from, now);
        if !local.gate.exchanges_with(from) {
            self.answered.remove(from);
            return local.send(from.clone(), Message::SyncDiffers { round, pruning }, out);
        }
        if root == local.entries.tree.sum_of(part) {
            self.answered.remove(from);
            if part == Sixteenths::ALL {
                local.log.on_round_complete(from, now);
            }
            local.send(from.clone(), Message::SyncSame { round, pruning }, out);
            return;
        }
        let mut answer = Round::new(now, round, false, part);
        answer.own_rounds = known_rounds(local, from, local.pruning.collections.snapshot());
        answer.all_were_reachable = local.all_are_reachable();
        if part == Sixteenths::ALL && self.keeps_waiting(local, root) {
            answer.hold(root);
        } else {
            answer.compare_root(&local.entries, root);
        }
        self.answered.insert(from.clone(), answer);
        local.send(from.clone(), Message::SyncDiffers { round, pruning }, out);
        self.pump(local, now, from, RoundId { opened_by_sender: true, number: round }, out);
    }

    /// Whether a full round that a peer opens waits until everything asked for is here, so that data are not sent
    /// twice. Shares never wait, nor peers that hold less than this replica: otherwise two new replicas would wait for
    /// each other.
    fn keeps_waiting(&self, local: &LocalReplica, root: Sum) -> bool {
        match self.catch_up.stage() {
            Stage::Shares => true,
            Stage::One => root.count > local.entries.tree.sum(Prefix::ROOT).count && self.is_given_everything(local),
            Stage::Before | Stage::Whole => false,
        }
    }

    /// Whether this replica has just begun and is getting everything that others hold.
    fn is_given_everything(&self, local: &LocalReplica) -> bool {
        let is_asking = matches!(self.catch_up.stage(), Stage::Shares | Stage::One);
        is_asking && *local.lifecycle() == Lifecycle::Syncing && !self.opened.is_empty()
    }

    /// Notes the first answer of a round: the peer has taken over the pruning rounds in the opening. Whatever the peer
    /// holds from now on is compared, and it adds nothing of the replicas that are removed by those rounds.
    pub(super) fn on_first_answer(&mut self, local: &LocalReplica, from: &UniqueAddress, round: u64) {
        let Some(open) = self.opened.get_mut(from).filter(|open| open.is(round)) else { return };
        if local.gate.exchanges_with(from) {
            open.own_rounds = known_rounds(local, from, open.own_rounds.clone());
            open.answered = true;
        } else {
            // Drop the round: both know the other's standing, and data are not exchanged.
            self.opened.remove(from);
        }
    }

    /// Compares parts with the lists of everything that the peer holds in them. `None` if the round is over.
    fn on_list(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        (round, number): (RoundId, u64),
        prefixes: &[Prefix],
        mut keys: Vec<Listed>,
    ) -> Option<()> {
        let rounds = if round.opened_by_sender { &mut self.answered } else { &mut self.opened };
        let found = rounds.get_mut(from).filter(|found| found.is(round.number))?;
        if found.receive(now, number) {
            for held in &keys {
                let Some(used_ms) = held.used_ms else { continue };
                for key in keys_of(&local.entries, held.hash) {
                    if local.entries.digest(&key) == Some(held.digest) {
                        local.entries.note_used(&key, used_ms);
                    }
                }
            }
            let suppressed = &mut self.suppressed;
            keys.sort_unstable_by_key(|held| held.hash);
            for prefix in prefixes {
                let first = keys.partition_point(|held| held.hash < prefix.bits());
                let count = keys[first..].partition_point(|held| prefix.contains(held.hash));
                let keys = &keys[first..first + count];
                found.compare_list(&local.entries, *prefix, keys, &mut |hash, own, theirs, used_ms| {
                    suppressed.get_mut(from, hash).is_some_and(|left| left.is_same(own, theirs, used_ms))
                });
            }
        }
        Some(())
    }

    /// Suppresses a difference for a while, because exchanging the entry changes nothing. Source: ddata G14.
    pub(super) fn suppress(&mut self, local: &LocalReplica, from: &UniqueAddress, key: &KeyId, used_ms: Option<i64>) {
        let rounds = local.settings.mismatch_suppress_rounds;
        let difference = Difference::new(local.entries.digest(key), used_ms, rounds);
        self.suppressed.add(from, hash64(key.as_bytes()), difference);
    }

    /// Takes a request for entries too large for a batch, by the hashes in the hints. Source: ddata G7.
    fn on_want_after_hint(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        hashes: &[u64],
        out: &mut Vec<Effect>,
    ) {
        let keys: Vec<KeyId> = hashes.iter().flat_map(|hash| keys_of(&local.entries, *hash)).collect();
        let hinted = self.hinted.entry(from.clone()).or_default();
        let room = HINTED_PER_PEER.saturating_sub(hinted.len());
        hinted.extend(keys.into_iter().take(room));
        self.send_hinted(local, now, from, out);
    }

    /// Sends one message of entries that a peer asked for after hints; the rest follows in further steps.
    fn send_hinted(&mut self, local: &mut LocalReplica, now: Instant, to: &UniqueAddress, out: &mut Vec<Effect>) {
        let Some(keys) = self.hinted.get_mut(to) else { return };
        let (_, entries, large) = fill(&local.settings, &mut local.entries, keys);
        if keys.is_empty() {
            self.hinted.remove(to);
        } else {
            self.step_at = Some(now);
        }
        if !large.is_empty() {
            self.open_round_soon(local, now, to, out);
        }
        if !entries.is_empty() {
            let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
            local.send(to.clone(), message, out);
        }
    }

    /// Continues to send entries that peers asked for after hints.
    pub(super) fn step_hinted(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let peers: Vec<UniqueAddress> = self.hinted.keys().cloned().collect();
        for peer in peers {
            self.send_hinted(local, now, &peer, out);
        }
    }

    /// Sends what a round has to say and what its window and one step allow.
    fn pump(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        peer: &UniqueAddress,
        round: RoundId,
        out: &mut Vec<Effect>,
    ) {
        let rounds = if round.opened_by_sender { &mut self.answered } else { &mut self.opened };
        let Some(found) = rounds.get_mut(peer).filter(|found| found.is(round.number)) else { return };
        let mut messages = Vec::new();
        found.pump(&local.settings, &mut local.entries, &mut messages);
        if found.has_more {
            self.step_at = Some(now);
        } else if found.sums_missing {
            self.step_at.get_or_insert(now + STEP_PAUSE);
        }
        for message in messages {
            local.send(peer.clone(), message, out);
        }
    }

    /// Goes on with a round after one of its messages. Returns the round if it is complete, and then takes it out.
    pub(super) fn after_message(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        peer: &UniqueAddress,
        round: RoundId,
        out: &mut Vec<Effect>,
    ) -> Option<Round> {
        self.pump(local, now, peer, round, out);
        let is_complete = !round.opened_by_sender && self.opened.get(peer).is_some_and(Round::is_complete);
        let complete = is_complete.then(|| self.opened.remove(peer)).flatten()?;
        if complete.has_failed {
            // A later round begins afresh.
            return None;
        }
        local.observed.stats.rounds_completed += 1;
        local.send(peer.clone(), Message::SyncDone { round: round.number }, out);
        Some(complete)
    }

    /// Notes that everything that this replica or a peer holds was exchanged.
    pub(super) fn on_synced(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        peer: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        if *local.lifecycle() == Lifecycle::Syncing {
            self.catch_up.on_synced(peer);
            self.end_syncing_if_done(local, now, out);
        }
    }
}

/// The own pruning rounds that the peer has shown to know. Source: ddata Z4.
fn known_rounds(local: &LocalReplica, peer: &UniqueAddress, began: RoundsSnapshot) -> RoundsSnapshot {
    if local.settings.omits(Clause::Shown) { began } else { local.pruning.collections.known_by(peer, &began) }
}
