//! Pruning: what a removed replica left is put under the name of a live one, and a marker records what went where.
//!
//! Counters name a replica in a slot, causal types in dots. The owner of a pruning round calls
//! [`RemovedNodePruning::prune`], which records in the owner's marker [`Performed`] what was put where; every replica
//! then applies all markers of an entry, by [`Markers::clean`], to whatever it holds and to whatever it receives, so a
//! pruned and an unpruned copy of one update stay one update. Dots and slots that no marker covers stay as they are.
//!
//! Slots *move*: the owner's slot of the entry's present life there grows by what the marker had not moved to it
//! before. Dots are *renamed*, number by number, into a [`Range`] that the owner reserved; renaming is injective and
//! commutes with joins.
//!
//! The replicator decides when to prune, how long markers live and how they travel. Source: ddata §5, Y4, Z6.

use std::collections::{BTreeMap, BTreeSet};

use crate::causality::replica::{DotSource, MAX_NUMBER, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder};

/// The greatest span of numbers that a range covers: as many as two years bring to a replica that keeps its id over
/// restarts and begins each time at the time of day (ddata I2). A wider span is told by a member that lies, and would
/// use up the owner's numbers.
const MAX_SPAN: u64 = 1 << 56;

/// Numbers of a removed replica and their images: `n` with `lo < n <= hi` becomes the owner's number `offset + n - lo`.
///
/// The owner reserves a range for all its entries together ([`Range::reserve`]) and never draws its numbers otherwise.
/// Source: ddata Z6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The number just below the lowest one covered.
    pub lo: u64,
    /// The highest number covered.
    pub hi: u64,
    /// The owner's number just below the lowest image.
    pub offset: u64,
}

impl Range {
    /// Reserves a range for the numbers `lowest..=highest` of a removed replica, with images that the owner's process
    /// has never used and will never draw. `None` if there is no such number, no room for images, or a span wider than
    /// any replica has drawn: the numbers in such data stay as they are.
    pub fn reserve(numbers: &DotSource, lowest: u64, highest: u64) -> Option<Self> {
        let lo = lowest.checked_sub(1)?;
        let count = highest.checked_sub(lo).filter(|count| (1..=MAX_SPAN).contains(count))?;
        Some(Self { lo, hi: highest, offset: numbers.reserve(count)? })
    }

    /// The closed intervals within `lowest..=highest` that no range covers, ascending: the owner has to reserve ranges
    /// for them.
    pub fn uncovered(ranges: &[Self], lowest: u64, highest: u64) -> Vec<(u64, u64)> {
        let mut ranges: Vec<&Self> = ranges.iter().collect();
        ranges.sort_unstable();
        let (mut open, mut next) = (Vec::new(), lowest);
        for range in ranges {
            if next <= highest && range.lo >= next {
                open.push((next, range.lo.min(highest)));
            }
            next = next.max(range.hi.saturating_add(1));
        }
        if next <= highest {
            open.push((next, highest));
        }
        open
    }

    /// Whether the range covers `number`.
    pub fn covers(&self, number: u64) -> bool {
        self.lo < number && number <= self.hi
    }

    /// The owner's number that stands for `number`, if the range covers it.
    pub fn image(&self, number: u64) -> Option<u64> {
        self.covers(number).then(|| self.offset + (number - self.lo))
    }

    /// The owner's numbers `(above, up to]` that are images, as [`crate::UpdateCx::for_entry`] takes them.
    pub fn reserved(&self) -> (u64, u64) {
        (self.offset, self.offset + (self.hi - self.lo))
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.lo);
        out.u64(self.hi - self.lo);
        out.u64(self.offset);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (lo, count, offset) = (inp.u64()?, inp.u64()?, inp.u64()?);
        let is_drawn = |number: u64| number <= MAX_NUMBER;
        let hi = lo.checked_add(count).filter(|hi| *hi > lo && is_drawn(*hi));
        let hi = hi.filter(|_| offset.checked_add(count).is_some_and(is_drawn));
        Ok(Self { lo, hi: hi.ok_or(DecodeError::Invalid("a range exceeds the number space"))?, offset })
    }
}

/// The path to one counter of a value, as part numbers. A value that is one counter has the empty path.
type PartPath = Vec<u16>;

/// The births of two slots: of the removed replica's, and of the owner's that received the amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Births {
    from: u64,
    to: u64,
}

/// How much of a removed replica's slots was moved to slots of the owner: an amount for each pair of slots, of each counter
/// in a value (both halves of a `PNCounter`, each counter of a composed struct). Source: ddata Y4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved(BTreeMap<(PartPath, Births), u128>);

impl Moved {
    /// The amount moved from the removed replica's slot born at `from` to the owner's slot born at `to`, in a value
    /// that is one counter.
    pub fn amount(&self, from: u64, to: u64) -> u128 {
        self.0.get(&(PartPath::new(), Births { from, to })).copied().unwrap_or(0)
    }

    /// The greatest amount moved from the removed replica's slot born at `from`, in a value that is one counter.
    pub fn greatest(&self, from: u64) -> u128 {
        self.amounts().filter(|(own, _, _)| *own == from).map(|(_, _, amount)| amount).max().unwrap_or(0)
    }

    /// The moved amounts, with the births of the removed replica's slot and of the owner's, in a value that is one
    /// counter.
    pub fn amounts(&self) -> impl Iterator<Item = (u64, u64, u128)> + '_ {
        // The empty path sorts first.
        let alone = self.0.iter().take_while(|((path, _), _)| path.is_empty());
        alone.map(|((_, births), amount)| (births.from, births.to, *amount))
    }

    /// Sets the amount moved from one slot to another, in a value that is one counter.
    pub fn set_amount(&mut self, from: u64, to: u64, amount: u128) {
        self.0.insert((PartPath::new(), Births { from, to }), amount);
    }

    /// Whether nothing was moved.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The amounts moved within one part of a composed value.
    #[must_use]
    pub fn part(&self, index: u16) -> Self {
        let inner = self.0.iter().filter(|((path, _), _)| path.first() == Some(&index));
        Self(inner.map(|((path, births), amount)| ((path[1..].to_vec(), *births), *amount)).collect())
    }

    /// Takes over the amounts moved within one part of a composed value.
    pub fn set_part(&mut self, index: u16, part: Self) {
        self.0.retain(|(path, _), _| path.first() != Some(&index));
        let outer =
            part.0.into_iter().map(|((path, births), amount)| (([&[index], &path[..]].concat(), births), amount));
        self.0.extend(outer);
    }

    /// Keeps the greater amount of each pair of slots.
    pub fn join(&mut self, other: &Self) {
        for (slots, amount) in &other.0 {
            let own = self.0.entry(slots.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }

    /// Forgets the births of the owner's slots; for simulations that prove their checkers. Source: ddata scenario 86.
    #[doc(hidden)]
    pub fn forget_owner_slots(&mut self) {
        for ((path, births), amount) in std::mem::take(&mut self.0) {
            let own = self.0.entry((path, Births { to: 0, ..births })).or_default();
            *own = (*own).max(amount);
        }
    }

    fn includes(&self, other: &Self) -> bool {
        other.0.iter().all(|(slots, amount)| self.0.get(slots).copied().unwrap_or(0) >= *amount)
    }

    /// The slots of the removed replica from which an amount was moved.
    fn sources(&self) -> impl Iterator<Item = (&PartPath, u64)> {
        self.0.keys().map(|(path, births)| (path, births.from))
    }

    /// Whether any slot has a birth; if none has, births are not written.
    fn has_births(&self) -> bool {
        self.0.keys().any(|(_, births)| *births != Births::default())
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.0.len() as u64);
        for ((path, _), amount) in &self.0 {
            out.u64(path.len() as u64);
            path.iter().for_each(|index| out.u64((*index).into()));
            out.u128(*amount);
        }
    }

    fn encode_births(&self, out: &mut Encoder) {
        for (_, births) in self.0.keys() {
            out.u64(births.from);
            out.u64(births.to);
        }
    }

    /// Reads paths and amounts, as `encode` wrote them.
    fn decode(inp: &mut Decoder<'_>) -> Result<Vec<(PartPath, u128)>, DecodeError> {
        let mut moved = Vec::new();
        for _ in 0..inp.count()? {
            let mut path = PartPath::new();
            for _ in 0..inp.count()? {
                path.push(inp.u64()?.try_into().map_err(|_| DecodeError::Invalid("a part's number is too large"))?);
            }
            moved.push((path, inp.u128()?));
        }
        Ok(moved)
    }

    /// Reads the births that belong to `moved`, if any were written.
    fn decode_births(
        inp: &mut Decoder<'_>,
        moved: Vec<(PartPath, u128)>,
        has_births: bool,
    ) -> Result<Self, DecodeError> {
        let mut all = BTreeMap::new();
        for (path, amount) in moved {
            let births = if has_births { Births { from: inp.u64()?, to: inp.u64()? } } else { Births::default() };
            let slots = (path, births);
            if all.last_key_value().is_some_and(|(last, _)| *last >= slots) {
                return Err(DecodeError::NotCanonical("amounts do not ascend"));
            }
            all.insert(slots, amount);
        }
        let moved = Self(all);
        if has_births && !moved.has_births() {
            return Err(DecodeError::NotCanonical("slots without births must be written in format 1"));
        }
        Ok(moved)
    }
}

/// The marker of one owner for one removed replica in one entry: it records what was put where. Source: ddata Z5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Performed {
    /// The removed replica.
    pub removed: ReplicaId,
    /// The replica under whose name the data is now.
    pub owner: ReplicaId,
    /// How dots were renamed, ascending; empty for counters.
    pub ranges: Vec<Range>,
    /// The amounts moved out of slots; empty for causal types.
    pub moved: Moved,
    /// When the owner performed the replica last: wall clock, milliseconds since 1970.
    pub performed_at: i64,
    /// From when on the marker may be forgotten (ddata Z9); `None` is never.
    pub obsolete_at: Option<i64>,
}

impl Performed {
    /// A marker that records nothing yet.
    pub fn new(removed: ReplicaId, owner: ReplicaId) -> Self {
        let (ranges, moved) = (Vec::new(), Moved::default());
        Self { removed, owner, ranges, moved, performed_at: i64::MIN, obsolete_at: Some(i64::MIN) }
    }

    /// The marker restricted to one part of a composed value.
    #[must_use]
    pub fn part(&self, index: u16) -> Self {
        Self { moved: self.moved.part(index), ..self.clone() }
    }

    /// Takes over what was performed on one part of a composed value.
    pub fn set_part(&mut self, index: u16, part: Self) {
        self.add_ranges(&part.ranges);
        self.moved.set_part(index, part.moved);
    }

    /// Adds the ranges that the marker lacks.
    pub fn add_ranges(&mut self, ranges: &[Range]) {
        self.ranges.extend_from_slice(ranges);
        self.ranges.sort_unstable();
        self.ranges.dedup();
    }

    /// Whether one of the marker's ranges covers `number` of the removed replica.
    pub fn covers(&self, number: u64) -> bool {
        self.ranges.iter().any(|range| range.covers(number))
    }

    /// Joins a marker of the same owner for the same replica: all ranges, greatest amounts, latest times.
    fn join(&mut self, other: &Self) {
        self.add_ranges(&other.ranges);
        self.moved.join(&other.moved);
        self.performed_at = self.performed_at.max(other.performed_at);
        self.obsolete_at = self.obsolete_at.zip(other.obsolete_at).map(|(own, theirs)| own.max(theirs));
    }

    fn includes(&self, other: &Self) -> bool {
        other.ranges.iter().all(|range| self.ranges.contains(range)) && self.moved.includes(&other.moved)
    }

    fn key(&self) -> (ReplicaId, ReplicaId) {
        (self.removed, self.owner)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.removed.0);
        out.u64(self.owner.0);
        out.u64(self.ranges.len() as u64);
        self.ranges.iter().for_each(|range| range.encode(out));
        self.moved.encode(out);
        out.i64(self.performed_at);
        let has_births = self.moved.has_births();
        out.u8(u8::from(self.obsolete_at.is_some()) | if has_births { WITH_BIRTHS } else { 0 });
        if let Some(obsolete_at) = self.obsolete_at {
            out.i64(obsolete_at);
        }
        if has_births {
            self.moved.encode_births(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (removed, owner) = (ReplicaId(inp.u64()?), ReplicaId(inp.u64()?));
        if removed == owner {
            return Err(DecodeError::Invalid("a marker's owner is the removed replica itself"));
        }
        let mut ranges: Vec<Range> = Vec::new();
        for _ in 0..inp.count()? {
            let range = Range::decode(inp)?;
            if ranges.last().is_some_and(|last| *last >= range) {
                return Err(DecodeError::NotCanonical("ranges do not ascend"));
            }
            ranges.push(range);
        }
        let (moved, performed_at) = (Moved::decode(inp)?, inp.i64()?);
        let kind = inp.u8()?;
        let obsolete_at = match kind & !WITH_BIRTHS {
            0 => None,
            1 => Some(inp.i64()?),
            _ => return Err(DecodeError::Invalid("unknown kind of a marker's end")),
        };
        let moved = Moved::decode_births(inp, moved, kind & WITH_BIRTHS != 0)?;
        Ok(Self { removed, owner, ranges, moved, performed_at, obsolete_at })
    }
}

/// The byte that says whether a marker ends has this bit if births of slots follow. A version that reads no births
/// refuses the byte.
const WITH_BIRTHS: u8 = 2;

/// All markers of one entry, one for each removed replica and owner, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Markers(Vec<Performed>);

impl Markers {
    /// No marker.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether there is no marker.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All markers.
    pub fn iter(&self) -> impl Iterator<Item = &Performed> {
        self.0.iter()
    }

    /// The replicas that have a marker, ascending.
    pub fn removed(&self) -> BTreeSet<ReplicaId> {
        self.0.iter().map(|marker| marker.removed).collect()
    }

    /// The markers of one removed replica.
    pub fn of(&self, removed: ReplicaId) -> &[Performed] {
        let from = self.0.partition_point(|marker| marker.removed < removed);
        let to = self.0.partition_point(|marker| marker.removed <= removed);
        &self.0[from..to]
    }

    /// One owner's marker of a removed replica.
    pub fn get(&self, removed: ReplicaId, owner: ReplicaId) -> Option<&Performed> {
        self.place(removed, owner).ok().map(|at| &self.0[at])
    }

    fn place(&self, removed: ReplicaId, owner: ReplicaId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&(removed, owner), Performed::key)
    }

    /// Unites with a marker: all ranges, greatest amounts, latest times.
    ///
    /// Markers that moved one slot to two, of two owners or of two lives of an owner's entry, are never forgotten,
    /// because values are computed from both. Source: ddata Z7, Y4.
    pub fn add(&mut self, marker: &Performed) {
        match self.place(marker.removed, marker.owner) {
            Ok(at) => self.0[at].join(marker),
            Err(at) => self.0.insert(at, marker.clone()),
        }
        let sources = self.of(marker.removed).iter().flat_map(|own| own.moved.sources());
        let mut targets: BTreeMap<(&PartPath, u64), usize> = BTreeMap::new();
        sources.for_each(|slot| *targets.entry(slot).or_default() += 1);
        targets.retain(|_, count| *count > 1);
        if targets.is_empty() {
            return;
        }
        let twice: BTreeSet<(PartPath, u64)> = targets.into_keys().map(|(path, birth)| (path.clone(), birth)).collect();
        let of_removed = self.0.iter_mut().filter(|own| own.removed == marker.removed);
        for own in of_removed {
            if own.moved.sources().any(|(path, birth)| twice.contains(&(path.clone(), birth))) {
                own.obsolete_at = None;
            }
        }
    }

    /// Unites with all markers of another copy of the entry.
    pub fn unite(&mut self, other: &Self) {
        other.0.iter().for_each(|marker| self.add(marker));
    }

    /// Whether every marker, range and amount of `other` is here too: a delta that was sent with `other` may then be
    /// joined here. Source: ddata Z7.
    pub fn includes(&self, other: &Self) -> bool {
        other.0.iter().all(|marker| self.get(marker.removed, marker.owner).is_some_and(|own| own.includes(marker)))
    }

    /// Moves the end of every marker on by `millis`, a time in which nothing ran that could have needed the marker.
    /// Source: ddata Z9.
    pub fn prolong(&mut self, millis: i64) {
        for end in self.0.iter_mut().filter_map(|marker| marker.obsolete_at.as_mut()) {
            *end = end.saturating_add(millis);
        }
    }

    /// Drops the markers that `keep` refuses.
    pub fn retain(&mut self, keep: impl FnMut(&Performed) -> bool) {
        self.0.retain(keep);
    }

    /// Applies all markers to a value. Returns whether anything changed. Source: ddata Z7.
    pub fn clean(&self, value: &mut dyn RemovedNodePruning) -> bool {
        value.cleanup(self)
    }

    /// The markers restricted to one part of a composed value.
    #[must_use]
    pub fn part(&self, index: u16) -> Self {
        Self(self.0.iter().map(|marker| marker.part(index)).collect())
    }

    /// Appends canonical bytes.
    pub fn encode(&self, out: &mut Encoder) {
        out.u64(self.0.len() as u64);
        self.0.iter().for_each(|marker| marker.encode(out));
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut markers: Vec<Performed> = Vec::new();
        for _ in 0..inp.count()? {
            let marker = Performed::decode(inp)?;
            if markers.last().is_some_and(|last| last.key() >= marker.key()) {
                return Err(DecodeError::NotCanonical("markers do not ascend"));
            }
            markers.push(marker);
        }
        Ok(Self(markers))
    }
}

/// The pruning of a replicated type: finds and renames what removed replicas left. Source: ddata §2, §5.
pub trait RemovedNodePruning {
    /// The replicas that slots, dots or contexts name.
    fn modified_by(&self) -> BTreeSet<ReplicaId>;

    /// Whether no marker covers something of `removed`: a dot in no range, or a slot above every amount. `markers` are
    /// all markers of that replica. Source: ddata Z5.
    fn needs_pruning(&self, removed: ReplicaId, markers: &[Performed]) -> bool;

    /// The lowest and the highest number of `removed` in stores, slot ids and contexts; `None` for counters, and where
    /// `removed` is not named. Source: ddata Z6.
    fn numbers_of(&self, removed: ReplicaId) -> Option<(u64, u64)>;

    /// Puts what `removed` left under the name of `own.owner`, and records it in `own`, that owner's marker. `ranges`
    /// are those that the owner reserved for `removed`; counters need none. `birth` is that of the entry at the owner
    /// ([`crate::Home::born`]), and names the slots that counters move amounts to; dots need none. Call
    /// [`Markers::clean`] with all markers afterwards. Source: ddata Z5, Z6, Y4.
    fn prune(&mut self, removed: ReplicaId, ranges: &[Range], birth: u64, own: &mut Performed);

    /// Applies all markers of the entry; moves that `markers` does not name are forgotten. Returns whether anything
    /// changed. Source: ddata Z7, Y4.
    fn cleanup(&mut self, markers: &Markers) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata §9, K2: a range whose numbers or images no process draws cannot be decoded.
    #[test]
    fn ranges_that_no_process_draws_are_not_decoded() {
        let of = |lo: u64, count: u64, offset: u64| Range { lo, hi: lo + count, offset };
        for (range, is_read) in [
            (of(4, 9, 100), true),
            (of(MAX_NUMBER - 9, 9, MAX_NUMBER - 9), true),
            (of(MAX_NUMBER - 8, 9, 100), false),
            (of(4, 9, MAX_NUMBER - 8), false),
            (of(4, 9, u64::MAX - 9), false),
        ] {
            let mut out = Encoder::new();
            range.encode(&mut out);
            assert_eq!(Range::decode(&mut Decoder::new(&out.finish())).is_ok(), is_read, "{range:?}");
        }
    }

    /// ddata §9, K2: nothing is reserved for more numbers than any replica draws, however many are left.
    #[test]
    fn spans_that_no_replica_draws_are_not_reserved() {
        let numbers = DotSource::above(100);
        assert_eq!(Range::reserve(&numbers, 1, MAX_SPAN + 1), None);
        assert_eq!(numbers.last(), 100);
        assert!(Range::reserve(&numbers, 2, MAX_SPAN + 1).is_some());
        assert_eq!(numbers.last(), 100 + MAX_SPAN);
    }
}
