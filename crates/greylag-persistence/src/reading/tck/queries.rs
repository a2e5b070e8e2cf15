//! The query cases: the rules of persistence §5 one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};

use super::streams::{ALL, EventKey, Streams, by_id, places, settings, slices};
use crate::contract::driver::journal_store::Journal;
use crate::contract::error::QueryError;
use crate::contract::journal::ReadRange;
use crate::contract::offset::{Offset, OffsetKind};
use crate::contract::query::{Cursor, EventsOf, PageQuery, Visible};
use crate::contract::records::event::{EventKind, NewEvent, SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::tck::factories::QueryFactory;
use crate::contract::tck::harness::{Checked, Flags, Report, cases, ensure, equal, must, skip};
use crate::contract::tck::writer::{Writer, event};
use crate::reading::query::envelope::{Envelope, EventSource};
use crate::reading::query::feed::Feed;

/// The stores and settings of the cases.
struct Kit<'a, F> {
    factory: &'a F,
    journal: Arc<dyn Journal>,
    streams: Streams,
}

/// Runs every query case, in the order of their numbers.
pub async fn queries(factory: &impl QueryFactory, flags: Flags) -> Report {
    let (journal, queries) = factory.open().await;
    let kit = &Kit { factory, journal, streams: Streams { queries } };
    let mut report = Report::default();
    cases! {report, &flags;
        "01 ids in pages, ascending, also of one type" => ids(kit);
        "02 an id shows once something was stored" => empty_ids(kit);
        "03 one history in its order, without what is deleted" => one_history(kit);
        "04 the slices and the type asked for, and no others" => by_slices(kit);
        "05 the tag asked for" => by_tag(kit);
        "06 an offset resumes after its envelope" => offsets(kit);
        "07 foreign offsets" => foreign(kit);
        "08 a filtered event keeps its place" => filtered(kit);
        "09 deleted events are skipped and never come back" => deleted(kit);
        "10 a current stream ends at what was there" => current(kit);
        "11 no event is missed while others write" => concurrent(kit);
        "12 a live stream of what does not exist yet" => unborn(kit);
        "13 damage is never passed over" => damage(kit);
    }
    report
}

fn id(entity_type: &str, number: u32) -> PersistenceId {
    PersistenceId::of(entity_type, &number.to_string()).expect("names of cases are valid ids")
}

fn tagged(text: impl Into<String>, tag: &str) -> NewEvent {
    NewEvent { tags: [tag.to_owned()].into(), ..event(text) }
}

impl<F: QueryFactory> Kit<'_, F> {
    /// Stores events 1 to `count` of the id, one append each.
    async fn write(&self, id: &PersistenceId, count: u32, tag: Option<&str>) -> Checked<Writer> {
        let writer = Writer::claim(&self.journal, id, 1).await?;
        for number in 1..=count {
            let new = tag.map_or_else(|| event(number.to_string()), |tag| tagged(number.to_string(), tag));
            must("append", writer.append(number, vec![new]).await)?;
        }
        Ok(writer)
    }
}

async fn ids<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    // A type whose name is the beginning of another type's name must not show that type's ids.
    let mut written = BTreeSet::new();
    for (entity_type, count) in [("tckq-ids", 25), ("tckq-ids-more", 3), ("tckq-ids日", 3)] {
        for number in 0..count {
            written.insert(id(entity_type, number));
            kit.write(&id(entity_type, number), 1, None).await?;
        }
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = must("ids", kit.streams.queries.persistence_ids(Some("tckq-ids"), after.as_ref(), 10).await)?;
        ensure(page.len() <= 10, || format!("{} ids in a page of 10", page.len()))?;
        all.extend(page.iter().cloned());
        let Some(last) = page.last().filter(|_| page.len() == 10) else { break };
        after = Some(last.clone());
    }
    let meant: Vec<_> = written.iter().filter(|id| id.entity_type() == "tckq-ids").cloned().collect();
    equal("ids of one type, page by page", all, meant)?;
    let all = must("ids", kit.streams.queries.persistence_ids(None, None, 1 << 20).await)?;
    ensure(all.is_sorted(), || format!("ids are not ascending: {all:?}"))?;
    ensure(written.iter().all(|id| all.contains(id)), || format!("ids of all types lack some: {all:?}"))
}

async fn empty_ids<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let (claimed, emptied) = (id("tckq-empty", 1), id("tckq-empty", 2));
    Writer::claim(&kit.journal, &claimed, 1).await?;
    let found = must("ids", kit.streams.queries.persistence_ids(Some("tckq-empty"), None, 9).await)?;
    equal("an id that is only claimed", found, vec![])?;
    let writer = kit.write(&emptied, 2, None).await?;
    must("delete", writer.delete_to(SeqNr::MAX).await)?;
    let found = must("ids", kit.streams.queries.persistence_ids(Some("tckq-empty"), None, 9).await)?;
    equal("an id whose events are all deleted", found, vec![emptied])
}

async fn one_history<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let id = id("tckq-history", 1);
    let writer = kit.write(&id, 9, None).await?;
    must("delete", writer.delete_to(SeqNr::from(3)).await)?;
    for (from, to, limit, numbers) in [(1, 9, 9, 4..=9_u64), (2, 5, 9, 4..=5), (6, 99, 2, 6..=7), (8, 99, 9, 8..=9)] {
        let range = ReadRange { max_events: limit, ..ReadRange::new(SeqNr::from(from), SeqNr::from(to)) };
        let page = must("read", kit.streams.queries.read(&id, range).await)?;
        let found: Vec<u64> = page.records.iter().map(|record| record.seq_nr.as_u64()).collect();
        equal(&format!("events {from} to {to}, at most {limit}"), found, numbers.collect())?;
    }
    let one = must("load", kit.streams.queries.load(&id, SeqNr::from(7)).await)?;
    equal("one event", one.map(|event| event.payload), Some("7".into()))?;
    for number in [3, 10] {
        let none = must("load", kit.streams.queries.load(&id, SeqNr::from(number)).await)?;
        ensure(none.is_none(), || format!("event {number} is deleted or not written, but: {none:?}"))?;
    }
    equal("the highest number", must("highest", kit.streams.queries.highest(&id).await)?, SeqNr::from(9))?;
    let unborn = must("highest", kit.streams.queries.highest(&self::id("tckq-history", 2)).await)?;
    equal("the highest number of what was never written", unborn, SeqNr::ZERO)
}

async fn by_slices<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    for number in 0..20 {
        kit.write(&id("tckq-slices", number), 3, None).await?;
        kit.write(&id("tckq-slices-other", number), 1, None).await?;
    }
    let middle = id("tckq-slices", 0).slice();
    for range in [ALL, 0..=511, 512..=1023, middle..=middle, RangeInclusive::new(5, 4)] {
        for page in [1, 4, 1000] {
            let found = kit.streams.current(slices("tckq-slices", range.clone()), &Offset::None, page).await?;
            let meant = (0..20).map(|number| id("tckq-slices", number)).filter(|id| range.contains(&id.slice()));
            let meant: BTreeMap<_, _> = meant.map(|id| (id, vec![1, 2, 3])).collect();
            equal(&format!("events of slices {range:?} in pages of {page}"), by_id(&found), meant)?;
        }
    }
    Ok(())
}

async fn by_tag<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let mut meant = BTreeMap::new();
    for number in 0..6 {
        let id = id("tckq-tags", number);
        let writer = kit.write(&id, 1, Some("tckq-blue")).await?;
        let both = NewEvent { tags: ["tckq-red".to_owned(), "tckq-blue".to_owned()].into(), ..event("2") };
        must("append", writer.append(2, vec![both, event("3"), tagged("4", "tckq-red")]).await)?;
        meant.insert(id, vec![2, 4]);
    }
    for page in [1, 5, 1000] {
        let found = kit.streams.current(EventsOf::Tag("tckq-red".to_owned()), &Offset::None, page).await?;
        equal(&format!("events of a tag in pages of {page}"), by_id(&found), meant.clone())?;
    }
    for tag in ["tckq-re", "tckq-redd", "TCKQ-RED"] {
        let found = kit.streams.current(EventsOf::Tag(tag.to_owned()), &Offset::None, 9).await?;
        equal(&format!("events of {tag}"), places(&found), vec![])?;
    }
    Ok(())
}

async fn offsets<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    for number in 0..3 {
        let writer = kit.write(&id("tckq-offsets", number), 2, Some("tckq-offsets")).await?;
        // Several events of one append, which may share their timestamp.
        let more = (0..4).map(|_| tagged("more", "tckq-offsets")).collect();
        must("append", writer.append(3, more).await)?;
    }
    for of in [slices("tckq-offsets", ALL), EventsOf::Tag("tckq-offsets".to_owned())] {
        let all = kit.streams.current(of.clone(), &Offset::None, 1000).await?;
        equal("all of them", all.len(), 18)?;
        for (at, envelope) in all.iter().enumerate() {
            ensure(envelope.record.is_some() && envelope.timestamp().is_some(), || format!("{envelope:?} is bare"))?;
            let rest = kit.streams.current(of.clone(), &envelope.offset(), 4).await?;
            equal(&format!("after the offset of envelope {at}"), places(&rest), places(&all[at + 1..]))?;
        }
    }
    Ok(())
}

async fn foreign<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let kind = kit.streams.queries.caps().kind;
    let (offset, after) = match kind {
        OffsetKind::Ordinal => {
            let timestamp = Timestamp::from_micros(1);
            (Offset::Timestamp { timestamp, seen: Vec::new() }, Cursor::at(timestamp))
        }
        OffsetKind::Timestamp => (Offset::Ordinal(1), Cursor::Ordinal(1)),
    };
    let of = slices("tckq-foreign", ALL);
    let feed = Feed::live(of.clone(), &offset, kind, settings(9), Instant::now());
    ensure(matches!(feed, Err(QueryError::ForeignOffset { .. })), || "a foreign offset is taken".to_owned())?;
    let page = PageQuery { of, after, until: None, visible: Visible::All, limit: 9, load: true };
    let answer = kit.streams.queries.events(&page).await;
    ensure(matches!(answer, Err(QueryError::ForeignOffset { .. })), || {
        format!("a foreign cursor must be refused, but: {answer:?}")
    })
}

async fn filtered<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let writer = kit.write(&id("tckq-filtered", 1), 1, None).await?;
    let metadata = [("note".to_owned(), "kept".into())].into();
    let hidden = NewEvent { kind: EventKind::Filtered, payload: "".into(), metadata, ..event("") };
    must("append", writer.append(2, vec![hidden, event("3")]).await)?;
    let found = kit.streams.current(slices("tckq-filtered", ALL), &Offset::None, 9).await?;
    let hidden: Vec<bool> = found.iter().map(Envelope::is_filtered).collect();
    equal("which are filtered", hidden, vec![false, true, false])?;
    let kept = found[1].record.as_ref().and_then(|record| record.metadata.get("note").cloned());
    equal("metadata of a filtered event", kept, Some("kept".into()))
}

async fn deleted<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let (prefix, all) = (id("tckq-deleted", 1), id("tckq-deleted", 2));
    for (id, to) in [(&prefix, SeqNr::from(3)), (&all, SeqNr::MAX)] {
        let writer = kit.write(id, 5, Some("tckq-deleted")).await?;
        must("delete", writer.delete_to(to).await)?;
    }
    for of in [slices("tckq-deleted", ALL), EventsOf::Tag("tckq-deleted".to_owned())] {
        for page in [1, 2, 9] {
            let found = kit.streams.current(of.clone(), &Offset::None, page).await?;
            equal("what is not deleted", places(&found), vec![(prefix.clone(), 4), (prefix.clone(), 5)])?;
        }
    }
    Ok(())
}

async fn current<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let id = id("tckq-current", 1);
    let writer = kit.write(&id, 3, None).await?;
    let until = must("newest", kit.streams.queries.newest().await)?;
    must("append", writer.append(4, vec![event("4")]).await)?;
    let (kind, mut now, of) = (kit.streams.queries.caps().kind, Instant::now(), slices("tckq-current", ALL));
    let feed = Feed::current(of.clone(), &Offset::None, kind, until, settings(2), now);
    let found = kit.streams.run(&mut must("a current stream", feed)?, &mut now, |_| false).await?;
    equal("what was there at the start", by_id(&found), [(id.clone(), vec![1, 2, 3])].into())?;
    let found = kit.streams.current(of, &Offset::None, 2).await?;
    equal("what is there now", by_id(&found), [(id, vec![1, 2, 3, 4])].into())
}

/// Several writers, and one reader that reads from the start.
async fn concurrent<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    const IDS: u32 = 12;
    const EVENTS: u32 = 15;
    let writing =
        join_all((0..IDS).map(|number| async move {
            kit.write(&id("tckq-busy", number), EVENTS, Some("tckq-busy")).await.map(drop)
        }));
    let mut now = Instant::now();
    let mut feed = kit.streams.live(slices("tckq-busy", ALL), &Offset::None, 7, now)?;
    let reading = kit.streams.run(&mut feed, &mut now, |found| found.len() >= 30);
    let (written, mut found) = {
        let (written, found) = join(writing, reading).await;
        (written, found?)
    };
    written.into_iter().collect::<Checked<Vec<()>>>()?;
    kit.factory.settle(&kit.journal).await;
    // Longer than `behind`, so that every pass has become possible.
    now += Duration::from_secs(60);
    found.extend(kit.streams.run(&mut feed, &mut now, |_| false).await?);
    let meant: BTreeSet<EventKey> =
        (0..IDS).flat_map(|number| (1..=EVENTS).map(move |event| (id("tckq-busy", number), event.into()))).collect();
    equal("every event, at least once", places(&found).into_iter().collect::<BTreeSet<_>>(), meant)?;
    found.retain(|envelope| envelope.source == EventSource::Live);
    let by_id = by_id(&found);
    ensure(by_id.values().all(|numbers| numbers.is_sorted_by(|a, b| a < b)), || {
        format!("read on, an id's numbers must rise: {by_id:?}")
    })?;
    if kit.streams.queries.caps().kind == OffsetKind::Ordinal {
        equal("a store of ordinals shows each once", found.len(), (IDS * EVENTS) as usize)?;
    }
    Ok(())
}

/// Scenario persistence 60.
async fn unborn<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let id = id("tckq-unborn", 1);
    for of in [slices("tckq-unborn", ALL), EventsOf::Tag("tckq-unborn".to_owned())] {
        let mut now = Instant::now();
        let mut feed = kit.streams.live(of.clone(), &Offset::None, 9, now)?;
        let mut nothing = kit.streams.run(&mut feed, &mut now, |_| false).await?;
        nothing.retain(|envelope| envelope.source == EventSource::Live);
        let seen_before = kit.streams.current(of, &Offset::None, 9).await?;
        equal("before the first event", places(&nothing), places(&seen_before))?;
        let writer = Writer::claim(&kit.journal, &id, 1).await?;
        let first = writer.claim.highest.as_u64() + 1;
        let number = u32::try_from(first).expect("a small number");
        must("append", writer.append(number, vec![tagged("born", "tckq-unborn")]).await)?;
        kit.factory.settle(&kit.journal).await;
        let born = kit.streams.run(&mut feed, &mut now, |found| !found.is_empty()).await?;
        ensure(places(&born).contains(&(id.clone(), first)), || format!("event {first} does not come, but {born:?}"))?;
    }
    Ok(())
}

async fn damage<F: QueryFactory>(kit: &Kit<'_, F>) -> Checked {
    let id = id("tckq-damage", 1);
    kit.write(&id, 5, None).await?;
    if !kit.factory.corrupt(&kit.journal, &id, SeqNr::from(3)).await {
        return skip("the factory cannot break a byte");
    }
    let of = slices("tckq-damage", ALL);
    let page = |after| PageQuery { of: of.clone(), after, until: None, visible: Visible::All, limit: 9, load: true };
    let first = must("a page that ends before the damage", kit.streams.queries.events(&page(Cursor::Start)).await)?;
    let numbers: Vec<u64> = first.events.iter().map(|found| found.seq_nr.as_u64()).collect();
    equal("events before the damage", numbers, vec![1, 2])?;
    ensure(first.more, || "a page that ends at damage is not the last".to_owned())?;
    let second = kit.streams.queries.events(&page(first.next)).await;
    ensure(matches!(second, Err(QueryError::Read(crate::contract::error::ReadError::Corrupt(_)))), || {
        format!("a page that begins with damage must fail, but: {second:?}")
    })
}
