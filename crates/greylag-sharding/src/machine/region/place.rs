//! One shard as a region knows it: its [`Slot`], and the data that every state has.

mod buffer;
mod handoff;
mod hosting;
mod places;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::Generation;

pub(super) use self::buffer::{Buffer, Content, Rank, Waiting};
pub(super) use self::places::Places;
pub(super) use self::slot::{
    AfterDrain, Ending, Hosting, LeftRoute, Local, Next, OldPath, Remote, Served, Slot, Table, Task,
};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::Attempt;

/// Shortest time between two starts of a failed shard that messages wait for.
const MIN_RESTART: Duration = Duration::from_millis(100);

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct ShardPlace {
    pub(super) slot: Slot,
    /// The largest generation heard of; a home of a smaller generation is out of date.
    pub(super) heard: Option<Generation>,
    /// The largest generation for which this region has said `ShardStopped`: no generation up to it can start here.
    pub(super) ended: Option<Generation>,
    /// The region of the last open route.
    pub(super) last_home: Option<RegionId>,
    pub(super) buffer: Buffer,
    /// Whether the driver was asked for another turn of the flush.
    pub(super) is_turn_asked: bool,
    /// Whether `ShardStopped` announced leftovers, which are in the buffer: the next owner waits for their mark.
    pub(super) owes_leftover_mark: bool,
    pub(super) asking: Asking,
    /// The ack given to the `BeginHandOff` of the newest attempt, for repetition.
    pub(super) acked: Option<Acked>,
    /// The largest attempt per sender of a flush mark, including marks that came before their handoff.
    pub(super) marks: BTreeMap<RegionId, Attempt>,
    /// Leftover marks, including marks that came before `HostShard`.
    pub(super) leftover_marks: BTreeSet<(Generation, RegionId)>,
}

/// The question to the coordinator where the shard lives.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asking {
    /// When the coordinator is to be asked again.
    pub(super) at: Option<Instant>,
    /// The last wait after the coordinator named a home that nothing reaches any more.
    wait: Duration,
}

impl Asking {
    /// Shortest wait before the coordinator is asked again about a home that nothing reaches.
    const FIRST_WAIT: Duration = Duration::from_millis(100);

    /// A route has opened: there is nothing to ask.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Asks again later, since the coordinator named an unreachable home: it names another once that home's node is
    /// removed.
    pub(super) fn later(&mut self, now: Instant, most: Duration) {
        self.wait = (self.wait * 2).max(Self::FIRST_WAIT).min(most);
        self.at = Some(now + self.wait);
    }
}

/// The answer given to a `BeginHandOff`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acked {
    pub(super) generation: Generation,
    pub(super) attempt: Attempt,
    pub(super) flushed: bool,
}

impl ShardPlace {
    /// Notes that a home of this generation exists or existed. An older home that waits to be opened is forgotten:
    /// waiting messages may be meant for the newer home, and would come back behind messages that were sent after them.
    pub(super) fn note_generation(&mut self, generation: Generation) {
        self.heard = self.heard.max(Some(generation));
        self.slot.unplan_if(|next| next.generation < generation);
    }

    /// Notes that no generation up to this one lives here, or will.
    pub(super) fn end(&mut self, generation: Generation) {
        self.ended = self.ended.max(Some(generation));
        self.note_generation(generation);
    }

    /// Whether the coordinator has to be asked: something waits and no home is in sight.
    pub(super) fn wants_home(&self) -> bool {
        if self.buffer.is_empty() || self.slot.next().is_some() {
            return false;
        }
        match &self.slot {
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => true,
            Slot::Remote(_) | Slot::Draining(_) => false,
            // A frame with a larger stamp waits for an allocation that this region has not heard of yet.
            Slot::LocalStarting(starting) => self.buffer.may_hold_newer(starting.hosting.generation),
            Slot::Local(local) => self.buffer.may_hold_newer(local.hosting.generation),
        }
    }

    /// Whether the leftovers that the home spoke of are all here.
    pub(super) fn has_leftovers_of(&self, hosting: &Hosting) -> bool {
        let mark = |from: &RegionId| self.leftover_marks.contains(&(hosting.generation, from.clone()));
        hosting.leftovers_from.as_ref().is_none_or(mark)
    }

    /// Source: sharding §2.4, §2.9.
    fn check_invariants(&self, shard: &ShardId, compares: bool) {
        self.buffer.check_invariants();
        let (hosting, handoff) = match &self.slot {
            Slot::LocalStarting(starting) => (&starting.hosting, None),
            Slot::Local(local) => (&local.hosting, local.handoff.as_ref()),
            _ => return,
        };
        let generation = Some(hosting.generation);
        debug_assert!(!compares || generation > self.ended, "{shard:?}: a generation said to have stopped lives here");
        debug_assert!(!compares || generation <= self.heard, "{shard:?}: a generation that lives here was heard of");
        let waits = handoff.is_none_or(|wait| !wait.waiting_for.is_empty());
        debug_assert!(waits, "{shard:?}: a handoff whose marks are in stops the shard");
    }

    /// The earliest instant at which a tick has work to do.
    fn deadline(&self) -> Option<Instant> {
        self.asking.at.into_iter().chain(self.slot.deadline()).min()
    }

    /// Shortens the backoff of a failed shard that a message waits for.
    pub(super) fn hasten_restart(&mut self, now: Instant) {
        if let Slot::LocalStarting(starting) = &mut self.slot
            && let Task::Failed(retry_at) = &mut starting.task
        {
            *retry_at = (*retry_at).min(now + MIN_RESTART);
        }
    }

    /// Forgets the old path if the echo is that of its probe: the path is empty now.
    pub(super) fn on_own_echo(&mut self, nonce: u64) {
        if self.slot.old_path().is_some_and(|path| path.probe == Some(nonce)) {
            self.slot.forget_left();
        }
    }

    /// A shard on another node of which only its home is known.
    fn at_rest(region: &RegionId, generation: Generation) -> Self {
        Self {
            slot: Slot::Remote(Remote { region: region.clone(), generation, is_open: true }),
            heard: Some(generation),
            last_home: Some(region.clone()),
            ..Self::default()
        }
    }

    /// The home, if nothing else is known of the shard: then [`ShardPlace::at_rest`] of this home restores the same place.
    fn rests_at(&self) -> Option<(&RegionId, Generation)> {
        let Self { slot, heard, ended, last_home, buffer, is_turn_asked, owes_leftover_mark, .. } = self;
        let Self { asking, acked, marks, leftover_marks, .. } = self;
        let Slot::Remote(Remote { region, generation, is_open: true }) = slot else { return None };
        let is_home_all = (*heard, ended, last_home.as_ref()) == (Some(*generation), &None, Some(region));
        let waits = !buffer.is_new() || *is_turn_asked || *owes_leftover_mark || *asking != Asking::default();
        let is_marked = acked.is_some() || !marks.is_empty() || !leftover_marks.is_empty();
        (is_home_all && !waits && !is_marked).then_some((region, *generation))
    }
}
