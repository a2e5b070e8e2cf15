//! What the markers of one removed replica do to dots: a table from intervals to intervals.
//!
//! If several ranges cover a number, the one with the smallest owner and offset counts, and images that another range
//! made are renamed to its image, so that two owners who performed the same replica end with one dot per leaf.
//!
//! Source: ddata Z6.

use crate::prune::{Performed, Range};
use crate::replica::{Dot, ReplicaId};

/// The numbers `low..=high` of one replica become those of another, from `to.number` on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) from: ReplicaId,
    pub(crate) low: u64,
    pub(crate) high: u64,
    to: Dot,
}

impl Move {
    pub(crate) fn target(&self, number: u64) -> Dot {
        Dot::new(self.to.replica, self.to.number + (number - self.low))
    }
}

/// Every move that the markers of one removed replica make, all at once.
#[derive(Debug, Clone, Default)]
pub struct Moves(Vec<Move>);

impl Moves {
    pub(crate) fn of(removed: ReplicaId, markers: &[Performed]) -> Self {
        let mut ranges: Vec<(ReplicaId, Range)> =
            markers.iter().flat_map(|marker| marker.ranges.iter().map(|range| (marker.owner, *range))).collect();
        ranges.sort_unstable_by_key(|(owner, range)| (*owner, range.offset));
        // The moves of the removed replica's own numbers so far, and those of images that do not count.
        let (mut decided, mut aliases): (Vec<Move>, Vec<Move>) = (Vec::new(), Vec::new());
        for (owner, range) in ranges {
            let image = |number| Dot::new(owner, range.offset + (number - range.lo));
            let mut open = vec![(range.lo + 1, range.hi)];
            for earlier in &decided {
                let (low, high) = (earlier.low.max(range.lo + 1), earlier.high.min(range.hi));
                if low > high {
                    continue;
                }
                let (from, to) = (image(low), earlier.target(low));
                if from != to {
                    let last = from.number + (high - low);
                    aliases.push(Move { from: owner, low: from.number, high: last, to });
                }
                open = open.into_iter().flat_map(|piece| without(piece, (low, high))).collect();
            }
            decided.extend(open.into_iter().map(|(low, high)| Move { from: removed, low, high, to: image(low) }));
        }
        decided.append(&mut aliases);
        Self(decided)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Move> {
        self.0.iter()
    }

    /// What a dot is called from now on, if that is something else.
    pub(crate) fn target(&self, dot: Dot) -> Option<Dot> {
        let mut moves = self.0.iter();
        let found = moves.find(|m| m.from == dot.replica && m.low <= dot.number && dot.number <= m.high)?;
        Some(found.target(dot.number))
    }

    /// Whether numbers of this replica are moved.
    pub(crate) fn concern(&self, replica: ReplicaId) -> bool {
        self.0.iter().any(|m| m.from == replica)
    }
}

/// A closed interval without what lies in another.
fn without((low, high): (u64, u64), cut: (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let below = (low < cut.0).then(|| (low, high.min(cut.0 - 1)));
    let above = (high > cut.1).then(|| (low.max(cut.1 + 1), high));
    // Disjoint from the cut altogether, both halves would be the whole.
    let whole = high < cut.0 || low > cut.1;
    let pieces = if whole { [Some((low, high)), None] } else { [below, above] };
    pieces.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: ReplicaId = ReplicaId(9);
    const O1: ReplicaId = ReplicaId(1);
    const O2: ReplicaId = ReplicaId(2);

    fn marker(owner: ReplicaId, ranges: &[(u64, u64, u64)]) -> Performed {
        let mut marker = Performed::new(R, owner);
        marker.add_ranges(
            &ranges.iter().map(|(lo, hi, offset)| Range { lo: *lo, hi: *hi, offset: *offset }).collect::<Vec<_>>(),
        );
        marker
    }

    /// ddata Z6: of several ranges that cover a number, the one of the smallest owner and offset counts.
    #[test]
    fn the_smallest_owner_counts_and_other_images_follow() {
        let markers = [marker(O1, &[(2, 5, 100)]), marker(O2, &[(0, 8, 200)])];
        let moves = Moves::of(R, &markers);
        let target = |replica, number| moves.target(Dot::new(replica, number));
        assert_eq!(target(R, 1), Some(Dot::new(O2, 201)));
        assert_eq!(target(R, 3), Some(Dot::new(O1, 101)));
        assert_eq!(target(R, 5), Some(Dot::new(O1, 103)));
        assert_eq!(target(R, 8), Some(Dot::new(O2, 208)));
        assert_eq!(target(R, 9), None, "uncovered");
        assert_eq!(target(O2, 204), Some(Dot::new(O1, 102)), "the other owner's image of number 4");
        assert_eq!(target(O2, 201), None, "an image that counts stays");
        assert_eq!(target(O1, 101), None);
    }
}
