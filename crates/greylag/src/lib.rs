//! Stateful entities spread over many nodes, found by name, kept alive through crashes, never alive twice.
