//! Against real, throw-away servers.

mod dedupe;
mod outbox;
mod queues;
mod support;
