//! A log of the tests' behaviours, which also receives the answers of askers.

use std::sync::{Arc, Mutex};

use greylag_core::{ReplyAddress, ReplyOutcome, ReplyPort};

/// What happened, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn push(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl ReplyPort for Log {
    fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
        self.push(match outcome {
            ReplyOutcome::Value { value, .. } => {
                format!("  reply to {}: {}", to.ask_id, value.downcast::<i64>().unwrap())
            }
            ReplyOutcome::Failed(error) => format!("  reply to {}: {error}", to.ask_id),
            ReplyOutcome::Dropped(reason) => format!("  reply to {}: dropped, {reason}", to.ask_id),
        });
    }
}
