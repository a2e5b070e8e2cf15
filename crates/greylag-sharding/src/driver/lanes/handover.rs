//! Messages that came together for shards of this node: each shard gets its messages in one push.
//!
//! A frame brings messages for many shards. If they were pushed one by one, the first would wake its shard's task,
//! which would run on another processor for that one message, and contend with the next pushes for its inbox's lock.
//!
//! Source: sharding §10.

use std::collections::VecDeque;
use std::sync::Arc;

use greylag_core::{DeadLetterReason, Generation};

use crate::driver::region::shared::RegionInner;
use crate::inbox::{Inbox, Refused};
use crate::machine::message::Stamp;
use crate::machine::region::Input;
use crate::parcel::Parcel;
use crate::routes::LocalRoute;

/// See the module's description.
pub(in crate::driver) struct Handover<M>(Vec<ShardMessages<M>>);

/// Messages for one shard, which came straight from one region.
struct ShardMessages<M> {
    shard: u32,
    inbox: Arc<Inbox<Parcel<M>>>,
    generation: Generation,
    parcels: VecDeque<Parcel<M>>,
}

impl<M: Send + 'static> Handover<M> {
    pub(in crate::driver) fn new() -> Self {
        Self(Vec::new())
    }

    /// Keeps a message for a shard until [`Handover::end`].
    pub(in crate::driver) fn add(&mut self, shard: u32, route: &LocalRoute<Parcel<M>>, parcel: Parcel<M>) {
        let is_same = |waiting: &&mut ShardMessages<M>| {
            waiting.shard == shard
                && waiting.generation == route.generation
                && Arc::ptr_eq(&waiting.inbox, &route.inbox)
        };
        if let Some(waiting) = self.0.iter_mut().find(is_same) {
            return waiting.parcels.push_back(parcel);
        }
        let (inbox, generation, parcels) = (route.inbox.clone(), route.generation, VecDeque::from([parcel]));
        self.0.push(ShardMessages { shard, inbox, generation, parcels });
    }

    /// Hands over the messages kept. Messages for a sealed inbox go through the region's machine, which routes them
    /// anew.
    pub(in crate::driver) fn end(&mut self, shared: &Arc<RegionInner<M>>) {
        for ShardMessages { shard, inbox, generation, mut parcels } in self.0.drain(..) {
            match inbox.push_all(&mut parcels, |parcel| parcel.size) {
                None => {}
                Some(Refused::Full(())) => {
                    parcels.into_iter().for_each(|parcel| shared.dead_letter(parcel, DeadLetterReason::ShardInboxFull));
                }
                Some(Refused::Sealed(())) => {
                    parcels.into_iter().for_each(|parcel| through_machine(shared, shard, generation, parcel));
                }
            }
        }
    }
}

fn through_machine<M: Send + 'static>(
    shared: &Arc<RegionInner<M>>,
    shard: u32,
    generation: Generation,
    parcel: Parcel<M>,
) {
    let (Some(shard), Some(origin)) = (shared.shards.name(shard), &parcel.origin) else { return };
    let (node, stamp) = (origin.region.node.clone(), Stamp::straight(origin.region.clone(), generation));
    shared.input_with(parcel, |message| Input::Frame { node, shard, stamp, message });
}
