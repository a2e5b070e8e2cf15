//! One entity type on one node: the region's machine, its route table, and the hot path around it.
//!
//! Senders and decode workers take an open route without a lock. A task that finds no open route locks the machine,
//! passes it the input and executes its effects in order, as required by `machine::region::protocol`. Work that an
//! effect must not do under that lock is deferred to the region's task.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use greylag_core::{
    Codec, DeadLetterReason, Generation, Manifest, ReplyAddress, ReplyOutcome, ReplyPort, ReplyTo, UniqueAddress,
    answer_undelivered,
};
use greylag_transport::{AskHeader, Envelope, Recipient, Remoting, SendError as Rejection};
use tokio::sync::{broadcast, oneshot};

use crate::driver::lanes::Lanes;
use crate::driver::lanes::data::{DataLane, Stamped};
use crate::driver::metrics::region::{Counts, RegionMetrics};
use crate::driver::metrics::watchdog::Probe;
use crate::driver::node::clock;
use crate::driver::node::dispatchers::Threads;
use crate::driver::node::services::Node;
use crate::driver::questions::inquiries::Inquiries;
use crate::driver::questions::requests::{Answers, Requests};
use crate::driver::region::event::{self, Event};
use crate::driver::region::shards::Shards;
use crate::driver::region::task::{Deferred, RegionTask};
use crate::driver::region::type_services::TypeServices;
use crate::driver::shard::control_item::Control;
use crate::driver::shard::lease::ShardLeases;
use crate::driver::shard::shard_tasks::ShardTasks;
use crate::entity_ref::{AskError, SendError};
use crate::entity_type::Described;
use crate::extractor::Extractor;
use crate::frame;
use crate::held::discard;
use crate::ids::{EntityId, EntityTypeName, RegionId, ShardId};
use crate::inbox::{Inbox, Refused};
use crate::interned::Interned;
use crate::machine::message::{Mark, PeerMessage, RegionMessage, Stamp};
use crate::machine::region::{
    Effect, Input, MessageInfo, Provenance, Region as Machine, RegionState, Request, Returned, Route, Token,
};
use crate::machine::shard::EntityScan;
use crate::parcel::{AskTag, Content, FAR, Origin, Parcel};
use crate::passivation::Passivation;
use crate::remember::starter::Input as StarterInput;
use crate::routes::{Home, LocalRoute, Open, RemoteRoute};
use crate::settings::ShardingSettings;
use crate::start::{START_MANIFEST, StartEntityAck};

/// The pending answer of an ask.
pub(crate) type Asked =
    Pin<Box<dyn Future<Output = Result<greylag_transport::Answer, greylag_transport::AskError>> + Send>>;

/// See the module's description.
pub(crate) struct RegionInner<M> {
    pub(crate) name: EntityTypeName,
    pub(crate) id: RegionId,
    pub(crate) entity_type: Described<M>,
    pub(crate) settings: ShardingSettings,
    pub(in crate::driver) shard_tasks: ShardTasks,
    pub(crate) counts: Counts,
    pub(crate) node: Arc<Node>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) task: RegionTask,
    pub(crate) requests: Requests,
    pub(crate) inquiries: Inquiries,
    pub(crate) services: TypeServices,
    pub(in crate::driver) lanes: Lanes<M>,
    pub(crate) shards: Shards<Parcel<M>>,
    guarded: Mutex<LockedRegion<M>>,
}

/// State protected by the machine's lock.
pub(in crate::driver) struct LockedRegion<M> {
    machine: Machine,
    parcels: BTreeMap<Token, Parcel<M>>,
    last_token: u64,
    pub(in crate::driver) hosted: BTreeMap<ShardId, Hosted<M>>,
    /// The regions of all published routes.
    homes: Interned<RegionId, Home>,
    /// Messages that the machine dropped. Their destructors are user code, and run without the lock.
    dropped: Vec<(Parcel<M>, DeadLetterReason)>,
    /// The deadline that the region's task waits for.
    armed: Option<Instant>,
}

/// A shard that runs here.
pub(in crate::driver) struct Hosted<M> {
    pub(in crate::driver) generation: Generation,
    pub(in crate::driver) inbox: Arc<Inbox<Parcel<M>>>,
    pub(in crate::driver) control: Arc<Inbox<Control<M>>>,
    pub(in crate::driver) probe: Arc<Probe>,
}

impl<M> Clone for Hosted<M> {
    fn clone(&self) -> Self {
        Self {
            generation: self.generation,
            inbox: self.inbox.clone(),
            control: self.control.clone(),
            probe: self.probe.clone(),
        }
    }
}

impl<M: Send + 'static> RegionInner<M> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        name: EntityTypeName,
        machine: Machine,
        digest: u32,
        entity_type: Described<M>,
        extractor: Arc<dyn Extractor>,
        settings: ShardingSettings,
        node: Arc<Node>,
        threads: Threads,
    ) -> Self {
        let chosen = entity_type.common.passivation.clone().unwrap_or_else(|| settings.passivation.chosen());
        // Remembered entities stay until they ask to be passivated.
        let passivation = if settings.remember.enabled { Passivation::none() } else { chosen };
        let leases = node.leases.clone().filter(|_| settings.lease.is_used()).map(|leases| {
            Arc::new(ShardLeases::new(leases, name.clone(), settings.lease.clone(), node.runtime.clone()))
        });
        let written = (entity_type.common.codec.clone(), entity_type.codec_id);
        let data_lane = DataLane::new(&name, machine.id().clone(), digest, written, node.remoting.clone());
        Self {
            id: machine.id().clone(),
            lanes: Lanes::new(&name, data_lane, node.remoting.clone()),
            entity_type,
            shards: Shards::new(&name, extractor, &settings),
            name,
            settings,
            task: RegionTask::new(passivation),
            shard_tasks: ShardTasks::new(threads, leases),
            counts: Counts::default(),
            node,
            events: broadcast::channel(4096).0,
            requests: Requests::default(),
            inquiries: Inquiries::default(),
            services: TypeServices::default(),
            guarded: Mutex::new(LockedRegion {
                machine,
                parcels: BTreeMap::new(),
                last_token: 0,
                hosted: BTreeMap::new(),
                homes: Interned::default(),
                dropped: Vec::new(),
                armed: None,
            }),
        }
    }

    pub(crate) fn remoting(&self) -> &Arc<dyn Remoting> {
        &self.node.remoting
    }

    fn lock(&self) -> MutexGuard<'_, LockedRegion<M>> {
        self.guarded.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many items the shards of this node got so far: messages, and items of the control inboxes.
    #[cfg(test)]
    pub(crate) fn pushed(&self) -> (u64, u64) {
        let guarded = self.lock();
        let hosted = guarded.hosted.values();
        hosted.fold((0, 0), |(to, back), shard| (to + shard.inbox.pushed(), back + shard.control.pushed()))
    }

    // --- sending ---

    /// The hot path: one read of the table and one push.
    pub(crate) fn send(self: &Arc<Self>, shard: u32, parcel: Parcel<M>) -> Result<(), SendError> {
        let parcel = if self.settings.runtime.serialize_messages { self.written(parcel)? } else { parcel };
        let Some(cell) = self.shards.routes.cell(shard) else {
            return Err(self.refuse(parcel, DeadLetterReason::InvalidShardId));
        };
        let parcel = match cell.load().as_deref() {
            Some(Open::Local(local)) => match push(&local.inbox, parcel) {
                Ok(()) => return Ok(()),
                Err(Refused::Full(parcel)) => return Err(self.refuse(parcel, DeadLetterReason::ShardInboxFull)),
                Err(Refused::Sealed(parcel)) => parcel,
            },
            Some(Open::Remote(remote)) => {
                // Named before the gate is entered: a task that closes the route waits for the gate, and a codec may
                // take long.
                let mut parcel = Some(self.named(parcel));
                let recipient = self.lanes.data.recipient(self.shards.known(shard));
                #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
                let sent = remote.enter(|| {
                    let parcel = parcel.take().expect("entered once");
                    self.lanes.data.put(
                        &remote.home.destination,
                        recipient,
                        Stamped::Straight(remote.generation),
                        parcel,
                    )
                });
                match sent {
                    Some(Ok(())) => return Ok(()),
                    Some(Err((Rejection::Quarantined, parcel))) => parcel,
                    Some(Err((Rejection::ShuttingDown, parcel))) => {
                        return Err(self.refuse(parcel, DeadLetterReason::ShuttingDown));
                    }
                    Some(Err((Rejection::TooLarge { .. } | Rejection::NameTooLong { .. }, parcel))) => {
                        return Err(self.refuse(parcel, DeadLetterReason::TooLarge));
                    }
                    Some(Err((_, parcel))) => return Err(self.refuse(parcel, DeadLetterReason::QueueFull)),
                    None => parcel.take().expect("not entered"),
                }
            }
            None => parcel,
        };
        self.send_through_machine(shard, parcel)
    }

    /// The parcel with its message encoded, to be decoded where it is handled, as if it came from another node.
    fn written(&self, parcel: Parcel<M>) -> Result<Parcel<M>, SendError> {
        let parcel = self.named(parcel);
        let Parcel { id, content, ask, origin, size } = parcel;
        let (Content::Value { message, manifest: Some(manifest) }, Some(codec)) =
            (&content, &self.entity_type.common.codec)
        else {
            return Ok(Parcel { id, content, ask, origin, size });
        };
        let mut buffer = BytesMut::new();
        let written = catch_unwind(AssertUnwindSafe(|| codec.encode(message, &mut buffer).is_ok()));
        if !written.unwrap_or(false) {
            let parcel = Parcel { id, content, ask, origin, size };
            return Err(self.refuse(parcel, DeadLetterReason::SerializeFailed));
        }
        let (codec, manifest, payload) = (self.entity_type.codec_id, manifest.clone(), buffer.freeze());
        discard(content);
        Ok(Parcel { id, content: Content::Bytes { codec, manifest, payload }, ask, origin, size })
    }

    fn send_through_machine(self: &Arc<Self>, shard: u32, parcel: Parcel<M>) -> Result<(), SendError> {
        let shard = self.shards.known(shard);
        let parcel = self.named(parcel);
        let refused = self.with_machine(|guarded| {
            let message = guarded.keep(parcel);
            self.handle(guarded, Input::LocalSend { shard, message }, Some(message.token))
        });
        refused.map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Sends a message to the entity that the message itself names.
    pub(crate) fn send_by_content(self: &Arc<Self>, message: M) -> Result<(), SendError> {
        let named = match &self.entity_type.common.addressed_by {
            Some(name) => {
                catch_unwind(AssertUnwindSafe(|| name(&message))).map_err(|_| DeadLetterReason::ExtractorPanicked)
            }
            None => Ok(None),
        };
        let named = named.and_then(|id| id.ok_or(DeadLetterReason::ExtractorRejected));
        match named.and_then(|id| self.shards.target(id)) {
            Ok((id, shard)) => self.send(shard, Parcel::local(id, message, None)),
            Err(reason) => Err(self.drop_unaddressed(message, reason)),
        }
    }

    /// Drops a message without an entity.
    pub(crate) fn drop_unaddressed(&self, message: M, reason: DeadLetterReason) -> SendError {
        let codec = self.entity_type.common.codec.as_ref();
        let manifest = codec.map_or_else(|| "".into(), |codec| manifest_of(&**codec, &message));
        self.remoting().dead_letter(reason, &self.lanes.data.path, &manifest);
        if self.counts.dead_letters.count(clock::now(), reason) {
            self.events.send(Event::Unaddressed { reason, message: manifest }).ok();
        }
        undelivered(message, reason);
        reason.into()
    }

    /// Runs `f` under the machine's lock, and then drops the messages that the machine has dropped. No user code runs
    /// under the lock: a codec may take a second, and a message's destructor may come back here.
    fn with_machine<R>(&self, f: impl FnOnce(&mut LockedRegion<M>) -> R) -> R {
        let mut guarded = self.lock();
        let answer = f(&mut guarded);
        let dropped = std::mem::take(&mut guarded.dropped);
        drop(guarded);
        for (parcel, reason) in dropped {
            self.dead_letter(parcel, reason);
        }
        answer
    }

    /// The parcel with the manifest of its content.
    pub(crate) fn named(&self, mut parcel: Parcel<M>) -> Parcel<M> {
        let name = self.manifest(&parcel);
        if let Content::Value { manifest, .. } = &mut parcel.content {
            *manifest = Some(name);
        }
        parcel
    }

    /// Starts an ask: the message is sent before this method returns.
    pub(crate) fn begin_ask(
        self: &Arc<Self>,
        shard: u32,
        id: EntityId,
        message: impl FnOnce(ReplyAddress, Arc<dyn ReplyPort>) -> M,
        timeout: Duration,
    ) -> Result<Asked, AskError> {
        if timeout.is_zero() {
            return Err(AskError::InvalidTimeout);
        }
        let ask = self.remoting().open_ask(timeout);
        let now = clock::now();
        let tag = AskTag::own(ask.address.ask_id, now.checked_add(timeout).unwrap_or(now + FAR));
        let message = message(ask.address.clone(), self.remoting().reply_port());
        self.send(shard, Parcel::local(id, message, Some(Box::new(tag))))?;
        Ok(ask.answer)
    }

    /// Asks to start an entity: the request is sent before this method returns.
    pub(crate) fn begin_start(self: &Arc<Self>, id: impl Into<Arc<str>>, timeout: Duration) -> Result<Asked, AskError> {
        let (id, shard) = self.shards.target(id).map_err(SendError::from)?;
        let ask = self.remoting().open_ask(timeout);
        let now = clock::now();
        let tag = AskTag::own(ask.address.ask_id, now.checked_add(timeout).unwrap_or(now + FAR));
        let reply_to = ReplyTo::<StartEntityAck>::new(ask.address.clone(), self.remoting().reply_port());
        self.send(shard, Parcel::start(id, reply_to, Box::new(tag)))?;
        Ok(ask.answer)
    }

    /// Drops a message that was not accepted.
    pub(crate) fn refuse(&self, parcel: Parcel<M>, reason: DeadLetterReason) -> SendError {
        self.dead_letter(parcel, reason);
        reason.into()
    }

    /// Drops a message; its asker hears the reason at once, on whatever node it is.
    pub(crate) fn dead_letter(&self, parcel: Parcel<M>, reason: DeadLetterReason) {
        self.report_dead_letter(reason, &parcel.id, self.manifest(&parcel));
        match parcel.content {
            Content::Value { message, .. } => undelivered(message, reason),
            // Answer the asker without decoding the token, which may be unreadable or expensive to read.
            Content::Bytes { .. } => self.nack(parcel.ask.as_deref(), reason),
            Content::Start(reply_to) => undelivered(reply_to, reason),
        }
        // Fail the ask after the token, whose answer would otherwise count as late.
        if let Some(ask) = &parcel.ask
            && ask.asker.is_none()
        {
            self.remoting().fail_ask(ask.id, greylag_transport::AskError::Dropped(reason));
        }
    }

    /// Counts a dropped message, and reports it.
    pub(crate) fn report_dead_letter(&self, reason: DeadLetterReason, id: &EntityId, message: Manifest) {
        let recipient = format!("{}/{id}", self.lanes.data.path);
        self.remoting().dead_letter(reason, &recipient, &message);
        if self.counts.dead_letters.count(clock::now(), reason) {
            let shard = self.shards.place(id).ok();
            self.events.send(Event::DeadLetter { reason, shard, entity: id.clone(), message }).ok();
        }
    }

    /// The counters so far, and the present gauges.
    pub(crate) fn metrics(&self) -> RegionMetrics {
        let coordinator = self.services.coordinator_metrics();
        let guarded = self.lock();
        let messages = guarded.machine.counters();
        RegionMetrics {
            homes: self.shards.routes.iter().filter(|cell| cell.is_open()).count(),
            shards: guarded.machine.hosted_states().collect(),
            messages,
            buffer_percent: percent(messages.buffered, self.settings.buffer_size),
            inbox_depth: guarded.hosted.values().map(|hosted| hosted.inbox.len()).sum(),
            coordinator,
            ..self.counts.read()
        }
    }

    /// Tells an asker in another process that its message was dropped.
    fn nack(&self, ask: Option<&AskTag>, reason: DeadLetterReason) {
        if let Some(ask) = ask
            && let Some(node) = ask.asker.clone()
        {
            let to = ReplyAddress { node, ask_id: ask.id };
            self.remoting().reply_port().reply(&to, ReplyOutcome::Dropped(reason));
        }
    }

    fn manifest(&self, parcel: &Parcel<M>) -> Manifest {
        match (&parcel.content, &self.entity_type.common.codec) {
            (Content::Bytes { manifest, .. } | Content::Value { manifest: Some(manifest), .. }, _) => manifest.clone(),
            (Content::Value { message, .. }, Some(codec)) => manifest_of(&**codec, message),
            (Content::Start(_), _) => START_MANIFEST.into(),
            (Content::Value { .. }, None) => "".into(),
        }
    }

    /// Sends a message to one incarnation of an entity.
    pub(crate) fn send_direct(&self, to: &crate::host::DirectRef, message: M) -> Result<(), SendError> {
        let stale = SendError::Dropped(DeadLetterReason::StaleRecipient);
        let (entity_type, shard) = to.path.split_once('|').ok_or(stale)?;
        if entity_type != self.name.as_str() {
            return Err(stale);
        }
        if to.node == *self.remoting().self_address() {
            let size = u32::try_from(size_of::<M>()).unwrap_or(u32::MAX);
            return self.deliver_direct(shard, to.instance, message, size).map_err(|(message, reason)| {
                self.drop_direct(message, reason);
                SendError::Dropped(reason)
            });
        }
        let codec = self.entity_type.common.codec.as_ref();
        let codec = codec.ok_or(SendError::Dropped(DeadLetterReason::SerializeFailed))?;
        let mut buffer = BytesMut::new();
        frame::put_direct(&mut buffer, to.instance);
        let manifest = codec.manifest(&message);
        if codec.encode(&message, &mut buffer).is_err() {
            return Err(SendError::Dropped(DeadLetterReason::SerializeFailed));
        }
        let recipient = Recipient { path: self.lanes.direct_path().clone(), sub_path: Some(shard.into()), instance: 0 };
        let envelope = Envelope::new(recipient, codec.id(), manifest, buffer.freeze());
        self.remoting().send(&to.node.clone().into(), envelope).map_err(|rejected| match rejected.error {
            Rejection::QueueFull => SendError::QueueFull,
            Rejection::Quarantined => SendError::Dropped(DeadLetterReason::Quarantined),
            Rejection::TooLarge { .. } | Rejection::NameTooLong { .. } => {
                SendError::Dropped(DeadLetterReason::TooLarge)
            }
            Rejection::ShuttingDown => SendError::RegionStopped,
        })
    }

    /// Hands a direct message to a shard of this node.
    pub(crate) fn deliver_direct(
        &self,
        shard: &str,
        instance: u64,
        message: M,
        size: u32,
    ) -> Result<(), (M, DeadLetterReason)> {
        let shard = ShardId::new(shard).ok();
        let control = shard.and_then(|shard| self.lock().hosted.get(&shard).map(|hosted| hosted.control.clone()));
        let Some(control) = control else { return Err((message, DeadLetterReason::StaleRecipient)) };
        control.push(Control::Direct { instance, message, size }, size).map_err(|refused| {
            let (Refused::Full(control) | Refused::Sealed(control)) = refused;
            let Control::Direct { message, .. } = control else { unreachable!("it comes back as it was pushed") };
            (message, DeadLetterReason::ShardInboxFull)
        })
    }

    // --- the machine ---

    /// Gives the machine an input and executes its effects.
    pub(crate) fn input(self: &Arc<Self>, input: Input) {
        self.with_machine(|guarded| self.handle(guarded, input, None));
    }

    /// Sends a request to the coordinator.
    pub(crate) fn request(self: &Arc<Self>, request: Request, timeout: Duration) -> Answers {
        let (number, answers) = self.requests.open();
        self.input(Input::Request { number, request, timeout });
        answers
    }

    /// Defers a member's message to the region's task. False if too many wait: the member repeats the message.
    pub(crate) fn offer_peer_input(&self, input: Input, bytes: usize) -> bool {
        self.task.offer(input, bytes)
    }

    /// Defers an input to the region's task.
    pub(crate) fn defer_input(&self, input: Input) {
        self.task.defer(Deferred::Input(input));
    }

    /// As [`RegionInner::input`], for an input that names a message: `parcel` is kept under its token.
    pub(crate) fn input_with(self: &Arc<Self>, parcel: Parcel<M>, input: impl FnOnce(MessageInfo) -> Input) {
        let parcel = self.named(parcel);
        self.with_machine(|guarded| {
            let message = guarded.keep(parcel);
            self.handle(guarded, input(message), None)
        });
    }

    /// Passes an input to the machine; returns the reason if the machine dropped `watched` at once.
    fn handle(
        self: &Arc<Self>,
        guarded: &mut LockedRegion<M>,
        input: Input,
        watched: Option<Token>,
    ) -> Option<DeadLetterReason> {
        let mut effects = Vec::new();
        guarded.machine.handle(clock::now(), input, &mut effects);
        let mut refused = None;
        for effect in effects {
            if let Effect::DeadLetter { token, reason, .. } = &effect
                && Some(*token) == watched
            {
                refused = Some(*reason);
            }
            self.execute(guarded, effect);
        }
        let deadline = guarded.machine.next_deadline();
        if deadline.is_some_and(|deadline| guarded.armed.is_none_or(|armed| deadline < armed)) {
            guarded.armed = deadline;
            self.task.defer(Deferred::Rearm);
        }
        refused
    }

    /// When the region's task must tick next; the machine counts this deadline as armed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let mut guarded = self.lock();
        guarded.armed = guarded.machine.next_deadline();
        guarded.armed
    }

    /// The stage of the region's life.
    pub(crate) fn state(&self) -> RegionState {
        self.lock().machine.state()
    }

    /// Whether the region has stopped and a coordinator knows it.
    pub(crate) fn has_ended(&self) -> bool {
        let guarded = self.lock();
        guarded.machine.state() == RegionState::Stopped && guarded.machine.next_deadline().is_none()
    }

    /// Why the node is not ready for the type.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let reason = self.lock().machine.not_ready()?;
        Some(format!("{}: {reason}", self.name))
    }

    pub(crate) fn counters(&self) -> crate::machine::region::Counters {
        self.lock().machine.counters()
    }

    fn execute(self: &Arc<Self>, guarded: &mut LockedRegion<M>, effect: Effect) {
        match effect {
            Effect::RouteChange { shard, route } => self.publish(guarded, shard, route),
            Effect::Admit { shard, origin } => {
                if let Some(cell) = self.shards.cell(&shard)
                    && let Some(Open::Local(local)) = cell.load().as_deref()
                {
                    local.admit(origin);
                }
            }
            Effect::Deliver { shard, token, provenance, .. } => self.deliver(guarded, &shard, token, provenance),
            Effect::SendData { to, shard, token, stamp } => self.send_data(guarded, to, shard, token, stamp),
            Effect::SendMark { to, shard, mark } => self.send_mark(&to, &shard, &mark),
            Effect::SendPeer { to, message } => self.send_peer(to, message),
            Effect::SendCoordinator { to, message } => self.send_coordinator(to, message),
            Effect::Agreement { coordinator, outcome } => {
                self.task.defer(Deferred::Agreement(coordinator, outcome));
            }
            Effect::Continue { shard } => self.task.defer(Deferred::Input(Input::Continue { shard })),
            Effect::StartShard { shard, generation } => self.start_shard(guarded, shard, generation),
            Effect::StopShard { shard, .. } => Self::control(guarded, &shard, Control::Stop),
            Effect::KillShard { shard, .. } => Self::control(guarded, &shard, Control::Kill),
            Effect::HoldShards => guarded.hosted.values().for_each(|shard| shard.control.push_anyway(Control::Hold)),
            Effect::ReleaseShards => {
                guarded.hosted.values().for_each(|shard| shard.control.push_anyway(Control::Release));
            }
            Effect::DeadLetter { token, reason, .. } => {
                if let Some(parcel) = guarded.parcels.remove(&token) {
                    guarded.dropped.push((parcel, reason));
                }
            }
            Effect::Answer { number, answer } => self.requests.answer(number, answer),
            Effect::Stopped => self.task.on_stopped(),
            Effect::Event(event) => {
                event::log(&self.name, &self.settings, &event);
                self.events.send(Event::Region(event)).ok();
            }
        }
    }

    fn publish(&self, guarded: &mut LockedRegion<M>, shard: ShardId, route: Route) {
        let Some(cell) = self.shards.intern(&shard).ok().and_then(|number| self.shards.routes.cell(number)) else {
            return;
        };
        let open = match route {
            Route::Closed => None,
            Route::Local { generation } => {
                guarded.hosted.get(&shard).map(|hosted| Open::Local(LocalRoute::new(generation, hosted.inbox.clone())))
            }
            Route::Remote { region, generation } => {
                let home = guarded.homes.share(&region, || Home::new(region.clone()));
                Some(Open::Remote(RemoteRoute::new(home, generation)))
            }
        };
        let routed = open.is_some();
        cell.publish(open);
        self.events.send(Event::RouteChanged { shard, routed }).ok();
    }

    fn deliver(&self, guarded: &mut LockedRegion<M>, shard: &ShardId, token: Token, provenance: Provenance) {
        let Some(mut parcel) = guarded.parcels.remove(&token) else { return };
        let Some(hosted) = guarded.hosted.get(shard) else {
            return guarded.dropped.push((parcel, DeadLetterReason::RegionStopped));
        };
        parcel.origin = match provenance {
            Provenance::Own => None,
            Provenance::Received { origin, first } => Some(Arc::new(Origin { region: origin, first })),
        };
        // Leave decoding to the shard's task: this runs under the lock of all shards of the type.
        let size = parcel.size;
        if let Err(parcel) = hosted.inbox.push_sealed(parcel, size) {
            guarded.dropped.push((parcel, DeadLetterReason::ShardInboxFull));
        }
    }

    fn send_data(&self, guarded: &mut LockedRegion<M>, to: RegionId, shard: ShardId, token: Token, stamp: Stamp) {
        let Some(parcel) = guarded.parcels.remove(&token) else { return };
        let (node, recipient) = (to.node.clone().into(), self.lanes.data.recipient(shard.clone()));
        match self.lanes.data.put(&node, recipient, Stamped::Forwarded(Box::new(stamp.clone())), parcel) {
            Ok(()) => {}
            Err((Rejection::Quarantined, parcel)) => {
                let frames = vec![(shard, stamp, guarded.keep(parcel))];
                self.task.defer(Deferred::Input(Input::HandedBack { node: to.node, frames }));
            }
            Err((refused, parcel)) => {
                let reason = match refused {
                    Rejection::TooLarge { .. } | Rejection::NameTooLong { .. } => DeadLetterReason::TooLarge,
                    Rejection::ShuttingDown => DeadLetterReason::ShuttingDown,
                    Rejection::QueueFull | Rejection::Quarantined => DeadLetterReason::QueueFull,
                };
                guarded.dropped.push((parcel, reason));
            }
        }
    }

    fn send_mark(&self, to: &RegionId, shard: &ShardId, mark: &Mark) {
        if let Err(refused) = self.lanes.send_mark(to, shard, mark) {
            self.events.send(refused).ok();
        }
    }

    fn send_peer(&self, to: UniqueAddress, message: PeerMessage) {
        if let PeerMessage::StaleRoute(routes) = &message {
            self.counts.stale_routes.fetch_add(routes.len() as u64, Ordering::Relaxed);
        }
        if to == *self.remoting().self_address() {
            return self.defer_input(Input::FromPeer { node: to, message });
        }
        let ask = match &message {
            PeerMessage::AnnounceType { round, .. } => Some(self.open_type_ask(&to, *round)),
            _ => None,
        };
        self.send_control(&to, crate::wire::encode_peer(&message), ask);
    }

    /// Opens an ask that counts "no such recipient" as agreement: a node that runs nothing of the type, or is too old
    /// to know the question, agrees with everything. Other answers come as messages.
    fn open_type_ask(&self, to: &UniqueAddress, round: u64) -> AskHeader {
        let budget = self.settings.retry_interval;
        let asked = self.remoting().open_ask(budget);
        let (deferred, node) = (self.task.inbox().clone(), to.clone());
        self.node.runtime.spawn(async move {
            use greylag_transport::AskError::{Dropped, NoSuchRecipient};
            if let Err(NoSuchRecipient | Dropped(DeadLetterReason::Undecodable)) = asked.answer.await {
                let message = PeerMessage::TypeOk { round };
                deferred.push_anyway(Deferred::Input(Input::FromPeer { node, message }));
            }
        });
        AskHeader { id: asked.address.ask_id, budget }
    }

    fn send_coordinator(&self, to: UniqueAddress, message: RegionMessage) {
        if to == *self.remoting().self_address() {
            return self.task.defer(Deferred::Coordinate(message));
        }
        self.send_control(&to, crate::wire::encode_region(&message), None);
    }

    pub(crate) fn send_control(&self, to: &UniqueAddress, message: (&'static str, Bytes), ask: Option<AskHeader>) {
        if let Err(refused) = self.lanes.send_control(to, message, ask) {
            self.events.send(refused).ok();
        }
    }

    // --- shards ---

    /// Adds the handlers of a shard to the watchdog.
    pub(in crate::driver) fn watch(&self, shard: &ShardId) -> Arc<Probe> {
        let (entity_type, shard, events) = (self.name.clone(), shard.clone(), self.events.clone());
        self.node.watchdog.watch(&self.settings, move |running_for| {
            tracing::error!(%entity_type, %shard, ?running_for, "a handler does not return; its shard serves no other entity");
            events.send(Event::ShardStuck { shard: shard.clone(), running_for }).ok();
        })
    }

    /// Sets another limit of active entities, if the type has one.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.task.set_limit(limit);
    }

    /// Tells each shard its part of the limit. A region that hands its shards over keeps the parts, since its shards
    /// are gone soon.
    pub(crate) fn divide_limit(&self) {
        self.task.begin_dividing();
        let guarded = self.lock();
        if guarded.machine.state() == RegionState::ShuttingDown {
            return;
        }
        let part = self.task.part_of_limit(guarded.hosted.len());
        guarded.hosted.values().for_each(|shard| shard.control.push_anyway(Control::Limit(part)));
    }

    fn control(guarded: &LockedRegion<M>, shard: &ShardId, control: Control<M>) {
        if let Some(hosted) = guarded.hosted.get(shard) {
            hosted.probe.stops_by(&control);
            hosted.control.push_anyway(control);
        }
    }

    /// Tells a shard that some of its remembered entities live in other shards.
    pub(crate) fn entities_moved(&self, shard: &ShardId, generation: Generation, ids: Vec<EntityId>) {
        let guarded = self.lock();
        if let Some(hosted) = guarded.hosted.get(shard).filter(|hosted| hosted.generation == generation) {
            hosted.control.push_anyway(Control::Moved(ids));
        }
    }

    /// Notes that a shard's task has ended; `failed` if it was not told to end.
    pub(crate) fn shard_ended(
        self: &Arc<Self>,
        shard: &ShardId,
        generation: Generation,
        unhandled: Vec<Parcel<M>>,
        failed: bool,
    ) {
        self.services.send_to_starter(StarterInput::Ended { shard: shard.clone(), generation });
        let unhandled: Vec<_> = unhandled.into_iter().map(|parcel| self.named(parcel)).collect();
        let hosted = self.lock().hosted.get(shard).filter(|hosted| hosted.generation == generation).cloned();
        // Seal the inbox, then name the messages before the lock is taken, since that calls the user's codec. Senders
        // to a sealed inbox go to the machine; without the seal, a message could be pushed after the last look into the
        // inbox.
        if let Some(hosted) = &hosted {
            hosted.inbox.seal();
        }
        let mut rest = VecDeque::new();
        if let Some(hosted) = &hosted {
            hosted.inbox.take(&mut rest);
        }
        let mut rest: Vec<_> = rest.into_iter().map(|parcel| self.named(parcel)).collect();
        self.with_machine(|guarded| {
            if let Some(hosted) = &hosted {
                let mut last = VecDeque::new();
                hosted.inbox.take(&mut last);
                rest.extend(last);
                guarded.hosted.remove(shard);
                self.task.limit_changed();
            }
            let all = unhandled.into_iter().chain(rest);
            let returned: Vec<_> = all.map(|parcel| guarded.give_back(parcel)).collect();
            let shard = shard.clone();
            let input = if failed {
                Input::ShardFailed { shard, generation, unprocessed: returned }
            } else {
                Input::ShardStopped { shard, generation, leftovers: returned }
            };
            self.handle(guarded, input, None)
        });
        if let Some(hosted) = hosted {
            self.end_control(&hosted.control);
        }
    }

    /// Drops the items left for a shard that runs no more: user values, dropped without the lock.
    fn end_control(&self, control: &Inbox<Control<M>>) {
        let mut left = VecDeque::new();
        control.take(&mut left);
        for control in left {
            self.drop_control(control);
        }
    }

    /// Drops a control item of a shard that runs no more.
    pub(crate) fn drop_control(&self, control: Control<M>) {
        match control {
            Control::Direct { message, .. } => self.drop_direct(message, DeadLetterReason::StaleRecipient),
            control => discard(control),
        }
    }

    /// Drops a message to one incarnation.
    pub(crate) fn drop_direct(&self, message: M, reason: DeadLetterReason) {
        self.remoting().dead_letter(reason, self.lanes.direct_path(), "");
        self.counts.dead_letters.count(clock::now(), reason);
        undelivered(message, reason);
    }

    // --- what comes back ---

    /// Takes own envelopes back that were never written; the machine routes them anew, in their order.
    pub(crate) fn handed_back(self: &Arc<Self>, node: UniqueAddress, envelopes: Vec<Envelope>) {
        let envelopes = envelopes.into_iter().filter_map(|envelope| {
            let shard = ShardId::new(envelope.recipient.sub_path.clone()?).ok()?;
            let (stamp, parcel) = DataLane::unpack(envelope)?;
            Some((shard, stamp, self.named(parcel)))
        });
        let envelopes: Vec<_> = envelopes.collect();
        self.with_machine(|guarded| {
            let frames = envelopes.into_iter().map(|(shard, stamp, parcel)| (shard, stamp, guarded.keep(parcel)));
            let frames = frames.collect();
            self.handle(guarded, Input::HandedBack { node, frames }, None)
        });
    }

    // --- looking ---

    /// The shards hosted here, by name, including those whose tasks do not run now.
    pub(crate) fn hosted_shards(&self) -> Vec<ShardId> {
        self.lock().machine.hosted().map(|(shard, _)| shard.clone()).collect()
    }

    /// Makes a shard count its entities. `None` if the shard has no task now, or its inbox is full.
    pub(crate) fn count_shard(&self, shard: &ShardId, scan: EntityScan) -> Option<oneshot::Receiver<EntityScan>> {
        let control = self.lock().hosted.get(shard)?.control.clone();
        let (sender, answer) = oneshot::channel();
        control.push(Control::Count(scan, sender), 0).ok()?;
        Some(answer)
    }
}

impl<M> LockedRegion<M> {
    /// Keeps a message under a new token, and returns the facts that the machine needs.
    fn keep(&mut self, parcel: Parcel<M>) -> MessageInfo {
        self.last_token += 1;
        let token = Token(self.last_token);
        let expires_at = parcel.ask.as_ref().map(|ask| ask.deadline);
        let message = MessageInfo { token, expires_at, size: parcel.size };
        self.parcels.insert(token, parcel);
        message
    }

    fn give_back(&mut self, mut parcel: Parcel<M>) -> Returned {
        let provenance = match parcel.origin.take() {
            None => Provenance::Own,
            Some(origin) => Provenance::Received { origin: origin.region.clone(), first: origin.first },
        };
        Returned { message: self.keep(parcel), provenance }
    }
}

/// The manifest of a message. A codec that panics here will panic again when it encodes the message, where the panic is
/// reported.
fn manifest_of<M: 'static>(codec: &dyn Codec<M>, message: &M) -> Manifest {
    catch_unwind(AssertUnwindSafe(|| codec.manifest(message))).unwrap_or_else(|_| "".into())
}

fn push<M>(inbox: &Inbox<Parcel<M>>, parcel: Parcel<M>) -> Result<(), Refused<Parcel<M>>> {
    let size = parcel.size;
    inbox.push(parcel, size)
}

/// Drops a message that no handler saw; its asker hears the reason. A panic of its destructor is caught.
pub(crate) fn undelivered<M>(message: M, reason: DeadLetterReason) {
    let dropped = catch_unwind(AssertUnwindSafe(|| answer_undelivered(reason, || drop(message))));
    if dropped.is_err() {
        tracing::error!(%reason, "a message's destructor panicked");
    }
}

/// The used part of a whole, from 0 to 100; more than the whole is 100.
fn percent(taken: u64, whole: usize) -> u8 {
    let percent = u128::from(taken) * 100 / (whole as u128).max(1);
    u8::try_from(percent.min(100)).unwrap_or(100)
}
