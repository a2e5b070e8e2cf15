//! Messages without bytes, and what becomes of them when their entity turns out to live on another node.
//!
//! Entities of this node are handed messages as they are. Where such an entity has moved, or an answer comes from another node,
//! its link starts anew under an instance that no link had: all that is unconfirmed is encoded and cut into chunks, under the
//! totals that it has and link numbers from 1. What is still said to the former instance is dropped, since its numbers mean
//! other frames; consumers know by its total what they have processed.
//!
//! Source: delivery K7.

use std::time::Instant;

use super::{Effect, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::portable::{Portable, UnsendableError};

impl<P: Portable> ShardingProducer<P> {
    /// The entities of a shard live on this node, or on another one, as the region's route says.
    pub(super) fn on_homed(&mut self, now: Instant, shard: &str, is_here: bool, out: &mut Vec<Effect<P>>) {
        for instance in self.links.of_shard(shard) {
            if is_here {
                self.links.get_mut(instance).into_iter().for_each(|state| state.is_here = true);
            } else {
                self.leave(now, instance, out);
            }
        }
    }

    /// After an answer: the consumer that has attached may be one of another node.
    pub(super) fn look_at_consumer(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let consumer = self.links.get(instance).and_then(|state| state.link.attached());
        if consumer.is_some_and(|consumer| consumer.node != *self.links.node()) {
            self.leave(now, instance, out);
        }
    }

    /// Frames of a link leave the node from here on. One that holds a frame without bytes starts anew.
    fn leave(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(instance) else { return };
        state.is_here = false;
        if state.link.frames().all(Portable::is_portable) {
            return;
        }
        debug_assert!(!self.storing.is_durable(), "what is stored has bytes, and no such link takes turns");
        let shard = state.shard.clone();
        let link = self.new_link(now, &shard);
        let Some((instance, former)) = self.links.renew(instance, link) else { return };
        let Some(state) = self.links.get_mut(instance) else { return };
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

    /// These messages of an entity were accepted, and can never reach it where it lives now. Those behind them go on.
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
            // Nothing waits for the number any more, as after a withdrawal.
            self.contiguous.insert(total.get());
            self.tally.given_up(self.contiguous.last());
            let (ticket, entity) = (message.ticket.unwrap_or_default(), state.entity.clone());
            out.push(Effect::Unsendable { ticket, entity, total, error });
        }
    }
}
