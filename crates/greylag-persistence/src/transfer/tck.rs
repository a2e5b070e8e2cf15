//! The cases of moving a store: everything arrives unchanged, an interrupted copy continues, and differences
//! are named.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use greylag_core::{CodecId, Generation};

use super::driver::copy::{CopyError, Counts, DifferenceKind, Place, check, copy, verify};
use super::driver::memory::InMemoryArchive;
use super::driver::records::{Export, Import};
use crate::contract::driver::journal_store::Journal;
use crate::contract::error::{ReadError, StoreFailure};
use crate::contract::head::{Head, Under};
use crate::contract::history_part::{HistoryPart, ImportError};
use crate::contract::journal::ReadRange;
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{EventKind, NewEvent, SeqNr, Timestamp, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::revision::Revision;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot};
use crate::contract::records::state::{StateWrite, StoredState};
use crate::contract::tck::factories::functions_are_factories;
use crate::contract::tck::harness::{Checked, Flags, Report, cases, ensure, equal, must};
use crate::contract::tck::writer::{Writer, event, id, seq};
use crate::entities::driver::stores::Stores;

/// Opens stores that can be copied from and to, for the kit. Any `Fn() -> Future<Output = Arc<dyn Import>>` is
/// a factory.
#[async_trait]
pub trait TransferFactory: Send + Sync {
    /// An empty store, with no other users.
    async fn open(&self) -> Arc<dyn Import>;
}

functions_are_factories! {
    TransferFactory opens Arc<dyn Import>;
}

/// Runs the cases of [`copy`](crate::copy) against a backend, with stores in memory as the other store.
pub async fn transfer(factory: &dyn TransferFactory, flags: Flags) -> Report {
    let mut report = Report::default();
    cases! { report, &flags;
        "01 everything arrives as it was, both ways" => round_trip(factory);
        "02 what has moved is written on" => written_on(factory);
        "03 an interrupted copy goes on" => interrupted(factory);
        "04 a later copy brings what came since" => later(factory);
        "05 a difference is named" => named(factory);
        "06 another history is not written over" => occupied(factory);
        "07 an import neither leaves a hole nor lets a head fall" => import_rules(factory);
    }
    report
}

fn unique(text: &str) -> PersistenceId {
    PersistenceId::unique(text).expect("names of cases are valid ids")
}

fn new_snapshot(id: PersistenceId, number: u32, payload: impl Into<Bytes>) -> NewSnapshot {
    NewSnapshot {
        id,
        seq_nr: seq(number),
        codec_id: CodecId::CBOR,
        manifest: "tck.state".to_owned(),
        schema_version: 7,
        payload: payload.into(),
        metadata: [("gl.note".to_owned(), Bytes::from_static(b"\0\xff"))].into(),
    }
}

async fn write_state(archive: &InMemoryArchive, id: &PersistenceId, revision: u32, payload: Option<&str>) -> Checked {
    let states = archive.stores().states.expect("memory has states");
    let write = StateWrite {
        id: id.clone(),
        revision: Revision::from(revision),
        generation: Generation::new(1, 3).ok(),
        writer_uuid: WriterUuid::from_u128(9),
    };
    let value = |payload: &str| EncodedValue {
        codec_id: CodecId::JSON,
        manifest: "tck.state".to_owned(),
        schema_version: 2,
        payload: Bytes::from(payload.to_owned()),
    };
    must(
        "write a state",
        match payload {
            Some(payload) => states.upsert(write, value(payload), Some("red".to_owned())).await,
            None => states.delete(write).await,
        },
    )
}

/// A store in memory with records of every kind.
async fn filled() -> Checked<InMemoryArchive> {
    let archive = InMemoryArchive::default();
    let journal = archive.stores().journal;
    let counter = id("counter");
    let generation = Under::Generation(Generation::new(2, 5).expect("small numbers"));
    let claim = must("claim", journal.claim(&counter, WriterUuid::from_u128(1), generation).await)?;
    let writer = Writer { journal: journal.clone(), id: counter.clone(), uuid: WriterUuid::from_u128(1), claim };
    let tagged = NewEvent {
        metadata: [("a".to_owned(), Bytes::new()), ("gl.b".to_owned(), Bytes::from_static(b"\x01"))].into(),
        tags: ["rot".to_owned(), "grün".to_owned()].into(),
        schema_version: u32::MAX,
        ..event("tagged")
    };
    let filtered = NewEvent { kind: EventKind::Filtered, payload: Bytes::new(), ..tagged.clone() };
    must("append", writer.append(1, vec![tagged.clone(), event("2"), filtered]).await)?;
    must("append", writer.append(4, vec![event("")]).await)?;
    let large = NewEvent { payload: Bytes::from(vec![7; 300_000]), codec_id: CodecId::PROST, ..event("") };
    must("append", writer.append(5, vec![large]).await)?;
    // A second writer of the same history.
    let writer = Writer::claim(&journal, &counter, 2).await?;
    must("append", writer.append(6, vec![event("6"); 2]).await)?;
    write_state(&archive, &counter, 1, Some("beside its events")).await?;

    let gone = Writer::with_events(&journal, "gone", 3).await?;
    must("delete", gone.delete_to(SeqNr::MAX).await)?;
    let part = Writer::with_events(&journal, "part", 6).await?;
    must("delete", part.delete_to(seq(2)).await)?;
    for (number, bytes) in [(3, 10), (5, 200_000)] {
        let snapshot = new_snapshot(part.id.clone(), number, vec![number as u8; bytes]);
        must("save", archive.stores().snapshots.save(snapshot).await)?;
    }
    let long = Writer::claim(&journal, &id("long"), 3).await?;
    for first in (1..=1200).step_by(300) {
        let events = vec![NewEvent { tags: ["long".to_owned()].into(), ..event("x") }; 300];
        must("append", long.append(first, events).await)?;
    }
    for name in ["p", "p-x", "日本|東京", &"x".repeat(255)] {
        let writer = Writer::claim(&journal, &unique(name), 4).await?;
        must("append", writer.append(1, vec![event(name)]).await)?;
    }
    let claimed = Writer::claim(&journal, &id("claimed"), 5).await?;
    let advanced = Writer::claim(&journal, &id("advanced"), 6).await?;
    must("advance", journal.advance(&advanced.id, claimed.epoch(), seq(4711)).await)?;
    must("save", archive.stores().snapshots.save(new_snapshot(id("snapshot"), 0, "of nothing")).await)?;
    for (name, revisions) in [("state", 2), ("tombstone", 3)] {
        let id = id(name);
        for revision in 1..=revisions {
            let payload = revision.to_string();
            write_state(&archive, &id, revision, (revision < 3).then_some(&payload)).await?;
        }
    }
    Ok(archive)
}

const FILLED: Counts = Counts { ids: 13, events: 7 + 4 + 1200 + 4, snapshots: 3, states: 3 };

async fn ensure_equal(what: &str, first: &dyn Export, second: &dyn Export) -> Checked {
    let verified = must("verify", verify(first, second, 10).await)?;
    let words: Vec<_> = verified.differences.iter().map(ToString::to_string).collect();
    equal(what, words, Vec::new())
}

async fn round_trip(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (filled().await?, factory.open().await);
    let copied = must("copy", copy(&source, &*target).await)?;
    equal("what was written", copied.written, FILLED)?;
    ensure_equal("what arrived", &source, &*target).await?;
    let checked = must("check", check(&*target, 10).await)?;
    equal("what the store holds", (checked.counts, checked.differences), (FILLED, Vec::new()))?;
    let back = InMemoryArchive::default();
    must("copy back", copy(&*target, &back).await)?;
    ensure_equal("what came back", &source, &back).await?;
    let again = must("copy again", copy(&source, &*target).await)?;
    equal("the second run", (again.written, again.equal_ids), (Counts::default(), FILLED.ids))
}

async fn written_on(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (filled().await?, factory.open().await);
    must("copy", copy(&source, &*target).await)?;
    let journal = target.stores().journal;
    for (name, highest) in [("counter", 7), ("gone", 3), ("advanced", 4711), ("claimed", 0)] {
        let id = id(name);
        let before = must("head", source.stores().journal.head(&id).await)?;
        let last = must("last append", source.last_append(&id).await)?;
        let writer = Writer::claim(&journal, &id, 77).await?;
        equal(name, writer.claim.highest, seq(highest))?;
        equal("the epoch", writer.epoch(), before.epoch.raised())?;
        let appended = must("append", writer.append(highest + 1, vec![event("on")]).await)?;
        ensure(appended.timestamp > last, || format!("{name}: {} is not after {last}", appended.timestamp))?;
    }
    // A writer whose append was stored, but not answered, repeats it at the new store.
    let id = id("counter");
    let head = must("head", source.stores().journal.head(&id).await)?;
    let uuid = WriterUuid::from_u128(2);
    let claim = crate::Claim { epoch: head.epoch, ..head.as_claim() };
    let former = Writer { journal, id, uuid, claim };
    must("the repeat of an append that was copied", former.append(6, vec![event("6"); 2]).await).map(drop)
}

/// Breaks the connection at every import but the first of a run.
struct Interrupted {
    to: Arc<dyn Import>,
    imports: AtomicUsize,
}

impl Interrupted {
    fn step(&self) -> Result<(), ImportError> {
        let cut = || ImportError::Unavailable(StoreFailure::new("the cable", "cut"));
        if self.imports.fetch_add(1, Ordering::Relaxed) == 0 { Ok(()) } else { Err(cut()) }
    }
}

#[async_trait]
impl Export for Interrupted {
    fn stores(&self) -> Stores {
        self.to.stores()
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.to.ids(after, limit).await
    }

    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError> {
        self.to.last_append(id).await
    }

    async fn reserved(&self) -> Result<(), StoreFailure> {
        self.to.reserved().await
    }
}

#[async_trait]
impl Import for Interrupted {
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError> {
        self.step()?;
        self.to.import_events(part).await
    }

    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError> {
        self.step()?;
        self.to.import_snapshot(snapshot).await
    }

    async fn import_state(&self, state: StoredState) -> Result<(), ImportError> {
        self.step()?;
        self.to.import_state(state).await
    }
}

async fn interrupted(factory: &dyn TransferFactory) -> Checked {
    let (source, to) = (filled().await?, factory.open().await);
    for _ in 0..40 {
        let target = Interrupted { to: to.clone(), imports: AtomicUsize::new(0) };
        match copy(&source, &target).await {
            Ok(_) => return ensure_equal("after the last run", &source, &*to).await,
            Err(CopyError::NotTaken { cause: ImportError::Unavailable(_), .. }) => {}
            Err(other) => return equal("a cut cable", other.to_string(), String::new()),
        }
    }
    ensure(false, || "each run begins at the start".to_owned())
}

async fn later(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (filled().await?, factory.open().await);
    must("copy", copy(&source, &*target).await)?;
    let stores = source.stores();
    let part = Writer::claim(&stores.journal, &id("part"), 8).await?;
    must("append", part.append(7, vec![event("7")]).await)?;
    must("delete", part.delete_to(seq(5)).await)?;
    must("save", stores.snapshots.save(new_snapshot(part.id.clone(), 7, "7")).await)?;
    must("delete", stores.snapshots.delete(&part.id, seq(3)).await)?;
    let long = Writer::claim(&stores.journal, &id("long"), 8).await?;
    must("delete", long.delete_to(SeqNr::MAX).await)?;
    let state = id("tombstone");
    write_state(&source, &state, 4, Some("back")).await?;
    let copied = must("copy again", copy(&source, &*target).await)?;
    equal("what was written", copied.written, Counts { ids: 3, events: 1, snapshots: 1, states: 1 })?;
    ensure_equal("what arrived", &source, &*target).await
}

async fn named(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (filled().await?, factory.open().await);
    must("copy", copy(&source, &*target).await)?;
    // The same data, but for one byte, one time, one snapshot and one state.
    let other = InMemoryArchive::default();
    must("copy", copy(&source, &other).await)?;
    let part = id("part");
    must("delete", other.stores().snapshots.delete(&part, seq(3)).await)?;
    write_state(&other, &id("state"), 3, Some("other")).await?;
    let head = must("head", other.journal.head(&id("counter")).await)?;
    let mut events = other.journal.events(&id("counter"));
    (events[1].payload, events[5].timestamp) = (Bytes::from_static(b"3"), Timestamp::from_micros(1));
    events[1].crc32c = events[1].compute_crc32c();
    let last_append = must("last append", other.last_append(&id("counter")).await)?;
    other.journal.forget(&id("counter"));
    must("import", other.import_events(HistoryPart { id: id("counter"), head, last_append, events }).await)?;
    let verified = must("verify", verify(&*target, &other, 100).await)?;
    let places: Vec<_> = verified.differences.iter().map(|found| (found.id.clone(), found.place)).collect();
    let what = |name: &str, place| (id(name), place);
    for expected in [
        what("counter", Place::Event(seq(2))),
        what("counter", Place::Event(seq(6))),
        what("part", Place::Snapshot(seq(3))),
        what("state", Place::State),
    ] {
        ensure(places.contains(&expected), || format!("{expected:?} is missing among {places:?}"))?;
    }
    let payload = verified.differences.iter().find(|found| found.place == Place::Event(seq(2)));
    let named = payload.is_some_and(|found| matches!(found.kind, DifferenceKind::Field { name: "payload", .. }));
    ensure(named, || format!("the payload is not named by {payload:?}"))?;
    let first = must("verify", verify(&*target, &other, 1).await)?;
    equal("cut at the first", (first.differences.len(), first.is_cut), (1, true))
}

async fn occupied(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (InMemoryArchive::default(), factory.open().await);
    let stores = source.stores();
    let mut refused = Vec::new();
    for (name, own, foreign) in [("same", 3, 3), ("behind", 3, 2), ("ahead", 2, 3), ("under", 3, 2)] {
        Writer::with_events(&stores.journal, name, own).await?;
        if name == "under" {
            // Without a second claim the target's head could be an earlier head of the source.
            Writer::claim(&stores.journal, &id(name), 2).await?;
        }
        let writer = Writer::claim(&target.stores().journal, &id(name), 9).await?;
        must(
            "append",
            writer.append(1, (1..=foreign).map(|number| event(format!("foreign {number}"))).collect()).await,
        )?;
        let before = must("read", target.stores().journal.read(&id(name), ReadRange::all()).await)?;
        match copy(&source, &*target).await {
            Err(CopyError::Occupied(found)) => refused.push(found.id),
            other => return equal(name, format!("{other:?}"), "Occupied".to_owned()),
        }
        equal(name, must("read", target.stores().journal.read(&id(name), ReadRange::all()).await)?, before)?;
        source.journal.forget(&id(name));
    }
    equal("the ids named", refused, vec![id("same"), id("behind"), id("ahead"), id("under")])?;
    occupied_snapshot(factory).await?;
    // A target state of a later revision, or of a later write, is not overwritten.
    for (name, own, foreign, at) in [("revision", 1, 2, 1), ("time", 2, 1, u64::MAX >> 13)] {
        for revision in 1..=own {
            write_state(&source, &id(name), revision, Some("source")).await?;
        }
        let other = InMemoryArchive::default();
        for revision in 1..=foreign {
            write_state(&other, &id(name), revision, Some("foreign")).await?;
        }
        let states = other.stores().states.expect("memory has states");
        let state = must("get", states.get(&id(name)).await)?;
        must("import", target.import_state(StoredState { timestamp: Timestamp::from_micros(at), ..state }).await)?;
        let refused = copy(&source, &*target).await;
        let names =
            matches!(&refused, Err(CopyError::Occupied(found)) if found.place == Place::State && found.id == id(name));
        ensure(names, || format!("a later {name}: {refused:?}"))?;
        source.states.clear();
    }
    Ok(())
}

/// A target snapshot that is newer than all of the source's is not part of the source.
async fn occupied_snapshot(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (InMemoryArchive::default(), factory.open().await);
    let name = id("snapshots");
    must("save", source.stores().snapshots.save(new_snapshot(name.clone(), 3, "source")).await)?;
    must("save", target.stores().snapshots.save(new_snapshot(name, 4, "foreign")).await)?;
    let refused = copy(&source, &*target).await;
    let place = Place::Snapshot(seq(4));
    ensure(matches!(&refused, Err(CopyError::Occupied(found)) if found.place == place), || format!("{refused:?}"))
}

async fn import_rules(factory: &dyn TransferFactory) -> Checked {
    let (source, target) = (InMemoryArchive::default(), factory.open().await);
    let writer = Writer::with_events(&source.stores().journal, "a", 4).await?;
    let events = source.journal.events(&writer.id);
    let head = must("head", source.journal.head(&writer.id).await)?;
    let last_append = must("last append", source.last_append(&writer.id).await)?;
    let part = |from: usize, to: usize| HistoryPart {
        id: writer.id.clone(),
        head: Head { highest: SeqNr::saturating(to as u64), ..head },
        last_append,
        events: events[from - 1..to].to_vec(),
    };
    let mut damaged = part(1, 2);
    damaged.events[1].payload = Bytes::from_static(b"damaged");
    let mut elsewhere = part(1, 2);
    elsewhere.id = id("b");
    let mut falls = part(3, 4);
    falls.head.epoch = crate::WriterEpoch::NONE;
    let refuses = async |what: &str, part: HistoryPart| {
        let answer = target.import_events(part).await;
        let refused = matches!(answer, Err(ImportError::NotAContinuation { .. } | ImportError::Corrupt(_)));
        ensure(refused, || format!("{what}: {answer:?}"))
    };
    refuses("a hole at the start", part(2, 3)).await?;
    refuses("a damaged event", damaged).await?;
    refuses("events of another id", elsewhere).await?;
    let mut hole_within = part(1, 2);
    hole_within.events[1] = events[2].clone();
    refuses("a hole within", hole_within).await?;
    equal("nothing is stored", must("head", target.stores().journal.head(&writer.id).await)?, Head::default())?;
    must("the first part", target.import_events(part(1, 2)).await)?;
    refuses("a repeat", part(1, 2)).await?;
    refuses("a hole", part(4, 4)).await?;
    refuses("an epoch that falls", falls).await?;
    must("the rest", target.import_events(part(3, 4)).await)?;
    equal("the head", must("head", target.stores().journal.head(&writer.id).await)?, head)?;
    let read = must("read", target.stores().journal.read(&writer.id, ReadRange::all()).await)?;
    equal("the events", read.records, events)?;
    let absent = StoredState::absent(id("state"));
    let write = StateWrite {
        id: absent.id.clone(),
        revision: Revision::from(2),
        generation: None,
        writer_uuid: WriterUuid::from_u128(1),
    };
    let second = write.row(&absent, None, Timestamp::from_micros(5));
    must("a tombstone", target.import_state(second.clone()).await)?;
    must("a repeat", target.import_state(second.clone()).await)?;
    let first = StoredState { revision: Revision::FIRST, ..second };
    let answer = target.import_state(first).await;
    ensure(matches!(answer, Err(ImportError::Taken { .. })), || format!("an older state: {answer:?}"))
}
