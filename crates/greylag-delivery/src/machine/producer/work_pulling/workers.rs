//! The workers, each with its link and the messages that it holds.
//!
//! Source: delivery W2, W3, W5, W6.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::jobs::Jobs;
use super::settings::{WorkPullingSettings, WorkerSelection};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::ListedWorker;
use crate::machine::producer_link::{self, ProducerLink};
use crate::machine::tracking::deadlines::{ArmedTimer, Deadlines};
use crate::message::Upstream;

/// Maximum number of kept links of workers that are gone; the oldest is dropped first.
const MAX_FORMER: usize = 64;

/// A worker, and the link to it.
#[derive(Debug, Clone)]
pub(super) struct Worker<P> {
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

impl<P> Worker<P> {
    /// The worker's consumer controller.
    pub(super) fn consumer(&self) -> &ControllerRef {
        &self.worker
    }

    /// The producer's end of the link.
    pub(super) fn controller(&self) -> &ControllerRef {
        &self.controller
    }

    /// The messages that the worker holds, in the order in which it got them.
    pub(super) fn unconfirmed(&self) -> &VecDeque<SeqNr> {
        &self.unconfirmed
    }
}

impl<P: Clone> Worker<P> {
    fn is_selectable(&self) -> bool {
        self.reachable && !self.suspected
    }

    fn has_demand(&self) -> bool {
        self.is_selectable() && self.link.demand() > 0
    }

    /// Whether the worker owes its first answer for too long, or left two repeats unanswered (W6).
    fn is_silent(&self, now: Instant, first_timeout: Duration) -> bool {
        let is_due = self.link.next_deadline().is_some_and(|deadline| deadline <= now);
        let first_answer_by = self.first_sent_at.map(|at| at + first_timeout);
        let is_late = !self.has_answered && first_answer_by.is_some_and(|deadline| deadline <= now);
        // The second repeat has been unanswered for as long as a whole repeat interval.
        let ignores_repeats = self.has_answered && is_due && self.link.is_silent();
        !self.suspected && !self.unconfirmed.is_empty() && (is_late || ignores_repeats)
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Workers<P> {
    node: UniqueAddress,
    path: Arc<str>,
    /// A worker that has not answered its first message for this long is suspect (W6).
    first_timeout: Duration,
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
    /// No workers. Their links will be numbered from 1 below the path of the settings.
    pub(super) fn new(settings: &WorkPullingSettings) -> Self {
        Self {
            node: settings.node.clone(),
            path: settings.path.clone(),
            first_timeout: settings.worker_first_timeout,
            links: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            former: BTreeMap::new(),
            next_instance: 1,
            deadlines: Deadlines::new(),
            random_state: settings.seed,
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

    /// Whether a worker has a link and is not suspected.
    pub(super) fn has(&self, instance: u64) -> bool {
        self.links.get(&instance).is_some_and(|worker| !worker.suspected)
    }

    /// W3: chooses a worker with demand that does not hold this message.
    pub(super) fn choose(&mut self, selection: WorkerSelection, jobs: &Jobs<P>, total: SeqNr) -> Option<u64> {
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

    pub(super) fn any_has_demand(&self) -> bool {
        self.links.values().any(|worker| worker.has_demand())
    }

    // ---- the listing ----------------------------------------------------------------------------

    /// The workers that are not listed any more.
    pub(super) fn gone(&self, listed: &BTreeMap<ControllerRef, bool>) -> Vec<u64> {
        let gone = self.by_worker.iter().filter(|(worker, _)| !listed.contains_key(*worker));
        gone.map(|(_, instance)| *instance).collect()
    }

    /// Sets whether a worker's node is reachable. Returns false for a worker without a link.
    pub(super) fn set_reachable(&mut self, worker: &ControllerRef, reachable: bool) -> bool {
        let Some(instance) = self.by_worker.get(worker) else { return false };
        if let Some(known) = self.links.get_mut(instance) {
            known.reachable = reachable;
        }
        true
    }

    /// W2: adds a worker with a link that has no frames yet, under a fresh instance.
    pub(super) fn add(&mut self, now: Instant, worker: ControllerRef, reachable: bool, mut link: ProducerLink<P>) {
        let register = Upstream::RegisterConsumer;
        let register = producer_link::Input::Received { from: worker.clone(), epoch: None, message: register };
        link.handle(now, register, &mut self.scratch);
        self.scratch.clear(); // a link without frames transmits nothing
        let instance = self.next_instance;
        self.next_instance += 1;
        let controller = ControllerRef { node: self.node.clone(), path: self.path.clone(), instance };
        self.by_worker.insert(worker.clone(), instance);
        let (unconfirmed, armed) = (VecDeque::new(), ArmedTimer::default());
        let (suspected, has_answered, first_sent_at) = (false, false, None);
        let worker =
            Worker { worker, controller, link, unconfirmed, reachable, suspected, has_answered, first_sent_at, armed };
        self.links.insert(instance, Box::new(worker));
    }

    pub(super) fn instances(&self) -> Vec<u64> {
        self.links.keys().copied().collect()
    }

    pub(super) fn remove(&mut self, instance: u64) -> Option<Box<Worker<P>>> {
        let gone = self.links.remove(&instance)?;
        self.by_worker.remove(&gone.worker);
        Some(gone)
    }

    // ---- workers that are gone ------------------------------------------------------------------

    /// Keeps the link of a removed worker that holds messages.
    pub(super) fn keep_former(&mut self, instance: u64, gone: Box<Worker<P>>) {
        if gone.unconfirmed.is_empty() {
            return;
        }
        self.former.insert(instance, gone);
        if self.former.len() > MAX_FORMER {
            self.former.pop_first();
        }
    }

    /// Gives a message of a removed worker to the worker's former link. Returns the messages confirmed thereby, in
    /// order.
    pub(super) fn on_message_of_former(
        &mut self,
        now: Instant,
        instance: u64,
        input: producer_link::Input<P>,
    ) -> Vec<SeqNr> {
        let Some(gone) = self.former.get_mut(&instance) else { return Vec::new() };
        let (mut effects, mut confirmed) = (Vec::new(), Vec::new());
        gone.link.handle(now, input, &mut effects);
        for effect in effects {
            let producer_link::Effect::ConfirmedUpTo(last) = effect else { continue };
            while let Some(total) = gone.unconfirmed.pop_front() {
                confirmed.push(total);
                if total == last {
                    break;
                }
            }
        }
        if gone.unconfirmed.is_empty() {
            self.former.remove(&instance);
        }
        confirmed
    }

    pub(super) fn forget_former(&mut self) {
        self.former.clear();
    }

    // ---- links ----------------------------------------------------------------------------------

    pub(super) fn get(&self, instance: u64) -> Option<&Worker<P>> {
        self.links.get(&instance).map(|worker| &**worker)
    }

    /// W6: suspects a silent worker, which keeps its link. Returns the messages that it holds.
    pub(super) fn suspect(&mut self, instance: u64) -> VecDeque<SeqNr> {
        let Some(worker) = self.links.get_mut(&instance) else { return VecDeque::new() };
        worker.suspected = true;
        worker.unconfirmed.clone()
    }

    /// Notes that a worker holds a message from now on.
    pub(super) fn gives(&mut self, now: Instant, instance: u64, total: SeqNr) {
        if let Some(worker) = self.links.get_mut(&instance) {
            worker.unconfirmed.push_back(total);
            worker.first_sent_at.get_or_insert(now);
        }
    }

    /// Removes and returns the message that a worker has held longest.
    pub(super) fn take_first(&mut self, instance: u64) -> Option<SeqNr> {
        self.links.get_mut(&instance)?.unconfirmed.pop_front()
    }

    /// Gives a link an input. Returns its effects, and how many violations it newly counted; give the list of effects
    /// back by [`handled`](Self::handled).
    pub(super) fn handle(
        &mut self,
        now: Instant,
        instance: u64,
        input: producer_link::Input<P>,
    ) -> Option<(Vec<producer_link::Effect<P>>, u64)> {
        let worker = self.links.get_mut(&instance)?;
        let mut effects = std::mem::take(&mut self.scratch);
        let violations = worker.link.violations();
        worker.link.handle(now, input, &mut effects);
        Some((effects, worker.link.violations() - violations))
    }

    /// The effects of a link were carried out: keeps their list for the next input, and sets the link's deadline.
    pub(super) fn handled(&mut self, instance: u64, effects: Vec<producer_link::Effect<P>>) {
        self.scratch = effects;
        let Some(worker) = self.links.get_mut(&instance) else { return };
        let waits_for_first = !worker.has_answered && !worker.suspected && !worker.unconfirmed.is_empty();
        let first_answer_by = worker.first_sent_at.filter(|_| waits_for_first).map(|at| at + self.first_timeout);
        let deadline = [worker.link.next_deadline(), first_answer_by].into_iter().flatten().min();
        self.deadlines.arm(instance, &mut worker.armed, deadline);
    }

    /// The next link whose deadline may be due, and whether its worker has become silent (W6).
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(u64, bool)> {
        while let Some((entry, instance)) = self.deadlines.pop_due(now) {
            let Some(worker) = self.links.get_mut(&instance) else { continue };
            if worker.armed.fired(entry) {
                return Some((instance, worker.is_silent(now, self.first_timeout)));
            }
        }
        None
    }

    /// Source: delivery W2, W3, W6.
    pub(super) fn check_invariants(&self, jobs: &Jobs<P>) {
        debug_assert_eq!(self.by_worker.len(), self.links.len(), "a worker has one link");
        if !cfg!(debug_assertions) || self.links.len() > 16 {
            return;
        }
        assert!(self.former.len() <= MAX_FORMER, "the workers remembered are bounded");
        assert!(
            self.former.values().all(|gone| !gone.unconfirmed.is_empty()),
            "only a worker with messages is remembered"
        );
        for (instance, worker) in &self.links {
            assert_eq!(self.by_worker.get(&worker.worker), Some(instance), "a link is found by its worker");
            assert!(worker.armed.covers(worker.link.next_deadline()), "a link is looked at when it has work to do");
            let is_held = |total: &SeqNr| !jobs.has(*total) || jobs.is_held_by(*total, *instance);
            assert!(worker.unconfirmed.iter().take(64).all(is_held), "a worker holds the messages that it was given");
        }
    }
}

/// The next number of a pseudo-random sequence, which depends on the seed alone.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
