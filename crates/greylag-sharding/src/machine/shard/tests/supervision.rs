//! Failures after which an entity backs off, or its shard fails. Source: sharding §4.6.

use std::time::Duration;

use super::{World, after_failure};
use crate::entity::{Backoff, Directive, FailureCause, Supervision};
use crate::ids::EntityId;
use crate::machine::shard::{Input, Remembered};

const SECOND: Duration = Duration::from_secs(1);

/// Waits of 1, 2, 4, ... s, all exact.
fn backing_off() -> World {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    World::supervised(Supervision::always(Directive::Backoff(backoff)), |_| {})
}

/// sharding 58: messages wait for the next incarnation, and do not start it early.
#[test]
fn an_entity_that_backs_off_keeps_its_messages_and_starts_when_its_wait_is_over() {
    let mut world = backing_off();
    world.send("1", "timer:t");
    for message in ["fail", "a", "b"] {
        world.send("1", message);
    }
    world.advance(SECOND * 99 / 100);
    world.expect(&["1: start 1", "1: timer:t", "1: fail", "1: Failed"]);
    world.advance(SECOND);
    world.expect(&["1: start 2", "1: a", "1: b"]);
    world.advance(SECOND * 5);
    world.expect(&[]);
}

/// sharding 58: the row for `Backoff` of the table in §4.6; `each_directive_keeps_and_drops_what_the_table_says` has
/// the other rows: the state and the timers are lost, results of its work are discarded, and the queue waits.
#[test]
fn scenario_58_an_entity_that_backs_off_keeps_its_queue_alone() {
    let backoff = Directive::Backoff(Backoff { jitter: 0.0, ..Backoff::default() });
    let rest = ["1: Failed", "late work", "1: start 2", "1: a", "1: b", "1: later"];
    for failure in ["fail", "panic"] {
        let log = after_failure(backoff, |world| {
            for message in [failure, "a", "b"] {
                world.send("1", message);
            }
            world.resume("1", "r");
        });
        assert_eq!(log, [&["1: r", &format!("1: {failure}")][..], &rest].concat(), "after {failure}");
    }
    let log = after_failure(backoff, |world| {
        for message in ["a", "b"] {
            world.send("1", message);
        }
        let (slot, _) = world.suspended["1"];
        world.fail(slot, FailureCause::Suspension("asked to".into()));
    });
    assert_eq!(log, rest, "after a failed suspension");
}

/// A shard that remembers entity 1, which runs.
fn remembering(directive: Directive) -> World {
    let mut world = World::supervised(Supervision::always(directive), |_| {});
    world.shard = world.shard.remember();
    world.input(Input::Begin);
    world.input(Input::Loaded { ids: vec![EntityId::new("1").unwrap()] });
    world.send("1", "start!");
    world.log.clear();
    world
}

/// sharding 58: the last column of the table in §4.6, except for `Stop`, after which an entity waits longer each time
/// (`scenario_70_after_a_failure_messages_wait_for_the_restart_which_waits_longer_each_time`). No failure causes a
/// write to the store.
#[test]
fn scenario_58_a_remembered_entity_that_fails_stays_remembered() {
    let table: [(Directive, &str, &[&str]); 4] = [
        (Directive::Resume, "fail", &["1: fail", "1: a"]),
        (Directive::Resume, "panic", &["1: panic", "1: restart 2", "1: a"]),
        (Directive::Restart, "fail", &["1: fail", "1: restart 2", "1: a"]),
        (Directive::Restart, "panic", &["1: panic", "1: restart 2", "1: a"]),
    ];
    for (directive, failure, expected) in table {
        let mut world = remembering(directive);
        world.send("1", failure);
        world.send("1", "a");
        world.turns();
        world.expect(expected);
        assert_eq!(world.shard.remembered(Remembered::Active), 1, "{directive:?} after {failure}: it stays active");
    }
    let mut world = remembering(Directive::Backoff(Backoff { jitter: 0.0, ..Backoff::default() }));
    for message in ["fail", "a", "start!"] {
        world.send("1", message);
    }
    world.advance(SECOND * 99 / 100);
    world.expect(&["1: fail", "1: Failed"]);
    assert_eq!(world.shard.all_remembered(), 1);
    world.advance(SECOND / 100);
    world.expect(&["1: start 2", "1: a", "1: start!"]);
    assert_eq!(world.shard.remembered(Remembered::Active), 1);
    let mut world = remembering(Directive::Escalate);
    world.send("1", "fail");
    world.expect(&["1: fail", "the shard fails", "1: Killed"]);
}

/// sharding 58: an entity that backs off is started again even if no message waits.
#[test]
fn an_entity_that_backs_off_starts_without_a_message() {
    let mut world = backing_off();
    world.send("1", "fail");
    world.advance(SECOND);
    world.expect(&["1: start 1", "1: fail", "1: Failed", "1: start 2"]);
    assert_eq!(world.shard.entity_count(), 1);
}

#[test]
fn waits_grow_until_an_entity_has_lived_for_a_while() {
    let mut world = backing_off();
    for wait in [1, 2, 4] {
        world.send("1", "fail");
        world.log.clear();
        world.advance(SECOND * wait - Duration::from_millis(1));
        assert!(world.log.is_empty(), "{wait} s: {:?}", world.log);
        world.advance(Duration::from_millis(1));
        assert_eq!(world.log.len(), 1, "it starts after {wait} s");
    }
    world.advance(Backoff::default().reset_after);
    world.send("1", "fail");
    world.log.clear();
    world.advance(SECOND);
    assert_eq!(world.log.len(), 1, "it begins anew");
}

/// sharding 58: an entity that cannot start is tried again after the wait; the message that woke it is lost.
#[test]
fn an_entity_that_cannot_start_backs_off() {
    let mut world = backing_off();
    world.broken.push("1");
    world.send("1", "a");
    world.send("1", "b");
    world.expect(&["1: a dead: EntityStartFailed", "1: Failed"]);
    world.broken.clear();
    world.advance(SECOND);
    world.expect(&["1: start 2", "1: b"]);
}

/// A stopping shard waits for no entity that backs off: the waiting messages become leftovers.
#[test]
fn a_shard_that_stops_hands_on_what_waits_for_an_entity_that_backs_off() {
    let mut world = backing_off();
    world.send("1", "fail");
    world.send("1", "a");
    world.log.clear();
    world.stop(SECOND);
    world.expect_leftovers(&["1: a"]);
    world.advance(SECOND * 5);
    world.expect(&[]);
}

/// sharding 58: the whole shard ends, and no waiting message is lost.
#[test]
fn a_failure_that_escalates_ends_all_entities_of_the_shard() {
    let mut world = World::supervised(Supervision::always(Directive::Escalate), |_| {});
    world.send("1", "suspend");
    world.send("1", "a");
    world.send("2", "x");
    world.log.clear();
    world.send("2", "fail");
    world.expect(&["2: fail", "the shard fails", "1: Killed", "2: Killed"]);
    world.expect_leftovers(&["1: a"]);
}

/// sharding 58, §6.5: a reported failure names the verdict that is carried out.
#[test]
fn a_failure_is_reported_with_the_verdict_on_the_entity() {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    let table = [
        (Directive::Resume, "fail", "Resumed"),
        (Directive::Resume, "panic", "Restarted"),
        (Directive::Restart, "fail", "Restarted"),
        (Directive::Backoff(backoff), "fail", "BacksOff(1s)"),
        (Directive::Stop, "panic", "Stopped"),
        (Directive::Escalate, "fail", "Escalated"),
    ];
    for (directive, failure, verdict) in table {
        let mut world = World::supervised(Supervision::always(directive), |_| {});
        world.send("1", failure);
        assert_eq!(world.verdicts, [format!("1: {verdict}")], "{directive:?} after {failure}");
    }
    let mut world = World::supervised(Supervision::always(Directive::Restart), |settings| settings.max_restarts = 1);
    for _ in 0..2 {
        world.send("1", "fail");
        world.turns();
    }
    assert_eq!(world.verdicts, ["1: Restarted", "1: Stopped"], "too often");
}

/// sharding 58: the messages that wait for an entity that backs off have the bound of its mailbox.
#[test]
fn an_entity_that_backs_off_keeps_no_more_messages_than_its_mailbox_holds() {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    let mut world = World::supervised(Supervision::always(Directive::Backoff(backoff)), |settings| {
        settings.entity_mailbox_capacity = 2;
    });
    world.send("1", "fail");
    for message in ["a", "b", "c"] {
        world.send("1", message);
    }
    world.log.clear();
    world.advance(SECOND);
    world.expect(&["1: start 2", "1: a", "1: b"]);
}
