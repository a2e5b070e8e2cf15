//! The public kits, over a store that is closed and opened again.

use async_trait::async_trait;
use greylag_delivery::queue::{KvQueueSettings, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};
use greylag_delivery::tck::{QueueBench, durable_queue, queue_store};
use greylag_delivery::{FaultyQueueStore, KvProducerQueue, QueueFault, QueueStore};
use greylag_delivery_sled::{SledQueueSettings, SledQueues};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The currently open store.
#[derive(Clone)]
struct Current(Arc<Mutex<SledQueues>>);

#[async_trait]
impl QueueStore for Current {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        let store = self.0.lock().await.clone();
        store.head(queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        let store = self.0.lock().await.clone();
        store.read(queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        let store = self.0.lock().await.clone();
        store.claim(queue, claim).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        let store = self.0.lock().await.clone();
        store.write(queue, change).await
    }

    fn max_message_bytes(&self) -> usize {
        SledQueueSettings::test().max_message_bytes
    }
}

struct Bench {
    directory: tempfile::TempDir,
    store: FaultyQueueStore<Current>,
}

#[async_trait]
impl QueueBench for Bench {
    type Queue = KvProducerQueue<FaultyQueueStore<Current>>;

    async fn open(&self, queue: &str) -> Self::Queue {
        KvProducerQueue::open(self.store.clone(), queue, KvQueueSettings::default()).unwrap()
    }

    async fn plan(&self, queue: &str, passing: u32, fault: QueueFault) -> bool {
        self.store.fail_write(queue, passing, fault);
        true
    }

    async fn writes(&self, queue: &str) -> Option<u64> {
        Some(self.store.writes(queue))
    }

    async fn restart(&self) -> bool {
        let mut current = self.store.inner().0.lock().await;
        current.close().await.unwrap();
        *current = SledQueues::open(self.directory.path(), SledQueueSettings::test()).await.unwrap();
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_on_disk_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let queues = SledQueues::open(directory.path(), SledQueueSettings::test()).await.unwrap();
    let store = FaultyQueueStore::new(Current(Arc::new(Mutex::new(queues))));
    let report = durable_queue(&Bench { directory, store }).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 1, "all but pieces is tried:\n{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_on_disk_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let queues = SledQueues::open(directory.path(), SledQueueSettings::test()).await.unwrap();
    queue_store(&queues).await.assert_conforms();
}
