//! Transitions between the states of a shard. Each transition consumes the state that it leaves, and does nothing in
//! other states.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::Generation;

use super::{
    AfterDrain, Buffering, Draining, Ending, Hosting, LeftRoute, Local, LocalStarting, Next, Remote, Resolving, Served,
    Slot, Table, Task,
};
use crate::machine::message::Home;

impl LocalStarting {
    /// A shard taken by the order in `home`, behind the route that this region has left, if any.
    pub(in crate::machine::region) fn new(
        home: &Home,
        task: Task,
        left: Option<LeftRoute>,
        leftover_deadline: Option<Instant>,
    ) -> Self {
        let hosting = Hosting {
            generation: home.generation,
            previous: home.previous,
            leftovers_from: home.leftovers_from.clone(),
            floors: BTreeMap::new(),
            failures: None,
        };
        Self { hosting, task, served: Served::Never, left, leftover_deadline, handoff: None }
    }

    /// Begins to serve: the buffer is emptied into the shard. Nothing may be awaited any more.
    fn serve(self) -> Local {
        Local { hosting: self.hosting, table: Table::Opening, handoff: None }
    }

    fn drain(self, ending: Ending, after_drain: AfterDrain) -> Draining {
        Draining { generation: self.hosting.generation, ending, left: self.left, after_drain }
    }
}

impl Local {
    /// The task is gone, or is about to end although the shard is to go on.
    fn cease(self, task: Task) -> LocalStarting {
        let served = if matches!(self.table, Table::Opening) { Served::InPart } else { Served::Fully };
        let Self { hosting, handoff, .. } = self;
        LocalStarting { hosting, task, served, left: None, leftover_deadline: None, handoff }
    }

    fn drain(self, ending: Ending, after_drain: AfterDrain) -> Draining {
        Draining { generation: self.hosting.generation, ending, left: None, after_drain }
    }
}

impl Slot {
    /// The state without a route: with a route that was left, or a home that waits.
    pub(in crate::machine::region) fn without_route(left: Option<LeftRoute>, next: Option<Next>) -> Self {
        match left {
            Some(left) => Self::Buffering(Buffering { left, next }),
            None => Self::Resolving(Resolving { next }),
        }
    }

    /// Tells `Unknown` and `Resolving` apart by whether something waits.
    pub(in crate::machine::region) fn update_unknown(&mut self, is_waiting: bool) {
        match self {
            Self::Unknown if is_waiting => *self = Self::without_route(None, None),
            Self::Resolving(Resolving { next: None }) if !is_waiting => *self = Self::Unknown,
            _ => {}
        }
    }

    /// Makes a planned home elsewhere the route, which is not open yet, if nothing must be awaited.
    pub(in crate::machine::region) fn become_remote(&mut self) {
        if let Self::Resolving(Resolving { next }) = self
            && let Some(Next { region, generation }) = next.take()
        {
            *self = Self::Remote(Remote { region, generation, is_open: false });
        }
    }

    /// Forgets a route elsewhere; `left` decides what to wait for on it.
    pub(in crate::machine::region) fn leave_remote(&mut self, left: impl FnOnce(Remote) -> Option<LeftRoute>) {
        match std::mem::take(self) {
            Self::Remote(remote) => *self = Self::without_route(left(remote), None),
            other => *self = other,
        }
    }

    /// Makes this region the owner of the shard. Known homes elsewhere are forgotten; a route that was left stays so.
    pub(in crate::machine::region) fn become_starting(
        &mut self,
        home: &Home,
        task: Task,
        leftover_deadline: Option<Instant>,
    ) {
        let left = match std::mem::take(self) {
            Self::Buffering(Buffering { left, .. }) => Some(left),
            _ => None,
        };
        *self = Self::LocalStarting(Box::new(LocalStarting::new(home, task, left, leftover_deadline)));
    }

    /// Makes the shard serve.
    pub(in crate::machine::region) fn become_local(&mut self) {
        match std::mem::take(self) {
            Self::LocalStarting(starting) => *self = Self::Local(Box::new(starting.serve())),
            Self::Local(mut local) => {
                local.table = Table::Opening;
                *self = Self::Local(local);
            }
            other => *self = other,
        }
    }

    /// Sets the state of the task of a shard that does not serve now.
    pub(in crate::machine::region) fn become_waiting(&mut self, task: Task) {
        match std::mem::take(self) {
            Self::Local(local) => *self = Self::LocalStarting(Box::new(local.cease(task))),
            Self::LocalStarting(mut starting) => {
                starting.task = task;
                *self = Self::LocalStarting(starting);
            }
            other => *self = other,
        }
    }

    /// Ends the shard, or gives an end under way another reason. The step after an end under way stays as planned.
    pub(in crate::machine::region) fn become_draining(&mut self, ending: Ending, after_drain: AfterDrain) {
        match std::mem::take(self) {
            Self::LocalStarting(starting) => *self = Self::Draining(Box::new(starting.drain(ending, after_drain))),
            Self::Local(local) => *self = Self::Draining(Box::new(local.drain(ending, after_drain))),
            Self::Draining(mut draining) => {
                draining.ending = ending;
                *self = Self::Draining(draining);
            }
            other => *self = other,
        }
    }

    /// Notes that the shard has ended. A planned home elsewhere waits until it may be opened; a planned home here is
    /// returned.
    pub(in crate::machine::region) fn end(&mut self) -> Option<(Generation, Ending, Option<Home>)> {
        match std::mem::take(self) {
            Self::Draining(draining) => {
                let Draining { generation, ending, left, after_drain } = *draining;
                let (next, home) = match after_drain {
                    AfterDrain::Ask => (None, None),
                    AfterDrain::Host(home) => (None, Some(home)),
                    AfterDrain::Route(next) => (Some(next), None),
                };
                *self = Self::without_route(left, next);
                Some((generation, ending, home))
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Forgets the route that was left: it is empty, or is not waited for any more.
    pub(in crate::machine::region) fn forget_left(&mut self) {
        match std::mem::take(self) {
            Self::Buffering(Buffering { next, .. }) => *self = Self::without_route(None, next),
            other => *self = other,
        }
        match self {
            Self::LocalStarting(starting) => starting.left = None,
            Self::Draining(draining) => draining.left = None,
            _ => {}
        }
    }

    /// Replaces the old path by another route to wait for, if any.
    pub(in crate::machine::region) fn replace_left(&mut self, left: Option<LeftRoute>) {
        let Some(left) = left else { return self.forget_left() };
        match self {
            Self::Buffering(buffering) => buffering.left = left,
            Self::LocalStarting(starting) => starting.left = Some(left),
            Self::Draining(draining) => draining.left = Some(left),
            Self::Unknown | Self::Resolving(_) | Self::Local(_) | Self::Remote(_) => {}
        }
    }

    /// Plans a home elsewhere, or forgets the planned one. While a shard ends here, the home follows upon its end.
    pub(in crate::machine::region) fn plan(&mut self, next: Option<Next>) {
        match self {
            Self::Unknown if next.is_some() => *self = Self::without_route(None, next),
            Self::Resolving(resolving) => resolving.next = next,
            Self::Buffering(buffering) => buffering.next = next,
            Self::Draining(draining) => draining.after_drain = next.map_or(AfterDrain::Ask, AfterDrain::Route),
            Self::Unknown | Self::LocalStarting(_) | Self::Local(_) | Self::Remote(_) => {}
        }
    }

    /// Plans a home here, to follow upon the end under way.
    pub(in crate::machine::region) fn plan_host(&mut self, home: Home) {
        if let Self::Draining(draining) = self {
            draining.after_drain = AfterDrain::Host(home);
        }
    }

    /// Forgets a planned home here.
    pub(in crate::machine::region) fn unplan_host(&mut self) {
        if let Self::Draining(draining) = self
            && matches!(draining.after_drain, AfterDrain::Host(_))
        {
            draining.after_drain = AfterDrain::Ask;
        }
    }

    /// Forgets a planned home elsewhere if `is_such` is true of it.
    pub(in crate::machine::region) fn unplan_if(&mut self, is_such: impl Fn(&Next) -> bool) {
        if self.next().is_some_and(is_such) {
            self.plan(None);
        }
    }

    /// Opens the route table for a known, closed route.
    pub(in crate::machine::region) fn open(&mut self) {
        match self {
            Self::Remote(remote) => remote.is_open = true,
            Self::Local(local) => local.table = Table::Open { admitted: BTreeSet::new() },
            _ => {}
        }
    }

    /// Closes the route table; returns whether it was open.
    pub(in crate::machine::region) fn close(&mut self) -> bool {
        match self {
            Self::Remote(remote) => std::mem::replace(&mut remote.is_open, false),
            Self::Local(local) if matches!(local.table, Table::Open { .. }) => {
                local.table = Table::Held;
                true
            }
            _ => false,
        }
    }
}
