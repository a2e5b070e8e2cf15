//! What an incarnation is made with, and its stages.

use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::machine::message::CoordinatorId;
use crate::machine::omissions::Omissions;
use crate::settings::ShardingSettings;

/// Homes per frame, so that a table fits a frame of the control lane.
pub(super) const HOMES_PER_FRAME: usize = 500;

/// Configuration of a coordinator incarnation.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Its node, and a number that no other incarnation of that process has.
    pub id: CoordinatorId,
    /// How its node describes the type; used if the state has no fingerprint.
    pub fingerprint: Fingerprint,
    /// Role of the nodes that host; empty for all.
    pub role: String,
    /// Timeouts and limits.
    pub settings: ShardingSettings,
    /// Wait after a removal without proof that the process has ended.
    pub down_removal_margin: Duration,
    /// Most events that the store writes atomically: larger batches are split.
    pub max_batch: usize,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// The stage of the incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinatorState {
    /// Reads the state of its predecessors.
    Reading,
    /// Makes its epoch durable.
    CommittingEpoch,
    /// Reads again: another incarnation may have chosen the same epoch.
    ReadingAgain,
    /// Takes the inventory: requests for confirmed homes are answered, nothing is decided.
    Reconciling,
    /// Decides allocations and moves.
    Active,
    /// Has ended; the driver starts another incarnation if this node still has to coordinate.
    Stopped,
}
