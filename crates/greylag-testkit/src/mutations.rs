//! Damaged input for decoders: a short run of what a fuzzer does, the same each time.
//!
//! Makes damaged inputs from examples that decode: bits flipped, bytes replaced by critical values, ranges cut, doubled
//! and spliced together. `fuzz/` runs the same checks for millions of inputs.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Byte values around which lengths, tags and signs change.
const CRITICAL_BYTES: [u8; 10] = [0x00, 0x01, 0x08, 0x0a, 0x12, 0x1a, 0x7f, 0x80, 0xfe, 0xff];

/// Calls `check` with every example, and with `runs` damaged ones. A check that fails panics, and should put the input
/// into its message.
///
/// # Panics
/// If there is no example.
pub fn damaged(examples: &[Vec<u8>], runs: u32, seed: u64, mut check: impl FnMut(&[u8])) {
    assert!(!examples.is_empty(), "there is nothing to damage");
    examples.iter().for_each(|example| check(example));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..runs {
        let mut bytes = examples[rng.random_range(0..examples.len())].clone();
        for _ in 0..rng.random_range(1..=4) {
            damage(&mut bytes, examples, &mut rng);
        }
        check(&bytes);
    }
}

fn damage(bytes: &mut Vec<u8>, examples: &[Vec<u8>], rng: &mut ChaCha8Rng) {
    let len = bytes.len();
    let at = rng.random_range(0..=len);
    let end = rng.random_range(at..=len);
    match rng.random_range(0..7) {
        0 if at < len => bytes[at] ^= 1 << rng.random_range(0..8),
        1 if at < len => bytes[at] = CRITICAL_BYTES[rng.random_range(0..CRITICAL_BYTES.len())],
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => {
            let other = &examples[rng.random_range(0..examples.len())];
            let from = rng.random_range(0..=other.len());
            bytes.splice(at..end, other[from..].iter().copied());
        }
        _ => bytes.insert(at, rng.random()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_depends_on_the_seed_only() {
        let run = |seed| {
            let mut seen = Vec::new();
            damaged(&[b"abcdef".to_vec(), vec![0; 40]], 50, seed, |bytes| seen.push(bytes.to_vec()));
            seen
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert_eq!(run(1).len(), 52);
    }
}
