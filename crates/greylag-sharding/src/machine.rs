//! The protocols of sharding as machines: values that take inputs and yield effects, without clock, task or socket.
//!
//! Users need none of these machines. They are public for code that drives them itself (simulations, tests that play
//! one order of events after the other), and for readers who look up what a region or a coordinator does.
//!
//! | machine | decides |
//! |---|---|
//! | [`coordinator::Coordinator`] | where each shard lives, and when it moves |
//! | [`region::Region`] | where the messages of one node go, and what is hosted there |
//! | [`shard::Shard`] | which entity of a shard runs next, starts, stops, sleeps |
//! | [`daemon::DaemonManager`] | how many daemon processes there are, and that each is running |
//!
//! The machines exchange [`message`]s, and the value [`membership::Members`] describes the cluster to all of them.

pub mod coordinator;
pub mod daemon;
pub(crate) mod interned;
pub mod membership;
pub mod message;
pub(crate) mod omissions;
pub mod region;
pub mod shard;
pub(crate) mod timetable;
