//! Where the calls of a producer's handles become one sequence.
//!
//! A call takes its place when its future is first polled, and never waits for it: the number of a message depends on
//! the order of calls alone, and not on room, or on who gave up. Each caller waits for the answer to its own call, so no
//! more calls wait than there are callers.
//!
//! Source: delivery §6 (FIFO in first-poll order), P13.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    room: Arc<Room>,
}

#[derive(Debug)]
struct Line<C> {
    generation: u64,
    last_ticket: u64,
    commands: mpsc::UnboundedSender<C>,
}

/// Room for messages that do not wait, as the task last saw it.
#[derive(Debug)]
pub(crate) struct Room(Mutex<Counts>);

#[derive(Debug, Clone, Copy)]
struct Counts {
    free: u64,
    /// Messages that have not reached the task.
    on_the_way: u64,
}

impl Room {
    /// The task has taken in so many messages, and has room for so many more.
    pub(crate) fn publish(&self, arrived: u64, free: u64) {
        let mut counts = self.counts();
        counts.on_the_way = counts.on_the_way.saturating_sub(arrived);
        counts.free = free;
    }

    /// Counts a message that goes to the task; one that does not wait needs room. Returns whether it may go.
    fn enter(&self, waits: bool) -> bool {
        let mut counts = self.counts();
        let enters = waits || counts.on_the_way < counts.free;
        counts.on_the_way += u64::from(enters);
        enters
    }

    fn leave(&self) {
        let mut counts = self.counts();
        counts.on_the_way = counts.on_the_way.saturating_sub(1);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    /// There is no room, and the message would not wait.
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
    /// An entrance, the task's inbox, and the room that the task tells of; at first there is room for `free` messages.
    pub(crate) fn new(free: u64) -> (Self, mpsc::UnboundedReceiver<C>, Arc<Room>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let room = Arc::new(Room(Mutex::new(Counts { free, on_the_way: 0 })));
        let line = Mutex::new(Line { generation: 0, last_ticket: 0, commands });
        let shared = Arc::new(Shared { line, room: room.clone() });
        (Self { generation: 0, shared }, inbox, room)
    }

    /// The number of the handles of this entrance; later ones have larger numbers.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Puts a message in line under the next ticket. One that does not wait needs room.
    pub(crate) fn submit<S>(
        &self,
        waits: bool,
        message: S,
        call: impl FnOnce(u64, S) -> C,
    ) -> Result<u64, NotSubmitted<S, C>> {
        let mut line = self.line();
        if line.generation != self.generation {
            return Err(NotSubmitted::Superseded(message));
        }
        let ticket = line.last_ticket + 1;
        if line.commands.is_closed() {
            return Err(NotSubmitted::Ended(call(ticket, message)));
        }
        if !self.shared.room.enter(waits) {
            return Err(NotSubmitted::Full(message));
        }
        line.last_ticket = ticket;
        line.commands.send(call(ticket, message)).map_err(|mpsc::error::SendError(call)| {
            self.shared.room.leave();
            NotSubmitted::Ended(call)
        })?;
        Ok(ticket)
    }

    /// Whether there is room for a message that does not wait.
    pub(crate) fn has_room(&self) -> bool {
        let counts = *self.shared.room.counts();
        counts.on_the_way < counts.free
    }

    /// Whether no message gets in any more: the producer has ended, or was started again.
    pub(crate) fn is_over(&self) -> bool {
        let line = self.line();
        line.generation != self.generation || line.commands.is_closed()
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
        let commands = self.line().commands.clone();
        commands.send(call).is_ok()
    }

    /// Puts a call in line when the result is dropped.
    pub(crate) fn on_drop(&self, call: C) -> OnDrop<C> {
        OnDrop { entrance: self.clone(), call: Some(call) }
    }

    /// Whether the producer was started again since the handle of this entrance was made.
    pub(crate) fn is_superseded(&self) -> bool {
        self.line().generation != self.generation
    }

    /// The entrance of handles that supersede all earlier ones; `call` is made of its generation.
    pub(crate) fn start_again(&self, call: impl FnOnce(u64) -> C) -> Self {
        let mut line = self.line();
        line.generation += 1;
        line.commands.send(call(line.generation)).ok();
        Self { generation: line.generation, shared: self.shared.clone() }
    }

    fn line(&self) -> MutexGuard<'_, Line<C>> {
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
        let (entrance, mut inbox, room) = Entrance::new(2);
        let submit = |entrance: &Entrance<u64>, waits| entrance.submit(waits, "m", |ticket, _| ticket);
        assert_eq!(submit(&entrance, false), Ok(1));
        assert_eq!(entrance.call(|number| number), Ok(2));
        assert_eq!(submit(&entrance, false), Ok(3));
        assert!(!entrance.has_room());
        assert_eq!(submit(&entrance, false), Err(NotSubmitted::Full("m")));
        assert_eq!(submit(&entrance, true), Ok(4), "one that waits needs no room");
        room.publish(3, 1);
        assert_eq!(submit(&entrance, false), Ok(5));
        assert_eq!(submit(&entrance, false), Err(NotSubmitted::Full("m")));
        let again = entrance.start_again(|generation| 100 + generation);
        assert_eq!(submit(&entrance, true), Err(NotSubmitted::Superseded("m")));
        assert_eq!(entrance.call(|number| number), Err(NotEntered::Superseded));
        assert!(entrance.is_superseded() && !again.is_superseded());
        assert!(entrance.is_over() && !again.is_over());
        assert_eq!((entrance.generation(), again.generation()), (0, 1));
        assert_eq!(submit(&again, true), Ok(6));
        drop(entrance.on_drop(7));
        again.on_drop(8).disarm();
        let calls: Vec<u64> = std::iter::from_fn(|| inbox.try_recv().ok()).collect();
        assert_eq!(calls, [1, 2, 3, 4, 5, 101, 6, 7]);
        drop(inbox);
        assert_eq!(submit(&again, false), Err(NotSubmitted::Ended(7)), "the end comes before room");
        assert!(again.is_over());
    }
}
