//! Moves a message from its sender to its link: room, then the store, then demand. Messages of a loaded queue are
//! stored already, and go to their links at once.
//!
//! Source: delivery S1 to S3, S8, D6 to D8.

use std::sync::Arc;
use std::time::Instant;

use super::admission::Next;
use super::entity_state::{Accepted, BeingStored, Buffered, Waiter};
use super::{Effect, Life, RoutedMessage, ShardingProducer};
use crate::machine::portable::Portable;
use crate::machine::storing::{self, Found, Unstored};
use crate::queue::{MessageSent, QueueState};

impl<P: Portable> ShardingProducer<P> {
    pub(super) fn on_admit(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>, waiter: Waiter<P>) {
        let instance = match self.links.instance_of(&entity) {
            Some(instance) => instance,
            None => self.open(now, entity, shard),
        };
        if let Some(state) = self.links.get_mut(instance) {
            state.waiters.push_back(waiter);
            self.progress.stats.waiting += 1;
        }
        self.refresh(instance);
    }

    pub(super) fn on_withdraw(&mut self, now: Instant, ticket: u64, entity: &str) {
        if let Some(index) = self.early.iter().position(|(.., waiter)| waiter.ticket == ticket) {
            self.early.remove(index);
            self.progress.stats.waiting -= 1;
            self.admission.forget(ticket);
        }
        let Some(instance) = self.links.instance_of(entity) else { return };
        let Some(state) = self.links.get_mut(instance) else { return };
        let Some(index) = state.waiters.iter().position(|waiter| waiter.ticket == ticket) else { return };
        if let Some(number) = state.waiters.remove(index).and_then(|waiter| waiter.reserved) {
            self.progress.withdrawn(number);
        }
        state.used_at = now;
        self.progress.stats.waiting -= 1;
        self.admission.forget(ticket);
        self.refresh(instance);
    }

    /// Accepts senders, and grants permits, while there is room. Before the queue is loaded all of them wait.
    pub(super) fn admit_waiting(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        if self.life != Life::Running {
            return;
        }
        while let Some(next) = self.admission.next() {
            match next {
                Next::Permit(permit) => out.push(Effect::Permit { permit }),
                Next::Sender(instance) => self.admit_first(now, instance, out),
            }
        }
    }

    /// Accepts the entity's first waiter, which has room, and gives its message to the store.
    fn admit_first(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let timestamp_ms = self.wall_ms(now);
        let Some(state) = self.links.get_mut(instance) else { return };
        let Some(waiter) = state.waiters.pop_front() else { return };
        let Waiter { ticket, reserved, frames, bytes, ack } = waiter;
        self.progress.stats.waiting -= 1;
        self.admission.take(bytes, false);
        state.bytes += bytes;
        state.used_at = now;
        state.being_stored.push_back(BeingStored { bytes, accepted_at: now });
        let ack = ack || self.admission.is_short(state.bytes);
        let (qualifier, shard) = (state.entity.clone(), state.shard.clone());
        let message = RoutedMessage { shard, bytes, frames };
        let message = Unstored { ticket, qualifier, message, bytes, ack, timestamp_ms };
        self.refresh(instance);
        self.tell_store(now, storing::Input::Accept { message, reserved }, out);
    }

    // ---- effects of the store -----------------------------------------------------------------------

    /// Gives the storing machine an input, and carries out its effects.
    pub(super) fn tell_store(
        &mut self,
        now: Instant,
        input: storing::Input<RoutedMessage<P>>,
        out: &mut Vec<Effect<P>>,
    ) {
        let mut effects = std::mem::take(&mut self.stored);
        self.storing.has_room_for(self.admission.room());
        self.storing.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                storing::Effect::Call { id, call } => out.push(Effect::Queue { id, call }),
                storing::Effect::Opened(state) => self.on_opened(now, state, out),
                storing::Effect::Released { ticket, sent } => self.on_released(now, ticket, sent, out),
                storing::Effect::Unknown { ticket, qualifier, seq_nr } => {
                    self.give_up_first(now, &qualifier);
                    out.push(Effect::StoreUnknown { ticket, total: seq_nr });
                }
                storing::Effect::GivenBack(message) => self.on_given_back(now, message, out),
                storing::Effect::Ended(end) => {
                    out.push(Effect::QueueEnded(end));
                    self.end(now, storing::Input::Close, out);
                }
                storing::Effect::Closed => {
                    self.life = Life::Closed;
                    out.push(Effect::Closed);
                }
            }
        }
        if self.stored.capacity() == 0 {
            self.stored = effects;
        }
        for found in self.storing.take_found() {
            self.on_found(now, found, out);
        }
    }

    /// Gives a message that is stored, or needs no store, to its link, or into the entity's buffer.
    fn on_released(
        &mut self,
        now: Instant,
        ticket: u64,
        sent: MessageSent<RoutedMessage<P>>,
        out: &mut Vec<Effect<P>>,
    ) {
        let MessageSent { seq_nr: total, message, ack, qualifier, .. } = sent;
        out.push(Effect::Admitted { ticket, total });
        let Some(instance) = self.links.instance_of(&qualifier) else { return };
        let Some(state) = self.links.get_mut(instance) else { return };
        let Some(stored) = state.being_stored.pop_front() else { return };
        let BeingStored { bytes, accepted_at } = stored;
        state.unconfirmed.push_back(Accepted { total, ticket: Some(ticket), bytes, accepted_at });
        state.last_total = total;
        state.used_at = now;
        self.progress.stats.sent += 1;
        self.progress.accepted(now, total);
        state.buffered.push_back(Buffered { total, frames: message.frames, ack, is_recovered: false });
        self.feed(now, instance, out);
    }

    /// Releases the room of the entity's first message in the store, which is not stored or may not be.
    fn give_up_first(&mut self, now: Instant, entity: &str) {
        let Some(instance) = self.links.instance_of(entity) else { return };
        let Some(state) = self.links.get_mut(instance) else { return };
        let Some(BeingStored { bytes, .. }) = state.being_stored.pop_front() else { return };
        state.bytes -= bytes;
        state.used_at = now;
        self.admission.leave_buffer(false);
        self.admission.give_back(bytes, false);
        self.refresh(instance);
    }

    fn on_given_back(&mut self, now: Instant, message: Unstored<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        let Unstored { ticket, qualifier, message, .. } = message;
        self.give_up_first(now, &qualifier);
        out.push(match self.life {
            Life::Loading | Life::Running => Effect::Unavailable { ticket, frames: message.frames },
            Life::Closing | Life::Closed => Effect::Refused { ticket, frames: message.frames },
        });
    }

    // ---- messages of the queue ---------------------------------------------------------------------

    /// Takes the loaded state: later frames are sent under its epoch, and its unconfirmed messages are sent again.
    fn on_opened(&mut self, now: Instant, state: QueueState<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        self.links.set_stream(state.stream_id, state.epoch);
        if self.life == Life::Loading {
            self.life = Life::Running;
            self.progress.recovered(&state);
        } else {
            self.start_over(now, out);
        }
        for message in state.unconfirmed {
            self.recover(now, message, out);
        }
        for (entity, shard, waiter) in std::mem::take(&mut self.early) {
            self.progress.stats.waiting -= 1;
            self.on_admit(now, entity, shard, waiter);
        }
    }

    /// Puts a message of the queue into its entity's buffer, until its link's turn, unless the link has it already.
    fn recover(&mut self, now: Instant, message: MessageSent<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        if let Some(instance) = self.take_stored(now, message) {
            self.hold(now, instance, out);
        }
    }

    /// Gives a message that others wrote into the queue's store to its link, or into its entity's buffer.
    fn on_found(&mut self, now: Instant, found: Found<RoutedMessage<P>>, out: &mut Vec<Effect<P>>) {
        self.progress.skipped(found.after, found.sent.seq_nr);
        if self.life != Life::Running {
            return; // the message is stored, and the next load finds it
        }
        let Some(instance) = self.take_stored(now, found.sent) else { return };
        self.progress.stats.sent += 1;
        self.feed(now, instance, out);
    }

    /// Takes a message of the queue into its entity's buffer. `None` if the link of the entity has it already.
    fn take_stored(&mut self, now: Instant, message: MessageSent<RoutedMessage<P>>) -> Option<u64> {
        let MessageSent { seq_nr: total, message: RoutedMessage { shard, bytes, frames }, ack, qualifier, .. } =
            message;
        let instance = match self.links.instance_of(&qualifier) {
            Some(instance) => instance,
            None => self.open(now, qualifier, shard),
        };
        if !self.links.get_mut(instance)?.take_stored(now, total, frames, bytes, ack) {
            return None;
        }
        self.admission.take(bytes, true);
        self.progress.accepted(now, total);
        Some(instance)
    }
}
