//! One node's watcher; the transcript plays the other nodes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_testkit::transcript::Case;
use greylag_transport::watch::{WatchEffect, WatchInput, WatchMessage, Watched, Watcher};

use super::{Machine, advance, transcript_duration};

pub(crate) struct World {
    watcher: Watcher,
    start: Instant,
    now: Duration,
}

impl World {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let own = case.parse("own").expect("own=<address>");
        Self { watcher: Watcher::new(own, Duration::from_secs(3)), start: Instant::now(), now: Duration::ZERO }
    }
}

impl Machine for World {
    fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        if case.command == "advance" {
            let until = self.now + transcript_duration(case);
            let (start, watcher) = (self.start, std::cell::RefCell::new(&mut self.watcher));
            let tick = |now: Duration| {
                let mut effects = Vec::new();
                watcher.borrow_mut().handle(start + now, WatchInput::Tick, &mut effects);
                effects.iter().for_each(|effect| show(now, effect, &mut output));
            };
            advance(start, &mut self.now, until, || watcher.borrow().next_deadline(), tick);
        } else {
            let mut effects = Vec::new();
            self.watcher.handle(self.start + self.now, input(case), &mut effects);
            effects.iter().for_each(|effect| show(self.now, effect, &mut output));
        }
        output
    }
}

fn input(case: &Case<'_>) -> WatchInput {
    let peer = || -> UniqueAddress { case.parse("peer").expect("peer=<address>") };
    let path = || case.arg("path").unwrap_or("x").into();
    let instance = case.parse("instance").unwrap_or(0);
    let id = case.parse("id").unwrap_or(1);
    let addresses = |text: &str| text.split(',').map(|one| one.parse().expect("an address")).collect();
    match case.command {
        "watch" => {
            let recipient = Watched { node: peer(), path: path(), instance };
            WatchInput::Watch { id, recipient, non_members: case.flag("outside") }
        }
        "unwatch" => WatchInput::Unwatch { id },
        "message" => {
            let message = match case.positional(0) {
                Some("watch") => WatchMessage::Watch { path: path(), instance },
                Some("unwatch") => WatchMessage::Unwatch { path: path(), instance },
                Some("terminated") => WatchMessage::Terminated { path: path(), instance },
                _ => WatchMessage::Rewatch,
            };
            WatchInput::Message { from: peer(), message, current: case.parse("current") }
        }
        "stopped" => WatchInput::Stopped { path: path(), instance },
        "flushed" => WatchInput::Flushed { flush: case.parse("flush").unwrap_or(1) },
        "members" => WatchInput::Members {
            members: case.positional(0).map(addresses).unwrap_or_default(),
            tombstones: case.arg("tombstones").map(addresses).unwrap_or_default(),
        },
        "quarantined" => WatchInput::PeerQuarantined(peer()),
        "handshake" => WatchInput::PeerHandshake(peer()),
        "gave_up" => WatchInput::GaveUp(peer()),
        unknown => panic!("line {}: no input is called {unknown}", case.line),
    }
}

fn show(now: Duration, effect: &WatchEffect, output: &mut String) {
    let line = match effect {
        WatchEffect::Send { to, message } => match message {
            WatchMessage::Watch { path, instance } => format!("to {to}: watch {path} {instance}"),
            WatchMessage::Unwatch { path, instance } => format!("to {to}: unwatch {path} {instance}"),
            WatchMessage::Terminated { path, instance } => format!("to {to}: terminated {path} {instance}"),
            WatchMessage::Rewatch => format!("to {to}: rewatch"),
        },
        WatchEffect::Flush { to, flush } => format!("flush {flush} to {to}"),
        WatchEffect::Terminated { id, terminated } => {
            let Watched { node, path, .. } = &terminated.recipient;
            format!("watch {id}: {path} at {node} {:?}", terminated.why)
        }
        WatchEffect::Refused { id, error } => format!("watch {id} refused: {error}"),
    };
    writeln!(output, "{:.2}s {line}", now.as_secs_f64()).expect("a string takes all");
}
