//! Handles messages of peers: their requests and answers, what they send unasked, the rounds with them, and what their
//! standing means for the own store.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, ReplicaId};

use super::ReplicatorCore;
use crate::api::effect::Effect;
use crate::api::error::StopReason;
use crate::api::event::ReplicatorEvent;
use crate::api::key::KeyId;
use crate::api::read::Lifecycle;
use crate::api::settings::durable::StaleStore;
use crate::data::entries::{Data, Entry, Merged};
use crate::data::envelope::Envelope;
use crate::data::tree::Sixteenths;
use crate::dissemination::sync::{Round, keys_of};
use crate::gate::{GateEffect, Stale, Standing};
use crate::messages::bounds::has_impossible_numbers;
use crate::messages::message::{BatchItem, DeltaItem, Message, Nacked, ReadReply, Refusal, RoundId, WriteReply};
use crate::pruning::{PruningNews, TimeChange, millis};
use crate::replicator::requests::ReadAnswer;
use crate::storage::storing::Waiter;

impl ReplicatorCore {
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        mut message: Message,
        out: &mut Vec<Effect>,
    ) {
        // Accept messages of replicas in any status, but not of strangers or of removed replicas.
        let is_removed =
            self.local.replicas.removed.contains(&from) || self.local.pruning.is_removed(ReplicaId(from.uid().get()));
        if self.local.replicas.other(&from).is_none() || is_removed {
            self.local.observed.stats.from_strangers += 1;
            return;
        }
        if matches!(self.local.lifecycle(), Lifecycle::Stopped(_)) {
            return self.answer_refused(now, from, &message, out);
        }
        if has_impossible_numbers(&message) {
            self.local.observed.stats.malformed += 1;
            return;
        }
        self.local.observed.on_received(&message);
        if *self.local.lifecycle() == Lifecycle::Loading || !self.local.may_take(&from, &message) {
            return self.refuse_for_now(from, &message, out);
        }
        if let Some(ahead_ms) = self.local.bounds(now).apply(&mut message) {
            self.local.observed.on_implausible_time(now, &from, ahead_ms, out);
        }
        if message.is_exchange() {
            self.local.note_contact(&from);
        }
        if message.carries_data() {
            self.local.note_data_of(&from);
        }
        match message {
            Message::Write { request, key, envelope } => {
                let (reply, changed) = self.on_write(now, &from, &key, &envelope, out);
                self.answer_write(from, request, &key, reply, changed, out);
            }
            Message::Check { request, key, digest } => {
                let reply = self.on_check(&key, digest, out);
                self.answer_write(from, request, &key, reply, false, out);
            }
            Message::DeltaWrite { request, item } => {
                let (reply, changed) = self.on_delta_write(now, &from, &item, out);
                self.answer_write(from, request, &item.key, reply, changed, out);
            }
            Message::WriteReply { request, reply } => self.on_write_reply(now, &from, request, reply, out),
            Message::Read { request, key, tag, digest } => {
                let reply = self.on_read(&key, &tag, digest, out);
                self.local.send(from, Message::ReadReply { request, reply }, out);
            }
            Message::ReadReply { request, reply } => self.on_read_reply(now, &from, request, reply, out),
            Message::DeltaBatch { from_seq, to_seq, items } => {
                let nacked = self.on_batch(now, &from, items, out);
                self.local.send(from, Message::DeltaAck { from_seq, to_seq, nacked }, out);
            }
            Message::DeltaAck { from_seq, to_seq, nacked } => {
                let range = (from_seq, to_seq);
                let is_exchanging = self.rounds.is_exchanging(&from);
                self.local.on_ack(now, &from, range, &nacked, is_exchanging, out);
            }
            message => self.on_round_message(now, &from, message, out),
        }
    }

    fn on_write(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        envelope: &Envelope,
        out: &mut Vec<Effect>,
    ) -> (WriteReply, bool) {
        match self.merge(now, from, key, envelope, out) {
            Ok(Merged::Deleted { deleted_at }) => (WriteReply::Deleted { deleted_at }, false),
            Ok(merged) => (WriteReply::Ack, merged == Merged::Done { changed: true }),
            Err(refusal) => (WriteReply::Nack(refusal), false),
        }
    }

    /// Answers a write. A durable entry is confirmed when nothing of it is missing on disk, whichever replica changed
    /// it. Source: ddata R12, U3.
    fn answer_write(
        &mut self,
        to: UniqueAddress,
        request: u64,
        key: &KeyId,
        reply: WriteReply,
        changed: bool,
        out: &mut Vec<Effect>,
    ) {
        let waiter = || Waiter::Peer { to: to.clone(), request };
        if reply != WriteReply::Ack || !self.local.entries.storing.wait(key, waiter(), changed) {
            self.local.send(to, Message::WriteReply { request, reply }, out);
        }
    }

    /// Refuses a message for now: durable entries are being loaded, or it is unknown whether they are too old. Source:
    /// ddata U4, Z9.
    fn refuse_for_now(&mut self, from: UniqueAddress, message: &Message, out: &mut Vec<Effect>) {
        self.local.observed.stats.not_ready += 1;
        if *self.local.lifecycle() != Lifecycle::Loading && !self.local.gate.is_closed() {
            // Drop the message: soon both have shown which history they belong to, and the peer asks again.
            return;
        }
        let answer = match message {
            Message::Write { request, .. } | Message::Check { request, .. } => {
                Message::WriteReply { request: *request, reply: WriteReply::Nack(Refusal::NotReady) }
            }
            Message::DeltaWrite { request, .. } => {
                Message::WriteReply { request: *request, reply: WriteReply::Nack(Refusal::NotReady) }
            }
            Message::Read { request, .. } => Message::ReadReply { request: *request, reply: ReadReply::NotReady },
            _ => return,
        };
        out.push(Effect::Send { to: from, bulk: false, message: answer });
    }

    fn on_check(&mut self, key: &KeyId, digest: Option<Digest>, out: &mut Vec<Effect>) -> WriteReply {
        match self.local.entries.get(key) {
            // Any entry includes the absent one.
            _ if digest.is_none() => WriteReply::Ack,
            Some(entry) if Some(entry.digest()) == digest => {
                self.local.touch(key, out);
                WriteReply::Ack
            }
            Some(Entry { data: Data::Tombstone { deleted_at }, .. }) => WriteReply::Deleted { deleted_at: *deleted_at },
            _ => WriteReply::DeltaNack { have: 0, full: true },
        }
    }

    fn on_delta_write(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        item: &DeltaItem,
        out: &mut Vec<Effect>,
    ) -> (WriteReply, bool) {
        match self.merge_delta(now, from, item, out) {
            Ok(Merged::Done { changed }) => (WriteReply::Ack, changed),
            Ok(Merged::Expired) => (WriteReply::Ack, false),
            Ok(Merged::Deleted { deleted_at }) => (WriteReply::Deleted { deleted_at }, false),
            Ok(Merged::Gap { have, full }) => (WriteReply::DeltaNack { have, full }, false),
            Err(refusal) => (WriteReply::Nack(refusal), false),
        }
    }

    fn on_read(&mut self, key: &KeyId, tag: &str, digest: Option<Digest>, out: &mut Vec<Effect>) -> ReadReply {
        // Refuse: a replica that came back empty must not answer for what it held before. Source: ddata G13.
        if *self.local.lifecycle() != Lifecycle::Running {
            return ReadReply::NotReady;
        }
        let reply = match self.local.entries.get(key) {
            None => ReadReply::Absent,
            Some(entry) if Some(entry.digest()) == digest => ReadReply::Same,
            Some(Entry { data: Data::Value(value), .. }) if *value.tag() != *tag => {
                return ReadReply::Nack(Refusal::TypeMismatch);
            }
            Some(_) => self.local.entries.envelope(key).map_or(ReadReply::Absent, ReadReply::Value),
        };
        self.local.touch(key, out);
        reply
    }

    fn on_batch(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        items: Vec<BatchItem>,
        out: &mut Vec<Effect>,
    ) -> Vec<Nacked> {
        let (mut nacked, mut wanted) = (Vec::new(), Vec::new());
        for item in items {
            match item {
                BatchItem::Delta(item) => {
                    // A final refusal is counted but not listed: sending the delta again would change nothing.
                    if let Ok(Merged::Gap { have, full }) = self.merge_delta(now, from, &item, out) {
                        nacked.push(Nacked { key: item.key, have, full });
                    } else if let Some(used_ms) = item.used_ms {
                        self.local.entries.note_told(&item.key, used_ms);
                    }
                }
                BatchItem::Full { key, envelope } => {
                    // As above: a refusal is counted but not listed.
                    let _: Result<Merged, Refusal> = self.merge(now, from, &key, &envelope, out);
                    if let Some(used_ms) = envelope.used_ms {
                        self.local.entries.note_told(&key, used_ms);
                    }
                }
                BatchItem::Hint { hash } => wanted.push(hash),
                BatchItem::Touch { hash, used_ms } => {
                    for key in keys_of(&self.local.entries, hash) {
                        self.local.entries.note_told(&key, used_ms);
                    }
                }
            }
        }
        if !wanted.is_empty() {
            self.local.send(from.clone(), Message::SyncWant { round: None, number: 0, hashes: wanted }, out);
        }
        nacked
    }

    /// Takes the answer of a replica to a write.
    fn on_write_reply(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        reply: WriteReply,
        out: &mut Vec<Effect>,
    ) {
        if let Some(deleted) = self.requests.on_write_reply(&mut self.local, now, from, request, reply, out) {
            self.free(now, &deleted.key, out);
            self.requests.on_deleted_elsewhere(&mut self.local, now, from, deleted, out);
        }
    }

    /// Takes the answer of a replica to a read. Its data are joined before the answer counts: a value that cannot be
    /// joined does not count.
    fn on_read_reply(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        reply: ReadReply,
        out: &mut Vec<Effect>,
    ) {
        let Some(key) = self.requests.on_read_reply(&mut self.local, from, request) else { return };
        let answer = match reply {
            ReadReply::Same => ReadAnswer::Same,
            ReadReply::Absent => ReadAnswer::Absent,
            ReadReply::Value(envelope) => match self.merge(now, from, &key, &envelope, out) {
                Ok(Merged::Expired) => ReadAnswer::Absent,
                Ok(_) => ReadAnswer::Joined(envelope),
                Err(_) => ReadAnswer::Refused,
            },
            ReadReply::NotReady | ReadReply::Nack(Refusal::NotReady) => ReadAnswer::NotReady,
            ReadReply::Nack(_) => ReadAnswer::Refused,
        };
        self.requests.on_read_answer(&mut self.local, now, from, request, answer, out);
    }

    /// Asks another replica instead of a peer for which the transport refused a message.
    pub(super) fn on_send_failed(&mut self, peer: &UniqueAddress, request: Option<u64>, out: &mut Vec<Effect>) {
        self.local.observed.stats.unsent += 1;
        if let Some(request) = request {
            self.requests.ask_instead_in(&mut self.local, request, peer, out);
        }
    }

    /// Joins deltas of the sender.
    fn merge_delta(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        item: &DeltaItem,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        self.free(now, &item.key, out);
        self.local.merge_delta(now, from, item, out)
    }

    /// Joins a full state.
    fn merge(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        key: &KeyId,
        envelope: &Envelope,
        out: &mut Vec<Effect>,
    ) -> Result<Merged, Refusal> {
        self.free(now, key, out);
        self.local.merge(now, from, key, envelope, out)
    }

    fn on_round_message(&mut self, now: Instant, from: &UniqueAddress, message: Message, out: &mut Vec<Effect>) {
        match message {
            Message::SyncOpen { round, part, root, pruning } => {
                self.hear(now, from, &pruning.standing, None, out);
                if !self.local.gate.is_refused() {
                    self.local.on_pruning_news(now, from, &pruning);
                }
                self.rounds.on_open(&mut self.local, now, from, round, (part, root), out);
            }
            Message::SyncSame { round, pruning } => {
                self.on_first_answer(now, from, round, &pruning, out);
                if let Some(complete) = self.rounds.take_opened(from, round) {
                    self.finish_round(now, from, &complete, out);
                }
            }
            Message::SyncDiffers { round, pruning } => self.on_first_answer(now, from, round, &pruning, out),
            Message::SyncDone { round } => {
                if let Some(complete) = self.rounds.take_answered(from, round) {
                    self.note_complete(now, from, &complete, out);
                }
            }
            Message::Gossip { round, number, send_back, entries } => {
                self.on_gossip(now, from, round, number, send_back, &entries, out);
            }
            message => {
                if let Some(complete) = self.rounds.on_message(&mut self.local, now, from, message, out) {
                    self.finish_round(now, from, &complete, out);
                }
            }
        }
    }

    fn on_first_answer(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        round: u64,
        pruning: &PruningNews,
        out: &mut Vec<Effect>,
    ) {
        self.hear(now, from, &pruning.standing, Some(round), out);
        if !self.local.gate.is_refused() {
            self.local.on_pruning_news(now, from, pruning);
            self.rounds.on_first_answer(&self.local, from, round);
        }
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
        let round = round.filter(|round| self.rounds.is_under_way(from, *round));
        if let Some(round) = round
            && !self.rounds.receive(now, from, round, number)
        {
            return self.after_round_message(now, from, round, out);
        }
        let mut back = Vec::new();
        for (key, envelope) in entries {
            match self.merge(now, from, key, envelope, out) {
                Ok(Merged::Expired) => self.rounds.suppress(&self.local, from, key, envelope.used_ms),
                Err(_) => {
                    self.rounds.suppress(&self.local, from, key, envelope.used_ms);
                    // Send the own entry back: the peer then sees the disagreement, and suppresses it too.
                    if send_back && self.local.entries.get(key).is_some() {
                        back.push(key.clone());
                    }
                }
                Ok(Merged::Done { changed: false }) if !send_back => {}
                Ok(_) => {
                    // Do not compare a large value, which would have to be encoded; offering it costs less.
                    if self.local.entries.is_large(key, self.local.settings.inner_tree_keys)
                        || self.local.entries.envelope(key).is_some_and(|own| own.content != envelope.content)
                    {
                        back.push(key.clone());
                    }
                }
            }
        }
        let Some(round) = round else { return };
        if send_back {
            self.rounds.send_entries(from, round, back);
        }
        self.after_round_message(now, from, round, out);
    }

    /// Does one step of long work. A step is an input of its own, so that a request waits for one step at most.
    pub(super) fn step_on(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_serving = matches!(self.local.lifecycle(), Lifecycle::Syncing | Lifecycle::Running);
        if !is_serving || !self.rounds.begin_step(now) {
            return;
        }
        self.local.log.go_on();
        self.rounds.step_hinted(&mut self.local, now, out);
        let drafts: Vec<KeyId> = self.local.entries.drafts.keys().cloned().collect();
        for key in drafts {
            if let Some((from, round)) = self.rounds.compare_draft(&mut self.local, now, &key, out) {
                self.after_round_message(now, &from, round, out);
            }
        }
        for (peer, round) in self.rounds.take_unfinished() {
            self.after_round_message(now, &peer, round, out);
        }
    }

    fn after_round_message(&mut self, now: Instant, peer: &UniqueAddress, round: RoundId, out: &mut Vec<Effect>) {
        if let Some(complete) = self.rounds.after_message(&mut self.local, now, peer, round, out) {
            self.finish_round(now, peer, &complete, out);
        }
    }

    fn finish_round(&mut self, now: Instant, peer: &UniqueAddress, complete: &Round, out: &mut Vec<Effect>) {
        self.note_complete(now, peer, complete, out);
        self.rounds.open_initial_rounds(&mut self.local, now, out);
    }

    /// Notes that every difference of a round was exchanged both ways.
    fn note_complete(&mut self, now: Instant, peer: &UniqueAddress, round: &Round, out: &mut Vec<Effect>) {
        if round.part != Sixteenths::ALL || round.has_failed {
            return;
        }
        if round.answered {
            let ago = millis(now.saturating_duration_since(round.began_at));
            let (moment, began_ms) = (self.local.moment(now), self.local.wall.ms(now).saturating_sub(ago));
            let mut effects = Vec::new();
            self.local.gate.on_complete_round(moment, peer, began_ms, round.all_were_reachable, &mut effects);
            if self.storage.on_complete_round() {
                self.local.entries.storing.meta_is_due = true;
            }
            self.perform_gate_effects(now, effects, out);
            self.local.pruning.collections.on_completed(peer, &round.own_rounds);
        }
        self.rounds.on_synced(&mut self.local, now, peer, out);
        self.local.log.on_round_complete(peer, round.began_at);
    }

    /// Answers as a refused replicator: it shows its state to replicators that ask, and does nothing else.
    fn answer_refused(&mut self, now: Instant, from: UniqueAddress, message: &Message, out: &mut Vec<Effect>) {
        if let Message::SyncOpen { round, .. } = message
            && self.local.gate.is_refused()
            && self.shutdown.still_answers()
        {
            let pruning = self.local.news_for(now, &from);
            out.push(Effect::Send { to: from, bulk: false, message: Message::SyncDiffers { round: *round, pruning } });
        }
    }

    /// Takes a member's standing.
    fn hear(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        standing: &Standing,
        answers: Option<u64>,
        out: &mut Vec<Effect>,
    ) {
        let mut effects = Vec::new();
        let (exchanged, was_heard) = (self.local.gate.exchanges_with(from), self.local.gate.has_heard(from));
        let refused = self.local.gate.refused();
        let moment = self.local.moment(now);
        self.local.gate.on_standing(moment, from, standing, answers, &mut effects);
        self.perform_gate_effects(now, effects, out);
        if self.local.gate.refused() != refused {
            let unrefused = self.local.unrefused();
            self.local.pruning.on_replicas(now, &unrefused);
            self.local.set_log_peers();
        }
        if !self.local.gate.exchanges_with(from) {
            return;
        }
        if !exchanged {
            self.local.scheduled.insert(from.clone());
            self.rounds.open_initial_rounds(&mut self.local, now, out);
        }
        if !exchanged || !was_heard {
            self.requests.ask_again(&mut self.local, from, out);
        }
    }

    pub(super) fn tick_gate(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        let moment = self.local.moment(now);
        self.local.gate.on_tick(moment, &mut effects);
        self.perform_gate_effects(now, effects, out);
    }

    /// Carries out what follows for entries, rounds and the store when the gate opens, closes, or refuses. Source:
    /// ddata Z9, Z11.
    pub(super) fn perform_gate_effects(&mut self, now: Instant, effects: Vec<GateEffect>, out: &mut Vec<Effect>) {
        let takes_over = effects.contains(&GateEffect::TookOver);
        if takes_over {
            self.local.entries.storing.meta_is_first();
            self.rounds.begin_anew();
        }
        for effect in effects {
            match effect {
                GateEffect::TookOver => {}
                GateEffect::Raised => self.local.entries.storing.meta_is_first(),
                GateEffect::Ask(member) => self.local.ask_standing(now, member, out),
                GateEffect::Opened { parted } => self.on_gate_opened(now, parted),
                GateEffect::Stale(stale) => self.on_stale(stale, out),
                GateEffect::Implausible { peer, ahead_ms } => {
                    self.local.observed.on_implausible_time(now, &peer, ahead_ms, out);
                }
                GateEffect::ClockWentBack { by_ms } => {
                    out.push(Effect::Event(ReplicatorEvent::ClockWentBack { by_ms }));
                }
                GateEffect::Closed { waiting_for, unmet } => {
                    out.push(Effect::Event(ReplicatorEvent::GateClosed { waiting_for, unmet }));
                }
            }
        }
        if takes_over {
            self.rounds.open_initial_rounds(&mut self.local, now, out);
            let others = self.local.replicas.clone();
            let members = others.others.iter().map(|replica| &replica.address);
            let exchanging: Vec<_> = members.filter(|member| self.local.gate.exchanges_with(member)).collect();
            for member in exchanging {
                self.requests.ask_again(&mut self.local, member, out);
            }
        }
    }

    /// Renews markers when the gate has opened: perhaps no member has heard of markers performed here shortly before
    /// the histories parted, so they count as performed now and are not forgotten too early.
    pub(super) fn on_gate_opened(&mut self, now: Instant, parted: i64) {
        let since = parted.saturating_sub(millis(self.local.settings.max_pruning_dissemination));
        let now_ms = self.local.wall.ms(now);
        self.local.set_times(now, TimeChange::Renew { since, now_ms });
        self.storage.keep_loaded();
    }

    /// Handles a store that is too old, or has forgotten what others have not.
    fn on_stale(&mut self, stale: Stale, out: &mut Vec<Effect>) {
        let Stale { policy, synced_at, parted, own_horizon, horizon, peer, is_of_store } = stale;
        if policy == StaleStore::Refuse {
            return self.stop_at_once(StopReason::StoreTooOld { synced_at, parted, own_horizon, horizon, peer }, out);
        }
        let mut dropped = BTreeSet::new();
        if policy == StaleStore::Discard {
            let loaded = self.storage.take_loaded();
            dropped = self.local.drop_stale(loaded, is_of_store);
        }
        self.requests.give_up_writes(&dropped, out);
        self.local.entries.storing.meta_is_due = true;
        let dropped = dropped.len();
        let event = ReplicatorEvent::StaleStore { synced_at, parted, own_horizon, horizon, peer, dropped };
        out.push(Effect::Event(event));
    }
}
