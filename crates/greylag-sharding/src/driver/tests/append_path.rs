//! The hand-overs of an append, counted where they are made. The tasks that it takes are counted in
//! `tests/append_path.rs`, whose header names all that lies on the way.

use super::*;

struct Sum(PersistenceId);

struct Put(ReplyTo<u64>);

impl EventSourced for Sum {
    type Command = Put;
    type Event = u64;
    type State = u64;

    fn persistence_id(&self) -> PersistenceId {
        self.0.clone()
    }

    fn event_codec(&self) -> StoredCodec<u64> {
        StoredCodec::new(json("sum.put"))
    }

    fn on_command(&mut self, _: &mut CommandContext<'_, Put>, _: &u64, Put(to): Put) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(to, |sum| *sum)
    }

    fn apply(&self, sum: &mut u64, put: &u64, _: &EventMeta<'_>) {
        *sum += put;
    }
}

/// Scenario persistence 73: a command is pushed to its shard once, and what its append came to is pushed back once.
#[tokio::test]
async fn scenario_73_an_append_is_pushed_to_its_shard_once_and_back_once() {
    const APPENDS: u64 = 20;
    let sharding = alone_over(Some(Stores::in_memory()), ShardingSettings::test()).await;
    let sums = sharding.init(EntityType::event_sourced("Sum", |init| Ok(Sum(init.persistence_id()?)))).unwrap();
    let sum = sums.entity_ref("one");
    // Recovers.
    assert_eq!(sum.ask(Put, PATIENCE).await, Ok(1));
    let (to, back) = sums.0.pushed();
    for number in 1..=APPENDS {
        assert_eq!(sum.ask(Put, PATIENCE).await, Ok(1 + number));
    }
    assert_eq!(sums.0.pushed(), (to + APPENDS, back + APPENDS));
}
