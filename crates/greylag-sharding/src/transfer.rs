//! The way of a message to its shard: the route table, the shard's inbox, and messages as frames between nodes.

pub(crate) mod frame;
pub(crate) mod held;
pub(crate) mod inbox;
pub(crate) mod parcel;
pub mod parts;
pub(crate) mod routes;
