//! The coordinator's state as replicated data.
//!
//! One register names the incarnation that wrote last with authority; 64 maps hold the homes, so a commit ships only
//! the maps that it changed. Both are clocked by epochs and generations, never by the wall clock. A commit counts only
//! when a read made after it still shows the own incarnation: either a newer incarnation sees this write, or this one
//! learns that it is fenced before any region hears of its decision.
//!
//! Source: sharding §2.15.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use greylag_crdt::{LwwMap, LwwRegister};
use greylag_ddata::{Key, Read, ReadLevel, Replicator, WriteLevel};
use twox_hash::XxHash3_64;

use super::failures::Failures;
use super::state_store::{NotCommitted, StateStore, Unreadable};
use crate::ids::{EntityTypeName, ShardId};
use crate::machine::coordinator::{Meta, StateEvent, StoredHome, StoredState};
use crate::settings::{MajorityPlus, ShardingSettings};
use crate::wire;

/// Number of maps that hold the homes.
const BUCKETS: u64 = 64;
/// Hint for an operator if a majority does not answer.
const HINT: &str = "is sharding started on all nodes?";

type Register = LwwRegister<Vec<u8>>;
type Homes = LwwMap<String, Vec<u8>>;

/// See the module's description.
pub(super) struct DdataStore {
    replicator: Replicator,
    name: EntityTypeName,
    meta: Key<Register>,
    buckets: Vec<Key<Homes>>,
    read: ReadLevel,
    write: WriteLevel,
    /// Timeout of one attempt.
    patience: Duration,
    /// The epoch record of the present incarnation.
    own: Mutex<Option<Meta>>,
}

impl DdataStore {
    pub(super) fn new(name: &EntityTypeName, replicator: Replicator, settings: &ShardingSettings) -> Self {
        let prefix = format!("coordinator/{}", name.encoded());
        let key = |suffix: String| format!("{prefix}/{suffix}");
        let homes = |bucket| Key::new(key(format!("homes/{bucket}"))).expect("type names are short");
        let min_cap = Some(settings.majority_min_cap);
        let (reading, writing) = (settings.waiting_for_state_timeout, settings.updating_state_timeout);
        Self {
            replicator,
            name: name.clone(),
            meta: Key::new(key("meta".into())).expect("type names are short"),
            buckets: (0..BUCKETS).map(homes).collect(),
            patience: reading,
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
            own: Mutex::new(None),
        }
    }

    async fn read_meta(&self) -> Result<Option<Meta>, greylag_ddata::GetError> {
        let register = self.replicator.get(&self.meta, self.read).await?.found();
        let bytes = register.as_ref().and_then(Register::value);
        Ok(bytes.and_then(|bytes| match wire::decode_meta(bytes, crate::driver::node::services::horizon()) {
            Ok(meta) => Some(meta),
            Err(error) => {
                tracing::error!(entity_type = %self.name, %error, "the coordinator's epoch could not be read");
                None
            }
        }))
    }

    fn homes_of(&self, homes: &Homes) -> BTreeMap<ShardId, StoredHome> {
        let horizon = crate::driver::node::services::horizon();
        let read = |(shard, bytes): (&String, &Vec<u8>)| {
            let shard = ShardId::new(shard.as_str()).ok()?;
            match wire::decode_home(bytes, horizon) {
                Ok(home) => Some((shard, home)),
                Err(error) => {
                    tracing::error!(entity_type = %self.name, %shard, %error, "a home could not be read");
                    None
                }
            }
        };
        homes.iter().filter_map(read).collect()
    }

    async fn write_meta(&self, meta: &Meta) {
        let mut failures = self.failures();
        loop {
            let (value, clock) = (wire::encode_meta(meta), i64::try_from(meta.epoch).unwrap_or(i64::MAX));
            let set = move |register: &mut Register, cx: &mut greylag_crdt::UpdateCx<'_>| {
                register.set_with(cx, value, |_, _| clock);
                Ok::<(), std::convert::Infallible>(())
            };
            match self.replicator.update(&self.meta, self.write, Register::new, set).await {
                Ok(()) => return,
                Err(error) => failures.report("write", &error).await,
            }
        }
    }

    async fn write_homes(&self, bucket: u64, homes: BTreeMap<ShardId, StoredHome>) {
        let mut failures = self.failures();
        let key = &self.buckets[usize::try_from(bucket).expect("there are 64")];
        loop {
            let homes = homes.clone();
            let put = move |map: &mut Homes, cx: &mut greylag_crdt::UpdateCx<'_>| {
                for (shard, home) in homes {
                    let clock = i64::try_from(home.clock()).unwrap_or(i64::MAX);
                    map.put_with(cx, shard.to_string(), wire::encode_home(&home), |_, _| clock);
                }
                Ok::<(), std::convert::Infallible>(())
            };
            match self.replicator.update(key, self.write, Homes::new, put).await {
                Ok(()) => return,
                Err(error) => failures.report("write", &error).await,
            }
        }
    }

    async fn is_unfenced(&self) -> bool {
        let own = self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let mut failures = self.failures();
        loop {
            match self.read_meta().await {
                Ok(meta) => return meta == own,
                Err(error) => failures.report("read", &error).await,
            }
        }
    }

    fn failures(&self) -> Failures {
        Failures::new(&self.name, self.patience, HINT)
    }
}

#[async_trait]
impl StateStore for DdataStore {
    fn max_batch(&self) -> usize {
        usize::MAX
    }

    /// Reads all state from a majority; repeated until that succeeds.
    async fn read(&self) -> Result<StoredState, Unreadable> {
        let mut failures = self.failures();
        loop {
            let buckets = join_all(self.buckets.iter().map(|bucket| self.replicator.get(bucket, self.read)));
            let (meta, buckets) = tokio::join!(self.read_meta(), buckets);
            let buckets: Result<Vec<_>, _> = buckets.into_iter().collect();
            match (meta, buckets) {
                (Ok(meta), Ok(buckets)) => {
                    let homes = buckets.into_iter().filter_map(Read::found).flat_map(|homes| self.homes_of(&homes));
                    return Ok(StoredState { meta, homes: homes.collect(), ..StoredState::default() });
                }
                (Err(error), _) | (_, Err(error)) => failures.report("read", &error).await,
            }
        }
    }

    /// Writes until a majority has the events; then checks that no newer incarnation has come.
    async fn commit(&self, events: Vec<StateEvent>) -> Result<(), NotCommitted> {
        let mut buckets: BTreeMap<u64, BTreeMap<ShardId, StoredHome>> = BTreeMap::new();
        let mut started = None;
        for event in events {
            match event {
                StateEvent::EpochStarted(meta) => started = Some(meta),
                StateEvent::Home { shard, home } => {
                    let bucket = XxHash3_64::oneshot(shard.as_str().as_bytes()) % BUCKETS;
                    let homes = buckets.entry(bucket).or_default();
                    // The later decision of one batch has the larger clock, so it replaces the earlier one.
                    homes.entry(shard).and_modify(|known| *known = home.clone()).or_insert(home);
                }
                // Not stored: the fingerprint is part of `meta`; a home implies the passed gate and the registration of
                // its region.
                StateEvent::FingerprintRecorded(_)
                | StateEvent::Initialized
                | StateEvent::RegionRegistered(_)
                | StateEvent::RegionTerminated(_) => {}
            }
        }
        if let Some(meta) = started {
            *self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(meta.clone());
            self.write_meta(&meta).await;
        }
        join_all(buckets.into_iter().map(|(bucket, homes)| self.write_homes(bucket, homes))).await;
        if self.is_unfenced().await { Ok(()) } else { Err(NotCommitted::Lost) }
    }
}

#[cfg(test)]
mod tests;
