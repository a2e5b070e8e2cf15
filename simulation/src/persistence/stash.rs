//! The order in which an entity must handle its orders, by persistence §2.4.

use std::collections::VecDeque;

use super::action_log::LoggedAction;

/// The order in which one machine must handle its orders. It shares no code with the machine's own stash.
#[derive(Debug)]
pub(super) struct Expected {
    capacity: usize,
    waiting: VecDeque<u64>,
    is_stashed: VecDeque<u64>,
    /// Count of stashed orders that come before any waiting one.
    unstashed: usize,
    /// Orders for which there was no room.
    dropped: VecDeque<u64>,
}

impl Expected {
    pub(super) fn new(capacity: usize) -> Self {
        let (waiting, is_stashed, dropped) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { capacity, waiting, is_stashed, unstashed: 0, dropped }
    }

    /// Notes an order given to the machine.
    pub(super) fn given(&mut self, number: u64) {
        if self.waiting.len() < self.capacity {
            self.waiting.push_back(number);
        } else {
            self.dropped.push_back(number);
        }
    }

    /// Compares an order that the machine handled with the one that must be next.
    pub(super) fn did(&mut self, line: &LoggedAction) -> Result<(), String> {
        match *line {
            LoggedAction::Handled { number, is_stashed } => {
                let next = if self.unstashed > 0 {
                    self.unstashed -= 1;
                    self.is_stashed.pop_front()
                } else {
                    self.waiting.pop_front()
                };
                if next != Some(number) {
                    return Err(format!("order {number} was handled where {next:?} was next"));
                }
                match is_stashed {
                    true if self.is_stashed.len() < self.capacity => self.is_stashed.push_back(number),
                    true => self.dropped.push_back(number),
                    false => {}
                }
            }
            LoggedAction::Unstashes => self.unstashed = self.is_stashed.len(),
            LoggedAction::Recovered { .. } | LoggedAction::Sent { .. } | LoggedAction::Answered { .. } => {}
        }
        Ok(())
    }

    /// Checks a dropped order: there was no room, or the entity failed or ended.
    pub(super) fn was_dropped(&mut self, number: u64, for_room: bool) -> Result<(), String> {
        let from = |queue: &mut VecDeque<u64>| {
            let at = queue.iter().position(|waiting| *waiting == number);
            at.and_then(|at| queue.remove(at)).is_some()
        };
        if for_room {
            return if from(&mut self.dropped) { Ok(()) } else { Err(format!("order {number} had room")) };
        }
        if from(&mut self.is_stashed) {
            // Stashed orders are dropped all at once.
            self.unstashed = 0;
            return Ok(());
        }
        // A machine that is stopping drops every order, also those for which it had room.
        if from(&mut self.waiting) || from(&mut self.dropped) {
            Ok(())
        } else {
            Err(format!("order {number} is dropped twice"))
        }
    }

    /// Checks the orders that the machine hands over when it ends: all that wait, oldest first.
    pub(super) fn handed_over(&mut self, numbers: &[u64]) -> Result<(), String> {
        let all: Vec<u64> = self.is_stashed.drain(..).chain(self.waiting.drain(..)).collect();
        self.unstashed = 0;
        if all == numbers { Ok(()) } else { Err(format!("{numbers:?} are handed over where {all:?} wait")) }
    }

    /// Checks a machine whose handler panicked: its stashed orders must have been dropped.
    pub(super) fn lost_its_state(&self) -> Result<(), String> {
        if self.is_stashed.is_empty() {
            Ok(())
        } else {
            Err(format!("{:?} stay stashed after a panic", self.is_stashed))
        }
    }

    /// Checks a machine that has ended: no order may be forgotten in it.
    pub(super) fn ended(&self) -> Result<(), String> {
        if self.is_stashed.is_empty() && self.waiting.is_empty() && self.dropped.is_empty() {
            Ok(())
        } else {
            Err(format!("orders ended with the entity unanswered: {self:?}"))
        }
    }
}
