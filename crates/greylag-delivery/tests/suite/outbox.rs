//! The outbox within an event-sourced entity: which messages are sent, and when, under any failure.

mod chain;
mod order;
mod scenario_76;
