//! The own node: its settings, the facts that its Hellos tell, its runtimes, its inbound streams, and the events for its
//! listeners. Nothing here uses a peer.

mod announcer;
mod blocked;
mod node;
mod own_facts;
mod runtimes;
mod shutdown;
mod streams;

pub(crate) use announcer::{Announcement, Announcements, Announcer};
pub(crate) use node::LocalNode;
pub(crate) use own_facts::OwnFacts;
pub(crate) use runtimes::{Runtimes, Threads};
pub(crate) use streams::{NoTurn, Turn};
