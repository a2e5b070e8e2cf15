//! The state of one shard in a region: its route, the path left behind, waiting messages, the hosted shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{Generation, UniqueAddress};

use super::buffer::Buffer;
use super::protocol::Route;
use crate::entity::Failures;
use crate::ids::RegionId;
use crate::machine::message::{Attempt, Home};

/// One shard in one region.
#[derive(Debug)]
pub(super) struct Slot {
    /// The largest generation heard of; a home below it is old news.
    pub(super) heard: Option<Generation>,
    /// The largest generation of which this region has said `ShardStopped`: none up to it can start here.
    pub(super) ended: Option<Generation>,
    pub(super) state: State,
    /// What the route table holds.
    pub(super) published: Route,
    /// Where the last open route led.
    pub(super) last_home: Option<RegionId>,
    /// A home elsewhere that may not be opened yet.
    pub(super) next: Option<Next>,
    /// A home here that waits for the older incarnation to end.
    pub(super) pending_host: Option<Home>,
    /// The route last left, until it is known to be empty.
    pub(super) old_path: Option<OldPath>,
    /// The transport may still hold frames for this removed node.
    pub(super) hand_back: Option<(UniqueAddress, Instant)>,
    pub(super) buffer: Buffer,
    /// The driver was asked for another turn of the flush.
    pub(super) is_turn_asked: bool,
    pub(super) asking: Asking,
    /// The ack given to the `BeginHandOff` of the newest try, which a repeat gets again.
    pub(super) acked: Option<Acked>,
    /// The largest attempt per sender of a flush mark.
    pub(super) marks: BTreeMap<RegionId, Attempt>,
    /// Leftover marks, also those that came before `HostShard`.
    pub(super) leftover_marks: BTreeSet<(Generation, RegionId)>,
    /// `ShardStopped` spoke of leftovers: the next owner waits for a mark.
    pub(super) owes_leftover_mark: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            heard: None,
            ended: None,
            state: State::NoRoute,
            published: Route::Closed,
            last_home: None,
            next: None,
            pending_host: None,
            old_path: None,
            hand_back: None,
            buffer: Buffer::default(),
            is_turn_asked: false,
            asking: Asking::default(),
            acked: None,
            marks: BTreeMap::new(),
            leftover_marks: BTreeSet::new(),
            owes_leftover_mark: false,
        }
    }
}

/// The question to the coordinator where the shard lives.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// When the coordinator is to be asked again.
    pub(super) at: Option<Instant>,
    /// How long the region waited last because the coordinator named a home that nothing reaches any more.
    wait: Duration,
}

impl Asking {
    /// Shortest wait before the coordinator is asked again about a home that nothing reaches.
    const FIRST_WAIT: Duration = Duration::from_millis(100);

    /// A route opened: nothing is to be asked.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// The coordinator named a home that nothing reaches: it will name another one once that home's node is removed.
    pub(super) fn later(&mut self, now: Instant, most: Duration) {
        self.wait = (self.wait * 2).max(Self::FIRST_WAIT).min(most);
        self.at = Some(now + self.wait);
    }
}

/// Where the shard is, as far as this region acts on it.
#[derive(Debug)]
pub(super) enum State {
    /// `Unknown`, `Resolving` or `Buffering`: sends wait.
    NoRoute,
    /// Elsewhere.
    Remote { region: RegionId, generation: Generation },
    /// Here: starting, serving or ending.
    Hosted(Box<Hosting>),
}

/// A home elsewhere that waits for the old path.
#[derive(Debug, Clone)]
pub(super) struct Next {
    pub(super) region: RegionId,
    pub(super) generation: Generation,
}

/// The route last left: messages of this region may still be on their way along it.
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

#[derive(Debug, Clone, Copy)]
pub(super) struct Acked {
    pub(super) generation: Generation,
    pub(super) attempt: Attempt,
    pub(super) flushed: bool,
}

/// A shard hosted here.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) generation: Generation,
    pub(super) previous: Option<Generation>,
    pub(super) leftovers_from: Option<RegionId>,
    pub(super) task: Task,
    /// The route was `Local` at this generation, so leftovers that come now are too late.
    pub(super) has_served: bool,
    /// The buffer is being emptied into the shard, in several turns.
    pub(super) is_flushing: bool,
    /// The former owner's mark is awaited until then.
    pub(super) leftover_deadline: Option<Instant>,
    pub(super) handoff: Option<HandOffWait>,
    /// How it ends, once that has begun.
    pub(super) ending: Option<Ending>,
    /// The largest `first` taken per origin.
    pub(super) floors: BTreeMap<RegionId, Generation>,
    /// Origins whose frames pass by the machine, since the route was last published.
    pub(super) admitted: BTreeSet<RegionId>,
    /// How often its task has failed lately, where it remembers its entities.
    pub(super) failures: Option<Failures>,
}

/// The shard's task in the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Starting,
    Ready,
    /// Told to stop or to die; its answer is awaited.
    Ending,
    /// Not there; starts again at the instant, if one is given.
    Absent(Option<Instant>),
}

/// Why a hosted shard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// By a handoff: unhandled messages are leftovers for the next owner.
    HandOff,
    /// By `DropShard` or a conflict: unhandled messages are routed anew.
    Dropped,
    /// By the end of the region: unhandled messages are dead letters, for its `end_reason`.
    RegionEnds,
}

/// An accepted `HandOff` whose marks are awaited.
#[derive(Debug)]
pub(super) struct HandOffWait {
    pub(super) attempt: Attempt,
    pub(super) waiting_for: BTreeSet<RegionId>,
    /// When the missing ones are given up; `None` once that has happened.
    pub(super) deadline: Option<Instant>,
}

impl Slot {
    /// There is a home of this generation, or was. An older one that waits to be opened is not opened any more: what waits
    /// here may be meant for the newer one, and would come back behind what was sent after it.
    pub(super) fn hear(&mut self, generation: Generation) {
        self.heard = self.heard.max(Some(generation));
        self.next.take_if(|next| next.generation < generation);
    }

    pub(super) fn end(&mut self, generation: Generation) {
        self.ended = self.ended.max(Some(generation));
        self.hear(generation);
    }

    pub(super) fn hosting(&self) -> Option<&Hosting> {
        match &self.state {
            State::Hosted(hosting) => Some(hosting),
            _ => None,
        }
    }

    pub(super) fn hosting_mut(&mut self) -> Option<&mut Hosting> {
        match &mut self.state {
            State::Hosted(hosting) => Some(hosting),
            _ => None,
        }
    }

    /// Whether the coordinator has to be asked: something waits and no home is in sight.
    pub(super) fn wants_home(&self) -> bool {
        if self.buffer.is_empty() || self.next.is_some() || self.pending_host.is_some() {
            return false;
        }
        match &self.state {
            State::NoRoute => true,
            State::Remote { .. } => false,
            // A frame stamped larger waits for an allocation that has not been heard of yet.
            State::Hosted(hosting) => hosting.ending.is_none() && self.buffer.may_hold_newer(hosting.generation),
        }
    }

    /// The earliest instant at which this slot has work to do by itself.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let old_path = self.old_path.as_ref().and_then(|path| path.deadline);
        let hand_back = self.hand_back.as_ref().map(|(_, at)| *at);
        let hosting = self.hosting().and_then(|hosting| {
            let retry = match hosting.task {
                Task::Absent(retry_at) => retry_at,
                _ => None,
            };
            let handoff = hosting.handoff.as_ref().and_then(|wait| wait.deadline);
            [hosting.leftover_deadline, handoff, retry].into_iter().flatten().min()
        });
        [self.asking.at, old_path, hand_back, hosting].into_iter().flatten().min()
    }
}
