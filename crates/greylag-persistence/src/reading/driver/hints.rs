//! Notifies the readers of a node of new events of its entities, so that they read at once.
//!
//! A hint carries no event: a reader that gets a hint queries the store, and reads in the store's order. So a
//! lost hint only delays reading until the next refresh. A hint is delivered when the store shows the new events
//! ([`EventQueries::settles_after`](crate::EventQueries::settles_after)), and at most every 10 ms, so
//! that many small appends become one page. Source: persistence §2.8 (event publishing).

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::contract::records::event::{SeqNr, Tags};
use crate::contract::records::persistence_id::PersistenceId;

/// Shortest time between two hints to one reader.
const GAP: Duration = Duration::from_millis(10);

/// Notifies the readers of a node of new events of its entities. Clones share their listeners.
///
/// Entities that run over one [`Stores`](crate::Stores) announce their appends here, and readers made by
/// [`Stores::read_journal`](crate::Stores::read_journal) listen. Costs a lookup for each append, and nothing while
/// no reader listens.
#[derive(Clone, Default)]
pub struct Hints {
    topics: Arc<RwLock<Topics>>,
    listeners: Arc<AtomicUsize>,
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hints({} listeners)", self.listeners.load(Ordering::Relaxed))
    }
}

/// The topics that have a listener, and no others.
#[derive(Default)]
struct Topics {
    new_ids: HashMap<Option<String>, watch::Sender<()>>,
    types: HashMap<String, watch::Sender<()>>,
    tags: HashMap<String, watch::Sender<()>>,
    ids: HashMap<PersistenceId, watch::Sender<()>>,
}

/// The events that a reader wants hints of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The first event of an id, of one entity type if one is given. A reader that lists ids queries all
    /// ids, so later appends do not wake it.
    NewId(Option<String>),
    /// Events of entities of this type.
    EntityType(String),
    /// Events with this tag.
    Tag(String),
    /// Events of this history.
    Id(PersistenceId),
}

impl Topics {
    fn listen(&mut self, topic: &Topic) -> watch::Receiver<()> {
        fn of<K: Hash + Eq>(topics: &mut HashMap<K, watch::Sender<()>>, key: K) -> watch::Receiver<()> {
            topics.entry(key).or_insert_with(|| watch::Sender::new(())).subscribe()
        }
        match topic.clone() {
            Topic::NewId(entity_type) => of(&mut self.new_ids, entity_type),
            Topic::EntityType(entity_type) => of(&mut self.types, entity_type),
            Topic::Tag(tag) => of(&mut self.tags, tag),
            Topic::Id(id) => of(&mut self.ids, id),
        }
    }

    /// Removes the topic if its last listener has gone.
    fn forget(&mut self, topic: &Topic) {
        fn of<K: Hash + Eq>(topics: &mut HashMap<K, watch::Sender<()>>, key: &K) {
            if topics.get(key).is_some_and(|sender| sender.receiver_count() == 0) {
                topics.remove(key);
            }
        }
        match topic {
            Topic::NewId(entity_type) => of(&mut self.new_ids, entity_type),
            Topic::EntityType(entity_type) => of(&mut self.types, entity_type),
            Topic::Tag(tag) => of(&mut self.tags, tag),
            Topic::Id(id) => of(&mut self.ids, id),
        }
    }
}

impl Hints {
    /// Announces stored events of this id, from `first` on, with these tags.
    pub(crate) fn announce(&self, id: &PersistenceId, first: SeqNr, tags: &Tags) {
        if self.listeners.load(Ordering::Acquire) == 0 {
            return;
        }
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let by_tags = tags.iter().filter_map(|tag| topics.tags.get(tag));
        let is_new = first == SeqNr::FIRST;
        let lists = is_new.then(|| [None, Some(id.entity_type().to_owned())]).into_iter().flatten();
        let lists = lists.filter_map(|entity_type| topics.new_ids.get(&entity_type));
        let others = [topics.types.get(id.entity_type()), topics.ids.get(id)];
        for heard in others.into_iter().flatten().chain(lists).chain(by_tags) {
            heard.send_replace(());
        }
    }

    /// Adds a listener. Hints are delivered `settling` after the append.
    pub(crate) fn listen(&self, topic: Topic, settling: Duration) -> Listener {
        let receiver = Some(self.write().listen(&topic));
        self.listeners.fetch_add(1, Ordering::AcqRel);
        Listener { hints: self.clone(), topic, receiver, settling, due: None, last: Instant::now() }
    }

    fn write(&self) -> RwLockWriteGuard<'_, Topics> {
        self.topics.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the hints of one topic.
#[derive(Debug)]
pub(crate) struct Listener {
    hints: Hints,
    topic: Topic,
    /// `Some` until the drop.
    receiver: Option<watch::Receiver<()>>,
    settling: Duration,
    /// When to deliver the hint that was announced.
    due: Option<Instant>,
    last: Instant,
}

impl Listener {
    /// Waits until there is something to read. Cancellation loses no hint.
    pub(crate) async fn heard(&mut self) {
        let due = match self.due {
            Some(due) => due,
            None => {
                self.announced().await;
                *self.due.insert((Instant::now() + self.settling).max(self.last + GAP))
            }
        };
        tokio::time::sleep_until(due).await;
        (self.due, self.last) = (None, due);
    }

    async fn announced(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.changed().await.is_ok()
        {
            return;
        }
        // Not reached: the listener's topic keeps the sender alive.
        std::future::pending::<()>().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.hints.write();
        self.receiver = None;
        topics.forget(&self.topic);
        self.hints.listeners.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn id(text: &str) -> PersistenceId {
        text.parse().unwrap()
    }

    /// Rule persistence §2.8 (event publishing): a hint wakes the listeners of its topics, and no others.
    #[tokio::test(start_paused = true)]
    async fn a_hint_reaches_only_the_listeners_that_it_concerns() {
        let hints = Hints::default();
        let of = |topic| hints.listen(topic, Duration::ZERO);
        let topics = [
            Topic::NewId(None),
            Topic::NewId(Some("Cart".into())),
            Topic::EntityType("Cart".into()),
            Topic::Tag("red".into()),
            Topic::Id(id("Cart|1")),
        ];
        let mut listeners = topics.map(of);
        for (announced, first, tags, expected) in [
            ("Cart|1", 1_u32, &["red"][..], [true, true, true, true, true]),
            ("Cart|1", 2, &["red"], [false, false, true, true, true]),
            ("Cart|2", 1, &[], [true, true, true, false, false]),
            ("Order|1", 1, &["blue", "red"], [true, false, false, true, false]),
            ("Order|1", 2, &[], [false; 5]),
        ] {
            tokio::time::advance(GAP).await;
            let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
            hints.announce(&id(announced), SeqNr::from(first), &tags);
            let heard = listeners.each_mut().map(|listener| listener.heard().now_or_never().is_some());
            assert_eq!(heard, expected, "{announced} from {first} {tags:?}");
        }
        drop(listeners);
        let topics = hints.write();
        assert_eq!(topics.new_ids.len() + topics.types.len() + topics.tags.len() + topics.ids.len(), 0);
        assert_eq!(hints.listeners.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn hints_wait_for_settling_and_are_rate_limited() {
        let (hints, settling) = (Hints::default(), Duration::from_millis(100));
        let mut listener = hints.listen(Topic::NewId(None), settling);
        let start = Instant::now();
        hints.announce(&id("Cart|1"), SeqNr::FIRST, &Tags::new());
        // Cancelling the wait loses no hint.
        assert!(tokio::time::timeout(Duration::from_millis(40), listener.heard()).await.is_err());
        hints.announce(&id("Cart|2"), SeqNr::FIRST, &Tags::new());
        listener.heard().await;
        assert_eq!(start.elapsed(), settling);
        // The second event is not settled yet, so its hint comes later.
        listener.heard().await;
        assert_eq!(start.elapsed(), settling * 2);
        let mut hasty = hints.listen(Topic::NewId(None), Duration::ZERO);
        let start = Instant::now();
        for _ in 0..10 {
            hints.announce(&id("Cart|1"), SeqNr::FIRST, &Tags::new());
            hasty.heard().await;
        }
        assert_eq!(start.elapsed(), GAP * 10);
    }
}
