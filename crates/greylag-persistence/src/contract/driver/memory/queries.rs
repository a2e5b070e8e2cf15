//! Queries of a journal in memory: in the order of commits, without gaps.

use std::fmt;

use async_trait::async_trait;

use super::{Histories, InMemoryJournal};
use crate::contract::driver::journal_store::Journal as _;
use crate::contract::driver::query_store::EventQueries;
use crate::contract::error::{Corrupt, CorruptKind, QueryError, ReadError};
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::{OffsetKind, Position};
use crate::contract::query::{Cursor, EventPage, FoundEvent, PageQuery, QueryCaps, Shows};
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;

/// The query side of an [`InMemoryJournal`].
#[derive(Clone)]
pub struct InMemoryQueries {
    journal: InMemoryJournal,
}

impl fmt::Debug for InMemoryQueries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemoryQueries({:?})", self.journal)
    }
}

impl InMemoryJournal {
    /// The query side of this journal.
    pub fn queries(&self) -> InMemoryQueries {
        InMemoryQueries::new(self.clone())
    }
}

impl InMemoryQueries {
    fn new(journal: InMemoryJournal) -> Self {
        Self { journal }
    }
}

impl Histories {
    /// The event of this ordinal, if the query covers it and it is not deleted.
    fn find(&self, query: &PageQuery, ordinal: u64) -> Result<Option<FoundEvent>, Corrupt> {
        let (id, seq_nr) = &self.commits[usize::try_from(ordinal - 1).expect("it was counted")];
        let event = self.by_id.get(id).and_then(|history| history.events.get(seq_nr));
        let Some(event) = event.filter(|event| query.of.matches(event)) else { return Ok(None) };
        if !event.is_intact() {
            return Err(Corrupt { id: id.clone(), seq_nr: *seq_nr, kind: CorruptKind::Checksum });
        }
        let (id, position) = (id.clone(), Position::Ordinal(ordinal));
        Ok(Some(FoundEvent { id, seq_nr: *seq_nr, position, event: Some(event.clone()) }))
    }
}

#[async_trait]
impl EventQueries for InMemoryQueries {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: self.journal.caps.scope, kind: OffsetKind::Ordinal, shows: Shows::Every }
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let histories = self.journal.open(ReadError::Unavailable)?;
        let written = histories.by_id.iter().filter(|(_, history)| !history.head.highest.is_zero());
        let later = written.map(|(id, _)| id).filter(|id| after.is_none_or(|after| *id > after));
        let meant = later.filter(|id| entity_type.is_none_or(|meant| id.entity_type() == meant));
        Ok(meant.take(limit).cloned().collect())
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let histories = self.journal.open(ReadError::Unavailable)?;
        let count = u64::try_from(histories.commits.len()).expect("a count fits");
        Ok((count > 0).then_some(Position::Ordinal(count)))
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let after = query.after_ordinal()?;
        let histories = self.journal.open(|failure| QueryError::Read(ReadError::Unavailable(failure)))?;
        let last = u64::try_from(histories.commits.len()).expect("a count fits").min(query.until_ordinal()?);
        let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more: false };
        for ordinal in after.map_or(1, |after| after.saturating_add(1))..=last {
            if page.events.len() >= query.limit {
                page.more = true;
                break;
            }
            match histories.find(query, ordinal) {
                Ok(found) => page.events.extend(found),
                Err(corrupt) if page.events.is_empty() => return Err(QueryError::Read(ReadError::Corrupt(corrupt))),
                Err(_) => {
                    page.more = true;
                    break;
                }
            }
            page.next = Cursor::Ordinal(ordinal);
        }
        Ok(page)
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.journal.read(id, range).await
    }

    async fn highest(&self, id: &PersistenceId) -> Result<SeqNr, ReadError> {
        self.journal.head(id).await.map(|head| head.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn a_closed_journal_answers_no_queries() {
        let journal = InMemoryJournal::default();
        journal.close().now_or_never().unwrap().unwrap();
        let newest = journal.queries().newest().now_or_never().unwrap();
        assert!(matches!(newest, Err(ReadError::Unavailable(_))));
    }
}
