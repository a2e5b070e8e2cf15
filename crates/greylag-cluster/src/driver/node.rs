//! The task that owns the machines of a node, and its ways to the network.

mod dial;
mod exit;
mod hosted;
mod inbound;
mod network;
mod owner;
mod publisher;
mod rates;

pub(crate) use owner::Node;
