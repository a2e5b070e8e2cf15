//! A cluster that starts, works and stops as it should says nothing loudly. A test program of its own, since what listens
//! to the log is one per process.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag::cluster::{MemberStatus, Singleton};
use greylag::crdt::GCounter;
use greylag::ddata::{Key, TypeTable, WriteLevel};
use greylag::prelude::*;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);

/// The warnings and errors of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn keep() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    fn loud(&self) -> Vec<String> {
        let text = self.0.lock().expect("nothing panics").clone();
        String::from_utf8(text).expect("text").lines().map(ToOwned::to_owned).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Take {
    reply_to: ReplyTo<u64>,
}

#[derive(Default)]
struct Ticket(u64);

impl Entity for Ticket {
    type Message = Take;

    fn receive(&mut self, take: Take, _: &mut Ctx<'_, Take>) -> Result<(), Failure> {
        self.0 += 1;
        take.reply_to.reply(self.0);
        Ok(())
    }
}

/// A port of this host that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

async fn start(port: u16, seeds: &[String]) -> Node {
    let node = Node::builder("quiet").bind("127.0.0.1", port).seed_nodes(seeds).start().await.expect("it joins");
    let job = Singleton::job("job", |_, mut stop| async move { stop.stopped().await });
    node.cluster().singleton(job).expect("it starts");
    node
}

/// Entities on every node, asked from every node; a counter that every node counts.
async fn work(nodes: &[Node]) {
    let mut regions = Vec::new();
    let mut replicators = Vec::new();
    for node in nodes {
        let tickets = EntityType::new(EntityKey::new("Ticket"), |_| Ok(Ticket::default())).codec(json("take"));
        regions.push(node.sharding().init(tickets).expect("it starts"));
        replicators.push(node.replicator(TypeTable::new().with::<GCounter>()).expect("it starts"));
    }
    for round in 1..=3 {
        for id in 0..30 {
            let region = &regions[(id + round) % regions.len()];
            let ticket = region.entity_ref(id.to_string());
            let taken = ticket.ask(|reply_to| Take { reply_to }).timeout(PATIENCE).await.expect("it answers");
            assert_eq!(taken, round as u64);
        }
    }
    let votes = Key::<GCounter>::new("votes").expect("a key");
    for replicator in &replicators {
        let vote = |votes: &mut GCounter, cx: &mut greylag::crdt::UpdateCx<'_>| votes.increment(cx, 1);
        let level = WriteLevel::Majority { min_cap: None, timeout: PATIENCE };
        replicator.update(&votes, level, GCounter::new, vote).await.expect("most hear of it");
    }
}

async fn all_up(nodes: &[Node]) {
    for node in nodes {
        let up = node.cluster().wait_for(|view| {
            view.members.iter().filter(|member| member.status == MemberStatus::Up).count() == nodes.len()
        });
        tokio::time::timeout(PATIENCE, up).await.expect("all are Up").expect("it stays");
    }
}

/// Three nodes of one list of seeds start at once, work, and stop: one after the other, and all together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_normal_start_and_a_normal_stop_warn_of_nothing() {
    let log = Log::keep();
    for together in [false, true] {
        let ports = [free_port(), free_port(), free_port()];
        let seeds = ports.map(|port| format!("127.0.0.1:{port}"));
        let [one, two, three] = ports;
        let (one, two, three) = tokio::join!(start(one, &seeds), start(two, &seeds), start(three, &seeds));
        let nodes = [one, two, three];
        all_up(&nodes).await;
        work(&nodes).await;
        if together {
            let [one, two, three] = &nodes;
            let ended = tokio::try_join!(one.shutdown(), two.shutdown(), three.shutdown());
            ended.expect("they leave in order");
        } else {
            for node in &nodes {
                node.shutdown().await.expect("it leaves in order");
            }
        }
        drop(nodes);
        assert_eq!(log.loud(), Vec::<String>::new(), "together: {together}");
    }
}
