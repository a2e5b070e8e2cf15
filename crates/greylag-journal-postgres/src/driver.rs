//! The tokio half: connections, pools, the tasks of the lanes, and the sweeper of deleted events.

pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod pool;
pub(crate) mod reservation;
pub(crate) mod sweeper;
