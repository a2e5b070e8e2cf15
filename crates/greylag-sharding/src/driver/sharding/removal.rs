//! Removal of the coordinators' data in a journal while no cluster uses it.
//!
//! Source: sharding §6.3.

use std::time::{Duration, SystemTime};

use greylag_persistence::{
    ClaimError, DeleteError, PersistenceId, ReadError, ReadRange, SeqNr, SnapshotCriteria, SnapshotError, Stores,
    Under, WriterUuid,
};

use crate::driver::coordinator::store::persistence_id;
use crate::error::InvalidTypeName;
use crate::ids::EntityTypeName;

/// A coordinator that has not written for this long does not run, since it records its epoch at least every 30 s.
const SILENCE: Duration = Duration::from_secs(60);

/// The removed data of one entity type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The entity type.
    pub entity_type: String,
    /// Whether its coordinator had events.
    pub events: bool,
    /// Whether its coordinator had snapshots.
    pub snapshots: bool,
}

/// Why the data of an entity type were not removed. The data of types named before it are removed; those of types
/// behind it are untouched.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// Not a valid name of an entity type. Nothing was removed for it.
    #[error(transparent)]
    InvalidTypeName(#[from] InvalidTypeName),
    /// A coordinator has written a moment ago. Nothing of the type was removed: stop all nodes and wait a minute, or
    /// force it.
    #[error("the cluster seems to be running: a coordinator wrote to {id} {silent_for:?} ago")]
    ClusterSeemsRunning {
        /// The history.
        id: PersistenceId,
        /// How long ago the last write was.
        silent_for: Duration,
    },
    /// The journal could not be read, so a coordinator may run. Nothing of the type was removed; with `force` there is
    /// no check.
    #[error("{id} could not be read")]
    NotRead {
        /// The history.
        id: PersistenceId,
        /// The journal's error.
        #[source]
        cause: ReadError,
    },
    /// Some or all snapshots are left; the removal may be repeated.
    #[error("the snapshots of {id} could not be removed")]
    SnapshotsLeft {
        /// The history.
        id: PersistenceId,
        /// The snapshot store's error.
        #[source]
        cause: SnapshotError,
    },
    /// Another writer claims the history. Its events are left, and its snapshots are removed; the removal may be
    /// repeated.
    #[error("{id} could not be claimed")]
    NotClaimed {
        /// The history.
        id: PersistenceId,
        /// The journal's error.
        #[source]
        cause: ClaimError,
    },
    /// The events are left, and the snapshots are removed; the removal may be repeated.
    #[error("the events of {id} could not be removed")]
    EventsLeft {
        /// The history.
        id: PersistenceId,
        /// The journal's error.
        #[source]
        cause: DeleteError,
    },
}

/// Removes the events and snapshots of the coordinators of these types, one type after the other. The next coordinator
/// begins without homes. Entities keep their own events.
///
/// All nodes must be stopped: a running coordinator is fenced, and decides anew without knowing which shards run where.
/// So a history that was written to within the last minute, by the clocks of the journal and of this process, is
/// refused, unless `force` is set.
///
/// ```
/// # use greylag_persistence::Stores;
/// # async fn run(stores: Stores) -> Result<(), Box<dyn std::error::Error>> {
/// for removed in greylag_sharding::remove_internal_sharding_data(&stores, &["Cart", "Customer"], false).await? {
///     println!("{removed:?}");
/// }
/// # Ok(())
/// # }
/// ```
/// Source: sharding §6.3.
///
/// # Errors
/// [`RemovalError`] of the first type that fails.
pub async fn remove_internal_sharding_data(
    stores: &Stores,
    entity_types: &[&str],
    force: bool,
) -> Result<Vec<Removed>, RemovalError> {
    let mut removed = Vec::with_capacity(entity_types.len());
    for entity_type in entity_types {
        removed.push(remove(stores, entity_type, force).await?);
    }
    Ok(removed)
}

/// Removes the events and snapshots in which the shards of a type keep the ids of remembered entities; `ids` are all
/// ids in the store, from which those of the type are selected. Call this after [`remove_internal_sharding_data`],
/// which checks that no cluster runs. An empty store is a success.
///
/// Source: sharding §4.8, §6.3.
///
/// # Errors
/// [`RemovalError`] of the first shard that fails.
pub async fn remove_remembered_entities(
    stores: &Stores,
    entity_type: &str,
    ids: &[PersistenceId],
) -> Result<Removed, RemovalError> {
    let of_type = format!("/sharding/{}Shard/", EntityTypeName::new(entity_type)?.encoded());
    let mut removed = Removed { entity_type: entity_type.to_owned(), events: false, snapshots: false };
    for id in ids.iter().filter(|id| id.as_str().starts_with(&of_type)) {
        let (events, snapshots) = remove_history(stores, id, true).await?;
        removed.events |= events;
        removed.snapshots |= snapshots;
    }
    Ok(removed)
}

async fn remove(stores: &Stores, entity_type: &str, force: bool) -> Result<Removed, RemovalError> {
    let id = persistence_id(&EntityTypeName::new(entity_type)?);
    let (events, snapshots) = remove_history(stores, &id, force).await?;
    Ok(Removed { entity_type: entity_type.to_owned(), events, snapshots })
}

/// Removes one history. Returns whether it had events, and snapshots.
async fn remove_history(stores: &Stores, id: &PersistenceId, force: bool) -> Result<(bool, bool), RemovalError> {
    let unread = |cause| RemovalError::NotRead { id: id.clone(), cause };
    let head = stores.journal.head(id).await.map_err(unread)?;
    let events = head.highest > head.deleted_to;
    if events && !force {
        let last = stores.journal.read(id, ReadRange::new(head.highest, head.highest)).await.map_err(unread)?;
        let written = last.records.last().map_or(0, |record| record.timestamp.as_micros());
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let silent_for = since_1970.saturating_sub(Duration::from_micros(written));
        if silent_for < SILENCE {
            return Err(RemovalError::ClusterSeemsRunning { id: id.clone(), silent_for });
        }
    }
    // Remove snapshots first: to a coordinator a history without events was removed, while a history without a snapshot
    // has lost data.
    let snapshots = remove_snapshots(stores, id).await?;
    if events {
        let uuid = WriterUuid::from_u128(rand::random());
        let claim = stores.journal.claim(id, uuid, Under::Seen(head.epoch)).await;
        let claim = claim.map_err(|cause| RemovalError::NotClaimed { id: id.clone(), cause })?;
        let deleted = stores.journal.delete_to(id, claim.epoch, SeqNr::MAX).await;
        deleted.map_err(|cause| RemovalError::EventsLeft { id: id.clone(), cause })?;
    }
    Ok((events, snapshots))
}

/// Removes the snapshots of one history. Returns whether there were any.
async fn remove_snapshots(stores: &Stores, id: &PersistenceId) -> Result<bool, RemovalError> {
    let left = |cause| RemovalError::SnapshotsLeft { id: id.clone(), cause };
    let found = match stores.snapshots.load(id, SnapshotCriteria::LATEST).await {
        Ok(found) => found.is_some(),
        Err(SnapshotError::Corrupt(_)) => true,
        Err(cause) => return Err(left(cause)),
    };
    if found {
        stores.snapshots.delete_matching(id, SnapshotCriteria::LATEST).await.map_err(left)?;
    }
    Ok(found)
}
