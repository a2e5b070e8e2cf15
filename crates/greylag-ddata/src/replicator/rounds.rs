//! Begins and ends rounds of anti-entropy, and decides when a new replica has caught up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::hash64;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::ReplicatorCore;
use super::suppressed::{Difference, SuppressedDifferences};
use crate::effect::Effect;
use crate::entries::Merged;
use crate::envelope::Envelope;
use crate::key::KeyId;
use crate::message::{Listed, Message, RoundId};
use crate::pruning::{PruningNews, RoundsSnapshot};
use crate::read::Lifecycle;
use crate::sabotage::Sabotage;
use crate::sync::{Round, fill, keys_of};
use crate::tree::{Prefix, Sixteenths, Sum};

/// One round in so many goes to any peer, reachable or not, in case reachability is wrong.
const ANY_PEER_EVERY: u64 = 10;

/// All rounds under way, at most one per peer and direction.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    opened: BTreeMap<UniqueAddress, Round>,
    answered: BTreeMap<UniqueAddress, Round>,
    /// Newly known peers, which are served before others.
    scheduled: BTreeSet<UniqueAddress>,
    suppressed: SuppressedDifferences,
    /// Entries that peers asked for after hints and that were not sent yet.
    hinted: BTreeMap<UniqueAddress, VecDeque<KeyId>>,
    count: u64,
    catching_up: CatchingUp,
    /// Whether a peer did not answer in time.
    has_lost: bool,
    /// When the next step of long work is due.
    pub(super) step_at: Option<Instant>,
}

/// How a new replica gets the data of others. Source: ddata G13.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CatchingUp {
    /// No peer was asked so far.
    #[default]
    Before,
    /// Several peers are asked, each for a share of the hash space.
    Shares,
    /// One peer, the only one known then, is asked for everything; others come after it.
    One,
    /// Each peer is asked for its differences, which are few now.
    Whole,
}

impl Rounds {
    /// Schedules a round with a peer, which begins soon.
    pub(super) fn schedule(&mut self, peer: UniqueAddress) {
        self.scheduled.insert(peer);
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: &UniqueAddress) {
        self.opened.remove(peer);
        self.answered.remove(peer);
        self.scheduled.remove(peer);
        self.hinted.remove(peer);
        self.suppressed.forget(peer);
    }

    /// Drops rounds that were opened or answered before this replicator could show which history it belongs to: peers
    /// accept no data from it in those rounds.
    pub(super) fn begin_anew(&mut self) {
        self.opened.clear();
        self.answered.clear();
        if self.catching_up != CatchingUp::Whole {
            self.catching_up = CatchingUp::Before;
        }
    }

    /// All rounds under way, with their peers and with the names that the peers use.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&UniqueAddress, RoundId, &mut Round)> {
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

    pub(super) fn find(&mut self, peer: &UniqueAddress, round: RoundId) -> Option<&mut Round> {
        let rounds = if round.opened_by_sender { &mut self.answered } else { &mut self.opened };
        rounds.get_mut(peer).filter(|found| found.is(round.number))
    }
}

/// A round of catching up is opened again after so long without an answer.
const INITIAL_RETRY: Duration = Duration::from_millis(500);

/// The most entries that a peer may have asked for after hints; the rest is left to rounds.
const HINTED_PER_PEER: usize = 65_536;

/// The pause between two steps of long work, in which others are served.
pub(super) const STEP_PAUSE: Duration = Duration::from_millis(1);

/// The interval with a random deviation.
pub(super) fn jittered(rng: &mut ChaCha8Rng, interval: Duration) -> Duration {
    super::jitter(interval, rng.random_range(0.0..1.0))
}

impl ReplicatorCore {
    fn open_round(&mut self, now: Instant, peer: &UniqueAddress, part: Sixteenths, out: &mut Vec<Effect>) {
        let number = self.numbers.draw();
        let mut round = Round::new(now, number, true);
        round.part = part;
        round.own_rounds = self.pruning.collections.snapshot();
        round.all_were_reachable = self.all_are_reachable();
        self.rounds.opened.insert(peer.clone(), round);
        self.rounds.scheduled.remove(peer);
        self.rounds.suppressed.on_round(peer);
        self.stats.rounds_opened += 1;
        let root = self.entries.tree.sum_of(part);
        let pruning = self.news_for(now, peer);
        self.send(peer.clone(), Message::SyncOpen { round: number, part, root, pruning }, out);
    }

    /// Opens a round with a peer that lacks something known to be too large for a message.
    pub(super) fn open_round_soon(&mut self, now: Instant, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        if !self.rounds.opened.contains_key(peer) {
            self.open_round(now, peer, Sixteenths::ALL, out);
        }
    }

    /// Opens rounds with all other voters while this replica catches up, some at a time: at first each peer is asked
    /// for one share of the hash space, so that all send and none sends what another does.
    pub(super) fn open_initial_rounds(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.end_syncing_if_done(now, out);
        if self.lifecycle != Lifecycle::Syncing || self.replicas.own_status.is_none() {
            return;
        }
        let waiting = self.replicas.others.iter().filter(|replica| replica.status.is_voter() && replica.reachable);
        let waiting = waiting.filter(|replica| self.gate.may_open(&replica.address));
        let waiting = waiting.map(|replica| replica.address.clone());
        let waiting: Vec<UniqueAddress> = waiting
            .filter(|peer| !self.synced_with.contains(peer) && !self.rounds.opened.contains_key(peer))
            .take(self.settings.sync_parallel_peers.saturating_sub(self.rounds.opened.len()))
            .collect();
        match self.rounds.catching_up {
            CatchingUp::Before if waiting.len() > 1 => {
                self.rounds.catching_up = CatchingUp::Shares;
                let shares = waiting.len().min(16);
                for (index, peer) in waiting.iter().take(shares).enumerate() {
                    self.open_round(now, peer, Sixteenths::share(index, shares), out);
                }
            }
            CatchingUp::Shares if self.rounds.opened.values().any(|round| round.part != Sixteenths::ALL) => {}
            CatchingUp::One if self.rounds.opened.values().any(|round| round.answered || !self.rounds.has_lost) => {}
            CatchingUp::Before if waiting.is_empty() => {}
            // An empty replica gets everything from the first peer; other peers would send the same again.
            _ if self.root_sum().count == 0 && !self.rounds.has_lost && !waiting.is_empty() => {
                self.rounds.catching_up = CatchingUp::One;
                for peer in waiting.iter().take(1_usize.saturating_sub(self.rounds.opened.len())) {
                    self.open_round(now, peer, Sixteenths::ALL, out);
                }
            }
            _ => {
                self.rounds.catching_up = CatchingUp::Whole;
                for peer in waiting {
                    self.open_round(now, &peer, Sixteenths::ALL, out);
                }
                self.release_held(now, out);
            }
        }
    }

    /// Continues rounds of peers that were kept waiting, so that they did not send what the shares bring.
    fn release_held(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut released = Vec::new();
        for (peer, id, round) in self.rounds.iter_mut() {
            if let Some(root) = round.held.take() {
                round.compare_root(&self.entries, root);
                released.push((peer.clone(), id));
            }
        }
        for (peer, id) in released {
            self.pump(now, &peer, id, out);
        }
    }

    /// Ends `Syncing` after rounds with so many voters that every majority which confirmed a write includes one of
    /// them. Source: ddata G13.
    fn end_syncing_if_done(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.lifecycle != Lifecycle::Syncing || self.replicas.own_status.is_none() || self.gate.excludes_members() {
            return;
        }
        let voters = self.replicas.others.iter().filter(|replica| replica.status.is_voter());
        let done = voters.clone().filter(|replica| self.synced_with.contains(&replica.address)).count();
        let others = voters.count() + self.replicas.unmet.len();
        let all = others + 1;
        if others == 0 || done >= all - all / 2 {
            self.become_running(now, out);
        }
    }

    /// Begins to catch up with others, if membership knows this replica.
    pub(super) fn begin_syncing(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.replicas.own_status.is_some() && self.lifecycle == Lifecycle::Syncing {
            self.syncing_since.get_or_insert(now);
            self.open_initial_rounds(now, out);
        }
    }

    fn become_running(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.syncing_since = None;
        self.rounds.catching_up = CatchingUp::Whole;
        self.become_lifecycle(Lifecycle::Running, out);
        self.release_held(now, out);
    }

    pub(super) fn tick_rounds(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_over = self.syncing_since.is_some_and(|since| since + self.settings.sync_timeout <= now);
        if is_over && !self.gate.excludes_members() {
            self.become_running(now, out);
        }
        if self.initial_retry_at().is_some_and(|at| at <= now) {
            self.drop_unanswered(now, out);
            self.open_initial_rounds(now, out);
        }
        if self.gossip_at > now || self.replicas.others.is_empty() {
            return;
        }
        self.gossip_at = now + jittered(&mut self.rng, self.settings.gossip_interval);
        // Drop rounds without progress: they have lost a message; the next round begins afresh.
        let goes_on = |round: &mut Round| round.stalls_at(self.settings.gossip_interval) > now;
        self.rounds.opened.retain(|_, round| goes_on(round));
        self.rounds.answered.retain(|_, round| goes_on(round));
        self.drop_lost_drafts(now, out);
        self.open_initial_rounds(now, out);
        if self.is_given_everything() {
            return;
        }
        if let Some(peer) = self.choose_peer() {
            self.open_round(now, &peer, Sixteenths::ALL, out);
        }
    }

    /// Gives up rounds that got no answer; shares are asked for once more.
    fn drop_unanswered(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let opened = self.rounds.opened.iter();
        let lost = opened.filter(|(_, round)| !round.answered && round.progress_at + INITIAL_RETRY <= now);
        let lost: Vec<(UniqueAddress, Sixteenths)> = lost.map(|(peer, round)| (peer.clone(), round.part)).collect();
        let is_first = !lost.is_empty() && !std::mem::replace(&mut self.rounds.has_lost, true);
        let asks_again = is_first && self.rounds.catching_up == CatchingUp::Shares;
        for (peer, part) in lost {
            self.rounds.opened.remove(&peer);
            if asks_again && part != Sixteenths::ALL {
                self.open_round(now, &peer, part, out);
            }
        }
    }

    /// When an unanswered round of catching up is opened again. Nodes that start together find each other's replicators
    /// missing at first; waiting a whole gossip interval would delay every majority read of the cluster.
    pub(super) fn initial_retry_at(&self) -> Option<Instant> {
        let catching_up = self.lifecycle == Lifecycle::Syncing && self.replicas.own_status.is_some();
        let unanswered = self.rounds.opened.values().filter(|round| !round.answered);
        let opened = unanswered.map(|round| round.progress_at + INITIAL_RETRY);
        catching_up.then(|| opened.min()).flatten()
    }

    fn choose_peer(&mut self) -> Option<UniqueAddress> {
        self.rounds.count += 1;
        let any = self.rounds.count.is_multiple_of(ANY_PEER_EVERY);
        let own_joins = self.replicas.own_status.is_none_or(|status| !status.is_peer());
        let peers = self.replicas.others.iter().filter(|replica| {
            (any || replica.reachable)
                && (replica.status.is_peer() || own_joins || self.rounds.scheduled.contains(&replica.address))
        });
        let free: Vec<&UniqueAddress> =
            peers.map(|r| &r.address).filter(|peer| !self.rounds.is_running(peer)).collect();
        if let Some(peer) = free.iter().find(|peer| self.rounds.scheduled.contains(**peer)) {
            return Some((**peer).clone());
        }
        (!free.is_empty()).then(|| free[self.rng.random_range(0..free.len())].clone())
    }

    pub(super) fn on_sync_message(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        message: Message,
        out: &mut Vec<Effect>,
    ) {
        match message {
            Message::SyncOpen { round, part, root, pruning } => {
                self.on_sync_open(now, from, round, (part, root), &pruning, out);
            }
            Message::SyncSame { round, pruning } => {
                self.on_first_answer(now, from, round, &pruning, out);
                if self.rounds.opened.get(from).is_some_and(|open| open.is(round)) {
                    self.finish_round(now, from, out);
                }
            }
            Message::SyncDiffers { round, pruning } => self.on_first_answer(now, from, round, &pruning, out),
            Message::SyncDone { round } if self.rounds.answered.get(from).is_some_and(|found| found.is(round)) => {
                if let Some(round) = self.rounds.answered.remove(from) {
                    self.note_complete(now, from, &round, out);
                }
            }
            Message::SyncNodes { round, number, parents } => {
                let Some(found) = self.rounds.find(from, round) else { return };
                if found.receive(now, number) {
                    for (parent, sums) in parents {
                        found.compare_children(&self.entries, parent, &sums);
                    }
                }
                self.after_round_message(now, from, round, out);
            }
            Message::SyncList { round, number, prefixes, keys } => {
                self.on_list(now, from, round, number, &prefixes, &keys, out);
            }
            Message::SyncWant { round: Some(round), number, hashes } => {
                let Some(found) = self.rounds.find(from, round) else { return };
                if found.receive(now, number) {
                    found.on_want(&self.entries, &hashes);
                }
                self.after_round_message(now, from, round, out);
            }
            Message::SyncWant { round: None, hashes, .. } => self.on_want_after_hint(now, from, &hashes, out),
            Message::InnerNodes { round, number, key, snapshot, offer, nodes } => {
                self.on_inner_nodes(now, from, (round, number), key, snapshot, offer, nodes, out);
            }
            Message::InnerWant { round, number, key, snapshot, ranges } => {
                let Some(found) = self.rounds.find(from, round) else { return };
                if found.receive(now, number) {
                    found.on_ranges_wanted(&key, snapshot, ranges);
                }
                self.after_round_message(now, from, round, out);
            }
            Message::Bucket { round, number, key, snapshot, part } => {
                self.on_bucket(now, from, (round, number), &key, snapshot, &part, out);
            }
            Message::Gossip { round, number, send_back, entries } => {
                self.on_gossip(now, from, round, number, send_back, &entries, out);
            }
            Message::SyncAck { round, number, received, sent, idle } => {
                let Some(found) = self.rounds.find(from, round) else { return };
                found.on_ack(now, number, received, sent, idle);
                self.after_round_message(now, from, round, out);
            }
            _ => {}
        }
    }

    fn on_sync_open(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        round: u64,
        (part, root): (Sixteenths, Sum),
        pruning: &PruningNews,
        out: &mut Vec<Effect>,
    ) {
        self.hear(now, from, &pruning.standing, None, out);
        if !self.gate.is_refused() {
            self.on_pruning_news(now, from, pruning);
        }
        let pruning = self.news_for(now, from);
        if part == Sixteenths::NONE {
            return self.send(from.clone(), Message::SyncSame { round, pruning }, out);
        }
        self.log.on_round_opened(from, now);
        if !self.gate.exchanges_with(from) {
            self.rounds.answered.remove(from);
            return self.send(from.clone(), Message::SyncDiffers { round, pruning }, out);
        }
        if root == self.entries.tree.sum_of(part) {
            self.rounds.answered.remove(from);
            if part == Sixteenths::ALL {
                self.log.on_round_complete(from, now);
            }
            self.send(from.clone(), Message::SyncSame { round, pruning }, out);
            return;
        }
        let mut answer = Round::new(now, round, false);
        answer.own_rounds = self.known_rounds(from, self.pruning.collections.snapshot());
        answer.all_were_reachable = self.all_are_reachable();
        answer.part = part;
        if part == Sixteenths::ALL && self.keeps_waiting(root) {
            answer.held = Some(root);
        } else {
            answer.compare_root(&self.entries, root);
        }
        self.rounds.answered.insert(from.clone(), answer);
        self.send(from.clone(), Message::SyncDiffers { round, pruning }, out);
        self.pump(now, from, RoundId { opened_by_sender: true, number: round }, out);
    }

    /// Whether a full round that a peer opens waits until everything asked for is here, so that data are not sent
    /// twice. Shares never wait, nor peers that hold less than this replica: otherwise two new replicas would wait for
    /// each other.
    fn keeps_waiting(&self, root: Sum) -> bool {
        match self.rounds.catching_up {
            CatchingUp::Shares => true,
            CatchingUp::One => root.count > self.root_sum().count && self.is_given_everything(),
            CatchingUp::Before | CatchingUp::Whole => false,
        }
    }

    /// Whether this replica has just begun and is getting everything that others hold.
    fn is_given_everything(&self) -> bool {
        let is_asking = matches!(self.rounds.catching_up, CatchingUp::Shares | CatchingUp::One);
        is_asking && self.lifecycle == Lifecycle::Syncing && !self.rounds.opened.is_empty()
    }

    /// Notes the first answer of a round: the peer has taken over the pruning rounds in the opening. Whatever the peer
    /// holds from now on is compared, and it adds nothing of the replicas that are removed by those rounds.
    fn on_first_answer(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        round: u64,
        pruning: &PruningNews,
        out: &mut Vec<Effect>,
    ) {
        self.hear(now, from, &pruning.standing, Some(round), out);
        if self.gate.is_refused() {
            return;
        }
        self.on_pruning_news(now, from, pruning);
        if !self.gate.exchanges_with(from) && self.rounds.opened.get(from).is_some_and(|open| open.is(round)) {
            // Drop the round: both know the other's standing, and data are not exchanged.
            self.rounds.opened.remove(from);
            return;
        }
        let Some(began) =
            self.rounds.opened.get(from).filter(|open| open.is(round)).map(|open| open.own_rounds.clone())
        else {
            return;
        };
        let own_rounds = self.known_rounds(from, began);
        if let Some(open) = self.rounds.opened.get_mut(from) {
            open.own_rounds = own_rounds;
            open.answered = true;
        }
    }

    /// The own pruning rounds that the peer has shown to know. Source: ddata Z4.
    fn known_rounds(&self, peer: &UniqueAddress, began: RoundsSnapshot) -> RoundsSnapshot {
        if self.settings.omits(Sabotage::Shown) { began } else { self.pruning.collections.known_by(peer, &began) }
    }

    /// Notes that every difference of a round was exchanged both ways.
    fn note_complete(&mut self, now: Instant, peer: &UniqueAddress, round: &Round, out: &mut Vec<Effect>) {
        if round.part != Sixteenths::ALL || round.has_failed {
            return;
        }
        if round.answered {
            self.note_complete_round(now, peer, round, out);
            self.pruning.collections.on_completed(peer, &round.own_rounds);
        }
        self.note_synced(now, peer, out);
        self.log.on_round_complete(peer, round.began_at);
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    fn on_list(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        round: RoundId,
        number: u64,
        prefixes: &[Prefix],
        keys: &[Listed],
        out: &mut Vec<Effect>,
    ) {
        let rounds = if round.opened_by_sender { &mut self.rounds.answered } else { &mut self.rounds.opened };
        let Some(found) = rounds.get_mut(from).filter(|found| found.is(round.number)) else { return };
        if found.receive(now, number) {
            for held in keys {
                let Some(used_ms) = held.used_ms else { continue };
                for key in keys_of(&self.entries, held.hash) {
                    if self.entries.digest(&key) == Some(held.digest) {
                        self.entries.note_used(&key, used_ms);
                    }
                }
            }
            let suppressed = &mut self.rounds.suppressed;
            let mut keys = keys.to_vec();
            keys.sort_unstable_by_key(|held| held.hash);
            for prefix in prefixes {
                let first = keys.partition_point(|held| held.hash < prefix.bits());
                let count = keys[first..].partition_point(|held| prefix.contains(held.hash));
                let keys = &keys[first..first + count];
                found.compare_list(&self.entries, *prefix, keys, &mut |hash, own, theirs, used_ms| {
                    suppressed.get_mut(from, hash).is_some_and(|left| left.is_same(own, theirs, used_ms))
                });
            }
        }
        self.after_round_message(now, from, round, out);
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    fn on_gossip(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        round: Option<RoundId>,
        number: u64,
        send_back: bool,
        entries: &[(KeyId, Envelope)],
        out: &mut Vec<Effect>,
    ) {
        // Accept late entries too: a large message may arrive after its round was given up.
        let round = round.filter(|round| self.rounds.find(from, *round).is_some());
        if let Some(round) = round
            && let Some(found) = self.rounds.find(from, round)
            && !found.receive(now, number)
        {
            return self.after_round_message(now, from, round, out);
        }
        let mut back = Vec::new();
        for (key, envelope) in entries {
            match self.merge(now, from, key, envelope, out) {
                Ok(Merged::Expired) => self.suppress(from, key, envelope.used_ms),
                Err(_) => {
                    self.suppress(from, key, envelope.used_ms);
                    // Send the own entry back: the peer then sees the disagreement, and suppresses it too.
                    if send_back && self.entries.get(key).is_some() {
                        back.push(key.clone());
                    }
                }
                Ok(Merged::Done { changed: false }) if !send_back => {}
                Ok(_) => {
                    // Do not compare a large value, which would have to be encoded; offering it costs less.
                    if self.entries.is_large(key, self.settings.inner_tree_keys)
                        || self.entries.envelope(key).is_some_and(|own| own.content != envelope.content)
                    {
                        back.push(key.clone());
                    }
                }
            }
        }
        let Some(round) = round else { return };
        if send_back && let Some(found) = self.rounds.find(from, round) {
            found.send_entries(back);
        }
        self.after_round_message(now, from, round, out);
    }

    /// Suppresses a difference for a while, because exchanging the entry changes nothing. Source: ddata G14.
    pub(super) fn suppress(&mut self, from: &UniqueAddress, key: &KeyId, used_ms: Option<i64>) {
        let rounds = self.settings.mismatch_suppress_rounds;
        let difference = Difference::new(self.entries.digest(key), used_ms, rounds);
        self.rounds.suppressed.add(from, hash64(key.as_bytes()), difference);
    }

    /// Takes a request for entries too large for a batch, by the hashes in the hints. Source: ddata G7.
    fn on_want_after_hint(&mut self, now: Instant, from: &UniqueAddress, hashes: &[u64], out: &mut Vec<Effect>) {
        let keys: Vec<KeyId> = hashes.iter().flat_map(|hash| keys_of(&self.entries, *hash)).collect();
        let hinted = self.rounds.hinted.entry(from.clone()).or_default();
        let room = HINTED_PER_PEER.saturating_sub(hinted.len());
        hinted.extend(keys.into_iter().take(room));
        self.send_hinted(now, from, out);
    }

    /// Sends one message of entries that a peer asked for after hints; the rest follows in further steps.
    fn send_hinted(&mut self, now: Instant, to: &UniqueAddress, out: &mut Vec<Effect>) {
        let Some(keys) = self.rounds.hinted.get_mut(to) else { return };
        let (_, entries, large) = fill(&self.settings, &mut self.entries, keys);
        if keys.is_empty() {
            self.rounds.hinted.remove(to);
        } else {
            self.rounds.step_at = Some(now);
        }
        if !large.is_empty() {
            self.open_round_soon(now, to, out);
        }
        if !entries.is_empty() {
            let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
            self.send(to.clone(), message, out);
        }
    }

    /// Continues to send entries that peers asked for after hints.
    pub(super) fn step_hinted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let peers: Vec<UniqueAddress> = self.rounds.hinted.keys().cloned().collect();
        for peer in peers {
            self.send_hinted(now, &peer, out);
        }
    }

    pub(super) fn pump(&mut self, now: Instant, peer: &UniqueAddress, round: RoundId, out: &mut Vec<Effect>) {
        let rounds = if round.opened_by_sender { &mut self.rounds.answered } else { &mut self.rounds.opened };
        let Some(found) = rounds.get_mut(peer).filter(|found| found.is(round.number)) else { return };
        let mut messages = Vec::new();
        found.pump(&self.settings, &mut self.entries, &mut messages);
        if found.has_more {
            self.rounds.step_at = Some(now);
        } else if found.sums_missing {
            self.rounds.step_at.get_or_insert(now + STEP_PAUSE);
        }
        for (_, message) in messages {
            self.send(peer.clone(), message, out);
        }
    }

    pub(super) fn after_round_message(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        round: RoundId,
        out: &mut Vec<Effect>,
    ) {
        self.pump(now, peer, round, out);
        let is_complete = !round.opened_by_sender && self.rounds.opened.get(peer).is_some_and(Round::is_complete);
        if is_complete && self.rounds.opened.get(peer).is_some_and(|open| open.has_failed) {
            // A later round begins afresh.
            self.rounds.opened.remove(peer);
        } else if is_complete {
            self.stats.rounds_completed += 1;
            self.send(peer.clone(), Message::SyncDone { round: round.number }, out);
            self.finish_round(now, peer, out);
        }
    }

    fn finish_round(&mut self, now: Instant, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        if let Some(round) = self.rounds.opened.remove(peer) {
            self.note_complete(now, peer, &round, out);
        }
        self.open_initial_rounds(now, out);
    }

    fn note_synced(&mut self, now: Instant, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        if self.lifecycle == Lifecycle::Syncing {
            self.synced_with.insert(peer.clone());
            self.end_syncing_if_done(now, out);
        }
    }
}
