//! The state cases, by their numbers in persistence §4.5; those past 14 are Greylag's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use greylag_core::{CodecId, Generation};

use super::factories::StateFactory;
use super::harness::{Checked, Flags, Report, Stop, cases, ensure, equal, must, skip};
use crate::contract::driver::state_store::StateStore;
use crate::contract::error::{QueryError, ReadError, StateRejectReason, StateWriteError};
use crate::contract::offset::{Offset, OffsetKind};
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{Timestamp, WriterUuid};
use crate::contract::records::persistence_id::{PersistenceId, SLICES};
use crate::contract::records::revision::{Revision, StateHead};
use crate::contract::records::state::{ChangesOf, StateChange, StateWrite, StoredState};

pub(crate) type S<'a> = &'a Arc<dyn StateStore>;

/// Runs every state case against a fresh store of `factory`, in the order of their numbers.
pub async fn states(factory: &impl StateFactory, flags: Flags) -> Report {
    let store = &factory.open().await;
    let mut report = Report::default();
    cases! {report, &flags;
        "01 unknown id" => unknown_id(store);
        "02 upsert and get" => upsert_and_get(store);
        "03 update" => update(store);
        "04 delete leaves its revision" => delete_leaves_revision(store);
        "05 ids are independent" => independent(store);
        "06 upsert after delete continues" => upsert_after_delete(store);
        "07 stale upsert" => stale_upsert(store);
        "08 delete with a wrong revision" => wrong_delete(store);
        "09 the first revision is 1" => first_revision(store);
        "10 change feed" => change_feed(factory, store);
        "11 undecodable row" => undecodable(factory, store);
        "12 paged ids" => paged_ids(store);
        "13 smaller generation" => smaller_generation(store);
        "14 repeat of a write" => repeat(factory, store);
        "15 fields and limits" => fields_and_limits(store, &flags);
        "16 concurrent writers" => concurrent_writers(store);
        "17 ids that are prefixes, non-ASCII, 255 bytes" => odd_ids(store);
        "18 health and close" => close(factory);
    }
    report
}

fn id(name: &str) -> PersistenceId {
    PersistenceId::of("tck-state", name).expect("names of cases are valid ids")
}

fn value(payload: impl Into<Bytes>) -> EncodedValue {
    let payload = payload.into();
    EncodedValue { codec_id: CodecId::JSON, manifest: "tck.state".to_owned(), schema_version: 1, payload }
}

/// One writer of one id; all its writes are by the same incarnation.
pub(crate) struct Writer<'a> {
    store: S<'a>,
    pub(crate) id: PersistenceId,
    uuid: u128,
    generation: Option<Generation>,
}

impl<'a> Writer<'a> {
    fn new(store: S<'a>, name: &str) -> Self {
        Self::of(store, id(name))
    }

    pub(crate) fn of(store: S<'a>, id: PersistenceId) -> Self {
        Self { store, id, uuid: 1, generation: None }
    }

    fn other(&self) -> Self {
        Self { store: self.store, id: self.id.clone(), uuid: self.uuid + 1, generation: self.generation }
    }

    fn under(&self, seq: u64) -> Self {
        let generation = Some(Generation::new(1, seq).expect("small numbers are generations"));
        Self { generation, ..self.other() }
    }

    fn write(&self, revision: u32) -> StateWrite {
        let (id, generation) = (self.id.clone(), self.generation);
        StateWrite { id, revision: Revision::from(revision), generation, writer_uuid: WriterUuid::from_u128(self.uuid) }
    }

    async fn upsert(&self, revision: u32, payload: &str) -> Result<(), StateWriteError> {
        self.store.upsert(self.write(revision), value(payload.to_owned()), None).await
    }

    /// Writes the revision as the content.
    pub(crate) async fn upsert_tagged(&self, revision: u32, tag: &str) -> Result<(), StateWriteError> {
        self.store.upsert(self.write(revision), value(revision.to_string()), Some(tag.to_owned())).await
    }

    pub(crate) async fn delete(&self, revision: u32) -> Result<(), StateWriteError> {
        self.store.delete(self.write(revision)).await
    }

    async fn get(&self) -> Checked<StoredState> {
        let row = must("get", self.store.get(&self.id).await)?;
        ensure(row.id == self.id && row.is_intact(), || format!("get gives a damaged or foreign row {row:?}"))?;
        Ok(row)
    }

    /// Compares revision and payload of the stored row.
    async fn expect(&self, what: &str, revision: u32, payload: Option<&str>) -> Checked {
        let row = self.get().await?;
        let found = row.value.map(|value| value.payload);
        let expected = payload.map(|payload| Bytes::from(payload.to_owned()));
        equal(what, (row.revision, found), (Revision::from(revision), expected))
    }
}

/// Checks that a write was refused for its revision or generation, and that the refusal shows the stored head.
fn mismatch(what: &str, answer: Result<(), StateWriteError>, stored: &StoredState) -> Checked {
    equal(what, answer, Err(StateWriteError::RevisionMismatch { current: stored.head() }))
}

async fn unknown_id(store: S<'_>) -> Checked {
    let unknown = Writer::new(store, "unknown");
    equal("row of an unknown id", unknown.get().await?, StoredState::absent(unknown.id.clone()))
}

async fn upsert_and_get(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "upsert");
    must("first upsert", writer.upsert(1, "one").await)?;
    writer.expect("row", 1, Some("one")).await?;
    let row = writer.get().await?;
    equal("writer", row.writer_uuid, WriterUuid::from_u128(1))?;
    ensure(row.timestamp > Timestamp::default(), || "the store gives a time".to_owned())
}

async fn update(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "update");
    must("upsert", writer.upsert(1, "one").await)?;
    must("upsert", writer.upsert(2, "two").await)?;
    // Another writer that read revision 2 continues from there.
    must("upsert by another", writer.other().upsert(3, "three").await)?;
    writer.expect("row", 3, Some("three")).await?;
    equal("writer", writer.get().await?.writer_uuid, WriterUuid::from_u128(2))
}

async fn delete_leaves_revision(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "delete");
    must("upsert", writer.upsert(1, "one").await)?;
    must("delete", writer.delete(2).await)?;
    writer.expect("tombstone", 2, None).await?;
    equal("checksum of a tombstone", writer.get().await?.crc32c, None)
}

async fn independent(store: S<'_>) -> Checked {
    let (one, two) = (Writer::new(store, "one"), Writer::new(store, "two"));
    must("upsert", one.upsert(1, "1").await)?;
    must("upsert", two.upsert(1, "2").await)?;
    must("upsert", two.upsert(2, "22").await)?;
    must("delete", one.delete(2).await)?;
    one.expect("deleted", 2, None).await?;
    two.expect("the other", 2, Some("22")).await
}

async fn upsert_after_delete(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "again");
    must("upsert", writer.upsert(1, "one").await)?;
    must("delete", writer.delete(2).await)?;
    let tombstone = writer.get().await?;
    // A writer that read the state before its deletion cannot restore it, nor start it anew.
    mismatch("upsert at revision 1", writer.other().upsert(1, "risen").await, &tombstone)?;
    mismatch("upsert at revision 2", writer.other().upsert(2, "risen").await, &tombstone)?;
    must("upsert after delete", writer.upsert(3, "three").await)?;
    writer.expect("row", 3, Some("three")).await
}

async fn stale_upsert(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "stale");
    for (revision, payload) in [(1, "one"), (2, "two"), (3, "three")] {
        must("upsert", writer.upsert(revision, payload).await)?;
    }
    let before = writer.get().await?;
    for revision in [1, 2, 3, 5, 6] {
        mismatch(&format!("upsert at {revision}"), writer.other().upsert(revision, "stale").await, &before)?;
    }
    equal("the value is intact", writer.get().await?, before)
}

async fn wrong_delete(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "wrong-delete");
    must("upsert", writer.upsert(1, "one").await)?;
    must("upsert", writer.upsert(2, "two").await)?;
    let before = writer.get().await?;
    for revision in [1, 2, 4] {
        mismatch(&format!("delete at {revision}"), writer.delete(revision).await, &before)?;
    }
    equal("the value is intact", writer.get().await?, before)
}

async fn first_revision(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "first");
    let current = StateHead::default();
    for revision in [2, 3] {
        let refused = writer.upsert(revision, "early").await;
        equal("upsert past revision 1", refused, Err(StateWriteError::RevisionMismatch { current }))?;
    }
    let refused = writer.upsert(0, "zero").await;
    equal("upsert at revision 0", refused, Err(StateWriteError::Rejected(StateRejectReason::RevisionZero)))?;
    equal("nothing is stored", writer.get().await?, StoredState::absent(writer.id.clone()))?;
    must("delete of what never was", writer.delete(1).await)?;
    writer.expect("tombstone", 1, None).await
}

// ---- Change queries ---------------------------------------------------------------------------

/// All changes after `offset`, read `limit` at a time.
async fn changes(store: S<'_>, of: &ChangesOf, offset: &Offset, limit: usize) -> Checked<Vec<StateChange>> {
    let mut all: Vec<StateChange> = Vec::new();
    let mut offset = offset.clone();
    loop {
        let page = must("changes", store.changes(of, &offset, limit).await)?;
        ensure(page.len() <= limit, || format!("{} changes where at most {limit} were asked for", page.len()))?;
        let Some(last) = page.last() else { return Ok(all) };
        offset = last.offset.clone();
        all.extend(page);
        ensure(all.len() < 10_000, || "the changes do not end".to_owned())?;
    }
}

/// The latest change of each id, in the order of these changes.
fn latest(changes: &[StateChange]) -> Checked<Vec<(PersistenceId, u64, bool)>> {
    let mut latest: BTreeMap<&PersistenceId, (usize, Revision)> = BTreeMap::new();
    for (at, StateChange { state, .. }) in changes.iter().enumerate() {
        let earlier = latest.insert(&state.id, (at, state.revision));
        ensure(earlier.is_none_or(|(_, earlier)| earlier < state.revision), || {
            format!("changes of {} must come in the order of their revisions, each once", state.id)
        })?;
    }
    let mut latest: Vec<usize> = latest.into_values().map(|(at, _)| at).collect();
    latest.sort_unstable();
    let show = |at: usize| {
        let change = &changes[at];
        (change.state.id.clone(), change.state.revision.as_u64(), change.is_deletion())
    };
    Ok(latest.into_iter().map(show).collect())
}

async fn change_feed(factory: &impl StateFactory, store: S<'_>) -> Checked {
    let Some(kind) = store.caps().changes else { return skip("the store has no change queries") };
    let of = |name: &str| PersistenceId::of("tck-feed", name).expect("names of cases are valid ids");
    let [a, b, c] = ["a", "b", "c"].map(of);
    let [a, b, c] = &[a, b, c].map(|id| Writer::of(store, id));
    must("upsert", a.upsert_tagged(1, "tck-red").await)?;
    must("upsert", b.upsert_tagged(1, "tck-red").await)?;
    must("upsert", c.upsert_tagged(1, "tck-blue").await)?;
    must("upsert", a.upsert_tagged(2, "tck-red").await)?;
    must("delete", b.delete(2).await)?;
    factory.settle(store).await;

    let (red, blue) = (ChangesOf::Tag("tck-red".to_owned()), ChangesOf::Tag("tck-blue".to_owned()));
    let all = ChangesOf::Slices { entity_type: "tck-feed".to_owned(), slices: 0..=SLICES - 1 };
    let by_red = changes(store, &red, &Offset::None, 100).await?;
    equal("by tag", latest(&by_red)?, vec![(a.id.clone(), 2, false), (b.id.clone(), 2, true)])?;
    let by_blue = changes(store, &blue, &Offset::None, 100).await?;
    equal("by another tag", latest(&by_blue)?, vec![(c.id.clone(), 1, false)])?;
    let by_slices = changes(store, &all, &Offset::None, 100).await?;
    equal(
        "by slices",
        latest(&by_slices)?,
        vec![(c.id.clone(), 1, false), (a.id.clone(), 2, false), (b.id.clone(), 2, true)],
    )?;
    equal("one at a time", latest(&changes(store, &all, &Offset::None, 1).await?)?, latest(&by_slices)?)?;
    for (at, change) in by_slices.iter().enumerate() {
        let rest = changes(store, &all, &change.offset, 100).await?;
        equal("what follows an offset", latest(&rest)?, latest(&by_slices[at + 1..])?)?;
    }
    let low = ChangesOf::Slices { entity_type: "tck-feed".to_owned(), slices: 0..=511 };
    let expected = latest(&by_slices)?.into_iter().filter(|(id, ..)| id.slice() < 512).collect();
    equal("by half of the slices", latest(&changes(store, &low, &Offset::None, 100).await?)?, expected)?;
    let stranger = ChangesOf::Slices { entity_type: "tck-fee".to_owned(), slices: 0..=SLICES - 1 };
    equal("by another type", changes(store, &stranger, &Offset::None, 100).await?, vec![])?;

    let end = by_slices.last().map(|change| change.offset.clone()).unwrap_or_default();
    must("upsert after delete", b.upsert_tagged(3, "tck-blue").await)?;
    factory.settle(store).await;
    equal("what came later", latest(&changes(store, &all, &end, 100).await?)?, vec![(b.id.clone(), 3, false)])?;
    let foreign = match kind {
        OffsetKind::Ordinal => Offset::Timestamp { timestamp: Timestamp::from_micros(1), seen: Vec::new() },
        OffsetKind::Timestamp => Offset::Ordinal(1),
    };
    let refused = store.changes(&all, &foreign, 1).await;
    ensure(matches!(refused, Err(QueryError::ForeignOffset { .. })), || {
        format!("a foreign offset must be refused, but: {refused:?}")
    })
}

async fn undecodable(factory: &impl StateFactory, store: S<'_>) -> Checked {
    let (broken, whole) = (Writer::new(store, "broken"), Writer::new(store, "whole"));
    must("upsert", broken.upsert(1, "one").await)?;
    must("upsert", whole.upsert(1, "one").await)?;
    if !factory.corrupt(store, &broken.id).await {
        return skip("no hook to break a stored byte");
    }
    let answer = store.get(&broken.id).await;
    ensure(matches!(&answer, Err(ReadError::Corrupt(corrupt)) if corrupt.id == broken.id), || {
        format!("a damaged row must be an error that names it, but: {answer:?}")
    })?;
    whole.expect("another row", 1, Some("one")).await
}

async fn paged_ids(store: S<'_>) -> Checked {
    let mut expected = Vec::new();
    for number in 0..7 {
        let writer = Writer::new(store, &format!("paged-{number}"));
        must("upsert", writer.upsert(1, "one").await)?;
        expected.push(writer.id);
    }
    let gone = Writer::new(store, "paged-3");
    must("delete", gone.delete(2).await)?;
    let mut found: Vec<PersistenceId> = Vec::new();
    loop {
        let page = must("ids", store.ids(found.last(), 3).await)?;
        ensure(page.len() <= 3, || format!("{} ids where at most 3 were asked for", page.len()))?;
        if page.is_empty() {
            break;
        }
        found.extend(page);
        ensure(found.len() < 100_000, || "the ids do not end".to_owned())?;
    }
    ensure(found.is_sorted(), || "ids must come in ascending order of their bytes".to_owned())?;
    found.retain(|id| id.entity_id().starts_with("paged-"));
    equal("ids, tombstones included", found, expected)?;
    equal("limit 0", must("ids", store.ids(None, 0).await)?, vec![])
}

async fn smaller_generation(store: S<'_>) -> Checked {
    let writer = Writer::new(store, "generation");
    must("upsert under generation 5", writer.under(5).upsert(1, "one").await)?;
    let before = writer.get().await?;
    equal("generation", before.generation, Generation::new(1, 5).ok())?;
    mismatch("upsert under generation 4", writer.under(4).upsert(2, "zombie").await, &before)?;
    mismatch("delete under generation 4", writer.under(4).delete(2).await, &before)?;
    equal("nothing changed", writer.get().await?, before)?;
    must("upsert under the same generation", writer.under(5).upsert(2, "two").await)?;
    must("upsert under a greater one", writer.under(6).upsert(3, "three").await)?;
    must("delete under the same one", writer.under(6).delete(4).await)?;
    let tombstone = writer.get().await?;
    mismatch("upsert of a zombie after the deletion", writer.under(5).upsert(5, "zombie").await, &tombstone)?;
    equal("generation", tombstone.generation, Generation::new(1, 6).ok())
}

async fn repeat(factory: &impl StateFactory, store: S<'_>) -> Checked {
    let tag = "tck-repeat".to_owned();
    let writer = Writer::new(store, "repeat");
    let upsert =
        |revision, payload: &'static str| store.upsert(writer.write(revision), value(payload), Some(tag.clone()));
    must("upsert", upsert(1, "one").await)?;
    let stored = writer.get().await?;
    must("its repeat", upsert(1, "one").await)?;
    equal("the row after the repeat", writer.get().await?, stored.clone())?;
    if store.caps().changes.is_some() {
        factory.settle(store).await;
        let feed = changes(store, &ChangesOf::Tag(tag.clone()), &Offset::None, 100).await?;
        equal("changes in the feed", feed.len(), 1)?;
    }
    mismatch("the same revision with other content", upsert(1, "other").await, &stored)?;
    let by_other = store.upsert(writer.other().write(1), value("one"), Some(tag.clone())).await;
    mismatch("the same revision by another writer", by_other, &stored)?;
    mismatch("a deletion at the same revision", writer.delete(1).await, &stored)?;
    must("delete", writer.delete(2).await)?;
    let tombstone = writer.get().await?;
    must("its repeat", writer.delete(2).await)?;
    mismatch("the deletion by another writer", writer.other().delete(2).await, &tombstone)?;
    equal("the tombstone", writer.get().await?, tombstone)
}

async fn fields_and_limits(store: S<'_>, flags: &Flags) -> Checked {
    let writer = Writer { uuid: u128::MAX, ..Writer::new(store, "fields") };
    let odd = EncodedValue {
        codec_id: CodecId::from_u32(1234),
        manifest: "m".repeat(255),
        schema_version: u32::MAX,
        payload: Bytes::from_static(b"\0\xff"),
    };
    let tag = Some("grün".to_owned());
    must("upsert", store.upsert(writer.write(1), odd.clone(), tag.clone()).await)?;
    let row = writer.get().await?;
    let absent = StoredState::absent(writer.id.clone());
    equal("row", row.clone(), writer.write(1).row(&absent, Some((odd, tag)), row.timestamp))?;
    let max = store.caps().max_state_bytes;
    let mut sizes = vec![0, 1, (64 << 10) - 1, 64 << 10, (64 << 10) + 1];
    sizes.extend(flags.largest.then_some(max));
    for (revision, size) in (2..).zip(sizes) {
        let payload: Vec<u8> = (0..size).map(|at: usize| (at.wrapping_mul(29) >> 3) as u8).collect();
        must(
            &format!("upsert of {size} bytes"),
            store.upsert(writer.write(revision), value(payload.clone()), None).await,
        )?;
        let found = writer.get().await?.value.map(|value| value.payload);
        ensure(found.is_some_and(|found| found == payload), || format!("{size} bytes do not come back"))?;
    }
    let before = writer.get().await?;
    let next =
        u32::try_from(before.revision.as_u64() + 1).map_err(|_| Stop::Failed("too many revisions".to_owned()))?;
    for (what, refused, tag) in [
        ("max_state_bytes + 1", value(vec![7; max + 1]), None),
        ("an empty manifest", EncodedValue { manifest: String::new(), ..value("") }, None),
        ("a manifest of 256 bytes", EncodedValue { manifest: "m".repeat(256), ..value("") }, None),
        ("an empty tag", value(""), Some(String::new())),
        ("a tag of 129 bytes", value(""), Some("t".repeat(129))),
        ("a tag with a separator", value(""), Some("a\u{1f}b".to_owned())),
    ] {
        let answer = store.upsert(writer.write(next), refused, tag).await;
        ensure(matches!(answer, Err(StateWriteError::Rejected(_))), || {
            format!("{what} must be rejected, but: {answer:?}")
        })?;
    }
    equal("the row after all refusals", writer.get().await?, before)
}

async fn concurrent_writers(store: S<'_>) -> Checked {
    for revision in 1..=10 {
        let writers: Vec<_> = (1..=8).map(|uuid| Writer { uuid, ..Writer::new(store, "concurrent") }).collect();
        let payloads: Vec<_> = writers.iter().map(|writer| format!("{revision} by {}", writer.uuid)).collect();
        let writes = writers.iter().zip(&payloads).map(|(writer, payload)| writer.upsert(revision, payload));
        let answers = join_all(writes).await;
        let row = writers[0].get().await?;
        equal("revision", row.revision, Revision::from(revision))?;
        for (writer, answer) in writers.iter().zip(answers) {
            if row.writer_uuid == WriterUuid::from_u128(writer.uuid) {
                must("the write that is stored", answer)?;
                let payload = format!("{revision} by {}", writer.uuid);
                writer.expect("the value of the winner", revision, Some(&payload)).await?;
            } else {
                ensure(matches!(answer, Err(StateWriteError::RevisionMismatch { .. })), || {
                    format!("a write that is not stored must be a mismatch, but: {answer:?}")
                })?;
            }
        }
    }
    Ok(())
}

async fn odd_ids(store: S<'_>) -> Checked {
    let long = "x".repeat(255);
    let texts = ["sp", "sp|", "sp|1", "sp|1|", "sp|10", "sp\u{7fff}", "日本|状態", "日本|状", " sp", &long, &long[1..]];
    let writer = |text: &str| {
        let id = text.parse::<PersistenceId>().map_err(|error| Stop::Failed(error.to_string()))?;
        Ok(Writer { id, ..Writer::new(store, "odd") })
    };
    for text in texts {
        must("upsert", writer(text)?.upsert(1, text).await)?;
    }
    must("delete", writer(texts[2])?.delete(2).await)?;
    for text in texts.into_iter().filter(|text| *text != texts[2]) {
        writer(text)?.expect(text, 1, Some(text)).await?;
    }
    Ok(())
}

async fn close(factory: &impl StateFactory) -> Checked {
    let store = &factory.open().await;
    let writer = Writer::new(store, "closed");
    ensure(!matches!(store.health(), crate::Health::Down(_)), || "an open store is not down".to_owned())?;
    must("close", store.close().await)?;
    ensure(matches!(store.health(), crate::Health::Down(_)), || "a closed store is down".to_owned())?;
    let (write, read) = (writer.upsert(1, "late").await, store.get(&writer.id).await);
    ensure(matches!(write, Err(StateWriteError::NotStored(_) | StateWriteError::Unknown(_))), || {
        format!("an upsert after close must fail, but: {write:?}")
    })?;
    ensure(matches!(read, Err(ReadError::Unavailable(_))), || format!("a get after close must fail, but: {read:?}"))
}
