//! Transcripts of the pure machines, see `tests/protocol/*.txt`: a file drives the association unless it begins with
//! `machine reliable` or `machine watch`.

#[path = "protocol/reliable.rs"]
mod reliable;
#[path = "protocol/watch.rs"]
mod watch;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use greylag_core::{Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::transcript::{self, Case};
use greylag_transport::association::{Association, Effect, Event, Input};
use greylag_transport::{Holder, Lane, QuarantineReason, RejectCode, Replacers, TransportSettings};

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world: Box<dyn Machine> = Box::new(World::new());
        move |case: &Case<'_>| -> String {
            if case.command == "machine" {
                world = match case.positional(0) {
                    Some("reliable") => Box::new(reliable::World::new(case)),
                    Some("watch") => Box::new(watch::World::new(case)),
                    _ => panic!("line {}: which machine?", case.line),
                };
                return "ready\n".to_owned();
            }
            let output = world.run(case);
            if output.is_empty() { "nothing\n".to_owned() } else { output }
        }
    });
}

/// A machine that a transcript drives.
trait Machine {
    /// Runs a case; returns the effects, a line each.
    fn run(&mut self, case: &Case<'_>) -> String;
}

/// Ticks a machine at its deadlines until `until`.
fn advance(
    start: Instant,
    now: &mut Duration,
    until: Duration,
    mut deadline: impl FnMut() -> Option<Instant>,
    mut tick: impl FnMut(Duration),
) {
    while let Some(at) = deadline() {
        let at = at.saturating_duration_since(start);
        if at > until {
            break;
        }
        *now = (*now).max(at);
        tick(*now);
    }
    *now = until;
}

/// One association, and the time since it began.
struct World {
    machine: Association,
    /// Whether an item was written since the machine last asked.
    used: bool,
    start: Instant,
    now: Duration,
}

impl World {
    fn new() -> Self {
        // No jitter, so that the transcripts show exact pauses.
        let settings = TransportSettings { reconnect_backoff_jitter: 0.0, ..TransportSettings::new("shop") };
        Self { machine: Association::new(settings, 1), used: false, start: Instant::now(), now: Duration::ZERO }
    }

    fn advance(&mut self, until: Duration, output: &mut String) {
        while let Some(at) = self.machine.next_deadline() {
            let at = at.saturating_duration_since(self.start);
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            self.feed(Input::Tick, output);
        }
        self.now = until;
    }

    fn feed(&mut self, input: Input, output: &mut String) {
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        self.machine.handle(self.start + self.now, input, &mut effects);
        if ticks {
            assert_moved("association", self.start + self.now, self.machine.next_deadline());
        }
        for effect in effects {
            if let Effect::AskTraffic { lane, seq } = effect {
                let any = std::mem::take(&mut self.used);
                self.feed(Input::Traffic { lane, seq, any }, output);
                continue;
            }
            writeln!(output, "{:.2}s {}", self.now.as_secs_f64(), show(&effect)).expect("a string takes all");
        }
    }
}

impl Machine for World {
    fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        if case.command == "traffic" {
            self.used = true;
        } else if case.command == "advance" {
            let until = self.now + transcript_duration(case);
            self.advance(until, &mut output);
        } else {
            let input = input(case);
            self.feed(input, &mut output);
        }
        output
    }
}

fn transcript_duration(case: &Case<'_>) -> Duration {
    case.duration("by").expect("advance by=<duration>")
}

fn input(case: &Case<'_>) -> Input {
    let lane = match case.arg("lane") {
        Some("control") | None => Lane::CONTROL,
        Some("large") => Lane::LARGE,
        Some(_) => Lane::ordinary(0),
    };
    let seq = case.parse("seq").unwrap_or(0);
    let uid = Uid::new(case.parse("uid").unwrap_or(1)).expect("not zero");
    let host_id = case.arg("host").map(str::to_owned);
    let harmless = case.arg("harmless").is_some();
    let reason = QuarantineReason::RemovedFromMembership;
    match case.command {
        "wanted" => Input::Wanted { lane },
        "accepted" => Input::Accepted { lane, seq, uid, host_id },
        "rejected" => {
            let code = match case.arg("code") {
                Some("terminating") => RejectCode::Terminating,
                Some("quarantined") => RejectCode::Quarantined,
                Some("not_ready") => RejectCode::NotReady,
                _ => RejectCode::WrongCluster,
            };
            let reason = (code == RejectCode::Quarantined && !harmless).then_some(reason);
            let holder = case.parse("holder").map(member);
            Input::Rejected { lane, seq, code, by: Some(uid), reason, holder, detail: "ours and theirs".to_owned() }
        }
        "failed" => Input::Failed { lane, seq },
        "hello" => Input::Hello { uid, host_id },
        "holders" => Input::Holders { holders: (0..).map_while(|index| case.positional(index)).map(holder).collect() },
        "ask" => Input::Ask,
        "intruded" => Input::Intruded { uid },
        "told" => Input::ToldQuarantined { by: uid, reason },
        "terminating" => Input::Terminating { uid },
        "quarantine" => Input::Quarantine { uid, reason, harmless },
        "tombstone" => Input::Tombstones { uids: [uid].into() },
        "tombstones_pruned" => Input::Tombstones { uids: [].into() },
        "duplicate" => Input::Duplicate { lane },
        "shutdown" => Input::Shutdown,
        unknown => panic!("line {}: no input is called {unknown}", case.line),
    }
}

fn member(uid: u64) -> UniqueAddress {
    format!("b:1#{uid}").parse().expect("a uid makes it one")
}

/// Parses a holder: `7@h` can have been replaced by a process that names the host h, `7@*` by any, `7` by none.
fn holder(text: &str) -> Holder {
    let (uid, replacers) = match text.split_once('@') {
        Some((uid, "*")) => (uid, Replacers::Any),
        Some((uid, host)) => (uid, Replacers::Host(host.into())),
        None => (text, Replacers::None),
    };
    let member = member(uid.parse().expect("a uid"));
    Holder { member, replacers, status: "Up".into(), ends_by: "it leaves".into() }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Dial { lane, seq } => format!("dial {lane} {seq}"),
        Effect::Open { lane, seq, uid } => format!("open {lane} {seq} to #{uid}"),
        Effect::Shut { lane, seq } => format!("shut {lane} {seq}"),
        Effect::Close { lane, seq } => format!("close {lane} {seq}"),
        Effect::Rest { lane } => format!("rest {lane}"),
        Effect::NewIncarnation { uid, old, incarnation } => match old {
            Some(old) => format!("incarnation {incarnation} is #{uid} after #{old}"),
            None => format!("incarnation {incarnation} is #{uid}"),
        },
        Effect::FailQueue { lane, reason } => format!("fail queue {lane}: {reason}"),
        Effect::Block { uid, .. } => format!("block #{uid}"),
        Effect::HandBack { uid } => format!("hand back #{uid}"),
        Effect::Notify { uid, reason } => format!("notify #{uid}: {reason:?}"),
        Effect::Ignored { uid } => format!("ignored #{uid}"),
        Effect::Forget { uid } => format!("forget #{uid}"),
        Effect::Admit => "admit".to_owned(),
        Effect::AdmitForJoin => "admit for the join alone".to_owned(),
        Effect::Hold { detail, .. } => format!("not ready: {detail}"),
        Effect::Refuse { reason: Some(reason) } => format!("refuse: {reason:?}"),
        Effect::Refuse { reason: None } => "refuse".to_owned(),
        Effect::Publish(Event::LinkLost { uid, lane }) => format!("publish link lost #{uid} {lane}"),
        Effect::Publish(Event::Quarantined { uid, reason, harmless }) => {
            format!("publish quarantined #{uid}: {reason:?}{}", if *harmless { ", harmless" } else { "" })
        }
        Effect::Publish(Event::AddressHeld { holder, claimant }) => {
            format!("publish address held by {holder}, claimed by #{claimant}")
        }
        Effect::AskTraffic { .. } => unreachable!("it is answered"),
        Effect::Publish(event) => format!("publish {event:?}"),
    }
}
