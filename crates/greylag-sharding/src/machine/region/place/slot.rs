//! The routing state of one shard in one region: the states of sharding §2.4, each with the data that only it has.
//!
//! ```text
//! Unknown -> Resolving -> Remote -> Buffering -> Remote ...
//!                      -> LocalStarting <-> Local -> Draining -> Resolving ...
//! ```
//! A transition consumes the state that it leaves, so that none of its data outlives it: an open route has no old path,
//! an ending shard has no handoff to wait for, and only a serving shard admits senders.
//!
//! Source: sharding §2.4.

mod transitions;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use crate::entity::Failures;
use crate::ids::RegionId;
use crate::machine::message::{Attempt, Home};

/// Where messages for one shard go, as far as this region knows.
#[derive(Debug, Default)]
pub(in crate::machine::region) enum Slot {
    /// Nothing waits, and no home is known.
    #[default]
    Unknown,
    /// Messages wait for a home, or a known home waits until it may be opened.
    Resolving(Resolving),
    /// Hosted here, but not serving: the shard starts, or waits for a precondition or its next start.
    LocalStarting(Box<LocalStarting>),
    /// Hosted here, and serving.
    Local(Box<Local>),
    /// Hosted here, and ending.
    Draining(Box<Draining>),
    /// Hosted by another region.
    Remote(Remote),
    /// Messages wait because earlier ones of this region may still be on the route that was left.
    Buffering(Buffering),
}

/// See [`Slot::Resolving`].
#[derive(Debug)]
pub(in crate::machine::region) struct Resolving {
    /// The home that waits until it may be opened.
    pub(in crate::machine::region) next: Option<Next>,
}

/// See [`Slot::Buffering`].
#[derive(Debug)]
pub(in crate::machine::region) struct Buffering {
    pub(in crate::machine::region) left: LeftRoute,
    /// The home that waits until the route that was left is empty.
    pub(in crate::machine::region) next: Option<Next>,
}

/// See [`Slot::Remote`].
#[derive(Debug)]
pub(in crate::machine::region) struct Remote {
    pub(in crate::machine::region) region: RegionId,
    pub(in crate::machine::region) generation: Generation,
    /// Whether the route is in the table: not while the buffer is emptied into it, nor while the node is suspect.
    pub(in crate::machine::region) is_open: bool,
}

/// See [`Slot::LocalStarting`].
#[derive(Debug)]
pub(in crate::machine::region) struct LocalStarting {
    pub(in crate::machine::region) hosting: Hosting,
    pub(in crate::machine::region) task: Task,
    pub(in crate::machine::region) served: Served,
    /// The route that this region left before it became the owner.
    pub(in crate::machine::region) left: Option<LeftRoute>,
    /// Until when the former owner's mark is awaited.
    pub(in crate::machine::region) leftover_deadline: Option<Instant>,
    pub(in crate::machine::region) handoff: Option<HandOffWait>,
}

/// See [`Slot::Local`].
#[derive(Debug)]
pub(in crate::machine::region) struct Local {
    pub(in crate::machine::region) hosting: Hosting,
    pub(in crate::machine::region) table: Table,
    pub(in crate::machine::region) handoff: Option<HandOffWait>,
}

/// See [`Slot::Draining`].
#[derive(Debug)]
pub(in crate::machine::region) struct Draining {
    pub(in crate::machine::region) generation: Generation,
    pub(in crate::machine::region) ending: Ending,
    /// The route that this region left before it became the owner.
    pub(in crate::machine::region) left: Option<LeftRoute>,
    pub(in crate::machine::region) after_drain: AfterDrain,
}

/// The state of a hosted shard, from the order to host until the shard ends.
#[derive(Debug)]
pub(in crate::machine::region) struct Hosting {
    pub(in crate::machine::region) generation: Generation,
    pub(in crate::machine::region) previous: Option<Generation>,
    pub(in crate::machine::region) leftovers_from: Option<RegionId>,
    /// The largest `first` taken per origin.
    pub(in crate::machine::region) floors: BTreeMap<RegionId, Generation>,
    /// The recent failures of its task, where the shard remembers its entities.
    pub(in crate::machine::region) failures: Option<Failures>,
}

/// The task of a shard that does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::region) enum Task {
    Starting,
    Ready,
    /// Killed before it served; the task's answer is awaited, and so are the marks of the handoff.
    Aborting,
    /// Absent: the task failed, and starts again at the instant.
    Failed(Instant),
    /// Absent, and never to start at this generation.
    Absent,
}

/// How far a shard that does not serve now has served before, at this generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::region) enum Served {
    Never,
    /// The flush of the buffer was cut off: the shard has handled messages, but its route was not open.
    InPart,
    Fully,
}

/// The entry of the route table for a shard that serves here.
#[derive(Debug)]
pub(in crate::machine::region) enum Table {
    /// Closed while the buffer is emptied into the shard, in several turns.
    Opening,
    Open {
        /// Origins whose frames bypass the machine.
        admitted: BTreeSet<RegionId>,
    },
    /// Closed although the shard serves: the node is suspect, or the region was refused.
    Held,
}

/// Why a hosted shard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::region) enum Ending {
    /// By a handoff: unhandled messages become leftovers for the next owner.
    HandOff,
    /// Because the journal has passed its generation: unhandled messages become leftovers too. Messages that were
    /// routed anew would be too old for the owner after the next one, if the next generation is passed as well.
    Fenced,
    /// By `DropShard` or a conflict: unhandled messages are routed anew.
    Dropped,
    /// By the end of the region: unhandled messages are dead letters, for its `end_reason`.
    RegionEnds,
}

/// The step that a region takes once the task of a draining shard has ended.
#[derive(Debug, Default)]
pub(in crate::machine::region) enum AfterDrain {
    /// Ask the coordinator, if something waits.
    #[default]
    Ask,
    /// Host the shard here, at a larger generation.
    Host(Home),
    /// Route to a home elsewhere.
    Route(Next),
}

/// A home elsewhere that may not be opened yet.
#[derive(Debug, Clone)]
pub(in crate::machine::region) struct Next {
    pub(in crate::machine::region) region: RegionId,
    pub(in crate::machine::region) generation: Generation,
}

/// The route last left, on which messages of this region may still be.
#[derive(Debug)]
pub(in crate::machine::region) enum LeftRoute {
    /// A route to an owner that is a member.
    Path(OldPath),
    /// A route to a removed node: the transport may still hold frames for it, awaited until the instant.
    HandBack(UniqueAddress, Instant),
}

/// The route last left, until it is known to be empty.
#[derive(Debug)]
pub(in crate::machine::region) struct OldPath {
    pub(in crate::machine::region) region: RegionId,
    pub(in crate::machine::region) generation: Generation,
    /// The attempt of the last flush mark sent along the path. `None` after the route was opened again behind its mark:
    /// a late copy of its home can do that, and then more messages were sent behind the mark.
    pub(in crate::machine::region) flushed: Option<Attempt>,
    /// The probe under way; `None` if a flush mark was sent, which the next home should confirm.
    pub(in crate::machine::region) probe: Option<u64>,
    /// When the new home is opened without an echo; set once the new home is known too.
    pub(in crate::machine::region) deadline: Option<Instant>,
}

/// An accepted `HandOff` whose marks are awaited.
#[derive(Debug)]
pub(in crate::machine::region) struct HandOffWait {
    pub(in crate::machine::region) attempt: Attempt,
    pub(in crate::machine::region) waiting_for: BTreeSet<RegionId>,
    /// When missing marks are given up; `None` once they have been.
    pub(in crate::machine::region) deadline: Option<Instant>,
}

impl OldPath {
    /// A route that is left now: messages may still be on it.
    pub(in crate::machine::region) fn new(region: RegionId, generation: Generation) -> Self {
        Self { region, generation, flushed: None, probe: None, deadline: None }
    }
}
