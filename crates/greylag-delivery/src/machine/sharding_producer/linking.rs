//! Inputs of links, and their effects.
//!
//! Source: delivery S1, S2, S5 to S7.

use std::sync::Arc;
use std::time::Instant;

use super::entity_state::{Buffered, Waiter};
use super::{Effect, Life, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::portable::Portable;
use crate::machine::producer_link::{self, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::machine::storing;
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, UpstreamMessage};
use crate::queue::Confirmation;

impl<P: Portable> ShardingProducer<P> {
    /// Opens a link to an entity without one (S1).
    pub(super) fn open(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>) -> u64 {
        self.demand.set(&entity, None);
        let link = self.new_link(now, &shard);
        self.links.open(now, entity, shard, link)
    }

    /// An empty link to an entity of a shard.
    pub(super) fn new_link(&mut self, now: Instant, shard: &str) -> ProducerLink<P> {
        let settings = ProducerLinkSettings {
            mode: LinkMode::Sharding,
            stream_id: self.identity.stream_id,
            epoch: self.identity.epoch,
            resend_first_interval: self.settings.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.settings.resend_first_unconfirmed_idle_timeout,
        };
        let mut link = ProducerLink::new(settings, now).sabotaged(self.sabotage);
        if !self.links.is_routed(shard) {
            link.handle(now, producer_link::Input::RouteChanged(false), &mut self.scratch);
        }
        link
    }

    pub(super) fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        self.counters.on_consumer_message(now);
        let instance = to.instance;
        if let Some(state) = self.links.get_mut(instance).filter(|state| state.controller == to) {
            state.was_replaced = false;
            let violations = state.link.violations();
            self.handle_input(now, instance, producer_link::Input::Received { from, epoch, message }, out);
            let now_counted = self.links.get(instance).map_or(violations, |state| state.link.violations());
            self.counters.stats.ignored += now_counted - violations;
            self.answered(now, instance, out);
            self.check_consumer_node(now, instance, out);
        } else {
            self.counters.stats.ignored += 1;
        }
        self.counters.end_silence();
    }

    pub(super) fn tell_shard(
        &mut self,
        now: Instant,
        shard: &str,
        input: &producer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        for instance in self.links.of_shard(shard) {
            self.handle_input(now, instance, input.clone(), out);
        }
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some(instance) = self.links.pop_due(now) {
            let Some(state) = self.links.get(instance) else { continue };
            let unused_for = now.saturating_duration_since(state.used_at);
            if state.is_unused() && unused_for >= self.settings.cleanup_unused_after {
                self.drop_link(instance, out);
            } else {
                self.handle_input(now, instance, producer_link::Input::Tick, out);
            }
        }
    }

    /// S6: drops a link; the next message to the entity begins a new link of the same stream, with numbers from 1.
    pub(super) fn drop_link(&mut self, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.remove(instance) else { return };
        self.demand.forget(&state.entity);
        self.recovery.forget(instance);
        if let Some(consumer) = state.link.consumer() {
            let message = ProducerStopped { controller: state.controller.clone(), epoch: self.identity.epoch };
            out.push(Effect::Stop { to: consumer.clone(), message });
        }
    }

    /// Ends all links, and refuses waiting senders. Unconfirmed messages stay in the queue, or are given up.
    pub(super) fn end_links(&mut self, out: &mut Vec<Effect<P>>) {
        let is_durable = self.storing.is_durable();
        for instance in self.links.instances() {
            if let Some(state) = self.links.get_mut(instance) {
                let entity = state.entity.clone();
                let refused = |waiter: Waiter<P>| Effect::Refused { ticket: waiter.ticket, frames: waiter.frames };
                out.extend(state.waiters.drain(..).map(refused));
                let given_up = state.unconfirmed.drain(..).filter(|_| !is_durable);
                out.extend(given_up.map(|message| Effect::Undelivered {
                    ticket: message.ticket.unwrap_or_default(),
                    entity: entity.clone(),
                    total: message.total,
                }));
            }
            self.drop_link(instance, out);
        }
    }

    /// Gives a link an input, then buffered messages while it has demand, and carries out its effects.
    pub(super) fn handle_input(
        &mut self,
        now: Instant,
        instance: u64,
        input: producer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        let Some(state) = self.links.get_mut(instance) else { return };
        state.link.handle(now, input, &mut self.scratch);
        self.feed(now, instance, out);
    }

    /// Gives a link buffered messages while it has demand, and carries out its effects.
    pub(super) fn feed(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(instance) else { return };
        let mut unsendable = Vec::new();
        while let Some(next) = state.buffered.pop_front_if(|_| state.link.demand() > 0) {
            let Buffered { total, frames, ack, is_recovered } = next;
            self.admission.leave_buffer(is_recovered);
            if let Err(error) = state.accept(now, total, frames, ack, &mut self.scratch) {
                unsendable.push((total, error));
            }
        }
        self.carry_on(now, instance, out);
        self.give_up(now, instance, unsendable, out);
        self.refresh(instance);
    }

    pub(super) fn carry_on(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let mut effects = std::mem::take(&mut self.scratch);
        let mut fenced = None;
        for effect in effects.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    let Some(state) = self.links.get(instance) else { break };
                    self.counters.stats.resent += u64::from(again);
                    let header = BatchHeader {
                        producer_id: self.identity.producer_id.clone(),
                        stream_id: self.identity.stream_id,
                        epoch: self.identity.epoch,
                        controller: state.controller.clone(),
                        ordered: true,
                        lowest,
                    };
                    let message = SequencedMessage { frame, first };
                    out.push(Effect::Transmit { entity: state.entity.clone(), header, message });
                }
                producer_link::Effect::ConfirmedUpTo(total) => self.on_confirmed(now, instance, total, out),
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => fenced = Some(newer),
            }
        }
        self.scratch = effects;
        if let Some(newer) = fenced {
            out.push(Effect::Fenced { newer });
            self.end(now, storing::Input::Fence, out);
        }
    }

    /// S5: forwards confirmations of a link to senders and store.
    fn on_confirmed(&mut self, now: Instant, instance: u64, total: SeqNr, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.get_mut(instance) else { return };
        let qualifier = state.entity.clone();
        let mut messages = 0;
        while let Some(done) = state.unconfirmed.pop_front_if(|message| message.total <= total) {
            messages += 1;
            state.bytes -= done.bytes;
            state.used_at = now;
            self.admission.give_back(done.bytes, done.ticket.is_none());
            self.contiguous.insert(done.total.get());
            self.counters.confirmed(now, done.accepted_at, self.contiguous.last());
            self.highest_confirmed = self.highest_confirmed.max(done.total);
            out.push(Effect::Confirmed { ticket: done.ticket.unwrap_or_default(), total: done.total });
        }
        if messages > 0 && self.storing.is_durable() {
            let confirmation = Confirmation::UpTo { qualifier, seq_nr: total, timestamp_ms: self.wall_ms(now) };
            self.tell_store(now, storing::Input::Confirm { confirmation, messages }, out);
        }
    }

    /// Updates all values derived from one entity's state: demand sets, admission queues, deadline.
    pub(super) fn refresh(&mut self, instance: u64) {
        let Some(state) = self.links.get_mut(instance) else { return };
        let demand_entry = (!state.has_demand()).then_some(state.buffered.len());
        if demand_entry != state.demand_entry {
            state.demand_entry = demand_entry;
            self.demand.set(&state.entity, demand_entry);
        }
        self.admission.place(instance, state);
        let cleanup_at = state.is_unused().then(|| state.used_at + self.settings.cleanup_unused_after);
        let deadline = [state.link.next_deadline(), cleanup_at].into_iter().flatten().min();
        self.links.arm(instance, deadline);
    }

    pub(super) fn check_invariants(&self) {
        #[cfg(test)]
        if self.life == Life::Running && self.links.len() < 20 {
            let states = || self.links.instances().into_iter().filter_map(|instance| self.links.get(instance));
            let used = super::admission::Used {
                slots: states().map(|state| state.buffered.len() + state.being_stored.len()).sum(),
                bytes: states().map(|state| state.bytes).sum(),
                messages: states().map(|state| state.unconfirmed.len() + state.being_stored.len()).sum(),
            };
            assert_eq!(used, self.admission.used());
        }
        debug_assert!(self.life != Life::Closed || self.links.len() == 0);
    }
}
