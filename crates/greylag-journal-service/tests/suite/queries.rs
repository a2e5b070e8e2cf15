//! Queries through the service: pages that fit into a frame, no page that the consumer does not ask for, and streams
//! and projections that outlive the server.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{ServedDisk, ServedMemory, append, client, event, id, loopback};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use greylag_journal_service::{JournalServer, Served, ServerSettings};
use greylag_persistence::{
    Append, BoxError, Claim, Cursor, Envelope, EventPage, EventQueries, EventsOf, InMemoryJournal, InMemorySnapshots,
    Journal, Offset, OffsetKind, Page, PageQuery, PersistenceId, Position, ProjectionHandler, ProjectionId,
    ProjectionSettings, QueryCaps, QueryError, QuerySettings, ReadError, ReadJournal, ReadRange, Stores, Under,
    Visible, WriterEpoch, WriterUuid, run_projection,
};
use tokio::sync::watch;

const UUID: WriterUuid = WriterUuid::from_u128(1);
const ALL: std::ops::RangeInclusive<u16> = 0..=1023;

async fn claim(journal: &dyn Journal, id: &PersistenceId) -> Claim {
    journal.claim(id, UUID, Under::Seen(WriterEpoch::NONE)).await.unwrap()
}

/// Counts the pages that are read.
struct Counted<Q>(Q, Arc<AtomicUsize>);

#[async_trait]
impl<Q: EventQueries> EventQueries for Counted<Q> {
    fn caps(&self) -> QueryCaps {
        self.0.caps()
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        self.0.persistence_ids(entity_type, after, limit).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.0.newest().await
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.events(query).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.0.read(id, range).await
    }
}

/// persistence §5: all streams are pulled; a consumer that does not read costs one page, through the service, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undemanding_consumer_costs_one_page() {
    let (journal, pages) = (InMemoryJournal::default(), Arc::new(AtomicUsize::new(0)));
    let claim = claim(&journal, &id(1)).await;
    for first in 1..=20 {
        journal.append(append(&id(1), &claim, UUID, first, "x")).await.unwrap();
    }
    let queries = Arc::new(Counted(journal.queries(), pages.clone()));
    let stores = Stores::new(Arc::new(journal), Arc::new(InMemorySnapshots::default()));
    let served = Served::new(stores).with_queries(queries);
    let server = JournalServer::bind(loopback(), served, ServerSettings::test()).await.unwrap();
    let client = client(server.local_address()).await;
    assert!(
        client.states().is_none() && client.offsets().is_none() && client.changes().is_none(),
        "only what is served is there"
    );
    let settings = QuerySettings { page: NonZeroUsize::new(4).unwrap(), ..QuerySettings::test() };
    let read = ReadJournal::new(Arc::new(client.queries().unwrap()), settings);
    let mut events = read.events_by_slices("Counter", ALL, Offset::None);
    for taken in 1..=4 {
        assert_eq!(events.try_next().await.unwrap().unwrap().seq_nr.as_u64(), taken);
        assert_eq!(pages.load(Ordering::SeqCst), 1, "after {taken} events");
    }
    events.try_next().await.unwrap().unwrap();
    assert_eq!(pages.load(Ordering::SeqCst), 2);
}

/// A page of large events is cut to the size of a frame, says that more follows, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_large_events_are_cut() {
    const EVENTS: u32 = 40;
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    let claim = claim(&served.journal, &id(1)).await;
    for first in 1..=EVENTS {
        let events = vec![event(vec![7; 1 << 20])];
        let append = Append { id: id(1), epoch: claim.epoch, writer_uuid: UUID, first: first.into(), events };
        served.journal.append(append).await.unwrap();
    }
    let queries = served.client().await.queries().unwrap();
    let of = EventsOf::Tag("counted".to_owned());
    let mut query = PageQuery { of, after: Cursor::Start, until: None, visible: Visible::All, limit: 1000, load: true };
    let mut found = Vec::new();
    loop {
        let page = queries.events(&query).await.unwrap();
        assert!(page.events.len() < 8, "{} events of 1 MiB in one page", page.events.len());
        found.extend(page.events.iter().map(|found| found.seq_nr.as_u64()));
        query.after = page.next;
        if !page.more {
            break;
        }
    }
    assert!(found.into_iter().eq(1..=u64::from(EVENTS)));
}

/// A list longer than one answer is read in parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_of_ids_arrive_complete() {
    const IDS: u32 = 5000;
    let served = ServedMemory::start(OffsetKind::Ordinal).await;
    for number in 0..IDS {
        let claim = claim(&served.journal, &id(number)).await;
        served.journal.append(append(&id(number), &claim, UUID, 1, "x")).await.unwrap();
    }
    let queries = served.client().await.queries().unwrap();
    let listed = queries.persistence_ids(Some("Counter"), None, usize::MAX).await.unwrap();
    assert_eq!(listed.len(), IDS as usize);
    assert!(listed.is_sorted());
    assert_eq!(queries.persistence_ids(None, Some(&listed[4998]), 10).await.unwrap(), listed[4999..]);
    assert_eq!(queries.persistence_ids(None, None, 4097).await.unwrap(), listed[..4097]);
}

/// persistence §5: when the server is back, a live stream continues where it was, or begins again at the offset of its
/// last envelope; nothing is missed and nothing is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_streams_outlive_a_restart_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let client = served.client().await;
    let (journal, queries) = (client.journal(), Arc::new(client.queries().unwrap()));
    let claim = claim(&journal, &id(1)).await;
    let read = ReadJournal::new(queries, QuerySettings::test());
    let mut live = read.events_by_tag("counted", Offset::None);
    journal.append(append(&id(1), &claim, UUID, 1, "a")).await.unwrap();
    let first = live.try_next().await.unwrap().unwrap();
    let address = served.stop().await;
    let away = loop {
        // The stream answers an error while no server answers, but does not end.
        if let Some(Err(error)) = live.next().await {
            break error;
        }
    };
    assert!(matches!(away, QueryError::Read(ReadError::Unavailable(_))), "{away}");

    let served = ServedDisk::start(directory.path(), address).await;
    let mut resumed = read.events_by_tag("counted", first.offset());
    while let Err(error) = journal.append(append(&id(1), &claim, UUID, 2, "b")).await {
        assert!(matches!(error, greylag_persistence::AppendError::NotStored(_)), "{error}");
        tokio::task::yield_now().await;
    }
    for stream in [&mut live, &mut resumed] {
        let next = loop {
            if let Some(Ok(envelope)) = stream.next().await {
                break envelope;
            }
        };
        assert_eq!(next.seq_nr.as_u64(), 2);
    }
    served.stop().await;
}

#[derive(Clone)]
struct Seen(Arc<Mutex<BTreeMap<PersistenceId, Vec<u64>>>>, watch::Sender<usize>);

#[async_trait]
impl ProjectionHandler for Seen {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            let mut seen = self.0.lock().unwrap();
            seen.entry(envelope.id.clone()).or_default().push(envelope.seq_nr.as_u64());
        }
        self.1.send_modify(|count| *count += envelopes.len());
        Ok(())
    }
}

/// A projection reads and saves through the service, across a restart of the server; a second projection continues
/// after the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projections_run_over_the_service() {
    const IDS: u32 = 10;
    let directory = tempfile::tempdir().unwrap();
    let mut served = ServedDisk::start(directory.path(), loopback()).await;
    let (writer, reader) = (served.client().await.journal(), served.client().await);
    let seen = Seen(Arc::default(), watch::Sender::new(0));
    let mut count = seen.1.subscribe();
    let start = || {
        let read = ReadJournal::new(Arc::new(reader.queries().unwrap()), QuerySettings::test());
        let offsets = Arc::new(reader.offsets().unwrap());
        let id = ProjectionId { name: "counts".into(), entity_type: "Counter".into(), slices: ALL };
        run_projection(id, &read, offsets, seen.clone(), ProjectionSettings::test()).unwrap()
    };
    let mut running = start();
    let mut claims = Vec::new();
    for number in 0..IDS {
        claims.push(claim(&writer, &id(number)).await);
    }
    for round in 1..=4 {
        for number in 0..IDS {
            let append = append(&id(number), &claims[number as usize], UUID, round, "x");
            while writer.append(append.clone()).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
        // At least once: events that were handled but not saved before the restart are handled again.
        let every = |seen: &Seen| seen.0.lock().unwrap().values().filter(|of| of.contains(&round.into())).count();
        while every(&seen) < IDS as usize {
            count.changed().await.unwrap();
        }
        match round {
            1 => {
                let address = served.stop().await;
                served = ServedDisk::start(directory.path(), address).await;
            }
            2 => {
                running.stop().await;
                running = start();
            }
            _ => {}
        }
    }
    running.stop().await;
    for (id, numbers) in seen.0.lock().unwrap().iter() {
        let mut each = numbers.clone();
        each.dedup();
        each.sort_unstable();
        each.dedup();
        assert_eq!(each, [1, 2, 3, 4], "{id}: {numbers:?}");
        assert!(numbers.iter().filter(|number| **number > 2).count() == 2, "{id} came again: {numbers:?}");
    }
    served.stop().await;
}
