//! The tokio half: connections, pools, the tasks of the lanes, and the sweeper of deleted events.

mod availability;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod opener;
pub(crate) mod pool;
mod reservation;
pub(crate) mod session;
pub(crate) mod sweeper;
