//! Walks two sorted lists together.
//!
//! States are compared and merged list by list; a walk side by side costs one step for each entry, and no searches.
//! Source: cluster C5.

use std::cmp::Ordering;
use std::sync::Arc;

#[cfg(test)]
thread_local! {
    /// Steps that this thread has taken, for tests of a machine step's cost.
    pub(crate) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Walks the entries of both lists by their keys, in order: an entry that only one side has comes without a partner.
/// Both lists are sorted, and have each key once.
pub(crate) fn side_by_side<'a, K: Ord + 'a, L, R>(
    left: impl Iterator<Item = (&'a K, L)>,
    right: impl Iterator<Item = (&'a K, R)>,
) -> impl Iterator<Item = (&'a K, Option<L>, Option<R>)> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || {
        #[cfg(test)]
        STEPS.with(|steps| steps.set(steps.get() + 1));
        let order = match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((left, _)), Some((right, _))) => left.cmp(right),
        };
        let from_left = if order.is_le() { left.next() } else { None };
        let from_right = if order.is_ge() { right.next() } else { None };
        let key = from_left.as_ref().map(|(key, _)| *key).or(from_right.as_ref().map(|(key, _)| *key))?;
        Some((key, from_left.map(|(_, value)| value), from_right.map(|(_, value)| value)))
    })
}

/// Walks lists whose entries many lists share, sorted by `order`: entries that are the same value in memory on both
/// sides are not compared.
pub(crate) fn shared_side_by_side<'a, T>(
    left: &'a [Arc<T>],
    right: &'a [Arc<T>],
    order: impl Fn(&T, &T) -> Ordering,
) -> impl Iterator<Item = (Option<&'a Arc<T>>, Option<&'a Arc<T>>)> {
    let (mut left, mut right) = (left.iter(), right.iter());
    std::iter::from_fn(move || {
        #[cfg(test)]
        STEPS.with(|steps| steps.set(steps.get() + 1));
        let order = match (left.as_slice().first(), right.as_slice().first()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) if Arc::ptr_eq(left, right) => Ordering::Equal,
            (Some(left), Some(right)) => order(left, right),
        };
        let from_left = if order.is_le() { left.next() } else { None };
        let from_right = if order.is_ge() { right.next() } else { None };
        Some((from_left, from_right))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_one_side_stands_alone() {
        let left = [(1, 'a'), (2, 'b')];
        let right = [(2, 'B'), (3, 'C')];
        let both: Vec<_> =
            side_by_side(left.iter().map(|(key, value)| (key, *value)), right.iter().map(|(key, value)| (key, *value)))
                .collect();
        assert_eq!(both, [(&1, Some('a'), None), (&2, Some('b'), Some('B')), (&3, None, Some('C'))]);
    }

    #[test]
    fn entries_that_many_lists_share_stand_side_by_side_too() {
        let [one, two, other_two, three] = [1, 2, 2, 3].map(Arc::new);
        let (left, right) = ([one.clone(), two], [one, other_two, three]);
        let both: Vec<_> = shared_side_by_side(&left, &right, Ord::cmp)
            .map(|(left, right)| (left.map(|left| **left), right.map(|right| **right)))
            .collect();
        assert_eq!(both, [(Some(1), Some(1)), (Some(2), Some(2)), (None, Some(3))]);
    }
}
