//! The figures of a cluster of one size.

use std::fmt;
use std::time::Duration;

use super::traffic::Traffic;

/// Cost of a span of virtual time, for one member and second.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Sent messages.
    pub messages: f64,
    /// Bytes of the encoded messages.
    pub encoded: f64,
    /// Bytes as sent: compressed where the transport compresses.
    pub sent: f64,
    /// Processor time of the member's machine.
    pub processor: Duration,
}

impl Cost {
    pub(super) fn new(members: usize, time: Duration, said: &Traffic, processor: Duration) -> Self {
        let member_seconds = members as f64 * time.as_secs_f64();
        Self {
            messages: said.messages as f64 / member_seconds,
            encoded: said.encoded as f64 / member_seconds,
            sent: said.sent as f64 / member_seconds,
            processor: processor.div_f64(member_seconds),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processor = self.processor.as_secs_f64() * 1e6;
        write!(f, "{:.1}, {:.0}, {:.0}, {processor:.0} µs", self.messages, self.encoded, self.sent)
    }
}

/// Figures of one change, from its cause until all know it.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// Time until the leader found it converged, or, for a death, had removed the dead member.
    pub converged: Duration,
    /// Time until every member agreed on all its consequences.
    pub known: Duration,
    /// Whether convergence took so long that the leader admitted the joiner as WeaklyUp meanwhile (cluster M21), which
    /// is a change of its own and starts convergence over.
    pub twofold: bool,
    /// Cost until then.
    pub cost: Cost,
}

/// Several changes of one kind.
#[derive(Debug, Clone)]
pub struct Changes(pub Vec<Change>);

impl Changes {
    fn slowest(&self) -> Duration {
        self.0.iter().map(|change| change.converged).max().unwrap_or_default()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = |of: fn(&Change) -> Duration| {
            let mut times: Vec<Duration> = self.0.iter().map(of).collect();
            times.sort();
            times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64()
        };
        let (converged, known) = (median(|change| change.converged), median(|change| change.known));
        write!(f, "{converged:.1} s (most {:.1}), {known:.1} s", self.slowest().as_secs_f64())?;
        match self.0.iter().filter(|change| change.twofold).count() {
            0 => Ok(()),
            twofold => write!(f, " ({twofold} by way of WeaklyUp)"),
        }
    }
}

/// Figures of a cluster of one size.
#[derive(Debug, Clone)]
pub struct Report {
    /// Count of members.
    pub members: usize,
    /// Time from the first call to join until all were Up and agreed.
    pub forming: Duration,
    /// Time from the last call to join.
    pub after_last: Duration,
    /// Processor time of forming.
    pub forming_processor: Duration,
    /// Cost without any change.
    pub rest: Cost,
    /// One more member joins.
    pub joining: Changes,
    /// One member leaves.
    pub leaving: Changes,
    /// One member is killed, and its kernel refuses connections.
    pub dying: Changes,
    /// Size of the biggest message.
    pub biggest: u64,
    /// Resident memory divided by the members; a member's own only with [`Wire::Real`](super::Wire::Real).
    pub memory: Option<u64>,
}

impl Report {
    /// Heads of the columns of a printed [`Report`].
    pub const HEAD: &str = "\
| members | formed after the first, the last join, processor | join: converged, known to all | leave: the same \
| killed: removed, known to all | at rest: messages, bytes, compressed, processor | during a join: the same \
| biggest message | memory |
|---|---|---|---|---|---|---|---|---|";

    /// The longest time in which a single change converged at the leader (cluster G2).
    pub fn slowest(&self) -> Duration {
        let changes = [&self.joining, &self.leaving, &self.dying].into_iter().flat_map(|changes| &changes.0);
        changes.filter(|change| !change.twofold).map(|change| change.converged).max().unwrap_or_default()
    }

    /// Limit of that time at this size; `None` for bigger clusters. Source: cluster G2.
    pub fn budget(&self) -> Option<Duration> {
        match self.members {
            ..=100 => Some(Duration::from_secs(8)),
            101..=1000 => Some(Duration::from_secs(12)),
            _ => None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
        let joins = &self.joining.0;
        let joining = joins.get(joins.len() / 2).map_or_else(String::new, |join| join.cost.to_string());
        write!(
            f,
            "| {} | {}, {}, {} | {} | {} | {} | {} | {joining} | {} | {} |",
            self.members,
            seconds(self.forming),
            seconds(self.after_last),
            seconds(self.forming_processor),
            self.joining,
            self.leaving,
            self.dying,
            self.rest,
            kib(self.biggest),
            self.memory.map_or_else(String::new, kib),
        )
    }
}
