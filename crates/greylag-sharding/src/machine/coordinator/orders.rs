//! Messages to regions that are repeated: to host, to drop, and the table of homes.

use super::drops::Drops;
use super::tables::Tables;
use crate::ids::ShardId;
use crate::timetable::Timetable;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// `HostShard`s that are not acked, and when they are repeated.
    pub(super) unstarted: Timetable<ShardId>,
    pub(super) drops: Drops,
    pub(super) tables: Tables,
}
