//! The queue as an event-sourced entity: handles commands of its producer, and persists events.
//!
//! One entity is one incarnation of the queue in one process. The controller that loads it becomes its writer: the load
//! stores a start with a raised epoch, and a command under another epoch is refused. When the entity itself restarts,
//! after a failure of its store, it waits for the next load, since its producer has to take the stored state before it
//! goes on.
//!
//! ```text
//! recovered ── Load ──▶ [Started, Cleanup*] ──▶ loaded ── Store, Confirm, Cleanup ──▶ [Sent*], [Confirmed], [Cleanup*]
//!     ▲                                            │
//!     └───────── the store failed: restart ────────┘   refused until the next Load
//! ```
//!
//! Another writer is detected in two ways. The journal fences a writer whose claim is not the newest (persistence J4),
//! and a restart reads the head before it claims. If doubt remains, because a claim was never answered, the newest
//! start in the history decides.
//!
//! Source: delivery §4.2, D4, D5; persistence §2.6.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use greylag_core::{Encoded, ReplyTo};
use greylag_persistence::{
    Backoff, Ctx, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, OnFailure, Persisted,
    PersistenceId, SeqNr as EventNr, Signal,
};

use super::persistent::{self, PersistentQueue, QueueEvent, UnconfirmedMessage};
use super::stored::Started;
use super::wire::{EventCodec, SnapshotCodec};
use super::{Confirmation, EventSourcedQueueSettings, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

/// Maximum bytes of qualifiers in one cleanup event; more are spread over several events.
const CLEANUP_BYTES: usize = 64 << 10;
/// Maximum number of events in one cleanup; the rest follows in the next.
const CLEANUP_EVENTS: usize = 100;

/// The answer to a queue command, with errors of the queue; errors of the store are the entity's errors.
pub(crate) type Answer<T> = ReplyTo<Result<T, QueueError>>;

/// A command of the producer to its queue.
pub(crate) enum QueueCommand {
    /// Make the controller the writer.
    Load {
        /// The loading controller.
        controller: ControllerRef,
        /// The stream, if the queue has none yet.
        stream_id: StreamId,
        now_ms: TimestampMillis,
        /// Dropped when the controller does not wait for the answer any more; the load then changes nothing.
        wanted: Weak<()>,
        reply_to: Answer<QueueState<Encoded>>,
    },
    /// Store messages.
    Store { epoch: Epoch, batch: Vec<MessageSent<Encoded>>, reply_to: Answer<SeqNr> },
    /// Store confirmations.
    Confirm { epoch: Epoch, confirmations: Vec<Confirmation>, reply_to: Answer<()> },
    /// Forget old confirmations.
    Cleanup { now_ms: TimestampMillis },
}

/// The behaviour of the entity.
pub(crate) struct QueueBehavior {
    settings: EventSourcedQueueSettings,
    /// The controller that loaded the queue, and the last number that it assigned or found at its start. Kept across
    /// restarts, since a restart does not make a controller forget its numbers.
    writer: Option<Writer>,
    /// The epoch of the last load of this incarnation.
    loaded: Option<Epoch>,
}

struct Writer {
    controller: ControllerRef,
    known: SeqNr,
    /// Whether a start of this controller is known to be stored: acknowledged by the store, or read from the history.
    has_started: Arc<AtomicBool>,
}

impl QueueBehavior {
    /// The persisted queue of `id`.
    pub(crate) fn stored(id: PersistenceId, settings: EventSourcedQueueSettings) -> Persisted<Self, EventCodecs<Self>> {
        let snapshots = SnapshotCodec { max_bytes: settings.snapshot_max_bytes };
        EventCodecs::new(EventCodec).snapshots(snapshots).of(id, Self { settings, writer: None, loaded: None })
    }

    fn on_load(
        &mut self,
        queue: &PersistentQueue,
        controller: ControllerRef,
        fresh_stream: StreamId,
        now_ms: TimestampMillis,
        reply_to: Answer<QueueState<Encoded>>,
    ) -> Effect<Self> {
        let newest = queue.started();
        let is_newest = newest.is_some_and(|started| started.controller == controller);
        let found_at_start = SeqNr(queue.current().get() - 1);
        let writer = match self.writer.take().filter(|writer| writer.controller == controller) {
            Some(writer) => writer,
            None => Writer { controller: controller.clone(), known: found_at_start, has_started: Arc::default() },
        };
        let has_started = self.writer.insert(writer).has_started.clone();
        if is_newest {
            has_started.store(true, Ordering::Relaxed);
        } else if has_started.load(Ordering::Relaxed) {
            return Effect::reply(reply_to, Err(queue.fenced()));
        }
        let Some(epoch) = newest.map_or(Some(Epoch::FIRST), |newest| newest.epoch.0.checked_add(1).map(Epoch)) else {
            return Effect::reply(reply_to, Err(QueueError::Rejected("the epochs of this queue are used up".into())));
        };
        let stream_id = newest.map_or(fresh_stream, |newest| newest.stream_id);
        self.loaded = Some(epoch);
        let mut events = vec![QueueEvent::Started(Started { stream_id, epoch, controller })];
        events.extend(self.cleanup(queue, now_ms));
        Effect::<Self>::persist_all(events).then_reply(reply_to, move |queue| {
            has_started.store(true, Ordering::Relaxed);
            Ok(state(queue))
        })
    }

    /// Whether `epoch` is the epoch of the last load, and its start is stored.
    fn is_loaded(&self, queue: &PersistentQueue, epoch: Epoch) -> bool {
        self.loaded == Some(epoch) && queue.started().is_some_and(|started| started.epoch == epoch)
    }

    fn on_store(
        &mut self,
        queue: &PersistentQueue,
        epoch: Epoch,
        batch: Vec<MessageSent<Encoded>>,
        reply_to: Answer<SeqNr>,
    ) -> Effect<Self> {
        let is_loaded = self.is_loaded(queue, epoch);
        let Some(writer) = self.writer.as_mut().filter(|_| is_loaded) else {
            return Effect::reply(reply_to, Err(QueueError::NotLoaded));
        };
        match queue.judge_batch(batch, writer.known) {
            Err(error) => Effect::reply(reply_to, Err(error)),
            Ok(missing) => {
                // The numbers count as assigned even if the append fails.
                writer.known = missing.last().map_or(writer.known, |last| writer.known.max(last.seq_nr));
                let events = missing.into_iter().map(QueueEvent::Sent).collect();
                let stored = |queue: &PersistentQueue| Ok(SeqNr(queue.current().get() - 1));
                Effect::<Self>::persist_all(events).then_reply(reply_to, stored)
            }
        }
    }

    fn on_confirm(
        &mut self,
        queue: &PersistentQueue,
        epoch: Epoch,
        confirmations: Vec<Confirmation>,
        reply_to: Answer<()>,
    ) -> Effect<Self> {
        if !self.is_loaded(queue, epoch) {
            return Effect::reply(reply_to, Err(QueueError::NotLoaded));
        }
        match queue.judge_confirmations(confirmations) {
            Err(error) => Effect::reply(reply_to, Err(error)),
            Ok(news) if news.is_empty() => Effect::reply(reply_to, Ok(())),
            Ok(news) => Effect::<Self>::persist(QueueEvent::Confirmed(news)).then_reply(reply_to, |_| Ok(())),
        }
    }

    /// Events of bounded size that forget unused qualifiers; none if there are none.
    fn cleanup(&self, queue: &PersistentQueue, now_ms: TimestampMillis) -> Vec<QueueEvent> {
        let mut events: Vec<Vec<Qualifier>> = Vec::new();
        let mut bytes = CLEANUP_BYTES;
        for qualifier in queue.unused_qualifiers(now_ms, self.settings.cleanup_unused_after) {
            bytes += qualifier.len() + 8;
            if bytes > CLEANUP_BYTES {
                bytes = 0;
                events.push(Vec::new());
            }
            if events.len() > CLEANUP_EVENTS {
                break;
            }
            events.last_mut().expect("one was pushed").push(qualifier);
        }
        events.into_iter().filter(|qualifiers| !qualifiers.is_empty()).map(QueueEvent::Cleanup).collect()
    }
}

/// The answer to a load; the queue must be started and completely read.
fn state(queue: &PersistentQueue) -> QueueState<Encoded> {
    let message = |message: &UnconfirmedMessage| message.encoded.clone().ok_or(());
    queue.loaded(message).ok().flatten().expect("the queue was started, and recovery looked for missing messages")
}

impl EventSourced for QueueBehavior {
    type Command = QueueCommand;
    type Event = QueueEvent;
    type State = PersistentQueue;

    /// The queue's own settings, regardless of the node's: a node may let other entities skip events, but a queue would
    /// lose messages that way.
    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        let EventSourcedQueueSettings { restart_min_backoff: min, restart_max_backoff: max, .. } = self.settings;
        EventSourcedSettings {
            snapshot_every: NonZeroU64::new(self.settings.snapshot_every),
            keep_n_snapshots: NonZeroU64::new(self.settings.keep_n_snapshots).unwrap_or(NonZeroU64::MIN),
            delete_events: self.settings.delete_events,
            on_failure: OnFailure::RestartBackoff(Backoff { min, max, jitter: 0.1 }),
            // The producer pauses before it loads again; the queue must not end meanwhile.
            max_reject_restarts: u32::MAX,
            recovery_event_timeout: Duration::from_secs(30),
            stash_capacity: NonZeroUsize::new(1024).expect("not zero"),
            ..EventSourcedSettings::default()
        }
    }

    fn on_command(
        &mut self,
        _: &mut Ctx<'_, Self::Command>,
        queue: &PersistentQueue,
        command: QueueCommand,
    ) -> Effect<Self> {
        match command {
            QueueCommand::Load { wanted, .. } if wanted.strong_count() == 0 => Effect::none(),
            QueueCommand::Load { controller, stream_id, now_ms, reply_to, .. } => {
                self.on_load(queue, controller, stream_id, now_ms, reply_to)
            }
            QueueCommand::Store { epoch, batch, reply_to } => self.on_store(queue, epoch, batch, reply_to),
            QueueCommand::Confirm { epoch, confirmations, reply_to } => {
                self.on_confirm(queue, epoch, confirmations, reply_to)
            }
            QueueCommand::Cleanup { now_ms } if self.loaded.is_some() => {
                Effect::persist_all(self.cleanup(queue, now_ms))
            }
            // Not loaded: the next load cleans up.
            QueueCommand::Cleanup { .. } => Effect::none(),
        }
    }

    fn apply(_: &mut PersistentQueue, _: &QueueEvent) {
        unreachable!("a queue applies its events with their numbers")
    }

    fn apply_with(&self, queue: &mut PersistentQueue, event: &QueueEvent, meta: &EventMeta<'_>) {
        persistent::apply(queue, event, meta.seq_nr, meta.refill);
    }

    fn on_signal(&mut self, _: &mut Ctx<'_, Self::Command>, queue: &PersistentQueue, signal: &Signal) {
        match signal {
            Signal::PreRestart => self.loaded = None,
            Signal::RecoveryCompleted => {
                let missing = persistent::first_missing(queue);
                assert!(missing.is_none(), "message {missing:?} of the queue is in no event");
            }
            _ => {}
        }
    }

    fn replay_from(&self, queue: &PersistentQueue) -> Option<EventNr> {
        if persistent::fits(queue, self.settings.snapshot_max_bytes) { None } else { persistent::oldest_event(queue) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use greylag_core::{ReplyAddress, ReplyOutcome, ReplyPort};
    use greylag_persistence::{EntityTestKit, Marks};

    use super::*;

    fn id() -> PersistenceId {
        PersistenceId::of("ProducerQueue", "orders").unwrap()
    }

    fn stored() -> Persisted<QueueBehavior, EventCodecs<QueueBehavior>> {
        QueueBehavior::stored(id(), EventSourcedQueueSettings::test())
    }

    fn controller(instance: u64) -> ControllerRef {
        ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "delivery/orders".into(), instance }
    }

    fn started_by(instance: u64) -> PersistentQueue {
        let mut queue = PersistentQueue::default();
        queue.start(Started { stream_id: StreamId(7), epoch: Epoch(3), controller: controller(instance) });
        queue
    }

    type Answers = Arc<Mutex<Vec<Result<QueueState<Encoded>, QueueError>>>>;

    /// Records the answers to loads.
    struct Port(Answers);

    impl ReplyPort for Port {
        fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
            if let ReplyOutcome::Value { value, .. } = outcome {
                self.0.lock().unwrap().push(*value.downcast().unwrap());
            }
        }
    }

    /// Controller 1 loads `queue`; returns the number of events of the load.
    fn load(behavior: &mut QueueBehavior, queue: &PersistentQueue) -> usize {
        let address = ReplyAddress { node: "localhost:17355#1".parse().unwrap(), ask_id: 1 };
        let reply_to = ReplyTo::new(address, Arc::new(Port(Answers::default())));
        let waiting = Arc::new(());
        let (wanted, stream_id) = (Arc::downgrade(&waiting), StreamId(8));
        let load = QueueCommand::Load { controller: controller(1), stream_id, now_ms: 0, wanted, reply_to };
        let (id, marks) = (id(), Marks::default());
        behavior
            .on_command(&mut Ctx::for_events(Instant::now(), &id, EventNr::FIRST, &marks), queue, load)
            .event_count()
    }

    /// Of delivery §4.2, and scenario delivery 87: a controller that found its own start in the history is fenced by a
    /// newer start of another controller; a controller whose start was never stored is not.
    #[test]
    fn scenario_87_newer_start_fences_earlier_controllers() {
        let mut first = stored().behavior;
        assert_eq!(load(&mut first, &started_by(2)), 1, "a dead predecessor's");
        assert_eq!(load(&mut first, &started_by(2)), 1, "it was not stored the first time");
        assert_eq!(load(&mut first, &started_by(1)), 1, "its own");
        assert_eq!(load(&mut first, &started_by(2)), 0, "the other one started since");
    }

    /// As above, but the start is known because the store acknowledged it.
    #[test]
    fn scenario_87_a_start_that_was_stored_counts() {
        let mut kit = EntityTestKit::new(Instant::now(), stored);
        let waiting = Arc::new(());
        let load = |instance| {
            let wanted = Arc::downgrade(&waiting);
            move |reply_to| QueueCommand::Load {
                controller: controller(instance),
                stream_id: StreamId(7),
                now_ms: 0,
                wanted,
                reply_to,
            }
        };
        assert_eq!(kit.ask(load(1)).unwrap().unwrap().epoch, Epoch(1));
        assert_eq!(kit.ask(load(2)).unwrap().unwrap().epoch, Epoch(2), "another controller through the same queue");
        assert_eq!(kit.ask(load(2)).unwrap().unwrap().stream_id, StreamId(7));
    }
}
