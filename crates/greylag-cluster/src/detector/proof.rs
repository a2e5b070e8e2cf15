//! Proof of death by refused dials.
//!
//! The end of a killed process need not be awaited by timeouts: the kernel of its host refuses connections to its port,
//! and no other machine can refuse there. A few refusals in a row are a proof; any other result breaks the row, because
//! a time-out or a reset proves nothing. This machine decides when to dial and counts; at each dial the driver checks
//! whether a refusal counts at all.
//!
//! ```text
//! link lost, or marked unreachable --> Dial, Dial, Dial (>= 100 ms apart) --> Proven
//!                                        any other end of a dial: the row starts over
//! ```
//!
//! Source: cluster S20.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

/// The time between the starts of two dials of one row.
pub const DIAL_SPACING: Duration = Duration::from_millis(100);

/// How long after a broken control stream a member is dialled although it is not marked: its kernel may close the
/// listener a little later than the stream.
const LINK_LOST_WINDOW: Duration = Duration::from_secs(2);

/// An input to the proof of death ([`Proofs`]): which members fell silent, and the results of dials to their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProofInput {
    /// The control stream of this member broke.
    LinkLost(UniqueAddress),
    /// This node finds the member unreachable.
    Marked(UniqueAddress),
    /// The member is reachable again, proven dead, confirmed as exited, or removed: no more dials.
    Settled(UniqueAddress),
    /// A dial was refused in a way that counts.
    Refused(UniqueAddress),
    /// A dial ended in any other way.
    Failed(UniqueAddress),
    /// A process accepted the connection.
    Answered(UniqueAddress),
    /// Time has passed: dial if due.
    Tick,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProofEffect {
    /// Try one connection.
    Dial(UniqueAddress),
    /// The death of the process is proven.
    Proven(UniqueAddress),
}

#[derive(Debug)]
struct Row {
    refused: u32,
    dialled_at: Option<Instant>,
    in_flight: bool,
    /// The next dial; `None` while one is in flight.
    next_at: Instant,
    /// Whether this node finds the member unreachable: then it is dialled until settled.
    marked: bool,
    /// Until when the member is dialled although it is not marked.
    until: Instant,
}

impl Row {
    /// Makes the next dial due as soon as the spacing allows: refusals in quick succession may all be of one moment in
    /// which the kernel closes and opens a port.
    fn schedule_soonest(&mut self, now: Instant) {
        let earliest = self.dialled_at.map_or(now, |at| now.max(at + DIAL_SPACING));
        self.next_at = self.next_at.min(earliest);
    }
}

/// The rows of dials of one node.
#[derive(Debug)]
pub struct Proofs {
    dials: u32,
    interval: Duration,
    rows: BTreeMap<UniqueAddress, Row>,
}

impl Proofs {
    /// `dials` refusals in a row make a proof; an unreachable member is tried every `interval`.
    pub fn new(dials: u32, interval: Duration) -> Self {
        Self { dials: dials.max(1), interval, rows: BTreeMap::new() }
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: ProofInput, out: &mut Vec<ProofEffect>) {
        match input {
            ProofInput::LinkLost(peer) => {
                let row = self.row(now, peer);
                row.until = now + LINK_LOST_WINDOW;
                row.schedule_soonest(now);
            }
            ProofInput::Marked(peer) => {
                let row = self.row(now, peer);
                if !row.marked {
                    row.marked = true;
                    row.schedule_soonest(now);
                }
            }
            ProofInput::Settled(peer) => drop(self.rows.remove(&peer)),
            ProofInput::Refused(peer) => self.on_refused(now, &peer, out),
            ProofInput::Failed(peer) | ProofInput::Answered(peer) => self.on_broken_row(now, &peer),
            ProofInput::Tick => {}
        }
        self.dial_what_is_due(now, out);
        self.check_invariants();
    }

    /// Source: cluster S20.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (peer, row) in &self.rows {
            assert!(row.refused < self.dials, "{peer}: enough refusals are a proof, and end the row");
            assert!(row.dialled_at.is_some() || (row.refused == 0 && !row.in_flight), "{peer}: a result has a dial");
            let earliest = row.dialled_at.map(|at| at + DIAL_SPACING);
            assert!(row.in_flight || earliest.is_none_or(|at| at <= row.next_at), "{peer}: dials keep their distance");
        }
    }

    /// When the next dial is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.rows.values().filter(|row| !row.in_flight).map(|row| row.next_at).min()
    }

    /// The members that are being dialled.
    pub fn peers(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.rows.keys()
    }

    /// Whether `peer` is dialled because this node finds it unreachable.
    pub fn is_marked(&self, peer: &UniqueAddress) -> bool {
        self.rows.get(peer).is_some_and(|row| row.marked)
    }

    /// Whether no member is being dialled.
    pub fn is_idle(&self) -> bool {
        self.rows.is_empty()
    }

    fn row(&mut self, now: Instant, peer: UniqueAddress) -> &mut Row {
        let fresh = Row { refused: 0, dialled_at: None, in_flight: false, next_at: now, marked: false, until: now };
        self.rows.entry(peer).or_insert(fresh)
    }

    fn on_refused(&mut self, now: Instant, peer: &UniqueAddress, out: &mut Vec<ProofEffect>) {
        let Some(row) = self.rows.get_mut(peer).filter(|row| row.in_flight) else { return };
        row.in_flight = false;
        row.refused += 1;
        if row.refused >= self.dials {
            self.rows.remove(peer);
            out.push(ProofEffect::Proven(peer.clone()));
            return;
        }
        let spaced = row.dialled_at.map_or(now, |at| at + DIAL_SPACING);
        row.next_at = spaced.max(now);
    }

    fn on_broken_row(&mut self, now: Instant, peer: &UniqueAddress) {
        let Some(row) = self.rows.get_mut(peer).filter(|row| row.in_flight) else { return };
        row.in_flight = false;
        row.refused = 0;
        let pause = if now < row.until { 2 * DIAL_SPACING } else { self.interval.max(DIAL_SPACING) };
        row.next_at = now + pause;
    }

    fn dial_what_is_due(&mut self, now: Instant, out: &mut Vec<ProofEffect>) {
        self.rows.retain(|_, row| row.marked || row.in_flight || row.refused > 0 || now < row.until);
        for (peer, row) in &mut self.rows {
            if !row.in_flight && row.next_at <= now {
                row.in_flight = true;
                row.dialled_at = Some(now);
                out.push(ProofEffect::Dial(peer.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        proofs: Proofs,
        now: Instant,
        peer: UniqueAddress,
    }

    impl Bench {
        fn new() -> Self {
            let proofs = Proofs::new(3, Duration::from_secs(1));
            Self { proofs, now: Instant::now(), peer: "b:1#2".parse().unwrap() }
        }

        fn input(&mut self, input: fn(UniqueAddress) -> ProofInput) -> Vec<ProofEffect> {
            let mut out = Vec::new();
            self.proofs.handle(self.now, input(self.peer.clone()), &mut out);
            out
        }

        fn after(&mut self, ms: u64) -> Vec<ProofEffect> {
            self.now += Duration::from_millis(ms);
            self.input(|_| ProofInput::Tick)
        }

        fn dial(&self) -> Vec<ProofEffect> {
            vec![ProofEffect::Dial(self.peer.clone())]
        }
    }

    #[test]
    fn scenario_61_three_refusals_a_tenth_of_a_second_apart_are_a_proof() {
        let mut bench = Bench::new();
        assert_eq!(bench.input(ProofInput::LinkLost), bench.dial());
        assert_eq!(bench.input(ProofInput::Refused), [], "the next dial waits its time");
        assert_eq!(bench.after(99), []);
        assert_eq!(bench.after(1), bench.dial());
        assert_eq!(bench.input(ProofInput::Refused), []);
        assert_eq!(bench.after(100), bench.dial());
        assert_eq!(bench.input(ProofInput::Refused), [ProofEffect::Proven(bench.peer.clone())]);
        assert!(bench.proofs.is_idle());
    }

    /// cluster S20: a crash is reported by each half of each lane, and then as a mark.
    #[test]
    fn scenario_61_dials_keep_their_distance_however_often_the_death_is_announced() {
        for again in [ProofInput::LinkLost as fn(_) -> _, ProofInput::Marked] {
            let mut bench = Bench::new();
            assert_eq!(bench.input(ProofInput::LinkLost), bench.dial());
            for _ in 0..2 {
                assert_eq!(bench.input(ProofInput::Refused), []);
                assert_eq!(bench.input(again), [], "the one before was dialled just now");
                assert_eq!(bench.after(99), []);
                assert_eq!(bench.after(1), bench.dial());
            }
            assert_eq!(bench.input(ProofInput::Refused), [ProofEffect::Proven(bench.peer.clone())]);
        }
    }

    #[test]
    fn scenario_62_anything_but_a_refusal_starts_the_row_over() {
        for broken in [ProofInput::Answered as fn(_) -> _, ProofInput::Failed] {
            let mut bench = Bench::new();
            bench.input(ProofInput::Marked);
            bench.input(ProofInput::Refused);
            bench.after(100);
            bench.input(ProofInput::Refused);
            bench.after(100);
            assert_eq!(bench.input(broken), []);
            assert_eq!(bench.after(999), [], "an unmarked second, then a new row");
            assert_eq!(bench.after(1), bench.dial());
            assert_eq!(bench.input(ProofInput::Refused), []);
            assert_eq!(bench.after(100), bench.dial());
            assert_eq!(bench.input(ProofInput::Refused), [], "two are not three");
        }
    }

    #[test]
    fn scenario_62_refusals_nobody_asked_for_count_for_nothing() {
        let mut bench = Bench::new();
        for _ in 0..5 {
            assert_eq!(bench.input(ProofInput::Refused), []);
        }
    }

    #[test]
    fn a_lost_link_to_a_living_process_is_dropped_in_the_end() {
        let mut bench = Bench::new();
        bench.input(ProofInput::LinkLost);
        for _ in 0..30 {
            bench.input(ProofInput::Answered);
            bench.after(100);
        }
        assert!(bench.proofs.is_idle());
    }

    #[test]
    fn a_settled_member_is_not_dialled() {
        let mut bench = Bench::new();
        bench.input(ProofInput::Marked);
        bench.input(ProofInput::Settled);
        assert_eq!(bench.input(ProofInput::Refused), []);
        assert!(bench.after(5000).is_empty() && bench.proofs.is_idle());
    }
}
