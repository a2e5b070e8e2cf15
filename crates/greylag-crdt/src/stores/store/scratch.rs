//! Memory for paths to leaves, kept by each thread: every digest of a leaf needs a path, and allocating each path would
//! cost more than the hash.

use std::cell::Cell;

/// The greatest capacity of a path that is kept.
const KEPT: usize = 4_096;

thread_local! {
    static PATH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An empty path.
pub(super) fn take() -> Vec<u8> {
    PATH.take()
}

pub(super) fn give_back(mut path: Vec<u8>) {
    if path.capacity() <= KEPT {
        path.clear();
        PATH.set(path);
    }
}

/// Runs a function with an empty path.
pub(crate) fn with_path<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut path = take();
    let output = f(&mut path);
    give_back(path);
    output
}
