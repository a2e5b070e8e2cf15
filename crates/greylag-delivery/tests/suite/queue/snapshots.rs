//! The length of a queue's history: snapshots, deletion of events after them, and queues too large for a snapshot.

use greylag_delivery::queue::EventSourcedQueueSettings;
use greylag_delivery::{DurableProducerQueue, SeqNr};
use greylag_persistence::{InMemoryJournal, InMemorySnapshots, Stores};
use std::sync::Arc;

use crate::queue::support::*;

fn every(snapshot_every: u64) -> EventSourcedQueueSettings {
    EventSourcedQueueSettings { snapshot_every, ..EventSourcedQueueSettings::test() }
}

/// Stores, with handles to inspect them.
fn stores() -> (InMemoryJournal, InMemorySnapshots, Stores) {
    let (journal, snapshots) = (InMemoryJournal::default(), InMemorySnapshots::default());
    let stores = Stores::new(Arc::new(journal.clone()), Arc::new(snapshots.clone()));
    (journal, snapshots, stores)
}

/// The numbers of the events that are not deleted.
fn events(journal: &InMemoryJournal) -> Vec<u64> {
    journal.events(&id()).iter().map(|record| record.seq_nr.as_u64()).collect()
}

fn snapshot_numbers(snapshots: &InMemorySnapshots) -> Vec<u64> {
    snapshots.snapshots(&id()).iter().map(|snapshot| snapshot.seq_nr.as_u64()).collect()
}

/// Waits until no task has work: only then does paused time advance.
async fn wait_until_idle() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}

/// Of delivery §4.2: a snapshot every N events, of which two are kept; events before them are deleted. The state from a
/// snapshot equals the state from all events.
#[tokio::test(start_paused = true)]
async fn old_events_go_when_snapshots_cover_them() {
    let (journal, snapshots, stores) = stores();
    let mut queue = open_with(&stores, every(10));
    queue.load(&controller(1)).await.unwrap();
    for seq_nr in 1..=30 {
        store(&mut queue, [seq_nr]).await.unwrap();
        confirm(&mut queue, "", seq_nr.saturating_sub(2).max(1)).await.unwrap();
        wait_until_idle().await;
    }
    assert_eq!(snapshot_numbers(&snapshots), [30, 40, 50]);
    assert_eq!(events(&journal).first(), Some(&31), "the snapshot at 30 is the oldest to start from");
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!((numbers(&state), state.current_seq_nr), (vec![29, 30], SeqNr(31)));
    drop(queue);
    assert_eq!(loaded(&stores, 2).await.1, next_epoch(state));
}

/// With `delete_events` off, no event is deleted.
#[tokio::test(start_paused = true)]
async fn events_are_kept_where_the_settings_say_so() {
    let (journal, snapshots, stores) = stores();
    let mut queue = open_with(&stores, EventSourcedQueueSettings { delete_events: false, ..every(5) });
    queue.load(&controller(1)).await.unwrap();
    for seq_nr in 1..=30 {
        store(&mut queue, [seq_nr]).await.unwrap();
        wait_until_idle().await;
    }
    assert_eq!(snapshot_numbers(&snapshots), [25, 30]);
    assert_eq!(events(&journal), (1..=31).collect::<Vec<_>>());
}

/// Of delivery §4.2 and persistence §2.8: a queue too large for a snapshot leaves its messages in their events. These
/// are kept as long as the oldest message is unconfirmed, and recovery reads them; once it is confirmed, they are
/// deleted.
#[tokio::test(start_paused = true)]
async fn a_queue_too_large_for_a_snapshot_is_read_from_its_events() {
    let (journal, snapshots, stores) = stores();
    let settings = || EventSourcedQueueSettings { snapshot_max_bytes: 4000, ..every(10) };
    let mut queue = open_with(&stores, settings());
    queue.load(&controller(1)).await.unwrap();
    store(&mut queue, 1..=5).await.unwrap();
    confirm(&mut queue, "", 3).await.unwrap();
    // The oldest unconfirmed message is 4, in event 5.
    for seq_nr in 6..=60 {
        let large = message(seq_nr, "large", &"x".repeat(1000));
        queue.store_message_sent(vec![large]).await.unwrap();
        wait_until_idle().await;
    }
    assert_eq!(events(&journal), (5..=62).collect::<Vec<_>>());
    assert_eq!(snapshot_numbers(&snapshots), [40, 50, 60]);
    let newest = snapshots.snapshots(&id()).pop().unwrap();
    assert!(newest.payload.len() < 6000, "{} bytes for 52 messages of 1000", newest.payload.len());
    let state = queue.load(&controller(1)).await.unwrap();
    assert_eq!(numbers(&state), (4..=60).collect::<Vec<_>>());
    queue.close().await;

    let mut queue = open_with(&stores, settings());
    let reloaded = queue.load(&controller(2)).await.unwrap();
    assert_eq!(reloaded, next_epoch(state), "messages and all");

    // The next incarnation knows which events its predecessor's snapshots need.
    for seq_nr in 61..=70 {
        store(&mut queue, [seq_nr]).await.unwrap();
    }
    wait_until_idle().await;
    assert_eq!(snapshot_numbers(&snapshots).last(), Some(&70));
    assert_eq!(events(&journal).first(), Some(&5));

    queue.store_message_confirmed(vec![up_to("", 70, LONG_AGO), up_to("large", 60, LONG_AGO)]).await.unwrap();
    for seq_nr in 71..=100 {
        store(&mut queue, [seq_nr]).await.unwrap();
        confirm(&mut queue, "", seq_nr).await.unwrap();
        wait_until_idle().await;
    }
    assert!(events(&journal).first().is_some_and(|first| *first > 100), "{:?}", events(&journal));
    let state = queue.load(&controller(2)).await.unwrap();
    assert_eq!((numbers(&state), state.current_seq_nr), (vec![], SeqNr(101)));
    drop(queue);
    assert_eq!(loaded(&stores, 3).await.1, next_epoch(state));
}

/// The newest snapshot is damaged: the one before also needs events for its messages, which are kept.
#[tokio::test(start_paused = true)]
async fn an_older_snapshot_finds_its_events_too() {
    let (journal, snapshots, stores) = stores();
    let mut queue = open_with(&stores, EventSourcedQueueSettings { snapshot_max_bytes: 2000, ..every(10) });
    queue.load(&controller(1)).await.unwrap();
    for seq_nr in 1..=45 {
        store(&mut queue, [seq_nr]).await.unwrap();
        wait_until_idle().await;
        if seq_nr % 5 == 0 {
            confirm(&mut queue, "", seq_nr - 4).await.unwrap();
        }
    }
    wait_until_idle().await;
    assert_eq!(snapshot_numbers(&snapshots).len(), 3);
    let state = queue.load(&controller(1)).await.unwrap();
    queue.close().await;
    let newest = snapshots.snapshots(&id()).pop().unwrap().seq_nr;
    assert!(snapshots.damage(&id(), newest, false));
    assert!(!events(&journal).is_empty());
    assert_eq!(loaded(&stores, 2).await.1, next_epoch(state));
}
