//! Additions of sharding to every [`Ctx`].

use std::sync::Arc;

use greylag_core::{Generation, ReplyTo, UniqueAddress};
use greylag_persistence::{Ctx, Host};
use greylag_transport::Recipient;
use greylag_transport::watch::{Terminated, WatchError};

use crate::driver::Node;
use crate::entity_ref::{AskError, EntityRef};
use crate::host::DirectRef;
use crate::key::EntityKey;

/// The methods of a [`Ctx`] in a shard; a trait of the prelude.
///
/// Outside of any shard none of these methods works: references refuse all messages
/// ([`SendError::NotStarted`](crate::SendError::NotStarted)).
pub trait EntityCtx<M> {
    /// A reference to another entity, of any type that is set up on this node.
    fn entity_ref<N: Send + 'static>(&self, key: EntityKey<N>, id: impl Into<Arc<str>>) -> EntityRef<N>;

    /// Asks another entity; `map` turns the outcome into a message to this one, at the back of its queue. The question
    /// is sent now, with the default timeout of its type. The outcome for an incarnation that has ended is discarded.
    fn ask<N: Send + 'static, R: Send + 'static>(
        &mut self,
        to: &EntityRef<N>,
        question: impl FnOnce(ReplyTo<R>) -> N,
        map: impl FnOnce(Result<R, AskError>) -> M + Send + 'static,
    );

    /// Watches a recipient of a member's transport, by its path: a region, a controller, or a recipient that a program
    /// registered. `map` turns its end into a message to this entity, at the back of its queue: once, and never for a
    /// node that is merely unreachable. The watch ends with the incarnation. Without a cluster, no node is a member.
    /// Source: cluster T30; persistence 77.
    fn watch(
        &mut self,
        recipient: &Recipient,
        at: &UniqueAddress,
        map: impl FnOnce(Result<Terminated, WatchError>) -> M + Send + 'static,
    );

    /// Watches one incarnation of an entity, wherever it lives: `map` turns its end into a message to this entity,
    /// once, when the incarnation has stopped, failed and been replaced, or been killed with its shard, or when its
    /// node is no member any more. The end of an incarnation that has ended already is reported at once. An entity's id
    /// never ends, so the watch needs the address that the incarnation has given out: [`EntityCtx::direct_ref`].
    /// Otherwise as [`EntityCtx::watch`].
    fn watch_entity(
        &mut self,
        entity: &DirectRef,
        map: impl FnOnce(Result<Terminated, WatchError>) -> M + Send + 'static,
    ) {
        self.watch(&entity.recipient(), &entity.node, map);
    }

    /// The entity's shard; empty outside of any shard.
    fn shard(&self) -> &str;

    /// The allocation under which the shard runs here.
    fn generation(&self) -> Option<Generation>;

    /// Number of this incarnation; never used twice by a process.
    fn incarnation(&self) -> Option<u64>;

    /// The process of the entity.
    fn node(&self) -> Option<&UniqueAddress>;

    /// The address of this incarnation alone: messages to it skip routing and start no entity
    /// ([`Region::tell_direct`](crate::Region::tell_direct)), and other entities may watch it
    /// ([`EntityCtx::watch_entity`]). The address may be part of a message. Source: sharding §4.11.
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

    fn watch(
        &mut self,
        recipient: &Recipient,
        at: &UniqueAddress,
        map: impl FnOnce(Result<Terminated, WatchError>) -> M + Send + 'static,
    ) {
        let sharding = node_of(self).and_then(Node::sharding);
        let cluster = sharding.and_then(|sharding| sharding.cluster().cloned());
        let (recipient, at) = (recipient.clone(), at.clone());
        let terminated = async move {
            let Some(cluster) = cluster else { return Err(WatchError::NotAMember(at)) };
            match cluster.watch(&recipient, &at).await?.terminated().await? {
                Some(terminated) => Ok(terminated),
                // Wait for ever: this node has ended, and its entities with it.
                None => std::future::pending().await,
            }
        };
        self.spawn(terminated, map);
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
        let node = node_of(self)?;
        let direct = DirectRef::of(node.remoting.self_address(), host.entity_type(), host.shard(), host.incarnation());
        // Register before another part of the program has the address: an earlier watch would find nothing.
        node.watchables.register(&*node.remoting, &direct);
        self.host_requests_mut().direct = true;
        Some(direct)
    }
}

fn node_of<'a, M>(cx: &Ctx<'a, M>) -> Option<&'a Node> {
    cx.host()?.lent().downcast_ref()
}
