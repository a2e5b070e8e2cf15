//! Where the calls of a producer's handles become one sequence.
//!
//! A call takes its place when its future is first polled, and never waits for it: the number of a message depends on
//! the order of calls alone, and not on room, or on who gave up. Each caller waits for the answer to its own call, so no
//! more calls wait than there are callers.
//!
//! Source: delivery §6 (FIFO in first-poll order), P13.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::mpsc;

/// The way in. When the last clone is dropped, the producer's task finds its inbox closed.
#[derive(Debug)]
pub(crate) struct Entrance<C> {
    /// Handles of an earlier generation are superseded.
    generation: u64,
    shared: Arc<Shared<C>>,
}

#[derive(Debug)]
struct Shared<C> {
    line: Mutex<Line<C>>,
    /// Messages that asked for room and do not ask any more.
    served: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Line<C> {
    generation: u64,
    last_ticket: u64,
    /// Messages that asked for room.
    asked: u64,
    commands: mpsc::UnboundedSender<C>,
}

/// Why a call did not get in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEntered {
    /// The producer has ended.
    Ended,
    /// The producer was started again, and this handle is an old one.
    Superseded,
}

/// Why a message did not get in, with the message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSubmitted<S, C> {
    /// The producer has ended; this is the call that was made of the message.
    Ended(C),
    /// The producer was started again, and this handle is an old one.
    Superseded(S),
    /// As many messages wait for room as may.
    Full(S),
}

/// Tells the task something when it is dropped, unless it is disarmed before: a caller that gives up, or a permit that
/// is not used.
#[derive(Debug)]
pub(crate) struct OnDrop<C> {
    entrance: Entrance<C>,
    call: Option<C>,
}

impl<C> OnDrop<C> {
    pub(crate) fn disarm(mut self) {
        self.call = None;
    }
}

impl<C> Drop for OnDrop<C> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.entrance.tell(call);
        }
    }
}

impl<C> Entrance<C> {
    /// An entrance, the task's inbox, and the task's count of messages that ask for room no more.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<C>, Arc<AtomicU64>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let served = Arc::new(AtomicU64::new(0));
        let line = Mutex::new(Line { generation: 0, last_ticket: 0, asked: 0, commands });
        let shared = Arc::new(Shared { line, served: served.clone() });
        (Self { generation: 0, shared }, inbox, served)
    }

    /// Puts a message in line under the next ticket, if no more than `limit` messages wait for room.
    pub(crate) fn submit<S>(
        &self,
        limit: u64,
        message: S,
        call: impl FnOnce(u64, S) -> C,
    ) -> Result<u64, NotSubmitted<S, C>> {
        let mut line = self.line();
        if line.generation != self.generation {
            return Err(NotSubmitted::Superseded(message));
        }
        if line.asked.saturating_sub(self.shared.served.load(Ordering::Acquire)) >= limit {
            return Err(NotSubmitted::Full(message));
        }
        let ticket = line.last_ticket + 1;
        line.commands.send(call(ticket, message)).map_err(|mpsc::error::SendError(call)| NotSubmitted::Ended(call))?;
        line.last_ticket = ticket;
        line.asked += 1;
        Ok(ticket)
    }

    /// Puts another call in line, under a number of the same sequence.
    pub(crate) fn call(&self, call: impl FnOnce(u64) -> C) -> Result<u64, NotEntered> {
        let mut line = self.line();
        if line.generation != self.generation {
            return Err(NotEntered::Superseded);
        }
        line.last_ticket += 1;
        let number = line.last_ticket;
        line.commands.send(call(number)).map_err(|_| NotEntered::Ended)?;
        Ok(number)
    }

    /// Puts a call in line whose handle may be superseded meanwhile; it takes no number.
    pub(crate) fn tell(&self, call: C) -> bool {
        self.line().commands.send(call).is_ok()
    }

    /// Puts a call in line when the result is dropped.
    pub(crate) fn on_drop(&self, call: C) -> OnDrop<C> {
        OnDrop { entrance: self.clone(), call: Some(call) }
    }

    /// Whether the producer was started again since the handle of this entrance was made.
    pub(crate) fn is_superseded(&self) -> bool {
        self.line().generation != self.generation
    }

    /// The entrance of handles that supersede all earlier ones.
    pub(crate) fn start_again(&self, call: C) -> Self {
        let mut line = self.line();
        line.generation += 1;
        line.commands.send(call).ok();
        Self { generation: line.generation, shared: self.shared.clone() }
    }

    fn line(&self) -> std::sync::MutexGuard<'_, Line<C>> {
        self.shared.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A way in that does not keep the producer's task waiting for more calls.
#[derive(Debug)]
pub(crate) struct WeakEntrance<C>(Weak<Shared<C>>);

impl<C> Entrance<C> {
    /// A way in that does not keep the task waiting for more calls.
    pub(crate) fn downgrade(&self) -> WeakEntrance<C> {
        WeakEntrance(Arc::downgrade(&self.shared))
    }
}

impl<C> WeakEntrance<C> {
    /// The entrance of the newest handles, while there are any.
    pub(crate) fn upgrade(&self) -> Option<Entrance<C>> {
        let shared = self.0.upgrade()?;
        let generation = shared.line.lock().unwrap_or_else(PoisonError::into_inner).generation;
        Some(Entrance { generation, shared })
    }
}

impl<C> Clone for Entrance<C> {
    fn clone(&self) -> Self {
        Self { generation: self.generation, shared: self.shared.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_follow_the_calls_and_old_handles_are_superseded() {
        let (entrance, mut inbox, served) = Entrance::new();
        let submit = |entrance: &Entrance<u64>, limit| entrance.submit(limit, "m", |ticket, _| ticket);
        assert_eq!(submit(&entrance, 2), Ok(1));
        assert_eq!(entrance.call(|number| number), Ok(2));
        assert_eq!(submit(&entrance, 2), Ok(3));
        assert_eq!(submit(&entrance, 2), Err(NotSubmitted::Full("m")));
        served.fetch_add(1, Ordering::Release);
        assert_eq!(submit(&entrance, 2), Ok(4));
        let again = entrance.start_again(0);
        assert_eq!(submit(&entrance, 9), Err(NotSubmitted::Superseded("m")));
        assert_eq!(entrance.call(|number| number), Err(NotEntered::Superseded));
        assert!(entrance.is_superseded() && !again.is_superseded());
        assert_eq!(submit(&again, 9), Ok(5));
        drop(entrance.on_drop(7));
        again.on_drop(8).disarm();
        let calls: Vec<u64> = std::iter::from_fn(|| inbox.try_recv().ok()).collect();
        assert_eq!(calls, [1, 2, 3, 4, 0, 5, 7]);
        drop(inbox);
        assert_eq!(submit(&again, 9), Err(NotSubmitted::Ended(6)));
    }
}
