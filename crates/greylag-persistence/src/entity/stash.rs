//! The commands that wait: by themselves until the entity can take them, or put aside by it.
//!
//! Both buffers are bounded. At most one command is taken at a time: from those put aside while an
//! unstash-all is in progress, else from those that merely wait. Source: persistence §2.4.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use crate::errands::{Mark, SilenceMark};

/// What waits by itself.
pub(crate) enum Waiting<C> {
    /// A command from outside.
    Command(C),
    /// What this incarnation told itself, or its work came back with.
    Own(C),
    /// The command of a timer of this incarnation.
    Timer(Mark),
    /// The receive timeout of this incarnation has run out.
    Silence(SilenceMark),
}

pub(crate) struct Stash<C> {
    capacity: usize,
    internal: VecDeque<Waiting<C>>,
    user: VecDeque<C>,
    unstash_left: usize,
}

impl<C> Stash<C> {
    pub(crate) fn new(capacity: NonZeroUsize) -> Self {
        Self { capacity: capacity.get(), internal: VecDeque::new(), user: VecDeque::new(), unstash_left: 0 }
    }

    /// Lets a command wait behind those that came earlier.
    ///
    /// # Errors
    /// The command, if too many wait.
    pub(crate) fn push(&mut self, command: C) -> Result<(), C> {
        if self.internal.len() >= self.capacity {
            return Err(command);
        }
        self.internal.push_back(Waiting::Command(command));
        Ok(())
    }

    /// Lets what the incarnation began wait in the same order. There is no more of it than the incarnation began.
    pub(crate) fn push_own(&mut self, waiting: Waiting<C>) {
        self.internal.push_back(waiting);
    }

    /// Drops what an incarnation that ends began; commands from outside stay.
    pub(crate) fn drop_own(&mut self) {
        self.internal.retain(|waiting| matches!(waiting, Waiting::Command(_)));
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

    /// Fixes how many are taken before any newer one: what is put aside meanwhile waits for the next time.
    pub(crate) fn unstash_all(&mut self) {
        self.unstash_left = self.user.len();
    }

    /// What is to be handled next.
    pub(crate) fn next(&mut self) -> Option<Waiting<C>> {
        if self.unstash_left > 0 {
            self.unstash_left -= 1;
            return self.user.pop_front().map(Waiting::Command);
        }
        self.internal.pop_front()
    }

    /// Whether nothing waits to be handled; what is put aside does not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.internal.is_empty() && self.unstash_left == 0
    }

    /// How many are put aside.
    pub(crate) fn aside_count(&self) -> usize {
        self.user.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.internal.len() + self.user.len()
    }

    /// Takes those put aside, and ends an unstash-all.
    pub(crate) fn take_aside(&mut self) -> VecDeque<C> {
        self.unstash_left = 0;
        std::mem::take(&mut self.user)
    }

    /// Takes everything, oldest first: those put aside, then those that merely wait.
    pub(crate) fn take_all(&mut self) -> Vec<C> {
        let mut all = self.take_aside();
        all.extend(self.internal.drain(..).filter_map(|waiting| match waiting {
            Waiting::Command(command) => Some(command),
            Waiting::Own(_) | Waiting::Timer(_) | Waiting::Silence(_) => None,
        }));
        all.into()
    }

    pub(crate) fn check_invariants(&self) {
        debug_assert!(self.unstash_left <= self.user.len(), "an unstash-all takes only what was put aside");
    }
}
