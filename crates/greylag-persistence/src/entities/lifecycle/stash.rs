//! Waiting commands: the internal stash, until the entity can take them, and the user stash, put aside by a handler.
//!
//! Both buffers are bounded. At most one command is taken at a time: from the user stash while an
//! unstash-all is in progress, else from the internal stash. Source: persistence §2.4.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use crate::entities::context::background_work::{DueReceiveTimeout, DueTimer};

/// An entry of the internal stash.
pub(crate) enum Stashed<C> {
    /// A command from outside.
    Command(C),
    /// A command that this incarnation told itself, or the result of its work.
    Own(C),
    /// The command of a timer that is due, of this incarnation.
    Timer(DueTimer),
    /// The receive timeout of this incarnation has run out.
    ReceiveTimeout(DueReceiveTimeout),
}

pub(crate) struct Stash<C> {
    capacity: usize,
    internal: VecDeque<Stashed<C>>,
    user: VecDeque<C>,
    unstash_left: usize,
}

impl<C> Stash<C> {
    pub(crate) fn new(capacity: NonZeroUsize) -> Self {
        Self { capacity: capacity.get(), internal: VecDeque::new(), user: VecDeque::new(), unstash_left: 0 }
    }

    /// Queues a command behind earlier ones.
    ///
    /// # Errors
    /// The command, if too many wait.
    pub(crate) fn push(&mut self, command: C) -> Result<(), C> {
        if self.internal.len() >= self.capacity {
            return Err(command);
        }
        self.internal.push_back(Stashed::Command(command));
        Ok(())
    }

    /// Queues an entry that the incarnation began, in the same order. Unbounded: there are no more than it began.
    pub(crate) fn push_own(&mut self, waiting: Stashed<C>) {
        self.internal.push_back(waiting);
    }

    /// Drops the entries that the ending incarnation began; commands from outside stay.
    pub(crate) fn drop_own(&mut self) {
        self.internal.retain(|waiting| matches!(waiting, Stashed::Command(_)));
    }

    /// Puts a command aside until an unstash-all.
    ///
    /// # Errors
    /// The command, if too many are put aside.
    pub(crate) fn put_aside(&mut self, command: C) -> Result<(), C> {
        if self.user.len() >= self.capacity {
            return Err(command);
        }
        self.user.push_back(command);
        Ok(())
    }

    /// Fixes how many put-aside commands are taken before newer ones; commands put aside meanwhile wait for the next
    /// unstash-all.
    pub(crate) fn unstash_all(&mut self) {
        self.unstash_left = self.user.len();
    }

    /// Takes the next entry to handle.
    pub(crate) fn next(&mut self) -> Option<Stashed<C>> {
        if self.unstash_left > 0 {
            self.unstash_left -= 1;
            return self.user.pop_front().map(Stashed::Command);
        }
        self.internal.pop_front()
    }

    /// Whether no entry waits to be handled; commands put aside do not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.internal.is_empty() && self.unstash_left == 0
    }

    /// Number of commands put aside.
    pub(crate) fn aside_count(&self) -> usize {
        self.user.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.internal.len() + self.user.len()
    }

    /// Takes the commands put aside, and ends an unstash-all.
    pub(crate) fn take_aside(&mut self) -> VecDeque<C> {
        self.unstash_left = 0;
        std::mem::take(&mut self.user)
    }

    /// Takes all commands, oldest first: those put aside, then those of the internal stash.
    pub(crate) fn take_all(&mut self) -> Vec<C> {
        let mut all = self.take_aside();
        all.extend(self.internal.drain(..).filter_map(|waiting| match waiting {
            Stashed::Command(command) => Some(command),
            Stashed::Own(_) | Stashed::Timer(_) | Stashed::ReceiveTimeout(_) => None,
        }));
        all.into()
    }

    pub(crate) fn check_invariants(&self) {
        debug_assert!(self.unstash_left <= self.user.len(), "an unstash-all takes only what was put aside");
    }
}
