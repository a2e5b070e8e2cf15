//! Keeps the last outcome of asking each seed node, for the people who wrote its address.
//!
//! A node that is no member yet asks its seed nodes again and again. It keeps the last outcome by seed and logs it
//! after a while, then at growing intervals, until the node is a member or gives up. It logs nothing while all seed
//! nodes answer, since they wait for each other then.
//!
//! ```text
//! join --3 s--> line --3 s--> line --6 s--> line --12 s--> line ... at most 60 s between two
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_core::NodeAddress;

use crate::error::seed_report::{SeedAnswer, SeedReport};

/// Delay of the first line: a start that takes longer is worth one.
const FIRST_LINE: Duration = Duration::from_secs(3);
/// The longest interval between two lines.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// An input to the record of the seed nodes: the outcome of asking one, or the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Input {
    /// Time has passed: log if a line is due.
    Tick,
    /// The outcome of asking a seed node.
    Answered(NodeAddress, SeedAnswer),
}

/// The record of all seed nodes but this node.
#[derive(Debug)]
pub(in crate::core) struct Seeds {
    begun_at: Instant,
    found: BTreeMap<NodeAddress, (u32, SeedAnswer)>,
    line_at: Instant,
    interval: Duration,
}

impl Seeds {
    /// A record of seeds that were not asked yet; this node must not be among them.
    pub(in crate::core) fn new(now: Instant, seeds: &[NodeAddress]) -> Self {
        let found = seeds.iter().map(|seed| (seed.clone(), (0, SeedAnswer::Nothing))).collect();
        Self { begun_at: now, found, line_at: now + FIRST_LINE, interval: FIRST_LINE }
    }

    /// Handles one input; `out` gets lines for the log. Outcomes of addresses that are no seeds are ignored.
    pub(in crate::core) fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<String>) {
        match input {
            Input::Answered(seed, answer) => {
                if let Some((failed_dials, last)) = self.found.get_mut(&seed) {
                    *failed_dials += u32::from(matches!(answer, SeedAnswer::Unreached(_)));
                    *last = answer;
                }
            }
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// When the next line is due. `None`: this node is the only seed.
    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        (!self.found.is_empty()).then_some(self.line_at)
    }

    /// The last outcome of each seed node.
    pub(in crate::core) fn reports(&self) -> Vec<SeedReport> {
        let report = |(seed, (failed_dials, answer)): (&NodeAddress, &(u32, SeedAnswer))| SeedReport {
            seed: seed.clone(),
            failed_dials: *failed_dials,
            answer: answer.clone(),
        };
        self.found.iter().map(report).collect()
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<String>) {
        if self.found.is_empty() || now < self.line_at {
            return;
        }
        let waited = now.saturating_duration_since(self.begun_at);
        let seeds = self.reports();
        if seeds.iter().any(|report| report.answer.is_amiss()) {
            let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
            out.push(format!("no seed node has let this node in for {} s; {}", waited.as_secs(), seeds.join("; ")));
        }
        self.line_at = now + self.interval;
        self.interval = (self.interval * 2).min(LONGEST_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use greylag_transport::DialFailure;

    use super::*;

    fn seed(text: &str) -> NodeAddress {
        text.parse().expect("an address")
    }

    /// The lines of the first `seconds` seconds, each with its time.
    fn lines(seeds: &mut Seeds, begun: Instant, seconds: u64) -> Vec<(u64, String)> {
        let mut lines = Vec::new();
        while let Some(at) = seeds.next_deadline().filter(|at| *at <= begun + Duration::from_secs(seconds)) {
            let mut out = Vec::new();
            seeds.handle(at, Input::Tick, &mut out);
            assert_eq!(out.len(), 1, "each deadline has a line, and moves");
            lines.extend(out.into_iter().map(|line| (at.duration_since(begun).as_secs(), line)));
        }
        lines
    }

    #[test]
    fn each_seed_is_told_by_name_after_a_while_and_then_at_intervals_that_grow() {
        let begun = Instant::now();
        let (refusing, missing) = (seed("a:1"), seed("nowhere.invalid:2"));
        let mut seeds = Seeds::new(begun, &[refusing.clone(), missing.clone(), seed("c:3")]);
        let mut out = Vec::new();
        for _ in 0..2 {
            let answer = SeedAnswer::Unreached(DialFailure::Refused);
            seeds.handle(begun, Input::Answered(refusing.clone(), answer), &mut out);
        }
        let unknown = SeedAnswer::Unreached(DialFailure::UnknownHost("no such name".to_owned()));
        seeds.handle(begun, Input::Answered(missing, unknown), &mut out);
        seeds.handle(begun, Input::Answered(seed("d:4"), SeedAnswer::NoMember), &mut out);
        seeds.handle(begun + Duration::from_millis(2999), Input::Tick, &mut out);
        assert!(out.is_empty(), "not before its time: {out:?}");
        let told = lines(&mut seeds, begun, 300);
        let at: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
        assert_eq!(at, [3, 6, 12, 24, 48, 96, 156, 216, 276]);
        assert_eq!(
            told[0].1,
            "no seed node has let this node in for 3 s; a:1: 2 dials failed, the last one: the connection was refused: \
             nothing listens at that port; c:3: nothing came back yet; nowhere.invalid:2: 1 dial failed, the host name \
             cannot be found (no such name)"
        );
        assert!(!told[0].1.contains("d:4"), "it is no seed");
    }

    #[test]
    fn a_later_report_of_a_seed_counts() {
        let now = Instant::now();
        let mut seeds = Seeds::new(now, &[seed("a:1")]);
        let mut out = Vec::new();
        for answer in [
            SeedAnswer::Unreached(DialFailure::Silent),
            SeedAnswer::Refused("ours is \"a\", theirs is \"b\"".to_owned()),
            SeedAnswer::Asked,
        ] {
            seeds.handle(now, Input::Answered(seed("a:1"), answer.clone()), &mut out);
            let reports = seeds.reports();
            assert_eq!((reports.len(), &reports[0].answer, reports[0].failed_dials), (1, &answer, 1));
        }
        seeds.handle(now + FIRST_LINE, Input::Tick, &mut out);
        assert!(out.is_empty(), "a seed that answers is no reason for a line: {out:?}");
        assert_eq!(Seeds::new(now, &[]).next_deadline(), None, "a node alone waits for no seed");
    }
}
