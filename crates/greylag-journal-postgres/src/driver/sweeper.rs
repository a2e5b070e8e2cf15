//! Removes deleted events, a few at a time, so that deleting a long history is not one long transaction.
//!
//! Readers skip events up to `deleted_to` by themselves: events that the sweeper leaves, because the process ends or
//! the server is unreachable, only take space, and are removed with the id's next deletion.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use greylag_persistence::{PersistenceId, SeqNr};
use tokio::sync::mpsc;

use crate::driver::pool::Pool;
use crate::sql::rows;
use crate::sql::statements::SWEEP;

/// Wait after a failure before the next try.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// An id, and the number up to which its events are deleted.
pub(crate) type Deleted = (PersistenceId, SeqNr);

/// Runs until all handles are gone. `limit`: events that one statement removes at most.
pub(crate) async fn run(
    pool: Arc<Pool>,
    within: Duration,
    limit: usize,
    mut deleted: mpsc::UnboundedReceiver<Deleted>,
) {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut waiting = SweepQueue::default();
    loop {
        if waiting.by_id.is_empty() {
            let Some((id, to)) = deleted.recv().await else { return };
            waiting.add(id, to);
        }
        while let Ok((id, to)) = deleted.try_recv() {
            waiting.add(id, to);
        }
        let Some((id, to)) = waiting.next() else { continue };
        let text = id.as_str();
        let swept = pool
            .call(within, |session| async move {
                let statement = session.prepare(SWEEP).await?;
                session.client.query_one(&statement, &[&text, &rows::number(to), &limit]).await
            })
            .await;
        let is_done = match swept {
            Ok(row) => rows::column::<i64>(&row, "count").is_ok_and(|removed| removed < limit),
            Err(_) if deleted.is_closed() => true,
            Err(failed) => {
                tracing::info!(%id, error = %failed.cause, "removing deleted events failed; retrying");
                tokio::time::sleep(RETRY_WAIT).await;
                false
            }
        };
        if !is_done {
            waiting.add(id, to);
        }
    }
}

/// Ids whose deleted events are still to be removed.
#[derive(Default)]
struct SweepQueue {
    /// The largest deleted number by id, so that many deletions of one id take no memory.
    by_id: BTreeMap<PersistenceId, SeqNr>,
    /// The id that `next` answered last.
    last: Option<PersistenceId>,
}

impl SweepQueue {
    fn add(&mut self, id: PersistenceId, to: SeqNr) {
        let known = self.by_id.entry(id).or_default();
        *known = to.max(*known);
    }

    /// Takes the ids in turns, so that an id that always fails does not stop the others.
    fn next(&mut self) -> Option<(PersistenceId, SeqNr)> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.by_id.range((after, Bound::Unbounded)).next().or_else(|| self.by_id.first_key_value());
        let id = next?.0.clone();
        self.last = Some(id.clone());
        self.by_id.remove_entry(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_turns_although_one_always_fails() {
        let mut waiting = SweepQueue::default();
        let id = |name: &str| PersistenceId::unique(&format!("Counter|{name}")).unwrap();
        for (name, to) in [("a", 5), ("b", 7), ("c", 9), ("b", 6)] {
            waiting.add(id(name), SeqNr::from(to));
        }
        let mut taken = Vec::new();
        while let Some((next, to)) = waiting.next() {
            taken.push((next.to_string(), to.as_u64()));
            if next == id("a") && taken.len() < 5 {
                waiting.add(next, to);
            }
        }
        let name = |name: &str| format!("Counter|{name}");
        assert_eq!(taken, [(name("a"), 5), (name("b"), 7), (name("c"), 9), (name("a"), 5), (name("a"), 5)]);
    }
}
