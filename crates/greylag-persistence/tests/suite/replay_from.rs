//! Snapshots that leave data to the events: recovery reads those events, and retention keeps them.

use std::num::NonZeroU64;
use std::sync::Arc;

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::driver::{self, Ended, EntityHandle};
use greylag_persistence::{
    Ctx, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, Failure, InMemoryJournal,
    InMemorySnapshots, OnFailure, Persisted, PersistenceId, Recovery, RecoveryFailure, RecoveryPermits, SeqNr,
    SnapshotCriteria, Stores,
};
use tokio::sync::oneshot;

/// A line of text, and the number of its event. Snapshots store only the number.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Line {
    event: u64,
    #[serde(skip)]
    text: Option<String>,
}

/// The lines, and the number of events folded, refills not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Page {
    lines: Vec<Line>,
    folded: u64,
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Event {
    Written(String),
    FirstErased,
}

enum Command {
    Write(String, ReplyTo<()>),
    EraseFirst(ReplyTo<()>),
    DeleteEvents(SeqNr),
    Read(ReplyTo<Page>),
}

struct Notebook {
    recovery: Recovery,
}

fn id() -> PersistenceId {
    PersistenceId::of("Notebook", "1").unwrap()
}

impl EventSourced for Notebook {
    type Command = Command;
    type Event = Event;
    type State = Page;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings {
            recovery: self.recovery,
            snapshot_every: NonZeroU64::new(4),
            delete_events: true,
            replay_page_events: 3.try_into().unwrap(),
            on_failure: OnFailure::Stop,
            ..EventSourcedSettings::test()
        }
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, _: &Page, command: Command) -> Effect<Self> {
        match command {
            Command::Write(text, done) => Effect::<Self>::persist(Event::Written(text)).then_reply(done, |_| ()),
            Command::EraseFirst(done) => Effect::<Self>::persist(Event::FirstErased).then_reply(done, |_| ()),
            Command::DeleteEvents(to) => {
                cx.delete_events_to(to);
                Effect::none()
            }
            Command::Read(to) => Effect::<Self>::none().then_reply(to, Page::clone),
        }
    }

    fn apply(_: &mut Page, _: &Event) {
        unreachable!("lines are kept by the numbers of their events")
    }

    fn apply_with(&self, page: &mut Page, event: &Event, meta: &EventMeta<'_>) {
        let event_nr = meta.seq_nr.as_u64();
        if meta.refill {
            if let Event::Written(text) = event
                && let Some(line) = page.lines.iter_mut().find(|line| line.event == event_nr)
            {
                line.text = Some(text.clone());
            }
            return;
        }
        page.folded += 1;
        match event {
            Event::Written(text) => page.lines.push(Line { event: event_nr, text: Some(text.clone()) }),
            Event::FirstErased => drop(page.lines.remove(0)),
        }
    }

    fn replay_from(&self, page: &Page) -> Option<SeqNr> {
        page.lines.first().map(|line| SeqNr::saturating(line.event))
    }
}

impl Notebook {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = id();
        EventCodecs::new(json("notebook.event")).snapshots(json("notebook.page")).of(id, self)
    }
}

fn start(stores: &Stores, recovery: Recovery) -> (EntityHandle<Command>, oneshot::Receiver<Ended>) {
    driver::spawn(Notebook { recovery }.stored(), stores.clone(), RecoveryPermits::default()).unwrap()
}

async fn write(notebook: &EntityHandle<Command>, texts: &[&str]) {
    for text in texts {
        notebook.ask(|done| Command::Write((*text).to_owned(), done)).await.unwrap();
        // Snapshots and deletions run in the background; in memory they take a few turns.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

async fn texts(notebook: &EntityHandle<Command>) -> Vec<String> {
    let page = notebook.ask(Command::Read).await.unwrap();
    page.lines.into_iter().map(|line| line.text.expect("the text of every line is there")).collect()
}

fn stores() -> (InMemoryJournal, InMemorySnapshots, Stores) {
    let (journal, snapshots) = (InMemoryJournal::default(), InMemorySnapshots::default());
    let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
    (journal, snapshots, stores)
}

fn first_event(journal: &InMemoryJournal) -> u64 {
    journal.events(&id()).first().unwrap().seq_nr.as_u64()
}

/// Of persistence §2.8: recovery takes the data that the snapshot left out from the events, and folds no
/// event twice.
#[tokio::test]
async fn recovery_reads_what_a_snapshot_left_out_from_the_events() {
    let (journal, snapshots, stores) = stores();
    let (notebook, end) = start(&stores, Recovery::default());
    write(&notebook, &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    notebook.stop().await;
    end.await.unwrap();
    assert_eq!(snapshots.snapshots(&id()).last().unwrap().seq_nr, SeqNr::from(8));
    assert_eq!(first_event(&journal), 1, "the first line is still needed");

    let (notebook, _end) = start(&stores, Recovery::default());
    assert_eq!(texts(&notebook).await, ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
    assert_eq!(notebook.ask(Command::Read).await.unwrap().folded, 10);
}

/// Of persistence §2.8: retention deletes events below those that any kept snapshot needs, and no others; a
/// successor knows the events that its predecessor's snapshots need.
#[tokio::test]
async fn retention_keeps_what_snapshots_left_out() {
    let (journal, snapshots, stores) = stores();
    let (notebook, end) = start(&stores, Recovery::default());
    write(&notebook, &["a", "b", "c"]).await;
    for _ in 0..2 {
        notebook.ask(Command::EraseFirst).await.unwrap(); // 4 and 5: "c" of event 3 is the first line
    }
    write(&notebook, &["d", "e", "f", "g"]).await; // snapshots at 4, needing 2, and at 8, needing 3
    notebook.stop().await;
    end.await.unwrap();
    assert_eq!(first_event(&journal), 2, "the snapshot at 4 is kept, and needs 2");

    let (notebook, end) = start(&stores, Recovery::default());
    notebook.ask(Command::EraseFirst).await.unwrap();
    write(&notebook, &["h", "i", "j"]).await; // a snapshot at 12, needing 6; the one at 8 is kept, and needs 3
    notebook.stop().await;
    end.await.unwrap();
    let kept: Vec<u64> = snapshots.snapshots(&id()).iter().map(|snapshot| snapshot.seq_nr.as_u64()).collect();
    assert_eq!((kept, first_event(&journal)), (vec![8, 12], 3));
    let newest = SeqNr::from(12);
    assert!(snapshots.damage(&id(), newest, false));
    let (notebook, _end) = start(&stores, Recovery::default());
    assert_eq!(texts(&notebook).await, ["d", "e", "f", "g", "h", "i", "j"], "from the older one too");
}

/// Of persistence §2.8: a snapshot whose events are deleted gives no state; recovery names the missing events.
#[tokio::test]
async fn a_snapshot_without_its_events_is_refused() {
    let (journal, _, stores) = stores();
    let (notebook, end) = start(&stores, Recovery::default());
    write(&notebook, &["a", "b", "c", "d", "e"]).await;
    notebook.tell(Command::DeleteEvents(SeqNr::from(2))).await.unwrap();
    write(&notebook, &["f"]).await;
    assert_eq!(first_event(&journal), 3);
    notebook.stop().await;
    end.await.unwrap();
    let (_notebook, end) = start(&stores, Recovery::default());
    let (snapshot, replay_from, deleted_to) = (SeqNr::from(4), SeqNr::from(1), SeqNr::from(2));
    let missing = RecoveryFailure::RefillMissing { snapshot, replay_from, deleted_to };
    assert_eq!(end.await.unwrap(), Ended::Failed(Failure::Recovery(missing)));
}

/// Of persistence §2.2: a recovery begins at the newest snapshot that its criteria allow.
#[tokio::test]
async fn a_recovery_begins_at_a_snapshot_of_its_criteria() {
    let (_, snapshots, stores) = stores();
    let (notebook, end) = start(&stores, Recovery::default());
    write(&notebook, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    notebook.stop().await;
    end.await.unwrap();
    let kept: Vec<u64> = snapshots.snapshots(&id()).iter().map(|snapshot| snapshot.seq_nr.as_u64()).collect();
    assert_eq!(kept, [4, 8]);
    for (newest, expected) in [(8, 8), (7, 4)] {
        let criteria = SnapshotCriteria { max_seq_nr: SeqNr::from(newest), ..SnapshotCriteria::LATEST };
        let (notebook, _end) = start(&stores, Recovery::default().snapshots(criteria).max_events(0));
        assert_eq!(texts(&notebook).await.len(), expected, "{newest}");
    }
}

/// A recovery bounded by a number of events counts those after the snapshot.
#[tokio::test]
async fn a_bounded_recovery_still_reads_what_was_left_out() {
    let (_, _, stores) = stores();
    let (notebook, end) = start(&stores, Recovery::default());
    write(&notebook, &["a", "b", "c", "d", "e", "f"]).await;
    notebook.stop().await;
    end.await.unwrap();
    for (max_events, expected) in [(0, 4), (1, 5), (2, 6), (9, 6)] {
        let (notebook, _end) = start(&stores, Recovery::default().max_events(max_events));
        assert_eq!(texts(&notebook).await, &["a", "b", "c", "d", "e", "f"][..expected], "{max_events}");
    }
}
