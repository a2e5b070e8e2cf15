//! A small journal with a record of every kind, and the answers to reading it.

use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    ChangesOf, Cursor, EventQueries, EventsOf, Journal, Offset, OffsetStore, PageQuery, Position, Processed, ReadRange,
    SLICES, SeqNr, SnapshotCriteria, SnapshotStore, StateStore, Visible,
};

use crate::common::{Writer, id, snapshot, upsert};

pub(crate) const IDS: u32 = 5;

/// Answers to all questions, in order; the error is a short text.
pub(crate) type Answers = Vec<(String, Result<String, String>)>;

pub(crate) fn settings() -> SledJournalSettings {
    let mut settings = SledJournalSettings::test();
    settings.store.cache_bytes = 4 << 20;
    settings
}

fn name(number: u32) -> greylag_persistence::PersistenceId {
    id(&format!("Sample|{number}"))
}

/// One round of work: every id gets events, a state and a snapshot, and loses its oldest events.
pub(crate) async fn work(journal: &SledJournal, round: u32, payload_bytes: usize) {
    let text = "x".repeat(payload_bytes);
    let append = async |number: u32| {
        let mut writer = Writer::claim(journal, name(number)).await;
        for at in 0..3 {
            writer.append(journal, &[&format!("{number}:{round}:{at}:{text}"), "second"]).await;
        }
        if round > 2 {
            let to = SeqNr::saturating(writer.highest.as_u64().saturating_sub(12));
            journal.delete_to(&writer.id, writer.epoch, to).await.unwrap();
        }
        let state = format!("{number}:{round}:{text}");
        upsert(&journal.states(), &writer.id, round, &state).await;
        let save = snapshot(&writer.id, writer.highest, format!("{number}:{round}:{text}").into_bytes());
        journal.snapshots().save(save).await.unwrap();
        let up_to = SnapshotCriteria::up_to(SeqNr::saturating(writer.highest.as_u64() - 6));
        journal.snapshots().delete_matching(&writer.id, up_to).await.unwrap();
    };
    futures::future::join_all((1..=IDS).map(append)).await;
    let offsets = journal.offsets();
    let owned = offsets.claim("sums", 0..=31).await.unwrap();
    let own = (1..).map(name).find(|id| id.slice() < 32).unwrap();
    let position = Position::Ordinal(round.into());
    offsets.save(&owned, &[Processed { id: own, seq_nr: SeqNr::FIRST, position }]).await.unwrap();
}

/// Reads everything.
pub(crate) async fn read(journal: &SledJournal) -> Answers {
    let mut answers = Answers::new();
    let mut note = |what: String, answer: Result<String, String>| answers.push((what, answer));
    for number in 1..=IDS {
        let id = name(number);
        note(format!("head of {id}"), shown(journal.head(&id).await));
        // Events are read one by one, so that damage to one hides no other; and all at once, as recovery does.
        note(format!("events of {id}"), shown(journal.read(&id, ReadRange::all()).await));
        for seq_nr in 1..=60_u32 {
            let range = ReadRange { from: seq_nr.into(), to: seq_nr.into(), ..ReadRange::all() };
            note(format!("event {seq_nr} of {id}"), shown(journal.read(&id, range).await));
        }
        note(format!("state of {id}"), shown(journal.states().get(&id).await));
        for bound in [SnapshotCriteria::LATEST, SnapshotCriteria::up_to(SeqNr::from(8))] {
            note(format!("snapshot of {id}, {bound:?}"), shown(journal.snapshots().load(&id, bound).await));
        }
    }
    note("ids".to_owned(), shown(journal.queries().persistence_ids(None, None, 1000).await));
    note("state ids".to_owned(), shown(journal.states().ids(None, 1000).await));
    for of in
        [EventsOf::Slices { entity_type: "Sample".to_owned(), slices: 0..=SLICES - 1 }, EventsOf::Tag("odd".to_owned())]
    {
        let (what, visible) = (format!("{of:?}"), Visible::All);
        let page = PageQuery { of, after: Cursor::Start, until: None, visible, limit: 10_000, load: true };
        // A page that ends early may end before damage; the next page then answers the error.
        let page = match journal.queries().events(&page).await {
            Ok(found) if found.more => {
                let next = PageQuery { after: found.next.clone(), ..page };
                journal.queries().events(&next).await.map(|_| found)
            }
            page => page,
        };
        note(what, shown(page));
    }
    let of = ChangesOf::Tag("odd".to_owned());
    let changes = journal.states().changes(&of, &Offset::None, 1000).await;
    let changes = match (changes, journal.states().get(&name(1)).await) {
        // As with pages of events, the changes after the last one are asked for, too.
        (Ok(found), _) => match found.last().map(|last| last.offset.clone()) {
            Some(last) => journal.states().changes(&of, &last, 1000).await.map(|_| found),
            None => Ok(found),
        },
        (Err(error), _) => Err(error),
    };
    note("changes of states".to_owned(), shown(changes));
    note("offsets".to_owned(), shown(journal.offsets().load("sums", 0..=SLICES - 1).await));
    answers
}

fn shown<T: std::fmt::Debug, E: std::fmt::Display>(answer: Result<T, E>) -> Result<String, String> {
    answer.map(|answer| format!("{answer:?}")).map_err(|error| error.to_string())
}
