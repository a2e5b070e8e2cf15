//! The renaming that the markers of an entry prescribe: a table from intervals of dots to intervals.
//!
//! A range says that a number of a removed replica and a number of an owner name the same leaf. One leaf may have many
//! names: two owners performed the same replica, an owner was removed and performed in its turn, or both. All names
//! that ranges tie together are one class, and one name of the class stands for the leaf: the smallest that no range
//! covers. Classes are closed over all markers of the entry, not replica by replica, so the name depends on the markers
//! alone and not on the order in which a copy learned of them (`a_class_of_names_is_closed_over_all_markers`).
//!
//! Source: ddata Z6.

use std::collections::BTreeSet;

use crate::causality::replica::{Dot, ReplicaId};
use crate::pruning::prune::{Markers, Range};

/// Renames the numbers `low..=high` of one replica to those of another, from `to.number` on.
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

/// A range with its replicas: numbers of the removed one are numbers of the owner.
#[derive(Debug, Clone, Copy)]
struct RenamedRange {
    removed: ReplicaId,
    owner: ReplicaId,
    range: Range,
}

impl RenamedRange {
    fn image(&self, dot: Dot) -> Option<Dot> {
        let number = (dot.replica == self.removed).then(|| self.range.image(dot.number))??;
        Some(Dot::new(self.owner, number))
    }

    fn origin(&self, dot: Dot) -> Option<Dot> {
        let (above, up_to) = self.range.reserved();
        let is_image = dot.replica == self.owner && above < dot.number && dot.number <= up_to;
        is_image.then(|| Dot::new(self.removed, self.range.lo + (dot.number - above)))
    }

    /// The first number of both sides, and the first number beyond both.
    fn ends(&self) -> [Dot; 4] {
        let (above, up_to) = self.range.reserved();
        let (removed, owner) = (self.removed, self.owner);
        let after = |number: u64| number.saturating_add(1);
        [
            Dot::new(removed, after(self.range.lo)),
            Dot::new(removed, after(self.range.hi)),
            Dot::new(owner, after(above)),
            Dot::new(owner, after(up_to)),
        ]
    }
}

/// Limits of pieces, and of names of one leaf. Only ranges that name each other exceed them, and no owner makes such.
const MAX_PIECES: usize = 4_096;
const MAX_NAMES: usize = 64;

/// All renames that the markers of an entry prescribe.
#[derive(Debug, Clone, Default)]
pub struct Moves(Vec<Move>);

impl Moves {
    pub(crate) fn of(markers: &Markers) -> Self {
        let of_marker = |m: &crate::pruning::prune::Performed| {
            let (removed, owner) = (m.removed, m.owner);
            m.ranges.iter().map(move |range| RenamedRange { removed, owner, range: *range }).collect::<Vec<_>>()
        };
        let ranges: Vec<RenamedRange> = markers.iter().flat_map(of_marker).collect();
        let starts = starts(&ranges);
        let mut moves = Vec::new();
        for (index, start) in starts.iter().enumerate() {
            // Up to the next start, the classes of all numbers are shifted by the same distance.
            let next = starts.get(index + 1).filter(|next| next.replica == start.replica);
            let target = representative(*start, &ranges);
            if target != *start
                && let Some(next) = next
            {
                moves.push(Move { from: start.replica, low: start.number, high: next.number - 1, to: target });
            }
        }
        Self(moves)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Move> {
        self.0.iter()
    }

    /// The new name of a dot; `None` if the dot keeps its name.
    pub(crate) fn target(&self, dot: Dot) -> Option<Dot> {
        let at = self.0.partition_point(|m| (m.from, m.high) < (dot.replica, dot.number));
        let found = self.0.get(at).filter(|m| m.from == dot.replica && m.low <= dot.number)?;
        Some(found.target(dot.number))
    }

    /// Whether any number of `replica` is renamed.
    pub(crate) fn concern(&self, replica: ReplicaId) -> bool {
        self.0.iter().any(|m| m.from == replica)
    }
}

/// The starts of pieces within which all classes have the same shape: the ends of ranges, and their images and origins.
/// Ascending.
fn starts(ranges: &[RenamedRange]) -> Vec<Dot> {
    let mut starts: BTreeSet<Dot> = BTreeSet::new();
    let mut open: Vec<Dot> = ranges.iter().flat_map(RenamedRange::ends).collect();
    while let Some(dot) = open.pop() {
        if starts.len() < MAX_PIECES && starts.insert(dot) {
            open.extend(ranges.iter().flat_map(|range| [range.image(dot), range.origin(dot)]).flatten());
        }
    }
    starts.into_iter().collect()
}

/// The representative of a dot: the smallest name of its class that no range covers.
fn representative(dot: Dot, ranges: &[RenamedRange]) -> Dot {
    let mut class = BTreeSet::new();
    let mut open = vec![dot];
    while let Some(name) = open.pop() {
        if class.len() < MAX_NAMES && class.insert(name) {
            open.extend(ranges.iter().flat_map(|range| [range.image(name), range.origin(name)]).flatten());
        }
    }
    let is_covered = |name: &&Dot| ranges.iter().any(|range| range.image(**name).is_some());
    class.iter().find(|name| !is_covered(name)).or(class.first()).copied().unwrap_or(dot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pruning::prune::Performed;

    const R: ReplicaId = ReplicaId(9);
    const O1: ReplicaId = ReplicaId(1);
    const O2: ReplicaId = ReplicaId(2);
    const O3: ReplicaId = ReplicaId(3);

    fn moves(markers: &[(ReplicaId, ReplicaId, u64, u64, u64)]) -> Moves {
        let mut all = Markers::new();
        for (removed, owner, lo, hi, offset) in markers {
            let mut marker = Performed::new(*removed, *owner);
            marker.add_ranges(&[Range { lo: *lo, hi: *hi, offset: *offset }]);
            all.add(&marker);
        }
        Moves::of(&all)
    }

    /// ddata Z6: if several ranges cover a number, the range of the smallest owner and offset counts.
    #[test]
    fn the_smallest_owner_counts_and_other_images_follow() {
        let moves = moves(&[(R, O1, 2, 5, 100), (R, O2, 0, 8, 200)]);
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

    /// ddata Z6: two owners performed a replica, and one of them was removed and performed before the two met.
    #[test]
    fn a_class_of_names_is_closed_over_all_markers() {
        let moves = moves(&[(R, O2, 0, 4, 20), (R, O3, 0, 4, 30), (O3, O1, 30, 32, 10)]);
        let target = |replica, number| moves.target(Dot::new(replica, number));
        for (replica, number) in [(R, 2), (O2, 22), (O3, 32)] {
            assert_eq!(target(replica, number), Some(Dot::new(O1, 12)), "every name of one leaf");
        }
        assert_eq!(target(O1, 12), None);
        assert_eq!(target(R, 3), Some(Dot::new(O2, 23)), "beyond what was performed of the second owner");
        assert_eq!(target(O3, 33), Some(Dot::new(O2, 23)));
    }

    #[test]
    fn ranges_that_name_each_other_end() {
        let moves = moves(&[(R, O1, 0, 1_000_000, 0), (O1, R, 0, 1_000_000, 1)]);
        assert!(moves.iter().count() <= MAX_PIECES);
    }
}
