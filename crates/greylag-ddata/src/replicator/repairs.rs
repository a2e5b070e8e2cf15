//! Receives large values in parts: takes offers, asks range by range, joins the parts, and puts the result in place.
//! Source: ddata G12.

use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, KeyRange, Part, RangeSum};

use super::ReplicatorCore;
use super::peers::rules;
use super::rounds::STEP_PAUSE;
use crate::effect::Effect;
use crate::entries::{Data, Entry, Merged};
use crate::envelope::Content;
use crate::event::ReplicatorEvent;
use crate::input::DropReason;
use crate::key::KeyId;
use crate::message::{Offer, RoundId};
use crate::read::Lifecycle;
use crate::repair::{Deferred, Malformed, UNDER_WAY};

/// How many values of the greatest entry size a peer may have on their way here, beside one per replica.
const VALUES_PER_PEER: usize = 4;

impl ReplicatorCore {
    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn on_inner_nodes(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        (round, number): (RoundId, u64),
        key: KeyId,
        snapshot: Digest,
        offer: Option<Box<Offer>>,
        nodes: Vec<(KeyRange, RangeSum)>,
        out: &mut Vec<Effect>,
    ) {
        let Some(found) = self.rounds.find(from, round) else { return };
        if !found.receive(now, number) {
            return self.after_round_message(now, from, round, out);
        }
        match (offer, &nodes[..]) {
            (Some(offer), [(_, sum)]) => {
                let offered = Deferred { round, snapshot, offer: *offer, sum: *sum };
                self.on_offer(now, from, key, offered, out);
            }
            (Some(_), _) => {
                found.has_failed = true;
                found.end_receiving(&key, snapshot);
                self.note_aborted(from, out);
            }
            (None, _) => {
                let draft = self.entries.drafts.get_mut(&key);
                let draft = draft.filter(|draft| draft.is_of(from, round, snapshot));
                match draft.map(|draft| draft.on_nodes(nodes)) {
                    Some(Ok(())) => self.advance_draft(now, &key, out),
                    Some(Err(Malformed)) => self.abort_draft(now, &key, out),
                    None => {}
                }
            }
        }
        self.after_round_message(now, from, round, out);
    }

    /// Takes the offer of a peer's large value, which may differ from the own one.
    fn on_offer(&mut self, now: Instant, from: &UniqueAddress, key: KeyId, offered: Deferred, out: &mut Vec<Effect>) {
        let (round, snapshot) = (offered.round, offered.snapshot);
        let Some(found) = self.rounds.find(from, round) else { return };
        found.begin_receiving(key.clone());
        if let Some((other, its_round)) = self.entries.drafts.get(&key).map(|draft| (draft.from.clone(), draft.round)) {
            if self.rounds.find(&other, its_round).is_some() {
                // Defer: two drafts at a time would fetch the same twice, and most likely nothing differs after the
                // first.
                if let Some(draft) = self.entries.drafts.get_mut(&key) {
                    draft.deferred.insert((from.clone(), round), offered);
                }
                return;
            }
            // The round of that draft is over, because the peer opened another.
            self.abort_draft(now, &key, out);
        }
        if self.entries.drafts.values().filter(|draft| draft.from == *from).count() >= 2 * UNDER_WAY {
            self.note_aborted(from, out);
            self.note_failed(from, round);
            return self.end_receiving(from, round, &key, snapshot);
        }
        if let Some(Entry { data: Data::Tombstone { .. }, .. }) = self.entries.get(&key) {
            if let Some(found) = self.rounds.find(from, round) {
                found.end_receiving(&key, snapshot);
                found.send_entries([key]);
            }
            return;
        }
        let tag = match &offered.offer.head.content {
            Content::Value { tag, .. } => tag.clone(),
            Content::Tombstone { .. } | Content::Unreadable => "".into(),
        };
        let rules = rules(&self.types, &self.settings, self.forgets_before(now));
        match self.entries.begin_draft(&rules, &key, from.clone(), offered) {
            Ok(()) => self.advance_draft(now, &key, out),
            Err(refusal) => {
                self.end_receiving(from, round, &key, snapshot);
                self.suppress(from, &key, None);
                _ = self.note_refusal(now, from, &key, &tag, Err(refusal), out);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn on_bucket(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        (round, number): (RoundId, u64),
        key: &KeyId,
        snapshot: Digest,
        part: &Part,
        out: &mut Vec<Effect>,
    ) {
        let Some(found) = self.rounds.find(from, round) else { return };
        if found.receive(now, number) {
            let draft = self.entries.drafts.get_mut(key).filter(|draft| draft.is_of(from, round, snapshot));
            match draft.map(|draft| draft.on_bucket(part)) {
                Some(Ok(())) if self.is_within_bounds(from) => self.advance_draft(now, key, out),
                Some(_) => self.abort_draft(now, key, out),
                None => {}
            }
        }
        self.after_round_message(now, from, round, out);
    }

    /// Whether the values that a peer is sending are no larger than legal updates and their joins can be: every replica
    /// may have grown an entry up to its limit before they met.
    fn is_within_bounds(&self, from: &UniqueAddress) -> bool {
        let bytes: usize = self.entries.drafts.values().filter(|draft| draft.from == *from).map(|d| d.bytes).sum();
        let values = VALUES_PER_PEER + self.replicas.others.len();
        bytes <= self.settings.max_entry_bytes.saturating_mul(values)
    }

    fn advance_draft(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(draft) = self.entries.drafts.get_mut(key) else { return };
        let (from, round, snapshot) = (draft.from.clone(), draft.round, draft.snapshot);
        match draft.advance() {
            Err(Malformed) => self.abort_draft(now, key, out),
            Ok(step) if step.sums_missing => _ = self.rounds.step_at.get_or_insert(now + STEP_PAUSE),
            Ok(step) if step.is_done => self.finish_draft(now, key, out),
            Ok(step) => {
                if let Some(found) = self.rounds.find(&from, round) {
                    found.want_ranges(key, snapshot, step.wanted);
                }
            }
        }
    }

    /// Finishes a draft: everything that differed is here.
    fn finish_draft(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(mut draft) = self.entries.drafts.remove(key) else { return };
        let differed = draft.bytes > 0;
        let deferred = std::mem::take(&mut draft.deferred);
        let (from, round, snapshot, send_back) =
            (draft.from.clone(), draft.round, draft.snapshot, draft.offer.send_back);
        let used_ms = draft.offer.head.used_ms;
        let tag = match &draft.offer.head.content {
            Content::Value { tag, .. } => tag.clone(),
            Content::Tombstone { .. } | Content::Unreadable => "".into(),
        };
        let rules = rules(&self.types, &self.settings, self.forgets_before(now));
        let merged = self.entries.merge_draft(&rules, key, draft);
        let merged = self.note_refusal(now, &from, key, &tag, merged, out);
        self.end_receiving(&from, round, key, snapshot);
        match merged {
            Err(_) | Ok(Merged::Expired) => self.suppress(&from, key, used_ms),
            Ok(Merged::Done { .. }) if !send_back || self.entries.digest(key) == Some(snapshot) => {}
            Ok(_) => {
                if let Some(found) = self.rounds.find(&from, round) {
                    found.send_entries([key.clone()]);
                }
            }
        }
        self.stats.repaired_in_parts += u64::from(merged.is_ok() && differed);
        for ((peer, _), offered) in deferred {
            let round = offered.round;
            self.on_offer(now, &peer, key.clone(), offered, out);
            self.after_round_message(now, &peer, round, out);
        }
    }

    /// Gives up a value that is being received.
    pub(super) fn abort_draft(&mut self, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(draft) = self.entries.drafts.remove(key) else { return };
        self.note_aborted(&draft.from, out);
        self.note_failed(&draft.from, draft.round);
        self.end_receiving(&draft.from, draft.round, key, draft.snapshot);
        for ((peer, _), offered) in draft.deferred {
            let round = offered.round;
            self.on_offer(now, &peer, key.clone(), offered, out);
            self.after_round_message(now, &peer, round, out);
        }
    }

    fn end_receiving(&mut self, from: &UniqueAddress, round: RoundId, key: &KeyId, snapshot: Digest) {
        if let Some(found) = self.rounds.find(from, round) {
            found.end_receiving(key, snapshot);
        }
    }

    /// Marks a round as failed: it will not have exchanged everything.
    fn note_failed(&mut self, from: &UniqueAddress, round: RoundId) {
        if let Some(found) = self.rounds.find(from, round) {
            found.has_failed = true;
        }
    }

    fn note_aborted(&mut self, from: &UniqueAddress, out: &mut Vec<Effect>) {
        self.stats.transfers_aborted += 1;
        out.push(Effect::Event(ReplicatorEvent::TransferAborted { peer: from.clone() }));
    }

    pub(super) fn on_dropped(&mut self, from: &UniqueAddress, why: DropReason, out: &mut Vec<Effect>) {
        match why {
            DropReason::Malformed => self.stats.malformed += 1,
            DropReason::Stranger => self.stats.from_strangers += 1,
            DropReason::Transfer => self.note_aborted(from, out),
        }
    }

    /// Drops drafts of rounds that are over.
    pub(super) fn drop_lost_drafts(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let of_rounds = self.entries.drafts.iter().map(|(key, draft)| (key.clone(), draft.from.clone(), draft.round));
        let of_rounds: Vec<_> = of_rounds.collect();
        for (key, from, round) in of_rounds {
            if self.rounds.find(&from, round).is_none() {
                self.abort_draft(now, &key, out);
            }
        }
    }

    /// Does one step of long work. A step is an input of its own, so that a request waits for one step at most.
    pub(super) fn step_on(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_serving = matches!(self.lifecycle, Lifecycle::Syncing | Lifecycle::Running);
        if !is_serving || self.rounds.step_at.is_none_or(|at| at > now) {
            return;
        }
        self.rounds.step_at = None;
        self.log.go_on();
        self.step_hinted(now, out);
        let keys: Vec<KeyId> = self.entries.drafts.keys().cloned().collect();
        for key in keys {
            let Some(draft) = self.entries.drafts.get(&key) else { continue };
            if draft.has_to_compare() {
                let (from, round) = (draft.from.clone(), draft.round);
                self.advance_draft(now, &key, out);
                self.after_round_message(now, &from, round, out);
            }
        }
        let mut going_on = Vec::new();
        for (peer, id, round) in self.rounds.iter_mut() {
            if std::mem::take(&mut round.sums_missing) | std::mem::take(&mut round.has_more) {
                going_on.push((peer.clone(), id));
            }
        }
        for (peer, id) in going_on {
            self.after_round_message(now, &peer, id, out);
        }
    }
}
