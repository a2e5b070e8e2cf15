//! A rate limiter: each client has one bucket of tokens, for requests that come in at any node of the cluster.
//!
//! A bucket is a plain entity: it lives in memory on one node, and stores nothing. A timer refills the bucket. A bucket
//! without requests for a while is full again, so it may passivate: the next request starts a new one, full as well.
//! The timer does not keep a bucket in memory, since a timer's message does not count as use.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::collections::BTreeSet;
use std::time::Duration;

use greylag::prelude::*;
use greylag::sharding::Signal;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const LIMITER: EntityKey<Message> = EntityKey::new("RateLimiter");
/// The tokens of a full bucket.
const BURST: u32 = 10;
const REFILL: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
enum Message {
    Take { tokens: u32, reply_to: ReplyTo<bool> },
    Refill,
}

struct Limiter {
    left: u32,
    /// Receives the client's name when the bucket passivates.
    gone: UnboundedSender<String>,
}

impl Entity for Limiter {
    type Message = Message;

    fn on_start(&mut self, cx: &mut Ctx<'_, Message>) {
        cx.fixed_rate("refill", REFILL, || Message::Refill);
    }

    fn receive(&mut self, message: Message, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Take { tokens, reply_to } => {
                let granted = tokens <= self.left;
                self.left -= if granted { tokens } else { 0 };
                reply_to.reply(granted);
            }
            Message::Refill => self.left = BURST,
        }
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        if signal == Signal::PostStop {
            // Ignore the error: the main function may have ended.
            self.gone.send(cx.id().to_owned()).ok();
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> greylag::Result {
    let (gone, mut left_memory) = unbounded_channel();
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..2 {
        let gone = gone.clone();
        let limiters = EntityType::new(LIMITER, move |_| Ok(Limiter { left: BURST, gone: gone.clone() }))
            .codec(json("limiter.message"))
            .passivation(Passivation::idle_after(IDLE));
        let seeds: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        nodes.push(Node::builder("gate").bind("127.0.0.1", 0).seed_nodes(seeds).entity(limiters).start().await?);
    }
    let take = |node: usize, client: &str, tokens| {
        nodes[node].entity_ref(LIMITER, client).ask(move |reply_to| Message::Take { tokens, reply_to })
    };

    // Take from both nodes in turn until the shared bucket is empty.
    let mut granted = 0;
    while take(granted % 2, "alice", 1).await? {
        granted += 1;
    }
    println!("alice: {granted} requests at once, and no more");
    assert!(granted >= BURST as usize);
    // Another client has its own bucket, which never holds more than `BURST` tokens.
    assert!(take(0, "bob", BURST).await?);
    assert!(!take(1, "bob", BURST + 1).await?);

    // A request for a full bucket is granted after the refill.
    while !take(1, "alice", BURST).await? {
        tokio::time::sleep(REFILL / 4).await;
    }
    println!("alice: the bucket is full again");

    // Without requests, the buckets passivate.
    let mut gone = BTreeSet::new();
    while gone.len() < 2 {
        let client = left_memory.recv().await.expect("a bucket tells it");
        println!("{client}: the bucket has left the memory");
        gone.insert(client);
    }
    assert!(take(0, "alice", BURST).await?, "the next one is full");
    for node in nodes.iter().rev() {
        node.shutdown().await?;
    }
    Ok(())
}
