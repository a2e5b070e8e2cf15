//! Sets of dots.

use crate::causality::replica::Dot;
use crate::stores::small_list::SmallList;

/// Dots without values; the leaf is present as long as one dot is.
///
/// The value of a map's key can be such a set: a flag whose enabling wins, [`crate::FlagStore`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DotSet(pub(super) SmallList<Dot>);

impl DotSet {
    /// The set of one dot.
    pub fn single(dot: Dot) -> Self {
        Self(SmallList::One(dot))
    }

    /// A set of ascending dots.
    pub(crate) fn of(dots: Vec<Dot>) -> Self {
        Self(dots.into())
    }

    /// The dots, ascending.
    #[inline]
    pub fn dots(&self) -> &[Dot] {
        &self.0
    }

    /// Whether the set, as a flag, is on.
    pub fn enabled(&self) -> bool {
        !self.0.is_empty()
    }
}
