//! The machine under a shell that keeps a log in place of entities.
//!
//! Messages are words: `x` is handled and logged, `stop`, `passivate`, `passivate+stop`, `suspend`, `fail`, `panic` and
//! `fence` make the entity do so, `self:x` sends `x` to the entity itself, `timer:x` sets a timer for `x`. With
//! `suspend:stoppable` a stop request may end the suspension, with `fence:x` the entity gives `x` back. `listen:n` asks
//! for `silence` after `n` seconds without a message, `deaf` cancels that; `quiet:x` is a timer that does not influence
//! the silence.

mod ahead;
mod counting;
mod limits;
mod remember;
mod silence;
mod supervision;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;
use crate::entity::{Directive, FailureCause, Supervision, TimerKey};
use crate::host::Suspension;
use crate::ids::EntityId;
use crate::passivation::Passivation;
use crate::settings::ShardingSettings;

type Log = Vec<String>;

struct World {
    shard: Shard<String, String>,
    now: Instant,
    log: Log,
    leftovers: Option<Vec<String>>,
    /// Entities whose factory fails.
    broken: Vec<&'static str>,
    /// Entities that ignore stop requests.
    stubborn: Vec<&'static str>,
    suspended: BTreeMap<String, (SlotId, u64)>,
    /// Messages that the next replaced entity gives back.
    given_back: Vec<&'static str>,
    /// Verdicts on entities that failed.
    verdicts: Log,
    /// The write under way.
    write: Option<(u64, StoreUpdate)>,
}

impl Weigh for String {
    fn weight(&self) -> usize {
        self.len()
    }
}

impl World {
    fn new(change: impl FnOnce(&mut ShardingSettings)) -> Self {
        Self::made_of(Supervision::default(), &Passivation::none(), change)
    }

    fn with(passivation: Passivation, change: impl FnOnce(&mut ShardingSettings)) -> Self {
        Self::made_of(Supervision::default(), &passivation, change)
    }

    fn supervised(supervision: Supervision, change: impl FnOnce(&mut ShardingSettings)) -> Self {
        Self::made_of(supervision, &Passivation::none(), change)
    }

    fn made_of(
        supervision: Supervision,
        passivation: &Passivation,
        change: impl FnOnce(&mut ShardingSettings),
    ) -> Self {
        let mut settings = ShardingSettings::default();
        change(&mut settings);
        let now = Instant::now();
        let shard = Shard::new(settings, supervision, passivation, 7, 1, now);
        let (broken, stubborn) = (Vec::new(), Vec::new());
        Self {
            shard,
            now,
            log: Vec::new(),
            leftovers: None,
            broken,
            stubborn,
            suspended: BTreeMap::new(),
            given_back: Vec::new(),
            verdicts: Log::new(),
            write: None,
        }
    }

    fn input(&mut self, input: Input<String>) {
        let mut out = Vec::new();
        self.shard.handle(self.now, input, &mut out);
        for effect in out {
            self.execute(effect);
        }
    }

    fn send(&mut self, id: &str, message: &str) {
        let id = EntityId::new(id).unwrap();
        self.input(Input::Deliver { id, payload: message.to_owned(), activity: true });
    }

    fn turns(&mut self) {
        while self.shard.has_work() {
            self.input(Input::Turn);
        }
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.shard.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.input(Input::Tick);
            self.turns();
        }
        self.now = end;
    }

    fn resume(&mut self, id: &str, result: &str) {
        let (slot, incarnation) = self.suspended.remove(id).expect("suspended before");
        let payload = result.to_owned();
        self.input(Input::Resumed { slot, incarnation, payload, suspension: true });
    }

    fn execute(&mut self, effect: Effect<String, String>) {
        match effect {
            Effect::Start { slot, payload } => {
                let (id, incarnation) = self.shard.identity(slot).unwrap();
                let (id, number) = (id.to_string(), incarnation & 0xffff);
                if self.broken.contains(&id.as_str()) {
                    let cause = FailureCause::Start("broken".into());
                    return self.input(Input::Failed { slot, cause, payload });
                }
                self.log.push(format!("{id}: start {number}"));
                self.shard.place(slot, id);
                self.input(Input::Started { slot, outcome: Outcome::default(), payload });
            }
            Effect::Restart { slot } => {
                let (id, incarnation) = self.shard.identity(slot).unwrap();
                self.log.push(format!("{id}: restart {}", incarnation & 0xffff));
                let id = id.to_string();
                let payloads = std::mem::take(&mut self.given_back).into_iter().map(str::to_owned).collect();
                self.input(Input::GivenBack { slot, payloads });
                self.shard.place(slot, id);
                self.input(Input::Started { slot, outcome: Outcome::default(), payload: None });
            }
            Effect::Run { slot, payload } => self.run(slot, &payload),
            Effect::NotifyReceiveTimeout { slot } => self.run(slot, "silence"),
            Effect::StopOverdue { entities, ids } => {
                let ids: Vec<&str> = ids.iter().map(EntityId::as_str).collect();
                self.log.push(format!("{entities} overdue: {}", ids.join(", ")));
            }
            Effect::Overdue { id, what } => self.log.push(format!("{id}: overdue {what:?}")),
            Effect::SendStop { slot } => {
                let id = self.shard.entity(slot).unwrap().0.clone();
                self.log.push(format!("{id}: on_stop"));
                let stop = !self.stubborn.contains(&id.as_str());
                self.input(Input::Done { slot, outcome: Outcome { stop, ..Outcome::default() } });
            }
            Effect::End { id, entity, why, .. } => {
                assert!(why == Ended::Failed || entity.is_some(), "an entity ends once");
                self.log.push(format!("{id}: {why:?}"));
            }
            Effect::DeadLetter { id, payload, reason } => self.log.push(format!("{id}: {payload} dead: {reason}")),
            Effect::Failed { id, verdict, .. } => self.verdicts.push(format!("{id}: {verdict:?}")),
            Effect::Late(payload) => self.log.push(format!("late {payload}")),
            Effect::Escalate => self.log.push("the shard fails".to_owned()),
            Effect::Load => self.log.push("load".to_owned()),
            Effect::Store { number, update } => {
                let ids = |ids: &[EntityId]| ids.iter().map(EntityId::as_str).collect::<Vec<_>>().join(",");
                self.log.push(format!("store +{} -{}", ids(&update.starts), ids(&update.stops)));
                assert!(self.write.replace((number, update)).is_none(), "one write is under way");
            }
            Effect::Initialized { remembered } => self.log.push(format!("initialized with {remembered:?}")),
            Effect::Notice(notice) => self.log.push(format!("{notice:?}")),
            Effect::DropDirect { payload, reason } => self.log.push(format!("{payload} dead: {reason}")),
            Effect::Stopped(leftovers) => {
                assert!(self.leftovers.is_none(), "a shard stops once");
                self.leftovers = Some(leftovers.into_iter().map(|(id, payload)| format!("{id}: {payload}")).collect());
            }
        }
    }

    fn run(&mut self, slot: SlotId, message: &str) {
        let (id, _, incarnation) = self.shard.entity(slot).expect("only live entities are run");
        let id = id.clone();
        self.log.push(format!("{id}: {message}"));
        let mut outcome = Outcome::default();
        match message.split_once(':').unwrap_or((message, "")) {
            ("stop", _) => outcome.stop = true,
            ("passivate", _) => outcome.passivate = true,
            ("passivate+stop", _) => (outcome.passivate, outcome.stop) = (true, true),
            ("veto", _) => outcome.veto = Some(true),
            ("allow", _) => outcome.veto = Some(false),
            ("direct", _) => outcome.direct = true,
            ("fence", "") => outcome.fenced = true,
            ("fence", back) => {
                outcome.fenced = true;
                outcome.give_back = back.split(',').map(str::to_owned).collect();
            }
            ("suspend", how) => {
                outcome.suspend = Some(if how == "stoppable" { Suspension::Stoppable } else { Suspension::Closed });
                self.suspended.insert(id, (slot, incarnation));
            }
            ("self", message) => outcome.to_self.push(message.to_owned()),
            (timer @ ("timer" | "quiet"), message) => outcome.timers.push(TimerChange::Set {
                key: TimerKey::Name("t"),
                at: self.now + Duration::from_secs(1),
                payload: message.to_owned(),
                influences: timer == "timer",
            }),
            ("listen", seconds) => {
                let after = Duration::from_secs(seconds.parse().expect("a number of seconds"));
                outcome.receive_timeout = Some(Some(after));
            }
            ("deaf", _) => outcome.receive_timeout = Some(None),
            ("cancel", _) => outcome.timers.push(TimerChange::Cancel(TimerKey::Name("t"))),
            ("fail", _) => return self.fail(slot, FailureCause::Handler("asked to".into())),
            ("panic", _) => return self.fail(slot, FailureCause::Panic("asked to".into())),
            _ => return,
        }
        self.input(Input::Done { slot, outcome });
    }

    fn fail(&mut self, slot: SlotId, cause: FailureCause) {
        self.input(Input::Failed { slot, cause, payload: None });
    }

    fn stop(&mut self, deadline: Duration) {
        self.input(Input::Stop { deadline });
        self.turns();
    }

    #[track_caller]
    fn expect(&mut self, log: &[&str]) {
        assert_eq!(self.log, log);
        self.log.clear();
    }

    #[track_caller]
    fn expect_leftovers(&mut self, leftovers: &[&str]) {
        assert_eq!(self.leftovers.as_deref(), Some(&leftovers.iter().map(ToString::to_string).collect::<Vec<_>>()[..]));
        assert_eq!(self.shard.entity_count(), 0);
    }
}

#[test]
fn the_first_message_starts_the_entity_and_the_rest_find_it() {
    let mut world = World::new(|_| {});
    for message in ["a", "b"] {
        world.send("1", message);
    }
    world.send("2", "c");
    world.expect(&["1: start 1", "1: a", "1: b", "2: start 2", "2: c"]);
    assert_eq!(world.shard.entity_count(), 2);
}

/// sharding 60: a flood does not keep a neighbour from its turn.
#[test]
fn a_hot_entity_leaves_room_for_its_neighbours() {
    let mut world = World::new(|settings| settings.entity_throughput = 4);
    for n in 0..100 {
        world.send("hot", &n.to_string());
    }
    world.send("cold", "x");
    let before = world.log.iter().position(|line| line == "cold: x").unwrap();
    assert_eq!(before, 1 + 5 + 1, "a start, one and a turn of the hot one, a start: {:?}", world.log);
    world.send("other", "suspend");
    world.send("other", "y");
    world.turns();
    let hot: Vec<_> = world.log.iter().filter_map(|line| line.strip_prefix("hot: ")?.parse::<u32>().ok()).collect();
    assert_eq!(hot, (0..100).collect::<Vec<_>>(), "and nothing of the flood is lost or swapped");
}

/// sharding 60, for a flood larger than the hot entity's mailbox: the excess waits as well, up to what the shard's
/// inbox could have held; beyond that, messages are handled out of turn, and nothing is lost.
#[test]
fn scenario_60_a_flood_beyond_its_mailbox_leaves_room_for_neighbours_too() {
    for (inbox, out_of_turn) in [(100, 0), (30, 100 - 5 - 10 - 30)] {
        let mut world = World::new(|settings| {
            (settings.entity_throughput, settings.entity_mailbox_capacity) = (4, 10);
            settings.shard_inbox_capacity = inbox;
        });
        for n in 0..100 {
            world.send("hot", &n.to_string());
        }
        world.send("cold", "x");
        let before = world.log.iter().position(|line| line == "cold: x").unwrap();
        assert_eq!(before, 1 + 5 + out_of_turn + 1, "with {inbox} in the inbox: {:?}", world.log);
        world.turns();
        let hot: Vec<_> = world.log.iter().filter_map(|line| line.strip_prefix("hot: ")?.parse::<u32>().ok()).collect();
        assert_eq!(hot, (0..100).collect::<Vec<_>>(), "nothing of the flood is lost or swapped");
    }
}

/// sharding 60, by bytes.
#[test]
fn scenario_60_a_flood_beyond_the_bytes_of_its_mailbox_leaves_room_for_neighbours_too() {
    let mut world = World::new(|settings| {
        (settings.entity_throughput, settings.entity_mailbox_bytes, settings.shard_inbox_bytes) = (4, 20, 1_000);
    });
    for n in 10..99 {
        world.send("hot", &n.to_string());
    }
    world.send("cold", "x");
    let before = world.log.iter().position(|line| line == "cold: x").unwrap();
    assert_eq!(before, 1 + 5 + 1, "{:?}", world.log);
    world.turns();
    assert_eq!(world.log.len(), before + 1 + 89 - 5);
}

#[test]
fn ready_entities_take_turns() {
    let mut world = World::new(|settings| settings.entity_throughput = 2);
    for id in ["a", "b"] {
        world.send(id, "suspend");
        for n in 1..=3 {
            world.send(id, &n.to_string());
        }
    }
    world.resume("a", "r");
    world.resume("b", "r");
    world.log.clear();
    world.turns();
    world.expect(&["a: 1", "a: 2", "b: 1", "b: 2", "a: 3", "b: 3"]);
}

/// sharding 61: the result of a suspension is handled first.
#[test]
fn a_suspension_holds_messages_and_timers_and_its_result_goes_first() {
    let mut world = World::new(|_| {});
    world.send("1", "timer:t");
    world.send("1", "suspend");
    world.send("1", "m2");
    world.send("1", "m3");
    world.advance(Duration::from_secs(2));
    world.expect(&["1: start 1", "1: timer:t", "1: suspend"]);
    world.resume("1", "result");
    world.turns();
    world.expect(&["1: result", "1: m2", "1: m3", "1: t"]);
}

/// persistence §2.7, sharding §4.3: a stop request ends a recovery at once, if no message waits before it.
#[test]
fn a_stop_request_reaches_a_stoppable_suspension_that_nothing_waits_for() {
    let mut world = World::new(|_| {});
    world.stubborn.push("unwilling");
    for id in ["alone", "waited for", "unwilling"] {
        world.send(id, "suspend:stoppable");
    }
    world.send("closed", "suspend");
    world.send("waited for", "a");
    // The result of the entity's own work does not delay the stop request.
    let (slot, incarnation) = world.suspended["alone"];
    world.input(Input::Resumed { slot, incarnation, payload: "snapshot".into(), suspension: false });
    world.log.clear();
    world.stop(Duration::from_secs(55));
    world.expect(&["alone: on_stop", "alone: Stopped", "unwilling: on_stop"]);
    for id in ["waited for", "closed", "unwilling"] {
        world.resume(id, "r");
    }
    world.turns();
    world.log.sort();
    world.expect(&[
        "closed: Stopped",
        "closed: on_stop",
        "closed: r",
        "unwilling: r",
        "waited for: Stopped",
        "waited for: a",
        "waited for: on_stop",
        "waited for: r",
    ]);
    world.advance(Duration::from_secs(56));
    world.expect(&["1 overdue: unwilling", "unwilling: Forced"]);
    world.expect_leftovers(&[]);
}

/// A stop request queued before the suspension ends it too, as does a passivation.
#[test]
fn a_queued_stop_request_ends_a_stoppable_suspension_that_begins() {
    let mut world = World::new(|_| {});
    world.send("1", "suspend");
    world.send("1", "suspend:stoppable");
    world.resume("1", "passivate");
    world.send("1", "later");
    world.turns();
    world.expect(&[
        "1: start 1",
        "1: suspend",
        "1: passivate",
        "1: suspend:stoppable",
        "1: on_stop",
        "1: Stopped",
        "1: start 2",
        "1: later",
    ]);
}

/// sharding 62: a replaced or cancelled timer's message is not delivered, even if it is queued.
#[test]
fn a_queued_timer_can_still_be_replaced_or_cancelled() {
    let mut world = World::new(|_| {});
    world.send("1", "timer:old");
    world.send("1", "suspend");
    world.advance(Duration::from_secs(2));
    world.send("1", "x");
    world.resume("1", "timer:new");
    world.turns();
    world.expect(&["1: start 1", "1: timer:old", "1: suspend", "1: timer:new", "1: x"]);
    world.advance(Duration::from_secs(2));
    world.send("1", "timer:never");
    world.send("1", "cancel");
    world.advance(Duration::from_secs(2));
    world.expect(&["1: new", "1: timer:never", "1: cancel"]);
}

/// sharding 53, 55: messages behind the stop request go to a fresh incarnation, in order.
#[test]
fn passivation_lets_queued_messages_through_and_keeps_later_ones() {
    let mut world = World::new(|_| {});
    world.send("1", "passivate");
    world.send("1", "later 1");
    world.send("1", "later 2");
    world.turns();
    world.expect(&["1: start 1", "1: passivate", "1: on_stop", "1: Stopped", "1: start 2", "1: later 1", "1: later 2"]);
}

/// sharding 54: passivating and stopping in one handler does not get stuck, and nothing is left of the stop request.
#[test]
fn an_entity_that_passivates_and_stops_in_one_handler_just_stops() {
    // The next message comes afterwards, or waits in the queue already.
    for waits in [false, true] {
        let mut world = World::new(|_| {});
        if waits {
            world.send("1", "suspend");
            world.send("1", "passivate+stop");
            world.send("1", "hello");
            world.resume("1", "r");
            world.turns();
            world.log.drain(1..3);
        } else {
            world.send("1", "passivate+stop");
            world.send("1", "hello");
        }
        world.turns();
        world.advance(Duration::from_secs(120));
        world.expect(&["1: start 1", "1: passivate+stop", "1: Stopped", "1: start 2", "1: hello"]);
    }
}

#[test]
fn a_stop_makes_the_stop_request_pointless() {
    let mut world = World::new(|_| {});
    world.send("1", "suspend");
    world.send("1", "a");
    world.resume("1", "passivate");
    world.send("1", "b");
    world.send("1", "c");
    world.turns();
    world.expect(&[
        "1: start 1",
        "1: suspend",
        "1: passivate",
        "1: a",
        "1: on_stop",
        "1: Stopped",
        "1: start 2",
        "1: b",
        "1: c",
    ]);
    world.send("2", "stop");
    world.send("2", "again");
    world.turns();
    world.expect(&["2: start 3", "2: stop", "2: Stopped", "2: start 4", "2: again"]);
}

#[test]
fn an_entity_that_ignores_its_stop_request_is_forced() {
    let mut world = World::new(|settings| settings.passivation_stop_timeout = Duration::from_secs(3));
    world.stubborn.push("1");
    world.send("1", "passivate");
    world.turns();
    world.send("1", "later");
    world.advance(Duration::from_secs(2));
    world.expect(&["1: start 1", "1: passivate", "1: on_stop"]);
    world.advance(Duration::from_secs(2));
    world.expect(&["1: Forced", "1: start 2", "1: later"]);
}

/// sharding 64: each entity ends more than a second after its last message, and the next message starts it again.
#[test]
fn an_entity_is_idle_from_its_last_message_on() {
    let idle = Duration::from_secs(1);
    let mut world = World::with(Passivation::idle_after(idle), |_| {});
    world.send("1", "a");
    world.send("2", "a");
    let mut ended_after = BTreeMap::new();
    for step in 1..=40_u32 {
        world.log.clear();
        world.advance(idle / 10);
        world.shard.observe(world.now);
        for line in world.log.drain(..).filter(|line| line.ends_with("Stopped")) {
            assert_eq!(ended_after.insert(line.clone(), step), None, "{line} once");
        }
        if step.is_multiple_of(5) && step <= 20 {
            world.send("2", "b");
        }
    }
    // In tenths of a second: the only message of 1 came at 0, the last one of 2 at 20.
    assert!((11..=12).contains(&ended_after["1: Stopped"]), "{ended_after:?}");
    assert!((31..=32).contains(&ended_after["2: Stopped"]), "{ended_after:?}");
    assert_eq!(world.shard.entity_count(), 0);
    world.log.clear();
    for id in ["1", "2"] {
        world.send(id, "again");
    }
    world.expect(&["1: start 3", "1: again", "2: start 4", "2: again"]);
}

/// sharding 64: activity counts, vetoes hold.
#[test]
fn idle_entities_are_passivated() {
    let idle = Duration::from_secs(1);
    let mut world = World::with(Passivation::idle_after(idle), |_| {});
    world.send("idle", "a");
    world.send("busy", "a");
    world.send("vetoed", "veto");
    world.log.clear();
    for _ in 0..4 {
        world.advance(idle / 2);
        world.shard.observe(world.now);
        world.send("busy", "b");
    }
    world.log.retain(|line| !line.ends_with(": b"));
    world.expect(&["idle: on_stop", "idle: Stopped"]);
}

/// Lists the fate of an entity with a timer, spawned work and a queue once the entity fails.
fn after_failure(directive: Directive, fail: impl FnOnce(&mut World)) -> Vec<String> {
    let mut world = World::supervised(Supervision::always(directive), |_| {});
    world.send("1", "timer:t");
    world.send("1", "suspend");
    world.log.clear();
    let (slot, incarnation) = world.suspended["1"];
    fail(&mut world);
    world.turns();
    world.input(Input::Resumed { slot, incarnation, payload: "work".into(), suspension: false });
    world.advance(Duration::from_secs(2));
    world.send("1", "later");
    world.log
}

/// sharding 58: the cells of the table in §4.6 for failures of a handler and of suspended work.
#[test]
fn each_directive_keeps_and_drops_what_the_table_says() {
    let handler = |failure: &'static str| {
        move |world: &mut World| {
            for message in [failure, "a", "b"] {
                world.send("1", message);
            }
            world.resume("1", "r");
        }
    };
    let resumed = |failure: &str| vec!["1: r".to_owned(), format!("1: {failure}")];
    let kept = ["1: a", "1: b", "1: work", "1: t", "1: later"];
    let restarted = ["1: restart 2", "1: a", "1: b", "late work", "1: later"];
    let stopped = ["1: Failed", "1: start 2", "1: a", "1: b", "late work", "1: later"];
    let table: [(Directive, &'static str, &[&str]); 6] = [
        (Directive::Resume, "fail", &kept),
        // A panic may have left the state half changed.
        (Directive::Resume, "panic", &restarted),
        (Directive::Restart, "fail", &restarted),
        (Directive::Restart, "panic", &restarted),
        (Directive::Stop, "fail", &stopped),
        (Directive::Stop, "panic", &stopped),
    ];
    for (directive, failure, rest) in table {
        let expected: Vec<_> = resumed(failure).into_iter().chain(rest.iter().map(ToString::to_string)).collect();
        assert_eq!(after_failure(directive, handler(failure)), expected, "{directive:?} after {failure}");
    }
    let table: [(Directive, &[&str]); 3] =
        [(Directive::Resume, &restarted), (Directive::Restart, &restarted), (Directive::Stop, &stopped)];
    for (directive, expected) in table {
        let log = after_failure(directive, |world| {
            for message in ["a", "b"] {
                world.send("1", message);
            }
            let (slot, _) = world.suspended["1"];
            world.fail(slot, FailureCause::Suspension("asked to".into()));
        });
        assert_eq!(log, expected, "{directive:?} after a failed suspension");
    }
}

/// sharding 58: an entity that cannot start is stopped whatever the decider says; each attempt loses one message.
#[test]
fn an_entity_whose_start_fails_is_stopped_whatever_the_directive() {
    for directive in [Directive::Resume, Directive::Restart, Directive::Stop] {
        let mut world = World::supervised(Supervision::always(directive), |_| {});
        world.broken.push("1");
        world.send("1", "a");
        world.send("1", "b");
        world.turns();
        world.expect(&["1: a dead: EntityStartFailed", "1: Failed", "1: b dead: EntityStartFailed", "1: Failed"]);
        world.broken.clear();
        world.send("1", "c");
        world.expect(&["1: start 3", "1: c"]);
    }
}

/// sharding 58: the eleventh restart in a minute is a stop, by the default limits.
#[test]
fn the_eleventh_restart_in_a_minute_is_a_stop() {
    let mut world = World::new(|_| {});
    for restart in 1..=10 {
        world.send("1", "fail");
        world.advance(Duration::from_secs(5));
        assert_eq!(world.log.last(), Some(&format!("1: restart {}", restart + 1)));
    }
    world.log.clear();
    world.send("1", "fail");
    world.send("1", "a");
    world.turns();
    world.expect(&["1: fail", "1: Failed", "1: start 12", "1: a"]);
}

/// sharding 58: restarts that lie a minute back do not count.
#[test]
fn a_restart_window_that_has_passed_allows_the_next_restart() {
    let mut world = World::new(|_| {});
    for restart in 1..=30 {
        world.send("1", "fail");
        world.turns();
        // The tenth restart before this one is 61 s back.
        world.advance(Duration::from_millis(6_100));
        assert_eq!(world.log.last(), Some(&format!("1: restart {}", restart + 1)));
    }
}

/// persistence §2.4: messages that a replaced entity took and did not handle go to its successor, first and once.
#[test]
fn messages_given_back_by_a_replaced_entity_are_handled_first() {
    let mut world = World::new(|_| {});
    world.given_back = vec!["g1", "g2"];
    world.send("1", "suspend");
    world.send("1", "fail");
    world.send("1", "b");
    world.resume("1", "r");
    world.log.clear();
    world.turns();
    world.expect(&["1: fail", "1: restart 2", "1: g1", "1: g2", "1: b"]);
}

/// persistence §2.6: an entity that lost its state cannot be resumed.
#[test]
fn an_entity_that_lost_its_state_is_replaced_whatever_the_decider_says() {
    let resume = Supervision::always(Directive::Resume);
    assert_eq!(resume.decide(&FailureCause::Handler("asked to".into())), Directive::Resume);
    assert_eq!(resume.decide(&FailureCause::StateLost("asked to".into())), Directive::Restart);
    let stop = Supervision::always(Directive::Stop);
    assert_eq!(stop.decide(&FailureCause::StateLost("asked to".into())), Directive::Stop);
}

#[test]
fn an_entity_that_cannot_start_costs_one_message_each_time() {
    let mut world = World::new(|_| {});
    world.broken.push("1");
    world.send("1", "a");
    world.send("1", "b");
    world.turns();
    world.expect(&["1: a dead: EntityStartFailed", "1: Failed", "1: b dead: EntityStartFailed", "1: Failed"]);
    assert_eq!(world.shard.entity_count(), 0);
}

/// sharding §4.5: the messages that wait for passivated entities have one bound for the whole shard.
#[test]
fn messages_for_passivated_entities_are_bounded() {
    let mut world = World::new(|settings| settings.buffer_size = 3);
    world.stubborn.extend(["1", "2"]);
    for id in ["1", "2"] {
        world.send(id, "passivate");
    }
    world.turns();
    world.log.clear();
    for id in ["1", "2", "1", "2", "1"] {
        world.send(id, "a");
    }
    world.expect(&["2: a dead: BufferFull", "1: a dead: BufferFull"]);
    world.advance(Duration::from_secs(61));
    world.log.retain(|line| line.ends_with(": a"));
    world.log.sort();
    world.expect(&["1: a", "1: a", "2: a"]);
    for id in ["1", "2"] {
        world.send(id, "passivate");
        world.turns();
    }
    world.log.clear();
    world.send("1", "b");
    world.expect(&[]);
    world.input(Input::Kill);
    assert_eq!(world.leftovers.as_deref(), Some(&["1: b".to_owned()][..]));
}

#[test]
fn a_full_mailbox_drops_the_newest_message() {
    let mut world = World::new(|settings| settings.entity_mailbox_capacity = 2);
    world.send("1", "suspend");
    for message in ["a", "b", "c"] {
        world.send("1", message);
    }
    world.expect(&["1: start 1", "1: suspend", "1: c dead: EntityMailboxFull"]);
    world.resume("1", "r");
    world.turns();
    world.expect(&["1: r", "1: a", "1: b"]);
}

#[test]
fn a_fenced_entity_keeps_its_messages_until_the_home_is_confirmed() {
    let mut world = World::new(|_| {});
    world.send("1", "fence");
    world.send("1", "a");
    world.turns();
    world.expect(&["1: start 1", "1: fence", "1: Fenced"]);
    world.advance(Duration::from_secs(3));
    world.expect(&["1: start 2", "1: a"]);
    world.send("2", "fence");
    world.send("2", "b");
    world.input(Input::Kill);
    world.expect_leftovers(&["2: b"]);
}

/// persistence §2.6, sharding §4.6: messages that a fenced entity gives back wait before the rest, here or in the new
/// home.
#[test]
fn messages_given_back_by_a_fenced_entity_go_to_its_successor() {
    let mut world = World::new(|_| {});
    world.send("1", "suspend");
    world.send("1", "a");
    world.resume("1", "fence:g1,g2");
    world.advance(Duration::from_secs(3));
    world.expect(&["1: start 1", "1: suspend", "1: fence:g1,g2", "1: Fenced", "1: start 2", "1: g1", "1: g2", "1: a"]);
    world.send("2", "fence:g3");
    world.send("2", "b");
    world.input(Input::Kill);
    world.expect_leftovers(&["2: g3", "2: b"]);
    let mut world = World::new(|_| {});
    world.send("3", "suspend");
    world.send("3", "c");
    world.stop(Duration::from_secs(55));
    world.resume("3", "fence:g4");
    world.turns();
    world.expect_leftovers(&["3: g4", "3: c"]);
}

#[test]
fn results_of_an_older_incarnation_are_discarded() {
    let mut world = World::new(|_| {});
    world.send("1", "suspend");
    let (slot, incarnation) = world.suspended["1"];
    world.input(Input::Failed { slot, cause: FailureCause::Suspension("lost".into()), payload: None });
    world.resume("1", "result");
    world.input(Input::Resumed { slot, incarnation, payload: "spawned".into(), suspension: false });
    world.expect(&["1: start 1", "1: suspend", "1: restart 2", "late result", "late spawned"]);
}

#[test]
fn a_direct_message_reaches_one_incarnation_only() {
    let mut world = World::new(|_| {});
    world.send("1", "direct");
    let direct = world.shard.identity(SlotId(0)).unwrap().1;
    world.input(Input::Direct { incarnation: direct, payload: "hello".into() });
    world.turns();
    world.send("1", "stop");
    world.send("1", "x");
    world.input(Input::Direct { incarnation: direct, payload: "hello again".into() });
    world.expect(&[
        "1: start 1",
        "1: direct",
        "1: hello",
        "1: stop",
        "1: Stopped",
        "1: start 2",
        "1: x",
        "hello again dead: StaleRecipient",
    ]);
}

/// sharding §2.9: queued messages are handled first; messages that wait for an ended entity are leftovers.
#[test]
fn the_stop_marker_ends_every_entity_and_returns_what_was_never_handled() {
    let mut world = World::new(|_| {});
    world.send("idle", "a");
    world.send("queued", "suspend");
    world.send("queued", "b");
    world.send("gone", "passivate");
    world.send("gone", "c");
    world.send("gone", "d");
    world.log.clear();
    world.stop(Duration::from_secs(55));
    world.expect(&["idle: on_stop", "idle: Stopped", "gone: on_stop", "gone: Stopped"]);
    world.send("idle", "too late");
    world.resume("queued", "r");
    world.turns();
    world.expect(&["queued: r", "queued: b", "queued: on_stop", "queued: Stopped"]);
    world.expect_leftovers(&["gone: c", "gone: d", "idle: too late"]);
}

#[test]
fn an_empty_shard_stops_at_once() {
    let mut world = World::new(|_| {});
    world.stop(Duration::from_secs(55));
    world.expect_leftovers(&[]);
}

#[test]
fn the_deadline_of_a_handoff_forces_what_is_left() {
    let mut world = World::new(|_| {});
    world.stubborn.push("1");
    world.send("1", "a");
    world.send("2", "suspend");
    world.send("2", "b");
    world.stop(Duration::from_secs(55));
    world.log.clear();
    world.advance(Duration::from_secs(56));
    world.expect(&["2 overdue: 1, 2", "2: overdue Suspension", "1: Forced", "2: Forced"]);
    world.expect_leftovers(&["2: b"]);
}

#[test]
fn a_kill_ends_everything_without_a_stop_request() {
    let mut world = World::new(|_| {});
    world.send("1", "a");
    world.send("2", "suspend");
    world.send("2", "b");
    world.send("3", "passivate");
    world.send("3", "c");
    world.log.clear();
    world.stop(Duration::from_secs(55));
    world.input(Input::Kill);
    assert!(world.log.contains(&"2: Killed".to_owned()));
    world.expect_leftovers(&["3: c", "2: b"]);
}

/// More entities than one step touches.
#[test]
fn many_entities_stop_in_steps() {
    let mut world = World::new(|_| {});
    for n in 0..5000 {
        world.send(&n.to_string(), "a");
    }
    world.input(Input::Stop { deadline: Duration::from_secs(55) });
    assert!(world.leftovers.is_none());
    world.turns();
    world.expect_leftovers(&[]);
}
