//! Removes what is deleted, a few events at a time, so that a long history is not one long transaction.
//!
//! Readers honour `deleted_to` by themselves: what the sweeper leaves, because the process ends or the
//! server is away, costs room only, and goes with the id's next deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greylag_persistence::{PersistenceId, SeqNr};
use tokio::sync::mpsc;

use crate::driver::pool::Pool;
use crate::rows;
use crate::statements::SWEEP;

/// After a failure, before the same is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is deleted, for the sweeper.
pub(crate) type Deleted = (PersistenceId, SeqNr);

/// Runs until nobody can delete any more. `limit`: events that one statement removes.
pub(crate) async fn run(
    pool: Arc<Pool>,
    within: Duration,
    limit: usize,
    mut deleted: mpsc::UnboundedReceiver<Deleted>,
) {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    // By id, so that whoever deletes all the time costs no memory.
    let mut waiting: BTreeMap<PersistenceId, SeqNr> = BTreeMap::new();
    loop {
        if waiting.is_empty() {
            let Some((id, to)) = deleted.recv().await else { return };
            waiting.insert(id, to);
        }
        while let Ok((id, to)) = deleted.try_recv() {
            let known = waiting.entry(id).or_default();
            *known = to.max(*known);
        }
        let Some((id, to)) = waiting.pop_first() else { continue };
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
                tracing::info!(%id, error = %failed.cause, "deleted events are not removed yet");
                tokio::time::sleep(PAUSE).await;
                false
            }
        };
        if !is_done {
            let known = waiting.entry(id).or_default();
            *known = to.max(*known);
        }
    }
}
