//! `greylag shards`: shows entity types through the admin service of one node.

use std::fmt::Write as _;
use std::process::ExitCode;

use greylag_management::v1;
use serde::Serialize;

use crate::arguments::{Entities, Location, OfType, Shards};
use crate::call::Call;
use crate::failure::Failure;
use crate::table::{or_dash, table};

/// Runs the command.
pub(crate) async fn run(call: &mut Call, command: Shards) -> Result<ExitCode, Failure> {
    match command {
        Shards::Types => types(call).await?,
        Shards::Regions(asked) => regions(call, asked).await?,
        Shards::Stats(asked) => stats(call, asked).await?,
        Shards::Entities(asked) => entities(call, asked).await?,
        Shards::Location(asked) => location(call, asked).await?,
        Shards::RemoveInternalData(_) => unreachable!("remove-internal-data is run without a node"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Time limit for the node, short enough that its partial answer comes within the limit of the command.
fn timeout_ms(call: &Call) -> u32 {
    u32::try_from((call.limit * 4 / 5).as_millis()).unwrap_or(u32::MAX).max(1)
}

#[derive(Debug, Serialize)]
struct TypesView {
    entity_types: Vec<String>,
}

async fn types(call: &mut Call) -> Result<(), Failure> {
    let reply = call.client.shard_types(v1::ShardTypesRequest {}).await;
    let entity_types = call.answer(reply)?.entity_types;
    let text = if entity_types.is_empty() { "no entity type is set up".to_owned() } else { entity_types.join("\n") };
    call.print(&TypesView { entity_types }, || text)
}

#[derive(Debug, Serialize)]
struct RegionsView {
    regions: Vec<String>,
    coordinator_missing: bool,
}

const NO_COORDINATOR: &str = "no coordinator of the type answers: it is starting, or no node runs it; try again";

async fn regions(call: &mut Call, OfType { entity_type }: OfType) -> Result<(), Failure> {
    let request = v1::ShardRegionsRequest { entity_type, timeout_ms: timeout_ms(call) };
    let reply = call.client.shard_regions(request).await;
    let v1::ShardRegionsReply { regions, coordinator_missing } = call.answer(reply)?;
    let text = match (coordinator_missing, regions.is_empty()) {
        (true, _) => NO_COORDINATOR.to_owned(),
        (false, true) => "no node hosts the type".to_owned(),
        (false, false) => regions.join("\n"),
    };
    call.print(&RegionsView { regions, coordinator_missing }, || text)
}

#[derive(Debug, Serialize)]
struct StatsView {
    regions: Vec<RegionView>,
    failed_regions: Vec<String>,
    coordinator_missing: bool,
}

#[derive(Debug, Serialize)]
struct RegionView {
    region: String,
    shards: Vec<ShardView>,
    failed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ShardView {
    shard: String,
    active: u64,
    passivating: u64,
    remembered_not_started: u64,
    waiting_restart: u64,
    total: u64,
}

impl From<v1::ShardCounts> for ShardView {
    fn from(counts: v1::ShardCounts) -> Self {
        let v1::ShardCounts { shard, entities } = counts;
        let v1::EntityCounts { active, passivating, remembered_not_started, waiting_restart } =
            entities.unwrap_or_default();
        let total = [active, passivating, remembered_not_started, waiting_restart];
        let total = total.into_iter().fold(0, u64::saturating_add);
        Self { shard, active, passivating, remembered_not_started, waiting_restart, total }
    }
}

async fn stats(call: &mut Call, OfType { entity_type }: OfType) -> Result<(), Failure> {
    let request = v1::ShardStatsRequest { entity_type, timeout_ms: timeout_ms(call) };
    let reply = call.client.shard_stats(request).await;
    let reply = call.answer(reply)?;
    let regions = reply.regions.into_iter().map(|region| RegionView {
        region: region.region,
        shards: region.shards.into_iter().map(ShardView::from).collect(),
        failed: region.failed,
    });
    let view = StatsView {
        regions: regions.collect(),
        failed_regions: reply.failed_regions,
        coordinator_missing: reply.coordinator_missing,
    };
    call.print(&view, || show_stats(&view))
}

fn show_stats(view: &StatsView) -> String {
    if view.coordinator_missing {
        return NO_COORDINATOR.to_owned();
    }
    let mut rows = Vec::new();
    let (mut shards, mut entities) = (0, 0_u64);
    for region in &view.regions {
        for shard in &region.shards {
            shards += 1;
            entities = entities.saturating_add(shard.total);
            let counts =
                [shard.active, shard.passivating, shard.remembered_not_started, shard.waiting_restart, shard.total];
            let counts = counts.iter().map(ToString::to_string);
            rows.push([region.region.clone(), shard.shard.clone()].into_iter().chain(counts).collect());
        }
        rows.extend(region.failed.iter().map(|shard| {
            let silent = std::iter::repeat_n("?".to_owned(), 5);
            [region.region.clone(), shard.clone()].into_iter().chain(silent).collect()
        }));
    }
    let header = ["REGION", "SHARD", "ACTIVE", "PASSIVATING", "NOT STARTED", "RESTARTING", "TOTAL"];
    let mut text = table(&header, &rows);
    let _infallible = write!(text, "{} regions, {shards} shards, {entities} entities", view.regions.len());
    let failed: usize = view.regions.iter().map(|region| region.failed.len()).sum();
    if failed > 0 {
        let _infallible = write!(text, "; {failed} shards did not answer");
    }
    if !view.failed_regions.is_empty() {
        let _infallible = write!(text, "; no answer from {}", view.failed_regions.join(", "));
    }
    text
}

#[derive(Debug, Serialize)]
struct EntitiesView {
    region: String,
    shards: Vec<ShardEntitiesView>,
    failed: Vec<String>,
    next: Option<NextView>,
}

#[derive(Debug, Serialize)]
struct ShardEntitiesView {
    shard: String,
    entities: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NextView {
    shard: String,
    after: Option<String>,
}

async fn entities(call: &mut Call, asked: Entities) -> Result<(), Failure> {
    let mut region = asked.region.unwrap_or_default();
    let mut from = asked.shard.map(|shard| v1::EntityPosition { shard, after: asked.after.unwrap_or_default() });
    loop {
        let entity_type = asked.entity_type.clone();
        let timeout_ms = timeout_ms(call);
        let request = v1::ShardEntitiesRequest { entity_type, region: region.clone(), from, timeout_ms };
        let reply = call.client.shard_entities(request).await;
        let reply = call.answer(reply)?;
        // All pages must come from one incarnation.
        region.clone_from(&reply.region);
        from = reply.next.clone();
        show_page(call, reply, asked.all)?;
        if !asked.all || from.is_none() {
            return Ok(());
        }
    }
}

fn show_page(call: &Call, reply: v1::ShardEntitiesReply, all: bool) -> Result<(), Failure> {
    let shards =
        reply.shards.into_iter().map(|found| ShardEntitiesView { shard: found.shard, entities: found.entities });
    let next = reply.next.map(|v1::EntityPosition { shard, after }| NextView {
        shard,
        after: Some(after).filter(|after| !after.is_empty()),
    });
    let view = EntitiesView { region: reply.region, shards: shards.collect(), failed: reply.failed, next };
    call.print(&view, || {
        let mut text = String::new();
        for ShardEntitiesView { shard, entities } in &view.shards {
            for entity in entities {
                let _infallible = writeln!(text, "{shard}  {entity}");
            }
        }
        for shard in &view.failed {
            let _infallible = writeln!(text, "{shard}  did not answer");
        }
        if text.is_empty() && !all {
            let _infallible = writeln!(text, "{} has no live entities of the type", view.region);
        }
        if let Some(next) = view.next.as_ref().filter(|_| !all) {
            let after = next.after.as_ref().map(|after| format!(" --after {after:?}")).unwrap_or_default();
            let _infallible = writeln!(text, "more entities follow: --shard {}{after}", next.shard);
        }
        text
    })
}

#[derive(Debug, Serialize)]
struct LocationView {
    shard: String,
    region: Option<String>,
}

async fn location(call: &mut Call, Location { entity_type, entity }: Location) -> Result<(), Failure> {
    let request = v1::EntityLocationRequest { entity_type, entity };
    let reply = call.client.entity_location(request).await;
    let v1::EntityLocationReply { shard, region } = call.answer(reply)?;
    let view = LocationView { shard, region: Some(region).filter(|region| !region.is_empty()) };
    call.print(&view, || {
        let region = view.region.clone().unwrap_or_default();
        table(&["SHARD", "REGION"], &[vec![view.shard.clone(), or_dash(region)]])
    })
}
