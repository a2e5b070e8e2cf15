//! Messages that are not encoded, and their handling when their entity turns out to be on another node.
//!
//! Messages to entities of this node are handed over as values. If such an entity has moved, or an answer comes from
//! another node, its link is replaced by one with a fresh instance: all unconfirmed messages are encoded and cut into
//! chunks, with unchanged totals, and link numbers from 1. Messages to the former instance are dropped, since its
//! numbers mean other frames; a consumer recognises processed messages by their totals.
//!
//! Source: delivery K7.

use std::sync::Arc;
use std::time::Instant;

use super::{Effect, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link;

impl<P: Portable> ShardingProducer<P> {
    /// Notes whether the entities of a shard are on this node.
    pub(super) fn on_homed(&mut self, now: Instant, shard: &Arc<str>, is_here: bool, out: &mut Vec<Effect<P>>) {
        self.links.homed(shard, is_here);
        for instance in self.links.of_shard(shard) {
            if is_here {
                self.links.get_mut(instance).into_iter().for_each(|state| state.is_here = true);
            } else {
                self.make_portable(now, instance, out);
            }
        }
    }

    /// S7: every link of a moved shard starts over, except a link that was just replaced because of the same move.
    pub(super) fn on_moved(&mut self, now: Instant, shard: &str, out: &mut Vec<Effect<P>>) {
        for instance in self.links.of_shard(shard) {
            let Some(state) = self.links.get_mut(instance) else { continue };
            if !std::mem::take(&mut state.was_replaced) {
                self.handle_input(now, instance, producer_link::Input::Reassociate, out);
            }
        }
    }

    /// After an answer: checks whether the attached consumer is on another node, or again on this node.
    pub(super) fn check_consumer_node(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get(instance) else { return };
        let Some(consumer) = state.link.attached() else { return };
        if consumer.node != *self.links.node() {
            self.make_portable(now, instance, out);
        } else if !state.is_here && !self.links.is_away(&state.shard) {
            self.links.get_mut(instance).into_iter().for_each(|state| state.is_here = true);
        }
    }

    /// The link's frames leave the node from here on. A link with a message that is not encoded is replaced.
    fn make_portable(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(instance) else { return };
        if !std::mem::take(&mut state.is_here) || state.link.frames().all(Portable::is_portable) {
            return;
        }
        let shard = state.shard.clone();
        let link = self.new_link(now, &shard);
        let Some((instance, former)) = self.links.renew(instance, link) else { return };
        let Some(state) = self.links.get_mut(instance) else { return };
        state.was_replaced = true;
        let mut unsendable = Vec::new();
        for (total, frames, ack) in former.into_messages() {
            if let Err(error) = state.accept(now, total, frames, ack, &mut self.scratch) {
                unsendable.push((total, error));
            }
        }
        self.carry_on(now, instance, out);
        self.give_up(now, instance, unsendable, out);
        self.feed(now, instance, out);
    }

    /// Gives up accepted messages that cannot be sent to their entity's new node. Later messages go on.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        instance: u64,
        unsendable: Vec<(SeqNr, UnsendableError)>,
        out: &mut Vec<Effect<P>>,
    ) {
        let Some(state) = self.links.get_mut(instance) else { return };
        for (total, error) in unsendable {
            let Ok(index) = state.unconfirmed.binary_search_by_key(&total, |message| message.total) else { continue };
            let Some(message) = state.unconfirmed.remove(index) else { continue };
            state.bytes -= message.bytes;
            state.used_at = now;
            self.admission.give_back(message.bytes, message.ticket.is_none());
            // The number counts as settled, as after a withdrawal.
            self.contiguous.insert(total.get());
            self.counters.given_up(self.contiguous.last());
            let (ticket, entity) = (message.ticket.unwrap_or_default(), state.entity.clone());
            out.push(Effect::Unsendable { ticket, entity, total, error });
        }
    }
}
