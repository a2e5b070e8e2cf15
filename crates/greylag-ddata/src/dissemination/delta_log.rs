//! The delta log: changes made here, in order, until every peer has acknowledged them.
//!
//! There is one log for all entries, with a cursor per peer. A peer gets the records after its cursor in batches: one
//! consecutive run, grouped by entry into joined deltas. A batch is acknowledged as a whole and resent until it is. A
//! record leaves the log when every peer has acknowledged a batch that held it, or when the log is too long;
//! anti-entropy then covers the peers that lagged. So a peer that returns gets what it missed and nothing else. Source:
//! ddata G3, G4, G7, G8.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::UniqueAddress;
use greylag_crdt::hash64;

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::data::entries::Entries;
use crate::data::types::TypeTable;
use crate::dissemination::sync::FRAGMENTS_TIMEOUT;
use crate::messages::message::{BatchItem, DeltaItem, Message, Nacked};

/// The most unsent records of one key: further ones are joined in place, so that bursts do not grow the log.
const UNSENT_PER_KEY: usize = 64;

/// The most entries of one batch, which the receiver joins in one step.
const ENTRIES_PER_BATCH: usize = 128;
/// The most records that one step takes out of the log.
const TRIMMED_AT_ONCE: usize = 512;

/// The effect of one update on one entry.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) key: KeyId,
    pub(crate) tag: Arc<str>,
    pub(crate) prev: u64,
    pub(crate) version: u64,
    pub(crate) content: RecordContent,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordContent {
    /// An encoded delta.
    Delta(Bytes),
    /// The entry changed, and only the full state says how.
    Full,
    /// The entry was used. Every other content implies that, too. Source: ddata E2.
    Touch,
    /// Nothing any more: the entry is gone, and the record keeps its number.
    Nothing,
}

impl RecordContent {
    fn delta(&self) -> Option<&Bytes> {
        match self {
            Self::Delta(delta) => Some(delta),
            _ => None,
        }
    }

    fn is_change(&self) -> bool {
        matches!(self, Self::Delta(_) | Self::Full)
    }
}

/// An id behind its hash: ids are compared only where hashes are equal, so large logs are searched fast.
type Hashed = (u64, KeyId);

fn hashed(key: &KeyId) -> Hashed {
    (hash64(key.as_bytes()), key.clone())
}

/// The records of one entry.
#[derive(Debug, Default)]
struct OfKey {
    /// The numbers of the records, ascending.
    seqs: VecDeque<u64>,
    /// How many of the records were sent to no peer, and the turn in which that was counted.
    unsent: (u64, usize),
}

/// A batch that waits for its acknowledgement.
#[derive(Debug)]
struct Outstanding {
    to_seq: u64,
    /// When to resend the batch.
    again_at: Instant,
    /// After a refusal: the entries to send in full, and those to send since a given version.
    resends: Option<BTreeMap<KeyId, Resend>>,
}

#[derive(Debug, Clone, Copy)]
enum Resend {
    Since(u64),
    Full,
}

#[derive(Debug)]
struct Cursor {
    /// The last record sent to the peer.
    sent: u64,
    /// Sent and unacknowledged batches, by the number of their first record.
    outstanding: BTreeMap<u64, Outstanding>,
    /// Whether the window held records back; the next acknowledgement sends them.
    is_behind: bool,
    /// Whether the peer has acknowledged a batch, or opened a round.
    is_heard: bool,
    /// Records from before the peer was first heard are left to its first whole round: the last such record, and the
    /// time after which the round must begin.
    left: Option<(u64, Instant)>,
    /// When the peer last got a hint for an entry too large for deltas, until a round shows that the peer has the
    /// entry: the acknowledgement says only that the peer will ask for the entry.
    hinted_at: Option<Instant>,
}

impl Cursor {
    /// Notes whether a batch that is sent holds hints.
    fn note_hints(&mut self, now: Instant, message: &Message) {
        if let Message::DeltaBatch { items, .. } = message
            && items.iter().any(|item| matches!(item, BatchItem::Hint { .. }))
        {
            self.hinted_at = Some(now);
        }
    }

    /// The last record that this peer does not need any more.
    fn floor(&self) -> u64 {
        let floor = self.outstanding.first_key_value().map_or(self.sent, |(from, _)| from - 1);
        self.left.map_or(floor, |(left, _)| left.min(floor))
    }
}

/// The log.
#[derive(Debug, Default)]
pub(crate) struct DeltaLog {
    /// The records, by ascending number.
    records: VecDeque<(u64, Record)>,
    bytes: usize,
    last: u64,
    peers: BTreeMap<UniqueAddress, Cursor>,
    by_key: BTreeMap<Hashed, OfKey>,
    /// The number of the present turn, which rises whenever something is sent to a peer; counts of unsent records are
    /// valid in one turn.
    sendings: u64,
    /// Whether the log holds records that no peer needs any more.
    is_trimming: bool,
    /// The peer served last; the next slice begins after it.
    turn: Option<UniqueAddress>,
}

/// How many of `n` peers are served in one interval.
pub(crate) fn slice(n: usize) -> usize {
    (n / 5 + 1).max(2).min(n.min(10))
}

impl DeltaLog {
    /// Sets the peers. A new one starts at the end of the log, a former one no longer counts.
    pub(crate) fn set_peers(&mut self, peers: &BTreeSet<UniqueAddress>) {
        self.peers.retain(|peer, _| peers.contains(peer));
        for peer in peers {
            let (sent, outstanding) = (self.last, BTreeMap::new());
            let start = Cursor { sent, outstanding, is_behind: false, is_heard: false, left: None, hinted_at: None };
            self.peers.entry(peer.clone()).or_insert(start);
        }
        self.trim();
    }

    /// Notes that a peer opens a round. If the peer was never heard before, its replicator has only begun, and the
    /// rounds that it opens bring what was logged meanwhile: the log would send all of that a second time.
    pub(crate) fn on_round_opened(&mut self, peer: &UniqueAddress, now: Instant) {
        let Some(cursor) = self.peers.get_mut(peer).filter(|cursor| !cursor.is_heard) else { return };
        cursor.is_heard = true;
        let floor = cursor.floor();
        if floor < self.last {
            cursor.left = Some((floor, now));
            cursor.outstanding.clear();
            cursor.sent = self.last;
        }
    }

    /// Notes that a round over everything with a peer is complete, which began at `began_at`: of what was there then
    /// the peer lacks nothing.
    pub(crate) fn on_round_complete(&mut self, peer: &UniqueAddress, began_at: Instant) {
        let Some(cursor) = self.peers.get_mut(peer) else { return };
        cursor.hinted_at.take_if(|at| *at <= began_at);
        if cursor.left.take_if(|(_, since)| *since <= began_at).is_some() {
            self.trim();
        }
    }

    /// Appends a record; `seq` is above all other numbers.
    pub(crate) fn append(&mut self, types: &TypeTable, seq: u64, record: Record) {
        self.last = seq;
        if self.peers.is_empty() {
            return;
        }
        let place = hashed(&record.key);
        let (unsent, latest) = self.unsent(&place);
        if let Some(latest) = latest
            && (unsent >= UNSENT_PER_KEY || record.content == RecordContent::Touch)
            && self.join_into(types, latest, &record)
        {
            return;
        }
        let of_key = self.by_key.entry(place).or_default();
        of_key.seqs.push_back(seq);
        of_key.unsent = (self.sendings, unsent + 1);
        self.bytes += weight(&record);
        self.records.push_back((seq, record));
    }

    /// How many records of an entry were sent to no peer, and the number of the latest.
    fn unsent(&self, place: &Hashed) -> (usize, Option<u64>) {
        match self.by_key.get(place) {
            Some(OfKey { seqs, unsent: (turn, count) }) if *turn == self.sendings => (*count, seqs.back().copied()),
            _ => (0, None),
        }
    }

    fn at(&mut self, seq: u64) -> Option<&mut Record> {
        let at = self.records.partition_point(|(number, _)| *number < seq);
        self.records.get_mut(at).filter(|(number, _)| *number == seq).map(|(_, record)| record)
    }

    /// Joins a record into an unsent record of the same key.
    fn join_into(&mut self, types: &TypeTable, seq: u64, record: &Record) -> bool {
        let Some(target) = self.at(seq) else { return false };
        let content = match (&target.content, &record.content) {
            (RecordContent::Delta(own), RecordContent::Delta(delta)) => {
                let Some(Ok((joined, _))) = types.find(&record.tag).map(|found| found.join_deltas(&[own, delta]))
                else {
                    return false;
                };
                RecordContent::Delta(joined.into())
            }
            (own, RecordContent::Touch) if own.is_change() => return true,
            (own, content) if own.is_change() && content.is_change() => RecordContent::Full,
            (RecordContent::Touch, RecordContent::Touch) => return true,
            _ => return false,
        };
        let before = weight(target);
        target.version = record.version;
        target.content = content;
        let after = weight(target);
        self.bytes = self.bytes - before + after;
        true
    }

    /// Drops the logged deltas of an entry that was just deleted: its present state says everything.
    pub(crate) fn clear_deltas(&mut self, key: &KeyId) {
        self.replace(key, |content| if content.is_change() { RecordContent::Full } else { RecordContent::Nothing });
    }

    /// Drops what was logged of an entry that is gone. The records keep their numbers, so that batches under way stay
    /// the same.
    pub(crate) fn forget(&mut self, key: &KeyId) {
        self.replace(key, |_| RecordContent::Nothing);
        self.by_key.remove(&hashed(key));
    }

    fn replace(&mut self, key: &KeyId, with: impl Fn(&RecordContent) -> RecordContent) {
        let Some(seqs) = self.by_key.get(&hashed(key)).map(|of_key| of_key.seqs.clone()) else { return };
        for seq in seqs {
            let Some(record) = self.at(seq) else { continue };
            let before = weight(record);
            record.content = with(&record.content);
            let after = weight(record);
            self.bytes = self.bytes - before + after;
        }
    }

    /// Removes the oldest record.
    fn pop(&mut self) -> Option<(u64, Record)> {
        let (seq, record) = self.records.pop_front()?;
        self.bytes -= weight(&record);
        let place = hashed(&record.key);
        if let Some(of_key) = self.by_key.get_mut(&place)
            && of_key.seqs.front() == Some(&seq)
        {
            of_key.seqs.pop_front();
            if of_key.seqs.is_empty() {
                self.by_key.remove(&place);
            }
        }
        Some((seq, record))
    }

    /// The next batches for a slice of the reachable peers, and batches that are due to be resent.
    pub(crate) fn propagate(
        &mut self,
        now: Instant,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        reachable: &BTreeSet<UniqueAddress>,
    ) -> Vec<(UniqueAddress, Message)> {
        let mut sends = self.resend(now, settings, types, entries, reachable);
        // Compute identical batches once.
        let mut computed: BTreeMap<(u64, u64), Vec<BatchItem>> = BTreeMap::new();
        for peer in self.next_slice(reachable) {
            self.send_window(now, settings, types, entries, &peer, &mut computed, &mut sends);
        }
        sends
    }

    /// Sends the batches after a peer's cursor, as many as its window allows.
    #[expect(clippy::too_many_arguments, reason = "what batches are made of")]
    fn send_window(
        &mut self,
        now: Instant,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        peer: &UniqueAddress,
        computed: &mut BTreeMap<(u64, u64), Vec<BatchItem>>,
        sends: &mut Vec<(UniqueAddress, Message)>,
    ) {
        while let Some(cursor) = self.peers.get_mut(peer) {
            cursor.is_behind = cursor.outstanding.len() >= settings.sync_window;
            let sent = cursor.sent;
            if cursor.is_behind {
                return;
            }
            let Some((from_seq, to_seq)) = self.run_after(sent, settings) else { return };
            let items = computed
                .entry((from_seq, to_seq))
                .or_insert_with(|| self.items(settings, types, entries, from_seq, to_seq))
                .clone();
            if let Some(cursor) = self.peers.get_mut(peer) {
                cursor.sent = to_seq;
                let message = Message::DeltaBatch { from_seq, to_seq, items };
                let again_at = now + resend_timeout(settings, &message);
                cursor.note_hints(now, &message);
                cursor.outstanding.insert(from_seq, Outstanding { to_seq, again_at, resends: None });
                sends.push((peer.clone(), message));
            }
            self.sendings += 1;
        }
    }

    fn next_slice(&mut self, reachable: &BTreeSet<UniqueAddress>) -> Vec<UniqueAddress> {
        let waiting: Vec<&UniqueAddress> = reachable.iter().collect();
        let split = self.turn.as_ref().map_or(0, |turn| waiting.partition_point(|peer| *peer <= turn));
        let order = waiting[split..].iter().chain(&waiting[..split]);
        let chosen: Vec<UniqueAddress> = order.take(slice(waiting.len())).map(|peer| (*peer).clone()).collect();
        self.turn = chosen.last().cloned();
        chosen
    }

    /// The consecutive run of records after `sent` that fits one message.
    fn run_after(&self, sent: u64, settings: &ReplicatorSettings) -> Option<(u64, u64)> {
        let start = self.records.partition_point(|(seq, _)| *seq <= sent);
        let (from_seq, _) = self.records.get(start)?;
        let most = settings.max_delta_elements.min(ENTRIES_PER_BATCH);
        let (mut keys, mut bytes, mut to_seq) = (BTreeSet::new(), 0, *from_seq);
        for (seq, record) in self.records.range(start..) {
            keys.insert(&record.key);
            bytes += weight(record);
            if *seq != *from_seq && (keys.len() > most || bytes > settings.max_message_bytes / 2) {
                break;
            }
            to_seq = *seq;
        }
        Some((*from_seq, to_seq))
    }

    fn items(
        &self,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        from_seq: u64,
        to_seq: u64,
    ) -> Vec<BatchItem> {
        let mut order: Vec<&KeyId> = Vec::new();
        let mut groups: BTreeMap<&KeyId, Vec<&Record>> = BTreeMap::new();
        for (_, record) in self.between(from_seq, to_seq).filter(|(_, record)| record.content != RecordContent::Nothing)
        {
            let group = groups.entry(&record.key).or_default();
            if group.is_empty() {
                order.push(&record.key);
            }
            group.push(record);
        }
        let mut room = settings.max_message_bytes;
        order.into_iter().filter_map(|key| item(settings, types, entries, key, &groups[key], &mut room)).collect()
    }

    fn between(&self, from_seq: u64, to_seq: u64) -> impl Iterator<Item = &(u64, Record)> {
        let start = self.records.partition_point(|(seq, _)| *seq < from_seq);
        self.records.range(start..).take_while(move |(seq, _)| *seq <= to_seq)
    }

    fn resend(
        &mut self,
        now: Instant,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        reachable: &BTreeSet<UniqueAddress>,
    ) -> Vec<(UniqueAddress, Message)> {
        let mut sends = Vec::new();
        for peer in reachable {
            let Some(cursor) = self.peers.get(peer) else { continue };
            let due = cursor.outstanding.iter().filter(|(_, batch)| batch.again_at <= now);
            let due: Vec<u64> = due.map(|(from_seq, _)| *from_seq).collect();
            for from_seq in due {
                sends.extend(self.send_again(now, settings, types, entries, peer, from_seq));
            }
        }
        sends
    }

    /// Makes an outstanding batch anew, with its present content.
    fn send_again(
        &mut self,
        now: Instant,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        peer: &UniqueAddress,
        from_seq: u64,
    ) -> Option<(UniqueAddress, Message)> {
        let batch = self.peers.get(peer)?.outstanding.get(&from_seq)?;
        let (to_seq, resends) = (batch.to_seq, batch.resends.clone());
        let items = match resends {
            None => self.items(settings, types, entries, from_seq, to_seq),
            Some(resends) => {
                let resends = resends.iter();
                resends.filter_map(|(key, resend)| self.resend_item(settings, types, entries, key, *resend)).collect()
            }
        };
        let message = Message::DeltaBatch { from_seq, to_seq, items };
        let cursor = self.peers.get_mut(peer)?;
        cursor.note_hints(now, &message);
        cursor.outstanding.get_mut(&from_seq)?.again_at = now + resend_timeout(settings, &message);
        Some((peer.clone(), message))
    }

    /// The item that closes a gap: the missing deltas, or the full state if the log no longer has them.
    fn resend_item(
        &self,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        key: &KeyId,
        resend: Resend,
    ) -> Option<BatchItem> {
        let mut room = settings.max_message_bytes;
        if let Resend::Since(have) = resend {
            let missing: Vec<&Record> = self.missing(key, have);
            if missing.first().is_some_and(|first| first.prev <= have) {
                return item(settings, types, entries, key, &missing, &mut room);
            }
        }
        full_item(settings, entries, key, &mut room)
    }

    /// The records of an entry above a version, ascending.
    fn missing(&self, key: &KeyId, have: u64) -> Vec<&Record> {
        let seqs = self.by_key.get(&hashed(key)).into_iter().flat_map(|of_key| &of_key.seqs);
        let records = seqs.filter_map(|seq| {
            let at = self.records.partition_point(|(number, _)| number < seq);
            self.records.get(at).map(|(_, record)| record)
        });
        records.filter(|record| record.content.is_change() && record.version > have).collect()
    }

    /// The joined deltas of an entry above a version, if the log has them all. Source: ddata R12.
    pub(crate) fn deltas_since(
        &self,
        types: &TypeTable,
        entries: &Entries,
        key: &KeyId,
        have: u64,
    ) -> Option<DeltaItem> {
        let missing = self.missing(key, have);
        if missing.first()?.prev > have {
            return None;
        }
        joined(types, entries, &missing).map(|(item, _)| item)
    }

    /// Takes an acknowledgement. Returns what closes the gaps that it names, or the next batches of the window. While a
    /// round with the peer goes on, gaps are left to the round: a new peer lacks nearly everything, and is not answered
    /// entry by entry.
    #[expect(clippy::too_many_arguments, reason = "one message, taken apart, and what it is answered from")]
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        settings: &ReplicatorSettings,
        types: &TypeTable,
        entries: &mut Entries,
        from: &UniqueAddress,
        (from_seq, to_seq): (u64, u64),
        nacked: &[Nacked],
        is_exchanging: bool,
    ) -> Vec<(UniqueAddress, Message)> {
        let Some(cursor) = self.peers.get_mut(from) else { return Vec::new() };
        let is_behind = cursor.is_behind;
        cursor.is_heard = true;
        let batch = cursor.outstanding.get_mut(&from_seq).filter(|batch| batch.to_seq == to_seq);
        let Some(batch) = batch else { return Vec::new() };
        if nacked.is_empty() {
            cursor.outstanding.remove(&from_seq);
            self.trim();
            let mut sends = Vec::new();
            if is_behind {
                self.send_window(now, settings, types, entries, from, &mut BTreeMap::new(), &mut sends);
            }
            return sends;
        }
        if is_exchanging {
            // Resend the same batch later; by then the round may have brought what the peer lacks.
            (batch.resends, batch.again_at) = (None, now + settings.delta_resend_timeout);
            return Vec::new();
        }
        // A second refusal means that deltas do not close the gap.
        let again = batch.resends.is_some();
        let resends = nacked.iter().map(|nack| {
            let resend = if nack.full || again { Resend::Full } else { Resend::Since(nack.have) };
            (nack.key.clone(), resend)
        });
        batch.resends = Some(resends.collect());
        self.send_again(now, settings, types, entries, from, from_seq).into_iter().collect()
    }

    /// Makes all unacknowledged batches of a peer due at once, because the peer is reachable again.
    pub(crate) fn resend_now(&mut self, peer: &UniqueAddress, now: Instant) {
        if let Some(cursor) = self.peers.get_mut(peer) {
            cursor.outstanding.values_mut().for_each(|batch| batch.again_at = batch.again_at.min(now));
        }
    }

    /// Cuts the log to its limits. Returns the peers that lost records, and how many each.
    pub(crate) fn enforce_limits(&mut self, settings: &ReplicatorSettings) -> Vec<(UniqueAddress, usize)> {
        let mut lost: BTreeMap<UniqueAddress, usize> = BTreeMap::new();
        while self.records.len() > settings.delta_log_max_entries || self.bytes > settings.delta_log_max_bytes {
            let Some((seq, _)) = self.pop() else { break };
            for (peer, cursor) in self.peers.iter_mut().filter(|(_, cursor)| cursor.floor() < seq) {
                cursor.sent = cursor.sent.max(seq);
                cursor.left = cursor.left.map(|(left, since)| (left.max(seq), since));
                cursor.outstanding.retain(|from_seq, _| *from_seq > seq);
                *lost.entry(peer.clone()).or_default() += 1;
            }
        }
        lost.into_iter().collect()
    }

    fn trim(&mut self) {
        let floor = self.peers.values().map(Cursor::floor).min().unwrap_or(u64::MAX);
        // After a peer has caught up or is gone there may be very many; further steps continue.
        for _ in 0..TRIMMED_AT_ONCE {
            self.is_trimming = self.records.front().is_some_and(|(seq, _)| *seq <= floor);
            if !self.is_trimming {
                return;
            }
            self.pop();
        }
    }

    /// Whether there are more records to take out.
    pub(crate) fn is_trimming(&self) -> bool {
        self.is_trimming
    }

    /// Continues to take out records.
    pub(crate) fn go_on(&mut self) {
        if self.is_trimming {
            self.trim();
        }
    }

    /// Whether any of these peers has records to get or to acknowledge.
    pub(crate) fn has_work(&self, reachable: &BTreeSet<UniqueAddress>) -> bool {
        reachable.iter().filter_map(|peer| self.peers.get(peer)).any(|cursor| cursor.floor() < self.newest())
    }

    /// Whether this peer has acknowledged everything.
    pub(crate) fn is_acknowledged_by(&self, peer: &UniqueAddress) -> bool {
        self.peers.get(peer).is_some_and(|cursor| cursor.floor() >= self.newest())
    }

    /// Whether this peer may still lack an entry for which it got only a hint.
    pub(crate) fn is_hinted(&self, peer: &UniqueAddress) -> bool {
        self.peers.get(peer).is_some_and(|cursor| cursor.hinted_at.is_some())
    }

    fn newest(&self) -> u64 {
        self.records.back().map_or(0, |(seq, _)| *seq)
    }

    /// How many records each peer has still to acknowledge.
    pub(crate) fn lag(&self) -> BTreeMap<UniqueAddress, usize> {
        let missing = |cursor: &Cursor| {
            let floor = cursor.floor();
            self.records.len() - self.records.partition_point(|(seq, _)| *seq <= floor)
        };
        self.peers.iter().map(|(peer, cursor)| (peer.clone(), missing(cursor))).collect()
    }

    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Checks that cursors lie within the log, numbers ascend, and the byte count is right.
    pub(crate) fn check_invariants(&self) {
        assert!(self.records.iter().map(|(seq, _)| seq).is_sorted(), "records ascend");
        assert!(self.peers.values().all(|cursor| cursor.sent <= self.last), "cursors lie within the log");
        assert_eq!(self.bytes, self.records.iter().map(|(_, record)| weight(record)).sum::<usize>());
        let with_content = self.records.iter().filter(|(_, record)| record.content != RecordContent::Nothing).count();
        let indexed = self.by_key.values().map(|of_key| of_key.seqs.len()).sum();
        assert!(with_content <= indexed && indexed <= self.records.len(), "records are found by their keys");
    }
}

/// How long a batch waits for its acknowledgement before it is resent. A batch in pieces takes longer, and a second
/// copy behind it would only delay both.
fn resend_timeout(settings: &ReplicatorSettings, batch: &Message) -> Duration {
    let is_bulk = batch.size_hint() > settings.max_message_bytes;
    settings.delta_resend_timeout.max(if is_bulk { FRAGMENTS_TIMEOUT } else { Duration::ZERO })
}

fn weight(record: &Record) -> usize {
    record.key.len() + record.content.delta().map_or(0, Bytes::len) + 48
}

/// Joins the deltas of consecutive records, with the markers that their entry has now. Returns also the number of
/// leaves; `None` if a record has no delta.
fn joined(types: &TypeTable, entries: &Entries, records: &[&Record]) -> Option<(DeltaItem, usize)> {
    let (first, last) = (records.first()?, records.last()?);
    let deltas = records.iter().map(|record| record.content.delta().map(|delta| &**delta));
    let deltas: Vec<&[u8]> = deltas.collect::<Option<_>>()?;
    let (delta, leaves) = types.find(&first.tag)?.join_deltas(&deltas).ok()?;
    let item = DeltaItem {
        key: first.key.clone(),
        tag: first.tag.clone(),
        prev: first.prev,
        version: last.version,
        delta: delta.into(),
        markers: entries.markers(&first.key),
        used_ms: entries.used_ms(&first.key),
    };
    Some((item, leaves))
}

fn item(
    settings: &ReplicatorSettings,
    types: &TypeTable,
    entries: &mut Entries,
    key: &KeyId,
    records: &[&Record],
    room: &mut usize,
) -> Option<BatchItem> {
    let changes: Vec<&Record> = records.iter().copied().filter(|record| record.content.is_change()).collect();
    if changes.is_empty() {
        let touch = |used_ms| BatchItem::Touch { hash: hash64(key.as_bytes()), used_ms };
        return entries.used_ms(key).map(touch);
    }
    let Some((item, leaves)) = joined(types, entries, &changes) else { return full_item(settings, entries, key, room) };
    if leaves > settings.max_delta_size
        && !entries.is_large(key, settings.inner_tree_keys)
        && entries.envelope(key).is_some_and(|envelope| envelope.size() <= 2 * item.delta.len())
    {
        return full_item(settings, entries, key, room);
    }
    *room = room.saturating_sub(item.delta.len() + key.len());
    Some(BatchItem::Delta(item))
}

/// The full state of an entry, or a hint if the state is large or the message full; `None` if the entry is gone.
fn full_item(settings: &ReplicatorSettings, entries: &mut Entries, key: &KeyId, room: &mut usize) -> Option<BatchItem> {
    // Do not encode a value that is sent in parts: its number of keys says that it is large.
    if entries.is_large(key, settings.inner_tree_keys) {
        return Some(BatchItem::Hint { hash: hash64(key.as_bytes()) });
    }
    let envelope = entries.envelope(key)?;
    if envelope.size() > settings.eager_full_state_bytes.min(*room) {
        return Some(BatchItem::Hint { hash: hash64(key.as_bytes()) });
    }
    *room = room.saturating_sub(envelope.size() + key.len());
    Some(BatchItem::Full { key: key.clone(), envelope })
}

#[cfg(test)]
mod tests {
    use super::slice;

    #[test]
    fn slices_grow_with_the_cluster() {
        assert_eq!([0, 1, 2, 9, 10, 14, 15, 45, 200].map(slice), [0, 1, 2, 2, 3, 3, 4, 10, 10]);
    }
}
