//! User values that the runtime may have to drop.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops a user value and catches a panic of its destructor, which must not unwind into the runtime.
pub(crate) fn discard<T>(value: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
        tracing::error!("a destructor panicked");
    }
}

/// A user value held by the runtime, which [discards](discard) the value on drop.
pub(crate) struct Held<T>(Option<T>);

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Takes the value out.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("given out once")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("given out once")
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            discard(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_held_value_whose_destructor_panics_harms_no_other() {
        let mut values = vec![Held::new(PanicsOnDrop), Held::new(PanicsOnDrop)];
        values.clear();
        assert!(values.is_empty());
    }

    #[test]
    fn a_value_given_out_is_dropped_by_its_taker() {
        let mut held = Held::new(vec![1]);
        held.get_mut().push(2);
        assert_eq!(held.into_inner(), [1, 2]);
    }
}
