//! Puts the calls of a producer's handles into one sequence.
//!
//! A call takes its place in the sequence when its future is first polled: the number of a message depends on the order
//! of calls alone, and not on room, or on cancelled calls. Each caller waits for the answer to its own call, so no more
//! calls wait than there are callers.
//!
//! Source: delivery §6 (FIFO in first-poll order), P13.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::mpsc;

/// Sends commands to the producer's task. When the last clone is dropped, the task finds its inbox closed.
#[derive(Debug)]
pub(crate) struct CommandSender<C> {
    /// Number of `start_again` calls before this handle was made; handles of an earlier generation are superseded.
    generation: u64,
    shared: Arc<CommandPort<C>>,
}

#[derive(Debug)]
struct CommandPort<C> {
    line: Mutex<Line<C>>,
    room: Arc<Room>,
}

#[derive(Debug)]
struct Line<C> {
    generation: u64,
    last_ticket: u64,
    commands: mpsc::UnboundedSender<C>,
}

/// Room for messages that do not wait, as the task last published it.
#[derive(Debug)]
pub(crate) struct Room(Mutex<Counts>);

#[derive(Debug, Clone, Copy)]
struct Counts {
    free: u64,
    /// Messages sent to the task but not received by it yet.
    on_the_way: u64,
}

impl Room {
    /// Called by the task: `arrived` messages were received, and `free` more have room.
    pub(crate) fn publish(&self, arrived: u64, free: u64) {
        let mut counts = self.counts();
        counts.on_the_way = counts.on_the_way.saturating_sub(arrived);
        counts.free = free;
    }

    /// Counts a message sent to the task; a message that does not wait needs room. Returns whether it may be sent.
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

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEntered {
    /// The producer has ended.
    Ended,
    /// The producer was started again after this handle was made.
    Superseded,
}

/// Why a message was refused, with the message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSubmitted<S, C> {
    /// The producer has ended; returns the call built from the message.
    Ended(C),
    /// The producer was started again after this handle was made.
    Superseded(S),
    /// There is no room, and the message does not wait.
    Full(S),
}

/// Sends a command to the task when dropped, unless disarmed before: for a cancelled caller, or an unused permit.
#[derive(Debug)]
pub(crate) struct OnDrop<C> {
    sender: CommandSender<C>,
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
            self.sender.send(call);
        }
    }
}

impl<C> CommandSender<C> {
    /// A sender, the task's inbox, and the room that the task publishes; initially there is room for `free`
    /// messages.
    pub(crate) fn new(free: u64) -> (Self, mpsc::UnboundedReceiver<C>, Arc<Room>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let room = Arc::new(Room(Mutex::new(Counts { free, on_the_way: 0 })));
        let line = Mutex::new(Line { generation: 0, last_ticket: 0, commands });
        let shared = Arc::new(CommandPort { line, room: room.clone() });
        (Self { generation: 0, shared }, inbox, room)
    }

    /// The generation of this sender's handles.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Sends a message to the task under the next ticket. A message that does not wait needs room.
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

    /// Whether messages are refused: the producer has ended, or was started again.
    pub(crate) fn is_over(&self) -> bool {
        let line = self.line();
        line.generation != self.generation || line.commands.is_closed()
    }

    /// Sends another call to the task, under a number of the same sequence.
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

    /// Sends a command without a number to the task, even if this handle is superseded.
    pub(crate) fn send(&self, call: C) -> bool {
        let commands = self.line().commands.clone();
        commands.send(call).is_ok()
    }

    /// Sends a command to the task when the result is dropped.
    pub(crate) fn on_drop(&self, call: C) -> OnDrop<C> {
        OnDrop { sender: self.clone(), call: Some(call) }
    }

    /// Whether the producer was started again since the handle of this sender was made.
    pub(crate) fn is_superseded(&self) -> bool {
        self.line().generation != self.generation
    }

    /// The sender of handles that supersede all earlier ones; `call` makes the command of the new generation.
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

/// A sender that does not keep the producer's task alive.
#[derive(Debug)]
pub(crate) struct WeakCommandSender<C>(Weak<CommandPort<C>>);

impl<C> CommandSender<C> {
    /// A sender that does not keep the producer's task alive.
    pub(crate) fn downgrade(&self) -> WeakCommandSender<C> {
        WeakCommandSender(Arc::downgrade(&self.shared))
    }
}

impl<C> WeakCommandSender<C> {
    /// The sender of the newest handles, if there are any left.
    pub(crate) fn upgrade(&self) -> Option<CommandSender<C>> {
        let shared = self.0.upgrade()?;
        let generation = shared.line.lock().unwrap_or_else(PoisonError::into_inner).generation;
        Some(CommandSender { generation, shared })
    }
}

impl<C> Clone for CommandSender<C> {
    fn clone(&self) -> Self {
        Self { generation: self.generation, shared: self.shared.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_follow_the_calls_and_old_handles_are_superseded() {
        let (sender, mut inbox, room) = CommandSender::new(2);
        let submit = |sender: &CommandSender<u64>, waits| sender.submit(waits, "m", |ticket, _| ticket);
        assert_eq!(submit(&sender, false), Ok(1));
        assert_eq!(sender.call(|number| number), Ok(2));
        assert_eq!(submit(&sender, false), Ok(3));
        assert!(!sender.has_room());
        assert_eq!(submit(&sender, false), Err(NotSubmitted::Full("m")));
        assert_eq!(submit(&sender, true), Ok(4), "one that waits needs no room");
        room.publish(3, 1);
        assert_eq!(submit(&sender, false), Ok(5));
        assert_eq!(submit(&sender, false), Err(NotSubmitted::Full("m")));
        let again = sender.start_again(|generation| 100 + generation);
        assert_eq!(submit(&sender, true), Err(NotSubmitted::Superseded("m")));
        assert_eq!(sender.call(|number| number), Err(NotEntered::Superseded));
        assert!(sender.is_superseded() && !again.is_superseded());
        assert!(sender.is_over() && !again.is_over());
        assert_eq!((sender.generation(), again.generation()), (0, 1));
        assert_eq!(submit(&again, true), Ok(6));
        drop(sender.on_drop(7));
        again.on_drop(8).disarm();
        let calls: Vec<u64> = std::iter::from_fn(|| inbox.try_recv().ok()).collect();
        assert_eq!(calls, [1, 2, 3, 4, 5, 101, 6, 7]);
        drop(inbox);
        assert_eq!(submit(&again, false), Err(NotSubmitted::Ended(7)), "the end comes before room");
        assert!(again.is_over());
    }
}
