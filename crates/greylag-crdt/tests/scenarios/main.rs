//! Acceptance scenarios of ddata §12 at the level of types, by their numbers.

mod concurrency;
mod counters;
mod maps;
mod node;
mod parts;
mod pruning;
mod registers;
mod sets;
mod small;
mod uncollected;
mod vectors;
