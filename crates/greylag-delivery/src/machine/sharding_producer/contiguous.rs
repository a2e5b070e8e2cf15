//! The end of the contiguous run of numbers that were seen, from 1 on.

use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Contiguous {
    last: u64,
    /// Whether `last + 1 + index` was seen.
    beyond: VecDeque<bool>,
}

impl Contiguous {
    /// Takes one number; each comes once.
    pub(super) fn insert(&mut self, number: u64) {
        let Some(index) = number.checked_sub(self.last + 1) else { return };
        let index = index as usize;
        if index >= self.beyond.len() {
            self.beyond.resize(index + 1, false);
        }
        self.beyond[index] = true;
        while self.beyond.pop_front_if(|seen| *seen).is_some() {
            self.last += 1;
        }
    }

    /// Everything up to this number was seen.
    pub(super) fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_ends_before_the_first_gap() {
        let mut run = Contiguous::default();
        for (number, last) in [(2, 0), (4, 0), (1, 2), (1, 2), (3, 4)] {
            run.insert(number);
            assert_eq!(run.last(), last, "after {number}");
        }
    }
}
