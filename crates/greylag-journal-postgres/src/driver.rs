//! The tokio half: connections, pools, the tasks of the lanes, and the sweeper of what is deleted.

pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod pool;
pub(crate) mod reservation;
pub(crate) mod sweeper;
