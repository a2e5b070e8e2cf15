//! Routes the messages of one entity type on one node: knows homes, buffers, hosts, hands off.
//!
//! A region keeps for every shard what it knows of its home and publishes that as a route table;
//! only what has no open route, or needs a check, passes through this machine. It takes orders from
//! one coordinator at a time and checks every one by epoch and generation. Shards themselves,
//! messages and links belong to the driver; see [`protocol`](self) for the contract with it.
//!
//! ```text
//! Unknown -> Resolving -> Remote(region, generation) -> Buffering -> Remote ...
//!                      -> LocalStarting -> Local(generation) -> Draining -> Resolving ...
//! ```
//!
//! Source: sharding §2.3 to §2.6, §2.9 to §2.12, §9. Differs: as tagged [D] there.

mod protocol;

pub use protocol::{Counters, Effect, Input, Provenance, RegionEvent, Returned, Route, Token};

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use greylag_transport::Lane;

use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::settings::ShardingSettings;

/// What a region is made of.
#[derive(Clone)]
pub struct RegionConfig {
    /// The process and the incarnation of this region in it.
    pub id: RegionId,
    /// Routes but never hosts.
    pub proxy: bool,
    /// What this node understands the type to be.
    pub fingerprint: Fingerprint,
    /// Role of the nodes that may run the coordinator; empty for all.
    pub coordinator_role: String,
    /// Timeouts and sizes.
    pub settings: ShardingSettings,
    /// The lane on which the frames and marks of a shard travel: `Remoting::lane_of`, a pure function.
    pub lane_of: Arc<dyn Fn(&ShardId) -> Lane + Send + Sync>,
}

impl fmt::Debug for RegionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionConfig").field("id", &self.id).field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

/// How far the region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionState {
    /// No coordinator has taken its registration yet (or the coordinator was lost).
    Unregistered,
    /// A coordinator has.
    Registered,
    /// A coordinator refused it: sends fail.
    Refused,
    /// Hands off; still routes and buffers.
    ShuttingDown,
    /// Over.
    Stopped,
}

/// The machine; see the module's header.
#[derive(Debug)]
pub struct Region {
    config: RegionConfig,
    state: RegionState,
    counters: Counters,
}

impl Region {
    /// A region that knows nothing. Its first input must be `Membership`.
    pub fn new(config: RegionConfig, now: Instant) -> Self {
        let _ = now;
        Self { config, state: RegionState::Unregistered, counters: Counters::default() }
    }

    /// Takes one input. Infallible: what makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        let _ = (now, input, out);
    }

    /// When a `Tick` next has work to do, or `None` if only another input can wake this machine.
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Who this is.
    pub fn id(&self) -> &RegionId {
        &self.config.id
    }

    /// How far it is.
    pub fn state(&self) -> RegionState {
        self.state
    }

    /// What became of the messages that passed through the machine.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
