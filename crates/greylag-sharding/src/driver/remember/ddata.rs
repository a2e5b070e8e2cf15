//! Remembered entities as replicated data: five sets for each shard, and one of the shards.
//!
//! The hash of an id selects its set, so that a change ships a fifth of a shard at most. Sets lose nothing: an owner
//! that was replaced and does not know it yet removes only ids that it has seen. `distributed_data.durable.keys`
//! decides whether sets outlive a stop of all nodes.
//!
//! Source: sharding §4.8.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use greylag_crdt::{OrSet, UpdateCx};
use greylag_ddata::{InvalidKey, Key, ReadLevel, Replicator, WriteLevel};
use twox_hash::XxHash3_64;

use super::shard_memory::{LoadError, ShardMemory, ShardSet};
use crate::ids::{EntityId, EntityTypeName, ShardId, percent_encode};
use crate::machine::shard::StoreUpdate;
use crate::remember::{RememberError, ShardTerm};
use crate::settings::{MajorityPlus, ShardingSettings};

/// Sets that the ids of a shard are spread over. Fixed by the major version of the protocol.
const SETS: u64 = 5;
/// Most reads for one load, of all sets together.
const READ_ATTEMPTS: usize = 15;
/// Most writes of one set for one update.
const WRITE_ATTEMPTS: u32 = 4;
/// Pause between a failure and the next attempt.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of ids of one shard above which a journal is the better store.
const MANY: usize = 10_000;

pub(super) type Ids = OrSet<String>;

/// Levels and timeouts of reads and writes.
struct Levels {
    read: ReadLevel,
    write: WriteLevel,
}

impl Levels {
    fn new(settings: &ShardingSettings) -> Self {
        let min_cap = Some(settings.majority_min_cap);
        let (reading, writing) = (settings.waiting_for_state_timeout, settings.updating_state_timeout / WRITE_ATTEMPTS);
        Self {
            read: match settings.read_majority_plus {
                MajorityPlus::Additional(additional) => {
                    ReadLevel::MajorityPlus { additional, min_cap, timeout: reading }
                }
                MajorityPlus::All => ReadLevel::All { timeout: reading },
            },
            write: match settings.write_majority_plus {
                MajorityPlus::Additional(additional) => {
                    WriteLevel::MajorityPlus { additional, min_cap, timeout: writing }
                }
                MajorityPlus::All => WriteLevel::All { timeout: writing },
            },
        }
    }
}

/// The memory of one shard.
pub(super) struct DdataShard {
    replicator: Replicator,
    sets: Vec<Key<Ids>>,
    levels: Levels,
}

impl DdataShard {
    pub(super) fn new(
        term: &ShardTerm,
        replicator: Replicator,
        settings: &ShardingSettings,
    ) -> Result<Self, InvalidKey> {
        let prefix = format!("shard-{}/{}", term.entity_type.encoded(), percent_encode(term.shard.as_str()));
        let sets = (0..SETS).map(|set| Key::new(format!("{prefix}/{set}"))).collect::<Result<_, _>>()?;
        Ok(Self { replicator, sets, levels: Levels::new(settings) })
    }

    async fn write(&self, set: &Key<Ids>, starts: Vec<String>, stops: Vec<String>) -> Result<(), RememberError> {
        attempts(WRITE_ATTEMPTS as usize, || {
            let (starts, stops) = (starts.clone(), stops.clone());
            let change = move |ids: &mut Ids, cx: &mut UpdateCx<'_>| {
                // Add also ids that are there already: a replaced owner's removal must not take them out.
                ids.add_all(cx, starts);
                for id in &stops {
                    ids.remove(cx, id);
                }
                Ok::<(), std::convert::Infallible>(())
            };
            self.replicator.update(set, self.levels.write, Ids::new, change)
        })
        .await
    }
}

/// The set that holds an id.
fn set_of(id: &EntityId) -> usize {
    usize::try_from(XxHash3_64::oneshot(id.as_bytes()) % SETS).expect("a remainder of five")
}

/// Repeats a call until it succeeds, `most` times at most.
async fn attempts<T, E, F>(most: usize, mut call: impl FnMut() -> F) -> Result<T, RememberError>
where
    E: std::error::Error + Send + Sync + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut attempt = 1;
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) if attempt >= most => return Err(RememberError::Unavailable(error.into())),
            Err(_) => attempt += 1,
        }
        // Pause, since a request that fails at once (a replicator that still loads) must not spin.
        tokio::time::sleep(PAUSE).await;
    }
}

#[async_trait]
impl ShardMemory for DdataShard {
    async fn load(&self) -> Result<BTreeSet<EntityId>, LoadError> {
        let mut missing: Vec<_> = self.sets.iter().collect();
        let (mut ids, mut left) = (BTreeSet::new(), READ_ATTEMPTS);
        loop {
            left = left.saturating_sub(missing.len());
            let read = join_all(missing.iter().map(|set| self.replicator.get(set, self.levels.read))).await;
            let mut failure = None;
            let mut failed = Vec::new();
            for (set, read) in missing.into_iter().zip(read) {
                match read {
                    // Skip invalid ids: only a later version can have written one, and it names no entity here.
                    Ok(found) => ids.extend(
                        found.found().iter().flat_map(Ids::iter).filter_map(|id| EntityId::new(id.as_str()).ok()),
                    ),
                    Err(error) => {
                        failure = Some(error);
                        failed.push(set);
                    }
                }
            }
            match failure {
                None => return Ok(ids),
                Some(reason) if left == 0 => return Err(RememberError::Unavailable(reason.into()).into()),
                Some(_) => missing = failed,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn update(&self, update: StoreUpdate) -> Result<(), RememberError> {
        let mut changes: BTreeMap<usize, (Vec<String>, Vec<String>)> = BTreeMap::new();
        for id in &update.starts {
            changes.entry(set_of(id)).or_default().0.push(id.to_string());
        }
        for id in &update.stops {
            changes.entry(set_of(id)).or_default().1.push(id.to_string());
        }
        let writes = changes.into_iter().map(|(set, (starts, stops))| self.write(&self.sets[set], starts, stops));
        join_all(writes).await.into_iter().collect()
    }

    fn many(&self) -> usize {
        MANY
    }
}

/// The remembered shards of a type.
pub(super) struct DdataShards {
    replicator: Replicator,
    set: Key<Ids>,
    levels: Levels,
}

impl DdataShards {
    pub(super) fn new(name: &EntityTypeName, replicator: Replicator, settings: &ShardingSettings) -> Self {
        let set = Key::new(format!("shard-{}/shards", name.encoded())).expect("type names are short");
        Self { replicator, set, levels: Levels::new(settings) }
    }
}

#[async_trait]
impl ShardSet for DdataShards {
    async fn read(&self) -> Result<BTreeSet<ShardId>, RememberError> {
        let read = self.replicator.get(&self.set, self.levels.read).await;
        let read = read.map_err(|error| RememberError::Unavailable(error.into()))?.found();
        Ok(read.iter().flat_map(Ids::iter).filter_map(|shard| ShardId::new(shard.as_str()).ok()).collect())
    }

    async fn add(&self, shards: Vec<ShardId>) -> Result<(), RememberError> {
        attempts(WRITE_ATTEMPTS as usize, || {
            let shards: Vec<_> = shards.iter().map(ToString::to_string).collect();
            let add = move |known: &mut Ids, cx: &mut UpdateCx<'_>| {
                known.add_all(cx, shards.into_iter().filter(|shard| !known.contains(shard)).collect::<Vec<_>>());
                Ok::<(), std::convert::Infallible>(())
            };
            self.replicator.update(&self.set, self.levels.write, Ids::new, add)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
