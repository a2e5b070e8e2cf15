//! Incarnations that can be watched: each is a recipient of the transport for as long as it lives.
//!
//! An incarnation is registered when it asks for its address, before any other part of the program can know that
//! address; most incarnations never ask, and cost nothing. Messages to the recipient are dropped: messages to an
//! incarnation have another path.
//!
//! Source: cluster T30, sharding §4.11.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_transport::{Inbound, Receiver, Remoting};

use crate::host::DirectRef;

/// The registered incarnations of a node, with their paths.
#[derive(Default)]
pub(crate) struct NodeWatchables(Mutex<BTreeMap<u64, Arc<str>>>);

struct DiscardReceiver;

impl Receiver for DiscardReceiver {
    fn receive(&self, _: Inbound) {}
}

impl NodeWatchables {
    /// Registers an incarnation, which can be watched from now on. Both `register` and `end` are called by its own
    /// shard.
    pub(crate) fn register(&self, remoting: &dyn Remoting, incarnation: &DirectRef) {
        let path = incarnation.recipient().path;
        let is_new = self.lock().insert(incarnation.instance, path.clone()).is_none();
        if is_new {
            remoting.register(&path, Arc::new(DiscardReceiver));
        }
    }

    /// Ends the watch of an incarnation: its watchers are told.
    pub(in crate::driver) fn end(&self, remoting: &dyn Remoting, incarnation: u64) {
        let path = self.lock().remove(&incarnation);
        if let Some(path) = path {
            remoting.unregister(&path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
