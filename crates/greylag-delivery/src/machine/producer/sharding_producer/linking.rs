//! Inputs of links, and their effects.
//!
//! Messages to entities of this node are handed over as values. If such an entity has moved, or an answer comes from
//! another node, its link is replaced by one with a fresh instance: all unconfirmed messages are encoded and cut into
//! chunks, with unchanged totals, and link numbers from 1. Messages to the former instance are dropped, since its
//! numbers mean other frames; a consumer recognises processed messages by their totals.
//!
//! Source: delivery S1, S2, S5 to S8, K7.

use std::sync::Arc;
use std::time::Instant;

use super::entity_state::{Buffered, Waiter};
use super::{Effect, Life, ShardingProducer};
use crate::ids::SeqNr;
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link;
use crate::machine::storing;
use crate::message::{ProducerStopped, SequencedMessage, UpstreamMessage};
use crate::queue::Confirmation;

impl<P: Portable> ShardingProducer<P> {
    /// Opens a link to an entity without one (S1).
    pub(super) fn open(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>) -> u64 {
        self.demand.set(&entity, None);
        self.links.open(now, entity, shard)
    }

    pub(super) fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        self.progress.on_consumer_message(now);
        let instance = to.instance;
        if let Some(state) = self.links.get_mut(instance).filter(|state| state.controller == to) {
            state.was_replaced = false;
            let violations = state.link.violations();
            self.handle_input(now, instance, producer_link::Input::Received { from, epoch, message }, out);
            let now_counted = self.links.get(instance).map_or(violations, |state| state.link.violations());
            self.progress.stats.ignored += now_counted - violations;
            self.answered(now, instance, out);
            self.check_consumer_node(now, instance, out);
        } else {
            self.progress.stats.ignored += 1;
        }
        self.progress.end_silence();
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
    fn drop_link(&mut self, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(state) = self.links.remove(instance) else { return };
        self.demand.forget(&state.entity);
        self.recovery.forget(instance);
        if let Some(consumer) = state.link.consumer() {
            let message = ProducerStopped { controller: state.controller.clone(), epoch: self.links.epoch() };
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

    fn carry_on(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        let mut effects = std::mem::take(&mut self.scratch);
        let mut fenced = None;
        for effect in effects.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    let Some(state) = self.links.get(instance) else { break };
                    self.progress.stats.resent += u64::from(again);
                    let header = self.links.header(state.controller.clone(), lowest);
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
            self.progress.confirmed(now, done.total, done.accepted_at);
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

    // ---- turns after a load -------------------------------------------------------------------------

    /// Gives every link the raised epoch. Links with unconfirmed messages take turns, as after a recovery.
    pub(super) fn start_over(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        for instance in self.links.instances() {
            let Some(state) = self.links.get(instance) else { continue };
            if !state.link.is_settled() {
                self.hold(now, instance, out);
            }
            self.handle_input(now, instance, producer_link::Input::NewEpoch(self.links.epoch()), out);
        }
    }

    /// Holds a link until its turn.
    pub(super) fn hold(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
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
    fn answered(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
        if self.recovery.forget(instance) {
            self.handle_input(now, instance, producer_link::Input::Hold(false), out);
        }
    }

    // ---- entities of this node, and moves -----------------------------------------------------------

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
    fn check_consumer_node(&mut self, now: Instant, instance: u64, out: &mut Vec<Effect<P>>) {
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
        let Some((instance, former)) = self.links.renew(now, instance) else { return };
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
    fn give_up(
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
            self.progress.given_up(total);
            let (ticket, entity) = (message.ticket.unwrap_or_default(), state.entity.clone());
            out.push(Effect::Unsendable { ticket, entity, total, error });
        }
    }

    // ---- invariants ---------------------------------------------------------------------------------

    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.life == Life::Running && self.links.len() < 20 {
            self.links.check_invariants();
            let states = || self.links.instances().into_iter().filter_map(|instance| self.links.get(instance));
            let used = super::admission::Used {
                slots: states().map(|state| state.buffered.len() + state.being_stored.len()).sum(),
                bytes: states().map(|state| state.bytes).sum(),
                messages: states().map(|state| state.unconfirmed.len() + state.being_stored.len()).sum(),
            };
            self.admission.check_invariants(used);
        }
        debug_assert!(self.life != Life::Closed || self.links.len() == 0, "a producer ends after its links");
        debug_assert!(
            self.life == Life::Loading || self.early.is_empty(),
            "messages wait only while the queue is loaded"
        );
    }
}
