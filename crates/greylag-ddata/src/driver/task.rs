//! The task that runs the machine: one loop over its deadlines, its peers and its callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use greylag_core::UniqueAddress;
use greylag_crdt::DotSource;
use greylag_transport::Remoting;
use tokio::sync::{mpsc, watch};

use super::calls::{Call, Calls};
use super::controls::{Closing, Control, Controls};
use super::events::EventSender;
use super::mail::Mail;
use super::mail::inbound::{FromPeer, InboundItem};
use super::numbers::Name;
use super::store_task::StoreTask;
use crate::api::effect::{Effect, Notice, Reply};
use crate::api::error::StopReason;
use crate::api::input::Input;
use crate::api::key::KeyId;
use crate::api::metrics::Metrics;
use crate::api::read::Lifecycle;
use crate::api::settings::ReplicatorSettings;
use crate::api::stash::Stash;
use crate::api::stats::Stats;
use crate::data::types::TypeTable;
use crate::membership::replicas::Replicas;
use crate::messages::message::Message;
use crate::replicator::ReplicatorCore;
use crate::storage::store::DurableStore;

/// The most requests that are served in one turn: each turn polls the timer and every channel, which costs as much as
/// an update.
const AT_ONCE: usize = 64;
/// After so long a turn serves no further request.
const TURN: Duration = Duration::from_micros(500);

/// A closure that a handle sends to the task.
pub(super) type Request = Box<dyn FnOnce(&mut Task) + Send>;
type Follower = Box<dyn Fn(KeyId, Notice) + Send>;

/// The machine with its connections.
pub(super) struct Task {
    pub(super) core: ReplicatorCore,
    pub(super) effects: Vec<Effect>,
    calls: Calls,
    pub(super) events: EventSender,
    longest_step: Duration,
    followers: BTreeMap<u64, Follower>,
    mail: Mail,
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
        let stash = Stash::new(settings.stash_capacity);
        let mail = Mail::open(&settings, remoting, replicas.clone(), numbers.clone());
        let seed = own.uid().get();
        let core = ReplicatorCore::new(settings, types, own, numbers, seed, Instant::now());
        let (lifecycle, watching) = watch::channel(core.lifecycle().clone());
        let task = Self {
            core,
            effects: Vec::new(),
            calls: Calls::default(),
            events: EventSender::new(),
            longest_step: Duration::ZERO,
            followers: BTreeMap::new(),
            mail,
            replicas,
            lifecycle,
            store_task: StoreTask::new(store),
            stash,
            name,
        };
        (task, watching)
    }

    /// Runs until the replicator has stopped.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>, controls: Arc<Controls<Request>>) {
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
                    self.mail.tidy();
                    self.tell_wall_clock();
                    self.handle(Input::Tick);
                }
                control = controls.0.next() => self.on_control(control),
                changed = self.replicas.changed(), if membership_lives => {
                    membership_lives = changed.is_ok();
                    let replicas = self.replicas.borrow_and_update().clone();
                    self.mail.on_replicas(&replicas);
                    self.handle(Input::Replicas(replicas));
                }
                Some(message) = self.mail.queues.asked.recv() => self.receive(message),
                Some(message) = self.mail.queues.rounds.recv() => {
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
        self.mail.close();
        self.store_task.close().await;
        // Free the name before publishing the end: a caller that waited for the end can start another replicator at
        // once, under this name and on this store.
        drop(self.name);
        self.lifecycle.send_replace(self.core.lifecycle().clone());
    }

    fn on_control(&mut self, control: Control<Request>) {
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
        (self.calls.next_id(), Instant::now(), wall_ms())
    }

    /// Gives the machine the wall clock; between two deadlines the machine advances it by itself.
    fn tell_wall_clock(&mut self) {
        self.handle(Input::Wall(wall_ms()));
    }

    pub(super) fn wait_for(&mut self, id: u64, call: Call, answer: impl FnOnce(Reply) + Send + 'static) {
        self.calls.wait_for(id, call, answer);
    }

    /// The machine's metrics, with those that only the driver can measure.
    pub(super) fn metrics(&mut self) -> Metrics {
        let stats = self.stats();
        Metrics { stats, latency: self.calls.latency().clone(), longest_step: self.longest_step, ..self.core.metrics() }
    }

    /// The counters of what was dropped or refused, here and by the machine.
    pub(super) fn stats(&self) -> Stats {
        Stats { overrun: self.mail.lost(), ..self.core.stats() }
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
                    Effect::Reply { id, reply } => self.calls.on_reply(id, reply),
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
        if !self.mail.send(&to, bulk, message) {
            self.handle(Input::SendFailed { to, request });
        }
    }
}

fn wall_ms() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}
