//! The event-sourced queue, in memory and on disk.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_delivery::queue::EventSourcedQueueSettings;
use greylag_delivery::tck::{QueueBench, durable_queue};
use greylag_delivery::{EventSourcedProducerQueue, QueueFault};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::driver::StoreFault;
use greylag_persistence::{
    FaultyJournal, InMemoryJournal, InMemorySnapshots, Journal, JournalOp, PersistenceId, RecoveryPermits, Stores,
};
use tokio::sync::Mutex;

fn id(queue: &str) -> PersistenceId {
    PersistenceId::of("ProducerQueue", &queue.replace('/', "-")).unwrap()
}

fn open(stores: &Stores, queue: &str) -> EventSourcedProducerQueue {
    let settings = EventSourcedQueueSettings::test();
    EventSourcedProducerQueue::open(id(queue), stores.clone(), RecoveryPermits::default(), settings).unwrap()
}

struct Events {
    journal: Arc<FaultyJournal>,
    stores: Stores,
}

#[async_trait]
impl QueueBench for Events {
    type Queue = EventSourcedProducerQueue;

    async fn open(&self, queue: &str) -> Self::Queue {
        open(&self.stores, queue)
    }

    async fn close(&self, queue: Self::Queue) {
        queue.close().await;
    }

    async fn plan(&self, queue: &str, passing: u32, fault: QueueFault) -> bool {
        let fault = match fault {
            QueueFault::Unavailable => StoreFault::Unavailable,
            QueueFault::Rejected => StoreFault::Rejected,
            QueueFault::AnswerLost { done } => StoreFault::AnswerLost { done },
        };
        self.journal.plan(Some(id(queue)), JournalOp::Append, passing, fault);
        true
    }

    async fn writes(&self, queue: &str) -> Option<u64> {
        Some(self.stores.journal.head(&id(queue)).await.unwrap().highest.as_u64())
    }
}

#[tokio::test(start_paused = true)]
async fn the_event_sourced_queue_conforms() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
    let report = durable_queue(&Events { journal, stores }).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 2, "all but a restart of the store and pieces is tried:\n{report}");
}

struct OnDisk {
    directory: tempfile::TempDir,
    journal: Mutex<SledJournal>,
}

#[async_trait]
impl QueueBench for OnDisk {
    type Queue = EventSourcedProducerQueue;

    async fn open(&self, queue: &str) -> Self::Queue {
        open(&self.journal.lock().await.stores(), queue)
    }

    async fn close(&self, queue: Self::Queue) {
        queue.close().await;
    }

    async fn restart(&self) -> bool {
        let mut journal = self.journal.lock().await;
        journal.close().await.unwrap();
        *journal = SledJournal::open(self.directory.path(), SledJournalSettings::test()).await.unwrap();
        true
    }
}

#[tokio::test]
async fn the_event_sourced_queue_conforms_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let journal = SledJournal::open(directory.path(), SledJournalSettings::test()).await.unwrap();
    let report = durable_queue(&OnDisk { directory, journal: Mutex::new(journal) }).await;
    report.assert_conforms();
    assert!(report.skipped().all(|case| !case.contains("restart")), "{report}");
}
