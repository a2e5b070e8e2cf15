//! Removing what coordinators keep in a journal, as long as no cluster runs on it.
//!
//! Source: sharding §6.3.

use std::time::{Duration, SystemTime};

use greylag_persistence::{
    ClaimError, DeleteError, PersistenceId, ReadError, ReadRange, SeqNr, SnapshotCriteria, SnapshotError, Stores,
    Under, WriterUuid,
};

use super::store::persistence_id;
use crate::error::InvalidTypeName;
use crate::ids::EntityTypeName;

/// A coordinator records its epoch at least every 30 s; one that was silent for so long does not run.
const SILENCE: Duration = Duration::from_secs(60);

/// What was removed of one entity type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The entity type.
    pub entity_type: String,
    /// Its coordinator had events.
    pub events: bool,
    /// Its coordinator had snapshots.
    pub snapshots: bool,
}

/// Why the data of an entity type were not removed. What belongs to types named before it is gone; those behind it are
/// untouched.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// No entity type has this name. Nothing of it was removed.
    #[error(transparent)]
    InvalidTypeName(#[from] InvalidTypeName),
    /// A coordinator has written a moment ago. Nothing of the type was removed: stop all nodes and wait a minute, or force it.
    #[error("the cluster seems to be running: a coordinator wrote to {id} {silent_for:?} ago")]
    ClusterSeemsRunning {
        /// The history.
        id: PersistenceId,
        /// How long ago.
        silent_for: Duration,
    },
    /// Whether a coordinator runs cannot be told. Nothing of the type was removed; forced, it is not looked at.
    #[error("{id} could not be read")]
    NotRead {
        /// The history.
        id: PersistenceId,
        /// What the journal said.
        #[source]
        cause: ReadError,
    },
    /// Snapshots, or some of them, are left; doing it again is harmless.
    #[error("the snapshots of {id} could not be removed")]
    SnapshotsLeft {
        /// The history.
        id: PersistenceId,
        /// What the snapshot store said.
        #[source]
        cause: SnapshotError,
    },
    /// Another one claims the history. Its events are left, and its snapshots are gone; doing it again is harmless.
    #[error("{id} could not be claimed")]
    NotClaimed {
        /// The history.
        id: PersistenceId,
        /// What the journal said.
        #[source]
        cause: ClaimError,
    },
    /// The events are left, and the snapshots are gone; doing it again is harmless.
    #[error("the events of {id} could not be removed")]
    EventsLeft {
        /// The history.
        id: PersistenceId,
        /// What the journal said.
        #[source]
        cause: DeleteError,
    },
}

/// Removes the events and snapshots of the coordinators of these types, one type after the other. The next coordinator
/// begins without homes. Entities keep their own events.
///
/// All nodes have to be stopped: a running coordinator is fenced, and decides anew without knowing what runs where. So a
/// history that was written to within the last minute, by the clocks of the journal and of this process, is refused, unless
/// it is forced.
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
/// [`RemovalError`], at the first type that fails.
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

/// Removes the events and snapshots in which the shards of a type keep the ids of remembered entities; `ids` are those of
/// the store, of which the type's are chosen. Do it after [`remove_internal_sharding_data`], which looks whether a cluster
/// runs. Nothing stored is success.
///
/// Source: sharding §4.8, §6.3.
///
/// # Errors
/// [`RemovalError`], at the first shard that fails.
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

/// Removes one history. Answers whether it had events, and snapshots.
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
    // Snapshots first: a history without events means to a coordinator that it was removed, and one without a snapshot
    // that some of it is lost.
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

/// Answers whether there were some.
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
