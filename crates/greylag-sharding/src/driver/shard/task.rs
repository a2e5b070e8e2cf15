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
use greylag_core::{DeadLetterReason, Generation};
use tokio::sync::oneshot;

use crate::driver::lanes::wire;
use crate::driver::metrics::measures::Measures;
use crate::driver::metrics::watchdog::Probe;
use crate::driver::node::clock;
use crate::driver::node::services::Node;
use crate::driver::region::event::Event;
use crate::driver::region::shared::{Hosted, LockedRegion, RegionInner};
use crate::driver::remember::{LoadError, StoreCalls};
use crate::driver::shard::control_item::Control;
use crate::driver::shard::inboxes::Inboxes;
use crate::driver::shard::lease::LeaseInUse;
use crate::driver::shard::pause::Pause;
use crate::driver::shard::queued_message::QueuedMessage;
use crate::driver::shard::slot_work::SlotWork;
use crate::driver::shard::watchables::ShardWatchables;
use crate::entity::FailureCause;
use crate::entity_type::BoxedEntity;
use crate::held::{Held, discard};
use crate::host::{CtxScope, Requests, Signal};
use crate::ids::ShardId;
use crate::inbox::{Bound, Inbox};
use crate::machine::region::Input as RegionInput;
use crate::machine::shard::{Effect, Ended, EntityScan, Guess, Input, Shard};
use crate::parcel::{Content, Parcel};

mod handlers;
mod reports;

/// How long a run may take before other tasks get the thread.
const RUN_TIME: Duration = Duration::from_micros(200);

/// See the module's description.
pub(crate) struct ShardTask<M: Send + 'static> {
    shared: Arc<RegionInner<M>>,
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

impl<M: Send + 'static> RegionInner<M> {
    /// Starts the task of a shard, which is listed among the hosted ones from now on.
    pub(in crate::driver) fn start_shard(
        self: &Arc<Self>,
        guarded: &mut LockedRegion<M>,
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
        shared: Arc<RegionInner<M>>,
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
}

/// Waits while this process is not trusted after a sleep: only orders to end, or to hold, count until its node has
/// ticked.
async fn wait_until_awake<M>(node: &Node, control: &Inbox<Control<M>>, controls: &mut VecDeque<Control<M>>) {
    tokio::select! {
        () = node.awake() => {}
        () = poll_fn(|cx| control.poll_take(cx, controls)) => {}
    }
}
