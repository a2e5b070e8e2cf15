//! Ends asks whose time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::messages::ask::AskTable;
use crate::remoting::OpenAsk;

/// Wakes the task that ends asks when a new ask has the earliest deadline of all.
#[derive(Default)]
pub(crate) struct AskTimer {
    deadline_moved: Notify,
}

impl AskTimer {
    /// Opens an ask that ends after `timeout`.
    pub(crate) fn open(&self, asks: &Arc<AskTable>, timeout: Duration) -> OpenAsk {
        let (ask, is_first) = asks.open(Instant::now(), timeout);
        if is_first {
            self.deadline_moved.notify_one();
        }
        ask
    }

    /// Ends asks at their deadlines, for ever.
    pub(crate) async fn run(&self, asks: &AskTable) {
        loop {
            let deadline = asks.next_deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => asks.expire(Instant::now()),
                () = self.deadline_moved.notified() => {}
            }
        }
    }
}
