//! Transcripts of the entity machine, hosted by hand over the in-memory stores.
//!
//! Store calls are performed at once, in their order, unless `hold KIND` keeps those of a kind back
//! until `answer WHAT` or `release`. Time stands still but for `advance`.

#[path = "suite/support/counter.rs"]
mod counter;
#[path = "suite/support/log.rs"]
mod log;
#[path = "suite/support/memory.rs"]
mod memory;
#[path = "suite/support/panics.rs"]
mod panics;

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use counter::{Count, Counter};
use greylag_codec::json;
use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Action, Append, AppendError, Backoff, ClaimError, DeleteError, EntityCore, EntityInit, EventKind,
    EventSourcedSettings, Head, InMemoryJournal, InMemorySnapshots, Incarnation, Input, Journal, MARK_NAME, Mark,
    Marks, Metadata, NewEvent, NewSnapshot, OnFailure, OnUnknownEvent, PersistenceId, ReadError, Recovery,
    RejectReason, Scope, SeqNr, SnapshotCaps, SnapshotCriteria, SnapshotError, SnapshotFailurePolicy, SnapshotStore,
    StashOverflow, StoreAnswer, StoreCall, StoredCodec, Stores, StreamId, Timestamp, Under, WriterUuid,
};
use greylag_testkit::transcript::{self, Case};
use log::Log;
use memory::{failure, now, ticking};
use panics::quiet;

#[test]
fn transcripts() {
    quiet();
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}

const ID: &str = "Counter|1";

fn seq(number: u32) -> SeqNr {
    SeqNr::from(number)
}

struct World {
    base: Instant,
    now: Instant,
    log: Log,
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    stores: Stores,
    core: Option<EntityCore<Counter>>,
    settings: EventSourcedSettings,
    rollback: bool,
    oversteps: bool,
    starts: u64,
    holding: Vec<String>,
    held: VecDeque<(Incarnation, StoreCall)>,
    permits_held: VecDeque<Incarnation>,
    others: u128,
}

impl World {
    fn new() -> Self {
        let base = Instant::now();
        let tick = ticking();
        let journal = InMemoryJournal::new(Scope::Shared, tick.clone());
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Shared), tick);
        Self {
            base,
            now: base,
            log: Log::default(),
            stores: Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone())),
            journal,
            snapshots,
            core: None,
            settings: EventSourcedSettings::default(),
            rollback: false,
            oversteps: false,
            starts: 0,
            holding: Vec::new(),
            held: VecDeque::new(),
            permits_held: VecDeque::new(),
            others: 100,
        }
    }

    fn id(&self) -> PersistenceId {
        ID.parse().unwrap()
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "start" => self.start(case),
            "send" => case.input.lines().for_each(|line| self.input(Input::Command(line.to_owned()))),
            "flood" => (0..case.parse::<u32>("count").unwrap()).for_each(|_| self.input(Input::Command("none".into()))),
            "hold" => self.holding.push(case.positional(0).unwrap().to_owned()),
            "release" => self.release(),
            "answer" => self.answer(case.positional(0).unwrap()),
            "grant" => {
                if let Some(incarnation) = self.permits_held.pop_front() {
                    self.input(Input::PermitGranted(incarnation));
                }
            }
            "stale" => {
                let incarnation = Incarnation { start: self.starts, restart: 0 };
                self.input(Input::Answer {
                    incarnation,
                    answer: StoreAnswer::Appended(Err(AppendError::Unknown(failure()))),
                });
            }
            "advance" => self.advance(transcript::duration(case.positional(0).unwrap()).unwrap()),
            "stop" => self.input(Input::Stop),
            "storeback" => self.input(Input::StoreBack),
            "stopnow" => self.input(Input::StopNow),
            "restart" => {
                let behavior = self.behavior(None);
                let mut out = Vec::new();
                self.core.as_mut().unwrap().restart(self.now, behavior, &mut out);
                self.perform(out);
            }
            "waiting" => {
                let waiting = self.core.as_mut().unwrap().take_waiting();
                self.log.push(format!("{waiting:?}"));
            }
            "state" => self.show_state(),
            "journal" => self.show_journal(),
            "other" => self.other(case),
            "put" => self.put(case),
            "snapshot" => self.put_snapshot(case),
            "damage" => {
                assert!(self.snapshots.damage(&self.id(), seq(case.parse("seq").unwrap()), case.flag("consistent")));
            }
            "corrupt" => assert!(self.journal.corrupt(&self.id(), seq(case.parse("seq").unwrap()))),
            "delete" => {
                let head = now(self.journal.head(&self.id())).unwrap();
                now(self.journal.delete_to(&self.id(), head.epoch, seq(case.parse("to").unwrap()))).unwrap();
            }
            other => panic!("no command {other:?}"),
        }
        self.log.take().into_iter().map(|line| line + "\n").collect()
    }

    fn behavior(&self, panics_on: Option<&str>) -> Counter {
        let mut behavior = Counter::new(ID, self.settings.clone(), self.log.clone());
        behavior.rollback = self.rollback;
        behavior.oversteps = self.oversteps;
        behavior.panics_on = panics_on.map(|name| &*name.to_owned().leak());
        behavior
    }

    fn start(&mut self, case: &Case<'_>) {
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(30), jitter: 0.0 };
        let mut settings = EventSourcedSettings {
            on_failure: if case.flag("no_restart") { OnFailure::Stop } else { OnFailure::RestartBackoff(backoff) },
            snapshot_every: case.parse::<u64>("every").and_then(NonZeroU64::new),
            delete_events: case.flag("delete_events"),
            allow_partial_history: case.flag("partial"),
            under_delivery: case.flag("under_delivery"),
            snapshot_failure: if case.flag("snapshot_fails") {
                SnapshotFailurePolicy::Fail
            } else {
                SnapshotFailurePolicy::ReplayIfComplete
            },
            stash_overflow: if case.flag("overflow_fails") { StashOverflow::Fail } else { StashOverflow::Drop },
            on_unknown_event: if case.flag("skip_unknown") { OnUnknownEvent::Skip } else { OnUnknownEvent::Fail },
            ..EventSourcedSettings::default()
        };
        if let Some(keep) = case.parse("keep").and_then(NonZeroU64::new) {
            settings.keep_n_snapshots = keep;
        }
        if let Some(stash) = case.parse("stash").and_then(NonZeroUsize::new) {
            settings.stash_capacity = stash;
        }
        if let Some(page) = case.parse("page").and_then(NonZeroUsize::new) {
            settings.replay_page_events = page;
        }
        if let Some(attempts) = case.parse("attempts").and_then(NonZeroU32::new) {
            settings.snapshot_load_attempts = attempts;
        }
        if let Some(most) = case.parse("reject_restarts") {
            settings.max_reject_restarts = most;
        }
        let mut recovery = Recovery::default();
        for (flag, change) in [
            ("skip_replay", Recovery::skip_replay as fn(Recovery) -> Recovery),
            ("no_snapshots", Recovery::no_snapshots),
            ("read_only", Recovery::read_only),
        ] {
            recovery = if case.flag(flag) { change(recovery) } else { recovery };
        }
        recovery = case.parse("to").map_or(recovery, |to| recovery.to_seq_nr(seq(to)));
        recovery = case.parse("max").map_or(recovery, |max| recovery.max_events(max));
        settings.recovery = recovery;
        self.settings = settings;
        self.rollback = case.flag("rollback");
        self.oversteps = case.flag("oversteps");
        self.starts += 1;
        self.held.clear();
        let init = EntityInit {
            generation: case.parse("generation").map(|seq| Generation::new(1, seq).unwrap()),
            start: self.starts,
            seed: [u8::try_from(self.starts).unwrap(); 32],
            caps: self.stores.journal.caps(),
            snapshot_caps: SnapshotCaps { latest_only: case.flag("latest_only"), ..self.stores.snapshots.caps() },
            settings: EventSourcedSettings::default(),
            host: None,
        };
        let mut out = Vec::new();
        let behavior = self.behavior(case.arg("panics_on"));
        match EntityCore::start(behavior.stored(), init, self.now, &mut out) {
            Ok(core) => self.core = Some(core),
            Err(error) => return self.log.push(format!("refused: {error}")),
        }
        self.perform(out);
    }

    fn input(&mut self, input: Input<String>) {
        let mut out = Vec::new();
        self.core.as_mut().unwrap().handle(self.now, input, &mut out);
        self.perform(out);
        // Tick at once while a deadline is due.
        while self.core.as_ref().unwrap().next_deadline().is_some_and(|deadline| deadline <= self.now) {
            let mut out = Vec::new();
            self.core.as_mut().unwrap().handle(self.now, Input::Tick, &mut out);
            self.perform(out);
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.core.as_ref().unwrap().next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.log.push(format!("{:.2}s", (self.now - self.base).as_secs_f64()));
            self.input(Input::Tick);
        }
        self.now = end;
    }

    fn perform(&mut self, actions: Vec<Action<String>>) {
        let mut inputs = Vec::new();
        for action in actions {
            match action {
                Action::RequestPermit(incarnation) if self.is_held("permit") => {
                    self.log.push("request permit (held)");
                    self.permits_held.push_back(incarnation);
                }
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::ReturnPermit(_) => self.log.push("return permit"),
                Action::Store { incarnation, call } if self.is_held(kind(&call)) => {
                    self.log.push(format!("{} (held)", show(&call)));
                    self.held.push_back((incarnation, call));
                }
                Action::Store { incarnation, call } => {
                    self.log.push(show(&call));
                    inputs.push(Input::Answer { incarnation, answer: now(call.perform(&self.stores)) });
                }
                Action::DeadLetter(dropped) => {
                    self.log.push(format!("dead letter {:?}: {}", dropped.command, dropped.reason));
                    dropped.discard();
                }
                Action::Restarting(failure) => self.log.push(format!("restarting: {failure}")),
                Action::Failed(failure) => self.log.push(format!("failed: {failure}")),
                Action::Fenced(by) => self.log.push(format!("fenced by {}", by_whom(&format!("{by:?}")))),
                Action::Recovered { .. } => self.log.push("recovered"),
                Action::Work { work, .. } => self.log.push(format!("begin {work:?}")),
                Action::ToSelf { incarnation, work } => {
                    inputs.push(Input::Worked { incarnation, work, command: None });
                }
                Action::Passivate => self.log.push("passivate"),
                Action::HostRequests(requests) => unreachable!("no handler asks its host for {requests:?}"),
                Action::Unhandled => self.log.push("unhandled"),
                Action::Withheld(what) => self.log.push(format!("withheld {what:?}").to_lowercase()),
                Action::Stopped => self.log.push("stopped"),
            }
        }
        inputs.into_iter().for_each(|input| self.input(input));
    }

    fn is_held(&self, kind: &str) -> bool {
        self.holding.iter().any(|held| held == kind)
    }

    fn release(&mut self) {
        self.holding.clear();
        for (incarnation, call) in std::mem::take(&mut self.held) {
            let answer = now(call.perform(&self.stores));
            self.input(Input::Answer { incarnation, answer });
        }
    }

    fn answer(&mut self, what: &str) {
        let Some((incarnation, call)) = self.held.pop_front() else { return self.log.push("nothing is held") };
        let kind = kind(&call);
        let unavailable = || StoreAnswer::Appended(Err(AppendError::NotStored(failure())));
        let own = match &call {
            StoreCall::Append(append) => {
                Head { epoch: append.epoch, writer_uuid: append.writer_uuid, ..Head::default() }
            }
            _ => Head::default(),
        };
        let answer = match (what, kind) {
            ("ok", _) => now(call.perform(&self.stores)),
            ("lost", _) => {
                now(call.perform(&self.stores));
                StoreAnswer::Appended(Err(AppendError::Unknown(failure())))
            }
            ("unknown", _) => StoreAnswer::Appended(Err(AppendError::Unknown(failure()))),
            ("notstored", _) => unavailable(),
            ("rejected", _) => {
                let reason = RejectReason::StorageLow("0 bytes are free".into());
                StoreAnswer::Appended(Err(AppendError::Rejected(reason)))
            }
            ("fenced_by_own", _) => StoreAnswer::Appended(Err(AppendError::Fenced { current: own })),
            ("away", "claim") => StoreAnswer::Claimed(Err(ClaimError::Unavailable(failure()))),
            ("away", "head") => StoreAnswer::Head(Err(ReadError::Unavailable(failure()))),
            ("away", "page") => StoreAnswer::Page(Err(ReadError::Unavailable(failure()))),
            ("away", "snapshot") => StoreAnswer::Snapshot(Err(SnapshotError::Unavailable(failure()))),
            ("away", "delete") => {
                let StoreCall::DeleteEvents { to, by, .. } = call else { unreachable!() };
                StoreAnswer::EventsDeleted(to, by, Err(DeleteError::Unavailable(failure())))
            }
            ("away", "save") => {
                let StoreCall::SaveSnapshot(snapshot) = call else { unreachable!() };
                StoreAnswer::SnapshotSaved(snapshot.seq_nr, Err(SnapshotError::Unavailable(failure())))
            }
            other => panic!("no answer {other:?}"),
        };
        self.input(Input::Answer { incarnation, answer });
    }

    /// Claims as another writer (and appends).
    fn other(&mut self, case: &Case<'_>) {
        self.others += 1;
        let (id, uuid) = (self.id(), WriterUuid::from_u128(self.others));
        let head = now(self.journal.head(&id)).unwrap();
        let generation = case.parse("generation").map(|seq| Under::Generation(Generation::new(1, seq).unwrap()));
        let claim = now(self.journal.claim(&id, uuid, generation.unwrap_or(Under::Seen(head.epoch)))).unwrap();
        let events: Vec<NewEvent> = case.input.lines().map(stored_event).collect();
        if !events.is_empty() {
            let first = claim.highest.next().unwrap();
            now(self.journal.append(Append { id, epoch: claim.epoch, writer_uuid: uuid, first, events })).unwrap();
        }
    }

    /// Appends records as an earlier writer left them.
    fn put(&mut self, case: &Case<'_>) {
        self.other(case);
    }

    fn put_snapshot(&mut self, case: &Case<'_>) {
        let state = Count { sum: case.parse("sum").unwrap(), active: false };
        let value = StoredCodec::new(json::<Count>("counter.state")).encode(&state).unwrap();
        let snapshot = NewSnapshot {
            id: self.id(),
            seq_nr: SeqNr::new(case.parse("seq").unwrap()).expect("no larger than the largest"),
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            payload: value.payload,
            metadata: case.arg("marks").map(marks_of).unwrap_or_default(),
        };
        now(self.snapshots.save(snapshot)).unwrap();
    }

    fn show_state(&self) {
        let core = self.core.as_ref().unwrap();
        let sum = core.state().map_or("-".to_owned(), |state| state.sum.to_string());
        let marks: Vec<String> = core
            .marks()
            .iter()
            .map(|(stream, applied)| format!("{}/{}", stream.as_u128(), applied.total_seq_nr))
            .collect();
        self.log.push(format!(
            "{:?} sum {sum} seq {} waiting {}{}{}",
            core.phase(),
            core.seq_nr(),
            core.waiting_count(),
            if marks.is_empty() { "" } else { " marks " },
            marks.join(" ")
        ));
    }

    fn show_journal(&self) {
        let id = self.id();
        let head = now(self.journal.head(&id)).unwrap();
        self.log.push(format!("epoch {} highest {} deleted to {}", head.epoch, head.highest, head.deleted_to));
        for event in self.journal.events(&id) {
            let tags: Vec<_> = event.tags.iter().map(|tag| format!(" #{tag}")).collect();
            let payload = String::from_utf8_lossy(&event.payload);
            self.log.push(format!("event {} = {payload}{}", event.seq_nr, tags.concat()));
        }
        for snapshot in self.snapshots.snapshots(&id) {
            let marks = if snapshot.metadata.contains_key(MARK_NAME) { " with marks" } else { "" };
            self.log.push(format!("snapshot {}{marks}", snapshot.seq_nr));
        }
    }
}

/// A record from a line: `5`, `filtered`, `unknown`, `newer`, `malformed`, each with an optional `mark S/N` behind it.
fn stored_event(line: &str) -> NewEvent {
    let mut words = line.split_whitespace();
    let what = words.next().unwrap();
    let (kind, manifest, payload) = match what {
        "filtered" => (EventKind::Filtered, "counter.event", String::new()),
        "unknown" => (EventKind::Event, "counter.future", "\"1\"".to_owned()),
        "newer" => (EventKind::Event, "counter.event", "\"1\"".to_owned()),
        "malformed" => (EventKind::Event, "counter.event", "{".to_owned()),
        number => (EventKind::Event, "counter.event", format!("{number:?}")),
    };
    let mut metadata = Metadata::new();
    if words.next() == Some("mark") {
        let (stream, total) = words.next().unwrap().split_once('/').unwrap();
        let mark = Mark {
            producer_id: "producer".into(),
            stream_id: StreamId::from_u128(stream.parse().unwrap()),
            total_seq_nr: total.parse().unwrap(),
        };
        metadata.insert(MARK_NAME.to_owned(), mark.encode());
    }
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: manifest.to_owned(),
        schema_version: if what == "newer" { 2 } else { 1 },
        kind,
        payload: Bytes::from(payload),
        metadata,
        tags: Default::default(),
    }
}

/// The metadata of a snapshot with the marks `S/N,S/N`.
fn marks_of(text: &str) -> Metadata {
    let mut marks = Marks::default();
    for mark in text.split(',') {
        let (stream, total) = mark.split_once('/').unwrap();
        let stream_id = StreamId::from_u128(stream.parse().unwrap());
        marks.advance(stream_id, total.parse().unwrap(), Timestamp::from_micros(0));
    }
    [(MARK_NAME.to_owned(), marks.encode())].into()
}

fn kind(call: &StoreCall) -> &'static str {
    match call {
        StoreCall::ReadHead { .. } => "head",
        StoreCall::Claim { .. } => "claim",
        StoreCall::Advance { .. } => "advance",
        StoreCall::LoadSnapshot { .. } => "snapshot",
        StoreCall::ReadPage { .. } => "page",
        StoreCall::Append(_) => "append",
        StoreCall::DeleteEvents { .. } => "delete",
        StoreCall::SaveSnapshot(_) => "save",
        StoreCall::DeleteSnapshots { .. } => "delete_snapshots",
    }
}

fn show(call: &StoreCall) -> String {
    match call {
        StoreCall::ReadHead { .. } => "head".into(),
        StoreCall::Claim { under: Under::Seen(epoch), .. } => format!("claim, seen epoch {epoch}"),
        StoreCall::Claim { under: Under::Generation(generation), .. } => format!("claim, generation {generation}"),
        StoreCall::Advance { to, .. } => format!("advance to {to}"),
        StoreCall::LoadSnapshot { criteria, .. } if *criteria == SnapshotCriteria::LATEST => "load snapshot".into(),
        StoreCall::LoadSnapshot { criteria, .. } => format!("load snapshot up to {}", criteria.max_seq_nr),
        StoreCall::ReadPage { range, .. } => format!("read {}..={}", range.from, range.to),
        StoreCall::Append(append) => {
            format!("append {}..={} epoch {}", append.first, append.last().unwrap(), append.epoch)
        }
        StoreCall::DeleteEvents { to, .. } if *to == SeqNr::MAX => "delete all events".into(),
        StoreCall::DeleteEvents { to, .. } => format!("delete events to {to}"),
        StoreCall::SaveSnapshot(snapshot) => format!("save snapshot {}", snapshot.seq_nr),
        StoreCall::DeleteSnapshots { criteria, .. } => format!("delete snapshots up to {}", criteria.max_seq_nr),
    }
}

/// Removes the random uuid.
fn by_whom(text: &str) -> String {
    let Some(at) = text.find("writer_uuid: ") else { return text.to_owned() };
    let rest = &text[at + "writer_uuid: ".len()..];
    format!("{}writer_uuid: …{}", &text[..at], &rest[rest.find(',').unwrap()..])
}
