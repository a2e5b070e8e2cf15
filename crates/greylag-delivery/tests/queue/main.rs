//! The event-sourced producer queue over real stores: what it keeps, what it does when they fail,
//! and what a second writer does to it. The rules alone are tested beside them, in `src/queue`.

mod failures;
mod scenarios;
mod snapshots;
mod support;
mod two_controllers;
