//! What a region is made with, and the stages of its life.

use std::fmt;
use std::sync::Arc;

use greylag_transport::Lane;

use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::omissions::Omissions;
use crate::settings::ShardingSettings;

/// Configuration of a region.
#[derive(Clone)]
pub struct RegionConfig {
    /// The process and the incarnation of this region in it.
    pub id: RegionId,
    /// Routes but never hosts.
    pub proxy: bool,
    /// How this node describes the type: compared with the other members and the coordinator.
    pub fingerprint: Fingerprint,
    /// Role of the nodes that may run the coordinator; empty for all.
    pub coordinator_role: String,
    /// Timeouts and sizes.
    pub settings: ShardingSettings,
    /// The lane on which the frames and marks of a shard travel: `Remoting::lane_of`, a pure function.
    pub lane_of: Arc<dyn Fn(&ShardId) -> Lane + Send + Sync>,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

impl fmt::Debug for RegionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionConfig").field("id", &self.id).field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

/// The stage of the region's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionState {
    /// No coordinator has taken its registration yet (or the coordinator was lost).
    Unregistered,
    /// A coordinator has taken the registration.
    Registered,
    /// A coordinator refused the registration: sends fail.
    Refused,
    /// Hands its shards off; still routes and buffers.
    ShuttingDown,
    /// Ends at once: its shards are being killed.
    Stopping,
    /// No shard is hosted and no message is buffered any more.
    Stopped,
}
