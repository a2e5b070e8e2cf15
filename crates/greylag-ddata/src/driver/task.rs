//! The task that runs the machine: one loop over its deadlines, its peers and its callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use greylag_core::{CodecId, DeadLetterReason, UniqueAddress};
use greylag_crdt::DotSource;
use greylag_transport::{Destination, Envelope, Payload, Recipient, Remoting};
use tokio::sync::{mpsc, watch};

use super::bulk_sender::BulkSender;
use super::controls::{Closing, Control, Controls};
use super::events::EventSender;
use super::inbound::{FromPeer, InboundItem, InboundQueues, InboundReceiver, inbound_queues};
use super::numbers::Name;
use super::store_task::StoreTask;
use crate::effect::{Effect, Notice, Reply};
use crate::error::StopReason;
use crate::input::Input;
use crate::key::KeyId;
use crate::message::Message;
use crate::metrics::{Latency, LevelName, Metrics};
use crate::read::Lifecycle;
use crate::replicas::Replicas;
use crate::replicator::{ReplicatorCore, Stats};
use crate::settings::ReplicatorSettings;
use crate::stash::Stash;
use crate::store::DurableStore;
use crate::types::TypeTable;
use crate::wire::MANIFEST;

/// The most messages of peers that wait for the machine; a message beyond is lost, as on the network.
const INBOX: usize = 16_384;
/// The most bytes that these messages have together, or four times the largest entry where that is more. A message
/// beyond is lost and counted, and the protocol repeats it.
const INBOX_BYTES: usize = 64 * 1024 * 1024;

/// The most requests that are served in one turn: each turn polls the timer and every channel, which costs as much as
/// an update.
const AT_ONCE: usize = 64;
/// After so long a turn serves no further request.
const TURN: Duration = Duration::from_micros(500);

/// A closure that a handle sends to the task.
pub(super) type Request = Box<dyn FnOnce(&mut Task) + Send>;
type Follower = Box<dyn Fn(KeyId, Notice) + Send>;

/// When a caller made a request, and at which level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) at: Instant,
    pub(super) level: LevelName,
}

impl Call {
    /// A call made now.
    pub(super) fn now(level: impl Into<LevelName>) -> Self {
        Self { at: Instant::now(), level: level.into() }
    }
}

/// A caller that waits for its answer.
struct Waiting {
    call: Call,
    answer: Box<dyn FnOnce(Reply) + Send>,
}

/// The machine with its connections.
pub(super) struct Task {
    pub(super) core: ReplicatorCore,
    pub(super) effects: Vec<Effect>,
    waiting: BTreeMap<u64, Waiting>,
    pub(super) events: EventSender,
    latency: BTreeMap<LevelName, Latency>,
    longest_step: Duration,
    followers: BTreeMap<u64, Follower>,
    next_id: u64,
    remoting: Arc<dyn Remoting>,
    ordinary: Recipient,
    bulk: Recipient,
    bulk_sender: BulkSender,
    inbound: Arc<InboundReceiver>,
    queues: InboundQueues,
    replicas: watch::Receiver<Arc<Replicas>>,
    lifecycle: watch::Sender<Lifecycle>,
    store_task: StoreTask,
    /// Requests that came while durable entries were being loaded.
    stash: Stash<Request>,
    /// Freed when the task ends.
    name: Name,
}

impl Task {
    pub(super) fn new(
        settings: ReplicatorSettings,
        types: TypeTable,
        remoting: Arc<dyn Remoting>,
        replicas: watch::Receiver<Arc<Replicas>>,
        name: Name,
        numbers: DotSource,
        store: Option<Arc<dyn DurableStore>>,
    ) -> (Self, watch::Receiver<Lifecycle>) {
        let own = remoting.self_address().clone();
        let (ordinary, bulk) = mailboxes(&settings.name);
        let largest = settings.max_entry_bytes.saturating_mul(4);
        let (senders, queues) = inbound_queues(INBOX, largest.max(INBOX_BYTES));
        let inbound = Arc::new(InboundReceiver::new(senders, largest, replicas.clone()));
        let fragment_bytes = settings.bulk_fragment_bytes;
        let bulk_sender = BulkSender::new(remoting.clone(), bulk.clone(), numbers.clone(), fragment_bytes, largest);
        let stash = Stash::new(settings.stash_capacity);
        remoting.register(&ordinary.path, inbound.clone());
        remoting.register(&bulk.path, inbound.clone());
        let seed = own.uid().get();
        let core = ReplicatorCore::new(settings, types, own.clone(), numbers, seed, Instant::now());
        let (lifecycle, watching) = watch::channel(core.lifecycle().clone());
        let task = Self {
            core,
            effects: Vec::new(),
            waiting: BTreeMap::new(),
            events: EventSender::new(),
            latency: BTreeMap::new(),
            longest_step: Duration::ZERO,
            followers: BTreeMap::new(),
            next_id: 0,
            remoting,
            ordinary,
            bulk,
            bulk_sender,
            inbound,
            queues,
            replicas,
            lifecycle,
            store_task: StoreTask::new(store),
            stash,
            name,
        };
        (task, watching)
    }

    /// Runs until the replicator has stopped.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>, controls: Arc<Controls>) {
        // Close the controls also when this task is dropped with its runtime, so that subscriptions end.
        let controls = Closing(controls);
        self.replicas.mark_changed();
        self.tell_wall_clock();
        let (mut membership_lives, mut handles_live) = (true, true);
        // Whether the last step was one of several for peers.
        let mut is_bulk;
        while !self.core.is_over() {
            if self.core.is_refused() && !self.store_task.is_closed() {
                // A refused replicator shows its users the reason at once, and closes the store, so that they can
                // inspect it; peers are answered until the task ends.
                self.store_task.close().await;
                self.followers.clear();
                self.lifecycle.send_replace(self.core.lifecycle().clone());
            }
            let deadline = self.core.next_deadline();
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            is_bulk = false;
            tokio::select! {
                () = due => {
                    is_bulk = true;
                    self.inbound.tidy();
                    self.tell_wall_clock();
                    self.handle(Input::Tick);
                }
                control = controls.0.next() => self.on_control(control),
                changed = self.replicas.changed(), if membership_lives => {
                    membership_lives = changed.is_ok();
                    let replicas = self.replicas.borrow_and_update().clone();
                    self.bulk_sender.keep(&replicas);
                    self.inbound.tidy();
                    self.handle(Input::Replicas(replicas));
                }
                Some(message) = self.queues.asked.recv() => self.receive(message),
                Some(message) = self.queues.rounds.recv() => {
                    is_bulk = true;
                    self.receive(message);
                }
                Some(input) = self.store_task.answer() => self.handle(input),
                request = requests.recv(), if handles_live => match request {
                    Some(request) => self.take_some(request, &mut requests),
                    // The last handle is gone. Subscriptions may be left; they do not count as handles.
                    None => {
                        handles_live = false;
                        self.handle(Input::Stop(StopReason::ShutDown));
                    }
                },
            }
            self.perform();
            while *self.core.lifecycle() != Lifecycle::Loading
                && let Some(request) = self.stash.next()
            {
                self.serve(request);
                self.perform();
            }
            if is_bulk {
                // Yield: otherwise this task would keep its worker as long as there are steps for peers.
                tokio::task::yield_now().await;
            }
        }
        drop(controls);
        self.remoting.unregister(&self.ordinary.path);
        self.remoting.unregister(&self.bulk.path);
        self.store_task.close().await;
        // Free the name before publishing the end: a caller that waited for the end can start another replicator at
        // once, under this name and on this store.
        drop(self.name);
        self.lifecycle.send_replace(self.core.lifecycle().clone());
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Begin(subscription) => subscription(self),
            Control::Flush => self.handle(Input::Flush),
            Control::End(subscriber) => {
                self.followers.remove(&subscriber);
                self.handle(Input::Unsubscribe { subscriber });
            }
            Control::Stop => self.handle(Input::Stop(StopReason::ShutDown)),
        }
    }

    /// Takes a request, and some of the requests queued behind it.
    fn take_some(&mut self, first: Request, requests: &mut mpsc::Receiver<Request>) {
        let began = Instant::now();
        self.take(first);
        for _ in 1..AT_ONCE {
            if self.core.is_over() || began.elapsed() > TURN {
                return;
            }
            let Ok(request) = requests.try_recv() else { return };
            self.take(request);
        }
    }

    fn receive(&mut self, FromPeer { from, item, .. }: FromPeer) {
        match item {
            InboundItem::Message(message) => self.handle(Input::Received { from, message: *message }),
            InboundItem::Dropped(why) => self.handle(Input::Dropped { from, why }),
        }
    }

    /// Runs a request, or stashes it until durable entries are loaded. A request for which the stash has no room runs
    /// at once, and the machine refuses it.
    fn take(&mut self, request: Request) {
        let waits = *self.core.lifecycle() == Lifecycle::Loading;
        if let Some(request) = self.stash.admit(request, waits) {
            self.serve(request);
        }
    }

    /// Returns a number for a request, and both clocks.
    pub(super) fn begin(&mut self) -> (u64, Instant, i64) {
        self.next_id += 1;
        (self.next_id, Instant::now(), wall_ms())
    }

    /// Gives the machine the wall clock; between two deadlines the machine advances it by itself.
    fn tell_wall_clock(&mut self) {
        self.handle(Input::Wall(wall_ms()));
    }

    pub(super) fn wait_for(&mut self, id: u64, call: Call, answer: impl FnOnce(Reply) + Send + 'static) {
        self.waiting.insert(id, Waiting { call, answer: Box::new(answer) });
    }

    /// The machine's metrics, with those that only the driver can measure.
    pub(super) fn metrics(&mut self) -> Metrics {
        let stats = self.stats();
        Metrics { stats, latency: self.latency.clone(), longest_step: self.longest_step, ..self.core.metrics() }
    }

    /// The counters of what was dropped or refused, here and by the machine.
    pub(super) fn stats(&self) -> Stats {
        Stats { overrun: self.inbound.lost(), ..self.core.stats() }
    }

    pub(super) fn follow(&mut self, subscriber: u64, follower: Follower) {
        self.followers.insert(subscriber, follower);
    }

    pub(super) fn handle(&mut self, input: Input) {
        let now = Instant::now();
        self.core.handle(now, input, &mut self.effects);
        self.longest_step = self.longest_step.max(now.elapsed());
    }

    /// Runs the closure of a request, including the closures of updates.
    fn serve(&mut self, request: Request) {
        let now = Instant::now();
        request(self);
        self.longest_step = self.longest_step.max(now.elapsed());
    }

    /// Performs effects, and the effects that follow from them, until none is left.
    fn perform(&mut self) {
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Send { to, bulk, message } => self.send(to, bulk, message),
                    Effect::Reply { id, reply } => {
                        if let Some(Waiting { call, answer }) = self.waiting.remove(&id) {
                            self.latency.entry(call.level).or_default().observe(call.at.elapsed());
                            answer(reply);
                        }
                    }
                    Effect::Notify { subscriber, key, notice } => {
                        if let Some(follower) = self.followers.get(&subscriber) {
                            follower(key, notice);
                        }
                    }
                    Effect::Store { ticket, ops } => self.store_task.store(ticket, ops),
                    Effect::Load => self.store_task.load(),
                    Effect::LoadAnew => self.store_task.load_anew(),
                    // The end is published when the store is closed.
                    Effect::Lifecycle(Lifecycle::Stopped(_)) => {}
                    Effect::Lifecycle(lifecycle) => drop(self.lifecycle.send_replace(lifecycle)),
                    Effect::Event(event) => self.events.send(event),
                }
            }
        }
    }

    fn send(&mut self, to: UniqueAddress, bulk: bool, message: Message) {
        let request = message.request();
        let sent = if bulk {
            self.bulk_sender.try_send(&to, message)
        } else {
            let payload = Payload::Value(Box::new(message));
            self.post(&to, Envelope::with_payload(self.ordinary.clone(), CodecId::PROST, MANIFEST, payload))
        };
        if !sent {
            self.handle(Input::SendFailed { to, request });
        }
    }

    fn post(&self, to: &UniqueAddress, envelope: Envelope) -> bool {
        self.remoting.send(&Destination::Incarnation(to.clone()), envelope.to_uid(to.uid())).is_ok()
    }
}

/// The mailboxes of the replicators of this name: for ordinary messages, and for larger ones.
pub(super) fn mailboxes(name: &str) -> (Recipient, Recipient) {
    (Recipient::new(format!("ddata/{name}")), Recipient::new(format!("{}ddata/{name}", Recipient::BULK_PREFIX)))
}

/// Declares to a node's transport that replicators begin and end one by one. Messages of peers that arrive before the
/// beginning or after the end cause no warning, since peers repeat them; nor do messages still queued for a replicator
/// that has left. The facade and sharding call this when a node starts.
pub fn expect_replicators(remoting: &dyn Remoting) {
    let (ordinary, bulk) = mailboxes("");
    for mailbox in [ordinary, bulk] {
        remoting.declare_repeated(&mailbox.path, None, &DeadLetterReason::OF_STARTS_AND_ENDS);
    }
}

fn wall_ms() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}
