//! Lists that mostly have one item or none; there are as many lists as entries.

use std::ops::{Deref, DerefMut};

/// One item, or any other number, in exactly the memory needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SmallList<T> {
    One(T),
    Others(Box<[T]>),
}

impl<T> Default for SmallList<T> {
    fn default() -> Self {
        Self::Others(Box::default())
    }
}

impl<T> Deref for SmallList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::Others(items) => items,
        }
    }
}

impl<T> DerefMut for SmallList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => std::slice::from_mut(item),
            Self::Others(items) => items,
        }
    }
}

impl<T> FromIterator<T> for SmallList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => Self::Others(first.into_iter().chain(second).chain(items).collect()),
        }
    }
}
