//! The reports of nodes, and the figures computed from them.

use std::io::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// One line that a node writes to its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeReport {
    /// The node is a full member.
    Up { address: String },
    /// The node's report, in answer to `report`.
    Report(Box<Report>),
}

/// Everything that one node observed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) address: String,
    /// Members that this node found unreachable or saw downed or removed, and accusations of the node itself, in order.
    pub(crate) accusations: Vec<String>,
    /// Pauses of this process that its membership noticed, in order.
    pub(crate) pauses: Vec<Duration>,
    /// Count of members at the end.
    pub(crate) members: usize,
    /// Round trips of probes, in microseconds.
    pub(crate) round_trips_us: Vec<u64>,
    /// Count of probes without an answer at the end, or refused by the transport.
    pub(crate) unanswered: u64,
    pub(crate) received_messages: u64,
    pub(crate) received_bytes: u64,
    /// Count of messages refused because the queue was full; above zero, the lanes were saturated.
    pub(crate) refused: u64,
    /// Count of frames that could not be read; must be zero.
    pub(crate) malformed: u64,
    /// Processor time of each kind of thread, in milliseconds.
    pub(crate) cpu_ms: Vec<(String, u64)>,
}

impl Report {
    /// Prints the figures; fails if a node looked dead or another condition is violated.
    pub(crate) fn judge(reports: &[Self], lasted: Duration) -> Result<(), Failure> {
        let seconds = lasted.as_secs_f64();
        let mut trips: Vec<u64> = reports.iter().flat_map(|report| report.round_trips_us.iter().copied()).collect();
        trips.sort_unstable();
        let at = |part: f64| {
            let index = (part * trips.len() as f64) as usize;
            trips.get(index.min(trips.len().saturating_sub(1))).map_or(0.0, |us| *us as f64 / 1000.0)
        };
        let total = |of: fn(&Self) -> u64| reports.iter().map(of).sum::<u64>() as f64;
        say(&format!(
            "{:.0} messages/s and {:.0} MB/s received in all, {:.0} sends/s refused by full queues",
            total(|r| r.received_messages) / seconds,
            total(|r| r.received_bytes) / seconds / 1e6,
            total(|r| r.refused) / seconds,
        ));
        for report in reports {
            let cpu: Vec<_> = report
                .cpu_ms
                .iter()
                .map(|(name, ms)| format!("{name} {:.1} %", *ms as f64 / lasted.as_millis() as f64 * 100.0))
                .collect();
            say(&format!("{}: {}; pauses noticed {:?}", report.address, cpu.join(", "), report.pauses));
        }
        say(&format!(
            "heartbeat there and back, {} probes: p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms; {} unanswered",
            trips.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            total(|r| r.unanswered)
        ));
        let wrong: Vec<String> = reports.iter().flat_map(|report| report.failures(reports.len())).collect();
        if wrong.is_empty() {
            say("no member was taken for unreachable");
            return Ok(());
        }
        Err(wrong.join("\n").into())
    }

    /// The violated conditions of this node, as sentences.
    fn failures(&self, members: usize) -> Vec<String> {
        let mut wrong: Vec<_> = self.accusations.iter().map(|what| format!("{}: {what}", self.address)).collect();
        if self.members != members {
            wrong.push(format!("{} sees {} members of {members}", self.address, self.members));
        }
        if self.refused == 0 {
            wrong.push(format!("{} met no full queue: the load was none", self.address));
        }
        if self.malformed > 0 {
            wrong.push(format!("{} could not read {} frames", self.address, self.malformed));
        }
        if self.round_trips_us.is_empty() {
            wrong.push(format!("{} had no answer to any probe", self.address));
        }
        wrong
    }
}

/// Prints one line; errors are ignored, since the reader may close the pipe.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
