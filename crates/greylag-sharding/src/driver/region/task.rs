//! The task of a region, as the rest of the region reaches it: what it is told, whether it lives, and its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use greylag_core::UniqueAddress;
use greylag_transport::Envelope;
use tokio::sync::watch;

use crate::driver::region::limit::EntityLimit;
use crate::driver::region::liveness_probe::LivenessProbe;
use crate::inbox::{Bound, Inbox};
use crate::machine::message::{AgreementOutcome, RegionMessage};
use crate::machine::region::Input;
use crate::passivation::Passivation;

/// Bound of the messages of members that wait for a region's task. Their senders repeat a message that is not answered, so
/// dropping one loses nothing.
const OF_PEERS: Bound = Bound { items: 65_536, bytes: 64 << 20 };

/// Work for the region's task.
pub(crate) enum Deferred {
    /// An input for the machine.
    Input(Input),
    /// Envelopes that the transport gives back.
    HandedBack(UniqueAddress, Vec<Envelope>),
    /// A message to the coordination on this very node; never called under the machine's lock.
    Coordinate(RegionMessage),
    /// The outcome of the type's comparison, for the coordinator incarnation on this very node; never passed on under
    /// the machine's lock.
    Agreement(Option<u64>, AgreementOutcome),
    /// Divide the limit of active entities anew among the shards.
    Divide,
    /// A liveness question to the task, which answers with its number.
    Question(u64),
    /// The machine's next deadline has moved forward.
    Rearm,
}

/// See the module's description.
pub(crate) struct RegionTask {
    deferred: Arc<Inbox<Deferred>>,
    limit: EntityLimit,
    liveness: LivenessProbe,
    /// Whether another region of the type takes over on this node.
    is_retired: AtomicBool,
    stopped: watch::Sender<bool>,
}

impl RegionTask {
    /// A task that was told nothing yet; its shards passivate entities by `passivation`.
    pub(in crate::driver) fn new(passivation: Passivation) -> Self {
        Self {
            deferred: Arc::new(Inbox::new(OF_PEERS)),
            limit: EntityLimit::new(passivation),
            liveness: LivenessProbe::default(),
            is_retired: AtomicBool::new(false),
            stopped: watch::channel(false).0,
        }
    }

    /// Gives the task work; never refused.
    pub(in crate::driver) fn defer(&self, work: Deferred) {
        self.deferred.push_anyway(work);
    }

    /// The inbox of the task, for answers that come later.
    pub(in crate::driver) fn inbox(&self) -> &Arc<Inbox<Deferred>> {
        &self.deferred
    }

    /// Gives the task a member's message. False if too many wait: the member repeats the message.
    pub(in crate::driver) fn offer(&self, input: Input, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.deferred.push(Deferred::Input(input), bytes).is_ok()
    }

    /// Takes all work, once there is any.
    pub(in crate::driver) fn poll_take(&self, cx: &mut Context<'_>, batch: &mut VecDeque<Deferred>) -> Poll<()> {
        self.deferred.poll_take(cx, batch)
    }

    /// The automatic passivation of the type's shards.
    pub(in crate::driver) fn passivation(&self) -> &Passivation {
        self.limit.passivation()
    }

    /// Sets another limit of active entities, if the type has one.
    pub(in crate::driver) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
        self.limit_changed();
    }

    /// Defers dividing the limit, which has changed, or whose number of shards has. Many shards start at a time, so the
    /// task divides the limit once for all of them.
    pub(in crate::driver) fn limit_changed(&self) {
        if self.limit.begin_change() {
            self.defer(Deferred::Divide);
        }
    }

    /// The limit is divided now: for later changes the task is told again.
    pub(in crate::driver) fn begin_dividing(&self) {
        self.limit.end_change();
    }

    /// The part of the limit of one of `shards` shards.
    pub(in crate::driver) fn part_of_limit(&self, shards: usize) -> usize {
        self.limit.part(shards)
    }

    /// Whether the task has answered the last liveness question.
    pub(in crate::driver) fn has_answered(&self) -> bool {
        self.liveness.has_answered()
    }

    /// Sends the task a liveness question, unless one is open.
    pub(in crate::driver) fn ask_liveness(&self) {
        if let Some(number) = self.liveness.ask() {
            self.defer(Deferred::Question(number));
        }
    }

    /// The task has come to a liveness question.
    pub(in crate::driver) fn answer_liveness(&self, number: u64) {
        self.liveness.answer(number);
    }

    /// Ends the task of a stopped region, since another region takes over.
    pub(in crate::driver) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        self.defer(Deferred::Rearm);
    }

    /// Whether another region of the type takes over on this node.
    pub(in crate::driver) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// The region has stopped.
    pub(in crate::driver) fn on_stopped(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits until the region has stopped.
    pub(in crate::driver) async fn stopped(&self) {
        // Sees a stop that came before this call too. Waiting cannot fail, since the sender lives in `self`.
        self.stopped.subscribe().wait_for(|stopped| *stopped).await.ok();
    }
}
