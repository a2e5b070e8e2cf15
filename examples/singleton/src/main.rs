//! One till in the whole cluster: it runs on the oldest node, and on the next when that one leaves.
//!
//! Every node offers to run the till, and every node sells through it, wherever it runs: `tell` and
//! `ask` find the instance, and keep messages while it moves. The book stands for a resource that only
//! one process may write; a real one would fence its writes with the `oldest_up_number` of the
//! instance's context (cluster P5).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag::cluster::{Mailbox, Singleton, SingletonContext, SingletonRef};
use greylag::prelude::*;
use serde::{Deserialize, Serialize};

/// What the till is told and asked.
#[derive(Serialize, Deserialize)]
enum Till {
    /// So many cents were paid.
    Sold { cents: u64 },
    /// How much is in the book, and which instance says so?
    Total { reply_to: ReplyTo<Total> },
}

#[derive(Debug, Serialize, Deserialize)]
struct Total {
    cents: u64,
    instance: u64,
}

/// What outlives an instance: the number of the instance that writes, and the sum.
#[derive(Default)]
struct Book {
    writer: Option<u64>,
    cents: u64,
}

/// Runs until its mailbox ends; only after that the next one starts elsewhere.
async fn till(book: Arc<Mutex<Book>>, context: SingletonContext, mut mailbox: Mailbox<Till>) {
    let instance = context.instance_id;
    let before = book.lock().expect("no writer panics").writer.replace(instance);
    assert_eq!(before, None, "never two at a time");
    while let Some(message) = mailbox.recv().await {
        let mut book = book.lock().expect("no writer panics");
        match message {
            Till::Sold { cents } => book.cents += cents,
            Till::Total { reply_to } => reply_to.reply(Total { cents: book.cents, instance }),
        }
    }
    book.lock().expect("no writer panics").writer = None;
}

/// Starts a node that offers to run the till, and a way to it.
async fn node(
    seed: Option<&Node>,
    book: &Arc<Mutex<Book>>,
) -> Result<(Node, SingletonRef<Till>), Box<dyn std::error::Error>> {
    let mut builder = Node::builder("shop").bind("127.0.0.1", 0);
    if let Some(seed) = seed {
        builder = builder.seed_nodes([seed.address().to_string()]);
    }
    let node = builder.start().await?;
    let book = book.clone();
    let singleton = Singleton::new("till", move |context, mailbox| till(book.clone(), context, mailbox));
    let till = node.cluster().singleton(singleton.codec(json("till")))?;
    Ok((node, till))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = Duration::from_secs(20);
    let book = Arc::new(Mutex::new(Book::default()));
    let (first, at_first) = node(None, &book).await?;
    let (second, at_second) = node(Some(&first), &book).await?;
    let (third, at_third) = node(Some(&first), &book).await?;

    // From every node, to the one instance.
    for till in [&at_first, &at_second, &at_third] {
        till.tell(Till::Sold { cents: 100 })?;
        // An answer follows what this node told before.
        let total = till.ask(|reply_to| Till::Total { reply_to }, patience).await?;
        assert_eq!(total.cents % 100, 0);
    }
    let before = at_third.ask(|reply_to| Till::Total { reply_to }, patience).await?;
    assert_eq!(before.cents, 300);

    // The node that runs the till leaves: the till ends there and opens on the next oldest, and what is
    // told meanwhile waits for it.
    first.shutdown().await?;
    at_third.tell(Till::Sold { cents: 50 })?;
    let after = at_third.ask(|reply_to| Till::Total { reply_to }, patience).await?;
    assert_eq!(after.cents, 350);
    assert_ne!(after.instance, before.instance);
    assert!(at_second.is_running_here());

    third.shutdown().await?;
    second.shutdown().await?;
    assert_eq!(book.lock().expect("no writer panics").writer, None);
    Ok(())
}
