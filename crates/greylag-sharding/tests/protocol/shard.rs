//! A shard as text, under a shell whose entities do what their messages say.
//!
//! The first case makes the shard: `shard [remembers] [idle=1s] [limit=10] [throughput=4] [buffer=10]
//! [on-failure=restart]`. A message is a word: `stop`, `passivate`, `suspend`, `fail`, `panic`, `fence` make its entity
//! do so, `self:x` makes it send `x` to itself, `timer:x` asks for `x` in a second, `veto` and `allow` are about
//! passivation; every other word is only handled. `broken`, `mended`, `stubborn` and `meek` set for an entity whether
//! its factory fails and whether it ignores stop requests. After each case the shard has all turns that it asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use greylag_sharding::host::Suspension;
use greylag_sharding::ids::EntityId;
use greylag_sharding::machine::shard::{Effect, Input, Outcome, Shard, SlotId, TimerChange, Weigh};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{Backoff, Directive, FailureCause, Passivation, Supervision, TimerKey};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Word(String);

impl Weigh for Word {
    fn weight(&self) -> usize {
        self.0.len()
    }
}

/// See the module's description.
pub(crate) struct ShardWorld {
    start: Instant,
    now: Instant,
    machine: Shard<String, Word>,
    suspended: BTreeMap<String, (SlotId, u64)>,
    broken: BTreeSet<String>,
    stubborn: BTreeSet<String>,
    /// The write under way.
    write: Option<u64>,
    text: String,
}

fn id(text: &str) -> EntityId {
    EntityId::new(text).expect("valid")
}

fn ids(case: &Case<'_>) -> Vec<EntityId> {
    case.arg("ids").unwrap_or("").split(',').filter(|text| !text.is_empty()).map(id).collect()
}

fn show(ids: &[EntityId]) -> String {
    ids.iter().map(EntityId::as_str).collect::<Vec<_>>().join(",")
}

impl ShardWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let now = Instant::now();
        let defaults = ShardingSettings::test();
        let mut settings = ShardingSettings { buffer_size: case.parse("buffer").unwrap_or(100), ..defaults };
        if let Some(throughput) = case.parse("throughput") {
            settings.entity_throughput = throughput;
        }
        settings.remember.enabled = case.flag("remembers");
        let mut passivation = match case.parse("limit") {
            Some(limit) => Passivation::least_recently_used(limit),
            None => Passivation::none(),
        };
        if let Some(idle) = case.duration("idle") {
            passivation = passivation.with_idle(idle);
        }
        let supervision = Supervision::always(match case.arg("on-failure") {
            None | Some("restart") => Directive::Restart,
            Some("resume") => Directive::Resume,
            Some("stop") => Directive::Stop,
            Some("escalate") => Directive::Escalate,
            Some("backoff") => Directive::Backoff(Backoff { jitter: 0.0, ..Backoff::default() }),
            Some(other) => panic!("line {}: no directive {other}", case.line),
        });
        let mut machine = Shard::new(settings, supervision, &passivation, 7, 1, now);
        if case.flag("remembers") {
            machine = machine.remember();
        }
        Self {
            start: now,
            now,
            machine,
            suspended: BTreeMap::new(),
            broken: BTreeSet::new(),
            stubborn: BTreeSet::new(),
            write: None,
            text: String::new(),
        }
    }

    /// Runs a case; returns the effects, one a line.
    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let first = || case.positional(0).expect("an entity").to_owned();
        let number = |write: &mut Option<u64>| write.take().expect("a write is under way");
        match case.command {
            "send" => {
                let payload = Word(case.positional(1).expect("a message").to_owned());
                self.tell(Input::Deliver { id: id(&first()), payload, activity: !case.flag("quiet") });
            }
            "resume" => {
                let (slot, incarnation) = self.suspended.remove(&first()).expect("suspended before");
                let payload = Word(case.positional(1).expect("a result").to_owned());
                self.tell(Input::Resumed { slot, incarnation, payload, suspension: true });
            }
            "begin" => self.tell(Input::Begin),
            "loaded" => self.tell(Input::Loaded { ids: ids(case) }),
            "load-failed" => self.tell(Input::LoadFailed),
            "stored" => {
                let number = number(&mut self.write);
                self.tell(Input::Stored { number });
            }
            "store-failed" => {
                let number = number(&mut self.write);
                self.tell(Input::StoreFailed { number });
            }
            "moved" => self.tell(Input::Moved { ids: ids(case) }),
            "limit" => self.tell(Input::Limit { entities: case.parse("entities").expect("a number") }),
            "stop" => self.tell(Input::Stop { deadline: case.duration("deadline").expect("a time") }),
            "kill" => self.tell(Input::Kill),
            "after" => self.pass(transcript::duration(&first()).expect("a duration")),
            "broken" => drop(self.broken.insert(first())),
            "mended" => drop(self.broken.remove(&first())),
            "stubborn" => drop(self.stubborn.insert(first())),
            "meek" => drop(self.stubborn.remove(&first())),
            other => panic!("line {}: no command {other}", case.line),
        }
        if self.text.is_empty() {
            format!("nothing ({:?} after the start)\n", self.now - self.start)
        } else {
            self.take()
        }
    }

    /// The lines since the last call.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn say(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("a string takes all");
    }

    /// Lets time pass from deadline to deadline, each with the turns that follow.
    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.machine.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.tell(Input::Tick);
            assert_moved("shard", self.now, self.machine.next_deadline());
        }
        self.now = end;
    }

    /// Passes an input from outside, with the turns that follow.
    fn tell(&mut self, input: Input<Word>) {
        self.machine.observe(self.now);
        self.handle(input);
        while self.machine.has_work() {
            self.handle(Input::Turn);
        }
    }

    fn handle(&mut self, input: Input<Word>) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        effects.into_iter().for_each(|effect| self.execute(effect));
    }

    fn execute(&mut self, effect: Effect<String, Word>) {
        match effect {
            Effect::Start { slot, payload } => self.make(slot, payload),
            Effect::Restart { slot } => {
                self.say(&format!("{} is replaced", self.name(slot)));
                self.handle(Input::GivenBack { slot, payloads: Vec::new() });
                self.make(slot, None);
            }
            Effect::Run { slot, payload } => self.handled(slot, &payload.0),
            Effect::NotifyReceiveTimeout { slot } => self.handled(slot, "silence"),
            Effect::SendStop { slot } => {
                let name = self.name(slot);
                self.say(&format!("{name} is asked to stop"));
                let stop = !self.stubborn.contains(&name);
                self.handle(Input::Done { slot, outcome: Outcome { stop, ..Outcome::default() } });
            }
            Effect::End { id, why, .. } => self.say(&format!("{id} ends: {why:?}")),
            Effect::Failed { id, cause, verdict } => self.say(&format!("{id} fails: {cause}, {verdict:?}")),
            Effect::DeadLetter { id, payload, reason } => {
                self.say(&format!("dead letter {} of {id}: {reason}", payload.0));
            }
            Effect::Late(payload) => self.say(&format!("late {}", payload.0)),
            Effect::Overdue { id, what } => self.say(&format!("overdue {what:?}: {id}")),
            Effect::StopOverdue { entities, ids } => {
                let ids: Vec<&str> = ids.iter().map(EntityId::as_str).collect();
                self.say(&format!("{entities} entities are overdue, such as {}", ids.join(", ")));
            }
            Effect::DropDirect { payload, reason } => self.say(&format!("dead letter {}: {reason}", payload.0)),
            Effect::Escalate => self.say("the shard fails"),
            Effect::Load => self.say("load"),
            Effect::Store { number, update } => {
                assert!(self.write.replace(number).is_none(), "one write is under way");
                self.say(&format!("store {number}: starts [{}] stops [{}]", show(&update.starts), show(&update.stops)));
            }
            Effect::Initialized { remembered } => self.say(&format!("initialized, to start: [{}]", show(&remembered))),
            Effect::Notice(notice) => self.say(&format!("{notice:?}")),
            Effect::Stopped(leftovers) => {
                let leftovers: Vec<_> =
                    leftovers.iter().map(|(id, payload)| format!("{} of {id}", payload.0)).collect();
                self.say(&format!("the shard has stopped, left over: [{}]", leftovers.join(", ")));
            }
        }
    }

    fn name(&self, slot: SlotId) -> String {
        self.machine.identity(slot).expect("its entity is there").0.to_string()
    }

    /// Runs the factory and `on_start`.
    fn make(&mut self, slot: SlotId, payload: Option<Word>) {
        let name = self.name(slot);
        if self.broken.contains(&name) {
            self.say(&format!("{name} cannot start"));
            return self.handle(Input::Failed { slot, cause: FailureCause::Start("broken".into()), payload });
        }
        let incarnation = self.machine.identity(slot).expect("its entity is there").1 & 0xffff;
        self.say(&format!("{name} starts, incarnation {incarnation}"));
        self.machine.place(slot, name);
        self.handle(Input::Started { slot, outcome: Outcome::default(), payload });
    }

    /// Runs a handler that does what the message says.
    fn handled(&mut self, slot: SlotId, message: &str) {
        let (name, incarnation) = self.machine.identity(slot).map(|(id, at)| (id.to_string(), at)).expect("it lives");
        self.say(&format!("{name} handles {message}"));
        let mut outcome = Outcome::default();
        match message.split_once(':').unwrap_or((message, "")) {
            ("stop", _) => outcome.stop = true,
            ("passivate", _) => outcome.passivate = true,
            ("fence", _) => outcome.fenced = true,
            ("veto", _) => outcome.veto = Some(true),
            ("allow", _) => outcome.veto = Some(false),
            ("self", rest) => outcome.to_self.push(Word(rest.to_owned())),
            ("timer", rest) => outcome.timers.push(TimerChange::Set {
                key: TimerKey::Name("t"),
                at: self.now + Duration::from_secs(1),
                payload: Word(rest.to_owned()),
                influences: true,
            }),
            ("suspend", _) => {
                outcome.suspend = Some(Suspension::Closed);
                self.suspended.insert(name, (slot, incarnation));
            }
            ("fail", _) => return self.fail(slot, FailureCause::Handler("asked to".into())),
            ("panic", _) => return self.fail(slot, FailureCause::Panic("asked to".into())),
            _ => return,
        }
        self.handle(Input::Done { slot, outcome });
    }

    fn fail(&mut self, slot: SlotId, cause: FailureCause) {
        self.handle(Input::Failed { slot, cause, payload: None });
    }
}
