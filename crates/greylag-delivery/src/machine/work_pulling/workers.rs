//! The workers, each with its link and the messages that it holds.
//!
//! Source: delivery W2, W3, W5, W6.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::jobs::Jobs;
use super::{ListedWorker, WorkPulling, WorkerSelection};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::{Effect, Failure};
use crate::machine::deadlines::{ArmedTimer, Deadlines};
use crate::machine::producer_link::{self, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, Upstream};
use crate::sabotage::Sabotage;

/// Maximum number of kept links of workers that are gone; the oldest is dropped first.
const MAX_FORMER: usize = 64;

/// A worker, and the link to it.
#[derive(Debug, Clone)]
struct Worker<P> {
    worker: ControllerRef,
    controller: ControllerRef,
    link: ProducerLink<P>,
    /// The messages that the worker holds, in the order in which it got them.
    unconfirmed: VecDeque<SeqNr>,
    /// Whether the worker's node is reachable.
    reachable: bool,
    /// The worker did not answer, and gets no messages until it sends one (W6).
    suspected: bool,
    has_answered: bool,
    /// When the worker got its first message.
    first_sent_at: Option<Instant>,
    armed: ArmedTimer,
}

impl<P: Clone> Worker<P> {
    fn is_selectable(&self) -> bool {
        self.reachable && !self.suspected
    }

    fn has_demand(&self) -> bool {
        self.is_selectable() && self.link.demand() > 0
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Workers<P> {
    links: BTreeMap<u64, Box<Worker<P>>>,
    by_worker: BTreeMap<ControllerRef, u64>,
    /// Links of workers that are gone with messages in hand, whose last confirmations may still arrive.
    former: BTreeMap<u64, Box<Worker<P>>>,
    next_instance: u64,
    deadlines: Deadlines<u64>,
    random_state: u64,
    scratch: Vec<producer_link::Effect<P>>,
}

impl<P: Clone> Workers<P> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            links: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            former: BTreeMap::new(),
            next_instance: 1,
            deadlines: Deadlines::new(),
            random_state: seed,
            scratch: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn selectable(&self) -> usize {
        self.links.values().filter(|worker| worker.is_selectable()).count()
    }

    /// Whether the link is, or was, the one to this worker.
    pub(super) fn is(&self, instance: u64, worker: &ControllerRef) -> bool {
        let link = self.links.get(&instance).or_else(|| self.former.get(&instance));
        link.is_some_and(|link| link.worker == *worker)
    }

    pub(super) fn is_former(&self, instance: u64) -> bool {
        self.former.contains_key(&instance)
    }

    pub(super) fn listing(&self) -> Vec<ListedWorker> {
        let listed = |link: &Worker<P>| ListedWorker { worker: link.worker.clone(), selectable: link.reachable };
        self.links.values().map(|link| listed(link)).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Notes that a message of the worker arrived, so that it is alive.
    pub(super) fn on_message(&mut self, instance: u64) {
        if let Some(worker) = self.links.get_mut(&instance) {
            (worker.has_answered, worker.suspected) = (true, false);
        }
    }

    fn has(&self, instance: u64) -> bool {
        self.links.get(&instance).is_some_and(|worker| !worker.suspected)
    }

    /// W3: chooses a worker with demand that does not hold this message.
    fn choose(&mut self, selection: WorkerSelection, jobs: &Jobs<P>, total: SeqNr) -> Option<u64> {
        let mut least = usize::MAX;
        let mut equals = Vec::new();
        for (instance, worker) in &self.links {
            if !worker.has_demand() || jobs.is_held_by(total, *instance) {
                continue;
            }
            let in_hand = match selection {
                WorkerSelection::LeastInFlight => worker.unconfirmed.len(),
                WorkerSelection::Random => 0,
            };
            if in_hand < least {
                least = in_hand;
                equals.clear();
            }
            if in_hand == least {
                equals.push(*instance);
            }
        }
        let chosen = splitmix(&mut self.random_state).checked_rem(equals.len() as u64)?;
        equals.get(chosen as usize).copied()
    }

    pub(super) fn with_demand(&self) -> usize {
        self.links.values().filter(|worker| worker.has_demand()).count()
    }

    fn any_has_demand(&self) -> bool {
        self.links.values().any(|worker| worker.has_demand())
    }

    pub(super) fn check_invariants(&self, jobs: &Jobs<P>) {
        debug_assert_eq!(self.by_worker.len(), self.links.len());
        #[cfg(test)]
        for (instance, worker) in &self.links {
            let held = worker.unconfirmed.iter().filter(|total| jobs.is_held_by(**total, *instance)).count();
            assert!(held <= worker.unconfirmed.len());
        }
        let _ = jobs;
    }
}

/// The next number of a pseudo-random sequence, which depends on the seed alone.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl<P: Clone> WorkPulling<P> {
    /// W1, W2, W5: handles the present listing of workers.
    pub(super) fn on_listing(&mut self, now: Instant, listing: Vec<ListedWorker>, out: &mut Vec<Effect<P>>) {
        let listed: BTreeMap<ControllerRef, bool> =
            listing.into_iter().map(|listed| (listed.worker, listed.selectable)).collect();
        let gone: Vec<u64> = (self.workers.by_worker.iter())
            .filter(|(worker, _)| !listed.contains_key(*worker))
            .map(|(_, instance)| *instance)
            .collect();
        for instance in gone {
            self.drop_worker(instance, out);
        }
        for (worker, reachable) in listed {
            match self.workers.by_worker.get(&worker) {
                Some(instance) => {
                    if let Some(known) = self.workers.links.get_mut(instance) {
                        known.reachable = reachable;
                    }
                }
                None => self.add_worker(now, worker, reachable),
            }
        }
    }

    /// W2: adds a link, which may send one frame without a grant.
    fn add_worker(&mut self, now: Instant, worker: ControllerRef, reachable: bool) {
        // Before the queue is loaded the stream is unknown; the load then replaces the link.
        let (stream_id, epoch) = self.stream.unwrap_or((crate::ids::StreamId(0), crate::ids::Epoch::FIRST));
        let settings = ProducerLinkSettings {
            mode: LinkMode::PointToPoint,
            stream_id,
            epoch,
            resend_first_interval: self.settings.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.settings.resend_first_unconfirmed_idle_timeout,
        };
        let mut link = ProducerLink::new(settings, now).sabotaged(self.sabotage);
        let register = Upstream::RegisterConsumer;
        let register = producer_link::Input::Received { from: worker.clone(), epoch: None, message: register };
        link.handle(now, register, &mut self.workers.scratch);
        self.workers.scratch.clear(); // a link without frames transmits nothing
        let instance = self.workers.next_instance;
        self.workers.next_instance += 1;
        let (node, path) = (self.settings.node.clone(), self.settings.path.clone());
        let controller = ControllerRef { node, path, instance };
        self.workers.by_worker.insert(worker.clone(), instance);
        let (unconfirmed, armed) = (VecDeque::new(), ArmedTimer::default());
        let (suspected, has_answered, first_sent_at) = (false, false, None);
        let worker =
            Worker { worker, controller, link, unconfirmed, reachable, suspected, has_answered, first_sent_at, armed };
        self.workers.links.insert(instance, Box::new(worker));
    }

    /// W5: removes a worker that is gone; its messages become pending.
    fn drop_worker(&mut self, instance: u64, out: &mut Vec<Effect<P>>) {
        let Some(gone) = self.workers.links.remove(&instance) else { return };
        self.workers.by_worker.remove(&gone.worker);
        if self.sabotage != Some(Sabotage::HandBack) {
            for total in &gone.unconfirmed {
                self.jobs.take_back(*total, instance, false, |holder| self.workers.has(holder));
            }
        }
        if let Some((_, epoch)) = self.stream {
            let message = ProducerStopped { controller: gone.controller.clone(), epoch };
            out.push(Effect::Stop { to: gone.worker.clone(), message });
        }
        if !gone.unconfirmed.is_empty() {
            self.workers.former.insert(instance, gone);
            if self.workers.former.len() > MAX_FORMER {
                self.workers.former.pop_first();
            }
        }
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
        let Some(mut gone) = self.workers.former.remove(&instance) else { return };
        let mut effects = Vec::new();
        gone.link.handle(now, input, &mut effects);
        for effect in effects {
            let producer_link::Effect::ConfirmedUpTo(last) = effect else { continue };
            while let Some(total) = gone.unconfirmed.pop_front() {
                self.on_confirmed(now, total, out);
                if total == last {
                    break;
                }
            }
        }
        if !gone.unconfirmed.is_empty() {
            self.workers.former.insert(instance, gone);
        }
    }

    pub(super) fn stop_workers(&mut self, out: &mut Vec<Effect<P>>) {
        let instances: Vec<u64> = self.workers.links.keys().copied().collect();
        for instance in instances {
            self.drop_worker(instance, out);
        }
        self.workers.former.clear();
    }

    /// W6: a silent worker keeps its link, for a late confirmation; other workers get its messages.
    pub(super) fn mark_suspected(&mut self, instance: u64) {
        let Some(worker) = self.workers.links.get_mut(&instance) else { return };
        worker.suspected = true;
        for total in worker.unconfirmed.clone() {
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
            if let Some(worker) = self.workers.links.get_mut(&instance) {
                worker.unconfirmed.push_back(total);
                worker.first_sent_at.get_or_insert(now);
            }
            self.handle_input(now, instance, producer_link::Input::Accept { total, frames, ack }, out);
        }
    }

    pub(super) fn tick_workers(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some((entry, instance)) = self.workers.deadlines.pop_due(now) {
            let Some(worker) = self.workers.links.get_mut(&instance) else { continue };
            if !worker.armed.fired(entry) {
                continue;
            }
            let is_due = worker.link.next_deadline().is_some_and(|deadline| deadline <= now);
            let first_answer_by = worker.first_sent_at.map(|at| at + self.settings.worker_first_timeout);
            let is_late = !worker.has_answered && first_answer_by.is_some_and(|deadline| deadline <= now);
            // The second repeat has been unanswered for as long as a whole repeat interval.
            let is_silent = worker.has_answered && is_due && worker.link.is_silent();
            if !worker.suspected && !worker.unconfirmed.is_empty() && (is_late || is_silent) {
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
        let Some(worker) = self.workers.links.get_mut(&instance) else { return };
        let mut effects = std::mem::take(&mut self.workers.scratch);
        let violations = worker.link.violations();
        worker.link.handle(now, input, &mut effects);
        self.stats.ignored += worker.link.violations() - violations;
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
        self.workers.scratch = effects;
        self.arm(instance);
    }

    fn transmit(&self, instance: u64, message: SequencedMessage<P>, lowest: u64, out: &mut Vec<Effect<P>>) {
        let (Some(worker), Some((stream_id, epoch))) = (self.workers.links.get(&instance), self.stream) else { return };
        let header = BatchHeader {
            producer_id: self.settings.producer_id.clone(),
            stream_id,
            epoch,
            controller: worker.controller.clone(),
            ordered: false,
            lowest,
        };
        out.push(Effect::Transmit { to: worker.worker.clone(), header, message });
    }

    /// Confirms a worker's messages up to `last`, in the order in which the worker got them.
    fn on_confirmed_up_to(&mut self, now: Instant, instance: u64, last: SeqNr, out: &mut Vec<Effect<P>>) {
        loop {
            let Some(worker) = self.workers.links.get_mut(&instance) else { return };
            let Some(total) = worker.unconfirmed.pop_front() else { return };
            self.on_confirmed(now, total, out);
            if total == last {
                return;
            }
        }
    }

    fn arm(&mut self, instance: u64) {
        let timeout = self.settings.worker_first_timeout;
        let Some(worker) = self.workers.links.get_mut(&instance) else { return };
        let waits_for_first = !worker.has_answered && !worker.suspected && !worker.unconfirmed.is_empty();
        let first_answer_by = worker.first_sent_at.filter(|_| waits_for_first).map(|at| at + timeout);
        let deadline = [worker.link.next_deadline(), first_answer_by].into_iter().flatten().min();
        self.workers.deadlines.arm(instance, &mut worker.armed, deadline);
    }
}
