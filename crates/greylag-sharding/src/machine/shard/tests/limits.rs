//! A shard with a limit of active entities. `passivation` tests which entities the strategy chooses.

use super::World;
use crate::machine::shard::Input;
use crate::passivation::{FrequencySketch, Passivation};

fn world(passivation: Passivation) -> World {
    World::with(passivation, |_| {})
}

fn limited(limit: usize) -> World {
    world(Passivation::least_recently_used(limit))
}

impl World {
    /// Sends a message and lets all entities have their turns.
    fn use_entity(&mut self, id: &str, message: &str) {
        self.send(id, message);
        self.turns();
    }
}

/// sharding 65: the least recently used entity ends, after the message that needed its place was handled.
#[test]
fn an_entity_beyond_the_limit_ends_the_least_recently_used() {
    let mut world = limited(2);
    for id in ["1", "2", "1", "3"] {
        world.use_entity(id, "a");
    }
    world.expect(&[
        "1: start 1",
        "1: a",
        "2: start 2",
        "2: a",
        "1: a",
        "3: start 3",
        "3: a",
        "2: on_stop",
        "2: Stopped",
    ]);
    assert_eq!(world.shard.entity_count(), 2);
    world.use_entity("2", "b");
    world.expect(&["2: start 4", "2: b", "1: on_stop", "1: Stopped"]);
}

/// sharding 65: a smaller limit holds at once, and a larger one lets more in.
#[test]
fn a_limit_that_changes_holds_at_once() {
    let mut world = limited(3);
    for id in ["1", "2", "3"] {
        world.use_entity(id, "a");
    }
    world.log.clear();
    world.input(Input::Limit { entities: 1 });
    world.turns();
    world.expect(&["1: on_stop", "1: Stopped", "2: on_stop", "2: Stopped"]);
    world.input(Input::Limit { entities: 2 });
    for id in ["4", "5"] {
        world.use_entity(id, "a");
    }
    world.expect(&["4: start 4", "4: a", "5: start 5", "5: a", "3: on_stop", "3: Stopped"]);
}

/// sharding §4.10: an entity with a veto is passed over, and ends when the veto is lifted while the limit is exceeded.
#[test]
fn a_veto_is_passed_over_until_it_falls() {
    let mut world = limited(1);
    world.use_entity("1", "veto");
    world.use_entity("2", "veto");
    world.expect(&["1: start 1", "1: veto", "2: start 2", "2: veto"]);
    world.use_entity("1", "allow");
    world.expect(&["1: allow", "1: on_stop", "1: Stopped"]);
    assert_eq!(world.shard.entity_count(), 1);
}

/// sharding §4.5: messages for a stopping entity are for its next incarnation, which takes a place like any other.
#[test]
fn messages_behind_the_stop_request_start_another_incarnation() {
    let mut world = limited(1);
    world.use_entity("1", "a");
    world.send("2", "a");
    world.send("1", "b");
    world.turns();
    world.expect(&[
        "1: start 1",
        "1: a",
        "2: start 2",
        "2: a",
        "1: on_stop",
        "1: Stopped",
        "1: start 3",
        "1: b",
        "2: on_stop",
        "2: Stopped",
    ]);
}

/// sharding 68: without a window a new entity may have to end at once; its message is handled before.
#[test]
fn a_newcomer_that_is_not_admitted_handles_its_message_and_ends() {
    let mut world = world(Passivation::least_recently_used(1).frequency_sketch(FrequencySketch::default()));
    world.use_entity("1", "a");
    world.use_entity("1", "a");
    world.log.clear();
    world.use_entity("2", "a");
    world.expect(&["2: start 2", "2: a", "2: on_stop", "2: Stopped"]);
}

/// A veto ends with its incarnation: the next entity in the slot has none.
#[test]
fn a_veto_ends_with_its_incarnation() {
    for end in ["stop", "fail"] {
        let mut world = limited(1);
        world.use_entity("1", "veto");
        world.use_entity("1", end);
        if end == "stop" {
            world.use_entity("2", "a");
        }
        let live = if end == "stop" { "2" } else { "1" };
        world.log.clear();
        world.use_entity("3", "a");
        world.expect(&["3: start 3", "3: a", &format!("{live}: on_stop"), &format!("{live}: Stopped")]);
    }
}

/// Entities that end, fail or are asked to stop make room at once.
#[test]
fn ended_entities_do_not_count_towards_the_limit() {
    let mut world = limited(2);
    for id in ["1", "2"] {
        world.use_entity(id, "a");
    }
    world.use_entity("1", "stop");
    world.use_entity("2", "passivate");
    world.log.clear();
    for id in ["3", "4"] {
        world.use_entity(id, "a");
    }
    world.expect(&["3: start 3", "3: a", "4: start 4", "4: a"]);
}
