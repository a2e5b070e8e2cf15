//! Slots for what other layers of a node show through the service.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// A slot for something that the service shows. It is filled later, since a node's service listens before anything else
/// of the node runs.
pub struct Shown<T: ?Sized>(Arc<OnceLock<Arc<T>>>);

impl<T: ?Sized> Shown<T> {
    /// Fills the slot. Only the first call counts.
    pub fn show(&self, shown: Arc<T>) {
        self.0.set(shown).ok();
    }

    pub(crate) fn get(&self) -> Option<&Arc<T>> {
        self.0.get()
    }
}

impl<T: ?Sized> Default for Shown<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: ?Sized> Clone for Shown<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> fmt::Debug for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shown({})", self.get().is_some())
    }
}
