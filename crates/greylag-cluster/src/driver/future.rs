//! The futures that users hand to the node.

use std::pin::Pin;

/// A boxed future, as tasks and singletons are given.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
