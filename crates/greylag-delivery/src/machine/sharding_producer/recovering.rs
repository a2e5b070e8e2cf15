//! Handles a loaded queue: at the producer's start, and after each later load.
//!
//! Source: delivery D7, D8, S8.

use std::time::Instant;

use super::entity_state::{Accepted, Buffered};
use super::{Effect, Life, RoutedMessage, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::contiguous::Contiguous;
use crate::machine::portable::Portable;
use crate::machine::producer_link;
use crate::machine::storing::Found;
use crate::queue::{MessageSent, QueueState};

impl<P: Portable> ShardingProducer<P> {
    /// Takes the loaded state: later frames are sent under its epoch, and its unconfirmed messages are sent again.
    pub(super) fn on_opened(&mut self, now: Instant, state: QueueState<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        self.identity.stream_id = state.stream_id;
        self.identity.epoch = state.epoch;
        if self.life == Life::Loading {
            self.life = Life::Running;
            self.contiguous = confirmed_in(&state);
            self.highest_confirmed = state.highest_confirmed_seq_nr;
            self.counters.stats.recovered = state.unconfirmed.len() as u64;
        } else {
            self.start_over(now, out);
        }
        for message in state.unconfirmed {
            self.recover(now, message, out);
        }
        for (entity, shard, waiter) in std::mem::take(&mut self.early) {
            self.counters.stats.waiting -= 1;
            self.on_admit(now, entity, shard, waiter);
        }
    }

    /// Gives every link the raised epoch. Links with unconfirmed messages take turns, as after a recovery.
    fn start_over(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        for instance in self.links.instances() {
            let Some(state) = self.links.get(instance) else { continue };
            if !state.link.is_settled() {
                self.hold(now, instance, out);
            }
            self.handle_input(now, instance, producer_link::Input::NewEpoch(self.identity.epoch), out);
        }
    }

    /// Puts a message of the queue into its entity's buffer, until its link's turn, unless the link has it already.
    fn recover(&mut self, now: Instant, message: MessageSent<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        let MessageSent { seq_nr: total, message: RoutedMessage { shard, bytes, frames }, ack, qualifier, .. } =
            message;
        let instance = match self.links.instance_of(&qualifier) {
            Some(instance) => instance,
            None => self.open(now, qualifier, shard),
        };
        let Some(state) = self.links.get_mut(instance) else { return };
        if total <= state.last_total {
            return;
        }
        state.last_total = total;
        state.bytes += bytes;
        state.unconfirmed.push_back(Accepted { total, ticket: None, bytes, accepted_at: now });
        state.buffered.push_back(Buffered { total, frames, ack, is_recovered: true });
        self.admission.take(bytes, true);
        self.counters.accepted(now, total);
        self.hold(now, instance, out);
    }

    /// Gives a message that others wrote into the queue's store to its link, or into its entity's buffer.
    pub(super) fn on_found(&mut self, now: Instant, found: Found<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        let MessageSent { seq_nr: total, message: RoutedMessage { shard, bytes, frames }, ack, qualifier, .. } =
            found.sent;
        self.contiguous.insert_range(found.after.get().saturating_add(1), total.get().saturating_sub(1));
        if self.life != Life::Running {
            return; // the message is stored, and the next load finds it
        }
        let instance = match self.links.instance_of(&qualifier) {
            Some(instance) => instance,
            None => self.open(now, qualifier, shard),
        };
        let Some(state) = self.links.get_mut(instance) else { return };
        if total <= state.last_total {
            return;
        }
        state.last_total = total;
        state.bytes += bytes;
        state.used_at = now;
        state.unconfirmed.push_back(Accepted { total, ticket: None, bytes, accepted_at: now });
        self.admission.take(bytes, true);
        self.counters.stats.sent += 1;
        self.counters.accepted(now, total);
        state.buffered.push_back(Buffered { total, frames, ack, is_recovered: true });
        self.feed(now, instance, out);
    }

    fn hold(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        self.handle_input(now, instance, producer_link::Input::Hold(true), out);
        self.recovery.queue_up(instance);
    }

    /// Holds links whose turn is over, and lets others begin.
    pub(super) fn take_turns(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some(instance) = self.recovery.end_overdue(now) {
            self.hold(now, instance, out);
        }
        while let Some(instance) = self.recovery.begin(now) {
            self.handle_input(now, instance, producer_link::Input::Hold(false), out);
        }
    }

    /// The link was answered: it takes no more turns, and is released if it was waiting.
    pub(super) fn answered(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        if self.recovery.forget(instance) {
            self.handle_input(now, instance, producer_link::Input::Hold(false), out);
        }
    }
}

/// The settled numbers: all below the next one that are not unconfirmed.
fn confirmed_in<P>(state: &QueueState<RoutedMessage<P>>) -> Contiguous {
    let end = state.current_seq_nr.get().saturating_sub(1);
    let mut run = Contiguous::up_to(0);
    let mut from = 1;
    for SeqNr(number) in state.unconfirmed.iter().map(|message| message.seq_nr) {
        run.insert_range(from, number.saturating_sub(1));
        from = number.saturating_add(1);
    }
    run.insert_range(from, end);
    run
}
