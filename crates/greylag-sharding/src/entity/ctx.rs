//! What handlers of sharded entities may do besides what every [`Ctx`] offers.

use std::sync::Arc;

use greylag_core::{Generation, ReplyTo, UniqueAddress};
use greylag_persistence::{Ctx, Host};

use crate::driver::Node;
use crate::entity_ref::{AskError, EntityRef};
use crate::host::DirectRef;
use crate::key::EntityKey;

/// What a [`Ctx`] offers in a shard; a trait of the prelude.
///
/// An entity that runs outside of any shard has none of it: its references refuse what is sent to them
/// ([`SendError::NotStarted`](crate::SendError::NotStarted)).
pub trait EntityCtx<M> {
    /// A name for another entity, of any type that is set up on this node.
    fn entity_ref<N: Send + 'static>(&self, key: EntityKey<N>, id: impl Into<Arc<str>>) -> EntityRef<N>;

    /// Asks another entity; `map` makes the outcome a message to this one, at the back of its queue. The question leaves
    /// now and waits for the default timeout of its type. The outcome of an incarnation that has ended is discarded.
    fn ask<N: Send + 'static, R: Send + 'static>(
        &mut self,
        to: &EntityRef<N>,
        question: impl FnOnce(ReplyTo<R>) -> N,
        map: impl FnOnce(Result<R, AskError>) -> M + Send + 'static,
    );

    /// The entity's shard; empty outside of any shard.
    fn shard(&self) -> &str;

    /// Under which allocation the shard runs here.
    fn generation(&self) -> Option<Generation>;

    /// Number of this incarnation; never used twice by a process.
    fn incarnation(&self) -> Option<u64>;

    /// The process that it lives in.
    fn node(&self) -> Option<&UniqueAddress>;

    /// The address of this incarnation alone: what is sent to it skips routing and starts no entity. Source: sharding §4.11.
    fn direct_ref(&mut self) -> Option<DirectRef>;
}

impl<M: Send + 'static> EntityCtx<M> for Ctx<'_, M> {
    fn entity_ref<N: Send + 'static>(&self, key: EntityKey<N>, id: impl Into<Arc<str>>) -> EntityRef<N> {
        match node_of(self).and_then(Node::sharding) {
            Some(sharding) => sharding.entity_ref(key, id),
            None => EntityRef::unknown(key, id),
        }
    }

    fn ask<N: Send + 'static, R: Send + 'static>(
        &mut self,
        to: &EntityRef<N>,
        question: impl FnOnce(ReplyTo<R>) -> N,
        map: impl FnOnce(Result<R, AskError>) -> M + Send + 'static,
    ) {
        let answer = to.ask(question).send();
        self.spawn(answer, map);
    }

    fn shard(&self) -> &str {
        self.host().map_or("", |host| host.shard())
    }

    fn generation(&self) -> Option<Generation> {
        self.host().map(Host::generation)
    }

    fn incarnation(&self) -> Option<u64> {
        self.host().map(Host::incarnation)
    }

    fn node(&self) -> Option<&UniqueAddress> {
        node_of(self).map(|node| node.remoting.self_address())
    }

    fn direct_ref(&mut self) -> Option<DirectRef> {
        let host = self.host()?;
        let direct = DirectRef::of(self.node()?, host.entity_type(), host.shard(), host.incarnation());
        self.wishes_mut().direct = true;
        Some(direct)
    }
}

fn node_of<'a, M>(cx: &Ctx<'a, M>) -> Option<&'a Node> {
    cx.host()?.lent().downcast_ref()
}
