//! Runs the projection with its own runtime, so that it can be killed like a process: everything ends at once.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use greylag_journal_postgres::{PostgresJournal, Transactional};
use greylag_persistence::{
    BoxError, ProjectionEnd, ProjectionHandle, ProjectionId, ProjectionSettings, QuerySettings, ReadJournal, SLICES,
    run_transactional,
};
use tokio::runtime::{Builder, Runtime};

use crate::account::ENTITY_TYPE;
use crate::journal_settings;
use crate::table::Balances;

/// A projection with its own threads and connections.
pub(crate) struct Runner {
    /// Dropped before the handle: dropping the handle would stop the projection in order.
    _runtime: OwnRuntime,
    projection: ProjectionHandle,
}

impl Runner {
    /// Starts the projection where the last one ended, in whatever way that was.
    pub(crate) async fn start(url: &str) -> Result<Self, BoxError> {
        let runtime = OwnRuntime(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build()?));
        let projection = runtime.0.as_ref().expect("not dropped yet").spawn(project(url.to_owned())).await??;
        Ok(Self { _runtime: runtime, projection })
    }

    /// Drops the runtime: the projection's tasks end at any point, and its connections break.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Stops the projection after the events in hand.
    pub(crate) async fn stop(self) -> Result<(), BoxError> {
        match self.projection.stop().await {
            ProjectionEnd::Stopped => Ok(()),
            end => Err(format!("the projection ended: {end}").into()),
        }
    }
}

/// Starts the projection on the current runtime.
async fn project(url: String) -> Result<ProjectionHandle, BoxError> {
    let journal = PostgresJournal::open(&url, journal_settings()).await?;
    // One instance for all accounts; several instances would divide the slices (`slice_ranges`).
    let id = ProjectionId { name: "balance".into(), entity_type: ENTITY_TYPE.into(), slices: 0..=SLICES - 1 };
    let settings = ProjectionSettings {
        // A larger group costs fewer transactions, but each one takes longer.
        group: NonZeroUsize::new(10).expect("ten is not zero"),
        ..ProjectionSettings::default()
    };
    // Poll more often than the default of three seconds, so that the program ends soon. One read journal serves all
    // projections of a process: they share its reader.
    let query = QuerySettings { refresh_interval: Duration::from_millis(100), ..QuerySettings::default() };
    let read = ReadJournal::new(Arc::new(journal.queries()), query);
    let offsets = Arc::new(journal.offsets());
    let handler = Transactional::new(journal.offsets(), Balances);
    Ok(run_transactional(id, &read, offsets, handler, settings)?)
}

/// A runtime that is dropped without waiting for its tasks, and so can also be dropped in asynchronous code.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
