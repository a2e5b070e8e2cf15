//! The hand-overs of an append, counted where they are made. `tests/suite/append_path.rs` counts its tasks; its header lists
//! the whole path.

use super::*;

/// Ledgers that store nothing but events.
fn without_snapshots() -> EntityType<Command, ByEvents<Ledger>> {
    let entities = EntityType::event_sourced(EntityKey::new("Ledger"), |_| {
        let settings = EventSourcedSettings { snapshot_every: None, ..EventSourcedSettings::test() };
        Ok(Ledger { settings, ..Ledger::new("") })
    });
    entities.events(json("ledger.added"))
}

/// Scenario persistence 73: a command is pushed to its shard once, and the outcome of its append is pushed back once.
#[tokio::test]
async fn scenario_73_an_append_is_pushed_to_its_shard_once_and_back_once() {
    const APPENDS: u64 = 20;
    let sharding = alone_over(Some(Stores::in_memory()), ShardingSettings::test()).await;
    let ledgers = sharding.init(without_snapshots()).unwrap();
    let one = ledgers.entity_ref("one");
    // The first ask makes the entity recover.
    assert_eq!(get(&ledgers, "one").await, 0);
    let (to, back) = ledgers.0.pushed();
    for number in 1..=APPENDS {
        one.tell(Command::Add(1)).unwrap();
        assert_eq!(get(&ledgers, "one").await, number as i64);
    }
    // A question is also pushed to the shard; it needs no store call, so nothing is pushed back.
    assert_eq!(ledgers.0.pushed(), (to + 2 * APPENDS, back + APPENDS));
}
