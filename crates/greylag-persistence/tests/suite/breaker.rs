//! Transcripts of the breaker of a store: when it opens, how it probes, and the answers to users' calls meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_persistence::{
    Admission, Breaker, BreakerEffect, BreakerInput, BreakerMode, BreakerSettings, BreakerStats, CallOutcome,
};
use greylag_testkit::transcript::{self, Case};

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/breaker_protocol"), || {
        let mut world = World::new(BreakerSettings::default());
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    begun: Instant,
    now: Instant,
    breaker: Breaker,
    /// Calls under way, by name.
    calls: BTreeMap<String, Admission>,
    log: Vec<String>,
}

impl World {
    fn new(settings: BreakerSettings) -> Self {
        let begun = Instant::now();
        let breaker = Breaker::new("write breaker of journal", settings);
        Self { begun, now: begun, breaker, calls: BTreeMap::new(), log: Vec::new() }
    }

    fn run(&mut self, case: &Case<'_>) -> String {
        match case.command {
            "start" => self.start(case),
            "call" => (0..case.parse("count").unwrap_or(1)).for_each(|_| self.call(case)),
            "begin" => {
                let admission = self.breaker.admit(self.now).expect("the call may go");
                self.calls.insert(case.positional(0).unwrap().to_owned(), admission);
            }
            "end" => {
                let admission = self.calls.remove(case.positional(0).unwrap()).unwrap();
                self.tell(BreakerInput::Ended(admission, outcome(case.positional(1).unwrap())));
            }
            "probe" => self.tell(BreakerInput::Probed(outcome(case.positional(0).unwrap()))),
            "reachable" => self.tell(BreakerInput::Reachable),
            "tick" => self.tell(BreakerInput::Tick),
            "advance" => self.advance(transcript::duration(case.positional(0).unwrap()).unwrap()),
            "stats" => {
                let BreakerStats { mode: _, failures, opened, refused, probes } = self.breaker.stats(self.now);
                self.log.push(format!("{failures} failures, opened {opened}, refused {refused}, {probes} probes"));
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        let mode = match self.breaker.mode(self.now) {
            BreakerMode::Closed => "closed".to_owned(),
            BreakerMode::Open { left, cause } => format!("open, {left:?} left: {cause}"),
            BreakerMode::HalfOpen { cause } => format!("half-open: {cause}"),
        };
        self.log.push(mode);
        std::mem::take(&mut self.log).join("\n")
    }

    fn start(&mut self, case: &Case<'_>) {
        let mut settings =
            if case.flag("snapshots") { BreakerSettings::snapshots() } else { BreakerSettings::default() };
        settings.reset_timeout = case.duration("reset").unwrap_or(settings.reset_timeout);
        settings.max_failures = case.parse("max").unwrap_or(settings.max_failures);
        *self = Self::new(settings);
    }

    fn call(&mut self, case: &Case<'_>) {
        match self.breaker.admit(self.now) {
            Ok(admission) => self.tell(BreakerInput::Ended(admission, outcome(case.positional(0).unwrap()))),
            Err(refusal) => self.log.push(format!("refused: {refusal}")),
        }
    }

    /// Advances the clock, ticking at every deadline on the way.
    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(deadline) = self.breaker.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.tell(BreakerInput::Tick);
            assert!(
                self.breaker.next_deadline().is_none_or(|next| next > self.now),
                "a tick leaves nothing that is due"
            );
        }
        self.now = end;
    }

    fn tell(&mut self, input: BreakerInput) {
        let mut out = Vec::new();
        self.breaker.handle(self.now, input, &mut out);
        let at = self.now.duration_since(self.begun);
        self.log.extend(out.into_iter().map(|effect| match effect {
            BreakerEffect::Probe => format!("{at:.2?} probe"),
            BreakerEffect::StoreBack => format!("{at:.2?} the store is back"),
        }));
    }
}

fn outcome(word: &str) -> CallOutcome {
    match word {
        "answered" => CallOutcome::Answered,
        "abandoned" => CallOutcome::Abandoned,
        cause => CallOutcome::Failed(cause.to_owned()),
    }
}
