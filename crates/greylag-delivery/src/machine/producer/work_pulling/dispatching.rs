//! Gives messages to workers, and carries out the effects of their links.
//!
//! Source: delivery W1 to W3, W5, W6.

use std::collections::BTreeMap;
use std::time::Instant;

use super::WorkPulling;
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};
use crate::machine::controller::{Effect, Failure, ListedWorker};
use crate::machine::omissions::Clause;
use crate::machine::producer_link::{self, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage};

impl<P: Clone> WorkPulling<P> {
    /// W1, W2, W5: handles the present listing of workers.
    pub(super) fn on_listing(&mut self, now: Instant, listing: Vec<ListedWorker>, out: &mut Vec<Effect<P>>) {
        let listed: BTreeMap<ControllerRef, bool> =
            listing.into_iter().map(|listed| (listed.worker, listed.selectable)).collect();
        for instance in self.workers.gone(&listed) {
            self.drop_worker(instance, out);
        }
        for (worker, reachable) in listed {
            if !self.workers.set_reachable(&worker, reachable) {
                self.add_worker(now, worker, reachable);
            }
        }
    }

    /// W2: adds a link, which may send one frame without a grant.
    fn add_worker(&mut self, now: Instant, worker: ControllerRef, reachable: bool) {
        // Before the queue is loaded the stream is unknown; the load then replaces the link.
        let (stream_id, epoch) = self.stream.unwrap_or((StreamId(0), Epoch::FIRST));
        let settings = ProducerLinkSettings {
            mode: LinkMode::PointToPoint,
            stream_id,
            epoch,
            resend_first_interval: self.settings.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.settings.resend_first_unconfirmed_idle_timeout,
            omissions: self.settings.omissions,
        };
        let link = ProducerLink::new(settings, now);
        self.workers.add(now, worker, reachable, link);
    }

    /// W5: removes a worker that is gone; its messages become pending.
    fn drop_worker(&mut self, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(gone) = self.workers.remove(instance) else { return };
        if !self.settings.omissions.has(Clause::HandBack) {
            for total in gone.unconfirmed() {
                self.jobs.take_back(*total, instance, false, |holder| self.workers.has(holder));
            }
        }
        if let Some((_, epoch)) = self.stream {
            let message = ProducerStopped { controller: gone.controller().clone(), epoch };
            out.push(Effect::Stop { to: gone.consumer().clone(), message });
        }
        self.workers.keep_former(instance, gone);
    }

    /// Handles a message of a worker that is gone: a stopping worker reports its confirmed prefix, which may arrive
    /// after its removal from the listing, so that its jobs are not done again.
    pub(super) fn on_message_from_removed_worker(
        &mut self,
        now: Instant,
        instance: u64,
        input: producer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        for total in self.workers.on_message_of_former(now, instance, input) {
            self.on_confirmed(now, total, out);
        }
    }

    pub(super) fn stop_workers(&mut self, out: &mut Vec<Effect<P>>) {
        for instance in self.workers.instances() {
            self.drop_worker(instance, out);
        }
        self.workers.forget_former();
    }

    /// W6: a silent worker keeps its link, for a late confirmation; other workers get its messages.
    pub(super) fn mark_suspected(&mut self, instance: u64) {
        for total in self.workers.suspect(instance) {
            self.jobs.take_back(total, instance, true, |holder| self.workers.has(holder));
        }
    }

    /// W3: gives pending messages to workers while one has demand, oldest first.
    pub(super) fn dispatch(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        if self.stream.is_none() || self.jobs.pending() == 0 {
            return;
        }
        let mut from = SeqNr::NONE;
        while self.workers.any_has_demand()
            && let Some(total) = self.jobs.next_waiting(from)
        {
            from = SeqNr(total.get().saturating_add(1));
            // All workers with demand may hold this message already.
            let Some(instance) = self.workers.choose(self.settings.selection, &self.jobs, total) else { continue };
            let Some((frames, ack)) = self.jobs.give_out(now, total, instance) else { continue };
            self.workers.gives(now, instance, total);
            self.handle_input(now, instance, producer_link::Input::Accept { total, frames, ack }, out);
        }
    }

    pub(super) fn tick_workers(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some((instance, is_silent)) = self.workers.pop_due(now) {
            if is_silent {
                self.mark_suspected(instance);
            }
            self.handle_input(now, instance, producer_link::Input::Tick, out);
        }
    }

    /// Gives a worker's link an input, and carries out its effects.
    pub(super) fn handle_input(
        &mut self,
        now: Instant,
        instance: u64,
        input: producer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        let Some((mut effects, violations)) = self.workers.handle(now, instance, input) else { return };
        self.stats.ignored += violations;
        for effect in effects.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    self.stats.resent += u64::from(again);
                    self.transmit(instance, SequencedMessage { frame, first }, lowest, out);
                }
                producer_link::Effect::ConfirmedUpTo(total) => self.on_confirmed_up_to(now, instance, total, out),
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => {
                    self.fail(now, Failure::Fenced { newer: Some(newer), by: None }, out);
                }
            }
        }
        self.workers.handled(instance, effects);
    }

    fn transmit(&self, instance: u64, message: SequencedMessage<P>, lowest: u64, out: &mut Vec<Effect<P>>) {
        let (Some(worker), Some((stream_id, epoch))) = (self.workers.get(instance), self.stream) else { return };
        let header = BatchHeader {
            producer_id: self.settings.producer_id.clone(),
            stream_id,
            epoch,
            controller: worker.controller().clone(),
            ordered: false,
            lowest,
        };
        out.push(Effect::Transmit { to: worker.consumer().clone(), header, message });
    }

    /// Confirms a worker's messages up to `last`, in the order in which the worker got them.
    fn on_confirmed_up_to(&mut self, now: Instant, instance: u64, last: SeqNr, out: &mut Vec<Effect<P>>) {
        while let Some(total) = self.workers.take_first(instance) {
            self.on_confirmed(now, total, out);
            if total == last {
                return;
            }
        }
    }
}
