//! The server is unreachable for a while: refused calls, their errors, and entities that wait.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{ServedDisk, append, client, id, loopback};
use greylag_codec::json;
use greylag_persistence::driver::{RecoveryPermits, spawn};
use greylag_persistence::{
    AppendError, BreakerMode, BreakerSettings, Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, Guarded,
    Health, Journal, Persisted, PersistenceId, ReadError, SnapshotStore, StateStore, Stores, Under, WriterEpoch,
    WriterUuid,
};
use tokio::sync::oneshot;

const UUID: WriterUuid = WriterUuid::from_u128(1);

fn quick() -> BreakerSettings {
    let reset_timeout = Duration::from_millis(50);
    BreakerSettings { max_failures: 2.try_into().unwrap(), reset_timeout, ..BreakerSettings::default() }
}

/// Rule persistence §4.4a: while the server is unreachable, the breaker refuses calls at once and by name; a call that
/// was never sent is certainly not stored, and the refused append can be stored later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_breaker_answers_while_the_server_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let journal = Arc::new(served.client().await.journal());
    let guarded = Guarded::new(journal, "journal service", quick()).unwrap();
    let claim = guarded.claim(&id(1), UUID, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    guarded.append(append(&id(1), &claim, UUID, 1, "a")).await.unwrap();
    let address = served.stop().await;
    let mut causes = Vec::new();
    while causes.len() < 4 {
        match guarded.append(append(&id(1), &claim, UUID, 2, "b")).await {
            Err(AppendError::NotStored(failure)) => causes.push(failure.to_string()),
            other => panic!("it was never sent, so it is not stored, but: {other:?}"),
        }
        assert!(matches!(guarded.read_breaker(), BreakerMode::Closed), "reads have a breaker of their own");
    }
    assert!(causes[0].contains(&address.to_string()) && causes[0].contains("cannot be reached"), "{}", causes[0]);
    assert!(causes[3].contains("write breaker of journal service"), "{}", causes[3]);
    assert!(matches!(guarded.head(&id(1)).await, Err(ReadError::Unavailable(_))));
    assert!(matches!(guarded.health(), Health::Down(_)), "{:?}", guarded.health());

    let served = ServedDisk::start(directory.path(), address).await;
    while let Err(error) = guarded.append(append(&id(1), &claim, UUID, 2, "b")).await {
        assert!(matches!(error, AppendError::NotStored(_)), "{error:?}");
        tokio::task::yield_now().await;
    }
    assert!(matches!(guarded.write_breaker(), BreakerMode::Closed));
    assert_eq!(guarded.head(&id(1)).await.unwrap().highest.as_u64(), 2);
    assert_eq!(guarded.health(), Health::Up);
    served.stop().await;
}

/// Adds, and replies with the sum once it is durable.
struct Add(u64, oneshot::Sender<u64>);

struct Account(PersistenceId);

impl EventSourced for Account {
    type Command = Add;
    type Event = u64;
    type State = u64;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings::test()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u64, Add(number, done): Add) -> Effect<Self> {
        Effect::<Self>::persist(number).then_run(move |sum| {
            let _gone = done.send(*sum);
        })
    }

    fn apply(sum: &mut u64, number: &u64) {
        *sum += number;
    }
}

impl Account {
    /// The entity with its name and its codecs, ready to be hosted.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.0.clone();
        EventCodecs::new(json("added")).of(id, self)
    }
}

/// Rule persistence §4.4a: entities wait in recovery until the server is back, those that ran before and those that are
/// started meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_stay_in_recovery_until_the_server_answers_again() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let client = client(served.address).await;
    let stores = client.stores();
    let start = |number| spawn(Account(id(number)).stored(), stores.clone(), RecoveryPermits::default()).unwrap();
    let add = async |entity: &greylag_persistence::driver::EntityHandle<Add>, number| {
        let (done, sum) = oneshot::channel();
        entity.tell(Add(number, done)).await.unwrap();
        sum.await
    };
    let (running, mut ended) = start(1);
    assert_eq!(add(&running, 5).await, Ok(5));
    let address = served.stop().await;
    // The refused append makes the entity recover again.
    assert!(add(&running, 100).await.is_err());
    let (fresh, _ended) = start(2);
    let waiting = tokio::spawn(async move {
        let sums = tokio::join!(add(&running, 2), add(&fresh, 7));
        (sums, running)
    });
    while !matches!(client.journal().health(), Health::Down(_)) {
        tokio::task::yield_now().await;
    }
    let served = ServedDisk::start(directory.path(), address).await;
    let (sums, running) = waiting.await.unwrap();
    assert_eq!(sums, (Ok(7), Ok(7)), "the refused one is not in the sum, the one before is");
    running.stop().await;
    assert!(matches!((&mut ended).await, Ok(greylag_persistence::driver::Ended::Stopped)));
    served.stop().await;
}

/// Health is that of the served journal, and Down while the server is unreachable; every handle gives the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_that_of_the_served_journal() {
    let directory = tempfile::tempdir().unwrap();
    let served = ServedDisk::start(directory.path(), loopback()).await;
    let client = served.client().await;
    let all = || {
        let (journal, snapshots, states) = (client.journal(), client.snapshots(), client.states().unwrap());
        [Journal::health(&journal), SnapshotStore::health(&snapshots), StateStore::health(&states)]
    };
    assert!(all().iter().all(|health| *health == Health::Up));
    let stores: Stores = client.stores();
    assert!(stores.is_shared() && stores.states.is_some());
    // The journal is closed while its server goes on: clients are told.
    served.disk.close().await.unwrap();
    while !all().iter().all(|health| matches!(health, Health::Down(_))) {
        tokio::task::yield_now().await;
    }
    let refused = client.journal().head(&id(1)).await;
    assert!(matches!(refused, Err(ReadError::Unavailable(_))), "{refused:?}");
    served.server.shutdown().await;
}
