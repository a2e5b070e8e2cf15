//! Behaviour of a store with damage, a lost end, a full disk, and names that are too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{Confirmation, MessageSent, QueueError};
use greylag_delivery::{ControllerRef, DurableProducerQueue, KvProducerQueue, SeqNr};
use greylag_delivery_sled::{OpenError, SledQueueSettings, SledQueues};
use greylag_store_sled::Disk;

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "orders".into(), instance }
}

fn order(seq_nr: u64, bytes: usize) -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: vec![7; bytes].into() };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: "".into(), timestamp_ms: 1 }
}

fn up_to(seq_nr: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: "".into(), seq_nr: SeqNr(seq_nr), timestamp_ms: 1 }
}

/// Only one process at a time can open the directory; a store of another kind is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_is_one_process_own() {
    let directory = tempfile::tempdir().unwrap();
    let settings = || {
        let mut settings = SledQueueSettings::test();
        settings.engine.lock_retry = std::time::Duration::from_millis(50);
        settings
    };
    let queues = SledQueues::open(directory.path(), settings()).await.unwrap();
    let locked = SledQueues::open(directory.path(), settings()).await;
    assert!(matches!(locked, Err(OpenError::Locked { .. })), "{locked:?}");
    queues.close().await.unwrap();
    SledQueues::open(directory.path(), settings()).await.unwrap().close().await.unwrap();
}

/// A log without its end cannot be opened, since acknowledged messages would be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_its_end_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("queues");
    let copy = directory.path().join("copy");
    let queues = SledQueues::open(&place, SledQueueSettings::test()).await.unwrap();
    let mut queue = KvProducerQueue::open(queues.clone(), "orders", Default::default()).unwrap();
    queue.load(&controller(1)).await.unwrap();
    queue.store_message_sent(vec![order(1, 100)]).await.unwrap();
    queues.close().await.unwrap();
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&place).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let queues = SledQueues::open(&place, SledQueueSettings::test()).await.unwrap();
    let mut queue = KvProducerQueue::open(queues.clone(), "orders", Default::default()).unwrap();
    queue.load(&controller(1)).await.unwrap();
    queue.store_message_sent(vec![order(2, 100)]).await.unwrap();
    queues.close().await.unwrap();

    // The earlier files, with the later guard file.
    std::fs::copy(place.join(greylag_store_sled::GUARD_FILE), copy.join(greylag_store_sled::GUARD_FILE)).unwrap();
    let refused = SledQueues::open(&copy, SledQueueSettings::test()).await;
    let told = refused.expect_err("its end is lost").to_string();
    assert!(told.contains("acknowledged") && told.contains("restore the directory"), "{told}");
}

/// With a nearly full disk the store refuses messages, and accepts confirmations, which make room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_nearly_full_takes_confirmations_only() {
    let directory = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(u64::MAX));
    let read = free.clone();
    let disk = Disk::new(move |_| Ok(read.load(Ordering::Relaxed)));
    let settings = SledQueueSettings { min_free_bytes: 1000, disk, ..SledQueueSettings::test() };
    let queues = SledQueues::open(directory.path(), settings).await.unwrap();
    let mut queue = KvProducerQueue::open(queues.clone(), "orders", Default::default()).unwrap();
    queue.load(&controller(1)).await.unwrap();
    queue.store_message_sent(vec![order(1, 10), order(2, 10)]).await.unwrap();

    free.store(600, Ordering::Relaxed);
    let refused = queue.store_message_sent(vec![order(3, 10)]).await;
    assert!(matches!(refused, Err(QueueError::NotStored(_))), "{refused:?}");
    assert!(format!("{:?}", queues.health()).contains("storage is low"), "{:?}", queues.health());
    queue.load(&controller(1)).await.expect("a load is small");
    queue.store_message_confirmed(vec![up_to(1)]).await.unwrap();

    free.store(400, Ordering::Relaxed);
    queue.store_message_confirmed(vec![up_to(2)]).await.expect("a confirmation makes room");
    let refused = queue.load(&controller(1)).await;
    assert!(matches!(refused, Err(QueueError::NotStored(_))), "{refused:?}");

    free.store(u64::MAX, Ordering::Relaxed);
    let state = queue.load(&controller(1)).await.unwrap();
    assert!(state.unconfirmed.is_empty());
    assert_eq!(queue.store_message_sent(vec![order(3, 10)]).await, Ok(SeqNr(3)));
}

/// Names that are too long for a key, and messages too large for one batch, are refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_names_and_too_large_batches_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let settings = SledQueueSettings { max_message_bytes: 1000, ..SledQueueSettings::test() };
    let queues = SledQueues::open(directory.path(), settings).await.unwrap();
    let mut long = KvProducerQueue::open(queues.clone(), "x".repeat(1025), Default::default()).unwrap();
    assert!(matches!(long.load(&controller(1)).await, Err(QueueError::Rejected(_))));
    let mut queue = KvProducerQueue::open(queues, "x".repeat(1024), Default::default()).unwrap();
    queue.load(&controller(1)).await.unwrap();
    let named = MessageSent { qualifier: "q".repeat(1025).into(), ..order(1, 10) };
    for batch in [vec![named], vec![order(1, 600), order(2, 600)], vec![order(1, 1001)]] {
        let refused = queue.store_message_sent(batch).await;
        assert!(matches!(refused, Err(QueueError::Rejected(_))), "{refused:?}");
        assert!(queue.load(&controller(1)).await.unwrap().unconfirmed.is_empty());
    }
    assert_eq!(queue.store_message_sent(vec![order(1, 1000)]).await, Ok(SeqNr(1)));
}
