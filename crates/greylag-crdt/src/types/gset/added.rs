//! The deltas of a set that only grows.

use std::collections::BTreeSet;

use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::element::Element;

/// The elements that an update added, each once. One element, the usual case, takes no heap memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added<T: Ord>(Elements<T>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Elements<T: Ord> {
    One(T),
    /// No element, or several. Boxed, to keep the usual case of one small.
    #[expect(clippy::box_collection, reason = "a value has room for a delta in itself")]
    Several(Box<BTreeSet<T>>),
}

impl<T: Element> Added<T> {
    #[inline]
    pub(super) fn one(element: T) -> Self {
        Self(Elements::One(element))
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, several) = match &self.0 {
            Elements::One(element) => (Some(element), None),
            Elements::Several(elements) => (None, Some(elements.iter())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Elements::One(_) => 1,
            Elements::Several(elements) => elements.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn join(&mut self, other: &Self) {
        if let Elements::Several(own) = &mut self.0
            && !own.is_empty()
        {
            own.extend(other.iter().cloned());
        } else if self != other {
            *self = self.iter().chain(other.iter()).cloned().collect();
        }
    }

    pub(super) fn encode(&self, out: &mut Encoder) {
        out.u64(self.len() as u64);
        self.iter().for_each(|element| element.encode(out));
    }

    pub(super) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        <BTreeSet<T> as Element>::decode(inp).map(|elements| elements.into_iter().collect())
    }
}

impl<T: Element> FromIterator<T> for Added<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements: BTreeSet<T> = elements.into_iter().collect();
        let only = if elements.len() == 1 { elements.pop_first() } else { None };
        Self(only.map_or_else(|| Elements::Several(Box::new(elements)), Elements::One))
    }
}
