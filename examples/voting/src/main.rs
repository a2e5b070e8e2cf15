//! A vote counted in replicated data: every node takes votes, and none waits for another.
//!
//! The tally is a map of counters that go up and down. Three nodes take votes at the same time, some
//! voters change their minds, and the count is exact when the poll closes: each node counts in its own
//! slots, and every node shows the sums of the slots.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use greylag::ddata::Changed;
use greylag::prelude::*;

/// The votes of each bird, as one node has them.
type Tally = Replicated<PnCounterMap<String>>;

/// Adds votes at one node; replication spreads them to the others.
async fn vote(station: &Tally, bird: &'static str, by: i64) -> greylag::Result {
    Ok(station.update(move |tally, cx| tally.increment(cx, bird.to_owned(), by)).await?)
}

fn total(tally: &PnCounterMap<String>) -> i128 {
    tally.iter().map(|(_, votes)| votes).sum()
}

#[tokio::main]
async fn main() -> greylag::Result {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..3 {
        let seeds: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        nodes.push(Node::builder("poll").bind("127.0.0.1", 0).seed_nodes(seeds).start().await?);
    }
    let stations = nodes.iter().map(|node| node.replicated("bird-of-the-year"));
    let stations = stations.collect::<Result<Vec<Tally>, _>>()?;
    // The third node watches while votes come in.
    let mut board = stations[2].subscribe();

    for round in 0..40 {
        for (station, bird) in stations.iter().zip(["greylag", "heron", "greylag"]) {
            vote(station, bird, 1).await?;
            if round % 10 == 0 {
                // A voter changes their mind.
                vote(station, bird, -1).await?;
                vote(station, "plover", 1).await?;
            }
        }
    }

    while let Some(Changed::Value { value, .. }) = board.next().await {
        println!("so far: {value:?}");
        if total(&value) == 120 {
            break;
        }
    }
    // Read from all nodes, so that no vote is left out, wherever it was cast.
    let counted = stations[0].get().all().await?;
    println!("final: {counted:?}");
    for node in nodes.iter().rev() {
        node.shutdown().await?;
    }
    let expected = [("greylag", 72), ("heron", 36), ("plover", 12)];
    let is_right = counted.iter().map(|(bird, votes)| (bird.as_str(), votes)).eq(expected);
    if is_right { Ok(()) } else { Err(greylag::Error::new("votes were lost or counted twice")) }
}
