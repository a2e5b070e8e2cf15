//! Stateful entities spread over many nodes: found by name, kept alive through crashes, never alive
//! twice.
//!
//! The facade puts the layers together; each is a crate of its own and can be used alone.
