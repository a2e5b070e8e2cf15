//! The task of one shard: empties its inboxes, runs handlers, carries out their requests.
//!
//! One task per shard owns all its entities. The task takes everything queued at a time, handles or queues it in order,
//! runs waiting entities in turn, and yields to the runtime after every run of messages. Futures of entities run as
//! tasks of their own; their results come through the control inbox, which is never sealed.
//!
//! Source: sharding §4.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::FutureExt;
use greylag_core::{DeadLetterReason, EntityError, Generation, ReplyTo, answer_dropped};
use tokio::sync::oneshot;

use crate::driver::lanes::wire;
use crate::driver::metrics::measures::Measures;
use crate::driver::metrics::watchdog::Probe;
use crate::driver::node::clock;
use crate::driver::node::services::Node;
use crate::driver::region::event::Event;
use crate::driver::region::shared::{Guarded, Hosted, Shared};
use crate::driver::remember::{LoadError, StoreCalls};
use crate::driver::shard::control_item::Control;
use crate::driver::shard::inboxes::Inboxes;
use crate::driver::shard::lease::LeaseInUse;
use crate::driver::shard::pause::Pause;
use crate::driver::shard::queued_message::QueuedMessage;
use crate::driver::shard::slot_work::SlotWork;
use crate::driver::shard::watchables::ShardWatchables;
use crate::driver::shard::works::panic_text;
use crate::entity::{EntityInit, Failure, FailureCause, TimerKey};
use crate::entity_type::BoxedEntity;
use crate::held::{Held, discard};
use crate::host::{CtxScope, Fenced, ReceiveTimeoutRequest, Requests, Resumption, ShardCx, Signal, TimerRequest, Work};
use crate::ids::{EntityId, ShardId};
use crate::inbox::{Bound, Inbox};
use crate::machine::region::Input as RegionInput;
use crate::machine::shard::{
    Effect, Ended, EntityScan, Fired, Guess, Input, Notice, Outcome, Overdue, RepeatSpec, STOP_WARN_AFTER, Shard,
    SlotId, TimerChange,
};
use crate::parcel::{Content, Parcel};
use crate::remember::starter::Input as StarterInput;
use crate::start::StartEntityAck;

/// How long a run may take before other tasks get the thread.
const RUN_TIME: Duration = Duration::from_micros(200);

/// See the module's description.
pub(crate) struct ShardTask<M: Send + 'static> {
    shared: Arc<Shared<M>>,
    inboxes: Inboxes<M>,
    shard: Shard<BoxedEntity<M>, QueuedMessage<M>>,
    scope: Arc<CtxScope>,
    requests: Requests<M>,
    slot_work: SlotWork<M>,
    measures: Measures,
    watchables: ShardWatchables,
    /// Whether the log already says that the extractor is inconsistent.
    misplaced_is_logged: bool,
    spare: Vec<Effect<BoxedEntity<M>, QueuedMessage<M>>>,
    now: Instant,
    pause: Pause<M>,
    /// Counts under way, each done some entities at a time.
    counting: VecDeque<(EntityScan, oneshot::Sender<EntityScan>)>,
    /// The error of the latest start, for the asker.
    start_failure: String,
    end: End<M>,
}

/// How the shard ends, and what it holds until then.
struct End<M> {
    /// Set once no entity lives: the unhandled messages.
    leftovers: Option<Vec<Parcel<M>>>,
    /// Whether an entity's or the store's failure was escalated to the shard, or the shard lost its lease.
    has_failed: bool,
    /// `None` if the shard needs no lease.
    lease: Option<LeaseInUse>,
    /// `Some` if the type remembers its entities.
    store: Option<StoreCalls<M>>,
}

impl<M: Send + 'static> Shared<M> {
    /// Starts the task of a shard, which is listed among the hosted ones from now on.
    pub(in crate::driver) fn start_shard(
        self: &Arc<Self>,
        guarded: &mut Guarded<M>,
        shard: ShardId,
        generation: Generation,
    ) {
        if let Err(reason) = self.shards.intern(&shard) {
            // No sender of this version asks for a home of such a shard.
            return tracing::error!(
                entity_type = %self.name, %shard, %reason,
                "the coordinator allocated an invalid shard id to this region"
            );
        }
        let bound = Bound { items: self.settings.shard_inbox_capacity, bytes: self.settings.shard_inbox_bytes };
        let (inbox, control) = (Arc::new(Inbox::new(bound)), Arc::new(Inbox::new(bound)));
        let probe = self.watch(&shard);
        let task = ShardTask::new(self.clone(), (shard.clone(), generation), inbox.clone(), control.clone(), &probe);
        guarded.hosted.insert(shard, Hosted { generation, inbox, control, probe });
        self.task.limit_changed();
        let runs = self.node.running.begin();
        self.shard_tasks.spawn(async move {
            let _until_it_has_stopped = runs;
            task.run().await;
        });
    }
}

impl<M: Send + 'static> ShardTask<M> {
    pub(crate) fn new(
        shared: Arc<Shared<M>>,
        (id, generation): (ShardId, Generation),
        inbox: Arc<Inbox<Parcel<M>>>,
        control: Arc<Inbox<Control<M>>>,
        probe: &Arc<Probe>,
    ) -> Self {
        let now = clock::now();
        let threshold = shared.settings.runtime.slow_handler_threshold;
        let measures = Measures::new(probe, threshold, &shared.counts, now);
        let serial = shared.node.shard_numbers.next_serial();
        let supervision = shared.entity_type.common.supervision.clone();
        let passivation = shared.task.passivation();
        let mut shard = Shard::new(
            shared.settings.clone(),
            supervision,
            passivation,
            shared.node.shard_numbers.hash_seed(),
            serial,
            now,
        );
        let (entity_type, node) = (shared.name.clone(), shared.node.clone());
        let lease = shared.shard_tasks.lease(&id, &shared.events);
        let store = shared.services.memory().map(|memory| {
            let (memory, writes) = (memory.shard(&id, generation), shared.counts.remember_writes.clone());
            StoreCalls::new(memory, control.clone(), node.runtime.clone(), writes)
        });
        if store.is_some() {
            shard = shard.remember();
        }
        let watchables = ShardWatchables::new(node.clone());
        let scope = Arc::new(CtxScope { entity_type, shard: id, generation, node });
        Self {
            shared,
            inboxes: Inboxes::new(inbox, control),
            shard,
            scope,
            requests: Requests::default(),
            slot_work: SlotWork::default(),
            measures,
            watchables,
            misplaced_is_logged: false,
            spare: Vec::new(),
            now,
            pause: Pause::new(),
            counting: VecDeque::new(),
            start_failure: String::new(),
            end: End { leftovers: None, has_failed: false, lease, store },
        }
    }

    /// Runs until the shard has stopped, and reports the end to the region.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        let (id, generation) = (self.scope.shard.clone(), self.scope.generation);
        if let Some(lease) = &mut self.end.lease
            && !lease.obtain(self.inboxes.control(), self.pause.postponed()).await
        {
            // The shard was told to end before it could start.
            self.pause.take().into_iter().for_each(|control| shared.drop_control(control));
            discard(self);
            return shared.shard_ended(&id, generation, Vec::new(), false);
        }
        self.now = clock::now();
        self.input(Input::Begin);
        // Kept outside of the future that may panic: messages taken and not delivered go back to the region.
        let mut batch = VecDeque::new();
        let panicked = AssertUnwindSafe(self.serve(&mut batch)).catch_unwind().await.is_err();
        let failed = panicked || self.end.has_failed;
        if failed {
            tracing::error!(entity_type = %shared.name, shard = %id, "shard failed");
            shared.events.send(Event::ShardFailed(id.clone())).ok();
        }
        let mut unhandled = self.end.leftovers.take().unwrap_or_default();
        unhandled.extend(batch);
        self.pause.take().into_iter().for_each(|control| shared.drop_control(control));
        let lease = self.end.lease.take();
        discard(self);
        // Release the lease, as no entity lives any more; before reporting the end, so that the next owner need not
        // wait.
        if let Some(mut lease) = lease {
            lease.on_ended().await;
        }
        shared.events.send(Event::ShardStopped(id.clone())).ok();
        shared.shard_ended(&id, generation, unhandled, failed);
    }

    async fn serve(&mut self, batch: &mut VecDeque<Parcel<M>>) {
        let mut controls = VecDeque::new();
        // Use one timer for the whole life: arming a timer is expensive, polling an armed one is not.
        let mut timer = pin!(tokio::time::sleep_until(self.now.into()));
        loop {
            if !self.counting.is_empty() {
                self.inboxes.control().take(&mut controls);
            } else if !self.pause.is_awake() {
                wait_until_awake(&self.shared.node, self.inboxes.control(), &mut controls).await;
            } else if !self.can_run(batch) {
                let deadline = self.shard.next_deadline().filter(|_| !self.pause.is_held());
                if let Some(deadline) = deadline
                    && timer.deadline() != deadline.into()
                {
                    timer.as_mut().reset(deadline.into());
                }
                let (held, inboxes) = (self.pause.is_held(), &self.inboxes);
                poll_fn(|cx| {
                    let told = inboxes.control().poll_take(cx, &mut controls).is_ready();
                    let mail = !held && inboxes.poll_take(cx, batch).is_ready();
                    let due = deadline.is_some() && timer.as_mut().poll(cx).is_ready();
                    if told || mail || due { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            } else {
                self.inboxes.control().take(&mut controls);
            }
            if batch.is_empty() && !self.pause.is_held() {
                self.inboxes.take(batch);
            }
            // Check the tick after the batch was taken: a message sent after this process woke must not be handled
            // under a tick from before it slept.
            let has_slept = self.pause.on_tick_seen(self.shared.node.is_awake());
            if has_slept && self.end.lease.as_ref().is_some_and(|lease| !lease.is_certainly_held()) {
                controls.push_front(Control::LeaseLost("the lease ended while this process slept".to_owned()));
            }
            self.now = clock::now();
            self.shard.observe(self.now);
            if self.pause.is_over() {
                self.catch_up(batch);
            }
            while let Some(control) = controls.pop_front() {
                self.on_control(control, batch);
            }
            if self.may_run() {
                self.run_once(batch);
                if self.shard.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.input(Input::Tick);
                }
            }
            self.measures.count(self.shard.entity_count(), self.shard.uses());
            if self.end.leftovers.is_some() {
                self.pause.postponed().extend(controls);
                return;
            }
            self.count_some();
            if self.can_run(batch) || !self.counting.is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Continues the oldest count of the entities.
    fn count_some(&mut self) {
        let Some((mut scan, asker)) = self.counting.pop_front() else { return };
        if self.shard.count_some(&mut scan) {
            // Sending fails if the asker has given up waiting.
            asker.send(scan).ok();
        } else if !asker.is_closed() {
            self.counting.push_front((scan, asker));
        }
    }

    /// Whether handlers may run at all.
    fn may_run(&self) -> bool {
        self.pause.may_run()
    }

    fn can_run(&self, batch: &VecDeque<Parcel<M>>) -> bool {
        self.may_run() && (!batch.is_empty() || self.shard.has_work())
    }

    /// One run: messages first, then turns of entities that wait. Messages that come meanwhile wait for the next run.
    fn run_once(&mut self, batch: &mut VecDeque<Parcel<M>>) {
        let began = self.now;
        self.measures.begin_group(began);
        self.run_group(began, batch);
        if self.measures.is_group_open() {
            self.measure_handlers();
        }
    }

    fn run_group(&mut self, began: Instant, batch: &mut VecDeque<Parcel<M>>) {
        let mut left = self.shared.settings.shard_run_budget;
        while left > 0 && !batch.is_empty() {
            for guess in self.shard.look_ahead(batch.iter().map(|parcel| &parcel.id)) {
                // A failure that escalates ends the shard in the middle of a batch; the rest goes back to the region.
                if left == 0 || self.end.leftovers.is_some() {
                    return;
                }
                let Some(parcel) = batch.pop_front() else { break };
                self.deliver(parcel, guess);
                left -= 1;
                if left.is_multiple_of(self.measures.group_size()) && self.out_of_time(began) {
                    return;
                }
            }
        }
        // Turns wait for the end of the batch: messages behind a flood must not wait until the flood is handled, only
        // until it is queued.
        while batch.is_empty() && left > 0 && self.shard.has_work() {
            self.input(Input::Turn);
            left -= 1;
            if left.is_multiple_of(self.measures.group_size()) && self.out_of_time(began) {
                return;
            }
        }
    }

    fn out_of_time(&mut self, began: Instant) -> bool {
        self.measure_handlers();
        self.now.duration_since(began) >= RUN_TIME
    }

    /// Reads the clock, and reports the handlers since the last reading if they were slow.
    fn measure_handlers(&mut self) {
        self.now = clock::now();
        let Some(slow) = self.measures.end_group(self.now).filter(|slow| slow.is_logged) else { return };
        let (entity_type, shard, took) = (&self.shared.name, &self.scope.shard, slow.took);
        let id = slow.slot.and_then(|slot| Some(self.shard.identity(slot)?.0.as_str()));
        tracing::warn!(%entity_type, %shard, id, ?took, "a slow handler delayed the other entities of its shard");
    }

    fn deliver(&mut self, parcel: Parcel<M>, guess: Guess) {
        if parcel.ask.as_ref().is_some_and(|ask| ask.deadline <= self.now) {
            // The asker does not wait any more: drop the message.
            return self.shared.dead_letter(parcel, DeadLetterReason::Expired);
        }
        if self.shared.shards.is_misplaced(&parcel.id, &self.scope.shard) {
            return self.drop_misplaced(parcel);
        }
        if matches!(parcel.content, Content::Value { .. }) {
            return self.deliver_read(parcel, guess);
        }
        match wire::read(&self.shared, parcel) {
            Ok(parcel) => self.deliver_read(parcel, guess),
            Err(parcel) => self.shared.dead_letter(parcel, DeadLetterReason::Undecodable),
        }
    }

    fn deliver_read(&mut self, parcel: Parcel<M>, guess: Guess) {
        self.log_verbosely(&parcel.id, "is sent a message");
        let Parcel { id, content, ask, origin, size } = parcel;
        match content {
            Content::Value { message, .. } => {
                let activity = self.is_activity(&message);
                let message = Held::new(message);
                if let Some(slot) = self.shard.deliver_at_once(self.now, (&id, guess), activity) {
                    return self.run_message(slot, message);
                }
                let payload = QueuedMessage::User { message, ask, origin, size };
                self.input(Input::Deliver { id, payload, activity });
            }
            Content::Start(reply_to) => {
                let payload = QueuedMessage::Start { reply_to, ask, origin, size };
                self.input(Input::Deliver { id, payload, activity: false });
            }
            Content::Bytes { .. } => {}
        }
    }

    /// Drops a message for an entity that belongs to another shard: the extractor is inconsistent, or the sender has
    /// another one. Taking the message could make the entity live twice. Source: sharding §8.
    fn drop_misplaced(&mut self, parcel: Parcel<M>) {
        let (entity, shard) = (parcel.id.clone(), self.scope.shard.clone());
        if !std::mem::replace(&mut self.misplaced_is_logged, true) {
            tracing::error!(
                entity_type = %self.shared.name, %shard, %entity,
                "the extractor is inconsistent: it placed the entity in another shard than before; \
                 one id must have one shard, always and on every node"
            );
        }
        self.shared.events.send(Event::EntityMisplaced { shard, entity }).ok();
        self.shared.dead_letter(parcel, DeadLetterReason::WrongShard);
    }

    /// Whether a message counts as activity; true if the type's function panics.
    fn is_activity(&self, message: &M) -> bool {
        let Some(is_activity) = &self.shared.entity_type.common.is_activity else { return true };
        catch_unwind(AssertUnwindSafe(|| is_activity(message))).unwrap_or_else(|_| {
            tracing::error!(entity_type = %self.shared.name, "is_activity panicked");
            true
        })
    }

    fn on_control(&mut self, control: Control<M>, batch: &mut VecDeque<Parcel<M>>) {
        let Some(control) = self.pause.admit(control) else { return };
        match control {
            Control::Resumed { slot, incarnation, resumption, suspension } => {
                let payload = QueuedMessage::Resumption(Held::new(resumption));
                self.input(Input::Resumed { slot, incarnation, payload, suspension });
            }
            Control::Broken { slot, incarnation, reason } => {
                if self.shard.identity(slot).is_some_and(|(_, current)| current == incarnation) {
                    self.fail(slot, FailureCause::Suspension(reason), None);
                }
            }
            Control::Direct { instance, message, size } => {
                let payload = QueuedMessage::Direct { message: Held::new(message), size };
                self.input(Input::Direct { incarnation: instance, payload });
            }
            Control::Stop => {
                // The route is sealed, so the inbox now holds all messages before the marker.
                self.drain(batch);
                let deadline = self.shared.settings.entity_stop_timeout();
                self.input(Input::Stop { deadline });
            }
            Control::Kill => self.kill(batch),
            Control::LeaseLost(cause) => self.on_lease_lost(cause, batch),
            Control::Limit(entities) => self.input(Input::Limit { entities }),
            Control::Count(scan, asker) => self.counting.push_back((scan, asker)),
            Control::Loaded(Ok(ids)) => {
                self.input(Input::Loaded { ids: ids.into_iter().collect() });
                self.count_remembered();
            }
            Control::Loaded(Err(error)) => {
                self.on_store_trouble("it could not be read", &error);
                if let LoadError::Fenced { stored } = error {
                    // As for an entity's own journal, only the coordinator knows which region owns the shard.
                    let (shard, generation) = (self.scope.shard.clone(), self.scope.generation);
                    self.shared.defer_input(RegionInput::Fenced { shard, generation, stored });
                }
                self.input(Input::LoadFailed);
            }
            Control::Stored { number, result: Ok(()) } => {
                self.input(Input::Stored { number });
                self.count_remembered();
            }
            Control::Stored { number, result: Err(error) } => {
                self.on_store_trouble("it was not written", &error);
                self.input(Input::StoreFailed { number });
            }
            Control::Moved(ids) => self.input(Input::Moved { ids }),
            Control::Hold => self.pause.hold(true),
            Control::Release => {
                self.pause.hold(false);
                if self.may_run() {
                    self.catch_up(batch);
                }
            }
        }
    }

    /// Ends every entity now; messages that no handler has seen go to the region.
    fn kill(&mut self, batch: &mut VecDeque<Parcel<M>>) {
        let mut unhandled = std::mem::take(batch);
        self.input(Input::Kill);
        let mut rest = VecDeque::new();
        self.inboxes.take(&mut rest);
        unhandled.append(&mut rest);
        if let Some(leftovers) = &mut self.end.leftovers {
            leftovers.extend(unhandled);
        }
    }

    /// Ends all entities, since another node may hold the lease soon. The region starts the shard again, which then
    /// waits for the lease.
    fn on_lease_lost(&mut self, cause: String, batch: &mut VecDeque<Parcel<M>>) {
        if self.end.lease.as_mut().is_some_and(LeaseInUse::on_lost) {
            let shard = self.scope.shard.clone();
            tracing::error!(entity_type = %self.shared.name, %shard, cause, "a shard lost its lease; its entities end");
            self.end.has_failed = true;
            self.kill(batch);
            self.shared.events.send(Event::LeaseLost { shard, cause }).ok();
        }
    }

    /// Handles the postponed control items, in their order.
    fn catch_up(&mut self, batch: &mut VecDeque<Parcel<M>>) {
        for control in self.pause.take() {
            self.on_control(control, batch);
        }
    }

    fn drain(&mut self, batch: &mut VecDeque<Parcel<M>>) {
        loop {
            while let Some(parcel) = batch.pop_front() {
                let [guess, ..] = self.shard.look_ahead(std::iter::once(&parcel.id));
                self.deliver(parcel, guess);
            }
            if !self.inboxes.take(batch) {
                return;
            }
        }
    }

    // --- effects ---

    fn input(&mut self, input: Input<QueuedMessage<M>>) {
        let mut effects = std::mem::take(&mut self.spare);
        self.shard.handle(self.now, input, &mut effects);
        for effect in effects.drain(..) {
            self.execute(effect);
        }
        self.spare = effects;
    }

    fn execute(&mut self, effect: Effect<BoxedEntity<M>, QueuedMessage<M>>) {
        match effect {
            Effect::Run { slot, payload } => self.run_handler(slot, payload),
            Effect::NotifyReceiveTimeout { slot } => self.notify_receive_timeout(slot),
            Effect::Start { slot, payload } => self.start(slot, payload),
            Effect::Restart { slot } => {
                self.cancel(slot);
                let payloads = self.signal_slot(slot, Signal::PreRestart);
                self.watchables.end(slot);
                if !payloads.is_empty() {
                    self.input(Input::GivenBack { slot, payloads });
                }
                self.start(slot, None);
            }
            Effect::SendStop { slot } => {
                let make = self.shared.entity_type.common.stop_message.clone();
                // Make the stop message inside, so that a panic of its maker is a failure of this entity.
                let result = self.with_entity(slot, |entity, cx| entity.on_stop(make.map(|make| make()), cx));
                self.after(slot, result, true);
            }
            Effect::End { slot, id, incarnation, entity, why } => {
                self.log_verbosely(&id, "ends");
                self.cancel(slot);
                if let Some(mut entity) = entity {
                    if why != Ended::Killed {
                        self.signal(slot, &mut entity, &id, incarnation);
                    }
                    discard(entity);
                }
                self.watchables.end(slot);
                if why == Ended::Forced {
                    tracing::warn!(entity_type = %self.shared.name, %id, "entity did not stop in time");
                }
            }
            Effect::DeadLetter { id, payload, reason } => self.dead_letter(id, payload, reason),
            Effect::Failed { id, cause, verdict } => {
                tracing::warn!(entity_type = %self.shared.name, %id, %cause, ?verdict, "entity failed");
                self.shared.counts.handled.failed.fetch_add(1, Ordering::Relaxed);
                self.shared.events.send(Event::EntityFailed { entity: id, cause, verdict }).ok();
            }
            Effect::Late(payload) => {
                self.shared.counts.handled.late.fetch_add(1, Ordering::Relaxed);
                discard(payload);
            }
            Effect::Overdue { id, what } => self.overdue(id, what),
            Effect::StopOverdue { entities, ids } => self.stop_overdue(entities, &ids),
            Effect::Escalate => self.end.has_failed = true,
            Effect::Initialized { remembered } => self.on_initialized(remembered),
            Effect::Load => {
                if let Some(store) = &mut self.end.store {
                    store.load();
                }
            }
            Effect::Store { number, update } => {
                if let Some(store) = &mut self.end.store {
                    store.update(number, update);
                }
            }
            Effect::Notice(notice) => self.on_notice(notice),
            Effect::DropDirect { payload, reason } => {
                if let QueuedMessage::Direct { message, .. } = payload {
                    self.shared.drop_direct(message.into_inner(), reason);
                }
            }
            Effect::Stopped(leftovers) => {
                let parcels = leftovers.into_iter().filter_map(|(id, queued)| queued.into_parcel(id));
                self.end.leftovers = Some(parcels.collect());
            }
        }
    }

    /// Logs the lives of entities, if `verbose_debug_logging` is set.
    fn log_verbosely(&self, id: &EntityId, what: &str) {
        if self.shared.settings.runtime.verbose_debug_logging {
            tracing::debug!(entity_type = %self.shared.name, shard = %self.scope.shard, %id, what, "entity");
        }
    }

    fn overdue(&self, id: EntityId, what: Overdue) {
        let entity_type = &self.shared.name;
        let event = match what {
            Overdue::Suspension => {
                let after = self.shared.settings.runtime.suspend_warn_after;
                tracing::warn!(%entity_type, %id, ?after, "entity is still suspended");
                Event::EntitySuspended { entity: id, after }
            }
            Overdue::Stop => {
                tracing::warn!(%entity_type, %id, after = ?STOP_WARN_AFTER, "entity has not stopped yet");
                Event::StopIgnored { entity: id, after: STOP_WARN_AFTER }
            }
        };
        self.shared.events.send(event).ok();
    }

    /// Tells of a shard whose entities have not stopped in time. Source: sharding §2.9.
    fn stop_overdue(&self, entities: usize, ids: &[EntityId]) {
        let (entity_type, shard) = (&self.shared.name, &self.scope.shard);
        let message = std::any::type_name::<M>();
        let some: Vec<&str> = ids.iter().map(EntityId::as_str).collect();
        tracing::warn!(
            %entity_type, %shard, entities, ?some, message, after = ?STOP_WARN_AFTER,
            "shard is stopping; some entities have not stopped yet"
        );
        if let Some(id) = ids.first() {
            self.shared.events.send(Event::StopIgnored { entity: id.clone(), after: STOP_WARN_AFTER }).ok();
        }
    }

    /// Reports that the shard is ready to serve; remembered entities are started through the region.
    fn on_initialized(&self, remembered: Vec<EntityId>) {
        let (shard, generation) = (self.scope.shard.clone(), self.scope.generation);
        self.shared.input(RegionInput::ShardInitialized { shard: shard.clone(), generation });
        self.shared.events.send(Event::ShardStarted(shard.clone())).ok();
        if !remembered.is_empty() {
            let (entity_type, entities) = (&self.shared.name, remembered.len());
            tracing::debug!(%entity_type, %shard, entities, "remembered entities start again");
            self.shared.services.send_to_starter(StarterInput::Loaded { shard, generation, ids: remembered });
        }
    }

    fn on_store_trouble(&self, what: &str, error: &dyn std::fmt::Display) {
        let (name, shard) = (&self.shared.name, &self.scope.shard);
        tracing::error!(entity_type = %name, %shard, %error, "store of remembered entities: {what}");
        let event = Event::RememberStoreFailed { shard: shard.clone(), reason: format!("{what}: {error}") };
        self.shared.events.send(event).ok();
    }

    /// Reports once that the shard remembers more entities than its store is made for.
    fn count_remembered(&mut self) {
        let entities = self.shard.all_remembered();
        if self.end.store.as_mut().is_some_and(|store| store.is_too_small_for(entities)) {
            let (entity_type, shard) = (&self.shared.name, self.scope.shard.clone());
            tracing::warn!(
                %entity_type, %shard, entities,
                "replicated data are a poor store for so many remembered entities; set remember_entities_store to \"eventsourced\""
            );
            self.shared.events.send(Event::ManyRemembered { shard, entities }).ok();
        }
    }

    fn on_notice(&self, notice: Notice) {
        let event = match notice {
            Notice::LoadIsSlow => {
                let timeout = self.shared.settings.waiting_for_state_timeout;
                return self.on_store_trouble("it is asked again", &format_args!("no answer within {timeout:?}"));
            }
            Notice::StoreIsLate => {
                let timeout = self.shared.settings.updating_state_timeout;
                return self.on_store_trouble("a write is late", &format_args!("no answer within {timeout:?}"));
            }
            Notice::InvalidTransition(invalid) => Event::InvalidEntityState(invalid),
            Notice::GivenUp { id, failures, forgotten } => Event::EntityGivenUp { entity: id, failures, forgotten },
        };
        tracing::error!(entity_type = %self.shared.name, shard = %self.scope.shard, ?event, "remembered entities");
        self.shared.events.send(event).ok();
    }

    fn dead_letter(&self, id: EntityId, queued: QueuedMessage<M>, reason: DeadLetterReason) {
        if reason == DeadLetterReason::EntityStartFailed {
            // The asker gets the cause and not only the reason.
            self.shared.report_dead_letter(reason, &id, "".into());
            let answer = EntityError::StartFailed(self.start_failure.clone());
            return answer_dropped(answer, || drop(queued));
        }
        if let Some(parcel) = queued.into_parcel(id) {
            self.shared.dead_letter(parcel, reason);
        }
    }

    fn run_handler(&mut self, slot: SlotId, queued: QueuedMessage<M>) {
        match queued {
            QueuedMessage::User { message, .. }
            | QueuedMessage::Direct { message, .. }
            | QueuedMessage::Own(message) => {
                self.run_message(slot, message);
            }
            QueuedMessage::Resumption(resumption) => {
                let result = self.with_entity(slot, |entity, cx| match resumption.into_inner() {
                    Resumption::Message(message) => entity.receive(message, cx),
                    Resumption::Value(value) => entity.on_resume(value, cx),
                });
                self.after(slot, result, false);
            }
            QueuedMessage::Start { reply_to, .. } => self.ack_start(slot, reply_to),
            QueuedMessage::Repeat(key) => self.repeat(slot, key),
        }
    }

    fn run_message(&mut self, slot: SlotId, message: Held<M>) {
        let result = self.with_entity(slot, |entity, cx| entity.receive(message.into_inner(), cx));
        self.after(slot, result, false);
    }

    /// Runs a repeating timer whose turn has come.
    fn repeat(&mut self, slot: SlotId, key: TimerKey) {
        let Some(fired) = self.slot_work.repeats.fire(slot, key, self.now) else { return };
        let Fired { make, next: at, influences } = fired;
        match catch_unwind(AssertUnwindSafe(make.get_mut())) {
            Ok(message) => {
                // Set the timer again before the handler runs, which may replace or cancel the timer, or fail.
                let timers = vec![TimerChange::Set { key, at, payload: QueuedMessage::Repeat(key), influences }];
                self.input(Input::Done { slot, outcome: Outcome { timers, ..Outcome::default() } });
                self.run_message(slot, Held::new(message));
            }
            Err(panic) => self.fail(slot, FailureCause::Panic(panic_text(&*panic)), None),
        }
    }

    /// Acks a start request: the entity runs, and has handled the messages before the request.
    fn ack_start(&self, slot: SlotId, reply_to: ReplyTo<StartEntityAck>) {
        if let Some((entity, _)) = self.shard.identity(slot) {
            reply_to.reply(StartEntityAck { entity: entity.clone(), shard: self.scope.shard.clone() });
        }
    }

    fn notify_receive_timeout(&mut self, slot: SlotId) {
        let Some(make) = self.slot_work.repeats.receive_timeout(slot) else { return };
        match catch_unwind(AssertUnwindSafe(make.get_mut())) {
            Ok(message) => self.run_message(slot, Held::new(message)),
            Err(panic) => self.fail(slot, FailureCause::Panic(panic_text(&*panic)), None),
        }
    }

    /// Runs a handler; the inner result is the handler's, the outer error is the text of a panic.
    fn with_entity(
        &mut self,
        slot: SlotId,
        run: impl FnOnce(&mut BoxedEntity<M>, &mut ShardCx<'_, M>) -> Result<(), Failure>,
    ) -> Result<(), FailureCause> {
        let Some((entity, id, incarnation)) = self.shard.entity(slot) else { return Ok(()) };
        let mut cx = ShardCx::new(&self.scope, id, incarnation, self.now, &mut self.requests);
        self.measures.enter(slot);
        let ended = catch_unwind(AssertUnwindSafe(|| run(entity, &mut cx)));
        self.measures.leave();
        // Note the address also after a failure: a failed handler may have asked for it, and its requests are dropped.
        if self.requests.direct || !matches!(ended, Ok(Ok(()))) {
            self.watchables.note(slot, incarnation);
        }
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(failure.into_cause()),
            Err(panic) => Err(FailureCause::Panic(panic_text(&*panic))),
        }
    }

    /// Carries out a handler's requests. `report`: tell the machine even if there are none.
    fn after(&mut self, slot: SlotId, result: Result<(), FailureCause>, report: bool) {
        match result {
            Ok(()) if self.requests.is_empty() && !report => {}
            Ok(()) => {
                let outcome = self.outcome(slot);
                self.input(Input::Done { slot, outcome });
            }
            Err(cause) => {
                std::mem::take(&mut self.requests).discard();
                self.fail(slot, cause, None);
            }
        }
    }

    fn fail(&mut self, slot: SlotId, cause: FailureCause, payload: Option<QueuedMessage<M>>) {
        self.input(Input::Failed { slot, cause, payload });
    }

    fn start(&mut self, slot: SlotId, payload: Option<QueuedMessage<M>>) {
        let Some((id, incarnation)) = self.shard.identity(slot) else { return };
        self.log_verbosely(id, "starts");
        let init = EntityInit {
            entity_type: self.scope.entity_type.clone(),
            id: id.clone(),
            shard: self.scope.shard.clone(),
            generation: self.scope.generation,
            incarnation,
            node: self.shared.node.clone(),
            allow_local_journal: self.shared.settings.allow_local_journal,
        };
        let hosted = self.shared.entity_type.hosted.as_ref().expect("only hosting regions run shards");
        self.measures.enter(slot);
        let made = catch_unwind(AssertUnwindSafe(|| (hosted.factory)(&init)));
        self.measures.leave();
        let result = match made {
            Ok(Ok(entity)) => {
                discard(self.shard.place(slot, entity));
                self.with_entity(slot, |entity, cx| entity.on_start(cx)).map_err(|cause| match cause {
                    FailureCause::Handler(text) | FailureCause::Panic(text) | FailureCause::StateLost(text) => text,
                    other => other.to_string(),
                })
            }
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(panic) => Err(panic_text(&*panic)),
        };
        match result {
            Ok(()) => {
                let outcome = self.outcome(slot);
                self.input(Input::Started { slot, outcome, payload });
            }
            Err(text) => {
                std::mem::take(&mut self.requests).discard();
                self.start_failure.clone_from(&text);
                self.fail(slot, FailureCause::Start(text), payload);
            }
        }
    }

    /// Returns the messages that the entity gave back; its other requests are ignored.
    fn signal_slot(&mut self, slot: SlotId, signal: Signal) -> Vec<QueuedMessage<M>> {
        self.with_entity(slot, |entity, cx| entity.on_signal(signal, cx)).ok();
        let give_back = std::mem::take(&mut self.requests.give_back);
        std::mem::take(&mut self.requests).discard();
        give_back.into_iter().map(QueuedMessage::given_back).collect()
    }

    fn signal(&mut self, slot: SlotId, entity: &mut BoxedEntity<M>, id: &EntityId, incarnation: u64) {
        let mut cx = ShardCx::new(&self.scope, id, incarnation, self.now, &mut self.requests);
        // Ignore failures: the incarnation ends in any case, and no supervision applies.
        let _ = catch_unwind(AssertUnwindSafe(|| entity.on_signal(Signal::PostStop, &mut cx)));
        if self.requests.direct {
            self.watchables.note(slot, incarnation);
        }
        std::mem::take(&mut self.requests).discard();
    }

    fn cancel(&mut self, slot: SlotId) {
        self.slot_work.cancel(slot);
    }

    // --- requests ---

    /// Starts the work that a handler requested, and returns the rest for the machine.
    fn outcome(&mut self, slot: SlotId) -> Outcome<QueuedMessage<M>> {
        if self.requests.is_empty() {
            return Outcome::default();
        }
        let requests = std::mem::take(&mut self.requests);
        let suspend = requests.suspend.map(|(work, suspension)| {
            self.begin(slot, work, true);
            suspension
        });
        for work in requests.spawn {
            self.begin(slot, work, false);
        }
        if let Some(fenced) = requests.fenced {
            self.on_fenced(slot, fenced);
        }
        let timers = requests.timers.into_iter().map(|request| self.timer_change(slot, request)).collect();
        let receive_timeout = requests.receive_timeout.map(|told| self.receive_timeout(slot, told));
        Outcome {
            stop: requests.stop,
            passivate: requests.passivate,
            suspend,
            touch: requests.touch,
            direct: requests.direct,
            veto: requests.veto,
            fenced: requests.fenced.is_some(),
            to_self: requests.to_self.into_iter().map(QueuedMessage::own).collect(),
            give_back: requests.give_back.into_iter().map(QueuedMessage::given_back).collect(),
            timers,
            receive_timeout,
        }
    }

    /// Sets the maker of a receive timeout's messages; returns the timeout, if any.
    fn receive_timeout(&mut self, slot: SlotId, told: Option<ReceiveTimeoutRequest<M>>) -> Option<Duration> {
        let (after, make) = told.map(|told| (told.after, Held::new(told.make))).unzip();
        discard(self.slot_work.repeats.set_receive_timeout(slot, make));
        after
    }

    fn timer_change(&mut self, slot: SlotId, request: TimerRequest<M>) -> TimerChange<QueuedMessage<M>> {
        match request {
            TimerRequest::Once { key, at, message, influences } => {
                self.slot_work.repeats.cancel(slot, key);
                TimerChange::Set { key, at, payload: QueuedMessage::own(message), influences }
            }
            TimerRequest::Every { key, period, pace, make, influences } => {
                let spec = RepeatSpec { period, pace, influences };
                let at = self.slot_work.repeats.set(slot, key, spec, Held::new(make), self.now);
                TimerChange::Set { key, at, payload: QueuedMessage::Repeat(key), influences }
            }
            TimerRequest::Wake { key, at, value } => {
                let payload = QueuedMessage::Resumption(Held::new(Resumption::Value(value)));
                TimerChange::Set { key, at, payload, influences: false }
            }
            TimerRequest::Cancel(key) => {
                self.slot_work.repeats.cancel(slot, key);
                TimerChange::Cancel(key)
            }
        }
    }

    fn on_fenced(&self, slot: SlotId, fenced: Fenced) {
        let Some((id, _)) = self.shard.identity(slot) else { return };
        tracing::warn!(entity_type = %self.shared.name, %id, %fenced, "entity is fenced");
        self.shared.events.send(Event::EntityFenced { entity: id.clone(), fenced }).ok();
        // Defer to the region's task, as the effects of this input may call back into this shard.
        self.shared.defer_input(RegionInput::Fenced {
            shard: self.scope.shard.clone(),
            generation: self.scope.generation,
            stored: fenced.stored,
        });
    }

    fn begin(&mut self, slot: SlotId, work: Work<M>, suspension: bool) {
        if let Some((_, incarnation)) = self.shard.identity(slot) {
            let (node, control) = (&self.shared.node, self.inboxes.control().clone());
            self.slot_work.works.begin(node, control, (slot, incarnation), (work, suspension));
        }
    }
}

/// Waits while this process is not trusted after a sleep: only orders to end, or to hold, count until its node has
/// ticked.
async fn wait_until_awake<M>(node: &Node, control: &Inbox<Control<M>>, controls: &mut VecDeque<Control<M>>) {
    tokio::select! {
        () = node.awake() => {}
        () = poll_fn(|cx| control.poll_take(cx, controls)) => {}
    }
}
