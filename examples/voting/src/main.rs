//! A vote counted in replicated data: every node takes votes, none waits for another.
//!
//! The tally is a map of counters that go up and down. Three nodes take votes at the same time, some
//! voters change their minds, and the count is exact when the poll closes: each node counts in slots of
//! its own, and every node shows the sums of the slots.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::time::Duration;

use greylag::crdt::{CounterOverflow, PnCounterMap, UpdateCx};
use greylag::ddata::{Changed, Key, ReadLevel, Replicator, TypeTable, WriteLevel};
use greylag::prelude::*;

type Tally = PnCounterMap<String>;
type Failure = Box<dyn std::error::Error>;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes votes at one node; they spread by themselves.
async fn vote(station: &Replicator, tally: &Key<Tally>, bird: &'static str, by: i64) -> Result<(), Failure> {
    let count = move |tally: &mut Tally, cx: &mut UpdateCx<'_>| -> Result<(), CounterOverflow> {
        tally.increment(cx, bird.to_owned(), by)
    };
    Ok(station.update(tally, WriteLevel::Local, Tally::new, count).await?)
}

fn total(tally: &Tally) -> i128 {
    tally.iter().map(|(_, votes)| votes).sum()
}

async fn run() -> Result<bool, Failure> {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..3 {
        let seeds: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        nodes.push(Node::builder("poll").bind("127.0.0.1", 0).seed_nodes(seeds).start().await?);
    }
    let stations =
        nodes.iter().map(|node| node.replicator(TypeTable::new())).collect::<Result<Vec<Replicator>, _>>()?;
    for station in &stations {
        station.replicas().wait_for(|replicas| replicas.voter_count() == 3).await?;
        station.wait_synced(PATIENCE).await;
    }
    let tally = Key::<Tally>::new("bird-of-the-year")?;
    // The third node watches while votes come in.
    let mut board = stations[2].subscribe(&tally);

    for round in 0..40 {
        for (station, bird) in stations.iter().zip(["greylag", "heron", "greylag"]) {
            vote(station, &tally, bird, 1).await?;
            if round % 10 == 0 {
                // A voter changes their mind.
                vote(station, &tally, bird, -1).await?;
                vote(station, &tally, "plover", 1).await?;
            }
        }
    }

    while let Some(Changed::Value { value, .. }) = board.next().await {
        println!("so far: {value:?}");
        if total(&value) == 120 {
            break;
        }
    }
    // Asking all of them leaves out no vote, wherever it was cast.
    let counted = stations[0].get(&tally, ReadLevel::all(PATIENCE)).await?.found().unwrap_or_default();
    println!("final: {counted:?}");
    for node in nodes.iter().rev() {
        node.shutdown().await?;
    }
    let expected = [("greylag", 72), ("heron", 36), ("plover", 12)];
    Ok(counted.iter().map(|(bird, votes)| (bird.as_str(), votes)).eq(expected))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if run().await? { Ok(()) } else { Err("votes were lost or counted twice".into()) }
}
