//! What an instance is given: its identity, and the token that tells when it must end.

use std::sync::Arc;

use tokio::sync::watch;

use crate::driver::future::BoxFuture;

/// The factory of instances that take no messages.
pub(crate) type JobFactory = Arc<dyn Fn(SingletonContext, StopToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// The identity of an instance, for fencing in storage of its own. Source: cluster P5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonContext {
    /// The singleton's name.
    pub name: String,
    /// The id of the instance, drawn for each; never 0.
    pub instance_id: u64,
    /// The `up_number` of the instance's node: lower is older.
    pub oldest_up_number: u32,
}

/// How an instance has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// The instance may handle the messages that wait: no node starts another instance before this one has ended.
    InOrder,
    /// The instance handles no more messages: another node may have started its own.
    AtOnce,
}

/// Tells an instance when it must end.
#[derive(Debug, Clone)]
pub struct StopToken(pub(super) watch::Receiver<Option<Stop>>);

impl StopToken {
    /// Completes when the instance must end.
    pub async fn stopped(&mut self) {
        // Fails if the sender is gone, and then the node has ended.
        let _gone = self.0.wait_for(Option::is_some).await;
    }

    /// Completes when the instance may not even handle the messages that wait.
    pub(super) async fn stopped_at_once(&mut self) {
        let _gone = self.0.wait_for(|stop| *stop == Some(Stop::AtOnce)).await;
    }

    pub(super) fn is_stopped_at_once(&self) -> bool {
        *self.0.borrow() == Some(Stop::AtOnce)
    }

    /// Whether the instance must end.
    pub fn is_stopped(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }
}
