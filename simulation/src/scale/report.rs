//! The figures of a cluster of one size.

use std::fmt;
use std::time::Duration;

/// What a span of virtual time cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Messages a member sent per second.
    pub messages: f64,
    /// Bytes a member sent per second, before compression.
    pub bytes: f64,
    /// Processor time a member took per second, of the machine that played them all.
    pub processor: Duration,
}

impl Cost {
    pub(super) fn new(members: usize, time: Duration, messages: u64, bytes: u64, processor: Duration) -> Self {
        let member_seconds = members as f64 * time.as_secs_f64();
        Self {
            messages: messages as f64 / member_seconds,
            bytes: bytes as f64 / member_seconds,
            processor: processor.div_f64(member_seconds),
        }
    }
}

/// One change, from its cause until all know.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// Until the leader found it converged.
    pub converged: Duration,
    /// Until every member agreed.
    pub known: Duration,
    /// What was sent meanwhile.
    pub cost: Cost,
}

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The size.
    pub members: usize,
    /// From the first call to join until all were Up and agreed.
    pub forming: Duration,
    /// Nothing happens.
    pub rest: Cost,
    /// One more joins.
    pub joining: Change,
    /// One leaves.
    pub leaving: Change,
    /// One crashes and is downed by command.
    pub crashing: Change,
    /// Real time, for everything.
    pub took: Duration,
}

impl Report {
    /// The heads of the columns of a [`Report`] shown.
    pub const HEAD: &str = "| members | formed in | join: converged, known | leave: converged, known | crash and down: converged, known | at rest: messages, bytes, processor | during a join: messages, bytes, processor | real time |\n|---|---|---|---|---|---|---|---|";
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let change = |change: Change| format!("{}, {}", seconds(change.converged), seconds(change.known));
        let cost = |cost: Cost| {
            format!("{:.1}, {:.0}, {:.0} µs", cost.messages, cost.bytes, cost.processor.as_secs_f64() * 1e6)
        };
        write!(
            f,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            self.members,
            seconds(self.forming),
            change(self.joining),
            change(self.leaving),
            change(self.crashing),
            cost(self.rest),
            cost(self.joining.cost),
            seconds(self.took)
        )
    }
}
