//! Bounds of wall times that peers send: a time further ahead of the own clock than clocks may differ is refused.
//!
//! Merging only ever raises wall times, so a time too far ahead would stay, and nothing could be later: a marker would
//! never be forgotten, an entry never expire. Such times of markers, rounds and use are replaced by the own clock; the
//! data beside them are taken. Source: ddata Z9, E2.

use greylag_crdt::{MAX_NUMBER, Markers, Performed};

use crate::data::envelope::{Content, Envelope};
use crate::messages::message::{BatchItem, DeltaItem, Message, ReadReply, WriteReply};
use crate::pruning::PruningNews;
use crate::storage::store::LoadedRecord;

/// The bound of pruning epochs, which count up from 1.
const MAX_EPOCH: u64 = 1 << 32;

/// Whether a message holds numbers that no process has drawn, beyond which nothing could be counted. Numbers inside of
/// data are checked where the data are decoded.
pub(crate) fn has_impossible_numbers(message: &Message) -> bool {
    let is_impossible = |number: &u64| *number > MAX_NUMBER;
    let of_envelope = |envelope: &Envelope| envelope.versions.values().any(is_impossible);
    let of_delta = |item: &DeltaItem| [item.prev, item.version].iter().any(is_impossible);
    match message {
        Message::Write { envelope, .. } | Message::ReadReply { reply: ReadReply::Value(envelope), .. } => {
            of_envelope(envelope)
        }
        Message::DeltaWrite { item, .. } => of_delta(item),
        Message::WriteReply { reply: WriteReply::DeltaNack { have, .. }, .. } => is_impossible(have),
        Message::DeltaBatch { from_seq, to_seq, items } => {
            let of_item = |item: &BatchItem| match item {
                BatchItem::Delta(item) => of_delta(item),
                BatchItem::Full { envelope, .. } => of_envelope(envelope),
                BatchItem::Hint { .. } | BatchItem::Touch { .. } => false,
            };
            is_impossible(from_seq) || is_impossible(to_seq) || items.iter().any(of_item)
        }
        Message::DeltaAck { from_seq, to_seq, nacked } => {
            is_impossible(from_seq) || is_impossible(to_seq) || nacked.iter().any(|nack| is_impossible(&nack.have))
        }
        Message::SyncOpen { round, .. } | Message::SyncSame { round, .. } | Message::SyncDiffers { round, .. } => {
            is_impossible(round)
        }
        Message::Gossip { entries, .. } => entries.iter().any(|(_, envelope)| of_envelope(envelope)),
        Message::InnerNodes { offer: Some(offer), .. } => of_envelope(&offer.head),
        _ => false,
    }
}

/// The bounds at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The own wall clock.
    pub(crate) now_ms: i64,
    /// The latest wall time that is accepted.
    pub(crate) latest_ms: i64,
    /// The longest life of a marker.
    pub(crate) life_ms: i64,
}

impl Bounds {
    /// Whether a time is accepted.
    pub(crate) fn allow(&self, time: i64) -> bool {
        time <= self.latest_ms
    }

    /// Replaces the times of a message that are not accepted. Returns by how many milliseconds the latest of them is
    /// ahead.
    pub(crate) fn apply(&self, message: &mut Message) -> Option<i64> {
        match message {
            Message::Write { envelope, .. } | Message::ReadReply { reply: ReadReply::Value(envelope), .. } => {
                self.envelope(envelope)
            }
            Message::DeltaWrite { item, .. } => self.used(&mut item.used_ms).max(self.markers(&mut item.markers)),
            Message::DeltaBatch { items, .. } => items.iter_mut().filter_map(|item| self.item(item)).max(),
            Message::SyncOpen { pruning, .. }
            | Message::SyncSame { pruning, .. }
            | Message::SyncDiffers { pruning, .. } => self.news(pruning),
            Message::SyncList { keys, .. } => keys.iter_mut().filter_map(|held| self.used(&mut held.used_ms)).max(),
            Message::Gossip { entries, .. } => {
                entries.iter_mut().filter_map(|(_, envelope)| self.envelope(envelope)).max()
            }
            Message::InnerNodes { offer: Some(offer), .. } => self.envelope(&mut offer.head),
            _ => None,
        }
    }

    /// As [`Self::apply`], for a record that was stored by a process whose clock was ahead.
    pub(crate) fn apply_stored(&self, record: &mut LoadedRecord) -> Option<i64> {
        match record {
            LoadedRecord::Value { markers, .. } => self.markers(markers),
            LoadedRecord::Tombstone { deleted_at, .. } => self.time(deleted_at),
            LoadedRecord::Bad { .. } => None,
        }
    }

    fn item(&self, item: &mut BatchItem) -> Option<i64> {
        match item {
            BatchItem::Delta(item) => self.used(&mut item.used_ms).max(self.markers(&mut item.markers)),
            BatchItem::Full { envelope, .. } => self.envelope(envelope),
            BatchItem::Hint { .. } => None,
            BatchItem::Touch { used_ms, .. } => self.time(used_ms),
        }
    }

    /// Bounds all times except a deletion time: that is part of the data, and a tombstone whose deletion time is too
    /// far ahead is refused.
    fn envelope(&self, envelope: &mut Envelope) -> Option<i64> {
        let deleted_at = match envelope.content {
            Content::Tombstone { deleted_at } if !self.allow(deleted_at) => Some(self.ahead(deleted_at)),
            _ => None,
        };
        deleted_at.max(self.used(&mut envelope.used_ms)).max(self.markers(&mut envelope.markers))
    }

    fn news(&self, news: &mut PruningNews) -> Option<i64> {
        // Drop rounds at the bound: an epoch above the greatest one could not be told apart from it.
        news.rounds.retain(|round| round.epoch < MAX_EPOCH);
        news.rounds.iter_mut().filter_map(|round| self.time(&mut round.created_at)).max()
    }

    /// Sets both times of every marker to count from now, if any is too far ahead.
    pub(crate) fn markers(&self, markers: &mut Markers) -> Option<i64> {
        let last_end = self.latest_ms.saturating_add(self.life_ms);
        let is_ahead = |marker: &Performed| {
            !self.allow(marker.performed_at) || marker.obsolete_at.is_some_and(|obsolete_at| obsolete_at > last_end)
        };
        let ahead = markers.iter().filter(|marker| is_ahead(marker)).map(|marker| {
            let of_end = marker.obsolete_at.map_or(0, |end| end.saturating_sub(last_end));
            self.ahead(marker.performed_at).max(of_end)
        });
        let ahead = ahead.max()?;
        let mut bounded = Markers::new();
        for marker in markers.iter() {
            let mut marker = marker.clone();
            if is_ahead(&marker) {
                marker.performed_at = marker.performed_at.min(self.now_ms);
                let end = self.now_ms.saturating_add(self.life_ms);
                marker.obsolete_at = marker.obsolete_at.map(|obsolete_at| obsolete_at.min(end));
            }
            bounded.add(&marker);
        }
        *markers = bounded;
        Some(ahead)
    }

    fn used(&self, time: &mut Option<i64>) -> Option<i64> {
        time.as_mut().and_then(|time| self.time(time))
    }

    fn time(&self, time: &mut i64) -> Option<i64> {
        if self.allow(*time) {
            return None;
        }
        let ahead = self.ahead(*time);
        *time = self.now_ms;
        Some(ahead)
    }

    fn ahead(&self, time: i64) -> i64 {
        time.saturating_sub(self.now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::message::Nacked;

    /// ddata §9: one number that cannot have been drawn, wherever it stands, makes a message refused; the greatest
    /// possible numbers do not.
    #[test]
    fn one_impossible_number_is_enough() {
        let item = |prev, version| DeltaItem {
            key: "k".into(),
            tag: "t".into(),
            prev,
            version,
            delta: Vec::new().into(),
            markers: Markers::new(),
            used_ms: None,
        };
        let envelope = |version| Envelope {
            content: Content::Unreadable,
            versions: [(greylag_crdt::ReplicaId(1), version)].into(),
            markers: Markers::new(),
            used_ms: None,
        };
        let nack = |have| Nacked { key: "k".into(), have, full: false };
        let batch = |from_seq, to_seq, item| Message::DeltaBatch { from_seq, to_seq, items: vec![item] };
        let nacked = |from_seq, to_seq, have| Message::DeltaAck { from_seq, to_seq, nacked: vec![nack(have)] };
        type Of<'a> = &'a dyn Fn(u64) -> Message;
        let messages: [Of<'_>; 13] = [
            &|number| Message::Write { request: 1, key: "k".into(), envelope: envelope(number) },
            &|number| Message::ReadReply { request: 1, reply: ReadReply::Value(envelope(number)) },
            &|number| Message::DeltaWrite { request: 1, item: item(number, 1) },
            &|number| Message::DeltaWrite { request: 1, item: item(1, number) },
            &|have| Message::WriteReply { request: 1, reply: WriteReply::DeltaNack { have, full: true } },
            &|number| batch(number, 1, BatchItem::Hint { hash: 1 }),
            &|number| batch(1, number, BatchItem::Hint { hash: 1 }),
            &|number| batch(1, 1, BatchItem::Delta(item(1, number))),
            &|number| batch(1, 1, BatchItem::Full { key: "k".into(), envelope: envelope(number) }),
            &|number| nacked(number, 1, 1),
            &|number| nacked(1, number, 1),
            &|number| nacked(1, 1, number),
            &|number| {
                let entries = vec![("k".into(), envelope(number))];
                Message::Gossip { round: None, number: 1, send_back: false, entries }
            },
        ];
        for message in messages {
            assert!(has_impossible_numbers(&message(MAX_NUMBER + 1)), "{:?}", message(MAX_NUMBER + 1));
            assert!(!has_impossible_numbers(&message(MAX_NUMBER)), "{:?}", message(MAX_NUMBER));
        }
    }
}
