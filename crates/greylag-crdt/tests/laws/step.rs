//! The random steps of a history.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// Replicas 0 and 1 are never removed; the last one may be, and then the one before it.
pub(crate) const REPLICAS: usize = 4;

/// An operation; each type interprets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) kind: u8,
    pub(crate) key: u8,
    pub(crate) inner: u8,
    pub(crate) amount: i8,
}

/// A step of a history.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Operations in one closure.
    Do(usize, Vec<Op>),
    /// Numbers are drawn for another entry.
    Gap(usize),
    /// A full state is sent.
    Send(usize),
    /// A sent state arrives, perhaps not for the first time.
    Receive { sent: usize, to: usize },
    /// A full state is sent and arrives at once.
    Exchange { from: usize, to: usize },
    /// Some of the deltas made so far reach one replica. `bits` selects them; they come as one group or one by one,
    /// newest first or oldest first.
    Deltas { to: usize, bits: u64, grouped: bool, newest_first: bool },
    /// The entry expires at one replica, without a trace.
    Forget(usize),
    /// The replicator of one process restarts and holds nothing.
    Restart(usize),
    /// The last replica that is left is removed; two always stay.
    Remove,
    /// A replica performs a removed one: it puts that replica's data under its own name.
    Perform { by: usize, removed: usize },
}

/// Draws a history. Half of the histories have no removal, and most no expiry, so that the plain laws get their share.
pub(crate) fn steps(rng: &mut ChaCha8Rng) -> Vec<Step> {
    let (prunes, forgets) = (rng.random_bool(0.5), rng.random_bool(0.3));
    (0..rng.random_range(4..28)).map(|_| step(rng, prunes, forgets)).collect()
}

fn op(rng: &mut ChaCha8Rng) -> Op {
    Op {
        kind: rng.random(),
        key: rng.random_range(0..3),
        inner: rng.random_range(0..3),
        amount: rng.random_range(-3..4),
    }
}

fn step(rng: &mut ChaCha8Rng, prunes: bool, forgets: bool) -> Step {
    let at = rng.random_range(0..REPLICAS);
    match rng.random_range(0..20) {
        0..=6 => Step::Do(at, (0..rng.random_range(1..3)).map(|_| op(rng)).collect()),
        7 => Step::Gap(at),
        8 | 9 => Step::Send(at),
        10 | 11 => Step::Receive { sent: rng.random_range(0..16), to: at },
        12..=14 => {
            let bits = if rng.random_bool(0.5) { rng.random() } else { u64::MAX };
            Step::Deltas { to: at, bits, grouped: rng.random(), newest_first: rng.random() }
        }
        15 if forgets => Step::Forget(at),
        16 if forgets => Step::Restart(at),
        17 if prunes => Step::Remove,
        18 | 19 if prunes => Step::Perform { by: at, removed: rng.random_range(2..REPLICAS) },
        _ => Step::Exchange { from: rng.random_range(0..REPLICAS), to: at },
    }
}
