//! Keeps values of a running process out of stored bytes.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static STORES: Cell<bool> = const { Cell::new(false) };
}

/// While a scope is open, values that belong to a running process (reply tokens, references to entities) refuse to be
/// serialized on this thread: stored bytes are read when that process is long gone.
#[must_use = "the scope ends when it is dropped"]
#[derive(Debug)]
pub struct StorageScope {
    outer: bool,
    /// Makes the scope `!Send`: a scope must end on the thread that opened it.
    not_send: PhantomData<*const ()>,
}

impl StorageScope {
    /// Opens a scope on this thread; scopes nest.
    pub fn enter() -> Self {
        Self { outer: STORES.replace(true), not_send: PhantomData }
    }

    /// Whether such a scope is open on this thread.
    pub fn is_open() -> bool {
        STORES.get()
    }
}

impl Drop for StorageScope {
    fn drop(&mut self) {
        STORES.set(self.outer);
    }
}
