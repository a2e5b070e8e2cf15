//! What happens in a history, as chance decides it.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// Replicas 0 and 1 stay for ever; the last one may be removed, and then the one before it.
pub(crate) const REPLICAS: usize = 4;

/// An operation; each type makes of it what it can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) kind: u8,
    pub(crate) key: u8,
    pub(crate) inner: u8,
    pub(crate) amount: i8,
}

/// Something that happens.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Operations in one closure.
    Do(usize, Vec<Op>),
    /// Numbers are drawn for another entry.
    Gap(usize),
    /// A full state is put on its way.
    Send(usize),
    /// A state that was put on its way arrives, perhaps not for the first time.
    Receive { sent: usize, to: usize },
    /// A full state travels at once.
    Exchange { from: usize, to: usize },
    /// Some of the deltas made so far travel to one replica: chosen by the bits, as one group or one by one, newest
    /// first or oldest first.
    Deltas { to: usize, bits: u64, grouped: bool, newest_first: bool },
    /// The entry expires at one replica, without trace.
    Forget(usize),
    /// The replicator of one process starts anew, and holds nothing.
    Restart(usize),
    /// The last replica that is there is removed; two stay.
    Remove,
    /// A replica puts under its own name what it has of a removed one.
    Perform { by: usize, removed: usize },
}

/// Half of the histories know no removal, and most no expiry, so that the plain laws get their share.
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
