//! The numbered scenarios of the queue alone, in memory and on disk.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greylag_codec::json;
use greylag_delivery::queue::{Confirmation, EventSourcedQueueSettings, MessageSent, QueueError, QueueState};
use greylag_delivery::{DurableProducerQueue, Epoch, SeqNr, TypedQueue};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::Stores;

use crate::queue::support::*;

/// Scenario persistence 57 on `stores`; returns the state that the next load must find.
async fn scenario_57(stores: &Stores) -> QueueState<greylag_core::Encoded> {
    let (mut queue, _) = loaded(stores, 1).await;
    assert_eq!(store(&mut queue, [1]).await, Ok(1));
    assert_eq!(store(&mut queue, [2]).await, Ok(2));
    queue.close().await;

    let (mut queue, state) = loaded(stores, 2).await;
    assert_eq!((numbers(&state), state.current_seq_nr), (vec![1, 2], SeqNr(3)));
    let before = event_count(stores).await;
    assert_eq!(store(&mut queue, [2]).await, Ok(2));
    assert_eq!(store(&mut queue, [1]).await, Ok(2));
    assert_eq!(event_count(stores).await, before, "a duplicate store writes nothing");

    queue.store_message_sent(vec![message(3, "other", "order 3")]).await.unwrap();
    confirm(&mut queue, "", 2).await.unwrap();
    let before = event_count(stores).await;
    confirm(&mut queue, "", 2).await.unwrap();
    confirm(&mut queue, "", 1).await.unwrap();
    assert_eq!(event_count(stores).await, before, "a duplicate confirmation writes nothing");

    let state = queue.load(&controller(2)).await.unwrap();
    assert_eq!(numbers(&state), [3], "2 takes 1 with it, and nothing of another qualifier");
    queue.close().await;
    let (queue, reloaded) = loaded(stores, 3).await;
    assert_eq!(reloaded, next_epoch(state));
    queue.close().await;
    next_epoch(reloaded)
}

/// Scenario persistence 57.
#[tokio::test]
async fn scenario_57_the_queue_survives_a_restart() {
    scenario_57(&Stores::in_memory()).await;
}

/// Scenario persistence 57, where the journal is restarted, too.
#[tokio::test]
async fn scenario_57_the_queue_survives_a_restart_on_disk() {
    let (journal, directory) = on_disk().await;
    let state = scenario_57(&journal.stores()).await;
    greylag_persistence::Journal::close(&journal).await.unwrap();
    let journal = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
    let (_queue, reloaded) = loaded(&journal.stores(), 4).await;
    assert_eq!(reloaded, state);
}

/// An empty queue begins at 1, with a stream id that never changes.
#[tokio::test]
async fn an_empty_queue_begins_at_one() {
    let stores = Stores::in_memory();
    let (_, state) = loaded(&stores, 1).await;
    let QueueState { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, .. } = state;
    assert_eq!((epoch, current_seq_nr, highest_confirmed_seq_nr), (Epoch(1), SeqNr(1), SeqNr::NONE));
    assert!(state.confirmed_seq_nr.is_empty() && state.unconfirmed.is_empty());
    let (_, again) = loaded(&stores, 2).await;
    assert_eq!((again.stream_id, again.epoch), (stream_id, Epoch(2)));
    let other = Stores::in_memory();
    assert_ne!(loaded(&other, 1).await.1.stream_id, stream_id);
}

/// Scenario delivery 39: the events are in order, and their fold is the state.
#[tokio::test]
async fn scenario_39_the_queue_persists_and_replays() {
    let stores = Stores::in_memory();
    let (mut queue, first) = loaded(&stores, 1).await;
    assert_eq!(queue.store_message_sent(vec![message(1, "a", "x")]).await, Ok(SeqNr(1)));
    assert_eq!(queue.store_message_sent(vec![message(2, "b", "y")]).await, Ok(SeqNr(2)));
    assert_eq!(kinds(&stores).await, ["started", "sent", "sent"]);
    drop(queue);
    let (_, state) = loaded(&stores, 2).await;
    let unconfirmed = vec![message(1, "a", "x"), message(2, "b", "y")];
    assert_eq!(state, QueueState { current_seq_nr: SeqNr(3), unconfirmed, ..next_epoch(first) });
}

/// Scenario delivery 40, of delivery D4: in the store, too.
#[tokio::test]
async fn scenario_40_the_store_is_idempotent() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    store(&mut queue, [1, 2]).await.unwrap();
    let before = event_count(&stores).await;
    assert_eq!(store(&mut queue, [2]).await, Ok(2));
    assert_eq!(store(&mut queue, [1]).await, Ok(2));
    assert_eq!(store(&mut queue, [4]).await, Err(QueueError::OutOfOrder { expected: SeqNr(3) }));
    assert_eq!(store(&mut queue, []).await, Ok(2));
    assert_eq!(event_count(&stores).await, before);
    assert_eq!(store(&mut queue, 1..=4).await, Ok(4));
    assert_eq!(event_count(&stores).await, before + 2, "only what was missing");
}

/// Scenario delivery 41, of delivery D5: one event for new confirmations, none for known ones.
#[tokio::test]
async fn scenario_41_the_queue_confirms() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    store(&mut queue, 1..=3).await.unwrap();
    confirm(&mut queue, "", 2).await.unwrap();
    assert_eq!(kinds(&stores).await, ["started", "sent", "sent", "sent", "confirmed"]);
    confirm(&mut queue, "", 1).await.unwrap();
    confirm(&mut queue, "", 2).await.unwrap();
    assert_eq!(event_count(&stores).await, 5);
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!((numbers(&state), state.highest_confirmed_seq_nr), (vec![3], SeqNr(2)));
    let future = confirm(&mut queue, "", 4).await;
    assert_eq!(future, Err(QueueError::OutOfOrder { expected: SeqNr(4) }), "4 does not exist yet");
}

/// Scenario delivery 42: qualifiers are confirmed independently, also after a replay.
#[tokio::test]
async fn scenario_42_confirmations_are_of_their_qualifier() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    let batch = [(1, "q1"), (2, "q1"), (3, "q2"), (4, "q2"), (5, "q2")].map(|(seq_nr, q)| message(seq_nr, q, "m"));
    queue.store_message_sent(batch.into()).await.unwrap();
    let now = now_ms();
    queue.store_message_confirmed(vec![up_to("q2", 4, now)]).await.unwrap();
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!(numbers(&state), [1, 2, 5]);
    assert_eq!(state.confirmed_seq_nr, [("q2".into(), (SeqNr(4), now))].into());
    drop(queue);
    assert_eq!(loaded(&stores, 2).await.1, next_epoch(state));
}

/// Scenario delivery 80: jobs of work pulling are confirmed in any order; one flush is one event.
#[tokio::test]
async fn scenario_80_exact_confirmations_are_one_event() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    store(&mut queue, 1..=5).await.unwrap();
    let exact = |seq_nr| Confirmation::Exact { seq_nrs: vec![SeqNr(seq_nr)], timestamp_ms: LONG_AGO };
    queue.store_message_confirmed(vec![exact(3)]).await.unwrap();
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!(numbers(&state), [1, 2, 4, 5]);
    let before = event_count(&stores).await;
    queue.store_message_confirmed(vec![exact(1), exact(5), exact(3)]).await.unwrap();
    assert_eq!(event_count(&stores).await, before + 1);
    drop(queue);
    let (_, state) = loaded(&stores, 2).await;
    assert_eq!((numbers(&state), state.highest_confirmed_seq_nr), (vec![2, 4], SeqNr(5)));
}

/// Scenario delivery 43: cleanup at the load, before anything else, and at intervals afterwards.
#[tokio::test(start_paused = true)]
async fn scenario_43_unused_qualifiers_are_forgotten() {
    let stores = Stores::in_memory();
    let settings = EventSourcedQueueSettings::test();
    let half = settings.cleanup_unused_after / 2;
    let mut queue = open_with(&stores, settings);
    queue.load(&controller(1)).await.unwrap();
    let batch = [(1, "q1"), (2, "q1"), (3, "q2")].map(|(seq_nr, qualifier)| message(seq_nr, qualifier, "m"));
    queue.store_message_sent(batch.into()).await.unwrap();
    queue.store_message_confirmed(vec![up_to("q1", 1, LONG_AGO), up_to("q2", 3, now_ms())]).await.unwrap();

    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!(state.confirmed_seq_nr.len(), 2, "a message to q1 is unconfirmed, and q2 is fresh");
    // Time is paused: it advances only when no task has work, so the cleanups of that time are done afterwards, and the
    // next one as soon as it is stored.
    tokio::time::sleep(half * 3 + Duration::from_secs(1)).await;
    assert_eq!(kinds(&stores).await.last().unwrap(), "started", "the same between loads");

    queue.store_message_confirmed(vec![up_to("q1", 2, LONG_AGO)]).await.unwrap();
    let before = event_count(&stores).await;
    tokio::time::sleep(half).await;
    assert_eq!(event_count(&stores).await, before + 1);
    assert_eq!(kinds(&stores).await.last().unwrap(), "cleanup");
    drop(queue);

    let (mut queue, state) = loaded(&stores, 2).await;
    assert_eq!(state.confirmed_seq_nr.keys().map(|qualifier| &**qualifier).collect::<Vec<_>>(), ["q2"]);
    queue.store_message_sent(vec![message(4, "q3", "m")]).await.unwrap();
    queue.store_message_confirmed(vec![up_to("q3", 4, LONG_AGO)]).await.unwrap();
    drop(queue);
    let (_, state) = loaded(&stores, 3).await;
    assert_eq!(state.confirmed_seq_nr.len(), 1, "q3 is forgotten by the load itself");
    assert_eq!((state.current_seq_nr, state.highest_confirmed_seq_nr), (SeqNr(5), SeqNr(4)), "numbers go on");
    assert_eq!(kinds(&stores).await[before as usize + 4..], ["started", "cleanup"]);
}

/// Many qualifiers are forgotten in events of bounded size.
#[tokio::test]
async fn a_large_cleanup_is_several_events() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    let qualifier = |seq_nr: u64| format!("{seq_nr:0200}");
    queue.store_message_sent((1..=900).map(|seq_nr| message(seq_nr, &qualifier(seq_nr), "m")).collect()).await.unwrap();
    let confirmations = (1..=900).map(|seq_nr| up_to(&qualifier(seq_nr), seq_nr, LONG_AGO)).collect();
    queue.store_message_confirmed(confirmations).await.unwrap();
    let before = event_count(&stores).await;
    let state = queue.load(&controller(1)).await.unwrap();
    assert!(state.confirmed_seq_nr.is_empty());
    assert_eq!(event_count(&stores).await, before + 1 + 3, "180 kB of names, 64 KiB in an event");
}

/// Of delivery §4.1: a typed queue stores the encoded values; its error names a value that it cannot decode.
#[tokio::test]
async fn values_are_encoded_once_and_come_back() {
    let stores = Stores::in_memory();
    let order = |seq_nr, order: &str| MessageSent {
        seq_nr: SeqNr(seq_nr),
        message: order.to_owned(),
        ack: true,
        qualifier: "".into(),
        timestamp_ms: LONG_AGO,
    };
    let mut queue = open(&stores).typed(json::<String>("order"));
    queue.load(&controller(1)).await.unwrap();
    queue.store_message_sent(vec![order(1, "one"), order(2, "two")]).await.unwrap();
    queue.store_message_confirmed(vec![up_to("", 1, LONG_AGO)]).await.unwrap();
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!(state.unconfirmed, [order(2, "two")]);
    assert_eq!(queue.max_message_bytes(), stores.journal.caps().max_event_bytes - 4096);

    let mut other = TypedQueue::new(queue.into_inner(), json::<u32>("number"));
    let unread = other.load(&controller(1)).await;
    assert!(matches!(unread, Err(QueueError::Unreadable { seq_nr: SeqNr(2), .. })), "{unread:?}");
}

/// Of delivery §4.1: a message over the queue's limit is refused, and the queue goes on.
#[tokio::test]
async fn a_message_that_is_too_large_is_rejected() {
    let stores = Stores::in_memory();
    let (mut queue, _) = loaded(&stores, 1).await;
    let largest = "x".repeat(queue.max_message_bytes());
    assert_eq!(queue.store_message_sent(vec![message(1, "", &largest)]).await, Ok(SeqNr(1)));
    let larger = vec![message(2, "", "fits"), message(3, "", &(largest + &"x".repeat(4096)))];
    let refused = queue.store_message_sent(larger).await;
    assert!(matches!(refused, Err(QueueError::Rejected(_))), "{refused:?}");
    assert_eq!(store(&mut queue, [2]).await, Ok(2), "nothing of the batch was stored");
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}
