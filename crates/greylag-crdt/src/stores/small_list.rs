//! Lists that nearly always have one item; one item takes no heap memory.

use std::ops::{Deref, DerefMut};

/// No item, one, or several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum SmallList<T> {
    #[default]
    None,
    One(T),
    /// Two or more.
    Many(Vec<T>),
}

impl<T> SmallList<T> {
    pub(crate) fn push(&mut self, item: T) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(item),
            Self::One(first) => Self::Many(vec![first, item]),
            Self::Many(mut items) => {
                items.push(item);
                Self::Many(items)
            }
        };
    }
}

impl<T> Deref for SmallList<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

impl<T> DerefMut for SmallList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(item) => std::slice::from_mut(item),
            Self::Many(items) => items,
        }
    }
}

impl<T> FromIterator<T> for SmallList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut few = Self::None;
        items.into_iter().for_each(|item| few.push(item));
        few
    }
}

impl<T> From<Vec<T>> for SmallList<T> {
    fn from(mut items: Vec<T>) -> Self {
        match items.len() {
            0 => Self::None,
            1 => items.pop().map_or(Self::None, Self::One),
            _ => Self::Many(items),
        }
    }
}

impl<T> IntoIterator for SmallList<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::None => (None, Vec::new()),
            Self::One(item) => (Some(item), Vec::new()),
            Self::Many(items) => (None, items),
        };
        one.into_iter().chain(many)
    }
}
