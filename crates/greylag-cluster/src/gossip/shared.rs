//! Values that many states share: cloned by reference, copied when one holder changes its own.
//!
//! A gossip state is passed on, kept, compared and shown many times between two changes of its parts. An unchanged part
//! is then one value, and equality is a comparison of references. Source: cluster C5.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value shared by its holders. A change by one holder leaves the others' value as it is.
#[derive(Clone, Default)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Whether both are the same value in memory; equal values may be separate.
    pub fn is(left: &Self, right: &Self) -> bool {
        Arc::ptr_eq(&left.0, &right.0)
    }
}

impl<T: PartialEq> Shared<T> {
    /// Makes `one` the same value in memory as `other`, if they are equal.
    pub(crate) fn share(one: &mut Self, other: &Self) {
        if !Self::is(one, other) && one.0 == other.0 {
            *one = Self(other.0.clone());
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<'a, T> IntoIterator for &'a Shared<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&*self.0).into_iter()
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Self::is(self, other) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_other_holders_as_they_are() {
        let one = Shared::from(vec![1]);
        let mut two = one.clone();
        assert!(Shared::is(&one, &two));
        two.push(2);
        assert_eq!((one.len(), two.len()), (1, 2));
        assert_ne!(one, two);
    }
}
