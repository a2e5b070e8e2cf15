//! Acknowledged values, and the comparison of a store with them.

use std::collections::BTreeMap;
use std::path::Path;

use greylag_journal_sled::SledJournal;
use greylag_persistence::{
    ChangesOf, Cursor, EventQueries, EventsOf, Journal, Offset, OffsetStore, PageQuery, Position, SLICES, SeqNr,
    SnapshotCriteria, SnapshotStore, StateStore, Visible,
};

use crate::common::{id, open, read_all};
use crate::crash::load::{SNAPSHOT_BYTES, STATES, WRITERS, content, events_of_append, fill, is_deletion, ordinal_of};

/// The greatest value that was acknowledged, or found after an opening, by kind of value and number of its owner.
#[derive(Debug, Default, Clone)]
pub(crate) struct Known {
    values: BTreeMap<(String, usize), u64>,
    acks: usize,
    /// The ordinal up to which events were compared with the queries.
    queried: Option<u64>,
}

impl Known {
    /// Notes a line of the child; answers whether it is an acknowledgement.
    pub(crate) fn note(&mut self, line: &str) -> bool {
        // The first line may begin with text of the test harness. A line that the kill cut off names a smaller value,
        // which was acknowledged too.
        let Some(at) = line.find("ack ") else { return false };
        let words: Vec<_> = line[at..].split_whitespace().collect();
        let &[_, what, number, value] = &words[..] else { return false };
        let (Ok(number), Ok(value)) = (number.parse(), value.parse()) else { return false };
        self.raise(what, number, value);
        self.acks += 1;
        true
    }

    pub(crate) fn acks(&self) -> usize {
        self.acks
    }

    fn value(&self, what: &str, number: usize) -> u64 {
        self.values.get(&(what.to_owned(), number)).copied().unwrap_or_default()
    }

    fn raise(&mut self, what: &str, number: usize, value: u64) {
        let greatest = self.values.entry((what.to_owned(), number)).or_default();
        *greatest = value.max(*greatest);
    }

    /// Asserts that the found value is at least the known one, and makes it the known one.
    fn at_least(&mut self, what: &str, number: usize, found: u64, when: &str) {
        let known = self.value(what, number);
        assert!(found >= known, "{when}: of {what} {number}, {known} was acknowledged, {found} is there");
        self.raise(what, number, found);
    }

    /// Opens the store and compares everything with the known values.
    pub(crate) async fn compare(&mut self, directory: &Path, when: &str) {
        let journal = open(directory).await;
        for number in 0..WRITERS {
            self.compare_events(&journal, number, when).await;
        }
        self.compare_queries(&journal, when).await;
        self.compare_states(&journal, when).await;
        self.compare_offsets(&journal, when).await;
        self.compare_snapshots(&journal, when).await;
        journal.close().await.unwrap();
        let blobs = std::fs::read_dir(directory.join("blobs")).map_or(0, Iterator::count);
        assert_eq!(blobs, 0, "{when}: values in blobs/ are never synced");
    }

    async fn compare_events(&mut self, journal: &SledJournal, number: usize, when: &str) {
        let id = id(&format!("Crash|{number}"));
        let head = journal.head(&id).await.unwrap();
        self.at_least("append", number, head.highest.as_u64(), when);
        self.at_least("delete", number, head.deleted_to.as_u64(), when);
        self.at_least("epoch", number, head.epoch.as_u64(), when);
        let events = read_all(journal, &id).await;
        let expected = head.deleted_to.as_u64() + 1..=head.highest.as_u64();
        assert!(events.iter().map(|event| event.seq_nr.as_u64()).eq(expected), "{when}: a hole in {id}");
        for event in &events {
            let begin = content(number, event.seq_nr.as_u64(), 0);
            assert!(event.payload.starts_with(begin.as_bytes()), "{when}: {id} {}", event.seq_nr);
        }
        // The history must end at the end of an append: appends are atomic.
        let mut end = 0;
        while end < head.highest.as_u64() {
            end += events_of_append(end + 1);
        }
        assert_eq!(end, head.highest.as_u64(), "{when}: {id} is torn");
    }

    /// Queries by slice and by tag must find the last event of every id that grew.
    async fn compare_queries(&mut self, journal: &SledJournal, when: &str) {
        let slices = EventsOf::Slices { entity_type: "Crash".to_owned(), slices: 0..=SLICES - 1 };
        let mut newest = self.queried;
        for of in [slices, EventsOf::Tag("odd".to_owned())] {
            let mut last: BTreeMap<_, SeqNr> = BTreeMap::new();
            let mut after = self.queried.map_or(Cursor::Start, Cursor::Ordinal);
            loop {
                let (of, visible) = (of.clone(), Visible::All);
                let page = PageQuery { of, after, until: None, visible, limit: 1000, load: true };
                let page = journal.queries().events(&page).await.unwrap();
                for event in page.events {
                    let before = last.insert(event.id, event.seq_nr);
                    assert!(before.is_none_or(|before| before < event.seq_nr), "{when}: out of order");
                    let Position::Ordinal(ordinal) = event.position else { panic!("a foreign position") };
                    newest = newest.max(Some(ordinal));
                }
                after = page.next;
                if !page.more {
                    break;
                }
            }
            for (id, seq_nr) in last {
                assert_eq!(journal.head(&id).await.unwrap().highest, seq_nr, "{when}: {of:?} ends early for {id}");
            }
        }
        self.queried = newest;
    }

    async fn compare_states(&mut self, journal: &SledJournal, when: &str) {
        let states = journal.states();
        let feed = states.changes(&ChangesOf::Tag("crash".to_owned()), &Offset::None, 1000).await.unwrap();
        let mut written = 0;
        for number in 0..STATES {
            let state = states.get(&id(&format!("Crash|{number}"))).await.unwrap();
            self.at_least("state", number, state.revision.as_u64(), when);
            if state.revision.is_none() {
                continue;
            }
            written += 1;
            let begin = content(number, state.revision.as_u64(), 0);
            let is_right = match &state.value {
                Some(value) => !is_deletion(state.revision) && value.payload.starts_with(begin.as_bytes()),
                None => is_deletion(state.revision),
            };
            assert!(is_right, "{when}: state {number} at {}", state.revision);
            let changes: Vec<_> = feed.iter().filter(|change| change.state.id == state.id).collect();
            assert_eq!(changes.len(), 1, "{when}: state {number} in the feed");
            assert_eq!(changes[0].state, state, "{when}");
        }
        assert_eq!(feed.len(), written, "{when}");
    }

    async fn compare_offsets(&mut self, journal: &SledJournal, when: &str) {
        let offsets = journal.offsets();
        let saved = offsets.load("crash", 0..=SLICES - 1).await.unwrap();
        let saved: Vec<_> = saved.iter().map(ordinal_of).collect();
        assert!(saved.windows(2).all(|pair| pair[0] == pair[1]), "{when}: a save by halves: {saved:?}");
        self.at_least("offset", 0, saved.first().copied().unwrap_or_default(), when);
        let epoch = offsets.claim("crash", 0..=0).await.unwrap().epochs[&0].as_u64();
        assert!(epoch > self.value("owner", 0), "{when}: the epoch of an owner came back");
        self.raise("owner", 0, epoch);
    }

    async fn compare_snapshots(&mut self, journal: &SledJournal, when: &str) {
        let snapshots = journal.snapshots();
        let found = snapshots.load(&id("Crash|0"), SnapshotCriteria::LATEST).await.unwrap();
        self.at_least("snapshot", 0, found.as_ref().map_or(0, |found| found.seq_nr.as_u64()), when);
        if let Some(found) = found {
            let is_whole = found.payload.len() == SNAPSHOT_BYTES;
            assert!(is_whole && found.payload.iter().all(|byte| *byte == fill(found.seq_nr)), "{when}: mixed chunks");
        }
        let deleted = SnapshotCriteria::up_to(SeqNr::saturating(self.value("forget", 0)));
        let back = snapshots.load(&id("Crash|0"), deleted).await.unwrap();
        assert!(back.is_none() || deleted.max_seq_nr.is_zero(), "{when}: a deleted snapshot came back");
    }
}
