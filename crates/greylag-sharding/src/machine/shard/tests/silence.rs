//! Receive timeouts, and warnings of entities that take long. Source: sharding §4.3 to §4.5.

use std::time::Duration;

use super::World;
use crate::entity::{Directive, Supervision};
use crate::machine::shard::Input;
use crate::passivation::Passivation;
use crate::settings::PassivationSettings;

const SECOND: Duration = Duration::from_secs(1);

/// Entity 1, which is told of silences of two seconds.
fn listening() -> World {
    let mut world = World::new(|_| {});
    world.send("1", "listen:2");
    world.log.clear();
    world
}

/// sharding 62: a receive timeout repeats, and user messages put it off.
#[test]
fn a_receive_timeout_repeats_and_messages_put_it_off() {
    let mut world = listening();
    world.advance(SECOND);
    world.send("1", "a");
    world.advance(SECOND * 19 / 10);
    world.expect(&["1: a"]);
    world.advance(SECOND / 10);
    world.expect(&["1: silence"]);
    world.advance(SECOND * 4);
    world.expect(&["1: silence", "1: silence"]);
    world.send("1", "deaf");
    world.advance(SECOND * 10);
    world.expect(&["1: deaf"]);
    assert_eq!(world.shard.next_deadline(), None, "an entity that is told of nothing costs nothing");
}

/// sharding 62: results of its own work, messages to itself, and timers set so do not put an entity's receive timeout
/// off.
#[test]
fn only_user_messages_and_timers_that_influence_it_put_a_receive_timeout_off() {
    for (message, told_at) in [("quiet:t", 2), ("timer:t", 3), ("self:t", 2)] {
        let mut world = listening();
        world.send("1", message);
        world.turns();
        world.advance(SECOND * told_at - Duration::from_millis(10));
        assert!(!world.log.contains(&"1: silence".to_owned()), "{message}: {:?}", world.log);
        world.advance(Duration::from_millis(10));
        assert_eq!(world.log.last().map(String::as_str), Some("1: silence"), "{message}");
    }
    let mut world = listening();
    world.send("1", "suspend");
    let (slot, incarnation) = world.suspended["1"];
    world.resume("1", "r");
    world.advance(SECOND);
    world.input(Input::Resumed { slot, incarnation, payload: "work".into(), suspension: false });
    world.turns();
    world.advance(SECOND);
    world.expect(&["1: suspend", "1: r", "1: work", "1: silence"]);
}

/// A message that its type does not count as activity does not put a receive timeout off.
#[test]
fn messages_that_are_no_activity_do_not_put_a_receive_timeout_off() {
    let mut world = listening();
    world.advance(SECOND);
    let id = crate::ids::EntityId::new("1").unwrap();
    world.input(Input::Deliver { id, payload: "frame".into(), activity: false });
    world.advance(SECOND);
    world.expect(&["1: frame", "1: silence"]);
}

#[test]
fn a_message_that_is_handled_before_its_turn_takes_a_receive_timeout_back() {
    let mut world = listening();
    world.send("1", "suspend");
    world.send("1", "a");
    world.resume("1", "r");
    world.now += SECOND * 2;
    // The silence falls due behind the message, which has its turn first.
    world.input(Input::Tick);
    world.turns();
    world.expect(&["1: suspend", "1: r", "1: a"]);
    world.advance(SECOND * 2);
    world.expect(&["1: silence"]);
}

/// sharding §4.3: while an entity is suspended its receive timeout does not run.
#[test]
fn a_receive_timeout_does_not_run_while_its_entity_is_suspended() {
    let mut world = listening();
    world.advance(SECOND / 2);
    world.send("1", "suspend");
    world.advance(SECOND * 8);
    world.expect(&["1: suspend"]);
    world.resume("1", "r");
    world.advance(SECOND * 19 / 10);
    world.expect(&["1: r"]);
    world.advance(SECOND / 10);
    world.expect(&["1: silence"]);
}

#[test]
fn a_receive_timeout_ends_with_its_incarnation() {
    for (directive, end) in [(Directive::Restart, "fail"), (Directive::Stop, "fail"), (Directive::Resume, "stop")] {
        let mut world = World::supervised(Supervision::always(directive), |_| {});
        for message in ["listen:2", end, "a"] {
            world.send("1", message);
        }
        world.turns();
        world.log.clear();
        world.advance(SECOND * 10);
        world.expect(&[]);
        assert_eq!(world.shard.next_deadline(), None);
    }
}

/// sharding §4.4: neither timers nor receive timeouts are activity, unless the settings say so.
#[test]
fn an_entity_that_only_has_timers_is_idle_unless_they_count() {
    for (count_internal, lives) in [(false, 0), (true, 1)] {
        let idle = Passivation::idle_after(SECOND * 5);
        let mut world = World::with(idle, |settings| {
            settings.passivation = PassivationSettings { count_internal, ..PassivationSettings::default() };
        });
        world.send("1", "listen:2");
        world.advance(SECOND * 20);
        assert_eq!(world.shard.entity_count(), lives, "count_internal: {count_internal}, {:?}", world.log);
    }
}

/// sharding §4.3: a suspension that takes long is reported once.
#[test]
fn a_long_suspension_is_reported_once() {
    let mut world = World::new(|settings| settings.runtime.suspend_warn_after = SECOND * 3);
    for id in ["short", "long"] {
        world.send(id, "suspend");
    }
    world.advance(SECOND * 2);
    world.resume("short", "r");
    world.log.clear();
    world.advance(SECOND * 10);
    world.expect(&["long: overdue Suspension"]);
    world.resume("long", "r");
    world.send("long", "suspend");
    world.advance(SECOND * 3);
    world.expect(&["long: r", "long: suspend", "long: overdue Suspension"]);
    world.input(Input::Kill);
    world.expect(&["short: Killed", "long: Killed"]);
}

/// sharding §4.5: an entity that ignores its stop request is reported after 5 s, and forced to end later if so set.
#[test]
fn an_ignored_stop_request_is_reported_before_the_stop_is_forced() {
    for (timeout, forced) in [(SECOND * 8, true), (Duration::ZERO, false)] {
        let mut world = World::new(|settings| settings.passivation_stop_timeout = timeout);
        world.stubborn.push("1");
        world.send("1", "passivate");
        world.turns();
        world.expect(&["1: start 1", "1: passivate", "1: on_stop"]);
        world.advance(SECOND * 7);
        world.expect(&["1: overdue Stop"]);
        world.advance(SECOND * 100);
        world.expect(if forced { &["1: Forced"] } else { &[] });
    }
}

/// sharding §4.5, §2.9: a stopping shard warns once how many entities are left.
#[test]
fn a_shard_that_takes_long_to_stop_says_so_once() {
    let mut world = World::new(|_| {});
    world.stubborn.extend(["1", "2"]);
    for id in ["0", "1", "2"] {
        world.send(id, "a");
    }
    world.stop(SECOND * 55);
    world.log.clear();
    world.advance(SECOND * 54);
    world.expect(&["2 overdue: 1, 2"]);
    world.advance(SECOND);
    world.expect(&["1: Forced", "2: Forced"]);
}

/// sharding 31: with a handoff timeout of 6 s, an entity that ignores its stop message is forced within 2 s.
#[test]
fn scenario_31_the_shard_has_stopped_in_less_than_two_seconds() {
    let settings = crate::ShardingSettings { handoff_timeout: SECOND * 6, ..crate::ShardingSettings::default() };
    let mut world = World::new(|_| {});
    world.stubborn.push("1");
    world.send("1", "a");
    world.stop(settings.entity_stop_timeout());
    world.advance(SECOND * 99 / 100);
    world.expect(&["1: start 1", "1: a", "1: on_stop"]);
    world.advance(SECOND);
    world.expect(&["1: Forced"]);
    world.expect_leftovers(&[]);
}

/// sharding 61: a stop by force, and a kill, end a suspended entity at once.
#[test]
fn forced_stops_and_kills_do_not_wait_for_a_suspension() {
    for id in ["forced", "killed"] {
        let mut world = World::new(|_| {});
        world.send(id, "suspend");
        world.send(id, "a");
        world.stop(SECOND * 4);
        world.log.clear();
        if id == "killed" {
            world.input(Input::Kill);
            world.expect(&["killed: Killed"]);
        } else {
            world.advance(SECOND * 4);
            world.expect(&["forced: Forced"]);
        }
        world.expect_leftovers(&[&format!("{id}: a")]);
    }
}
