//! Sharding scenario 58: a failure that escalates ends the shard: all its entities begin anew, and waiting messages are
//! handled.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_core::{Registry, ReplyTo};
use greylag_sharding::{
    Ctx, Directive, Entity, EntityKey, EntityType, Event, Failure, InMemoryRememberStore, RememberStore, Sharding,
    ShardingSettings, Supervision,
};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(20);

enum Message {
    /// Answers the number of messages that this incarnation has had.
    Count(ReplyTo<u32>),
    Fail,
}

const COUNTER: EntityKey<Message> = EntityKey::new("Counter");

#[derive(Default)]
struct Counter(u32);

impl Entity for Counter {
    type Message = Message;

    fn receive(&mut self, message: Message, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        self.0 += 1;
        match message {
            Message::Count(answer) => answer.reply(self.0),
            Message::Fail => return Err(Failure::new("on purpose")),
        }
        Ok(())
    }
}

#[tokio::test]
async fn scenario_58_a_failure_that_escalates_restarts_the_shard() {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 2, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let counters = EntityType::new(COUNTER, |_| Ok(Counter::default()));
    let counters = sharding.init(counters.supervision(Supervision::always(Directive::Escalate))).unwrap();
    let ids: Vec<_> = (0..20).map(|id| id.to_string()).collect();
    let count = async |id: &str| counters.entity_ref(id).ask(Message::Count).timeout(PATIENCE).await;
    for id in &ids {
        assert_eq!(count(id).await, Ok(1));
    }
    let failed = counters.shard_of(&ids[0]);
    let mut events = counters.subscribe();
    counters.entity_ref(ids[0].as_str()).tell(Message::Fail).unwrap();
    // These asks are behind the failure in the shard's inbox: handled once the shard is back.
    for id in &ids {
        let expected = if counters.shard_of(id) == failed { 1 } else { 2 };
        assert_eq!(count(id).await, Ok(expected), "{id}");
    }
    let told = async {
        loop {
            if let Some(Event::ShardFailed(shard)) = events.next().await {
                return shard;
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, told).await.ok(), failed);
}

/// All remembered entities of the shard live again, without a message.
#[tokio::test]
async fn scenario_58_a_failure_that_escalates_has_remembered_entities_loaded_again() {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let shard_failure_backoff = Duration::from_millis(50);
    let settings = ShardingSettings { number_of_shards: 1, shard_failure_backoff, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let starts = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let noted = starts.clone();
    let counters = EntityType::new(COUNTER, move |init| {
        *noted.lock().unwrap().entry(init.id.to_string()).or_default() += 1;
        Ok(Counter::default())
    });
    let counters = counters.supervision(Supervision::always(Directive::Escalate));
    let store = InMemoryRememberStore::new();
    let counters = sharding.init(counters.remember_entities(RememberStore::custom(store))).unwrap();
    for id in ["1", "2", "3"] {
        assert_eq!(counters.entity_ref(id).ask(Message::Count).timeout(PATIENCE).await, Ok(1));
    }
    counters.entity_ref("1").tell(Message::Fail).unwrap();
    let again = async {
        while !starts.lock().unwrap().values().all(|starts| *starts == 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap_or_else(|_| panic!("{:?}", starts.lock().unwrap()));
}

/// Counts its messages; fails now and then, and its shard with it.
struct Tally(Arc<AtomicUsize>);

impl Entity for Tally {
    type Message = ();

    fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        let told = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        if told.is_multiple_of(2_000) { Err(Failure::new("on purpose")) } else { Ok(()) }
    }
}

/// Senders push past the machine while the shard ends and starts: each message is handled, or a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_message_vanishes_while_its_shard_fails() {
    const TALLY: EntityKey<()> = EntityKey::new("Tally");
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 1, buffer_size: 1_000_000, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting.clone(), None, settings).await.unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let tallies = EntityType::new(TALLY, move |_| Ok(Tally(counted.clone())));
    let tallies = sharding.init(tallies.supervision(Supervision::always(Directive::Escalate))).unwrap();
    let sender = |sender: u32| {
        let entity = tallies.entity_ref(sender.to_string());
        tokio::task::spawn_blocking(move || {
            for _ in 0..10_000 {
                entity.tell(()).unwrap();
                std::thread::sleep(Duration::from_micros(20));
            }
        })
    };
    for sender in (0..4).map(sender).collect::<Vec<_>>() {
        sender.await.unwrap();
    }
    let all = async {
        while told.load(Ordering::SeqCst) < 40_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let letters = |_| format!("{:?} of 40000, dead: {:?}", told, remoting.dead_letter_totals());
    tokio::time::timeout(PATIENCE, all).await.map_err(letters).expect("all are handled");
}
