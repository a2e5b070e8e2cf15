//! The manager of a daemon process as text: its inputs, and its effects.
//!
//! Workers are written by their ids. Effects come one per line, in their order. Source: sharding §6.2.

use std::fmt::Write;
use std::time::{Duration, Instant};

use greylag_sharding::machine::daemon::{
    Answer, DaemonManager, DaemonManagerConfig, DaemonRecord, Effect, Input, Question,
};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon_protocol"), || {
        let mut world = World::new();
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    start: Instant,
    now: Instant,
    manager: DaemonManager,
    effects: Vec<Effect>,
    /// The record that the manager last asked to write.
    written: Option<DaemonRecord>,
}

impl World {
    fn new() -> Self {
        let (mut effects, start) = (Vec::new(), Instant::now());
        let config = DaemonManagerConfig {
            initial: 4,
            most: 12,
            keep_alive_interval: Duration::from_secs(10),
            throttle_interval: Duration::from_millis(100),
            retry_interval: Duration::from_secs(2),
            stop_retry_interval: Duration::from_secs(15),
        };
        let manager = DaemonManager::new(config, &mut effects);
        Self { start, now: start, manager, effects, written: None }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        let number = |name| case.parse(name).unwrap_or_else(|| panic!("{name}=number"));
        match case.command {
            "start" => {}
            "loaded" => {
                let record = case.arg("revision").map(|revision| DaemonRecord {
                    revision: revision.parse().expect("a number"),
                    count: number("count"),
                    previous: number("previous"),
                    is_complete: !case.flag("incomplete"),
                    started_ms: 500,
                });
                self.tell(Input::Loaded { record, wall_ms: self.wall_ms() });
            }
            "not-loaded" => self.tell(Input::NotLoaded),
            "change" => self.ask(number("request"), Question::Change(number("to"))),
            "number" => self.ask(number("request"), Question::Number),
            "committed" => self.answer_commit(Input::Committed),
            "not-committed" => self.answer_commit(Input::NotCommitted),
            "superseded" => self.tell(Input::Superseded),
            "stopped" => {
                for shard in case.arg("shards").expect("shards").split(',') {
                    self.tell(Input::ShardStopped(shard.parse().expect("a number")));
                }
            }
            "after" => {
                let time = transcript::duration(case.positional(0).expect("a time")).expect("a duration");
                return self.pass(time);
            }
            other => panic!("no command {other}"),
        }
        self.show("")
    }

    fn ask(&mut self, request: u32, question: Question) {
        let wall_ms = self.wall_ms();
        self.tell(Input::Asked { request: u64::from(request), question, wall_ms });
    }

    fn answer_commit(&mut self, input: fn(DaemonRecord) -> Input) {
        let record = self.written.expect("something was written");
        self.tell(input(record));
    }

    fn wall_ms(&self) -> u64 {
        1_000 + u64::try_from((self.now - self.start).as_millis()).expect("short")
    }

    fn tell(&mut self, input: Input) {
        self.manager.handle(self.now, input, &mut self.effects);
    }

    /// Lets time pass, and ticks as often as the manager wants.
    fn pass(&mut self, time: Duration) -> String {
        let end = self.now + time;
        let mut text = String::new();
        while let Some(at) = self.manager.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.tell(Input::Tick);
            assert_moved("manager", self.now, self.manager.next_deadline());
            let at = format!("{:.2}s ", (self.now - self.start).as_secs_f64());
            text += &self.show(&at);
        }
        self.now = end;
        if text.is_empty() { "nothing\n".to_owned() } else { text }
    }

    fn show(&mut self, at: &str) -> String {
        let mut text = String::new();
        for effect in std::mem::take(&mut self.effects) {
            let line = match effect {
                Effect::Load => "load".to_owned(),
                Effect::Commit(record) => {
                    self.written = Some(record);
                    let what = if record.is_complete { "complete" } else { "incomplete" };
                    let DaemonRecord { revision, count, previous, started_ms, .. } = record;
                    format!("commit revision {revision}: {count} after {previous}, {what}, decided at {started_ms}")
                }
                Effect::Start(id) => format!("start {id}"),
                Effect::StopShards(shards) => format!("stop shards {shards:?}"),
                Effect::Reply { request, answer } => format!("reply to {request}: {}", show_answer(answer)),
            };
            writeln!(text, "{at}{line}").expect("a string takes all");
        }
        if text.is_empty() { "nothing\n".to_owned() } else { text }
    }
}

fn show_answer(answer: Answer) -> String {
    match answer {
        Answer::Number(number) => {
            let under_way = if number.rescale_in_progress { ", a change is under way" } else { "" };
            format!("{} since {}, revision {}{under_way}", number.count, number.started_ms, number.revision)
        }
        other => format!("{other:?}"),
    }
}
