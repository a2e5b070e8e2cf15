//! Replicated data of a node, and the one replicator that holds it.
//!
//! Source: api.md, page 7.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_crdt::ReplicatedData;
use greylag_ddata::{KeyId, Lifecycle, Replicated, Replicator, RequestError, StartError, TypeTable};

use crate::node::Node;

/// The node's replicator, once something has asked for it. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct NodeReplicator(Arc<Mutex<Option<Replicator>>>);

/// Why an entry cannot be named on a node.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicatedError {
    /// The node's replicator did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The id cannot name an entry, or the replicator has stopped.
    #[error(transparent)]
    Request(#[from] RequestError),
}

greylag_core::debug_is_sentence!(ReplicatedError);

impl Node {
    /// The entry of this id in the data that the nodes replicate, whose value is a `T` on each of them. The first call
    /// starts the node's replicator, by the settings `ddata.*`; say it on every node that is to have a copy.
    ///
    /// ```
    /// # use greylag::prelude::*;
    /// # #[tokio::main]
    /// # async fn main() -> greylag::Result {
    /// # let node = Node::builder("poll").start().await?;
    /// let votes = node.replicated::<PNCounter>("votes")?;
    /// votes.update(|votes, cx| votes.increment(cx, 1)).await?; // local
    /// votes.update(|votes, cx| votes.increment(cx, 1)).majority().await?; // on most nodes
    /// assert_eq!(votes.get().majority().await?.value(), 2);
    /// # node.shutdown().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ReplicatedError`].
    pub fn replicated<T: ReplicatedData>(&self, id: impl Into<KeyId>) -> Result<Replicated<T>, ReplicatedError> {
        Ok(self.replicator(TypeTable::new())?.replicated(id)?)
    }

    /// The node's replicator, that `ddata.*` describes: the first call starts it, fed by this node's cluster, and all
    /// later ones give the same. When the node leaves, it hands over the changes that no other replicator has yet.
    /// `types` lists types that peers may send, or that durable entries have, before this node has used them.
    ///
    /// # Errors
    /// [`StartError`]: this node lacks a role of `ddata.roles`, or one of that name was started by
    /// [`Node::replicator_with`].
    pub fn replicator(&self, types: TypeTable) -> Result<Replicator, StartError> {
        let mut own = self.replicator.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.as_ref().filter(|known| !matches!(*known.lifecycle().borrow(), Lifecycle::Stopped(_)))
        {
            // One that is so busy that it takes nothing more learns the types as they are used.
            known.add_types(types).ok();
            return Ok(known.clone());
        }
        let started = self.replicator_with(self.settings.ddata.clone(), types)?;
        *own = Some(started.clone());
        Ok(started)
    }
}
