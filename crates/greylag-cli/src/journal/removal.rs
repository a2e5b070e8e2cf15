//! `shards remove-internal-data`: removes the data of coordinators from a journal.

use std::fmt::Write as _;
use std::process::ExitCode;

use greylag_persistence::PersistenceId;
use greylag_sharding::{RemovalError, remove_internal_sharding_data, remove_remembered_entities};
use serde::Serialize;

use super::store::{Access, OpenStore};
use super::stores::{IDS_PER_PAGE, read_failure};
use super::url::Url;
use crate::arguments::RemoveInternalData;
use crate::failure::Failure;
use crate::output::print;

/// Result of the removal.
#[derive(Debug, Serialize)]
struct RemovedView {
    store: String,
    removed: Vec<OfType>,
}

/// Result for one entity type.
#[derive(Debug, Serialize)]
struct OfType {
    entity_type: String,
    events: bool,
    snapshots: bool,
    /// `null` without --remembered.
    remembered: Option<bool>,
}

/// Runs the command, in a store that no other process may have open, as far as the store can tell.
pub(super) async fn run(remove: RemoveInternalData, json: bool) -> Result<ExitCode, Failure> {
    let store = OpenStore::open(Url::parse(&remove.store)?, Access::Shared).await?;
    let done = remove_all(&store, &remove).await.and_then(|view| print_view(&view, json));
    store.close(done).await
}

async fn remove_all(store: &OpenStore, remove: &RemoveInternalData) -> Result<RemovedView, Failure> {
    let stores = store.archive().stores();
    let ids = if remove.remembered { all_ids(store).await? } else { Vec::new() };
    let mut view = RemovedView { store: store.name(), removed: Vec::new() };
    for entity_type in &remove.types {
        let failed = |error: RemovalError| removal_failure(error, &view);
        let removed = remove_internal_sharding_data(&stores, &[entity_type], remove.force).await.map_err(failed)?;
        let mut remembered = None;
        if remove.remembered {
            let shards = remove_remembered_entities(&stores, entity_type, &ids).await.map_err(failed)?;
            remembered = Some(shards.events || shards.snapshots);
        }
        view.removed.extend(removed.into_iter().map(|removed| OfType {
            entity_type: removed.entity_type,
            events: removed.events,
            snapshots: removed.snapshots,
            remembered,
        }));
    }
    Ok(view)
}

async fn all_ids(store: &OpenStore) -> Result<Vec<PersistenceId>, Failure> {
    let mut all: Vec<PersistenceId> = Vec::new();
    loop {
        let ids = store.archive().ids(all.last(), IDS_PER_PAGE).await.map_err(|error| read_failure(store, error))?;
        let is_last = ids.len() < IDS_PER_PAGE;
        all.extend(ids);
        if is_last {
            return Ok(all);
        }
    }
}

/// The failure, with what was removed before it.
fn removal_failure(error: RemovalError, done: &RemovedView) -> Failure {
    let before: Vec<_> = done.removed.iter().map(|removed| removed.entity_type.as_str()).collect();
    let before = if before.is_empty() { String::new() } else { format!("; removed before: {}", before.join(", ")) };
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    match error {
        RemovalError::InvalidTypeName(_) => Failure::Usage(format!("{error}{cause}{before}")),
        RemovalError::ClusterSeemsRunning { .. } => {
            Failure::Refused(format!("{error}; stop all nodes and wait for a minute, or give --force{before}"))
        }
        _ => Failure::Refused(format!("{error}{cause}{before}")),
    }
}

fn print_view(view: &RemovedView, json: bool) -> Result<ExitCode, Failure> {
    print(json, view, || {
        let mut text = String::new();
        for OfType { entity_type, events, snapshots, remembered } in &view.removed {
            let what =
                [(*events, "events"), (*snapshots, "snapshots"), (*remembered == Some(true), "remembered entities")];
            let what: Vec<_> = what.into_iter().filter_map(|(was, what)| was.then_some(what)).collect();
            let what =
                if what.is_empty() { "nothing was stored".to_owned() } else { format!("removed {}", what.join(", ")) };
            let _infallible = writeln!(text, "{entity_type}: {what}");
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}
