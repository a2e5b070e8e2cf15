//! Inspection of an entity type: asks shards of this node, regions of others, and the coordinator, each with a timeout.
//!
//! ```text
//! Inspector --GetCurrentRegions--> coordinator            which regions are there
//!           --Inspection (Ask)---> region of each node    --Count--> its shards, all at once
//! ```
//! Source: sharding §6.1. Differs: the asking node gathers the regions' answers, and the coordinator only lists the
//! regions.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use greylag_core::{DeadLetterReason, UniqueAddress};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::driver::region::any_region::AnyRegion;
use crate::ids::{EntityTypeName, ShardId};
use crate::inspection::{
    ClusterStats, CurrentRegions, ENTITIES_PER_PAGE, EntityLocation, Inquiry, InspectionMessage, InspectionResult,
    Position, RegionEntities, RegionStats,
};
use crate::machine::region::{Answer, Request};
use crate::machine::shard::EntityScan;

/// Shards asked for their entities at a time.
const SHARDS_AT_A_TIME: usize = 64;

/// Inspects one entity type from this node, whatever its message type. Clones inspect the same region.
///
/// ```
/// # use std::time::Duration;
/// # use greylag_sharding::Region;
/// # async fn look<M: Send + 'static>(region: Region<M>) {
/// let stats = region.inspect().cluster_stats(Duration::from_secs(5)).await;
/// for (node, region) in &stats.regions {
///     println!("{node}: {} shards, {} entities", region.shards.len(), region.entities().total());
/// }
/// # }
/// ```
/// Source: sharding §6.1.
#[derive(Clone)]
pub struct Inspector(Arc<dyn AnyRegion>);

impl Inspector {
    pub(crate) fn new(region: Arc<dyn AnyRegion>) -> Self {
        Self(region)
    }

    /// The entity type.
    pub fn name(&self) -> &EntityTypeName {
        self.0.name()
    }

    /// The nodes with a hosting region, as known to the coordinator. None, if no coordinator answers within `patience`.
    pub async fn current_regions(&self, patience: Duration) -> CurrentRegions {
        let mut answers = self.0.request(Request::CurrentRegions, patience);
        match answers.recv().await {
            Some(Answer::CurrentRegions(regions)) => CurrentRegions {
                addresses: regions.into_iter().map(|region| region.node).collect(),
                coordinator_missing: false,
            },
            _ => CurrentRegions { coordinator_missing: true, ..CurrentRegions::default() },
        }
    }

    /// The shards of all regions. Regions and shards that do not answer within `patience` are named, and do not void
    /// the rest.
    pub async fn cluster_stats(&self, patience: Duration) -> ClusterStats {
        let began = Instant::now();
        let CurrentRegions { addresses, coordinator_missing } = self.current_regions(patience).await;
        let left = patience.saturating_sub(began.elapsed());
        let asked = addresses.iter().map(|node| self.stats_of(node, left));
        let answers = join_all(asked).await;
        let mut stats = ClusterStats { coordinator_missing, ..ClusterStats::default() };
        for (node, answer) in addresses.into_iter().zip(answers) {
            match answer {
                Some(region) => drop(stats.regions.insert(node, region)),
                None => drop(stats.failed_regions.insert(node)),
            }
        }
        stats
    }

    /// The shards of this node's region.
    pub async fn region_stats(&self) -> RegionStats {
        stats(&*self.0, self.0.settings().shard_region_query_timeout).await
    }

    /// The shards of another node's region; `None` if it does not answer within `patience`.
    pub async fn stats_of(&self, node: &UniqueAddress, patience: Duration) -> Option<RegionStats> {
        match self.ask(node, Inquiry::Stats, patience).await? {
            InspectionResult::Stats(stats) => Some(stats),
            InspectionResult::Entities(_) => None,
        }
    }

    /// A page of the entities of this node's region: the first page, or the page that begins where another one ended.
    pub async fn region_entities(&self, from: Option<Position>) -> RegionEntities {
        entities(&*self.0, from.as_ref(), self.0.settings().shard_region_query_timeout).await
    }

    /// A page of the entities of another node's region; `None` if it does not answer within `patience`.
    pub async fn entities_of(
        &self,
        node: &UniqueAddress,
        from: Option<Position>,
        patience: Duration,
    ) -> Option<RegionEntities> {
        match self.ask(node, Inquiry::Entities { from }, patience).await? {
            InspectionResult::Entities(entities) => Some(entities),
            InspectionResult::Stats(_) => None,
        }
    }

    /// Where an entity belongs, by the routes of this node alone: no question is sent, and no entity is started.
    ///
    /// # Errors
    /// The reason for which a message to such an entity would be dropped: the id is invalid.
    pub fn entity_location(&self, id: &str) -> Result<EntityLocation, DeadLetterReason> {
        self.0.locate(id)
    }

    async fn ask(&self, node: &UniqueAddress, inquiry: Inquiry, patience: Duration) -> Option<InspectionResult> {
        let region = &self.0;
        if *node == region.id().node {
            return Some(inspect(&**region, &inquiry, patience).await);
        }
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let mut asked = region.inquiries().ask(node);
        region.send_inspection(node, &InspectionMessage::Ask { request: asked.number(), patience_ms, inquiry });
        timeout(patience, asked.answer()).await.ok().flatten()
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("region", self.0.id()).finish_non_exhaustive()
    }
}

/// Handles a question or an answer of another node.
pub(crate) fn on_message(region: &Arc<dyn AnyRegion>, node: UniqueAddress, message: InspectionMessage) {
    match message {
        InspectionMessage::Tell { request, result } => region.inquiries().tell(&node, request, result),
        InspectionMessage::Ask { request, patience_ms, inquiry } => {
            let Some(permit) = region.inquiries().admit() else {
                return tracing::debug!(
                    entity_type = %region.name(), %node,
                    "too many concurrent inspection requests; request dropped"
                );
            };
            let asked = region.clone();
            region.runtime().spawn(async move {
                // Leave a fifth of the time for the way of the answer.
                let patience = Duration::from_millis(patience_ms.into()) * 4 / 5;
                let result = inspect(&*asked, &inquiry, patience).await;
                asked.send_inspection(&node, &InspectionMessage::Tell { request, result });
                drop(permit);
            });
        }
    }
}

/// Answers from this node's region. Shards get the time of the setting, but no more than the asking node waits.
async fn inspect(region: &dyn AnyRegion, inquiry: &Inquiry, patience: Duration) -> InspectionResult {
    let patience = patience.min(region.settings().shard_region_query_timeout);
    match inquiry {
        Inquiry::Stats => InspectionResult::Stats(stats(region, patience).await),
        Inquiry::Entities { from } => InspectionResult::Entities(entities(region, from.as_ref(), patience).await),
    }
}

async fn stats(region: &dyn AnyRegion, patience: Duration) -> RegionStats {
    let deadline = Instant::now() + patience;
    let asked: Vec<_> = region.hosted().into_iter().map(|shard| (count(region, &shard), shard)).collect();
    let mut stats = RegionStats::default();
    for (scan, shard) in asked {
        match answer(scan, deadline).await {
            Some(scan) => drop(stats.shards.insert(shard, scan.counts())),
            None => drop(stats.failed.insert(shard)),
        }
    }
    stats
}

/// The pending answer of a shard; `None` if no task of it runs.
type Asked = Option<oneshot::Receiver<EntityScan>>;

fn count(region: &dyn AnyRegion, shard: &ShardId) -> Asked {
    region.count(shard, EntityScan::of_counts())
}

async fn answer(asked: Asked, deadline: Instant) -> Option<EntityScan> {
    timeout_at(deadline, asked?).await.ok()?.ok()
}

/// One page. The page ends when it is full, and after a group of shards of which one has not answered: so a page takes
/// no longer than one shard may.
async fn entities(region: &dyn AnyRegion, from: Option<&Position>, patience: Duration) -> RegionEntities {
    let mut shards = region.hosted();
    shards.retain(|shard| from.is_none_or(|from| *shard >= from.shard));
    let behind = |shard: &ShardId| from.filter(|from| from.shard == *shard).and_then(|from| from.after.clone());
    let mut page = RegionEntities::default();
    let mut room = ENTITIES_PER_PAGE;
    for together in shards.chunks(SHARDS_AT_A_TIME) {
        if !page.failed.is_empty() {
            page.next = Some(Position { shard: together[0].clone(), after: None });
            return page;
        }
        let deadline = Instant::now() + patience;
        let ask = |shard: &ShardId| region.count(shard, EntityScan::of_entities(behind(shard), room));
        let asked: Vec<_> = together.iter().map(ask).collect();
        for (shard, scan) in together.iter().zip(asked) {
            if room == 0 {
                page.next = Some(Position { shard: shard.clone(), after: None });
                return page;
            }
            let Some(scan) = answer(scan, deadline).await else {
                page.failed.insert(shard.clone());
                continue;
            };
            let (found, is_cut) = scan.into_entities();
            let is_cut = is_cut || found.len() > room;
            let taken: BTreeSet<_> = found.into_iter().take(room).collect();
            room -= taken.len();
            let last = taken.last().cloned();
            page.shards.insert(shard.clone(), taken);
            if is_cut {
                page.next = Some(Position { shard: shard.clone(), after: last });
                return page;
            }
        }
    }
    page
}
