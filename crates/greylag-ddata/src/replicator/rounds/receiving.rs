//! Receives large values in parts: takes offers, asks range by range, joins the parts, and puts the result in place.
//! Source: ddata G12.

use std::collections::BTreeMap;
use std::time::Instant;

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, KeyRange, Part, RangeSum};

use super::{Rounds, STEP_PAUSE};
use crate::api::effect::Effect;
use crate::api::key::KeyId;
use crate::data::entries::{Data, Entry, Merged, Rules};
use crate::data::envelope::Content;
use crate::dissemination::repair::{Deferred, Malformed, UNDER_WAY};
use crate::messages::message::{Offer, RoundId};
use crate::replicator::local::LocalReplica;

/// How many values of the greatest entry size a peer may have on their way here, beside one per replica.
const VALUES_PER_PEER: usize = 4;

impl Rounds {
    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn on_inner_nodes(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        round: RoundId,
        key: KeyId,
        snapshot: Digest,
        offer: Option<Box<Offer>>,
        nodes: Vec<(KeyRange, RangeSum)>,
        out: &mut Vec<Effect>,
    ) {
        match (offer, &nodes[..]) {
            (Some(offer), [(_, sum)]) => {
                let offered = Deferred { round, snapshot, offer: *offer, sum: *sum };
                self.on_offer(local, now, from, key, offered, out);
            }
            (Some(_), _) => {
                self.note_failed(from, round);
                self.end_receiving(from, round, &key, snapshot);
                local.observed.on_aborted(from, out);
            }
            (None, _) => {
                let draft = local.entries.drafts.get_mut(&key);
                let draft = draft.filter(|draft| draft.is_of(from, round, snapshot));
                match draft.map(|draft| draft.on_nodes(nodes)) {
                    Some(Ok(())) => self.advance_draft(local, now, &key, out),
                    Some(Err(Malformed)) => self.abort_draft(local, now, &key, out),
                    None => {}
                }
            }
        }
    }

    /// Takes the offer of a peer's large value, which may differ from the own one.
    fn on_offer(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        key: KeyId,
        offered: Deferred,
        out: &mut Vec<Effect>,
    ) {
        let (round, snapshot) = (offered.round, offered.snapshot);
        let Some(found) = self.find(from, round) else { return };
        found.begin_receiving(key.clone());
        if let Some((other, its_round)) = local.entries.drafts.get(&key).map(|draft| (draft.from.clone(), draft.round))
        {
            if self.find(&other, its_round).is_some() {
                // Defer: two drafts at a time would fetch the same twice, and most likely nothing differs after the
                // first.
                if let Some(draft) = local.entries.drafts.get_mut(&key) {
                    draft.deferred.insert((from.clone(), round), offered);
                }
                return;
            }
            // The round of that draft is over, because the peer opened another.
            self.abort_draft(local, now, &key, out);
        }
        if local.entries.drafts.values().filter(|draft| draft.from == *from).count() >= 2 * UNDER_WAY {
            local.observed.on_aborted(from, out);
            self.note_failed(from, round);
            return self.end_receiving(from, round, &key, snapshot);
        }
        if let Some(Entry { data: Data::Tombstone { .. }, .. }) = local.entries.get(&key) {
            if let Some(found) = self.find(from, round) {
                found.end_receiving(&key, snapshot);
                found.send_entries([key]);
            }
            return;
        }
        let tag = match &offered.offer.head.content {
            Content::Value { tag, .. } => tag.clone(),
            Content::Tombstone { .. } | Content::Unreadable => "".into(),
        };
        let rules = Rules::new(&local.types, &local.settings, local.forgets_before(now));
        match local.entries.begin_draft(&rules, &key, from.clone(), offered) {
            Ok(()) => self.advance_draft(local, now, &key, out),
            Err(refusal) => {
                self.end_receiving(from, round, &key, snapshot);
                self.suppress(local, from, &key, None);
                _ = local.note_refusal(now, from, &key, &tag, Err(refusal), out);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, taken apart")]
    pub(super) fn on_bucket(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        round: RoundId,
        key: &KeyId,
        snapshot: Digest,
        part: &Part,
        out: &mut Vec<Effect>,
    ) {
        let draft = local.entries.drafts.get_mut(key).filter(|draft| draft.is_of(from, round, snapshot));
        match draft.map(|draft| draft.on_bucket(part)) {
            Some(Ok(())) if is_within_bounds(local, from) => self.advance_draft(local, now, key, out),
            Some(_) => self.abort_draft(local, now, key, out),
            None => {}
        }
    }

    fn advance_draft(&mut self, local: &mut LocalReplica, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(draft) = local.entries.drafts.get_mut(key) else { return };
        let (from, round, snapshot) = (draft.from.clone(), draft.round, draft.snapshot);
        match draft.advance() {
            Err(Malformed) => self.abort_draft(local, now, key, out),
            Ok(step) if step.sums_missing => _ = self.step_at.get_or_insert(now + STEP_PAUSE),
            Ok(step) if step.is_done => self.finish_draft(local, now, key, out),
            Ok(step) => {
                if let Some(found) = self.find(&from, round) {
                    found.want_ranges(key, snapshot, step.wanted);
                }
            }
        }
    }

    /// Finishes a draft: everything that differed is here.
    fn finish_draft(&mut self, local: &mut LocalReplica, now: Instant, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(mut draft) = local.entries.drafts.remove(key) else { return };
        let differed = draft.bytes > 0;
        let deferred = std::mem::take(&mut draft.deferred);
        let (from, round, snapshot, send_back) =
            (draft.from.clone(), draft.round, draft.snapshot, draft.offer.send_back);
        let used_ms = draft.offer.head.used_ms;
        let tag = match &draft.offer.head.content {
            Content::Value { tag, .. } => tag.clone(),
            Content::Tombstone { .. } | Content::Unreadable => "".into(),
        };
        let rules = Rules::new(&local.types, &local.settings, local.forgets_before(now));
        let merged = local.entries.merge_draft(&rules, key, draft);
        let merged = local.note_refusal(now, &from, key, &tag, merged, out);
        self.end_receiving(&from, round, key, snapshot);
        match merged {
            Err(_) | Ok(Merged::Expired) => self.suppress(local, &from, key, used_ms),
            Ok(Merged::Done { .. }) if !send_back || local.entries.digest(key) == Some(snapshot) => {}
            Ok(_) => {
                if let Some(found) = self.find(&from, round) {
                    found.send_entries([key.clone()]);
                }
            }
        }
        local.observed.stats.repaired_in_parts += u64::from(merged.is_ok() && differed);
        self.take_deferred(local, now, key, deferred, out);
    }

    /// Gives up a value that is being received.
    pub(in crate::replicator) fn abort_draft(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        key: &KeyId,
        out: &mut Vec<Effect>,
    ) {
        let Some(draft) = local.entries.drafts.remove(key) else { return };
        local.observed.on_aborted(&draft.from, out);
        self.note_failed(&draft.from, draft.round);
        self.end_receiving(&draft.from, draft.round, key, draft.snapshot);
        self.take_deferred(local, now, key, draft.deferred, out);
    }

    /// Takes the offers of the same value that waited for a draft to end. None of their rounds is complete afterwards,
    /// so that is not asked: the value is still being received, or the peer has yet to acknowledge that it is not.
    fn take_deferred(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        key: &KeyId,
        deferred: BTreeMap<(UniqueAddress, RoundId), Deferred>,
        out: &mut Vec<Effect>,
    ) {
        for ((peer, _), offered) in deferred {
            let round = offered.round;
            self.on_offer(local, now, &peer, key.clone(), offered, out);
            self.pump(local, now, &peer, round, out);
        }
    }

    fn end_receiving(&mut self, from: &UniqueAddress, round: RoundId, key: &KeyId, snapshot: Digest) {
        if let Some(found) = self.find(from, round) {
            found.end_receiving(key, snapshot);
        }
    }

    /// Marks a round as failed: it will not have exchanged everything.
    fn note_failed(&mut self, from: &UniqueAddress, round: RoundId) {
        if let Some(found) = self.find(from, round) {
            found.has_failed = true;
        }
    }

    /// Drops drafts of rounds that are over.
    pub(super) fn drop_lost_drafts(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let of_rounds = local.entries.drafts.iter().map(|(key, draft)| (key.clone(), draft.from.clone(), draft.round));
        let of_rounds: Vec<_> = of_rounds.collect();
        for (key, from, round) in of_rounds {
            if self.find(&from, round).is_none() {
                self.abort_draft(local, now, &key, out);
            }
        }
    }

    /// Goes on comparing a large value, if its sums were missing. Returns the peer and the round that it comes from.
    pub(in crate::replicator) fn compare_draft(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        key: &KeyId,
        out: &mut Vec<Effect>,
    ) -> Option<(UniqueAddress, RoundId)> {
        let draft = local.entries.drafts.get(key).filter(|draft| draft.has_to_compare())?;
        let of = (draft.from.clone(), draft.round);
        self.advance_draft(local, now, key, out);
        Some(of)
    }
}

/// Whether the values that a peer is sending are no larger than legal updates and their joins can be: every replica
/// may have grown an entry up to its limit before they met.
fn is_within_bounds(local: &LocalReplica, from: &UniqueAddress) -> bool {
    let bytes: usize = local.entries.drafts.values().filter(|draft| draft.from == *from).map(|d| d.bytes).sum();
    let values = VALUES_PER_PEER + local.replicas.others.len();
    bytes <= local.settings.max_entry_bytes.saturating_mul(values)
}
