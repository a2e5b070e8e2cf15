//! Reliable delivery: ordered, flow-controlled, confirmed; effects exactly once at event-sourced entities.
