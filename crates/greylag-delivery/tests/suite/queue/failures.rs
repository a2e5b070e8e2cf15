//! Answers of a queue whose store fails, and its recovery.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use greylag_delivery::queue::{EventSourcedQueueSettings, QueueError};
use greylag_delivery::{DurableProducerQueue, Epoch, EventSourcedProducerQueue, SeqNr};
use greylag_persistence::driver::StoreFault;
use greylag_persistence::{
    FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, PersistenceId, RecoveryPermits, Scope, SnapshotCaps,
    Stores, Timestamp,
};

use crate::queue::support::*;

fn faulty() -> (Arc<FaultyJournal>, Stores) {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
    (journal, stores)
}

/// Of delivery §4.2: after any outcome of an append, the queue is loaded again, the same batch is repeated, and every
/// message is stored once.
#[tokio::test(start_paused = true)]
async fn after_every_failure_a_load_and_the_same_batch_put_things_right() {
    for (fault, is_unknown) in [
        (StoreFault::Unavailable, false),
        (StoreFault::AnswerLost { done: false }, true),
        (StoreFault::AnswerLost { done: true }, true),
    ] {
        let (journal, stores) = faulty();
        let (mut queue, _) = loaded(&stores, 1).await;
        store(&mut queue, [1]).await.unwrap();
        journal.plan(None, JournalOp::Append, 0, fault);
        let failed = store(&mut queue, [2, 3]).await;
        match is_unknown {
            true => assert_eq!(failed, Err(QueueError::OutcomeUnknown), "{fault:?}"),
            false => assert!(matches!(failed, Err(QueueError::NotStored(_))), "{fault:?}: {failed:?}"),
        }
        assert_eq!(store(&mut queue, [2, 3]).await, Err(QueueError::NotLoaded), "{fault:?}");
        assert_eq!(confirm(&mut queue, "", 1).await, Err(QueueError::NotLoaded), "{fault:?}");

        let state = queue.load(&controller(1)).await.unwrap();
        assert_eq!(state.epoch, Epoch(2), "{fault:?}: what is sent now is sent under a new epoch");
        assert_eq!(store(&mut queue, [2, 3]).await, Ok(3), "{fault:?}");
        assert_eq!(kinds(&stores).await.iter().filter(|kind| *kind == "sent").count(), 3, "{fault:?}");
        assert_eq!(numbers(&loaded(&stores, 2).await.1), [1, 2, 3], "{fault:?}");
    }
}

/// Of delivery §4.2: a refusal of the store is reported as such, and the queue can be loaded at once.
#[tokio::test(start_paused = true)]
async fn store_refusal_is_reported_and_survived() {
    let (journal, stores) = faulty();
    let (mut queue, _) = loaded(&stores, 1).await;
    for _ in 0..30 {
        journal.plan(None, JournalOp::Append, 0, StoreFault::Rejected);
        let refused = store(&mut queue, [1]).await;
        assert!(matches!(refused, Err(QueueError::Rejected(_))), "{refused:?}");
        queue.load(&controller(1)).await.unwrap();
    }
    assert_eq!(store(&mut queue, [1]).await, Ok(1));
}

/// A load whose answer is lost has raised the epoch, and the next load raises it again: no epoch is used twice.
#[tokio::test(start_paused = true)]
async fn a_load_that_failed_is_repeated() {
    for fault in [StoreFault::Unavailable, StoreFault::AnswerLost { done: true }, StoreFault::Rejected] {
        let (journal, stores) = faulty();
        let mut queue = open(&stores);
        journal.plan(None, JournalOp::Append, 0, fault);
        queue.load(&controller(1)).await.unwrap_err();
        assert_eq!(store(&mut queue, [1]).await, Err(QueueError::NotLoaded), "{fault:?}");
        let epoch = queue.load(&controller(1)).await.unwrap().epoch;
        assert_eq!(epoch, Epoch(event_count(&stores).await), "{fault:?}: one start, one epoch");
        assert_eq!(store(&mut queue, [1]).await, Ok(1), "{fault:?}");
    }
}

/// Of delivery D7: a load waits while its store is down, with pauses of at most `restart_max_backoff`.
#[tokio::test(start_paused = true)]
async fn a_load_waits_for_its_store() {
    let (journal, stores) = faulty();
    let mut queue = open_with(&stores, EventSourcedQueueSettings::default());
    for _ in 0..8 {
        journal.plan(None, JournalOp::Head, 0, StoreFault::Unavailable);
    }
    let began = tokio::time::Instant::now();
    queue.load(&controller(1)).await.unwrap();
    let waited = began.elapsed();
    // Pauses of 1, 2, 4, 8, then four times 10 seconds, each with up to a tenth added.
    let least = Duration::from_secs(1 + 2 + 4 + 8 + 4 * 10);
    assert!((least..least.mul_f64(1.1) + Duration::from_secs(1)).contains(&waited), "{waited:?}");
}

/// Of delivery D7: an abandoned call is repeated unchanged, and stored once.
#[tokio::test]
async fn a_call_that_was_given_up_may_be_repeated() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    let batch = || vec![sent(1), sent(2)];
    assert!(queue.store_message_sent(batch()).now_or_never().is_none(), "it is on its way");
    assert!(queue.store_message_sent(batch()).now_or_never().is_none(), "and once more");
    assert_eq!(queue.store_message_sent(batch()).await, Ok(SeqNr(2)));
    let confirmations = || vec![up_to("", 1, LONG_AGO)];
    assert!(queue.store_message_confirmed(confirmations()).now_or_never().is_none());
    queue.store_message_confirmed(confirmations()).await.unwrap();
    assert_eq!(kinds(&stores).await, ["started", "sent", "sent", "confirmed"]);
}

/// An abandoned load does not take the queue from another controller.
#[tokio::test]
async fn a_load_that_was_given_up_changes_nothing() {
    let stores = Stores::in_memory();
    let mut queue = open(&stores);
    for _ in 0..5 {
        assert!(queue.load(&controller(1)).now_or_never().is_none());
    }
    assert_eq!(queue.load(&controller(1)).await.unwrap().epoch, Epoch(1));
    assert!(queue.load(&controller(1)).now_or_never().is_none());
    assert_eq!(store(&mut queue, [1]).await, Err(QueueError::NotLoaded), "the load before is over");
}

/// A controller that has not loaded the queue cannot write.
#[tokio::test]
async fn a_queue_is_loaded_before_it_is_written() {
    let stores = Stores::in_memory();
    let mut queue = open(&stores);
    assert_eq!(store(&mut queue, [1]).await, Err(QueueError::NotLoaded));
    assert_eq!(confirm(&mut queue, "", 1).await, Err(QueueError::NotLoaded));
    assert_eq!(event_count(&stores).await, 0);
}

/// A dropped queue ends on its own, with its cleaner, and releases its stores.
#[tokio::test]
async fn a_dropped_queue_lets_go_of_its_stores() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    store(&mut queue, [1]).await.unwrap();
    let journal = Arc::downgrade(&stores.journal);
    drop((queue, stores));
    let gone = async {
        while journal.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the entity ends with its queue");
}

/// Of delivery §8: settings that the stores do not permit are named, too.
#[tokio::test]
async fn a_snapshot_limit_above_that_of_the_store_is_refused() {
    let clock = || Timestamp::from_micros(1);
    let small = SnapshotCaps { max_bytes: 1 << 20, ..SnapshotCaps::full(Scope::Process) };
    let snapshots = InMemorySnapshots::new(small, clock);
    let stores = Stores::new(Arc::new(InMemoryJournal::default()), Arc::new(snapshots));
    let id = || PersistenceId::of("ProducerQueue", "orders").unwrap();
    let open = |settings| EventSourcedProducerQueue::open(id(), stores.clone(), RecoveryPermits::default(), settings);
    let refused = open(EventSourcedQueueSettings::default()).unwrap_err();
    assert_eq!(refused.field, "event_sourced_queue.snapshot_max_bytes");
    let zero = open(EventSourcedQueueSettings { snapshot_every: 0, ..EventSourcedQueueSettings::default() });
    assert_eq!(zero.unwrap_err().field, "event_sourced_queue.snapshot_every");
    open(EventSourcedQueueSettings { snapshot_max_bytes: 1 << 20, ..EventSourcedQueueSettings::default() }).unwrap();
}
