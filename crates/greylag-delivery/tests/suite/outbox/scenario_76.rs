//! A message is sent once its append has answered Ok, or after the recovery that found it stored.

use std::sync::Arc;

use greylag_core::Encoded;
use greylag_delivery::queue::{Confirmation, MessageSent, QueueError};
use greylag_delivery::{ControllerRef, DurableProducerQueue, EntityOutboxQueue, SeqNr};
use greylag_persistence::driver::{Ended, StoreFault};
use greylag_persistence::{FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, Stores};

use crate::outbox::order::*;

fn faulty() -> (Arc<FaultyJournal>, Stores) {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    (journal.clone(), Stores::new(journal, Arc::new(InMemorySnapshots::default())))
}

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "orders/7".into(), instance }
}

fn numbered(messages: &[MessageSent<Encoded>]) -> Vec<(u64, String)> {
    let text = |sent: &MessageSent<Encoded>| String::from_utf8(sent.message.payload.to_vec()).unwrap();
    messages.iter().map(|sent| (sent.seq_nr.get(), text(sent))).collect()
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(seq_nr, text)| (*seq_nr, (*text).to_owned())).collect()
}

/// Loads like a producer, until the entity answers.
async fn load(queue: &mut EntityOutboxQueue) -> (u64, Vec<(u64, String)>) {
    until("the entity answers", async || match queue.load(&controller(1)).await {
        Ok(state) => Some((state.epoch.0, numbered(&state.unconfirmed))),
        Err(QueueError::OutcomeUnknown) => None,
        Err(other) => panic!("{other}"),
    })
    .await
}

async fn polled(queue: &mut EntityOutboxQueue) -> Vec<(u64, String)> {
    until("something is new", async || {
        let new = queue.poll_new(10).await.unwrap();
        (!new.is_empty()).then(|| numbered(&new))
    })
    .await
}

/// Scenario delivery 76.
#[tokio::test]
async fn scenario_76_unstored_messages_never_leave() {
    for (fault, is_stored) in [
        (StoreFault::Unavailable, false),
        (StoreFault::Rejected, false),
        (StoreFault::AnswerLost { done: false }, false),
        (StoreFault::AnswerLost { done: true }, true),
    ] {
        let (journal, stores) = faulty();
        let Started { orders, mut queue, .. } = start(&stores);
        assert_eq!(load(&mut queue).await, (1, vec![]), "{fault:?}");
        orders.tell(Command::Place { account: "ada", cents: 1 }).await.unwrap();
        assert_eq!(polled(&mut queue).await, pairs(&[(1, "1")]), "{fault:?}: after its append was answered");

        journal.plan(Some(id()), JournalOp::Append, 0, fault);
        orders.tell(Command::Place { account: "ada", cents: 2 }).await.unwrap();
        let (placed, waiting) = orders.ask(Command::Count).await.unwrap();
        let expected = if is_stored { 2 } else { 1 };
        assert_eq!((placed, waiting), (expected, expected), "{fault:?}: the event and its message, or neither");
        // The entity was restarted: no message is returned before its state is loaded.
        let found = until("the recovered state is taken up", async || match queue.poll_new(10).await {
            Ok(new) => {
                assert!(new.is_empty(), "{fault:?}: {new:?}");
                None
            }
            Err(QueueError::NotLoaded) => Some(load(&mut queue).await),
            Err(other) => panic!("{other}"),
        })
        .await;
        let left = if is_stored { pairs(&[(1, "1"), (2, "2")]) } else { pairs(&[(1, "1")]) };
        assert_eq!(found, (2, left), "{fault:?}: under the total it is stored under, and a raised epoch");

        orders.tell(Command::Place { account: "ada", cents: 3 }).await.unwrap();
        assert_eq!(polled(&mut queue).await, pairs(&[(expected as u64 + 1, "3")]), "{fault:?}: numbers have no gap");
    }
}

/// Scenario delivery 76: an entity that lost its history to another one sends no message that it could not store, and
/// its producer is fenced.
#[tokio::test]
async fn scenario_76_a_fenced_entity_sends_nothing() {
    let (_, stores) = faulty();
    let Started { orders: stale, mut queue, ended, .. } = start(&stores);
    load(&mut queue).await;
    let Started { orders: owner, queue: mut next, .. } = start(&stores);
    assert_eq!(load(&mut next).await.0, 2);
    stale.tell(Command::Place { account: "ada", cents: 1 }).await.unwrap();
    assert!(matches!(ended.await.unwrap(), Ended::Fenced(_)));
    let fenced = until("the queue hears of it", async || queue.poll_new(10).await.err()).await;
    assert_eq!(fenced, QueueError::Fenced { by: None });
    assert_eq!(queue.load(&controller(1)).await, Err(QueueError::Fenced { by: None }));

    owner.tell(Command::Place { account: "bob", cents: 2 }).await.unwrap();
    assert_eq!(polled(&mut next).await, pairs(&[(1, "2")]));
}

/// Of delivery §7: confirmations are events; a confirmed message is not loaded again, from a snapshot or from events.
#[tokio::test]
async fn confirmations_are_events_of_the_entity() {
    let (journal, stores) = faulty();
    let Started { orders, mut queue, .. } = start(&stores);
    load(&mut queue).await;
    for cents in 1..=3 {
        orders.tell(Command::Place { account: "ada", cents }).await.unwrap();
    }
    assert_eq!(orders.ask(Command::Count).await.unwrap(), (3, 3));
    queue.poll_new(10).await.unwrap();
    let up_to = |seq_nr| vec![Confirmation::UpTo { qualifier: "ada".into(), seq_nr: SeqNr(seq_nr), timestamp_ms: 1 }];
    queue.store_message_confirmed(up_to(1)).await.unwrap();
    // A confirmation whose answer is lost is repeated after a load, and counts once.
    journal.plan(Some(id()), JournalOp::Append, 0, StoreFault::AnswerLost { done: true });
    assert_eq!(queue.store_message_confirmed(up_to(2)).await, Err(QueueError::OutcomeUnknown));
    assert_eq!(queue.store_message_confirmed(up_to(2)).await, Err(QueueError::NotLoaded));
    assert_eq!(load(&mut queue).await, (2, pairs(&[(3, "3")])));
    queue.store_message_confirmed(up_to(2)).await.unwrap();
    let early = queue.store_message_confirmed(up_to(9)).await;
    assert_eq!(early, Err(QueueError::OutOfOrder { expected: SeqNr(4) }));
    orders.stop().await;
    drop(orders);
    let Started { orders, mut queue, .. } = start(&stores);
    assert_eq!(orders.ask(Command::Count).await.unwrap(), (3, 1));
    assert_eq!(load(&mut queue).await, (3, pairs(&[(3, "3")])));
}

/// Only the entity writes its outbox; messages returned by polls count as stored.
#[tokio::test]
async fn nothing_is_stored_through_the_queue() {
    let (_, stores) = faulty();
    let Started { orders, mut queue, .. } = start(&stores);
    assert_eq!(queue.poll_new(1).await, Err(QueueError::NotLoaded));
    load(&mut queue).await;
    orders.tell(Command::Place { account: "ada", cents: 1 }).await.unwrap();
    let handed_out =
        until("it is new", async || Some(queue.poll_new(1).await.unwrap()).filter(|new| !new.is_empty())).await;
    assert_eq!(queue.store_message_sent(handed_out.clone()).await, Ok(SeqNr(1)));
    let own = MessageSent { seq_nr: SeqNr(2), ..handed_out[0].clone() };
    assert!(matches!(queue.store_message_sent(vec![own]).await, Err(QueueError::Rejected(_))));
}
