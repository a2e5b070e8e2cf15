//! The cases of changes of durable states, read by queries: persistence §3 and §5.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};

use super::projecting::Projecting;
use super::streams::{ALL, EventKey, Streams, by_id, places, slices};
use crate::contract::driver::memory::offsets::InMemoryOffsets;
use crate::contract::driver::state_store::StateStore;
use crate::contract::error::{QueryError, ReadError};
use crate::contract::journal::ReadRange;
use crate::contract::offset::{Offset, OffsetKind};
use crate::contract::query::{Cursor, EventsOf, PageQuery, Shows, Visible};
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::scope::Scope;
use crate::contract::tck::factories::ChangeFactory;
use crate::contract::tck::harness::{Checked, Flags, Report, cases, ensure, equal, must, skip};
use crate::contract::tck::states::Writer;
use crate::reading::projection::Guarantee;
use crate::reading::query::envelope::{Envelope, EventSource};
use crate::reading::query::feed::Feed;

/// The stores and settings of the cases.
struct Kit<'a, F> {
    factory: &'a F,
    store: Arc<dyn StateStore>,
    streams: Streams,
}

/// Runs every case of changes, in the order of their numbers.
pub async fn changes(factory: &impl ChangeFactory, flags: Flags) -> Report {
    let (store, queries) = factory.open().await;
    let kit = &Kit { factory, store, streams: Streams { queries } };
    let mut report = Report::default();
    cases! {report, &flags;
        "01 ids in pages, ascending, also of one type" => ids(kit);
        "02 of each id the newest, once, in the order of storage" => newest(kit);
        "03 a deletion is a filtered event, and no end" => deletion(kit);
        "04 the slices, type and tag asked for, and no others" => selections(kit);
        "05 an offset resumes after its envelope" => offsets(kit);
        "06 foreign offsets" => foreign(kit);
        "07 a state by its id" => by_number(kit);
        "08 no id is missed while others write" => concurrent(kit);
        "09 a live stream wakes to what did not exist yet" => unborn(kit);
        "10 what is committed late is found by going back" => late(kit);
        "11 a projection handles the newest of each, also across a restart" => projection(kit);
        "12 damage is never passed over" => damage(kit);
    }
    report
}

fn id(entity_type: &str, number: u32) -> PersistenceId {
    PersistenceId::of(entity_type, &number.to_string()).expect("names of cases are valid ids")
}

impl<F: ChangeFactory> Kit<'_, F> {
    fn writer(&self, entity_type: &str, number: u32) -> Writer<'_> {
        Writer::of(&self.store, id(entity_type, number))
    }

    /// Stores these revisions of the id.
    async fn write(&self, entity_type: &str, number: u32, revisions: RangeInclusive<u32>) -> Checked<Writer<'_>> {
        let writer = self.writer(entity_type, number);
        for revision in revisions {
            must("upsert", writer.upsert_tagged(revision, entity_type).await)?;
        }
        Ok(writer)
    }

    async fn all_of(&self, entity_type: &str) -> Checked<Vec<Envelope>> {
        self.streams.current(slices(entity_type, ALL), &Offset::None, 100).await
    }
}

async fn ids<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    let mut meant = Vec::new();
    for number in 0..12 {
        meant.push(kit.write("tckc-ids", number, 1..=1).await?.id);
        kit.write("tckc-ids-more", number, 1..=1).await?;
    }
    must("delete", kit.writer("tckc-ids", 3).delete(2).await)?;
    meant.sort();
    let (mut all, queries): (Vec<PersistenceId>, _) = (Vec::new(), &kit.streams.queries);
    loop {
        let page = must("ids", queries.persistence_ids(Some("tckc-ids"), all.last(), 5).await)?;
        ensure(page.len() <= 5, || format!("{} ids in a page of 5", page.len()))?;
        let is_last = page.len() < 5;
        all.extend(page);
        if is_last {
            break;
        }
    }
    equal("ids of one type, deleted ones too, page by page", all, meant.clone())?;
    let all = must("ids", queries.persistence_ids(None, None, 1 << 20).await)?;
    ensure(all.is_sorted() && meant.iter().all(|id| all.contains(id)), || format!("ids of all types: {all:?}"))
}

async fn newest<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    equal("what a state store shows", kit.streams.queries.caps().shows, Shows::Newest)?;
    for number in 0..6 {
        kit.write("tckc-newest", number, 1..=2).await?;
    }
    // Write in another order than the ids were begun in.
    let written = [4, 0, 5, 1, 3, 2];
    for number in written {
        kit.write("tckc-newest", number, 3..=3).await?;
    }
    for page in [1, 4, 1000] {
        let found = kit.streams.current(slices("tckc-newest", ALL), &Offset::None, page).await?;
        let meant = written.map(|number| (id("tckc-newest", number), 3)).to_vec();
        equal(&format!("in pages of {page}"), places(&found), meant)?;
        for envelope in &found {
            let Some(record) = envelope.record.as_ref() else { return equal("a record", None, Some(&envelope.id)) };
            let row = must("get", kit.store.get(&envelope.id).await)?;
            equal("the record of a row", record.clone(), row.into_record())?;
            ensure(!envelope.is_filtered() && record.crc32c == record.compute_crc32c(), || format!("{record:?}"))?;
        }
    }
    Ok(())
}

async fn deletion<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    let gone = kit.write("tckc-deletion", 1, 1..=1).await?;
    must("delete", gone.delete(2).await)?;
    for of in [slices("tckc-deletion", ALL), EventsOf::Tag("tckc-deletion".to_owned())] {
        let found = kit.streams.current(of, &Offset::None, 9).await?;
        equal("the deletion alone", places(&found), vec![(gone.id.clone(), 2)])?;
        ensure(found[0].is_filtered(), || format!("a deletion must be filtered, but: {:?}", found[0]))?;
        let payload = found[0].record.as_ref().map(|record| record.payload.len());
        equal("payload of a deletion", payload, Some(0))?;
    }
    kit.write("tckc-deletion", 1, 3..=3).await?;
    let found = kit.all_of("tckc-deletion").await?;
    equal("what followed it", places(&found), vec![(gone.id.clone(), 3)])?;
    ensure(!found[0].is_filtered(), || "a new state is no deletion".to_owned())
}

async fn selections<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    const NUMBERS: RangeInclusive<u32> = 0..=19;
    for number in NUMBERS {
        kit.write("tckc-slices", number, 1..=1).await?;
        kit.write("tckc-slices-other", number, 1..=1).await?;
    }
    let middle = id("tckc-slices", 0).slice();
    let meant = |range: &RangeInclusive<u16>| {
        let ids = NUMBERS.map(|number| id("tckc-slices", number)).filter(|id| range.contains(&id.slice()));
        ids.map(|id| (id, vec![1])).collect::<BTreeMap<_, _>>()
    };
    for range in [ALL, 0..=511, 512..=1023, middle..=middle, RangeInclusive::new(5, 4)] {
        for page in [1, 4, 1000] {
            let found = kit.streams.current(slices("tckc-slices", range.clone()), &Offset::None, page).await?;
            equal(&format!("slices {range:?} in pages of {page}"), by_id(&found), meant(&range))?;
        }
    }
    for (tag, meant) in [("tckc-slices", meant(&ALL)), ("tckc-slice", BTreeMap::new())] {
        let found = kit.streams.current(EventsOf::Tag(tag.to_owned()), &Offset::None, 7).await?;
        equal(&format!("tag {tag}"), by_id(&found), meant)?;
    }
    Ok(())
}

async fn offsets<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    for number in 0..9 {
        kit.write("tckc-offsets", number, 1..=2).await?;
    }
    for of in [slices("tckc-offsets", ALL), EventsOf::Tag("tckc-offsets".to_owned())] {
        let all = kit.streams.current(of.clone(), &Offset::None, 1000).await?;
        equal("all of them", all.len(), 9)?;
        for (at, envelope) in all.iter().enumerate() {
            let rest = kit.streams.current(of.clone(), &envelope.offset(), 4).await?;
            equal(&format!("after the offset of envelope {at}"), places(&rest), places(&all[at + 1..]))?;
        }
    }
    let all = kit.all_of("tckc-offsets").await?;
    let end = all.last().map(Envelope::offset).unwrap_or_default();
    kit.write("tckc-offsets", 3, 3..=3).await?;
    let rest = kit.streams.current(slices("tckc-offsets", ALL), &end, 4).await?;
    equal("what is written after an offset comes after it", places(&rest), vec![(id("tckc-offsets", 3), 3)])
}

async fn foreign<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    let kind = kit.streams.queries.caps().kind;
    let (offset, after) = match kind {
        OffsetKind::Ordinal => {
            let timestamp = Timestamp::from_micros(1);
            (Offset::Timestamp { timestamp, seen: Vec::new() }, Cursor::at(timestamp))
        }
        OffsetKind::Timestamp => (Offset::Ordinal(1), Cursor::Ordinal(1)),
    };
    let of = slices("tckc-foreign", ALL);
    let feed = Feed::live(of.clone(), &offset, kind, super::streams::settings(9), Instant::now());
    ensure(matches!(feed, Err(QueryError::ForeignOffset { .. })), || "a foreign offset is taken".to_owned())?;
    let page = PageQuery { of, after, until: None, visible: Visible::All, limit: 9, load: true };
    let answer = kit.streams.queries.events(&page).await;
    ensure(matches!(answer, Err(QueryError::ForeignOffset { .. })), || {
        format!("a foreign cursor must be refused, but: {answer:?}")
    })
}

async fn by_number<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    let id = kit.write("tckc-number", 1, 1..=3).await?.id;
    for (from, to, meant) in [(1, 9, vec![3]), (3, 3, vec![3]), (1, 2, vec![]), (4, 9, vec![])] {
        let range = ReadRange::new(SeqNr::from(from), SeqNr::from(to));
        let page = must("read", kit.streams.queries.read(&id, range).await)?;
        let found: Vec<u64> = page.records.iter().map(|record| record.seq_nr.as_u64()).collect();
        equal(&format!("revisions {from} to {to} of a state at 3"), (found, page.next), (meant, None))?;
    }
    let unknown = must("read", kit.streams.queries.read(&self::id("tckc-number", 2), ReadRange::all()).await)?;
    equal("an id that was never written", unknown.records, vec![])
}

/// Several writers, and one reader that reads from the start.
async fn concurrent<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    const IDS: u32 = 12;
    const REVISIONS: u32 = 15;
    let writing =
        join_all((0..IDS).map(|number| async move { kit.write("tckc-busy", number, 1..=REVISIONS).await.map(drop) }));
    let mut now = Instant::now();
    let mut feed = kit.streams.live(slices("tckc-busy", ALL), &Offset::None, 7, now)?;
    let reading = kit.streams.run(&mut feed, &mut now, |found| found.len() >= 30);
    let (written, found) = join(writing, reading).await;
    written.into_iter().collect::<Checked<Vec<()>>>()?;
    let mut found = found?;
    kit.factory.settle(&kit.store).await;
    // Longer than `behind`, so that every pass has become possible.
    now += Duration::from_secs(60);
    found.extend(kit.streams.run(&mut feed, &mut now, |_| false).await?);
    let newest: BTreeSet<EventKey> = (0..IDS).map(|number| (id("tckc-busy", number), REVISIONS.into())).collect();
    ensure(newest.is_subset(&places(&found).into_iter().collect()), || "the newest of an id is missing".to_owned())?;
    found.retain(|envelope| envelope.source == EventSource::Live);
    let by_id = by_id(&found);
    ensure(by_id.values().all(|numbers| numbers.is_sorted_by(|a, b| a < b)), || {
        format!("read on, an id's revisions must rise: {by_id:?}")
    })
}

async fn unborn<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    for (of, revision) in [(slices("tckc-unborn", ALL), 1), (EventsOf::Tag("tckc-unborn".to_owned()), 2)] {
        let mut now = Instant::now();
        let mut feed = kit.streams.live(of, &Offset::None, 9, now)?;
        let before = kit.streams.run(&mut feed, &mut now, |_| false).await?;
        ensure(before.iter().all(|envelope| envelope.seq_nr < SeqNr::from(revision)), || format!("{before:?}"))?;
        let id = kit.write("tckc-unborn", 1, revision..=revision).await?.id;
        kit.factory.settle(&kit.store).await;
        let born = kit.streams.run(&mut feed, &mut now, |found| !found.is_empty()).await?;
        let meant = (id, revision.into());
        ensure(places(&born).contains(&meant), || format!("{meant:?} does not come, but {born:?}"))?;
    }
    Ok(())
}

async fn late<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    if kit.streams.queries.caps().kind == OffsetKind::Ordinal {
        return skip("the store shows changes in the order of their commits");
    }
    let late = kit.writer("tckc-late", 1);
    if !kit.factory.hold_back(&kit.store, &late.id).await {
        return skip("the factory cannot hold a commit back");
    }
    let mut now = Instant::now();
    let mut feed = kit.streams.live(slices("tckc-late", ALL), &Offset::None, 9, now)?;
    let (written, passed) = join(late.upsert_tagged(1, "tckc-late"), async {
        kit.factory.held(&kit.store).await;
        let quick = kit.write("tckc-late", 2, 1..=1).await?.id;
        kit.factory.settle(&kit.store).await;
        let found = kit.streams.run(&mut feed, &mut now, |found| !found.is_empty()).await?;
        kit.factory.commit_held(&kit.store).await;
        equal("what was committed", places(&found), vec![(quick, 1)])
    })
    .await;
    must("upsert", written)?;
    passed?;
    kit.factory.settle(&kit.store).await;
    now += Duration::from_secs(60);
    let mut found = kit.streams.run(&mut feed, &mut now, |_| false).await?;
    found.retain(|envelope| envelope.id == late.id);
    let how: Vec<EventSource> = found.iter().map(|envelope| envelope.source).collect();
    equal("how the late one is found", how, vec![EventSource::Backtracking])?;
    let loaded = must("load", kit.streams.queries.load(&late.id, SeqNr::FIRST).await)?;
    ensure(loaded.is_some_and(|record| record.seq_nr == found[0].seq_nr), || "it can be loaded".to_owned())
}

async fn projection<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    for (guarantee, entity_type) in [(Guarantee::AtLeastOnce, "tckc-least"), (Guarantee::ExactlyOnce, "tckc-exactly")] {
        let offsets = InMemoryOffsets::new(Scope::Process, kit.streams.queries.caps().kind);
        let mut projecting = Projecting::new(&*kit.streams.queries, &offsets, entity_type, guarantee);
        for number in 0..12 {
            kit.write(entity_type, number, 1..=2).await?;
        }
        kit.factory.settle(&kit.store).await;
        // Stop the projection in the midst of its work, and later when it is idle.
        projecting.run(7).await?;
        projecting.run(usize::MAX).await?;
        let all: BTreeMap<_, _> = (0..12).map(|number| (id(entity_type, number), vec![2])).collect();
        equal("what was handled", by_id(&projecting.handled), all.clone())?;
        let again = kit.write(entity_type, 5, 3..=4).await?;
        must("delete", kit.writer(entity_type, 6).delete(3).await)?;
        kit.factory.settle(&kit.store).await;
        projecting.run(usize::MAX).await?;
        let mut all = all;
        all.insert(again.id, vec![2, 4]);
        all.insert(id(entity_type, 6), vec![2, 3]);
        equal("what was handled later", by_id(&projecting.handled), all)?;
    }
    Ok(())
}

async fn damage<F: ChangeFactory>(kit: &Kit<'_, F>) -> Checked {
    for number in 1..=3 {
        kit.write("tckc-damage", number, 1..=1).await?;
    }
    if !kit.factory.corrupt(&kit.store, &id("tckc-damage", 2)).await {
        return skip("the factory cannot break a byte");
    }
    kit.factory.settle(&kit.store).await;
    let of = slices("tckc-damage", ALL);
    let page = |after| PageQuery { of: of.clone(), after, until: None, visible: Visible::All, limit: 9, load: true };
    let first = must("a page that ends before the damage", kit.streams.queries.events(&page(Cursor::Start)).await)?;
    let found: Vec<PersistenceId> = first.events.iter().map(|found| found.id.clone()).collect();
    equal("what stands before the damage", found, vec![id("tckc-damage", 1)])?;
    ensure(first.more, || "a page that ends at damage is not the last".to_owned())?;
    let is_corrupt = |answer: &Result<_, QueryError>| matches!(answer, Err(QueryError::Read(ReadError::Corrupt(_))));
    let second = kit.streams.queries.events(&page(first.next)).await;
    ensure(is_corrupt(&second), || format!("a page that begins with damage must fail, but: {second:?}"))
}
