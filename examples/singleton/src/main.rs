//! One till in the whole cluster: it runs on the oldest node, and on the next oldest when that node leaves.
//!
//! Every node offers to run the till, and every node sells through it: `tell` and `ask` find the running
//! instance, and hold messages while the till moves. The book stands for a resource that only one process
//! may write; a real one would fence its writes with the `oldest_up_number` of the instance's context
//! (cluster P5).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag::prelude::*;

/// The messages to the till.
#[derive(Serialize, Deserialize)]
enum Message {
    /// A sale of `cents` cents.
    Sold { cents: u64 },
    /// Asks for the sum in the book, and the number of the answering instance.
    Total(ReplyTo<(u64, u64)>),
}

/// The state that outlives an instance: the number of the instance that writes, and the sum.
type Book = Arc<Mutex<(Option<u64>, u64)>>;

struct Till {
    book: Book,
    instance: u64,
}

impl SingletonInstance for Till {
    type Message = Message;

    /// Runs until the mailbox ends; only then the next instance starts on another node.
    async fn run(&mut self, mailbox: &mut Mailbox<Message>) -> greylag::Result {
        let before = self.book.lock().expect("no writer panics").0.replace(self.instance);
        assert_eq!(before, None, "never two at a time");
        while let Some(message) = mailbox.recv().await {
            let mut book = self.book.lock().expect("no writer panics");
            match message {
                Message::Sold { cents } => book.1 += cents,
                Message::Total(reply_to) => reply_to.reply((book.1, self.instance)),
            }
        }
        self.book.lock().expect("no writer panics").0 = None;
        Ok(())
    }
}

/// Starts a node that offers to run the till; returns the node and a reference to the till.
async fn node(seeds: Vec<String>, book: &Book) -> greylag::Result<(Node, SingletonRef<Message>)> {
    let node = Node::builder("shop").bind("127.0.0.1", 0).seed_nodes(seeds).start().await?;
    let book = book.clone();
    let till = node.singleton("till", move |cx| Ok(Till { book: book.clone(), instance: cx.instance_id }));
    let till = till.codec(json("till")).start().await?;
    Ok((node, till))
}

#[tokio::main]
async fn main() -> greylag::Result {
    let time_limit = Duration::from_secs(20);
    let book = Book::default();
    let (first, at_first) = node(vec![], &book).await?;
    let (second, at_second) = node(vec![first.address().to_string()], &book).await?;
    let (third, at_third) = node(vec![first.address().to_string()], &book).await?;

    // Sell through the one instance from every node.
    for till in [&at_first, &at_second, &at_third] {
        till.tell(Message::Sold { cents: 100 })?;
        // Wait for an answer: it comes after the handling of this node's earlier messages.
        till.ask(Message::Total, time_limit).await?;
    }
    let (cents, before) = at_third.ask(Message::Total, time_limit).await?;
    assert_eq!(cents, 300);

    // The node that runs the till leaves: the till ends there and starts on the next oldest node, and messages
    // sent meanwhile wait for it.
    first.shutdown().await?;
    at_third.tell(Message::Sold { cents: 50 })?;
    let (cents, after) = at_third.ask(Message::Total, time_limit).await?;
    assert_eq!(cents, 350);
    assert_ne!(after, before);
    assert!(at_second.is_running_here());

    third.shutdown().await?;
    second.shutdown().await?;
    assert_eq!(book.lock().expect("no writer panics").0, None);
    Ok(())
}
