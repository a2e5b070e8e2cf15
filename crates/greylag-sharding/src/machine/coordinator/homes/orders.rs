//! Messages to regions that are repeated: to host, to drop, and the table of homes.

use super::drops::Drops;
use super::tables::Tables;
use crate::ids::ShardId;
use crate::timetable::Timetable;

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Orders {
    /// `HostShard`s that are not acked, and when they are repeated.
    pub(in crate::machine::coordinator) unstarted: Timetable<ShardId>,
    pub(in crate::machine::coordinator) drops: Drops,
    pub(in crate::machine::coordinator) tables: Tables,
}
