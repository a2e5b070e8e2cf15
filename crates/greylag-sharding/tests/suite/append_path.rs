//! The steps of one append of one entity in a shard, counted. Alone in its program, as the runtime numbers tasks across
//! the whole program.
//!
//! ```text
//! caller      1 push into the shard's inbox (no task, no wait)
//! shard task  on_command --> effect --> 1 task spawned: it calls the store
//!   that task   1 call of Journal::append, which is the hand-over to the store, and 1 answer back
//!               1 push into the shard's control inbox (no task, no wait)
//! shard task  outcome --> the reply completes the caller's future
//! ```
//! Source: persistence 73.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, Ctx, DeleteError, Effect,
    EventSourced, Head, Health, Journal, Page, PersistenceId, ReadError, ReadRange, SeqNr, Stores, Under, WriterEpoch,
    WriterUuid,
};
use greylag_sharding::{EntityKey, EntityType, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;

struct Sum;

struct Add(ReplyTo<u64>);

impl EventSourced for Sum {
    type Command = Add;
    type Event = u64;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Add>, _: &u64, Add(to): Add) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(to, |sum| *sum)
    }

    fn apply(sum: &mut u64, added: &u64) {
        *sum += added;
    }
}

/// Notes the task of each append.
struct Noting {
    inner: Arc<dyn Journal>,
    appends: Arc<Mutex<Vec<u64>>>,
}

/// The runtime's number of the current task; a later task has a larger one.
fn task_number() -> u64 {
    tokio::task::id().to_string().parse().expect("the runtime shows tasks by number")
}

#[async_trait]
impl Journal for Noting {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        self.inner.claim(id, writer_uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.inner.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.appends.lock().unwrap().push(task_number());
        self.inner.append(append).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.inner.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.inner.head(id).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        self.inner.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

#[tokio::test]
async fn scenario_73_an_append_takes_one_task_and_one_call_of_the_store() {
    const APPENDS: u64 = 20;
    let (memory, appends) = (Stores::in_memory(), Arc::new(Mutex::new(Vec::new())));
    let noting = Noting { inner: memory.journal, appends: appends.clone() };
    let stores = Stores::new(Arc::new(noting), memory.snapshots);
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, Some(stores), ShardingSettings::test()).await.unwrap();
    let sums =
        sharding.init(EntityType::event_sourced(EntityKey::new("Sum"), |_| Ok(Sum)).events(json("sum.added"))).unwrap();
    let sum = sums.entity_ref("one");
    for number in 1..=APPENDS {
        assert_eq!(sum.ask(Add).timeout(Duration::from_secs(60)).await, Ok(number));
    }
    let tasks = appends.lock().unwrap().clone();
    assert_eq!(tasks.len() as u64, APPENDS, "one call of the store for each");
    let between: Vec<u64> = tasks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(between.iter().all(|spawned| *spawned == 1), "tasks spawned from one append to the next: {between:?}");
}
