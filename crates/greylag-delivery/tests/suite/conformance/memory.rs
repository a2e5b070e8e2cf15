//! The queue in memory: the queue in a store of rows, over the simplest store.

use std::time::Duration;

use async_trait::async_trait;
use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{MessageSent, QueueError};
use greylag_delivery::tck::{QueueBench, durable_queue};
use greylag_delivery::{
    ControllerRef, DurableProducerQueue, FaultyQueueStore, InMemoryProducerQueue, InMemoryQueues, QueueCall,
    QueueFault, SeqNr,
};

pub(crate) struct Memory(pub(crate) InMemoryQueues);

#[async_trait]
impl QueueBench for Memory {
    type Queue = InMemoryProducerQueue;

    async fn open(&self, queue: &str) -> Self::Queue {
        self.0.open(queue)
    }

    async fn plan(&self, queue: &str, passing: u32, fault: QueueFault) -> bool {
        self.0.fail_write(queue, passing, fault);
        true
    }

    async fn writes(&self, queue: &str) -> Option<u64> {
        Some(self.0.writes(queue))
    }

    async fn restart(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_queue_in_memory_conforms() {
    let report = durable_queue(&Memory(InMemoryQueues::new())).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 1, "all but pieces is tried:\n{report}");
}

#[tokio::test]
async fn the_store_in_memory_conforms() {
    let report = greylag_delivery::tck::queue_store(&InMemoryQueues::new()).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 0, "{report}");
}

/// The same on several threads, with a slow store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_queue_in_memory_conforms() {
    let disk = InMemoryQueues::new();
    disk.delay(Duration::from_micros(10));
    durable_queue(&Memory(disk)).await.assert_conforms();
}

/// Faults can be injected into any store, not only into the one in memory.
#[tokio::test(start_paused = true)]
async fn faults_stand_before_any_store() {
    use greylag_delivery::QueueStore;
    use greylag_delivery::queue::QueueStoreError;
    let store = FaultyQueueStore::new(InMemoryQueues::new());
    store.delay(Duration::from_secs(7));
    let began = tokio::time::Instant::now();
    assert_eq!(store.head("a").await, Ok(None));
    assert_eq!(began.elapsed().as_secs(), 7);
    store.fail_when(|queue, call| (queue == "a" && matches!(call, QueueCall::Head)).then_some(QueueFault::Unavailable));
    assert!(matches!(store.head("a").await, Err(QueueStoreError::Unavailable(_))));
    assert_eq!(store.read("a").await, Ok(None), "reading all is another call");
    assert_eq!(store.head("b").await, Ok(None), "and this another queue");
    store.fail_never();
    assert_eq!(store.head("a").await, Ok(None));
}

/// Of delivery §4.1: a store between a load's two reads is loaded with the rest, and its number is not assigned again.
/// With a delay of one second, each call of the store is made one second after it began.
#[tokio::test(start_paused = true)]
async fn a_store_in_the_middle_of_a_load_is_not_lost() {
    let disk = InMemoryQueues::new();
    let mut first = disk.open("orders");
    first.load(&controller(1)).await.unwrap();
    let mut second = disk.open("orders");
    disk.delay(Duration::from_secs(1));
    let loading = async { second.load(&controller(2)).await };
    let storing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The head row was read at 1 s, and is claimed at 2 s.
        first.store_message_sent(vec![order(1)]).await
    };
    let (loaded, stored) = tokio::join!(loading, storing);
    assert_eq!(stored, Ok(SeqNr(1)));
    let loaded = loaded.unwrap();
    assert_eq!((loaded.unconfirmed, loaded.current_seq_nr), (vec![order(1)], SeqNr(2)));
}

/// A store that panics ends the queue, not the program.
#[tokio::test]
async fn a_panic_of_the_store_ends_the_queue() {
    let disk = InMemoryQueues::new();
    let mut queue = disk.open("orders");
    queue.load(&controller(1)).await.unwrap();
    disk.fail_when(|_, _| panic!("the disk is on fire"));
    for _ in 0..2 {
        let answer = queue.store_message_sent(vec![order(1)]).await;
        assert!(matches!(answer, Err(QueueError::Closed(_))), "{answer:?}");
    }
    disk.fail_never();
    assert_eq!(disk.open("orders").load(&controller(2)).await.unwrap().current_seq_nr, SeqNr(1));
}

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "orders".into(), instance }
}

fn order(seq_nr: u64) -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: "{}".into() };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: "".into(), timestamp_ms: 1 }
}
