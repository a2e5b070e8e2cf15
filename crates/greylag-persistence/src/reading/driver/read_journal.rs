//! The reading interface for programs: streams of events, up to the present end or for ever.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::hints::{Hints, Listener, Topic};
use super::sharing::Sharing;
use crate::contract::driver::query_store::EventQueries;
use crate::contract::error::{QueryError, ReadError};
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::Offset;
use crate::contract::query::EventsOf;
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;
use crate::reading::query::envelope::Envelope;
use crate::reading::query::feed::{Feed, FeedEffect, FeedInput};
use crate::reading::query::settings::QuerySettings;

/// Envelopes in the order of the store. An error of a live stream does not end it: a consumer that polls on gets the
/// next envelope, after a pause.
pub type Events = BoxStream<'static, Result<Envelope, QueryError>>;

/// The events of one history, in order.
pub type History = BoxStream<'static, Result<StoredEvent, ReadError>>;

/// Ids, each once.
pub type Ids = BoxStream<'static, Result<PersistenceId, ReadError>>;

/// Streams of the events of a journal, or of the changes of a state store. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use futures::TryStreamExt;
/// use greylag_persistence::{InMemoryJournal, Offset, QuerySettings, ReadJournal};
///
/// # futures::FutureExt::now_or_never(async {
/// let journal = InMemoryJournal::default();
/// let read = ReadJournal::new(Arc::new(journal.queries()), QuerySettings::default());
///
/// // What is there now, in the order of storage; `events_by_tag` would go on for ever.
/// let mut red = read.current_events_by_tag("red", Offset::None);
/// let mut resume_at = Offset::None;
/// while let Some(envelope) = red.try_next().await? {
///     println!("event {} of {}", envelope.seq_nr, envelope.id);
///     resume_at = envelope.offset();
/// }
/// # Ok::<(), greylag_persistence::QueryError>(())
/// # }).unwrap().unwrap();
/// ```
/// A stream reads a page when its consumer asks for the page's first event, and never ahead. Live streams query for
/// more every [`QuerySettings::refresh_interval`], also for a tag, slice or id that does not exist yet; and
/// at once when an entity of this node has appended such an event, if the `ReadJournal` was made by
/// [`Stores::read_journal`](crate::Stores::read_journal).
/// On stores that order by time a live stream shows most events twice, the second time without their
/// record ([`EventSource::Backtracking`](crate::EventSource::Backtracking)); a [projection](crate::ProjectionSettings)
/// removes the repeats.
///
/// Projections that run over one `ReadJournal`, or over clones of it, share readers: however many
/// there are, one reader for each entity type queries the store for new events
/// ([`SharingSettings`](crate::SharingSettings)). So a program makes one `ReadJournal` for each journal,
/// and gives it to all its projections. Each stream reads for itself.
///
/// # Changes of durable states
/// Every state store has such a query side as well (`queries()` of the backend's states), and a `ReadJournal` over
/// it streams changes. An envelope is then a state as its last write left it: its number is the revision, and it
/// [is filtered](Envelope::is_filtered) if that write was a deletion. Revisions that were replaced before they were
/// read are not shown ([`Shows::Newest`](crate::Shows::Newest)), so a projection of states overwrites its earlier
/// result with each change. A projection never gets an earlier revision after a later one, and always gets the last,
/// however late it was committed. Changes are queried every [`QuerySettings::refresh_interval`]; entities
/// send no hints of them.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
///
/// use greylag_codec::json;
/// use greylag_persistence::{
///     BoxError, Envelope, EventSeq, InMemoryOffsets, InMemoryStates, PersistenceId, ProjectionHandler, ProjectionId,
///     ProjectionSettings, QuerySettings, ReadJournal, StoredCodec, run_projection,
/// };
///
/// #[derive(Default, serde::Serialize, serde::Deserialize)]
/// struct Profile { name: String }
///
/// struct Names { codec: StoredCodec<Profile>, by_id: BTreeMap<PersistenceId, String> }
///
/// #[async_trait::async_trait]
/// impl ProjectionHandler for Names {
///     async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
///         for envelope in envelopes {
///             match envelope.decode(&self.codec)? {
///                 EventSeq::One(profile) => self.by_id.insert(envelope.id.clone(), profile.name),
///                 // Deleted.
///                 _ => self.by_id.remove(&envelope.id),
///             };
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let states = InMemoryStates::default();
/// let read = ReadJournal::new(Arc::new(states.queries()), QuerySettings::default());
/// let id = ProjectionId { name: "names".into(), entity_type: "User".into(), slices: 0..=1023 };
/// let names = Names { codec: StoredCodec::new(json("user.profile")), by_id: BTreeMap::new() };
/// let offsets = Arc::new(InMemoryOffsets::default());
/// let running = run_projection(id, &read, offsets, names, ProjectionSettings::default())?;
/// running.stop().await;
/// # Ok(())
/// # }
/// ```
/// Source: persistence §3 (change queries), §5.
#[derive(Clone)]
pub struct ReadJournal {
    queries: Arc<dyn EventQueries>,
    settings: QuerySettings,
    hints: Hints,
    sharing: Sharing,
}

impl fmt::Debug for ReadJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadJournal").field("queries", &self.queries.caps()).finish_non_exhaustive()
    }
}

impl ReadJournal {
    /// Streams over the query side of a store to which no entity of this node writes; otherwise
    /// [`Stores::read_journal`](crate::Stores::read_journal) sees new events sooner.
    pub fn new(queries: Arc<dyn EventQueries>, settings: QuerySettings) -> Self {
        Self::hinted(queries, settings, Hints::default())
    }

    pub(crate) fn hinted(queries: Arc<dyn EventQueries>, settings: QuerySettings, hints: Hints) -> Self {
        let sharing = Sharing::new(queries.clone(), settings.clone(), hints.clone());
        Self { queries, settings, hints, sharing }
    }

    pub(crate) fn listen(&self, topic: Topic) -> Listener {
        self.hints.listen(topic, self.queries.settles_after())
    }

    /// The query side of the store.
    pub fn queries(&self) -> &Arc<dyn EventQueries> {
        &self.queries
    }

    /// Settings of reading.
    pub fn settings(&self) -> &QuerySettings {
        &self.settings
    }

    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Events of one type in these slices after `offset`, for ever.
    pub fn events_by_slices(&self, entity_type: &str, slices: RangeInclusive<u16>, offset: Offset) -> Events {
        self.live(EventsOf::Slices { entity_type: entity_type.to_owned(), slices }, offset)
    }

    /// Events of one type in these slices after `offset`, up to the present end.
    pub fn current_events_by_slices(&self, entity_type: &str, slices: RangeInclusive<u16>, offset: Offset) -> Events {
        self.current(EventsOf::Slices { entity_type: entity_type.to_owned(), slices }, offset)
    }

    /// Events with this tag after `offset`, for ever.
    pub fn events_by_tag(&self, tag: &str, offset: Offset) -> Events {
        self.live(EventsOf::Tag(tag.to_owned()), offset)
    }

    /// Events with this tag after `offset`, up to the present end.
    pub fn current_events_by_tag(&self, tag: &str, offset: Offset) -> Events {
        self.current(EventsOf::Tag(tag.to_owned()), offset)
    }

    /// Events `from..=to` of one history; waits for events that are not stored yet. A deleted prefix is
    /// left out.
    pub fn events_by_persistence_id(&self, id: PersistenceId, range: RangeInclusive<SeqNr>) -> History {
        self.history(id, range, Some(self.settings.refresh_interval))
    }

    /// Events `from..=to` of one history, up to its end when the first page is read: events stored
    /// later are left out.
    pub fn current_events_by_persistence_id(&self, id: PersistenceId, range: RangeInclusive<SeqNr>) -> History {
        self.history(id, range, None)
    }

    /// All ids with at least one event ever, of one entity type if one is given, each once, for ever.
    /// First those present, ascending. Keeps every id that it has given in memory, and lists all
    /// ids of the store again every [`QuerySettings::refresh_interval`], and when an entity of this node
    /// has stored its first event.
    pub fn persistence_ids(&self, entity_type: Option<&str>) -> Ids {
        self.ids(entity_type, Some(self.settings.refresh_interval))
    }

    /// All ids with at least one event ever, of one entity type if one is given, ascending.
    pub fn current_persistence_ids(&self, entity_type: Option<&str>) -> Ids {
        self.ids(entity_type, None)
    }

    /// The envelope with its record, loaded if it came without; `None` if the event was deleted since.
    ///
    /// # Errors
    /// [`ReadError`] if the event cannot be read.
    pub async fn load_envelope(&self, envelope: Envelope) -> Result<Option<Envelope>, ReadError> {
        if envelope.record.is_some() {
            return Ok(Some(envelope));
        }
        let record = self.queries.load(&envelope.id, envelope.seq_nr).await?;
        Ok(record.map(|record| envelope.with_record(record)))
    }

    fn live(&self, of: EventsOf, offset: Offset) -> Events {
        let (kind, settings) = (self.queries.caps().kind, self.settings.clone());
        let topic = match &of {
            EventsOf::Tag(tag) => Topic::Tag(tag.clone()),
            EventsOf::Slices { entity_type, .. } => Topic::EntityType(entity_type.clone()),
        };
        self.events(Some(topic), async move |_| Feed::live(of, &offset, kind, settings, now()))
    }

    fn current(&self, of: EventsOf, offset: Offset) -> Events {
        let (kind, settings) = (self.queries.caps().kind, self.settings.clone());
        self.events(None, async move |queries: Arc<dyn EventQueries>| {
            let until = queries.newest().await.map_err(QueryError::Read)?;
            Feed::current(of, &offset, kind, until, settings, now())
        })
    }

    fn events<F>(&self, topic: Option<Topic>, open: impl FnOnce(Arc<dyn EventQueries>) -> F + Send + 'static) -> Events
    where
        F: Future<Output = Result<Feed, QueryError>> + Send,
    {
        let (queries, hints) = (self.queries.clone(), topic.map(|topic| self.listen(topic)));
        let opened = async move {
            let feed = open(queries.clone()).await?;
            let reading = Reading { queries, feed, ready: VecDeque::new(), out: Vec::new(), hints };
            let next = async |mut reading: Reading| reading.next().await.map(|item| (item, reading));
            Ok::<_, QueryError>(stream::unfold(reading, next))
        };
        stream::once(opened).try_flatten().boxed()
    }

    fn history(&self, id: PersistenceId, range: RangeInclusive<SeqNr>, refresh: Option<Duration>) -> History {
        let page = self.settings.page.get();
        let range = ReadRange { max_events: page, ..ReadRange::new(*range.start(), *range.end()) };
        // A single history is read without waiting for events to settle.
        let hints = refresh.map(|_| self.hints.listen(Topic::Id(id.clone()), Duration::ZERO));
        let (queries, ready) = (self.queries.clone(), VecDeque::new());
        let has_end = refresh.is_some();
        let walk = Walk { queries, id, range, refresh, has_end, ready, ended: false, hints };
        stream::unfold(walk, async |mut walk| walk.next().await.map(|item| (item, walk))).boxed()
    }

    fn ids(&self, entity_type: Option<&str>, refresh: Option<Duration>) -> Ids {
        let listing = Listing {
            queries: self.queries.clone(),
            entity_type: entity_type.map(str::to_owned),
            refresh,
            page: self.settings.page.get(),
            after: None,
            given: BTreeSet::new(),
            ready: VecDeque::new(),
            ended: false,
            hints: refresh.map(|_| self.hints.listen(Topic::NewId(entity_type.map(str::to_owned)), Duration::ZERO)),
        };
        stream::unfold(listing, async |mut listing| listing.next().await.map(|item| (item, listing))).boxed()
    }
}

/// The state of an events stream: a feed, and its delivered envelopes.
struct Reading {
    queries: Arc<dyn EventQueries>,
    feed: Feed,
    ready: VecDeque<Envelope>,
    out: Vec<FeedEffect>,
    /// Hints; only for live streams.
    hints: Option<Listener>,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Envelope, QueryError>> {
        if let Some(envelope) = self.ready.pop_front() {
            return Some(Ok(envelope));
        }
        self.feed.handle(now(), FeedInput::Demand, &mut self.out);
        loop {
            for effect in std::mem::take(&mut self.out) {
                match effect {
                    FeedEffect::Query(query) => {
                        let page = self.queries.events(&query).await;
                        self.feed.handle(now(), FeedInput::Page(page), &mut self.out);
                    }
                    FeedEffect::Deliver(envelopes) => self.ready.extend(envelopes),
                    FeedEffect::Failed(error) => return Some(Err(error)),
                    FeedEffect::Ended => return None,
                }
            }
            if let Some(envelope) = self.ready.pop_front() {
                return Some(Ok(envelope));
            }
            if let Some(deadline) = self.feed.next_deadline().filter(|_| self.out.is_empty()) {
                let input = tokio::select! {
                    () = tokio::time::sleep_until(deadline.into()) => FeedInput::Tick,
                    () = heard(&mut self.hints) => FeedInput::Hint,
                };
                self.feed.handle(now(), input, &mut self.out);
            }
        }
    }
}

/// The state of a history stream, read page by page.
struct Walk {
    queries: Arc<dyn EventQueries>,
    id: PersistenceId,
    range: ReadRange,
    refresh: Option<Duration>,
    /// Whether the end of `range` is final: a current stream fixes its end at the start, or a
    /// history that grows faster than it is read would have no end.
    has_end: bool,
    ready: VecDeque<StoredEvent>,
    ended: bool,
    hints: Option<Listener>,
}

impl Walk {
    async fn next(&mut self) -> Option<Result<StoredEvent, ReadError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.ended || self.range.from > self.range.to {
                return None;
            }
            let page = match self.page().await {
                Ok(page) => page,
                Err(error) => {
                    // Pause, so that a consumer that polls on does not get the same error at once.
                    self.rest().await;
                    return Some(Err(error));
                }
            };
            let last = page.records.last().map(|record| record.seq_nr);
            self.ready.extend(page.records);
            match (page.next, last.map(SeqNr::next)) {
                (Some(next), _) => self.range.from = next,
                (None, Some(next)) => {
                    self.ended = self.refresh.is_none() || next.is_none();
                    self.range.from = next.unwrap_or(self.range.from);
                }
                (None, None) => self.rest().await,
            }
        }
    }

    async fn page(&mut self) -> Result<Page, ReadError> {
        let page = self.queries.read(&self.id, self.range).await?;
        if page.next.is_some() && !self.has_end {
            let highest = self.queries.highest(&self.id).await?;
            self.range.to = self.range.to.min(highest);
            self.has_end = true;
        }
        Ok(page)
    }

    async fn rest(&mut self) {
        match self.refresh {
            Some(interval) => {
                // Wait for the interval or a hint, whichever comes first.
                let _ = tokio::time::timeout(interval, heard(&mut self.hints)).await;
            }
            None => self.ended = true,
        }
    }
}

/// The state of an ids stream, read page by page.
struct Listing {
    queries: Arc<dyn EventQueries>,
    entity_type: Option<String>,
    refresh: Option<Duration>,
    page: usize,
    after: Option<PersistenceId>,
    /// Ids given so far; only for live streams, since a new id may sort before those given.
    given: BTreeSet<PersistenceId>,
    ready: VecDeque<PersistenceId>,
    ended: bool,
    hints: Option<Listener>,
}

impl Listing {
    async fn next(&mut self) -> Option<Result<PersistenceId, ReadError>> {
        loop {
            if let Some(id) = self.ready.pop_front() {
                return Some(Ok(id));
            }
            if self.ended {
                return None;
            }
            let (entity_type, after) = (self.entity_type.as_deref(), self.after.as_ref());
            let ids = match self.queries.persistence_ids(entity_type, after, self.page).await {
                Ok(ids) => ids,
                Err(error) => {
                    self.rest().await;
                    return Some(Err(error));
                }
            };
            let is_full = ids.len() == self.page;
            self.after = ids.last().cloned().filter(|_| is_full);
            match self.refresh {
                Some(_) => self.ready.extend(ids.into_iter().filter(|id| self.given.insert(id.clone()))),
                None => self.ready.extend(ids),
            }
            if !is_full && (self.refresh.is_none() || self.ready.is_empty()) {
                self.rest().await;
            }
        }
    }

    async fn rest(&mut self) {
        match self.refresh {
            Some(interval) => {
                // Wait for the interval or a hint, whichever comes first.
                let _ = tokio::time::timeout(interval, heard(&mut self.hints)).await;
            }
            None => self.ended = true,
        }
    }
}

/// Waits for a hint; for ever without a listener.
async fn heard(hints: &mut Option<Listener>) {
    match hints {
        Some(listener) => listener.heard().await,
        None => std::future::pending().await,
    }
}

/// The runtime's clock, so that a test can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
