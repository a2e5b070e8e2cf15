//! Requests that wait for other replicas: chooses the replicas to ask, and handles the answers.

mod candidates;
mod deadlines;
mod early;
mod quorum;
mod read;
mod unanswered;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::local::LocalReplica;
use crate::api::effect::{Effect, Reply};
use crate::api::error::{GetError, RequestError, StopReason, UpdateError};
use crate::api::key::KeyId;
use crate::api::level::Level;
use crate::api::read::{Lifecycle, Read};
use crate::data::entries::{Data, Entry, Merged};
use crate::data::envelope::Envelope;
use crate::messages::message::{DeltaItem, Message, Refusal, WriteReply};
use crate::storage::storing::Waiter;
use candidates::Candidates;
use deadlines::Deadlines;
use early::Early;
use quorum::{Progress, Quorum};
use read::ReadRequest;
use unanswered::UnansweredRequests;
use write::{WriteKind, WriteRequest};

/// The timeout of a local request that waits only for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// A function that takes a replica that does not help out of a quorum, and returns the one to ask in its place.
type Replacement = fn(&mut Quorum, &UniqueAddress) -> Option<UniqueAddress>;

/// The answer of a replica to a read, after its data were joined.
#[derive(Debug)]
pub(super) enum ReadAnswer {
    /// The replica holds what the read named.
    Same,
    /// The replica holds nothing, or nothing that has not expired.
    Absent,
    /// The replica holds this, and it was joined here.
    Joined(Envelope),
    /// The replica is starting.
    NotReady,
    /// The replica refused, or its data were refused here: it does not count.
    Refused,
}

/// A replica says that the entry of a write was deleted.
#[derive(Debug)]
pub(super) struct DeletedElsewhere {
    request: u64,
    id: u64,
    kind: WriteKind,
    pub(super) key: KeyId,
    deleted_at: i64,
}

/// All requests that wait for other replicas or for the store.
#[derive(Debug, Default)]
pub(super) struct Requests {
    writes: BTreeMap<u64, WriteRequest>,
    reads: BTreeMap<u64, ReadRequest>,
    deadlines: Deadlines,
    unanswered: UnansweredRequests,
}

impl Requests {
    /// Whether too many requests wait for other replicas to accept more than `most`. Local requests, which wait for the
    /// store, are only subtracted if all together are so many. Source: ddata R14.
    pub(super) fn is_overloaded(&self, most: usize) -> bool {
        self.len() >= most && self.in_flight() >= most
    }

    /// How many requests wait for other replicas or for the store.
    pub(super) fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// How many requests wait for other replicas.
    pub(super) fn in_flight(&self) -> usize {
        self.writes.values().filter(|write| !write.is_local).count() + self.reads.len()
    }

    /// When a request next has something to do, and when a peer counts as silent.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.deadlines.next(), self.unanswered.next_deadline()].into_iter().flatten().min()
    }

    /// Evaluates early requests, because the first set of replicas is known: they begin now, with the rest of their
    /// time. Source: ddata R9.
    pub(super) fn evaluate_early(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let is_early = |early: &Option<Early>| early.is_some();
        let writes: Vec<u64> =
            self.writes.iter().filter(|(_, write)| is_early(&write.early)).map(|(request, _)| *request).collect();
        for request in writes {
            self.evaluate_early_write(local, now, request, out);
        }
        let reads: Vec<u64> =
            self.reads.iter().filter(|(_, read)| is_early(&read.early)).map(|(request, _)| *request).collect();
        for request in reads {
            self.evaluate_early_read(local, now, request, out);
        }
    }

    fn evaluate_early_write(&mut self, local: &mut LocalReplica, now: Instant, request: u64, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let Some(Early { level, message }) = write.early.take() else { return };
        let (key, over_at) = (write.key.clone(), write.quorum.deadline());
        let deltas = matches!(message, Some(Message::DeltaWrite { .. }));
        let candidates = Candidates::of(local, &key, level, write.own_counts(), deltas);
        let left = over_at.saturating_duration_since(now);
        let first;
        (write.quorum, first) = Quorum::new(now, candidates.needed, candidates.own, candidates.others, left);
        self.deadlines.note(write.quorum.next_deadline(), request);
        if write.progress() == Progress::Pending {
            self.ask_first(local, over_at, request, &key, first, message, out);
        }
        self.settle_write(local, request, out);
    }

    fn evaluate_early_read(&mut self, local: &mut LocalReplica, now: Instant, request: u64, out: &mut Vec<Effect>) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let Some(Early { level, .. }) = read.early.take() else { return };
        let (key, over_at) = (read.key.clone(), read.quorum.deadline());
        let own_counts = *local.lifecycle() == Lifecycle::Running;
        let candidates = Candidates::of(local, &key, level, own_counts, false);
        let left = over_at.saturating_duration_since(now);
        let first;
        (read.quorum, first) = Quorum::new(now, candidates.needed, candidates.own, candidates.others, left);
        self.deadlines.note(read.quorum.next_deadline(), request);
        if read.quorum.progress() != Progress::Pending {
            return self.finish_read(local, request, out);
        }
        let question = read.question(request);
        for to in first {
            self.ask(local, over_at, &to, question.clone(), out);
        }
    }

    /// Has a change confirmed; if nothing changed, makes sure that others hold what is here.
    #[expect(clippy::too_many_arguments, reason = "the last part of an update")]
    pub(super) fn begin_write(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        id: u64,
        key: &KeyId,
        level: Level,
        delta: Option<DeltaItem>,
        changed: bool,
        out: &mut Vec<Effect>,
    ) {
        let request = local.writer.draw();
        let message = match delta {
            Some(item) => Some(Message::DeltaWrite { request, item }),
            None if !changed => Some(Message::Check { request, key: key.clone(), digest: local.entries.digest(key) }),
            None => None,
        };
        self.begin_request(local, now, id, request, key, level, WriteKind::Update, changed, message, out);
    }

    /// Has a deletion confirmed.
    pub(super) fn begin_delete(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        id: u64,
        key: &KeyId,
        level: Level,
        out: &mut Vec<Effect>,
    ) {
        let request = local.writer.draw();
        self.begin_request(local, now, id, request, key, level, WriteKind::Delete, true, None, out);
    }

    #[expect(clippy::too_many_arguments, reason = "what an update and a delete have in common")]
    fn begin_request(
        &mut self,
        local: &mut LocalReplica,
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
        let is_local = level == Level::Local;
        let is_early = !is_local && !local.replicas.is_anything_known();
        let early = is_early.then(|| Early { level, message: message.clone() });
        let candidates = match level {
            Level::Local => Candidates::LOCAL,
            _ if is_early => Candidates::UNKNOWN,
            level => Candidates::of(local, key, level, true, deltas),
        };
        let timeout = if is_local { STORE_TIMEOUT } else { level.timeout() };
        let (quorum, first) = Quorum::new(now, candidates.needed, candidates.own, candidates.others, timeout);
        let mut write = WriteRequest::new(id, key.clone(), kind, changed, is_local, quorum, early);
        if write.progress() != Progress::Impossible {
            write.awaits_store = local.entries.storing.wait(key, Waiter::Write(request), changed);
        }
        if write.progress() != Progress::Pending {
            out.push(write.reply());
            return;
        }
        let over_at = write.quorum.deadline();
        self.deadlines.note(write.quorum.next_deadline(), request);
        self.writes.insert(request, write);
        self.ask_first(local, over_at, request, key, first, message, out);
    }

    /// Sends a peer a message. If it is a question and nothing may be exchanged with the peer yet, another replica is
    /// asked in addition.
    pub(super) fn send(
        &mut self,
        local: &mut LocalReplica,
        to: &UniqueAddress,
        message: Message,
        out: &mut Vec<Effect>,
    ) {
        let request = message.request();
        if !local.send_if_allowed(to.clone(), message, out)
            && let Some(request) = request
        {
            self.ask_instead_in(local, request, to, out);
        }
    }

    /// Sends a peer its first message of a request that ends at `over_at`.
    fn ask(
        &mut self,
        local: &mut LocalReplica,
        over_at: Instant,
        to: &UniqueAddress,
        message: Message,
        out: &mut Vec<Effect>,
    ) {
        self.unanswered.asked(to, over_at);
        self.send(local, to, message, out);
    }

    /// The full state as a write; the entry may have grown since the request began. `None` if the change is gone with
    /// its entry: no confirmation would then be of the change, and the request ends as soon as the entry is removed.
    /// Source: ddata C2.
    fn write_message(&self, local: &mut LocalReplica, request: u64, key: &KeyId) -> Option<Message> {
        match local.entries.envelope(key) {
            Some(envelope) => Some(Message::Write { request, key: key.clone(), envelope }),
            None if self.writes.get(&request).is_some_and(|write| write.changed) => None,
            None => Some(Message::Check { request, key: key.clone(), digest: None }),
        }
    }

    /// Sends a peer the full state of a request's entry.
    fn send_state(
        &mut self,
        local: &mut LocalReplica,
        request: u64,
        key: &KeyId,
        to: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        if let Some(message) = self.write_message(local, request, key) {
            self.send(local, to, message, out);
        }
    }

    /// Sends the first replicas of a request their message: `message`, or the full state. Nothing is encoded if no
    /// replica is asked.
    #[expect(clippy::too_many_arguments, reason = "what a request begins with")]
    fn ask_first(
        &mut self,
        local: &mut LocalReplica,
        over_at: Instant,
        request: u64,
        key: &KeyId,
        first: Vec<UniqueAddress>,
        message: Option<Message>,
        out: &mut Vec<Effect>,
    ) {
        for to in first {
            match &message {
                Some(message) => self.ask(local, over_at, &to, message.clone(), out),
                None => self.ask_state(local, over_at, request, key, &to, out),
            }
        }
    }

    /// As [`Self::send_state`], if it is the peer's first message of a request that ends at `over_at`.
    fn ask_state(
        &mut self,
        local: &mut LocalReplica,
        over_at: Instant,
        request: u64,
        key: &KeyId,
        to: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        if let Some(message) = self.write_message(local, request, key) {
            self.ask(local, over_at, to, message, out);
        }
    }

    /// Takes the answer of a replica to a write. Returns a deletion that the replica knows and this one perhaps does
    /// not: [`Self::on_deleted_elsewhere`] goes on with it.
    pub(super) fn on_write_reply(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        reply: WriteReply,
        out: &mut Vec<Effect>,
    ) -> Option<DeletedElsewhere> {
        self.unanswered.answered(from);
        let Some(write) = self.writes.get_mut(&request).filter(|write| write.quorum.awaits(from)) else {
            local.observed.stats.late_replies += 1;
            return None;
        };
        let key = write.key.clone();
        match reply {
            WriteReply::Ack => {
                write.quorum.answer(from);
            }
            WriteReply::Deleted { deleted_at } => {
                return Some(DeletedElsewhere { request, id: write.id, kind: write.kind, key, deleted_at });
            }
            WriteReply::DeltaNack { have, full } => {
                let missing =
                    if full { None } else { local.log.deltas_since(&local.types, &local.entries, &key, have) };
                match missing {
                    Some(item) => self.send(local, from, Message::DeltaWrite { request, item }, out),
                    None => self.send_state(local, request, &key, from, out),
                }
            }
            WriteReply::Nack(Refusal::NotReady) => {
                let next = write.quorum.not_ready(now, from);
                let (retry_at, over_at) = (write.quorum.next_deadline(), write.quorum.deadline());
                self.deadlines.note(retry_at, request);
                if let Some(next) = next {
                    self.ask_state(local, over_at, request, &key, &next, out);
                }
                return None;
            }
            WriteReply::Nack(refusal) => {
                write.on_refused(refusal);
                self.ask_another(local, from, request, out);
                return None;
            }
        }
        self.settle_write(local, request, out);
        None
    }

    /// Joins a deletion that a replica answered a write with. The caller has removed the entry before, if it had
    /// expired.
    pub(super) fn on_deleted_elsewhere(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        deleted: DeletedElsewhere,
        out: &mut Vec<Effect>,
    ) {
        let DeletedElsewhere { request, id, kind, key, deleted_at } = deleted;
        let bounds = local.bounds(now);
        if !bounds.allow(deleted_at) {
            let ahead_ms = deleted_at.saturating_sub(bounds.now_ms);
            local.observed.on_implausible_time(now, from, ahead_ms, out);
            return self.ask_another(local, from, request, out);
        }
        if local.entries.merge_tombstone(&key, deleted_at) == Merged::Expired {
            // The tombstone is past its age here, and soon at the peer; until then ask others.
            return self.ask_another(local, from, request, out);
        }
        local.log.clear_deltas(&key);
        if !self.writes.contains_key(&request) {
            // The caller has its answer: the entry had expired, and the write ended when the entry was removed.
            return;
        }
        if kind == WriteKind::Update {
            self.writes.remove(&request);
            out.push(Effect::Reply { id, reply: Reply::Update(Err(UpdateError::Deleted { key })) });
            return;
        }
        self.send_state(local, request, &key, from, out);
        self.settle_write(local, request, out);
    }

    /// Notes whether the entry is stored here with everything it held when the write began. If not, this replica does
    /// not count, and one more acknowledgement is needed. Source: ddata R12.
    pub(super) fn on_own_store(
        &mut self,
        local: &mut LocalReplica,
        request: u64,
        is_stored: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        write.on_own_store(is_stored);
        if !is_stored {
            let (asked, key) = (write.quorum.lose_own(), write.key.clone());
            for next in asked {
                self.send_state(local, request, &key, &next, out);
            }
        }
        self.settle_write(local, request, out);
    }

    /// Asks another replica for a write, because `refuser` does not confirm it.
    fn ask_another(&mut self, local: &mut LocalReplica, refuser: &UniqueAddress, request: u64, out: &mut Vec<Effect>) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let (over_at, next, key) = (write.quorum.deadline(), write.quorum.refuse(refuser), write.key.clone());
        if let Some(next) = next {
            self.ask_state(local, over_at, request, &key, &next, out);
        }
        self.settle_write(local, request, out);
    }

    /// Ends updates and deletes whose entries are gone here: they have expired, or were dropped with a store that is
    /// too old. This replica can no longer show their change to further replicas: it would send another life of the
    /// entry, or nothing, and a confirmation of that says nothing about the change. Source: ddata E1, Z11, C2.
    pub(super) fn give_up_writes(&mut self, gone: &BTreeSet<KeyId>, out: &mut Vec<Effect>) {
        if gone.is_empty() || self.writes.is_empty() {
            return;
        }
        for (_, mut write) in self.writes.extract_if(.., |_, write| gone.contains(&write.key)) {
            write.on_gone();
            out.push(write.reply());
        }
    }

    fn settle_write(&mut self, local: &LocalReplica, request: u64, out: &mut Vec<Effect>) {
        if self.writes.get(&request).is_some_and(|write| write.progress() != Progress::Pending)
            && let Some(write) = self.writes.remove(&request)
        {
            let is_deleted = matches!(local.entries.get(&write.key), Some(Entry { data: Data::Tombstone { .. }, .. }));
            if write.kind == WriteKind::Update && is_deleted {
                // The last replicas confirmed the deletion, which came from elsewhere meanwhile.
                let (id, key) = (write.id, write.key);
                out.push(Effect::Reply { id, reply: Reply::Update(Err(UpdateError::Deleted { key })) });
                return;
            }
            out.push(write.reply());
        }
    }

    /// Asks other replicas for an entry.
    #[expect(clippy::too_many_arguments, reason = "an input, with what it is handled in")]
    pub(super) fn begin_read(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        id: u64,
        key: KeyId,
        tag: Arc<str>,
        level: Level,
        out: &mut Vec<Effect>,
    ) {
        let own_counts = *local.lifecycle() == Lifecycle::Running;
        let early = (!local.replicas.is_anything_known()).then_some(Early { level, message: None });
        let candidates =
            if early.is_some() { Candidates::UNKNOWN } else { Candidates::of(local, &key, level, own_counts, false) };
        let (quorum, first) = Quorum::new(now, candidates.needed, candidates.own, candidates.others, level.timeout());
        let asked = local.entries.digest(&key);
        let (answers, awaits_store) = (BTreeMap::new(), false);
        let read = ReadRequest { id, key, tag, quorum, asked, answers, awaits_store, early };
        let request = local.writer.draw();
        let question = read.question(request);
        let over = read.early.is_none() && read.quorum.progress() != Progress::Pending;
        let over_at = read.quorum.deadline();
        self.deadlines.note(read.quorum.next_deadline(), request);
        self.reads.insert(request, read);
        if over {
            self.finish_read(local, request, out);
            return;
        }
        for to in first {
            self.ask(local, over_at, &to, question.clone(), out);
        }
    }

    /// Notes that a replica has answered a read. Returns the entry if the answer is awaited; its data are then joined,
    /// and [`Self::on_read_answer`] goes on with it.
    pub(super) fn on_read_reply(
        &mut self,
        local: &mut LocalReplica,
        from: &UniqueAddress,
        request: u64,
    ) -> Option<KeyId> {
        self.unanswered.answered(from);
        let awaited = self.reads.get(&request).filter(|read| read.quorum.awaits(from)).map(|read| read.key.clone());
        if awaited.is_none() {
            local.observed.stats.late_replies += 1;
        }
        awaited
    }

    /// Counts an answer to a read whose data were joined: a value that cannot be joined does not count.
    pub(super) fn on_read_answer(
        &mut self,
        local: &mut LocalReplica,
        now: Instant,
        from: &UniqueAddress,
        request: u64,
        answer: ReadAnswer,
        out: &mut Vec<Effect>,
    ) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let held = match answer {
            ReadAnswer::Same => read.asked.map(|_| None),
            ReadAnswer::Absent => None,
            ReadAnswer::Joined(envelope) => Some(Some(envelope)),
            ReadAnswer::NotReady => {
                let (question, next) = (read.question(request), read.quorum.not_ready(now, from));
                let (retry_at, over_at) = (read.quorum.next_deadline(), read.quorum.deadline());
                self.deadlines.note(retry_at, request);
                if let Some(next) = next {
                    self.ask(local, over_at, &next, question, out);
                }
                return;
            }
            ReadAnswer::Refused => return self.replace_in_read(local, request, from, Quorum::refuse, out),
        };
        read.quorum.answer(from);
        if let Some(envelope) = held {
            read.answers.insert(from.clone(), envelope);
        }
        if read.quorum.progress() != Progress::Pending {
            self.finish_read(local, request, out);
        }
    }

    /// Answers a read from the entry after everything that arrived was joined. A durable entry is stored first. Source:
    /// ddata R13.
    fn finish_read(&mut self, local: &mut LocalReplica, request: u64, out: &mut Vec<Effect>) {
        let may_finish = |read: &&mut ReadRequest| !read.awaits_store && read.early.is_none();
        let Some(read) = self.reads.get_mut(&request).filter(may_finish) else { return };
        read.awaits_store = read.quorum.progress() == Progress::Done
            && local.entries.storing.wait(&read.key, Waiter::Read(request), false);
        if !read.awaits_store {
            self.answer_read(local, request, out);
        }
    }

    /// Answers a read that waits for nothing any more.
    pub(super) fn answer_read(&mut self, local: &mut LocalReplica, request: u64, out: &mut Vec<Effect>) {
        let Some(read) = self.reads.remove(&request) else { return };
        let (id, needed, got) = (read.id, read.quorum.needed(), read.quorum.got());
        let result = if read.quorum.progress() == Progress::Done {
            let result = local.read(&read.key, &read.tag);
            if matches!(result, Ok(Read::Found(_))) {
                local.touch(&read.key, out);
            }
            push_repair(local, &read, out);
            result
        } else {
            Err(GetError::Failure { needed, got })
        };
        out.push(Effect::Reply { id, reply: Reply::Get(result) });
    }

    /// Asks again, and asks others, after a fifth of the timeout; ends requests that are over.
    pub(super) fn on_tick(&mut self, local: &mut LocalReplica, now: Instant, out: &mut Vec<Effect>) {
        let (writes, reads) = (&self.writes, &self.reads);
        let is_pending = |request: u64| writes.contains_key(&request) || reads.contains_key(&request);
        let due = self.deadlines.take_due(now, is_pending);
        for request in due.iter().copied() {
            let Some(write) = self.writes.get_mut(&request) else { continue };
            if write.quorum.is_over(now) {
                out.extend(self.writes.remove(&request).map(|write| write.reply()));
                continue;
            }
            let (asked, key) = (write.quorum.ask_again(now), write.key.clone());
            self.deadlines.note(write.quorum.next_deadline(), request);
            for to in asked {
                self.send_state(local, request, &key, &to, out);
            }
        }
        for request in due {
            let Some(read) = self.reads.get_mut(&request) else { continue };
            if read.quorum.is_over(now) {
                self.answer_read(local, request, out);
                continue;
            }
            let question = read.question(request);
            let asked = read.quorum.ask_again(now);
            self.deadlines.note(read.quorum.next_deadline(), request);
            for to in asked {
                self.send(local, &to, question.clone(), out);
            }
        }
    }

    /// The peers that count as silent from now on.
    pub(super) fn newly_silent(&mut self, now: Instant) -> Vec<UniqueAddress> {
        self.unanswered.on_tick(now)
    }

    /// Sends a peer, with which data may be exchanged now, all requests that wait for it.
    pub(super) fn ask_again(&mut self, local: &mut LocalReplica, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        let awaits = |(_, write): &(&u64, &WriteRequest)| write.quorum.awaits(peer);
        let writes: Vec<(u64, KeyId)> =
            self.writes.iter().filter(awaits).map(|(request, write)| (*request, write.key.clone())).collect();
        for (request, key) in writes {
            self.send_state(local, request, &key, peer, out);
        }
        let reads = self.reads.iter().filter(|(_, read)| read.quorum.awaits(peer));
        let questions: Vec<Message> = reads.map(|(request, read)| read.question(*request)).collect();
        for question in questions {
            self.send(local, peer, question, out);
        }
    }

    /// Asks another replica in addition to a peer for which the transport refused a message, or with which nothing may
    /// be exchanged yet; for this request only: other requests that wait for the peer have messages of their own, and
    /// there may be thousands.
    pub(super) fn ask_instead_in(
        &mut self,
        local: &mut LocalReplica,
        request: u64,
        peer: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        self.replace_in_write(local, request, peer, Quorum::suspect, out);
        self.replace_in_read(local, request, peer, Quorum::suspect, out);
    }

    /// Asks others in addition to an unreachable peer, which may still answer.
    pub(super) fn on_unreachable(&mut self, local: &mut LocalReplica, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        self.replace(local, peer, Quorum::suspect, out);
    }

    /// Gives up a removed peer, which will never answer.
    pub(super) fn on_removed(&mut self, local: &mut LocalReplica, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        self.replace(local, peer, Quorum::refuse, out);
        self.unanswered.answered(peer);
    }

    fn replace(
        &mut self,
        local: &mut LocalReplica,
        peer: &UniqueAddress,
        replacement: Replacement,
        out: &mut Vec<Effect>,
    ) {
        for request in self.writes.keys().copied().collect::<Vec<_>>() {
            self.replace_in_write(local, request, peer, replacement, out);
        }
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            self.replace_in_read(local, request, peer, replacement, out);
        }
    }

    fn replace_in_write(
        &mut self,
        local: &mut LocalReplica,
        request: u64,
        peer: &UniqueAddress,
        replacement: Replacement,
        out: &mut Vec<Effect>,
    ) {
        let Some(write) = self.writes.get_mut(&request) else { return };
        let (next, key) = (replacement(&mut write.quorum, peer), write.key.clone());
        let over_at = write.quorum.deadline();
        if let Some(next) = next {
            self.ask_state(local, over_at, request, &key, &next, out);
        }
        self.settle_write(local, request, out);
    }

    fn replace_in_read(
        &mut self,
        local: &mut LocalReplica,
        request: u64,
        peer: &UniqueAddress,
        replacement: Replacement,
        out: &mut Vec<Effect>,
    ) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        let (question, over_at) = (read.question(request), read.quorum.deadline());
        if let Some(next) = replacement(&mut read.quorum, peer) {
            self.ask(local, over_at, &next, question, out);
        }
        if self.reads.get(&request).is_some_and(|read| read.quorum.progress() != Progress::Pending) {
            self.finish_read(local, request, out);
        }
    }

    /// Ends all requests that wait.
    pub(super) fn fail_all(&mut self, reason: &StopReason, out: &mut Vec<Effect>) {
        out.extend(std::mem::take(&mut self.writes).into_values().map(|write| write.stopped_reply(reason)));
        for read in std::mem::take(&mut self.reads).into_values() {
            let stopped = RequestError::Stopped(reason.clone());
            out.push(Effect::Reply { id: read.id, reply: Reply::Get(Err(stopped.into())) });
        }
    }

    /// Panics if a request asks this replica, or more requests wait for other replicas than `most`.
    pub(super) fn check_invariants(&self, own: &UniqueAddress, most: usize) {
        let asks_itself = self.writes.values().any(|write| write.quorum.awaits(own))
            || self.reads.values().any(|read| read.quorum.awaits(own));
        assert!(!asks_itself, "a replicator never asks itself");
        assert!(self.in_flight() <= most, "requests in flight are bounded");
    }
}

/// Sends the result to replicas that answered with less. Source: ddata R13.
fn push_repair(local: &mut LocalReplica, read: &ReadRequest, out: &mut Vec<Effect>) {
    if !local.settings.read_repair_push {
        return;
    }
    if local.entries.is_large(&read.key, local.settings.inner_tree_keys) {
        // Large values are sent in parts, within a round.
        let lack = |peer: &&UniqueAddress| !matches!(read.answers.get(peer), Some(None));
        local.scheduled.extend(read.quorum.answerers().filter(lack).cloned());
        return;
    }
    let Some(result) = local.entries.envelope(&read.key) else { return };
    let changed = local.entries.digest(&read.key) != read.asked;
    for peer in read.quorum.answerers().filter(|peer| read.lacks(peer, &result, changed)) {
        let entries = vec![(read.key.clone(), result.clone())];
        let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
        local.send(peer.clone(), message, out);
    }
}
