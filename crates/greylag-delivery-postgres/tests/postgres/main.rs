//! Tests against real, throw-away servers.

mod dedupe;
mod outbox;
mod queues;
mod support;
