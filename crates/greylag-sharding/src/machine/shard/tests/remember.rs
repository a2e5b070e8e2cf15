//! Sharding scenarios 57, 70 and 71, at the level of the machine: entities that are remembered.
//!
//! `start!` stands for a request to start the entity: its handling is its ack.

use std::collections::BTreeSet;

use super::*;
use crate::settings::OnPermanentFailure;

const SECOND: Duration = Duration::from_secs(1);

impl World {
    /// A shard that remembers its entities, and has loaded `ids`.
    fn remembering(ids: &[&str]) -> Self {
        Self::remembering_with(ids, |_| {})
    }

    fn remembering_with(ids: &[&str], change: impl FnOnce(&mut ShardingSettings)) -> Self {
        let mut world = Self::with(Passivation::idle_after(SECOND), |settings| {
            settings.remember.fail_on_invalid_transition = true;
            change(settings);
        });
        world.shard = world.shard.remember();
        world.input(Input::Begin);
        world.expect(&["load"]);
        world.input(Input::Loaded { ids: ids.iter().map(|id| EntityId::new(*id).unwrap()).collect() });
        world.expect(&[&format!("initialized with {ids:?}").replace('"', "")]);
        world
    }

    /// The write under way is durable.
    fn stored(&mut self) {
        let (number, _) = self.write.take().expect("a write is under way");
        self.input(Input::Stored { number });
        self.turns();
    }

    fn state(&self, state: Remembered) -> usize {
        self.shard.remembered(state)
    }

    /// An entity that runs and is remembered, with nothing under way.
    fn with_active(id: &str) -> Self {
        let mut world = Self::remembering(&[]);
        world.send(id, "a");
        world.stored();
        world.expect(&[&format!("store +{id} -"), &format!("{id}: start 1"), &format!("{id}: a")]);
        assert_eq!(world.state(Remembered::Active), 1);
        world
    }
}

/// None to Active: the first message, and all behind it, wait until the entity is remembered.
#[test]
fn scenario_70_a_first_message_waits_for_the_store() {
    let mut world = World::remembering(&[]);
    for message in ["a", "b", "start!"] {
        world.send("1", message);
    }
    world.turns();
    world.expect(&["store +1 -"]);
    assert_eq!(world.state(Remembered::RememberingStart), 1);
    world.stored();
    world.expect(&["1: start 1", "1: a", "1: b", "1: start!"]);
    assert_eq!((world.state(Remembered::Active), world.shard.next_deadline()), (1, None));
}

/// The request alone is remembered, and acked once the entity runs.
#[test]
fn scenario_70_a_request_remembers_starts_and_acks() {
    let mut world = World::remembering(&[]);
    world.send("1", "start!");
    world.stored();
    world.send("1", "start!");
    world.expect(&["store +1 -", "1: start 1", "1: start!", "1: start!"]);
}

/// Active to Passivating, RememberingStop and none; a message that comes meanwhile starts the entity anew behind the
/// end.
#[test]
fn scenario_70_a_request_during_slow_passivation_and_during_its_store_is_acked_by_one_instance() {
    let mut world = World::with_active("1");
    world.stubborn.push("1");
    world.send("1", "passivate");
    world.send("1", "start!");
    world.turns();
    world.expect(&["1: passivate", "1: on_stop"]);
    assert_eq!(world.state(Remembered::Passivating), 1);
    world.advance(ShardingSettings::default().passivation_stop_timeout);
    world.expect(&["1: overdue Stop", "1: Forced", "store + -1"]);
    world.send("1", "start!");
    assert_eq!(world.state(Remembered::RememberingStop), 1);
    world.stored();
    world.expect(&["store +1 -"]);
    world.stored();
    world.expect(&["1: start 2", "1: start!", "1: start!"]);
    assert_eq!((world.state(Remembered::Active), world.shard.entity_count()), (1, 1));
}

#[test]
fn scenario_70_a_passivated_entity_is_forgotten_and_leaves_nothing() {
    let mut world = World::with_active("1");
    world.send("1", "passivate");
    world.turns();
    world.expect(&["1: passivate", "1: on_stop", "1: Stopped", "store + -1"]);
    world.stored();
    assert_eq!((world.shard.entity_count(), world.state(Remembered::RememberingStop)), (0, 0));
    // The same for an entity that passivates and stops in one handler.
    world.send("2", "passivate+stop");
    world.stored();
    world.expect(&["store +2 -", "2: start 2", "2: passivate+stop", "2: Stopped", "store + -2"]);
    world.stored();
    world.advance(SECOND * 1_000);
    world.expect(&[]);
}

/// sharding 57: an entity that stops by itself comes back, after its wait or for a message.
#[test]
fn scenario_57_an_entity_that_stops_by_itself_is_started_again() {
    let mut world = World::with_active("1");
    world.send("1", "stop");
    world.advance(SECOND * 99 / 10);
    world.expect(&["1: stop", "1: Stopped"]);
    assert_eq!(world.state(Remembered::WaitingForRestart), 1);
    world.advance(SECOND / 10);
    world.expect(&["1: start 2"]);
    for wakes in ["b", "start!"] {
        world.send("1", "stop");
        world.send("1", wakes);
        world.turns();
        let incarnation = 3 + u32::from(wakes != "b");
        world.expect(&["1: stop", "1: Stopped", &format!("1: start {incarnation}"), &format!("1: {wakes}")]);
    }
    assert_eq!(world.state(Remembered::Active), 1);
}

/// The messages behind the one on which an entity stops start the next incarnation at once.
#[test]
fn a_remembered_entity_that_stops_before_its_queue_is_empty_goes_on_at_once() {
    let mut world = World::with_active("1");
    for message in ["self:x", "stop", "b"] {
        world.send("1", message);
    }
    world.turns();
    world.expect(&["1: self:x", "1: x", "1: stop", "1: Stopped", "1: start 2", "1: b"]);
}

/// After a `Stop` directive an entity waits before its restart, twice as long each time.
#[test]
fn scenario_70_after_a_failure_messages_wait_for_the_restart_which_waits_longer_each_time() {
    let mut world = World::supervised(Supervision::always(Directive::Stop), |_| {});
    world.shard = world.shard.remember();
    world.input(Input::Begin);
    world.input(Input::Loaded { ids: vec![EntityId::new("1").unwrap()] });
    world.send("1", "fail");
    world.log.clear();
    for (round, wait) in [10_u32, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
        world.send("1", "start!");
        world.send("1", "fail");
        world.advance(SECOND * wait - Duration::from_millis(1));
        world.expect(&[]);
        world.advance(Duration::from_millis(1));
        let start = format!("1: start {}", round + 2);
        world.expect(&[&start, "1: start!", "1: fail", "1: Failed"]);
    }
}

#[test]
fn an_entity_that_cannot_start_is_given_up_and_stays_remembered() {
    let mut world = World::remembering_with(&["1"], |settings| settings.remember.max_start_failures = 2);
    world.broken.push("1");
    world.send("1", "start!");
    world.expect(&["1: start! dead: EntityStartFailed", "1: Failed"]);
    world.advance(SECOND * 10);
    let given_up = "GivenUp { id: 1, failures: 2, forgotten: false }";
    world.expect(&["1: Failed", given_up]);
    world.advance(SECOND * 10_000);
    world.expect(&[]);
    assert_eq!(world.state(Remembered::WaitingForRestart), 1);
    world.broken.clear();
    world.send("1", "a");
    world.turns();
    world.expect(&["1: start 3", "1: a"]);
    assert_eq!(world.state(Remembered::Active), 1);
}

#[test]
fn an_entity_that_cannot_start_is_forgotten_where_the_settings_say_so() {
    let mut world = World::remembering_with(&["1"], |settings| {
        settings.remember.max_start_failures = 2;
        settings.remember.on_permanent_failure = OnPermanentFailure::Forget;
    });
    world.broken.push("1");
    world.send("1", "a");
    world.send("1", "b");
    world.send("1", "c");
    world.log.clear();
    world.advance(SECOND * 10);
    let given_up = "GivenUp { id: 1, failures: 2, forgotten: true }";
    let dead = ["1: b dead: EntityStartFailed", "1: Failed", given_up, "1: c dead: EntityStartFailed"];
    world.expect(&[&dead[..], &["store + -1"]].concat());
    world.stored();
    assert_eq!((world.shard.entity_count(), world.state(Remembered::RememberingStop)), (0, 0));
}

/// Loaded entities start by request or by message, without being stored again.
#[test]
fn scenario_70_loaded_entities_start_without_the_store() {
    let mut world = World::remembering(&["1", "2", "3"]);
    world.send("1", "start!");
    world.send("2", "a");
    world.expect(&["1: start 1", "1: start!", "2: start 2", "2: a"]);
    assert_eq!((world.state(Remembered::Active), world.state(Remembered::NotStarted)), (2, 1));
}

/// Entities that live in other shards by now leave the store; an entity for which a message came meanwhile stays.
#[test]
fn scenario_70_entities_moved_to_another_shard_are_forgotten_here() {
    let mut world = World::remembering(&["1", "2", "3"]);
    world.send("1", "a");
    world.log.clear();
    world.input(Input::Moved { ids: ["1", "2", "4"].map(|id| EntityId::new(id).unwrap()).to_vec() });
    world.expect(&["store + -2"]);
    world.stored();
    assert_eq!((world.state(Remembered::Active), world.state(Remembered::NotStarted)), (1, 1));
}

/// No entity of a type that remembers is ended by the shard, whatever its passivation says.
#[test]
fn scenario_69_remembered_entities_are_never_passivated_automatically() {
    let mut world = World::with_active("1");
    world.advance(SECOND * 100_000);
    world.input(Input::Limit { entities: 1 });
    world.send("2", "a");
    world.stored();
    world.advance(SECOND * 100_000);
    world.expect(&["store +2 -", "2: start 2", "2: a"]);
}

/// 20 starts, then 20 starts and 20 stops, then 20 stops: everything counts, in few writes.
#[test]
fn scenario_71_changes_during_a_write_become_one_write() {
    let mut world = World::remembering(&[]);
    let mut known = BTreeSet::new();
    let mut writes = 0;
    let mut settle = |world: &mut World| {
        world.turns();
        while let Some((_, update)) = world.write.clone() {
            writes += 1;
            known.extend(update.starts);
            known.retain(|id| !update.stops.contains(id));
            world.stored();
        }
        (known.len(), writes)
    };
    (0..20).for_each(|n| world.send(&n.to_string(), "a"));
    assert_eq!(settle(&mut world), (20, 2), "the first alone, and the rest");
    for n in 0..20 {
        world.send(&n.to_string(), "passivate");
        world.send(&(20 + n).to_string(), "a");
    }
    assert_eq!(settle(&mut world), (20, 4), "the first start alone; and the rest with all stops");
    (20..40).for_each(|n| world.send(&n.to_string(), "passivate"));
    assert_eq!(settle(&mut world), (0, 6));
    assert_eq!(world.shard.entity_count(), 0);
}

/// A write that fails, or is late, fails the shard: every message that no handler saw goes back to the region.
#[test]
fn scenario_72_a_write_that_fails_or_is_late_fails_the_shard() {
    for late in [false, true] {
        let mut world = World::remembering(&[]);
        for message in ["a", "b"] {
            world.send("1", message);
        }
        world.send("2", "c");
        world.expect(&["store +1 -"]);
        let (number, _) = world.write.take().unwrap();
        if late {
            world.advance(SECOND * 5);
            world.expect(&["StoreIsLate", "the shard fails"]);
        } else {
            world.input(Input::StoreFailed { number: number + 7 });
            assert_eq!(world.leftovers, None, "another write");
            world.input(Input::StoreFailed { number });
            world.expect(&["the shard fails"]);
        }
        world.expect_leftovers(&["1: a", "1: b", "2: c"]);
        assert_eq!(world.shard.next_deadline(), None);
    }
}

#[test]
fn scenario_72_a_load_that_is_late_is_asked_for_again_and_one_that_fails_fails_the_shard() {
    let mut world = World::new(|_| {});
    world.shard = world.shard.remember();
    world.input(Input::Begin);
    world.advance(SECOND * 4);
    world.expect(&["load", "LoadIsSlow", "load", "LoadIsSlow", "load"]);
    world.input(Input::LoadFailed);
    world.expect(&["the shard fails"]);
    world.expect_leftovers(&[]);
    world.input(Input::Loaded { ids: Vec::new() });
    world.advance(SECOND * 100);
    world.expect(&[]);
}

/// From the stop marker on: messages that wait for a start to be stored are leftovers; entities that were passivating
/// are forgotten, and the shard waits for that write; all other entities stay remembered.
#[test]
fn a_shard_that_stops_waits_for_its_writes() {
    let mut world = World::with_active("1");
    world.stubborn.push("1");
    world.send("1", "passivate");
    world.send("2", "b");
    world.send("3", "c");
    world.turns();
    world.expect(&["1: passivate", "store +2 -", "1: on_stop"]);
    world.stop(SECOND * 3);
    world.advance(SECOND * 3);
    world.expect(&["1: Forced"]);
    assert_eq!(world.leftovers, None, "a write is under way");
    world.stored();
    world.expect(&["store + -1"]);
    assert_eq!(world.leftovers, None);
    world.stored();
    world.expect(&[]);
    world.expect_leftovers(&["2: b", "3: c"]);
}

#[test]
fn a_shard_that_stops_waits_no_longer_than_a_write_may_take() {
    let mut world = World::with_active("1");
    world.send("1", "passivate");
    world.turns();
    world.stop(SECOND * 60);
    assert_eq!(world.leftovers, None);
    world.advance(SECOND * 5);
    world.expect_leftovers(&[]);
    assert_eq!(world.shard.next_deadline(), None);
    // A killed shard does not wait at all.
    let mut world = World::with_active("1");
    world.send("1", "passivate");
    world.turns();
    world.input(Input::Kill);
    world.expect_leftovers(&[]);
}

#[test]
fn messages_that_wait_for_the_store_are_bounded_per_shard() {
    let mut world = World::remembering_with(&[], |settings| settings.buffer_size = 3);
    for id in ["1", "2", "2", "3", "1"] {
        world.send(id, "a");
    }
    world.expect(&["store +1 -", "3: a dead: BufferFull", "1: a dead: BufferFull"]);
    world.stored();
    world.stored();
    world.expect(&["store +2 -", "1: start 1", "1: a", "2: start 2", "2: a", "2: a"]);
    world.send("3", "b");
    world.stored();
    world.expect(&["store +3 -", "3: start 3", "3: b"]);
}

/// A fenced entity that is remembered starts again without a message, once the region has asked who owns the shard.
#[test]
fn a_fenced_entity_that_is_remembered_starts_again_without_a_message() {
    let mut world = World::with_active("1");
    world.send("1", "fence");
    world.advance(ShardingSettings::default().retry_interval);
    world.expect(&["1: fence", "1: Fenced", "1: start 2"]);
    assert_eq!(world.state(Remembered::Active), 1);
}
