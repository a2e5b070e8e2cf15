//! The peers of a node: one association machine each, with its queues, and the table of them all.

mod address_hash;
mod by_address;
mod driving;
mod fault;
mod numbered;
mod peer;
mod retired_uids;
mod table;

pub(crate) use driving::drop_idle_peers;
pub(crate) use fault::DropFault;
pub use fault::Fault;
pub(crate) use numbered::NotNumbered;
pub(crate) use peer::{Admission, Dial, LinkEnd, Peer, Refused};
pub(crate) use table::Peers;
