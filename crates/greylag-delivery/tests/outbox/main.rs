//! The outbox within an event-sourced entity: what is sent, when, and whatever fails.

mod chain;
mod order;
mod scenario_76;
