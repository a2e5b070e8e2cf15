//! A count-min sketch: estimates how often ids were used, in a fixed space.
//!
//! Each row counts every use in one counter, chosen by a hash, and the smallest of an id's counters is the estimate: it
//! is too high if other ids share all of them, and never too low while no counter is full. All counters are halved from
//! time to time, so that small counters suffice and old uses fade.
//!
//! Source: "TinyLFU", Einziger et al. 2017, §3; "An Improved Data Stream Summary", Cormode and Muthukrishnan 2005.

use super::policy::FrequencySketch;

/// Most counters of a row.
const MAX_WIDTH: u64 = 1 << 31;

/// Counters of a row for a limit, or `None` if they are too many.
pub(super) fn width(multiplier: u32, limit: usize) -> Option<u64> {
    let limit = u64::try_from(limit).ok()?.checked_next_power_of_two()?;
    limit.checked_mul(u64::from(multiplier)).filter(|width| *width <= MAX_WIDTH)
}

/// The sketch of a shard.
#[derive(Debug)]
pub(super) struct Sketch {
    settings: FrequencySketch,
    /// Counters of a row.
    width: u64,
    /// Row after row, several counters to a word. Empty until the first use, since most limits of a starting region are
    /// replaced before that.
    words: Vec<u64>,
    /// Counted uses since the start, halved with the counters.
    uses: u64,
    reset_at: u64,
}

impl Sketch {
    /// An empty sketch for a limit.
    pub(super) fn new(settings: FrequencySketch, limit: usize) -> Self {
        let width = width(settings.width_multiplier, limit).unwrap_or(MAX_WIDTH);
        let reset_at = (settings.reset_multiplier * limit as f64) as u64;
        Self { settings, width, words: Vec::new(), uses: 0, reset_at: reset_at.max(1) }
    }

    /// Counts a use of the id with this hash, unless all its counters are full.
    pub(super) fn count(&mut self, hash: u64) {
        if self.words.is_empty() {
            self.words = vec![0; self.row_words() * usize::from(self.settings.depth)];
        }
        let mut counted = false;
        for row in 0..self.settings.depth {
            let (word, shift) = self.counter(row, hash);
            let full = self.full() << shift;
            if self.words[word] & full != full {
                self.words[word] += 1 << shift;
                counted = true;
            }
        }
        self.uses += u64::from(counted);
        if self.uses >= self.reset_at {
            self.halve();
        }
    }

    /// Estimates how often the id with this hash was used.
    pub(super) fn estimate(&self, hash: u64) -> u64 {
        if self.words.is_empty() {
            return 0;
        }
        let counts = (0..self.settings.depth).map(|row| {
            let (word, shift) = self.counter(row, hash);
            self.words[word] >> shift & self.full()
        });
        counts.min().unwrap_or(0)
    }

    fn halve(&mut self) {
        let bits = u32::from(self.settings.counter_bits);
        let half = (0..64 / bits).fold(0, |mask, at| mask | (self.full() >> 1) << (at * bits));
        self.words.iter_mut().for_each(|word| *word = *word >> 1 & half);
        self.uses /= 2;
    }

    /// The value of a full counter.
    fn full(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.settings.counter_bits))
    }

    fn row_words(&self) -> usize {
        self.width.div_ceil(self.per_word()) as usize
    }

    fn per_word(&self) -> u64 {
        64 / u64::from(self.settings.counter_bits)
    }

    /// The word and the shift of an id's counter in a row.
    fn counter(&self, row: u8, hash: u64) -> (usize, u32) {
        let mixed = mix(hash.wrapping_add((u64::from(row) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        // Scales 32 random bits to the width, without the division that a remainder costs.
        let at = ((mixed >> 32) * self.width) >> 32;
        let word = usize::from(row) * self.row_words() + (at / self.per_word()) as usize;
        (word, (at % self.per_word()) as u32 * u32::from(self.settings.counter_bits))
    }
}

/// Spreads every bit over all others. Source: the finalizer of SplitMix64, Steele et al. 2014.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(counter_bits: u8, reset_multiplier: f64, limit: usize) -> Sketch {
        Sketch::new(FrequencySketch { counter_bits, reset_multiplier, ..FrequencySketch::default() }, limit)
    }

    #[test]
    fn uses_are_counted_up_to_a_full_counter() {
        for (bits, most) in [(2, 3), (4, 15), (8, 255), (16, 300), (32, 300), (64, 300)] {
            let mut sketch = sketch(bits, 1000.0, 10);
            for _ in 0..300 {
                sketch.count(7);
            }
            assert_eq!((sketch.estimate(7), sketch.estimate(8)), (most, 0), "{bits} bits");
        }
    }

    #[test]
    fn counters_are_halved_after_so_many_uses() {
        let mut sketch = sketch(4, 2.0, 10);
        (0..19).for_each(|at| sketch.count(u64::from(at > 8)));
        assert_eq!((sketch.estimate(0), sketch.estimate(1)), (9, 10));
        sketch.count(1);
        assert_eq!((sketch.estimate(0), sketch.estimate(1)), (4, 5));
        // The count of uses is halved too, so that the next halving is due after ten more.
        (0..9).for_each(|_| sketch.count(0));
        assert_eq!(sketch.estimate(0), 13);
        sketch.count(1);
        assert_eq!((sketch.estimate(0), sketch.estimate(1)), (6, 3));
    }

    #[test]
    fn few_ids_of_many_share_all_their_counters() {
        let mut sketch = sketch(4, 10.0, 1000);
        (0..1000).for_each(|id| sketch.count(mix(id)));
        let wrong = (0..1000).filter(|id| sketch.estimate(mix(*id)) != 1).count();
        assert!(wrong < 30, "{wrong}");
    }

    #[test]
    fn the_width_is_bounded() {
        assert_eq!((width(4, 1), width(4, 20), width(3, 20)), (Some(4), Some(128), Some(96)));
        assert_eq!((width(1, 1 << 31), width(2, 1 << 31), width(1, usize::MAX)), (Some(1 << 31), None, None));
    }
}
