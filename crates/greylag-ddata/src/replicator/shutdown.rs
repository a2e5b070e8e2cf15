//! Decides when a replicator that stops is done: everything unsent is out, and one voter holds all of it. Source: ddata
//! G15.

use std::time::Instant;

use greylag_core::UniqueAddress;

use super::local::LocalReplica;
use crate::api::error::StopReason;
use crate::membership::replicas::Replica;

/// The stop that is under way, if any.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// Why the replicator stops, and when it stops at the latest.
    stopping: Option<(StopReason, Instant)>,
    /// Whether a refused replicator no longer answers others.
    is_over: bool,
}

/// How far a stop is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StopProgress {
    /// Wait: voters have not acknowledged everything, or the store has something to do.
    Waits,
    /// Start a round with the named voter: the voter has acknowledged every change, but may still be requesting large
    /// entries, and only a complete round shows that it has them.
    Compare(UniqueAddress),
    /// Everything is out, or the time is over.
    Done(StopReason),
}

impl Shutdown {
    /// Begins to stop.
    pub(super) fn begin(&mut self, reason: StopReason, deadline: Instant) {
        self.stopping = Some((reason, deadline));
    }

    /// Ends the stop that is under way, because it is done or the replicator stopped at once.
    pub(super) fn end(&mut self) {
        self.stopping = None;
    }

    /// From now on a refused replicator no longer tells peers that it is refused.
    pub(super) fn answer_no_more(&mut self) {
        self.is_over = true;
    }

    /// Whether a refused replicator still tells peers that it is refused.
    pub(super) fn still_answers(&self) -> bool {
        !self.is_over
    }

    /// Why the replicator is stopping.
    pub(super) fn reason(&self) -> Option<&StopReason> {
        self.stopping.as_ref().map(|(reason, _)| reason)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.stopping.as_ref().map(|(_, deadline)| *deadline)
    }

    /// How far the stop is; `None` if none is under way.
    pub(super) fn progress(&self, now: Instant, local: &LocalReplica) -> Option<StopProgress> {
        let (reason, deadline) = self.stopping.as_ref()?;
        let voters = local.replicas.others.iter().filter(|replica| replica.status.is_voter() && replica.reachable);
        let voters = voters.filter(|replica| local.gate.takes_deltas(&replica.address));
        let has_acknowledged = |voter: &&Replica| local.log.len() == 0 || local.log.is_acknowledged_by(&voter.address);
        let is_alone = voters.clone().next().is_none();
        let up_to_date: Vec<&UniqueAddress> = voters.filter(has_acknowledged).map(|voter| &voter.address).collect();
        let is_out = is_alone || up_to_date.iter().any(|voter| !local.log.is_hinted(voter));
        let has_settled = || local.entries.storing.is_idle();
        Some(match up_to_date.first() {
            _ if *deadline <= now || (is_out && has_settled()) => StopProgress::Done(reason.clone()),
            Some(voter) if !is_out => StopProgress::Compare((*voter).clone()),
            _ => StopProgress::Waits,
        })
    }
}
