//! A fixed number of carriers deliver to a street; each carrier runs exactly once in the whole cluster.
//!
//! Three nodes run four carriers between them. Carrier `i` of `n` serves every `n`th house, so each house has one
//! carrier on some node, also after a node has left. Then the number changes to six carriers: all four old ones have
//! stopped before the first of the six starts, so no house is ever served by two.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use greylag::prelude::*;

const HOUSES: u32 = 12;

struct Carrier {
    index: u32,
    count: u32,
    /// Reports each served house: the revision, and the number of the house.
    served: Sender<(u64, u32)>,
    revision: u64,
}

impl Entity for Carrier {
    type Message = ();

    fn on_start(&mut self, cx: &mut Ctx<'_, ()>) {
        println!("{}: carrier {} of {} begins", cx.node().expect("it lives on a node"), self.index, self.count);
        cx.fixed_rate("round", Duration::from_millis(50), || ());
    }

    fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        for house in (0..HOUSES).filter(|house| house % self.count == self.index) {
            // Ignore the error: the main function may have ended.
            self.served.send((self.revision, house)).ok();
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> greylag::Result {
    let (served, rounds) = channel();
    let mut nodes: Vec<(Node, DaemonProcesses)> = Vec::new();
    for _ in 0..3 {
        let seeds: Vec<String> = nodes.iter().map(|(node, _)| node.address().to_string()).collect();
        let node = Node::builder("post").bind("127.0.0.1", 0).seed_nodes(seeds).start().await?;
        let served = served.clone();
        let carriers = node.daemon_process("carriers", 4, move |init| {
            let DaemonInit { index, count, revision, .. } = *init;
            Ok(Carrier { index, count, served: served.clone(), revision })
        });
        let carriers = carriers.start()?;
        nodes.push((node, carriers));
    }

    // Wait until every house is served under this revision.
    let all_served = |revision| {
        let mut left: Vec<u32> = (0..HOUSES).collect();
        while !left.is_empty() {
            let (by, house) = rounds.recv_timeout(Duration::from_secs(60)).expect("houses are served");
            left.retain(|missing| by != revision || *missing != house);
        }
    };
    tokio::task::block_in_place(|| all_served(0));
    nodes[1].1.change_number_of_processes(6).await?;
    tokio::task::block_in_place(|| all_served(1));
    let (node, _) = nodes.pop().expect("there are three");
    node.shutdown().await?;
    while rounds.try_recv().is_ok() {}
    tokio::task::block_in_place(|| all_served(1));
    println!("{} carriers serve all {HOUSES} houses", nodes[0].1.number_of_processes().await?.count);
    for (node, _) in nodes.iter().rev() {
        node.shutdown().await?;
    }
    Ok(())
}
