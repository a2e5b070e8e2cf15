//! Queries in memory, of events and of changes of states, pass their kits, and the kits find planted
//! bugs.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::FutureExt;
use greylag_persistence::tck::{self, ChangeFactory, Flags, QueryFactory, Report};
use greylag_persistence::{
    Cursor, EventKind, EventPage, EventQueries, EventsOf, InMemoryJournal, InMemoryStates, Journal, Page, PageQuery,
    PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange, SeqNr, Shows, StateStore,
};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

/// Opens journals in memory, with the hook of the kit; their queries as they are, or with a bug.
struct Memory {
    bug: Option<Bug>,
    opened: Mutex<Vec<InMemoryJournal>>,
}

#[async_trait]
impl QueryFactory for Memory {
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>) {
        let journal = InMemoryJournal::default();
        self.opened.lock().unwrap().push(journal.clone());
        (Arc::new(journal.clone()), Arc::new(Broken { queries: Arc::new(journal.queries()), bug: self.bug }))
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.opened.lock().unwrap().iter().any(|journal| journal.corrupt(id, seq_nr))
    }
}

/// As [`Memory`], for states.
struct States {
    bug: Option<Bug>,
    opened: Mutex<Vec<InMemoryStates>>,
}

#[async_trait]
impl ChangeFactory for States {
    async fn open(&self) -> (Arc<dyn StateStore>, Arc<dyn EventQueries>) {
        let states = InMemoryStates::default();
        self.opened.lock().unwrap().push(states.clone());
        let queries = Broken { queries: Arc::new(states.queries()), bug: self.bug };
        (Arc::new(states), Arc::new(queries))
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.opened.lock().unwrap().iter().any(|states| states.corrupt(id))
    }
}

/// A rule of the contract that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    OffsetsAreInclusive,
    SlicesAreIgnored,
    TypesAreIgnored,
    TagsAreIgnored,
    TheEndIsIgnored,
    TheLastOfAPageIsLost,
    PagesAreBackwards,
    DamageIsSkipped,
    ForeignOffsetsAreTheStart,
    IdsAreInclusive,
    IdsIgnoreTheirType,
    TheNewestIsForgotten,
    ReplacedOnesAreMissed,
    DeletionsAreHidden,
    ReplacedOnesAreRead,
    NothingIsNew,
    TheHighestIsTheFirst,
}

struct Broken {
    queries: Arc<dyn EventQueries>,
    bug: Option<Bug>,
}

#[async_trait]
impl EventQueries for Broken {
    fn caps(&self) -> QueryCaps {
        let caps = self.queries.caps();
        if self.bug == Some(Bug::ReplacedOnesAreMissed) { QueryCaps { shows: Shows::Every, ..caps } } else { caps }
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let entity_type = entity_type.filter(|_| self.bug != Some(Bug::IdsIgnoreTheirType));
        let mut ids = self.queries.persistence_ids(entity_type, after, limit).await?;
        if let Some(after) = after.filter(|_| self.bug == Some(Bug::IdsAreInclusive)) {
            ids.insert(0, after.clone());
            ids.truncate(limit);
        }
        Ok(ids)
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let newest = self.queries.newest().await?;
        Ok(newest.filter(|_| self.bug != Some(Bug::TheNewestIsForgotten)))
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let mut query = query.clone();
        match (self.bug, &mut query.of) {
            (Some(Bug::OffsetsAreInclusive), _) => {
                if let Cursor::Ordinal(ordinal) = &mut query.after {
                    *ordinal -= 1;
                }
            }
            (Some(Bug::SlicesAreIgnored), EventsOf::Slices { slices, .. }) => *slices = 0..=1023,
            (Some(Bug::TypesAreIgnored), EventsOf::Slices { entity_type, .. }) if entity_type == "tckq-slices" => {
                "tckq-slices-other".clone_into(entity_type);
            }
            (Some(Bug::TagsAreIgnored), EventsOf::Tag(tag)) => "tckq-blue".clone_into(tag),
            (Some(Bug::TheEndIsIgnored), _) => query.until = None,
            (Some(Bug::ForeignOffsetsAreTheStart), _) if matches!(query.after, Cursor::Row { .. }) => {
                query.after = Cursor::Start;
            }
            _ => {}
        }
        let page = self.queries.events(&query).await;
        if self.bug == Some(Bug::DamageIsSkipped) && page.is_err() {
            return Ok(EventPage { events: Vec::new(), next: query.after, more: false });
        }
        let mut page = page?;
        match self.bug {
            Some(Bug::TheLastOfAPageIsLost) if page.more => drop(page.events.pop()),
            Some(Bug::PagesAreBackwards) => page.events.reverse(),
            Some(Bug::DeletionsAreHidden) => {
                let is_deletion = |kind: Option<EventKind>| kind == Some(EventKind::Filtered);
                page.events.retain(|found| !is_deletion(found.event.as_ref().map(|event| event.kind)));
            }
            Some(Bug::NothingIsNew) if query.after != Cursor::Start => page.events.clear(),
            _ => {}
        }
        Ok(page)
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let any = self.bug == Some(Bug::ReplacedOnesAreRead);
        self.queries.read(id, if any { ReadRange::all() } else { range }).await
    }

    async fn highest(&self, id: &PersistenceId) -> Result<SeqNr, ReadError> {
        let highest = self.queries.highest(id).await?;
        Ok(if self.bug == Some(Bug::TheHighestIsTheFirst) { highest.min(SeqNr::FIRST) } else { highest })
    }
}

fn assert_found(bug: Bug, cases: &[&str], report: &Report) {
    for case in cases {
        assert!(report.failed().any(|name| name.starts_with(case)), "{bug:?} must fail case {case}:\n{report}");
    }
}

#[test]
fn the_in_memory_queries_conform() {
    let report = now(tck::queries(&Memory { bug: None, opened: Mutex::default() }, Flags::default()));
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (13, 0), "{report}");
}

#[test]
fn every_planted_query_bug_is_found() {
    for (bug, cases) in [
        (Bug::OffsetsAreInclusive, &["06"][..]),
        (Bug::SlicesAreIgnored, &["04"]),
        (Bug::TypesAreIgnored, &["04"]),
        (Bug::TagsAreIgnored, &["05"]),
        (Bug::TheEndIsIgnored, &["10"]),
        (Bug::TheLastOfAPageIsLost, &["04", "06", "11"]),
        (Bug::PagesAreBackwards, &["04", "06"]),
        (Bug::DamageIsSkipped, &["13"]),
        (Bug::ForeignOffsetsAreTheStart, &["07"]),
        (Bug::IdsAreInclusive, &["01"]),
        (Bug::IdsIgnoreTheirType, &["01"]),
        (Bug::TheNewestIsForgotten, &["04", "10"]),
        (Bug::TheHighestIsTheFirst, &["03"]),
    ] {
        let report = now(tck::queries(&Memory { bug: Some(bug), opened: Mutex::default() }, Flags::default()));
        assert_found(bug, cases, &report);
    }
}

#[test]
fn the_in_memory_changes_conform() {
    let report = now(tck::changes(&States { bug: None, opened: Mutex::default() }, Flags::default()));
    report.assert_conforms();
    // A store of ordinals has no late commits, so these cases are skipped.
    let skipped: Vec<_> = report.skipped().collect();
    assert_eq!(
        (report.cases.len(), skipped),
        (12, vec!["10 what is committed late is found by going back"]),
        "{report}"
    );
}

#[test]
fn every_planted_bug_of_changes_is_found() {
    for (bug, cases) in [
        (Bug::OffsetsAreInclusive, &["05"][..]),
        (Bug::SlicesAreIgnored, &["04"]),
        (Bug::TagsAreIgnored, &["03", "04", "05", "09"]),
        (Bug::TheLastOfAPageIsLost, &["02", "04", "05", "11"]),
        (Bug::PagesAreBackwards, &["02"]),
        (Bug::DamageIsSkipped, &["12"]),
        (Bug::ForeignOffsetsAreTheStart, &["06"]),
        (Bug::IdsAreInclusive, &["01"]),
        (Bug::IdsIgnoreTheirType, &["01"]),
        (Bug::TheNewestIsForgotten, &["02", "03"]),
        (Bug::ReplacedOnesAreMissed, &["02"]),
        (Bug::DeletionsAreHidden, &["03", "11"]),
        (Bug::ReplacedOnesAreRead, &["07"]),
        (Bug::NothingIsNew, &["05", "08", "09", "11"]),
    ] {
        let report = now(tck::changes(&States { bug: Some(bug), opened: Mutex::default() }, Flags::default()));
        assert_found(bug, cases, &report);
    }
}
