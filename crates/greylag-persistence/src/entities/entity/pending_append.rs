//! An append under way, and what follows its answer.

use std::num::NonZeroU64;

use crate::contract::records::event::SeqNr;
use crate::entities::behavior::chain::Chain;
use crate::entities::marks::Mark;

/// An append under way, and the effects that follow it.
pub(crate) struct PendingAppend<S> {
    pub(super) last: SeqNr,
    pub(super) mark: Option<Mark>,
    pub(super) chain: Chain<S>,
    /// Why a snapshot is due, if it is; only `DueBy::Count` starts retention.
    pub(super) snapshot: Option<DueBy>,
    /// Copy of the state before the events, if the behaviour gave one.
    pub(super) copy: Option<S>,
}

/// Why a snapshot is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueBy {
    Count,
    Predicate,
}

impl DueBy {
    /// Why a snapshot is due after the events that follow `before` up to `last`: they cross a multiple of `every`, or
    /// the behaviour wants one.
    pub(super) fn of(every: Option<NonZeroU64>, before: SeqNr, last: SeqNr, wanted: bool) -> Option<Self> {
        let crossed = |every: NonZeroU64| last.as_u64() / every.get() > before.as_u64() / every.get();
        if every.is_some_and(crossed) { Some(Self::Count) } else { wanted.then_some(Self::Predicate) }
    }
}
