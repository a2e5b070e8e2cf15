//! What regions are told and told again: to host, to drop, and the table of homes.

use super::drops::Drops;
use super::tables::Tables;
use crate::ids::ShardId;
use crate::timetable::Timetable;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// `HostShard`s that are not acked, and when they are said again.
    pub(super) unstarted: Timetable<ShardId>,
    pub(super) drops: Drops,
    pub(super) tables: Tables,
}
