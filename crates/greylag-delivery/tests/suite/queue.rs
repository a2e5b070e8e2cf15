//! The event-sourced producer queue over real stores: its content, its behaviour when a store fails, and second
//! writers. The rules alone are tested in `src/queue`.

mod failures;
mod scenarios;
mod snapshots;
mod support;
mod two_controllers;
