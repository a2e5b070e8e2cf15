//! Events stored by an entity of this node are read at once, long before the next refresh: by live streams, and by
//! projections, whether they read alone or share a reader. Time is paused, so it is measured exactly.

use std::sync::Arc;
use std::time::Duration;

use crate::support::counted::Counted;
use async_trait::async_trait;
use futures::StreamExt;
use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::driver::{self, EntityHandle};
use greylag_persistence::{
    BoxError, Ctx, Effect, Envelope, EventCodecs, EventMeta, EventSourced, InMemoryJournal, InMemoryOffsets,
    InMemorySnapshots, Offset, Persisted, PersistenceId, ProjectionHandler, ProjectionId, ProjectionSettings,
    QuerySettings, ReadJournal, RecoveryPermits, SeqNr, Stores, Tags, run_projection,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

struct Add(ReplyTo<u32>);

struct Sum(&'static str);

impl EventSourced for Sum {
    type Command = Add;
    type Event = u32;
    type State = u32;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u32, Add(reply_to): Add) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(reply_to, |sum| *sum)
    }

    fn apply(sum: &mut u32, number: &u32) {
        *sum += number;
    }

    fn tags(&self, _: &u32, _: &u32, _: &EventMeta<'_>) -> Tags {
        ["red".to_owned()].into()
    }
}

impl Sum {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = PersistenceId::of("Sum", self.0).unwrap();
        EventCodecs::new(json("sum.added")).of(id, self)
    }
}

/// An entity, and readers whose refresh interval is an hour.
fn start() -> (Stores, EntityHandle<Add>, ReadJournal) {
    let journal = InMemoryJournal::default();
    let stores = Stores::new(Arc::new(journal.clone()), Arc::new(InMemorySnapshots::default()));
    let (sum, _end) = driver::spawn(Sum("1").stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    let settings = QuerySettings { refresh_interval: Duration::from_secs(3600), ..QuerySettings::default() };
    let read = stores.read_journal(Arc::new(journal.queries()), settings);
    (stores, sum, read)
}

/// Long enough for the first query, and far from the next.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

async fn soon<T>(what: &str, comes: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let comes = tokio::time::timeout(Duration::from_secs(1800), comes).await;
    let comes = comes.unwrap_or_else(|_| panic!("{what} is not seen"));
    assert!(start.elapsed() <= Duration::from_millis(20), "{what} is seen after {:?}", start.elapsed());
    comes
}

/// Rules persistence §2.8 (event publishing) and §5 (live polls when the publisher hints).
#[tokio::test(start_paused = true)]
async fn live_streams_see_at_once_what_an_entity_has_stored() {
    let (stores, sum, read) = start();
    let all = SeqNr::FIRST..=SeqNr::MAX;
    let mut by_slices = read.events_by_slices("Sum", 0..=1023, Offset::None);
    let mut by_tag = read.events_by_tag("red", Offset::None);
    let mut by_id = read.events_by_persistence_id(PersistenceId::of("Sum", "1").unwrap(), all);
    let (mut ids, mut others) = (read.persistence_ids(Some("Sum")), read.persistence_ids(None));
    let (told, mut news) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let what = tokio::select! {
                event = by_slices.next() => format!("by slices {}", event.unwrap().unwrap().seq_nr),
                event = by_tag.next() => format!("by tag {}", event.unwrap().unwrap().seq_nr),
                event = by_id.next() => format!("by id {}", event.unwrap().unwrap().seq_nr),
                id = ids.next() => format!("id {}", id.unwrap().unwrap()),
                id = others.next() => format!("id of any type {}", id.unwrap().unwrap()),
            };
            told.send(what).unwrap();
        }
    });
    for number in 1..=3 {
        settle().await;
        sum.ask(Add).await.unwrap();
        let expected = if number == 1 { 5 } else { 3 };
        let seen = soon("an event", async {
            let mut seen = Vec::new();
            while seen.len() < expected {
                seen.push(news.recv().await.unwrap());
            }
            seen
        });
        let mut seen = seen.await;
        seen.sort();
        let events = ["by id", "by slices", "by tag"].map(|by| format!("{by} {number}"));
        assert_eq!(seen[..3], events);
    }
    // Also events of an entity that is started later.
    let (other, _end) = driver::spawn(Sum("2").stored(), stores, RecoveryPermits::default()).unwrap();
    settle().await;
    other.ask(Add).await.unwrap();
    soon("an id", async { while !news.recv().await.unwrap().contains("Sum|2") {} }).await;
}

/// Rule persistence §2.8 (event publishing): a stream of ids lists all ids at every query, so an
/// append to a known id does not wake it.
#[tokio::test(start_paused = true)]
async fn only_a_first_event_wakes_a_stream_of_ids() {
    let journal = InMemoryJournal::default();
    let stores = Stores::new(Arc::new(journal.clone()), Arc::new(InMemorySnapshots::default()));
    let queries = Arc::new(Counted::new(journal.queries()));
    let settings = QuerySettings { refresh_interval: Duration::from_secs(3600), ..QuerySettings::default() };
    let read = stores.read_journal(queries.clone(), settings);
    for entity_type in [Some("Sum"), None] {
        let mut ids = read.persistence_ids(entity_type);
        let (told, mut news) = mpsc::unbounded_channel();
        let stream = tokio::spawn(async move {
            while let Some(id) = ids.next().await {
                told.send(id.unwrap().to_string()).unwrap();
            }
        });
        let name = if entity_type.is_some() { "1" } else { "2" };
        let (sum, _end) = driver::spawn(Sum(name).stored(), stores.clone(), RecoveryPermits::default()).unwrap();
        settle().await;
        sum.ask(Add).await.unwrap();
        soon("an id", async { while news.recv().await.unwrap() != format!("Sum|{name}") {} }).await;
        settle().await;
        let looked = queries.lists();
        for _ in 0..20 {
            sum.ask(Add).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(queries.lists(), looked, "the id is known");
        stream.abort();
    }
}

struct Told(mpsc::UnboundedSender<u64>);

#[async_trait]
impl ProjectionHandler for Told {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            self.0.send(envelope.seq_nr.as_u64())?;
        }
        Ok(())
    }
}

/// Rules persistence §2.8 and §5, for projections: reading alone, and fed by the shared reader.
#[tokio::test(start_paused = true)]
async fn projections_see_at_once_what_an_entity_has_stored() {
    for share_reader in [true, false] {
        let (_stores, sum, read) = start();
        let (told, mut news) = mpsc::unbounded_channel();
        let id = ProjectionId { name: "sums".into(), entity_type: "Sum".into(), slices: 0..=1023 };
        let settings = ProjectionSettings { share_reader, ..ProjectionSettings::default() };
        let offsets = Arc::new(InMemoryOffsets::default());
        let running = run_projection(id, &read, offsets, Told(told), settings).unwrap();
        for number in 1..=5 {
            settle().await;
            sum.ask(Add).await.unwrap();
            assert_eq!(soon("an event", news.recv()).await, Some(number));
        }
        running.stop().await;
    }
}
