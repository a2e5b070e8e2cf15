//! Accessors for data that several states of a shard have in common.

use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::{AfterDrain, HandOffWait, Hosting, LeftRoute, Next, OldPath, Remote, Slot, Table, Task};
use crate::machine::message::ClaimState;
use crate::machine::region::protocol::Route;

impl Slot {
    /// The shard's entry in the route table.
    pub(in crate::machine::region) fn route(&self) -> Route {
        match self {
            Self::Remote(Remote { region, generation, is_open: true }) => {
                Route::Remote { region: region.clone(), generation: *generation }
            }
            Self::Local(local) if matches!(local.table, Table::Open { .. }) => {
                Route::Local { generation: local.hosting.generation }
            }
            _ => Route::Closed,
        }
    }

    /// Whether the route table has an open route for the shard.
    pub(in crate::machine::region) fn is_open(&self) -> bool {
        match self {
            Self::Remote(remote) => remote.is_open,
            Self::Local(local) => matches!(local.table, Table::Open { .. }),
            _ => false,
        }
    }

    /// Whether no home is known that messages could be sent to.
    pub(in crate::machine::region) fn has_no_route(&self) -> bool {
        matches!(self, Self::Unknown | Self::Resolving(_) | Self::Buffering(_))
    }

    /// The region elsewhere that the shard lives in.
    pub(in crate::machine::region) fn remote(&self) -> Option<&Remote> {
        match self {
            Self::Remote(remote) => Some(remote),
            _ => None,
        }
    }

    /// The generation whose entities may live here.
    pub(in crate::machine::region) fn hosted(&self) -> Option<Generation> {
        match self {
            Self::LocalStarting(starting) => Some(starting.hosting.generation),
            Self::Local(local) => Some(local.hosting.generation),
            Self::Draining(draining) => Some(draining.generation),
            _ => None,
        }
    }

    /// The shard hosted here, unless it ends.
    pub(in crate::machine::region) fn hosting(&self) -> Option<&Hosting> {
        match self {
            Self::LocalStarting(starting) => Some(&starting.hosting),
            Self::Local(local) => Some(&local.hosting),
            _ => None,
        }
    }

    pub(in crate::machine::region) fn hosting_mut(&mut self) -> Option<&mut Hosting> {
        match self {
            Self::LocalStarting(starting) => Some(&mut starting.hosting),
            Self::Local(local) => Some(&mut local.hosting),
            _ => None,
        }
    }

    /// The handoff whose marks are awaited.
    pub(in crate::machine::region) fn handoff(&self) -> Option<&HandOffWait> {
        match self {
            Self::LocalStarting(starting) => starting.handoff.as_ref(),
            Self::Local(local) => local.handoff.as_ref(),
            _ => None,
        }
    }

    pub(in crate::machine::region) fn handoff_mut(&mut self) -> Option<&mut HandOffWait> {
        match self {
            Self::LocalStarting(starting) => starting.handoff.as_mut(),
            Self::Local(local) => local.handoff.as_mut(),
            _ => None,
        }
    }

    /// The task of a shard that is hosted and does not end.
    pub(in crate::machine::region) fn task(&self) -> Option<Task> {
        match self {
            Self::LocalStarting(starting) => Some(starting.task),
            Self::Local(_) => Some(Task::Ready),
            _ => None,
        }
    }

    /// The state reported to a coordinator, if the shard is hosted here.
    pub(in crate::machine::region) fn claim(&self) -> Option<ClaimState> {
        if self.handoff().is_some() {
            return Some(ClaimState::Stopping);
        }
        match self {
            Self::LocalStarting(starting) => Some(match starting.task {
                Task::Aborting => ClaimState::Stopping,
                Task::Ready => ClaimState::Running,
                Task::Starting | Task::Failed(_) | Task::Absent => ClaimState::Starting,
            }),
            Self::Local(_) => Some(ClaimState::Running),
            Self::Draining(_) => Some(ClaimState::Stopping),
            _ => None,
        }
    }

    /// The home elsewhere that waits until it may be opened.
    pub(in crate::machine::region) fn next(&self) -> Option<&Next> {
        match self {
            Self::Resolving(resolving) => resolving.next.as_ref(),
            Self::Buffering(buffering) => buffering.next.as_ref(),
            Self::Draining(draining) => match &draining.after_drain {
                AfterDrain::Route(next) => Some(next),
                AfterDrain::Ask | AfterDrain::Host(_) => None,
            },
            _ => None,
        }
    }

    /// The route last left, until it is known to be empty.
    pub(in crate::machine::region) fn left(&self) -> Option<&LeftRoute> {
        match self {
            Self::Buffering(buffering) => Some(&buffering.left),
            Self::LocalStarting(starting) => starting.left.as_ref(),
            Self::Draining(draining) => draining.left.as_ref(),
            _ => None,
        }
    }

    /// The route last left, if its owner is a member.
    pub(in crate::machine::region) fn old_path(&self) -> Option<&OldPath> {
        match self.left()? {
            LeftRoute::Path(path) => Some(path),
            LeftRoute::HandBack(..) => None,
        }
    }

    pub(in crate::machine::region) fn old_path_mut(&mut self) -> Option<&mut OldPath> {
        let left = match self {
            Self::Buffering(buffering) => Some(&mut buffering.left),
            Self::LocalStarting(starting) => starting.left.as_mut(),
            Self::Draining(draining) => draining.left.as_mut(),
            _ => None,
        };
        match left? {
            LeftRoute::Path(path) => Some(path),
            LeftRoute::HandBack(..) => None,
        }
    }

    /// The removed node whose frames may be handed back.
    pub(in crate::machine::region) fn hand_back(&self) -> Option<&UniqueAddress> {
        match self.left()? {
            LeftRoute::HandBack(node, _) => Some(node),
            LeftRoute::Path(_) => None,
        }
    }

    /// The earliest instant at which a tick has work to do in this state.
    pub(in crate::machine::region) fn deadline(&self) -> Option<Instant> {
        let left = self.left().and_then(|left| match left {
            LeftRoute::Path(path) => path.deadline,
            LeftRoute::HandBack(_, until) => Some(*until),
        });
        let (start, leftovers) = match self {
            Self::LocalStarting(starting) => {
                let start = if let Task::Failed(at) = starting.task { Some(at) } else { None };
                (start, starting.leftover_deadline)
            }
            _ => (None, None),
        };
        let handoff = self.handoff().and_then(|wait| wait.deadline);
        [left, start, leftovers, handoff].into_iter().flatten().min()
    }
}
