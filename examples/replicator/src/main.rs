//! Three replicators without a cluster: concurrent edits while a link is cut, and agreement once it heals.
//!
//! Each replicator has its own gRPC transport on a loopback port and knows the others from a fixed list.
//! One of them is cut off, both sides go on editing, then the link heals, and all three hold the same
//! values. Exits 1 if not.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::Registry;
use greylag_crdt::{LwwMap, OrSet};
use greylag_ddata::{Changed, Membership, Replicated, Replicator, ReplicatorSettings, TypeTable};
use greylag_transport::{Fault, GrpcTransport, Remoting, TransportSettings};

type Birds = OrSet<String>;
type Sightings = LwwMap<String, u64>;
type Failure = Box<dyn std::error::Error>;
/// The time limit for each step.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// One replica of the flock's data.
struct Node {
    name: &'static str,
    transport: Arc<GrpcTransport>,
    birds: Replicated<Birds>,
    sightings: Replicated<Sightings>,
}

impl Node {
    async fn add(&self, bird: &'static str) -> Result<(), Failure> {
        println!("{}: adds {bird}", self.name);
        Ok(self.birds.update(move |birds, cx| birds.add(cx, bird.to_owned())).await?)
    }

    async fn remove(&self, bird: &'static str) -> Result<bool, Failure> {
        println!("{}: removes {bird}", self.name);
        Ok(self.birds.update(move |birds, cx| birds.remove(cx, bird)).await?)
    }

    async fn count(&self, bird: &'static str, seen: u64) -> Result<(), Failure> {
        println!("{}: counts {seen} of {bird}", self.name);
        Ok(self.sightings.update(move |map, cx| map.put(cx, bird.to_owned(), seen)).await?)
    }

    async fn state(&self) -> Result<(Birds, Sightings), Failure> {
        Ok((self.birds.get().await?, self.sightings.get().await?))
    }

    /// Shuts down in order: the replicator first hands on its unsent changes, then the transport closes the streams.
    async fn end(&self) {
        self.birds.replicator().shutdown().await;
        self.transport.shutdown().await;
    }

    /// Waits until this replica's set satisfies a condition, by subscription instead of polling.
    async fn wait_for(&self, wanted: impl Fn(&Birds) -> bool) -> Result<(), Failure> {
        let mut changes = self.birds.subscribe();
        let arrived = async {
            while let Some(change) = changes.next().await {
                if matches!(&change, Changed::Value { value, .. } if wanted(value)) {
                    return Ok(());
                }
            }
            Err("the replicator stopped".into())
        };
        tokio::time::timeout(TIME_LIMIT, arrived).await?
    }
}

async fn start() -> Result<Vec<Node>, Failure> {
    let mut transports = Vec::new();
    for _ in 0..3 {
        transports.push(GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await?);
    }
    let addresses: Vec<_> = transports.iter().map(|node| node.self_address().address().clone()).collect();
    let mut nodes = Vec::new();
    for (name, transport) in ["amber", "birch", "cedar"].into_iter().zip(transports) {
        let (types, membership) = (TypeTable::new(), Membership::fixed(addresses.clone()));
        let replicator = Replicator::start(ReplicatorSettings::test(), types, transport.clone(), membership)?;
        println!("{name}: runs at {}", transport.self_address());
        let (birds, sightings) = (replicator.replicated("birds")?, replicator.replicated("sightings")?);
        nodes.push(Node { name, transport, birds, sightings });
    }
    for node in &nodes {
        let replicator = node.birds.replicator();
        replicator.replicas().wait_for(|replicas| replicas.unmet.is_empty()).await?;
        replicator.wait_synced(TIME_LIMIT).await;
    }
    Ok(nodes)
}

/// Applies a fault to all links between the third node and the others, or heals them.
fn set_fault(nodes: &[Node], fault: Fault) {
    for [from, to] in [[0, 2], [1, 2], [2, 0], [2, 1]] {
        nodes[from].transport.fault(nodes[to].transport.self_address().address(), fault);
    }
}

async fn run() -> Result<bool, Failure> {
    let nodes = start().await?;
    let [amber, birch, cedar] = &nodes[..] else { return Err("three nodes were started".into()) };
    amber.add("greylag").await?;
    birch.add("heron").await?;
    for node in &nodes {
        node.wait_for(|birds| birds.contains("greylag") && birds.contains("heron")).await?;
    }

    println!("-- the link to cedar is cut");
    set_fault(&nodes, Fault::BlackholeOutbound);
    amber.add("swan").await?;
    amber.count("greylag", 12).await?;
    birch.remove("heron").await?;
    cedar.add("heron").await?; // concurrent with the removal, which has not seen this add: the add wins
    cedar.remove("greylag").await?;
    cedar.add("plover").await?;
    cedar.count("greylag", 15).await?; // two concurrent writes to one key: the same one wins everywhere
    cedar.count("plover", 3).await?;
    birch.wait_for(|birds| birds.contains("swan")).await?;
    for node in &nodes {
        println!("{}: holds {:?}", node.name, node.state().await?);
    }

    println!("-- the link heals");
    set_fault(&nodes, Fault::Pass);
    let mut states = Vec::new();
    for node in &nodes {
        node.wait_for(|birds| birds.iter().eq(["heron", "plover", "swan"])).await?;
        node.sightings.get().all().timeout(TIME_LIMIT).await?;
        let state = node.state().await?;
        println!("{}: holds {state:?}", node.name);
        states.push(state);
    }
    tokio::join!(amber.end(), birch.end(), cedar.end());
    Ok(states.windows(2).all(|pair| pair[0] == pair[1]))
}

#[tokio::main]
async fn main() -> ExitCode {
    let agreed = run().await.unwrap_or_else(|error| {
        println!("failed: {error}");
        false
    });
    println!("{}", if agreed { "all three agree" } else { "they do not agree" });
    if agreed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
