//! The crash cases of the kit find planted crash bugs; the stores in memory pass them, with
//! a crash that loses only the handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::CodecId;
use greylag_persistence::tck::{self, CrashFactory, CrashStores, Flags, Report};
use greylag_persistence::{
    Append, EncodedValue, InMemoryJournal, InMemoryOffsets, InMemorySnapshots, InMemoryStates, Journal, NewEvent,
    NewSnapshot, OffsetKind, OffsetStore, PersistenceId, Revision, Scope, SeqNr, SnapshotCaps, SnapshotStore,
    StateStore, StateWrite, StoredEvent, Timestamp, Under, WriterUuid,
};
use tokio::sync::Mutex;

/// The damage of a crash, besides ending the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    LosesTheLastEvent,
    TearsTheLastAppend,
    ChangesAnEvent,
    ForgetsDeletions,
    ForgetsAnEpoch,
    LosesSnapshots,
    BringsBackSnapshots,
    LosesAState,
    LosesOffsets,
    ForgetsOwners,
}

#[derive(Clone)]
struct Life {
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    states: InMemoryStates,
    offsets: InMemoryOffsets,
}

struct CrashableStore {
    bug: Bug,
    clock: Arc<AtomicU64>,
    life: Mutex<Life>,
}

impl CrashableStore {
    fn new(bug: Bug) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let life = life(&clock);
        Self { bug, clock, life: Mutex::new(life) }
    }

    /// The data of the last life, as the crash left it.
    async fn next_life(&self, old: &Life) -> Life {
        let new = life(&self.clock);
        for number in 0..12 {
            let id = PersistenceId::of("tck-crash", &number.to_string()).unwrap();
            self.keep_events(&id, old, &new).await;
            self.keep_snapshots(&id, old, &new).await;
            self.keep_state(&id, old, &new).await;
        }
        let offsets = if self.bug == Bug::ForgetsOwners { new.offsets } else { old.offsets.clone() };
        Life { offsets, ..new }
    }

    async fn keep_events(&self, id: &PersistenceId, old: &Life, new: &Life) {
        let head = old.journal.head(id).await.unwrap();
        let lost = u64::from(self.bug == Bug::ForgetsAnEpoch);
        for epoch in 0..head.epoch.as_u64().saturating_sub(lost) {
            let uuid = WriterUuid::from_u128(u128::from(epoch) + (1 << 100));
            let seen = new.journal.head(id).await.unwrap().epoch;
            new.journal.claim(id, uuid, Under::Seen(seen)).await.unwrap();
        }
        let mut events = old.journal.events(id);
        match self.bug {
            Bug::LosesTheLastEvent | Bug::TearsTheLastAppend => {
                let last = events.last().map(|event| event.payload.clone()).unwrap_or_default();
                // `worker:try:place:count`; a lost append is lost whole, a torn append only in part.
                let text = String::from_utf8(last.to_vec()).unwrap();
                let attempt = text.split(':').nth(1).unwrap_or_default().to_owned();
                let of_last = |event: &StoredEvent| {
                    let text = String::from_utf8(event.payload.to_vec()).unwrap();
                    text.split(':').nth(1) == Some(attempt.as_str())
                };
                if self.bug == Bug::LosesTheLastEvent {
                    events.retain(|event| !of_last(event));
                } else if events.iter().filter(|event| of_last(event)).count() > 1 {
                    events.pop();
                }
            }
            Bug::ChangesAnEvent => {
                if let Some(event) = events.first_mut() {
                    event.payload = "0:0:0:1".into();
                }
            }
            _ => {}
        }
        let Some(first) = events.first().map(|event| event.seq_nr) else { return };
        let claimed = new.journal.head(id).await.unwrap();
        let mut number = SeqNr::FIRST;
        if first > number && self.bug != Bug::ForgetsDeletions {
            new.journal.advance(id, claimed.epoch, first.previous()).await.unwrap();
            number = first;
        }
        let deleted = (number.as_u64()..first.as_u64()).map(|_| new_event(&events[0]));
        for event in deleted.chain(events.iter().map(new_event)).collect::<Vec<_>>() {
            let (epoch, writer_uuid) = (claimed.epoch, claimed.writer_uuid);
            let append = Append { id: id.clone(), epoch, writer_uuid, first: number, events: vec![event] };
            new.journal.append(append).await.unwrap();
            number = number.next().unwrap();
        }
    }

    async fn keep_snapshots(&self, id: &PersistenceId, old: &Life, new: &Life) {
        let snapshots = old.snapshots.snapshots(id);
        for snapshot in snapshots.iter().filter(|_| self.bug != Bug::LosesSnapshots) {
            let (payload, metadata) = (snapshot.payload.clone(), snapshot.metadata.clone());
            let copy = NewSnapshot {
                id: id.clone(),
                seq_nr: snapshot.seq_nr,
                codec_id: snapshot.codec_id,
                manifest: snapshot.manifest.clone(),
                schema_version: snapshot.schema_version,
                payload,
                metadata,
            };
            if self.bug == Bug::BringsBackSnapshots {
                let seq_nr = SeqNr::FIRST;
                new.snapshots.save(NewSnapshot { seq_nr, ..copy.clone() }).await.unwrap();
            }
            new.snapshots.save(copy).await.unwrap();
        }
    }

    async fn keep_state(&self, id: &PersistenceId, old: &Life, new: &Life) {
        let Some(row) = old.states.row(id) else { return };
        let last = row.revision.as_u64() - u64::from(self.bug == Bug::LosesAState);
        for number in 1..=last {
            let revision = Revision::new(number).unwrap();
            let write = StateWrite { id: id.clone(), revision, generation: None, writer_uuid: row.writer_uuid };
            // A tombstone keeps the tag of the deleted value.
            let (manifest, payload) = ("old".to_owned(), "old".into());
            let old = EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload };
            match (number == row.revision.as_u64(), row.value.clone()) {
                (false, _) => new.states.upsert(write, old, row.tag.clone()).await.unwrap(),
                (true, Some(value)) => new.states.upsert(write, value, row.tag.clone()).await.unwrap(),
                (true, None) => new.states.delete(write).await.unwrap(),
            }
        }
    }
}

fn new_event(event: &StoredEvent) -> NewEvent {
    NewEvent {
        codec_id: event.codec_id,
        manifest: event.manifest.clone(),
        schema_version: event.schema_version,
        kind: event.kind,
        payload: event.payload.clone(),
        metadata: event.metadata.clone(),
        tags: event.tags.clone(),
    }
}

fn life(clock: &Arc<AtomicU64>) -> Life {
    let ticking = || {
        let clock = clock.clone();
        move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed))
    };
    Life {
        journal: InMemoryJournal::new(Scope::Process, ticking()),
        snapshots: InMemorySnapshots::new(SnapshotCaps::full(Scope::Process), ticking()),
        states: InMemoryStates::new(Scope::Process, ticking()),
        offsets: InMemoryOffsets::new(Scope::Process, OffsetKind::Ordinal),
    }
}

#[async_trait]
impl CrashFactory for CrashableStore {
    async fn start(&self) -> Vec<CrashStores> {
        let life = self.life.lock().await.clone();
        let handles = CrashStores {
            journal: Arc::new(life.journal.clone()),
            snapshots: Arc::new(life.snapshots.clone()),
            states: Some(Arc::new(life.states.clone())),
            offsets: Some(Arc::new(life.offsets.clone())),
        };
        vec![handles; 2]
    }

    async fn kill(&self, _: Duration) {
        let mut life = self.life.lock().await;
        let next = self.next_life(&life).await;
        life.journal.close().await.unwrap();
        life.snapshots.close().await.unwrap();
        life.states.close().await.unwrap();
        if self.bug == Bug::LosesOffsets {
            for number in 0..12 {
                let projection = format!("tck-crash-{number}");
                let owned = next.offsets.claim(&projection, 0..=1023).await.unwrap();
                next.offsets.reset(&owned).await.unwrap();
            }
        }
        *life = next;
    }

    async fn kill_while_starting(&self, after: Duration) -> bool {
        self.start().await;
        self.kill(after).await;
        true
    }
}

async fn run(bug: Bug) -> Report {
    tck::crash(&CrashableStore::new(bug), Flags { kills: 20, ..Flags::default() }).await
}

/// Kit cases `crash` 1 to 3, over a store that loses nothing.
#[tokio::test]
async fn a_crash_that_takes_nothing_is_survived() {
    let report = run(Bug::None).await;
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (3, 0), "{report}");
}

#[tokio::test]
async fn planted_losses_are_found() {
    for (bug, words) in [
        (Bug::LosesTheLastEvent, "lost"),
        (Bug::TearsTheLastAppend, "lost"),
        (Bug::ChangesAnEvent, "event "),
        (Bug::ForgetsDeletions, "to be deleted"),
        (Bug::ForgetsAnEpoch, "lost epoch"),
        (Bug::LosesSnapshots, "lost its snapshot"),
        (Bug::BringsBackSnapshots, "a deleted snapshot is back"),
        (Bug::LosesAState, "state "),
        (Bug::LosesOffsets, "was saved"),
        (Bug::ForgetsOwners, "was saved"),
    ] {
        let report = run(bug).await;
        let failed = report.to_string();
        assert!(report.failed().next().is_some() && failed.contains(words), "{bug:?} must be found:\n{failed}");
    }
}
