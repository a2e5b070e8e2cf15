//! The routing state of one shard in one region: the states of sharding §2.4, each with what it alone has.
//!
//! ```text
//! Unknown -> Resolving -> Remote -> Buffering -> Remote ...
//!                      -> LocalStarting <-> Local -> Draining -> Resolving ...
//! ```
//! A state is left by a transition that consumes it, so that nothing of it outlives it: a route that is open has no path
//! left behind, a shard that ends has no handoff to wait for, and only a shard that serves admits senders.
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
pub(super) enum Slot {
    /// Nothing waits, and no home is known.
    #[default]
    Unknown,
    /// Messages wait for a home, or a home that is known waits until it may be opened.
    Resolving(Resolving),
    /// Here, but the shard does not serve: it starts, or waits for what has to come first, or for its next start.
    LocalStarting(Box<LocalStarting>),
    /// Here, and the shard serves.
    Local(Box<Local>),
    /// Here, and the shard ends.
    Draining(Box<Draining>),
    /// Elsewhere.
    Remote(Remote),
    /// Messages wait because others of this region may still be on the way that was left.
    Buffering(Buffering),
}

/// See [`Slot::Resolving`].
#[derive(Debug)]
pub(super) struct Resolving {
    /// The home that waits until it may be opened.
    pub(super) next: Option<Next>,
}

/// See [`Slot::Buffering`].
#[derive(Debug)]
pub(super) struct Buffering {
    pub(super) left: Left,
    /// The home that waits until the way that was left is empty.
    pub(super) next: Option<Next>,
}

/// See [`Slot::Remote`].
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) region: RegionId,
    pub(super) generation: Generation,
    /// Whether the route table has it: not while the buffer is emptied into it, nor while the node is suspect.
    pub(super) is_open: bool,
}

/// See [`Slot::LocalStarting`].
#[derive(Debug)]
pub(super) struct LocalStarting {
    pub(super) hosting: Hosting,
    pub(super) task: Task,
    pub(super) served: Served,
    /// The way that this region left before it became the owner.
    pub(super) left: Option<Left>,
    /// The former owner's mark is awaited until then.
    pub(super) leftover_deadline: Option<Instant>,
    pub(super) handoff: Option<HandOffWait>,
}

/// See [`Slot::Local`].
#[derive(Debug)]
pub(super) struct Local {
    pub(super) hosting: Hosting,
    pub(super) table: Table,
    pub(super) handoff: Option<HandOffWait>,
}

/// See [`Slot::Draining`].
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) generation: Generation,
    pub(super) ending: Ending,
    /// The way that this region left before it became the owner.
    pub(super) left: Option<Left>,
    pub(super) then: Then,
}

/// What a region knows of a shard that it hosts, from the order to host until the shard ends.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) generation: Generation,
    pub(super) previous: Option<Generation>,
    pub(super) leftovers_from: Option<RegionId>,
    /// The largest `first` taken per origin.
    pub(super) floors: BTreeMap<RegionId, Generation>,
    /// How often its task has failed lately, where it remembers its entities.
    pub(super) failures: Option<Failures>,
}

/// The task of a shard that does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Starting,
    Ready,
    /// Told to die before it served; its answer is awaited, and what the handoff waits for.
    Aborting,
    /// Not there: it failed, and starts again at the instant.
    Failed(Instant),
    /// Not there, and not to start at this generation any more.
    Absent,
}

/// How far a shard that does not serve now has served before, at this generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    Never,
    /// The flush of the buffer was cut off: the shard has had messages, but its route was not open.
    InPart,
    Fully,
}

/// The entry of the route table for a shard that serves here.
#[derive(Debug)]
pub(super) enum Table {
    /// Closed while the buffer is emptied into the shard, in several turns.
    Opening,
    Open {
        /// Origins whose frames pass by the machine.
        admitted: BTreeSet<RegionId>,
    },
    /// Closed although the shard serves: the node is suspect, or the region was refused.
    Held,
}

/// Why a hosted shard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// By a handoff: unhandled messages are leftovers for the next owner.
    HandOff,
    /// Because the journal has passed its generation: unhandled messages are leftovers too. As messages that were routed anew
    /// they would be too old for the owner after the next one, when the next number is passed as well.
    Fenced,
    /// By `DropShard` or a conflict: unhandled messages are routed anew.
    Dropped,
    /// By the end of the region: unhandled messages are dead letters, for its `end_reason`.
    RegionEnds,
}

/// The step that a region takes once the task of a draining shard has ended.
#[derive(Debug, Default)]
pub(super) enum Then {
    /// The coordinator is asked, if something waits.
    #[default]
    Ask,
    /// A home here, of a larger generation.
    Host(Home),
    /// A home elsewhere.
    Route(Next),
}

/// A home elsewhere that may not be opened yet.
#[derive(Debug, Clone)]
pub(super) struct Next {
    pub(super) region: RegionId,
    pub(super) generation: Generation,
}

/// The way last left, on which messages of this region may still be.
#[derive(Debug)]
pub(super) enum Left {
    /// To an owner that is a member.
    Path(OldPath),
    /// To a node that was removed: the transport may still hold frames for it, and is waited for until the instant.
    HandBack(UniqueAddress, Instant),
}

/// The route last left, until it is known to be empty.
#[derive(Debug)]
pub(super) struct OldPath {
    pub(super) region: RegionId,
    pub(super) generation: Generation,
    /// The attempt of the last flush mark sent along it. A route that was opened again after its mark
    /// has none: a late copy of its home can do that, and then more was sent behind the mark.
    pub(super) flushed: Option<Attempt>,
    /// The probe under way; without one, a flush mark was sent and the home that follows should say so.
    pub(super) probe: Option<u64>,
    /// Set once the new home is known too: when it is opened without an echo.
    pub(super) deadline: Option<Instant>,
}

/// An accepted `HandOff` whose marks are awaited.
#[derive(Debug)]
pub(super) struct HandOffWait {
    pub(super) attempt: Attempt,
    pub(super) waiting_for: BTreeSet<RegionId>,
    /// When the missing ones are given up; `None` once that has happened.
    pub(super) deadline: Option<Instant>,
}

impl OldPath {
    /// A route that is left now: nothing is known of what is still on it.
    pub(super) fn new(region: RegionId, generation: Generation) -> Self {
        Self { region, generation, flushed: None, probe: None, deadline: None }
    }
}
