//! The faults of a run as data: drawn from the seed by a profile, printed, replayed in part, minimised.

use std::fmt;
use std::time::Duration;

use greylag_cluster::Strategy;

/// Index of an address in the plan: `a` is 0. A restart puts a new process there.
pub(crate) type AddressIndex = usize;

/// Delay and loss between two hosts. Loss costs time, not messages: a stream repeats a lost packet, and later ones
/// wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    /// The shortest and the longest latency of an undisturbed message.
    pub(crate) latency: (Duration, Duration),
    /// Probability of a delay up to ten times as long.
    pub(crate) tail: f64,
    /// Probability that a packet is lost and repeated.
    pub(crate) loss: f64,
    /// Bytes per second.
    pub(crate) bandwidth: u64,
}

impl Link {
    /// A quiet local network.
    pub(crate) const GOOD: Self = Self {
        latency: (Duration::from_micros(200), Duration::from_millis(2)),
        tail: 0.0,
        loss: 0.0,
        bandwidth: 100_000_000,
    };
}

/// A fault, or the end of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL: the process is gone, and its kernel refuses connections.
    Kill(AddressIndex),
    /// The host is gone: no kernel is left to refuse connections.
    Crash(AddressIndex),
    /// The process there is killed, and a new one starts.
    Restart(AddressIndex),
    /// The name leads to a process on another host from now on. The process that had the name stays as it is: cut off,
    /// dead, or running.
    Move {
        /// The place whose name moves.
        place: AddressIndex,
        /// The place whose connectivity the new host shares.
        beside: AddressIndex,
        /// Whether the new process names its host.
        told: bool,
    },
    /// The processes that had the name before the present one are gone with their hosts: no kernel is left to refuse
    /// connections.
    EndOld(AddressIndex),
    /// An operator downs the processes that had the name before.
    DownOld(AddressIndex),
    /// A member is asked to leave.
    Leave {
        /// The member that leaves.
        place: AddressIndex,
        /// The member that gets the command.
        by: AddressIndex,
    },
    /// Nothing passes between these places and the rest.
    Cut(Vec<AddressIndex>),
    /// Nothing passes from one host to another. Streams need both directions, so they end.
    OneWay {
        /// The host whose messages are lost.
        from: AddressIndex,
        /// The host that they do not reach.
        to: AddressIndex,
    },
    /// The process drops the heartbeat responses of one peer, because it is overloaded or half broken.
    Deaf {
        /// The process that drops them.
        place: AddressIndex,
        /// The peer that sends them.
        to: AddressIndex,
    },
    /// The process takes all responses again.
    Hears(AddressIndex),
    /// All cuts end.
    Heal,
    /// The process is paused.
    Pause {
        /// The place of the process.
        place: AddressIndex,
        /// Duration of the pause.
        time: Duration,
    },
    /// The monotonic clock of the process jumps forward (cluster G4).
    Jump {
        /// The place of the process.
        place: AddressIndex,
        /// Size of the jump.
        time: Duration,
    },
}

/// A fault and its time, counted from the moment at which the cluster had formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// Promises of a run, besides those that are always checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    /// No member is downed unless a fault touched it or it was on the losing side of a cut.
    pub(crate) healthy_stay: bool,
    /// The cluster survives.
    pub(crate) cluster_stays: bool,
    /// The exception under which G1 promises nothing about two instances and two sides: they are then counted, not
    /// refused.
    pub(crate) excuse: Option<Excuse>,
}

/// The exceptions of G1 and P7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// P7: one of the processes concerned was paused for longer than [`LONG_PAUSE`].
    StoodStill,
    /// G1: a partition began within `stable_after` of an earlier unreachability, so that the winner's
    /// clock started before the cut; or pauses and jumps add up to more than [`LONG_PAUSE`].
    Unsettled,
}

/// The longest pause that G1 covers: the margin less four heartbeats, and less the errors of clocks, the time in which
/// an instance stops, and the spread of detection.
pub(crate) const LONG_PAUSE: Duration = Duration::from_secs(12);
/// Time from silence to the mark, plus `stable_after`.
const UNSETTLED: Duration = Duration::from_secs(28);

/// Use of leases in a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct LeaseUse {
    /// Whether an instance of the singleton runs only under a lease.
    pub(crate) singleton: bool,
    /// Probability that a request fails, so that its outcome is unknown.
    pub(crate) failures: f64,
}

/// The plan of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// Seed of everything that is not in the plan (jitter, choices of the machines).
    pub(crate) seed: u64,
    pub(crate) places: usize,
    pub(crate) strategy: Strategy,
    /// Whether a resolver decides; otherwise an operator does, by hand.
    pub(crate) resolver: bool,
    /// Margin between a removal without proof and the start elsewhere; `None`: derived from the settings.
    pub(crate) margin: Option<Duration>,
    pub(crate) leases: LeaseUse,
    /// Whether deaths of processes can be proven: all share a host, or the operator vouches (cluster S20).
    pub(crate) provable: bool,
    /// How long an instance of the singleton takes to stop.
    pub(crate) stop_delay: Duration,
    pub(crate) link: Link,
    /// Error of each host's clock, in parts per million; positive is fast.
    pub(crate) clock_ppm: Vec<i64>,
    pub(crate) faults: Vec<Timed>,
    /// When the last fault has ended; everything must come to rest afterwards.
    pub(crate) quiet_at: Duration,
    pub(crate) promises: Promises,
}

impl Plan {
    /// Count of hosts: one for each place, and one for each move.
    pub(crate) fn hosts(&self) -> usize {
        let moves = self.faults.iter().filter(|timed| matches!(timed.fault, Fault::Move { .. }));
        self.places + moves.count()
    }

    /// The same plan with these faults only.
    pub(crate) fn with_faults(&self, keep: &[usize]) -> Self {
        let faults = keep.iter().filter_map(|index| self.faults.get(*index)).cloned().collect();
        Self { faults, ..self.clone() }
    }

    /// Whether the plan meets the exception of [`Excuse::Unsettled`].
    pub(crate) fn is_unsettled(&self) -> bool {
        let stood = self.faults.iter().filter_map(|timed| match &timed.fault {
            Fault::Pause { time, .. } | Fault::Jump { time, .. } => Some(*time),
            _ => None,
        });
        let silences = |fault: &Fault| {
            !matches!(
                fault,
                Fault::Leave { .. } | Fault::Hears(_) | Fault::Deaf { .. } | Fault::Move { .. } | Fault::DownOld(_)
            )
        };
        let parts = |fault: &Fault| matches!(fault, Fault::Cut(_) | Fault::OneWay { .. } | Fault::Pause { .. });
        let mut followed = false;
        for (index, timed) in self.faults.iter().enumerate().filter(|(_, timed)| parts(&timed.fault)) {
            let before = self.faults[..index].iter().filter(|earlier| silences(&earlier.fault));
            followed |= before.into_iter().any(|earlier| timed.at <= earlier.at + UNSETTLED);
        }
        followed || stood.sum::<Duration>() > LONG_PAUSE
    }

    /// Whether the strategy gives up `side` if a cut is the only fault. Place 0 has the lowest address and is the
    /// oldest.
    pub(crate) fn loses(&self, side: &[AddressIndex], others: &[AddressIndex]) -> bool {
        let has_first = side.contains(&0);
        match &self.strategy {
            Strategy::StaticQuorum { quorum_size, .. } => side.len() < *quorum_size,
            Strategy::KeepOldest { down_if_alone, .. } => {
                let is_given_up = |oldest: &[AddressIndex], rest: &[AddressIndex]| {
                    *down_if_alone && oldest.len() == 1 && rest.len() > 1
                };
                if has_first { is_given_up(side, others) } else { !is_given_up(others, side) }
            }
            Strategy::DownAll => true,
            Strategy::KeepMajority { .. } | Strategy::LeaseMajority { .. } => {
                side.len() < others.len() || (side.len() == others.len() && !has_first)
            }
        }
    }

    /// The places that a fault names, or that are on the losing side of a cut: their members need not stay.
    pub(crate) fn touched(&self) -> Vec<bool> {
        let mut touched = vec![false; self.places];
        for Timed { fault, .. } in &self.faults {
            match fault {
                Fault::Kill(place) | Fault::Crash(place) | Fault::Restart(place) | Fault::Leave { place, .. } => {
                    touched[*place] = true;
                }
                Fault::Move { place, .. } | Fault::EndOld(place) | Fault::DownOld(place) => touched[*place] = true,
                Fault::Deaf { place, .. } | Fault::Pause { place, .. } | Fault::Jump { place, .. } => {
                    touched[*place] = true;
                }
                Fault::OneWay { from, to } => (touched[*from], touched[*to]) = (true, true),
                Fault::Cut(side) => {
                    let others: Vec<AddressIndex> = (0..self.places).filter(|place| !side.contains(place)).collect();
                    for (here, there) in [(side, &others), (&others, side)] {
                        if self.loses(here, there) {
                            here.iter().for_each(|place| touched[*place] = true);
                        }
                    }
                }
                Fault::Hears(_) | Fault::Heal => {}
            }
        }
        touched
    }
}

fn name(place: AddressIndex) -> char {
    char::from(b'a' + u8::try_from(place).unwrap_or(0))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(place) => write!(f, "kill {}", name(*place)),
            Self::Crash(place) => write!(f, "the host of {} is gone", name(*place)),
            Self::Restart(place) => write!(f, "restart {}", name(*place)),
            Self::Move { place, beside, told } => {
                let host = if *told { "another host" } else { "a host that tells nothing of itself" };
                write!(f, "the name of {} moves to {host}, beside {}", name(*place), name(*beside))
            }
            Self::EndOld(place) => {
                write!(f, "the process that had the name of {} before is gone with its host", name(*place))
            }
            Self::DownOld(place) => {
                write!(f, "an operator downs the process that had the name of {} before", name(*place))
            }
            Self::Leave { place, by } => write!(f, "{} leaves, told at {}", name(*place), name(*by)),
            Self::Cut(side) => {
                write!(f, "cut {} off from the rest", side.iter().map(|place| name(*place)).collect::<String>())
            }
            Self::OneWay { from, to } => write!(f, "nothing passes from {} to {}", name(*from), name(*to)),
            Self::Deaf { place, to } => write!(f, "{} misses the responses of {}", name(*place), name(*to)),
            Self::Hears(place) => write!(f, "{} hears all responses", name(*place)),
            Self::Heal => f.write_str("all cuts end"),
            Self::Pause { place, time } => write!(f, "{} stands still for {time:?}", name(*place)),
            Self::Jump { place, time } => write!(f, "the clock of {} jumps by {time:?}", name(*place)),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { places, strategy, leases, provable, stop_delay, resolver, .. } = self;
        let strategy = if *resolver { strategy.to_string() } else { "downing = none".to_owned() };
        let LeaseUse { singleton, failures } = leases;
        writeln!(f, "{places} nodes, {strategy}, provable deaths: {provable}, an instance stops in {stop_delay:?}")?;
        if *singleton || matches!(self.strategy, Strategy::LeaseMajority { .. }) {
            writeln!(
                f,
                "the singleton needs a lease: {singleton}, requests for leases fail: {:.0} %",
                100.0 * failures
            )?;
        }
        for (index, Timed { at, fault }) in self.faults.iter().enumerate() {
            writeln!(f, "  {index:>2}  {:>9.3} s  {fault}", at.as_secs_f64())?;
        }
        write!(f, "      {:>9.3} s  quiet", self.quiet_at.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_side_of_a_cut_is_touched_and_of_equal_sides_the_one_without_the_lowest() {
        let plan = |side: Vec<AddressIndex>, places| Plan {
            seed: 0,
            places,
            strategy: Strategy::KeepMajority { role: None },
            resolver: true,
            margin: None,
            leases: LeaseUse::default(),
            provable: false,
            stop_delay: Duration::ZERO,
            link: Link::GOOD,
            clock_ppm: vec![0; places],
            faults: vec![Timed { at: Duration::ZERO, fault: Fault::Cut(side) }],
            quiet_at: Duration::ZERO,
            promises: Promises::default(),
        };
        assert_eq!(plan(vec![0, 1], 5).touched(), [true, true, false, false, false]);
        assert_eq!(plan(vec![0, 1], 4).touched(), [false, false, true, true]);
        assert_eq!(plan(vec![1, 2], 4).touched(), [false, true, true, false]);
    }
}
