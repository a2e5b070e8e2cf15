//! The own node: its settings, its names, its runtimes, and what it tells its listeners. Nothing here knows a peer.

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
