//! Singletons whose instances fail, and the instances made after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greylag::prelude::*;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
enum Message {
    Fail,
    Panic,
    End,
    /// Asks how many instances were made before this one.
    Number(ReplyTo<u64>),
}

struct Instance(u64);

impl SingletonInstance for Instance {
    type Message = Message;

    async fn run(&mut self, mailbox: &mut Mailbox<Message>) -> greylag::Result {
        while let Some(message) = mailbox.recv().await {
            match message {
                Message::Fail => return Err(greylag::Error::new("told to fail")),
                Message::Panic => panic!("told to panic"),
                Message::End => break,
                Message::Number(reply_to) => reply_to.reply(self.0),
            }
        }
        Ok(())
    }
}

async fn node() -> Node {
    Node::builder("singletons").start_timeout(TIME_LIMIT).start().await.expect("a cluster of one")
}

/// Waits for work that must end.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, work).await.expect("it comes to an end")
}

/// A singleton whose instances are numbered; the factory fails for the numbers that `refuses` names.
async fn counted(node: &Node, refuses: fn(u64) -> bool) -> SingletonRef<Message> {
    let made = Arc::new(AtomicU64::new(0));
    let factory = move |_| {
        let number = made.fetch_add(1, Ordering::Relaxed);
        if refuses(number) { Err(greylag::Error::new("not yet")) } else { Ok(Instance(number)) }
    };
    node.singleton("counted", factory).restart_backoff(SOON, SOON).start().await.expect("it starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_instance_restarts_and_waiting_messages_are_handled() {
    let node = node().await;
    let counted = counted(&node, |_| false).await;
    for (number, failure) in [Message::Fail, Message::Panic].into_iter().enumerate() {
        assert_eq!(counted.ask(Message::Number, TIME_LIMIT).await, Ok(number as u64));
        counted.tell(failure).expect("it is taken");
    }
    assert_eq!(counted.ask(Message::Number, TIME_LIMIT).await, Ok(2));
    within(node.shutdown()).await.expect("it leaves in order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_factory_is_retried() {
    let node = node().await;
    let counted = counted(&node, |number| number < 3).await;
    assert_eq!(counted.ask(Message::Number, TIME_LIMIT).await, Ok(3));
    within(node.shutdown()).await.expect("it leaves in order");
}

/// A failed instance that waits to be made again does not keep its node from leaving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_while_an_instance_waits_for_its_restart() {
    let node = node().await;
    let never = node.singleton("never", |_| Err::<Instance, _>(greylag::Error::new("never")));
    let never = never.restart_backoff(TIME_LIMIT * 60, TIME_LIMIT * 60).start().await.expect("it starts");
    within(never.running_here().wait_for(|running| *running)).await.expect("it begins");
    within(node.shutdown()).await.expect("it waits for no back-off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_returns_is_not_restarted_on_this_node() {
    let node = node().await;
    let counted = counted(&node, |_| false).await;
    counted.ask(Message::Number, TIME_LIMIT).await.expect("it runs");
    counted.tell(Message::End).expect("it is taken");
    within(counted.running_here().wait_for(|running| !running)).await.expect("it ends");
    let asked = counted.ask(Message::Number, Duration::from_secs(1)).await;
    assert!(asked.is_err(), "{asked:?}");
    within(node.shutdown()).await.expect("it leaves in order");
}
