//! The conformance kit, run on the store in memory and on faulty stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use greylag_ddata::tck::{self, Outcome, StoreBench};
use greylag_ddata::{DurableStore, LoadBatch, LoadedRecord, MemoryStore, StoreError, StoreOp};

struct Memory(MemoryStore);

fn damage(store: &MemoryStore, key: &str) -> bool {
    store.edit(|image| {
        let bad = LoadedRecord::Bad { key: key.into(), why: "a bit has flipped".into() };
        image.records.insert(key.into(), bad);
    });
    true
}

impl StoreBench for Memory {
    fn fresh() -> Self {
        Self(MemoryStore::default())
    }

    fn open(&self) -> Arc<dyn DurableStore> {
        Arc::new(self.0.clone())
    }

    fn damage(&self, key: &str) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(damage(&self.0, key)))
    }
}

/// ddata U2: the store in memory meets all requirements.
#[tokio::test]
async fn the_store_in_memory_conforms() {
    let report = tck::durable_store::<Memory>().await;
    report.assert_conforms();
    assert!(report.cases.iter().all(|(_, outcome)| *outcome == Outcome::Passed), "{report}");
}

/// A store with one fault, which occurs every so often.
struct Faulty {
    inner: MemoryStore,
    fault: Fault,
    calls: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    ForgetsRemoves,
    DropsDeltas,
    FlushesNothing,
    LetsAnybodyIn,
    FailsEveryThirdAppend,
}

impl DurableStore for Faulty {
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>> {
        if self.fault == Fault::LetsAnybodyIn {
            let batch = self.inner.image().load();
            return futures::stream::once(async { Ok(batch) }).boxed();
        }
        self.inner.load_all()
    }

    fn append(&self, mut ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>> {
        match self.fault {
            Fault::ForgetsRemoves => ops.retain(|op| !matches!(op, StoreOp::Remove { .. })),
            Fault::DropsDeltas => ops.retain(|op| !matches!(op, StoreOp::Delta { .. })),
            Fault::FailsEveryThirdAppend if self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 2 => {
                let error = StoreError::Failed { place: "memory".into(), why: "no space".into() };
                return Box::pin(std::future::ready(Err(error)));
            }
            _ => {}
        }
        self.inner.append(ops)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        match self.fault {
            Fault::FlushesNothing => Box::pin(std::future::ready(Ok(()))),
            _ => self.inner.flush(),
        }
    }

    fn set_aside(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        self.inner.set_aside()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }
}

macro_rules! faulty {
    ($($bench:ident $fault:ident)*) => {$(
        struct $bench(MemoryStore);

        impl StoreBench for $bench {
            fn fresh() -> Self {
                Self(MemoryStore::default())
            }

            fn open(&self) -> Arc<dyn DurableStore> {
                Arc::new(Faulty { inner: self.0.clone(), fault: Fault::$fault, calls: AtomicU32::new(0) })
            }
        }
    )*};
}
faulty!(Forgetful ForgetsRemoves Deltaless DropsDeltas Flushless FlushesNothing Open LetsAnybodyIn Failing FailsEveryThirdAppend);

async fn failures<B: StoreBench>() -> Vec<&'static str> {
    let cases = tck::durable_store::<B>().await.cases;
    cases.into_iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| name).collect()
}

/// ddata U2: the kit detects stores that violate a requirement.
#[tokio::test]
async fn the_kit_detects_faulty_stores() {
    assert!(failures::<Forgetful>().await.contains(&"removed_entries_are_gone"));
    assert!(failures::<Deltaless>().await.contains(&"deltas_stand_beside_their_snapshot"));
    assert_eq!(failures::<Flushless>().await, ["flushed_changes_survive_a_crash"]);
    assert!(failures::<Open>().await.contains(&"one_process_at_a_time"));
    assert!(!failures::<Failing>().await.is_empty());
}
