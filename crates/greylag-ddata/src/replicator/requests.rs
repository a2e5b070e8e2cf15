//! Requests that wait for other replicas: chooses the replicas to ask, and handles the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, hash64};
use rand::RngExt;

use super::ReplicatorCore;
use crate::effect::{Effect, Reply};
use crate::entries::{Data, Entry, Merged};
use crate::envelope::Envelope;
use crate::error::{DeleteError, GetError, RequestError, StopReason, UpdateError};
use crate::key::KeyId;
use crate::level::Level;
use crate::message::{DeltaItem, Message, ReadReply, Refusal, WriteReply};
use crate::quorum::{Progress, Quorum};
use crate::read::{Lifecycle, Read};
use crate::replicas::Replica;
use crate::storing::Waiter;

/// An update or delete that waits for confirmations.
#[derive(Debug)]
pub(super) struct WriteRequest {
    id: u64,
    key: KeyId,
    kind: WriteKind,
    /// Whether the request waits only for the own store.
    is_local: bool,
    pub(super) quorum: Quorum,
    /// Whether the request changed the entry; if not, others are shown what the entry holds.
    changed: bool,
    /// Whether the entry still has to be stored here; `false` for entries that are not durable.
    awaits_store: bool,
    /// Whether a replica could not store the entry.
    store_refused: bool,
    /// Whether a replica refused for any other reason.
    otherwise_refused: bool,
    early: Option<Early>,
}

/// Kept for a request made before any replica was known: the replicas to ask are chosen when the first set arrives.
/// Source: ddata R9.
#[derive(Debug)]
struct Early {
    level: Level,
    /// The first message to send; `None` for the full state.
    message: Option<Message>,
}

impl WriteRequest {
    /// Done if enough replicas acknowledged and the entry is on disk here, or another replica made up for a failed
    /// disk.
    fn progress(&self) -> Progress {
        match self.quorum.progress() {
            _ if self.early.is_some() => Progress::Pending,
            Progress::Done if self.awaits_store => Progress::Pending,
            progress => progress,
        }
    }
}

/// The timeout of a local request that waits only for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// A function that takes a replica that does not help out of a quorum, and returns the one to ask in its place.
type Replacement = fn(&mut Quorum, &UniqueAddress) -> Option<UniqueAddress>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteKind {
    Update,
    Delete,
}

/// A read that waits for answers.
#[derive(Debug)]
pub(super) struct ReadRequest {
    id: u64,
    key: KeyId,
    tag: Arc<str>,
    pub(super) quorum: Quorum,
    /// The own digest that was sent with the read.
    asked: Option<Digest>,
    /// The answers so far; `None` for a replica whose data have the digest `asked`.
    answers: BTreeMap<UniqueAddress, Option<Envelope>>,
    /// Whether enough replicas answered, and the joined answers are being stored.
    awaits_store: bool,
    early: Option<Early>,
}

impl ReplicatorCore {
    /// The replicas that a request may ask, in order; how many of them are needed; and whether this replica counts in
    /// addition. Evaluated once, when the request begins. Source: ddata R8, R10.
    fn candidates(
        &mut self,
        key: &str,
        level: Level,
        own_counts: bool,
        deltas: bool,
    ) -> (usize, bool, Vec<UniqueAddress>) {
        let counts = |replica: &&Replica| {
            if level.only_staying() { replica.status.is_staying_voter() } else { replica.status.is_voter() }
        };
        let mut found: Vec<Replica> = self.replicas.others.iter().filter(counts).cloned().collect();
        let own_status = self.replicas.own_status;
        let own_is_candidate =
            own_status.is_some_and(|own| if level.only_staying() { own.is_staying_voter() } else { own.is_voter() });
        let n = found.len() + self.replicas.unmet.len() + usize::from(own_is_candidate);
        // Need one at least: without any voter no level can be met, not even all of none.
        let needed = level.needed(n, self.settings.majority_min_cap).max(1);
        let own = own_is_candidate && own_counts;
        if self.settings.prefer_oldest {
            found.sort_by_key(|replica| (!replica.reachable, replica.age, replica.address.clone()));
        } else if deltas {
            // Order by hash, so that the same replicas see consecutive deltas of a key, and keys spread over replicas.
            found.sort_by_cached_key(|replica| {
                let mut bytes = key.as_bytes().to_vec();
                bytes.extend_from_slice(&replica.address.uid().get().to_be_bytes());
                (!replica.reachable, hash64(&bytes))
            });
        } else {
            for at in (1..found.len()).rev() {
                found.swap(at, self.rng.random_range(0..=at));
            }
            found.sort_by_key(|replica| !replica.reachable);
        }
        (needed - usize::from(own), own, found.into_iter().map(|replica| replica.address).collect())
    }

    /// Whether too many requests wait for other replicas to accept more. Local requests, which wait for the store, are
    /// only subtracted if all together are so many. Source: ddata R14.
    pub(super) fn is_overloaded(&self) -> bool {
        let most = self.settings.max_in_flight;
        self.writes.len() + self.reads.len() >= most && self.in_flight() >= most
    }

    /// How many requests wait for other replicas.
    pub(super) fn in_flight(&self) -> usize {
        self.writes.values().filter(|write| !write.is_local).count() + self.reads.len()
    }

    /// The candidates of an early request: one replica is needed, and none can be asked yet.
    const NO_CANDIDATES: (usize, bool, Vec<UniqueAddress>) = (1, false, Vec::new());

    /// Evaluates early requests, because the first set of replicas is known: they begin now, with the rest of their
    /// time. Source: ddata R9.
    pub(super) fn evaluate_early(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let is_early = |early: &Option<Early>| early.is_some();
        let writes: Vec<u64> =
            self.writes.iter().filter(|(_, write)| is_early(&write.early)).map(|(request, _)| *request).collect();
        for request in writes {
            self.evaluate_early_write(now, request, out);
        }
        let reads: Vec<u64> =
            self.reads.iter().filter(|(_, read)| is_early(&read.early)).map(|(request, _)| *request).collect();
        for request in reads {
            self.evaluate_early_read(now, request, out);
        }
    }

    fn evaluate_early_write(&mut self, now: Instant, request: u64, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let Some(Early { level, message }) = write.early.take() else { return };
        let (key, over_at, own_counts) = (write.key.clone(), write.quorum.deadline(), !write.store_refused);
        let deltas = matches!(message, Some(Message::DeltaWrite { .. }));
        let (needed, own, candidates) = self.candidates(&key, level, own_counts, deltas);
        let Some(write) = self.writes.get_mut(&request) else { return };
        let left = over_at.saturating_duration_since(now);
        let first;
        (write.quorum, first) = Quorum::new(now, needed, own, candidates, left);
        self.deadlines.note(write.quorum.next_deadline(), request);
        if write.progress() == Progress::Pending {
            self.ask_first(over_at, request, &key, first, message, out);
        }
        self.settle_write(request, out);
    }

    fn evaluate_early_read(&mut self, now: Instant, request: u64, out: &mut Vec<Effect>) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let Some(Early { level, .. }) = read.early.take() else { return };
        let (key, over_at) = (read.key.clone(), read.quorum.deadline());
        let (needed, own, candidates) = self.candidates(&key, level, self.lifecycle == Lifecycle::Running, false);
        let Some(read) = self.reads.get_mut(&request) else { return };
        let first;
        (read.quorum, first) = Quorum::new(now, needed, own, candidates, over_at.saturating_duration_since(now));
        self.deadlines.note(read.quorum.next_deadline(), request);
        if read.quorum.progress() != Progress::Pending {
            return self.finish_read(request, out);
        }
        let question = Self::question(read, request);
        for to in first {
            self.ask(over_at, to, question.clone(), out);
        }
    }

    /// Has a change confirmed; if nothing changed, makes sure that others hold what is here.
    #[expect(clippy::too_many_arguments, reason = "the last part of `update`")]
    pub(super) fn begin_write(
        &mut self,
        now: Instant,
        id: u64,
        key: &KeyId,
        level: Level,
        delta: Option<DeltaItem>,
        changed: bool,
        out: &mut Vec<Effect>,
    ) {
        let request = self.numbers.draw();
        let message = match delta {
            Some(item) => Some(Message::DeltaWrite { request, item }),
            None if !changed => Some(Message::Check { request, key: key.clone(), digest: self.entries.digest(key) }),
            None => None,
        };
        self.begin_request(now, id, request, key, level, WriteKind::Update, changed, message, out);
    }

    pub(super) fn begin_delete(&mut self, now: Instant, id: u64, key: &KeyId, level: Level, out: &mut Vec<Effect>) {
        let request = self.numbers.draw();
        self.begin_request(now, id, request, key, level, WriteKind::Delete, true, None, out);
    }

    #[expect(clippy::too_many_arguments, reason = "what an update and a delete have in common")]
    fn begin_request(
        &mut self,
        now: Instant,
        id: u64,
        request: u64,
        key: &KeyId,
        level: Level,
        kind: WriteKind,
        changed: bool,
        message: Option<Message>,
        out: &mut Vec<Effect>,
    ) {
        let deltas = matches!(message, Some(Message::DeltaWrite { .. }));
        let is_early = level != Level::Local && !self.replicas.is_anything_known();
        let early = is_early.then(|| Early { level, message: message.clone() });
        let (needed, own, candidates) = match level {
            Level::Local => (0, true, Vec::new()),
            _ if is_early => Self::NO_CANDIDATES,
            level => self.candidates(key, level, true, deltas),
        };
        let timeout = if level == Level::Local { STORE_TIMEOUT } else { level.timeout() };
        let (quorum, first) = Quorum::new(now, needed, own, candidates, timeout);
        let (awaits_store, store_refused, otherwise_refused) = (false, false, false);
        let is_local = level == Level::Local;
        let key_of = key.clone();
        let mut write = WriteRequest {
            id,
            key: key_of,
            kind,
            is_local,
            quorum,
            changed,
            awaits_store,
            store_refused,
            otherwise_refused,
            early,
        };
        if write.progress() != Progress::Impossible {
            write.awaits_store = self.entries.storing.wait(key, Waiter::Write(request), changed);
        }
        if write.progress() != Progress::Pending {
            Self::reply_to_write(&write, out);
            return;
        }
        let over_at = write.quorum.deadline();
        self.deadlines.note(write.quorum.next_deadline(), request);
        self.writes.insert(request, write);
        self.ask_first(over_at, request, key, first, message, out);
    }

    /// Sends a peer its first message of a request that ends at `over_at`.
    fn ask(&mut self, over_at: Instant, to: UniqueAddress, message: Message, out: &mut Vec<Effect>) {
        self.unanswered.asked(&to, over_at);
        self.send(to, message, out);
    }

    /// The full state as a write; the entry may have grown since the request began. `None` if the change is gone with
    /// its entry: no confirmation would then be of the change, and the request ends as soon as the entry is removed.
    /// Source: ddata C2.
    fn write_message(&mut self, request: u64, key: &KeyId) -> Option<Message> {
        match self.entries.envelope(key) {
            Some(envelope) => Some(Message::Write { request, key: key.clone(), envelope }),
            None if self.writes.get(&request).is_some_and(|write| write.changed) => None,
            None => Some(Message::Check { request, key: key.clone(), digest: None }),
        }
    }

    /// Sends a peer the full state of a request's entry.
    fn send_state(&mut self, request: u64, key: &KeyId, to: UniqueAddress, out: &mut Vec<Effect>) {
        if let Some(message) = self.write_message(request, key) {
            self.send(to, message, out);
        }
    }

    /// Sends the first replicas of a request their message: `message`, or the full state. Nothing is encoded if no
    /// replica is asked.
    fn ask_first(
        &mut self,
        over_at: Instant,
        request: u64,
        key: &KeyId,
        first: Vec<UniqueAddress>,
        message: Option<Message>,
        out: &mut Vec<Effect>,
    ) {
        for to in first {
            match &message {
                Some(message) => self.ask(over_at, to, message.clone(), out),
                None => self.ask_state(over_at, request, key, to, out),
            }
        }
    }

    /// As [`Self::send_state`], if it is the peer's first message of a request that ends at `over_at`.
    fn ask_state(&mut self, over_at: Instant, request: u64, key: &KeyId, to: UniqueAddress, out: &mut Vec<Effect>) {
        if let Some(message) = self.write_message(request, key) {
            self.ask(over_at, to, message, out);
        }
    }

    pub(super) fn on_write_reply(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        reply: WriteReply,
        out: &mut Vec<Effect>,
    ) {
        self.unanswered.answered(from);
        let Some(write) = self.writes.get_mut(&request).filter(|write| write.quorum.awaits(from)) else {
            self.stats.late_replies += 1;
            return;
        };
        let key = write.key.clone();
        match reply {
            WriteReply::Ack => {
                write.quorum.answer(from);
            }
            WriteReply::Deleted { deleted_at } => {
                let (id, kind) = (write.id, write.kind);
                self.free(now, &key, out);
                let bounds = self.bounds(now);
                if !bounds.allow(deleted_at) {
                    self.note_implausible(now, from, deleted_at.saturating_sub(bounds.now_ms), out);
                    return self.ask_another(from, request, out);
                }
                if self.entries.merge_tombstone(&key, deleted_at) == Merged::Expired {
                    // The tombstone is past its age here, and soon at the peer; until then ask others.
                    return self.ask_another(from, request, out);
                }
                self.log.clear_deltas(&key);
                if kind == WriteKind::Update {
                    self.writes.remove(&request);
                    out.push(Effect::Reply { id, reply: Reply::Update(Err(UpdateError::Deleted { key })) });
                    return;
                }
                self.send_state(request, &key, from.clone(), out);
            }
            WriteReply::DeltaNack { have, full } => {
                let missing = if full { None } else { self.log.deltas_since(&self.types, &self.entries, &key, have) };
                match missing {
                    Some(item) => self.send(from.clone(), Message::DeltaWrite { request, item }, out),
                    None => self.send_state(request, &key, from.clone(), out),
                }
            }
            WriteReply::Nack(Refusal::NotReady) => {
                let next = write.quorum.not_ready(now, from);
                let (retry_at, over_at) = (write.quorum.next_deadline(), write.quorum.deadline());
                self.deadlines.note(retry_at, request);
                if let Some(next) = next {
                    self.ask_state(over_at, request, &key, next, out);
                }
                return;
            }
            WriteReply::Nack(refusal) => {
                write.store_refused |= refusal == Refusal::Store;
                write.otherwise_refused |= refusal != Refusal::Store;
                return self.ask_another(from, request, out);
            }
        }
        self.settle_write(request, out);
    }

    /// Notes whether the entry is stored here with everything it held when the write began. If not, this replica does
    /// not count, and one more acknowledgement is needed. Source: ddata R12.
    pub(super) fn on_own_store(&mut self, request: u64, is_stored: bool, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        write.awaits_store = false;
        if !is_stored {
            write.store_refused = true;
            let (asked, key) = (write.quorum.lose_own(), write.key.clone());
            for next in asked {
                self.send_state(request, &key, next, out);
            }
        }
        self.settle_write(request, out);
    }

    /// Asks another replica for a write, because `refuser` does not confirm it.
    fn ask_another(&mut self, refuser: &UniqueAddress, request: u64, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let (over_at, next, key) = (write.quorum.deadline(), write.quorum.refuse(refuser), write.key.clone());
        if let Some(next) = next {
            self.ask_state(over_at, request, &key, next, out);
        }
        self.settle_write(request, out);
    }

    /// Ends updates and deletes whose entries are gone here: they have expired, or were dropped with a store that is
    /// too old. This replica can no longer show their change to further replicas: it would send another life of the
    /// entry, or nothing, and a confirmation of that says nothing about the change. Source: ddata E1, Z11, C2.
    pub(super) fn give_up_writes(&mut self, gone: &BTreeSet<KeyId>, out: &mut Vec<Effect>) {
        if gone.is_empty() || self.writes.is_empty() {
            return;
        }
        for (_, mut write) in self.writes.extract_if(.., |_, write| gone.contains(&write.key)) {
            // Enough others may have confirmed, but the change was also to be on this replica's disk, and will not be.
            write.store_refused |= write.awaits_store && write.quorum.progress() == Progress::Done;
            Self::reply_to_write(&write, out);
        }
    }

    fn settle_write(&mut self, request: u64, out: &mut Vec<Effect>) {
        if self.writes.get(&request).is_some_and(|write| write.progress() != Progress::Pending)
            && let Some(write) = self.writes.remove(&request)
        {
            let is_deleted = matches!(self.entries.get(&write.key), Some(Entry { data: Data::Tombstone { .. }, .. }));
            if write.kind == WriteKind::Update && is_deleted {
                // The last replicas confirmed the deletion, which came from elsewhere meanwhile.
                let (id, key) = (write.id, write.key);
                out.push(Effect::Reply { id, reply: Reply::Update(Err(UpdateError::Deleted { key })) });
                return;
            }
            Self::reply_to_write(&write, out);
        }
    }

    fn reply_to_write(write: &WriteRequest, out: &mut Vec<Effect>) {
        let done = write.progress() == Progress::Done;
        let only_stores_refused = write.store_refused && !write.otherwise_refused;
        let (needed, acked, refused) = (write.quorum.needed(), write.quorum.got(), write.quorum.refused());
        let key = write.key.clone();
        let reply = match write.kind {
            WriteKind::Update if done => Reply::Update(Ok(())),
            WriteKind::Update if write.store_refused => Reply::Update(Err(UpdateError::StoreFailed { key })),
            WriteKind::Update => Reply::Update(Err(UpdateError::Timeout { needed, acked, refused })),
            WriteKind::Delete if done => Reply::Delete(Ok(())),
            WriteKind::Delete if only_stores_refused => Reply::Delete(Err(DeleteError::StoreFailed { key })),
            WriteKind::Delete => Reply::Delete(Err(DeleteError::ReplicationFailed { needed, acked })),
        };
        out.push(Effect::Reply { id: write.id, reply });
    }

    pub(super) fn begin_read(
        &mut self,
        now: Instant,
        id: u64,
        key: KeyId,
        tag: Arc<str>,
        level: Level,
        out: &mut Vec<Effect>,
    ) {
        let own_counts = self.lifecycle == Lifecycle::Running;
        let early = (!self.replicas.is_anything_known()).then_some(Early { level, message: None });
        let (needed, own, candidates) =
            if early.is_some() { Self::NO_CANDIDATES } else { self.candidates(&key, level, own_counts, false) };
        let (quorum, first) = Quorum::new(now, needed, own, candidates, level.timeout());
        let asked = self.entries.digest(&key);
        let (answers, awaits_store) = (BTreeMap::new(), false);
        let read = ReadRequest { id, key, tag, quorum, asked, answers, awaits_store, early };
        let request = self.numbers.draw();
        let question = Self::question(&read, request);
        let over = read.early.is_none() && read.quorum.progress() != Progress::Pending;
        let over_at = read.quorum.deadline();
        self.deadlines.note(read.quorum.next_deadline(), request);
        self.reads.insert(request, read);
        if over {
            self.finish_read(request, out);
            return;
        }
        for to in first {
            self.ask(over_at, to, question.clone(), out);
        }
    }

    fn question(read: &ReadRequest, request: u64) -> Message {
        Message::Read { request, key: read.key.clone(), tag: read.tag.clone(), digest: read.asked }
    }

    pub(super) fn on_read_reply(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        reply: ReadReply,
        out: &mut Vec<Effect>,
    ) {
        self.unanswered.answered(from);
        let Some(read) = self.reads.get_mut(&request).filter(|read| read.quorum.awaits(from)) else {
            self.stats.late_replies += 1;
            return;
        };
        let key = read.key.clone();
        let asked = read.asked;
        // Join before counting: a value that cannot be joined does not count.
        let held = match reply {
            ReadReply::Same => Ok(asked.map(|_| None)),
            ReadReply::Absent => Ok(None),
            ReadReply::Value(envelope) => self.merge(now, from, &key, &envelope, out).map(|merged| match merged {
                Merged::Expired => None,
                _ => Some(Some(envelope)),
            }),
            ReadReply::NotReady | ReadReply::Nack(Refusal::NotReady) => {
                let (question, next) = (Self::question(read, request), read.quorum.not_ready(now, from));
                let (retry_at, over_at) = (read.quorum.next_deadline(), read.quorum.deadline());
                self.deadlines.note(retry_at, request);
                if let Some(next) = next {
                    self.ask(over_at, next, question, out);
                }
                return;
            }
            ReadReply::Nack(refusal) => Err(refusal),
        };
        let Some(read) = self.reads.get_mut(&request) else { return };
        match held {
            Ok(held) => {
                read.quorum.answer(from);
                if let Some(envelope) = held {
                    read.answers.insert(from.clone(), envelope);
                }
            }
            Err(_) => {
                let (question, over_at) = (Self::question(read, request), read.quorum.deadline());
                if let Some(next) = read.quorum.refuse(from) {
                    self.ask(over_at, next, question, out);
                }
            }
        }
        if self.reads.get(&request).is_some_and(|read| read.quorum.progress() != Progress::Pending) {
            self.finish_read(request, out);
        }
    }

    /// Answers a read from the entry after everything that arrived was joined. A durable entry is stored first. Source:
    /// ddata R13.
    fn finish_read(&mut self, request: u64, out: &mut Vec<Effect>) {
        let may_finish = |read: &&mut ReadRequest| !read.awaits_store && read.early.is_none();
        let Some(read) = self.reads.get_mut(&request).filter(may_finish) else { return };
        read.awaits_store = read.quorum.progress() == Progress::Done
            && self.entries.storing.wait(&read.key, Waiter::Read(request), false);
        if !read.awaits_store {
            self.answer_read(request, out);
        }
    }

    pub(super) fn answer_read(&mut self, request: u64, out: &mut Vec<Effect>) {
        let Some(read) = self.reads.remove(&request) else { return };
        let (id, needed, got) = (read.id, read.quorum.needed(), read.quorum.got());
        let result = if read.quorum.progress() == Progress::Done {
            let result = self.read_local(&read.key, &read.tag);
            if matches!(result, Ok(Read::Found(_))) {
                self.touch(&read.key, out);
            }
            self.push_repair(&read, out);
            result
        } else {
            Err(GetError::Failure { needed, got })
        };
        out.push(Effect::Reply { id, reply: Reply::Get(result) });
    }

    /// Sends the result to replicas that answered with less. Source: ddata R13.
    fn push_repair(&mut self, read: &ReadRequest, out: &mut Vec<Effect>) {
        if !self.settings.read_repair_push {
            return;
        }
        if self.entries.is_large(&read.key, self.settings.inner_tree_keys) {
            // Large values are sent in parts, within a round.
            let lack = |peer: &&UniqueAddress| !matches!(read.answers.get(peer), Some(None));
            for peer in read.quorum.answerers().filter(lack) {
                self.rounds.schedule(peer.clone());
            }
            return;
        }
        let Some(result) = self.entries.envelope(&read.key) else { return };
        let changed = self.entries.digest(&read.key) != read.asked;
        for peer in read.quorum.answerers() {
            let holds_it = match read.answers.get(peer) {
                None => false,
                Some(None) => !changed,
                Some(Some(envelope)) => envelope.content == result.content,
            };
            if !holds_it {
                let entries = vec![(read.key.clone(), result.clone())];
                let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
                self.send(peer.clone(), message, out);
            }
        }
    }

    /// Asks again, and asks others, after a fifth of the timeout; ends requests that are over.
    pub(super) fn tick_requests(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let (writes, reads) = (&self.writes, &self.reads);
        let is_pending = |request: u64| writes.contains_key(&request) || reads.contains_key(&request);
        let due = self.deadlines.take_due(now, is_pending);
        for request in due.iter().copied() {
            let Some(write) = self.writes.get_mut(&request) else { continue };
            if write.quorum.is_over(now) {
                if let Some(write) = self.writes.remove(&request) {
                    Self::reply_to_write(&write, out);
                }
                continue;
            }
            let (asked, key) = (write.quorum.ask_again(now), write.key.clone());
            self.deadlines.note(write.quorum.next_deadline(), request);
            for to in asked {
                self.send_state(request, &key, to, out);
            }
        }
        for request in due {
            let Some(read) = self.reads.get_mut(&request) else { continue };
            if read.quorum.is_over(now) {
                self.answer_read(request, out);
                continue;
            }
            let question = Self::question(read, request);
            let asked = read.quorum.ask_again(now);
            self.deadlines.note(read.quorum.next_deadline(), request);
            for to in asked {
                self.send(to, question.clone(), out);
            }
        }
    }

    /// Asks another replica instead of a peer for which the transport refused a message, for this request only: other
    /// requests that wait for the peer have messages of their own, and there may be thousands.
    pub(super) fn on_send_failed(&mut self, peer: &UniqueAddress, request: Option<u64>, out: &mut Vec<Effect>) {
        self.stats.unsent += 1;
        if let Some(request) = request {
            self.ask_instead_in(request, peer, out);
        }
    }

    /// Sends a peer, with which data may be exchanged now, all requests that wait for it.
    pub(super) fn ask_again(&mut self, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        let awaits = |(_, write): &(&u64, &WriteRequest)| write.quorum.awaits(peer);
        let writes: Vec<(u64, KeyId)> =
            self.writes.iter().filter(awaits).map(|(request, write)| (*request, write.key.clone())).collect();
        for (request, key) in writes {
            self.send_state(request, &key, peer.clone(), out);
        }
        let reads = self.reads.iter().filter(|(_, read)| read.quorum.awaits(peer));
        let questions: Vec<Message> = reads.map(|(request, read)| Self::question(read, *request)).collect();
        for question in questions {
            self.send(peer.clone(), question, out);
        }
    }

    /// Asks another replica in addition, because nothing may be exchanged with this peer yet.
    pub(super) fn ask_instead_in(&mut self, request: u64, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        self.replace_in_write(request, peer, Quorum::suspect, out);
        self.replace_in_read(request, peer, Quorum::suspect, out);
    }

    /// Asks others in addition to an unreachable peer, which may still answer.
    pub(super) fn ask_instead_of(&mut self, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        self.replace(peer, Quorum::suspect, out);
    }

    /// Gives up a removed peer, which will never answer.
    pub(super) fn give_up_on(&mut self, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        self.replace(peer, Quorum::refuse, out);
    }

    fn replace(&mut self, peer: &UniqueAddress, replacement: Replacement, out: &mut Vec<Effect>) {
        for request in self.writes.keys().copied().collect::<Vec<_>>() {
            self.replace_in_write(request, peer, replacement, out);
        }
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            self.replace_in_read(request, peer, replacement, out);
        }
    }

    fn replace_in_write(
        &mut self,
        request: u64,
        peer: &UniqueAddress,
        replacement: Replacement,
        out: &mut Vec<Effect>,
    ) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let (next, key) = (replacement(&mut write.quorum, peer), write.key.clone());
        let over_at = write.quorum.deadline();
        if let Some(next) = next {
            self.ask_state(over_at, request, &key, next, out);
        }
        self.settle_write(request, out);
    }

    fn replace_in_read(&mut self, request: u64, peer: &UniqueAddress, replacement: Replacement, out: &mut Vec<Effect>) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let (question, over_at) = (Self::question(read, request), read.quorum.deadline());
        if let Some(next) = replacement(&mut read.quorum, peer) {
            self.ask(over_at, next, question, out);
        }
        if self.reads.get(&request).is_some_and(|read| read.quorum.progress() != Progress::Pending) {
            self.finish_read(request, out);
        }
    }

    /// Ends all requests that wait.
    pub(super) fn fail_all(&mut self, reason: &StopReason, out: &mut Vec<Effect>) {
        let stopped = || RequestError::Stopped(reason.clone());
        for write in std::mem::take(&mut self.writes).into_values() {
            let reply = match write.kind {
                WriteKind::Update => Reply::Update(Err(stopped().into())),
                WriteKind::Delete => Reply::Delete(Err(stopped().into())),
            };
            out.push(Effect::Reply { id: write.id, reply });
        }
        for read in std::mem::take(&mut self.reads).into_values() {
            out.push(Effect::Reply { id: read.id, reply: Reply::Get(Err(stopped().into())) });
        }
    }
}
