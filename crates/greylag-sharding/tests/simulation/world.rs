//! The world around the machines: nodes, links, the cluster's decisions, the store: replicated, or a journal.
//!
//! An [`Application`] runs in the shards and sends messages there: the letters of this crate's own tests, or whole
//! entities with their journal in the workspace's simulation.
//!
//! Everything is drawn from one seed. The cluster is an oracle that keeps the promises sharding depends on: a node that
//! is removed without proof of its end is dead, downed or suspicious of itself before `down_removal_margin` is over.
//! Everything else may go wrong: messages are delayed or lost with their link, control messages come twice and late,
//! nodes crash, pause, leave, come back as new processes, coordinators fail and two of them may run, data lanes stall
//! for longer than any timeout.

#[path = "cluster.rs"]
mod cluster;
#[path = "faults.rs"]
mod faults;
#[path = "journal.rs"]
mod journal;
#[path = "requests.rs"]
mod requests;
#[path = "store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_sharding::fingerprint::{Fingerprint, StateStoreMode};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::{self, Coordinator, CoordinatorConfig, StateEvent, StopReason};
use greylag_sharding::machine::membership::Members;
use greylag_sharding::machine::message::{CoordinatorId, FromCoordinator, Mark, PeerMessage, RegionMessage, Stamp};
use greylag_sharding::machine::region::{
    self, Effect, MessageInfo, Provenance, Region, RegionEvent, RegionState, Returned, Route, Token,
};
use greylag_sharding::remember::RememberStore;
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{Clause, Omissions};
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::network::{Happening, Link, Network, NodeId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::journal::FakeJournal;
use self::requests::Requests;
use self::store::Store;

pub(crate) const MARGIN: Duration = Duration::from_millis(1500);
/// How long a run lasts before the faults stop.
pub(crate) const SAFETY: Duration = Duration::from_secs(15);
/// How long answers may take after healing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(12);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// The application in the shards, and its traffic.
pub(crate) trait Application: Sized {
    /// The messages that regions carry to shards.
    type Msg: Clone + Debug;
    /// Messages between nodes that bypass the regions.
    type Beside: Clone + Debug;
    /// The application's own timers.
    type Timer: Debug;
    /// The state of one shard on one node; gone with the node's process.
    type Shard;

    /// Begins the traffic.
    fn begin(world: &mut World<Self>);
    /// Starts a shard for its region.
    fn start_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation);
    /// Ends a shard for its region: at once, or behind the messages in its inbox.
    fn end_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation, at_once: bool);
    /// Makes some shard of the node panic, as a fault.
    fn fail_shard(world: &mut World<Self>, node: usize);
    /// Takes a message for a running shard.
    fn push(
        world: &mut World<Self>,
        node: usize,
        shard: &ShardId,
        generation: Generation,
        msg: Self::Msg,
        provenance: Provenance,
    );
    /// Lets handlers of the node run again.
    fn release(world: &mut World<Self>, node: usize);
    /// Whether handlers of the shard may have run, or may run.
    fn is_live(shard: &Self::Shard) -> bool;
    /// Handles a timer that is due.
    fn on_timer(world: &mut World<Self>, timer: Self::Timer);
    /// The node of the timer; the timer waits while that node is paused.
    fn node_of(timer: &Self::Timer) -> Option<usize>;
    /// Takes a message that bypassed the regions.
    fn on_beside(_world: &mut World<Self>, _from: usize, _to: usize, _msg: Self::Beside) {}
    /// Takes news from the region of a node.
    fn on_news(_world: &mut World<Self>, _node: usize, _news: News) {}
    /// Notes that the process of a node has ended.
    fn on_end(_world: &mut World<Self>, _node: usize) {}
    /// Sends something everywhere after healing, so that every route is corrected.
    fn warm_up(_world: &mut World<Self>) {}
    /// Notes that the owner of the shard and the coordinator have died in the middle of its handoff.
    fn on_twin_deaths(_world: &mut World<Self>, _shard: &ShardId) {}
    /// Notes a message sent to a dead process. Transports hand back some of those; here all of them are lost.
    fn on_lost(_world: &mut World<Self>, _msg: &Self::Msg) {}
    /// Asks everything for an answer.
    fn probe(world: &mut World<Self>);
    /// Whether everything that must come after healing has come.
    fn is_settled(world: &World<Self>) -> bool;
    /// The violation found at the end, if any.
    fn verdict(world: &World<Self>) -> Option<String>;
}

/// News of a region for an application.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// Whether messages for the shard have an open route.
    Routed(ShardId, bool),
    /// An event of the region.
    Event(RegionEvent),
}

#[derive(Debug, Clone)]
pub(crate) enum Wire<M, B> {
    ToCoordinator(RegionMessage),
    FromCoordinator(FromCoordinator),
    Peer(PeerMessage),
    Frame { shard: ShardId, to: RegionId, stamp: Stamp, msg: M },
    Mark { shard: ShardId, to: RegionId, mark: Mark },
    Beside(B),
}

#[derive(Debug)]
enum Timer<A: Application> {
    Late {
        from: usize,
        to: usize,
        wire: Wire<A::Msg, A::Beside>,
    },
    View {
        node: usize,
        version: u64,
    },
    StartCoordinator {
        node: usize,
    },
    StoreRead {
        node: usize,
        incarnation: u64,
    },
    StoreWrite {
        node: usize,
        incarnation: u64,
        batch: u64,
        events: Vec<StateEvent>,
    },
    StoreFence {
        node: usize,
        incarnation: u64,
        batch: u64,
    },
    ReadRemembered {
        node: usize,
        incarnation: u64,
    },
    Remember {
        node: usize,
        incarnation: u64,
        shards: Vec<ShardId>,
    },
    Coordinate {
        node: usize,
        incarnation: u64,
        input: coordinator::Input,
    },
    /// Ends every process.
    FullStop,
    Remove {
        node: usize,
        clean: bool,
    },
    Downed {
        node: usize,
    },
    Trust {
        node: usize,
    },
    /// Continues a region's flush.
    Continue {
        node: usize,
        shard: ShardId,
    },
    Resume {
        node: usize,
    },
    Mend {
        a: usize,
        b: usize,
    },
    /// Starts a new region, if the former one has ended.
    Reopen {
        node: usize,
    },
    /// Delivers everything sent along a lane that was stalled.
    Flow {
        from: usize,
        to: usize,
        lane: u32,
    },
    /// Lets the process at the address of `old` that runs on another host join, once it may.
    Join {
        old: usize,
    },
    /// The process is gone with its host, and an operator reports that.
    End {
        node: usize,
    },
    Left {
        node: usize,
    },
    /// Kills one of two nodes in the middle of a handoff of the shard.
    Dies {
        node: usize,
        twin: usize,
        shard: ShardId,
    },
    Fault,
    Application(A::Timer),
}

pub(crate) struct Node<A: Application> {
    pub(crate) net: NodeId,
    pub(crate) address: UniqueAddress,
    pub(crate) region: Region,
    coordinator: Option<(u64, Coordinator)>,
    /// The largest epoch seen in a message to the coordinator.
    seen_epoch: u64,
    view: u64,
    removed_at: BTreeMap<UniqueAddress, Instant>,
    pub(crate) routes: BTreeMap<ShardId, Route>,
    admitted: BTreeSet<(ShardId, RegionId)>,
    pub(crate) shards: BTreeMap<ShardId, A::Shard>,
    pub(crate) tokens: BTreeMap<Token, A::Msg>,
    pub(crate) alive: bool,
    pub(crate) suspect: bool,
    pub(crate) held: bool,
    pub(crate) resumes: Option<Duration>,
    pub(crate) leaving: bool,
    /// Whether no other node reaches this one any more, and its name leads to another process.
    moved: bool,
    proxy: bool,
}

/// The faults that may happen in a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) crash: bool,
    pub(crate) pause: bool,
    pub(crate) cut: bool,
    pub(crate) leave: bool,
    pub(crate) failover: bool,
    pub(crate) shard_failure: bool,
    pub(crate) late_copies: bool,
    pub(crate) lost_state: bool,
    /// A data lane stalls for longer than a flush is awaited, as during a reconnect.
    pub(crate) stall: bool,
    /// Control messages from one node to another come late for a while: those to proxies may be too late for a handoff,
    /// which does not wait for them.
    pub(crate) slow_control: bool,
    /// Regions stop and start again, in the same process.
    pub(crate) restart: bool,
    /// Names of nodes that are cut off lead to new processes on other hosts.
    pub(crate) moved: bool,
    /// All processes end, after the cluster has prepared for it or at once, and new ones begin.
    pub(crate) full_stop: bool,
    /// Users stop shards.
    pub(crate) stop_shards: bool,
    /// Once in a run the owner of a shard and the node of the coordinator die in the midst of the shard's handoff.
    pub(crate) twin_deaths: bool,
}

impl Faults {
    pub(crate) const ALL: Self = Self {
        crash: true,
        pause: true,
        cut: true,
        leave: true,
        failover: true,
        shard_failure: true,
        late_copies: true,
        lost_state: false,
        stall: true,
        slow_control: true,
        restart: true,
        moved: false,
        full_stop: false,
        stop_shards: false,
        twin_deaths: false,
    };

    /// All faults, and names that move.
    pub(crate) const MOVED: Self = Self { moved: true, ..Self::ALL };

    /// The faults of a seed: every fourth seed has healthy links, half of these without a failover; every fourth loses
    /// the state.
    pub(crate) fn of(seed: u64) -> Self {
        let healthy = Self { shard_failure: true, late_copies: true, slow_control: true, ..Self::default() };
        match seed % 8 {
            0 => healthy,
            4 => Self { failover: true, ..healthy },
            1 | 5 => Self { lost_state: true, ..Self::ALL },
            _ => Self::ALL,
        }
    }

    /// The faults of a seed, and ends of the whole cluster.
    pub(crate) fn with_full_stops(seed: u64) -> Self {
        Self { full_stop: true, ..Self::of(seed) }
    }

    /// The faults of a seed, and users who stop shards.
    pub(crate) fn with_stopped_shards(seed: u64) -> Self {
        Self { stop_shards: true, ..Self::of(seed) }
    }

    pub(crate) fn breaks_links(self) -> bool {
        self.crash || self.cut || self.pause || self.stall || self.restart || self.full_stop
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sabotage {
    /// The clause that the machines omit.
    pub(crate) clause: Option<Clause>,
    /// Whether the cluster takes a new process at a member's address for the end of the old one, whatever its host.
    pub(crate) moved_name: bool,
    /// Whether the store accepts writes of every coordinator that ever claimed it.
    pub(crate) unfenced: bool,
    /// Whether a region that starts again has the id of the previous one.
    pub(crate) incarnation: bool,
}

/// Counters of a run; printed with a failure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) handled: u64,
    pub(crate) moved: u64,
    pub(crate) faults: u64,
    pub(crate) steps: u64,
    /// How often all stored state was lost.
    pub(crate) losses: u64,
    /// How often an owner and the coordinator died in the middle of a handoff.
    pub(crate) twin_deaths: u64,
    /// Messages that waited at other nodes for a shard when its owner and the coordinator were dead.
    pub(crate) waited: u64,
    /// By node: how often its coordinator ended because another epoch was ahead of its own.
    pub(crate) fenced: BTreeMap<usize, u64>,
    pub(crate) dead: BTreeMap<DeadLetterReason, u64>,
}

pub(crate) struct World<A: Application> {
    pub(crate) net: Network<Wire<A::Msg, A::Beside>>,
    base: Instant,
    timers: BTreeMap<(Duration, u64), Timer<A>>,
    timer_seq: u64,
    pub(crate) nodes: Vec<Node<A>>,
    /// Versions of the cluster's membership; nodes learn of them one after the other.
    views: Vec<Members>,
    pub(crate) shards: u32,
    store: Store,
    fingerprint: Fingerprint,
    requests: Requests,
    incarnations: u64,
    pub(crate) faults: Faults,
    pub(crate) faulty: bool,
    /// Time between a removal without proof and the start elsewhere.
    margin: Duration,
    /// Items that wait in stalled lanes.
    stalled: BTreeMap<(usize, usize, u32), Vec<Wire<A::Msg, A::Beside>>>,
    sabotage: Sabotage,
    pub(crate) tally: Tally,
    pub(crate) app: A,
    violation: Option<String>,
    trace: Option<Vec<String>>,
    random_strategy: bool,
}

impl<A: Application> World<A> {
    pub(crate) fn with(
        seed: u64,
        faults: Faults,
        sabotage: Sabotage,
        app: impl FnOnce(&mut ChaCha8Rng, u32) -> A,
    ) -> Self {
        let delay = (MS, 60 * MS);
        let mut net = Network::new(seed, Link { delay, loss: 0.0, duplication: 0.0, reorder: false });
        let count = net.rng().random_range(3..=5);
        let shards = net.rng().random_range(1..=3);
        let random_strategy = net.rng().random_bool(0.7);
        let app = app(net.rng(), shards);
        let mut world = Self {
            net,
            base: Instant::now(),
            timers: BTreeMap::new(),
            timer_seq: 0,
            nodes: Vec::new(),
            views: vec![Members::default()],
            shards,
            store: Store::default(),
            fingerprint: Self::fingerprint(),
            requests: Requests::default(),
            incarnations: 0,
            faults,
            faulty: true,
            margin: MARGIN,
            stalled: BTreeMap::new(),
            sabotage,
            tally: Tally::default(),
            app,
            violation: None,
            trace: std::env::var("GREYLAG_TRACE").is_ok().then(Vec::new),
            random_strategy,
        };
        for _ in 0..count {
            world.add_node();
        }
        A::begin(&mut world);
        world.after(800 * MS, Timer::Fault);
        world
    }

    /// The same world in mode persistence, over a journal that takes one event in an append, or a few, or any number.
    pub(crate) fn over_journal(mut self) -> Self {
        let max_batch = [1, 2, 3, usize::MAX][self.net.rng().random_range(0..4)];
        self.store.journal = Some((FakeJournal::new(self.sabotage.unfenced), max_batch));
        self.with_fingerprint(|fingerprint| fingerprint.state_store_mode = StateStoreMode::Persistence)
    }

    /// The same world with remembered entities: a shard that had a home gets another one without being asked for. In
    /// mode persistence either the homes or a separate store list these shards.
    pub(crate) fn remembering(mut self) -> Self {
        let with_homes = self.store.journal.is_some() && self.chance(0.5);
        let store = if with_homes { RememberStore::EventSourced } else { RememberStore::Ddata };
        self.store.remembered = Some(BTreeSet::new());
        self.with_fingerprint(|fingerprint| {
            fingerprint.remember_entities = true;
            fingerprint.remember_entities_store = store.name().to_owned();
        })
    }

    /// The same world with another number of shards.
    pub(crate) fn with_shards(mut self, shards: RangeInclusive<u32>) -> Self {
        self.shards = self.net.rng().random_range(shards);
        self
    }

    /// Changes the fingerprint of all regions and coordinators.
    fn with_fingerprint(mut self, change: impl FnOnce(&mut Fingerprint)) -> Self {
        change(&mut self.fingerprint);
        for node in 0..self.nodes.len() {
            let (id, proxy) = (self.nodes[node].region.id().clone(), self.nodes[node].proxy);
            self.nodes[node].region = self.new_region(node, id, proxy);
        }
        self
    }

    /// The same world with another margin.
    pub(crate) fn with_margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// Runs under faults for `safety`, then heals and waits until everything answers, for `patience` at most.
    pub(crate) fn run(&mut self, safety: Duration, patience: Duration) -> Result<Tally, String> {
        self.run_until(safety);
        self.heal();
        let healed = self.net.now() + Duration::from_secs(20);
        self.run_until(healed);
        self.check_remembered();
        // The first message along a route that is two moves old is a gap by the rule of sharding §2.6; it also corrects
        // the route, so all later messages must be handled.
        A::warm_up(self);
        let warm = self.net.now() + Duration::from_secs(4);
        self.run_until(warm);
        A::probe(self);
        let end = self.net.now() + patience;
        while self.violation.is_none() && self.net.now() < end && !A::is_settled(self) {
            let next = self.net.now() + Duration::from_secs(1);
            self.run_until(next.min(end));
        }
        self.check_requests();
        if self.violation.is_none() {
            self.violation = A::verdict(self);
        }
        match self.violation.take() {
            None => Ok(self.tally.clone()),
            Some(what) => {
                let lines = self.trace.take().unwrap_or_default();
                let tail = lines
                    .len()
                    .saturating_sub(std::env::var("GREYLAG_TRACE").ok().and_then(|n| n.parse().ok()).unwrap_or(0));
                Err(format!("{}{what} (at {:?}, {:?})", lines[tail..].join("\n") + "\n", self.net.now(), self.tally))
            }
        }
    }

    fn run_until(&mut self, end: Duration) {
        while self.violation.is_none() {
            let next = self.timers.keys().next().map_or(end, |(at, _)| (*at).min(end));
            match self.net.step_until(next) {
                Some(Happening::Delivered { from, to, message, .. }) => self.on_wire(from.0, to.0, message),
                Some(Happening::Woken { node }) => self.on_wake(node.0),
                None => {
                    if next >= end && self.timers.keys().next().is_none_or(|(at, _)| *at > end) {
                        return;
                    }
                    if let Some((_, timer)) = self.timers.pop_first() {
                        self.on_timer(timer);
                    }
                }
            }
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + self.net.now()
    }

    /// Schedules a timer of the application.
    pub(crate) fn later(&mut self, delay: Duration, timer: A::Timer) {
        self.after(delay, Timer::Application(timer));
    }

    fn after(&mut self, delay: Duration, timer: Timer<A>) {
        self.timer_seq += 1;
        self.timers.insert((self.net.now() + delay, self.timer_seq), timer);
    }

    pub(crate) fn random(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.net.rng().random_range(least..=most))
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.net.rng().random_bool(p)
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8.3} {}", self.net.now().as_secs_f64(), line()));
        }
    }

    pub(crate) fn settings() -> ShardingSettings {
        ShardingSettings {
            flush_timeout: Duration::from_millis(1500),
            handoff_timeout: Duration::from_secs(5),
            rebalance_interval: Duration::from_millis(700),
            ..ShardingSettings::test()
        }
    }

    fn fingerprint() -> Fingerprint {
        Fingerprint {
            protocol_major: 1,
            type_name: "Entity".into(),
            extractor: ("HashV1".into(), 1),
            number_of_shards: 3,
            remember_entities: false,
            remember_entities_store: "ddata".into(),
            state_store_mode: StateStoreMode::Ddata,
            role: String::new(),
            codec: Vec::new(),
        }
    }

    // --- traffic ---

    /// Sends as a sending task does: by the route table if it is open, else through the machine.
    pub(crate) fn send(&mut self, node: usize, shard: ShardId, msg: A::Msg) {
        match self.nodes[node].routes.get(&shard).cloned().unwrap_or(Route::Closed) {
            Route::Local { generation } => A::push(self, node, &shard, generation, msg, Provenance::Own),
            Route::Remote { region, generation } => {
                let origin = self.nodes[node].region.id().clone();
                let stamp = Stamp { generation, origin, first: generation, hops: 0, leftover: false };
                self.transmit(node, &region.node.clone(), Wire::Frame { shard, to: region, stamp, msg });
            }
            Route::Closed => {
                let token = self.keep(node, msg);
                self.tell(node, region::Input::LocalSend { shard, message: MessageInfo::of(token) });
            }
        }
    }

    fn keep(&mut self, node: usize, msg: A::Msg) -> Token {
        self.timer_seq += 1;
        let token = Token(self.timer_seq);
        self.nodes[node].tokens.insert(token, msg);
        token
    }

    pub(crate) fn transmit(&mut self, from: usize, to: &UniqueAddress, wire: Wire<A::Msg, A::Beside>) {
        let Some(to) = self.nodes.iter().position(|node| node.address == *to) else { return };
        let lane = match &wire {
            Wire::Frame { shard, .. } | Wire::Mark { shard, .. } => 1 + shard.index().unwrap_or(0) % 2,
            Wire::Beside(_) => 3,
            _ => 0,
        };
        if lane == 0 && self.faults.late_copies && self.chance(0.05) {
            let delay = self.random(0, 3000);
            self.after(delay, Timer::Late { from, to, wire: wire.clone() });
        }
        if let Some(waiting) = self.stalled.get_mut(&(from, to, lane)) {
            return waiting.push(wire);
        }
        let (a, b) = (self.nodes[from].net, self.nodes[to].net);
        self.net.send(a, b, lane, wire);
    }

    fn on_wire(&mut self, from: usize, to: usize, wire: Wire<A::Msg, A::Beside>) {
        if !self.nodes[to].alive {
            return;
        }
        let node = self.nodes[from].address.clone();
        self.note(|| format!("n{from} -> n{to}: {wire:?}"));
        match wire {
            Wire::ToCoordinator(message) => {
                let epoch = match &message {
                    RegionMessage::Register(register) => register.highest_epoch,
                    RegionMessage::StaleEpoch { epoch, .. } => *epoch,
                    _ => 0,
                };
                let seen = &mut self.nodes[to].seen_epoch;
                *seen = epoch.max(*seen);
                if let Some((incarnation, _)) = &self.nodes[to].coordinator {
                    self.coordinate(to, *incarnation, coordinator::Input::FromRegion { node, message });
                }
            }
            Wire::FromCoordinator(message) => self.tell(to, region::Input::FromCoordinator { node, message }),
            Wire::Peer(message) => self.tell(to, region::Input::FromPeer { node, message }),
            Wire::Beside(message) => A::on_beside(self, from, to, message),
            Wire::Mark { shard, mark, .. } => self.tell(to, region::Input::Mark { node, shard, mark }),
            Wire::Frame { shard, stamp, msg, .. } => {
                let local = match self.nodes[to].routes.get(&shard) {
                    Some(Route::Local { generation }) => Some(*generation),
                    _ => None,
                };
                let admitted = self.nodes[to].admitted.contains(&(shard.clone(), stamp.origin.clone()));
                if stamp.hops == 0 && !stamp.leftover && local == Some(stamp.generation) && admitted {
                    let provenance = Provenance::Received { origin: stamp.origin, first: stamp.generation };
                    A::push(self, to, &shard, stamp.generation, msg, provenance);
                } else {
                    let token = self.keep(to, msg);
                    self.tell(to, region::Input::Frame { node, shard, stamp, message: MessageInfo::of(token) });
                }
            }
        }
    }

    // --- shards ---

    /// Whether the node lives, trusts itself, and is a member of the newest view.
    pub(crate) fn shares_view(&self, node: usize) -> bool {
        let state = &self.nodes[node];
        let is_member = || self.views.last().is_some_and(|view| view.contains(&state.address));
        state.alive && !state.suspect && state.resumes.is_none() && is_member()
    }

    /// Whether handlers of the node run: its process lives, does not stand still, and trusts itself.
    fn runs(&self, node: usize) -> bool {
        let state = &self.nodes[node];
        state.alive && !state.suspect && state.resumes.is_none()
    }

    /// I1, among all processes that run and trust themselves, members or not: the shards of a removed node must have
    /// ended before they start elsewhere.
    pub(crate) fn check_exclusive(&mut self, node: usize, shard: &ShardId) {
        let hosts: Vec<_> = (0..self.nodes.len())
            .filter(|n| self.runs(*n))
            .filter(|n| self.nodes[*n].shards.get(shard).is_some_and(A::is_live))
            .collect();
        if hosts.len() > 1 {
            self.fail(format!("shard {shard} lives on nodes {hosts:?} at once (seen from n{node})"));
        }
    }

    /// Whether more than one coordinator has begun: by a fault, or because one got no answer from the journal.
    pub(crate) fn has_failed_over(&self) -> bool {
        self.incarnations > 1
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn give_back(
        &mut self,
        node: usize,
        inbox: impl IntoIterator<Item = (A::Msg, Provenance)>,
    ) -> Vec<Returned> {
        let mut returned = Vec::new();
        for (msg, provenance) in inbox {
            let token = self.keep(node, msg);
            returned.push(Returned { message: MessageInfo::of(token), provenance });
        }
        returned
    }

    // --- machines ---

    fn on_wake(&mut self, node: usize) {
        self.tell(node, region::Input::Tick);
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::Tick);
        }
    }

    fn arm(&mut self, node: usize) {
        let state = &self.nodes[node];
        let coordinator = state.coordinator.as_ref().and_then(|(_, machine)| machine.next_deadline());
        let deadline = [state.region.next_deadline(), coordinator].into_iter().flatten().min();
        if let Some(at) = deadline {
            let at = at.saturating_duration_since(self.base);
            self.net.wake_at(self.nodes[node].net, at);
        }
    }

    pub(crate) fn tell(&mut self, node: usize, input: region::Input) {
        if !self.nodes[node].alive {
            return;
        }
        let now = self.now();
        let mut effects = Vec::new();
        self.tally.steps += 1;
        self.note(|| format!("n{node}: {input:?}"));
        let ticks = matches!(input, region::Input::Tick);
        self.nodes[node].region.handle(now, input, &mut effects);
        if ticks {
            assert_moved("region", now, self.nodes[node].region.next_deadline());
        }
        for effect in effects {
            self.region_effect(node, effect);
        }
        self.arm(node);
    }

    fn region_effect(&mut self, node: usize, effect: Effect) {
        self.note(|| format!("n{node}:   {effect:?}"));
        match effect {
            Effect::RouteChange { shard, route } => {
                self.nodes[node].admitted.retain(|(of, _)| *of != shard);
                let routed = !matches!(route, Route::Closed);
                self.nodes[node].routes.insert(shard.clone(), route);
                A::on_news(self, node, News::Routed(shard, routed));
            }
            Effect::Admit { shard, origin } => drop(self.nodes[node].admitted.insert((shard, origin))),
            Effect::Deliver { shard, generation, token, provenance } => {
                let msg = self.nodes[node].tokens.remove(&token).expect("a token is named once");
                A::push(self, node, &shard, generation, msg, provenance);
            }
            Effect::SendData { to, shard, token, stamp } => {
                let msg = self.nodes[node].tokens.remove(&token).expect("a token is named once");
                if self.nodes.iter().any(|peer| peer.address == to.node && !peer.alive) {
                    A::on_lost(self, &msg);
                }
                self.transmit(node, &to.node.clone(), Wire::Frame { shard, to, stamp, msg });
            }
            Effect::SendMark { to, shard, mark } => {
                self.transmit(node, &to.node.clone(), Wire::Mark { shard, to, mark });
            }
            Effect::SendPeer { to, message } => self.transmit(node, &to, Wire::Peer(message)),
            Effect::SendCoordinator { to, message } => self.transmit(node, &to, Wire::ToCoordinator(message)),
            Effect::StartShard { shard, generation } => A::start_shard(self, node, shard, generation),
            Effect::StopShard { shard, generation } => A::end_shard(self, node, shard, generation, false),
            Effect::KillShard { shard, generation } => A::end_shard(self, node, shard, generation, true),
            Effect::HoldShards => self.nodes[node].held = true,
            Effect::ReleaseShards => {
                self.nodes[node].held = false;
                A::release(self, node);
            }
            Effect::DeadLetter { token, reason, .. } => {
                let msg = self.nodes[node].tokens.remove(&token).expect("a token is named once");
                self.note(|| format!("n{node}:   dead letter {reason} {msg:?}"));
                *self.tally.dead.entry(reason).or_default() += 1;
            }
            Effect::Event(event) => A::on_news(self, node, News::Event(event)),
            Effect::Continue { shard } => self.after(MS, Timer::Continue { node, shard }),
            Effect::Agreement { coordinator, outcome } => {
                if let Some(incarnation) = coordinator {
                    self.coordinate(node, incarnation, coordinator::Input::Agreement(outcome));
                }
            }
            Effect::Answer { number, answer } => self.on_request_answer(node, number, &answer),
            Effect::Stopped => {}
        }
    }

    fn start_coordinator(&mut self, node: usize) {
        if !self.nodes[node].alive || self.nodes[node].coordinator.is_some() || !self.is_oldest(node) {
            return;
        }
        if self.nodes[node].region.state() == RegionState::Stopped && self.nodes[node].leaving {
            return;
        }
        self.begin_coordinator(node);
    }

    fn begin_coordinator(&mut self, node: usize) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let config = CoordinatorConfig {
            id: CoordinatorId { node: self.nodes[node].address.clone(), incarnation },
            fingerprint: self.fingerprint.clone(),
            role: String::new(),
            settings: ShardingSettings { state_store_mode: self.fingerprint.state_store_mode, ..Self::settings() },
            down_removal_margin: self.margin,
            max_batch: self.store.journal.as_ref().map_or(usize::MAX, |(_, max_batch)| *max_batch),
            omissions: Omissions::of(self.sabotage.clause),
        };
        self.note(|| format!("n{node}: coordinator {incarnation} starts"));
        let mut effects = Vec::new();
        let machine = Coordinator::new(config, &mut effects);
        self.nodes[node].coordinator = Some((incarnation, machine));
        for effect in effects {
            self.coordinator_effect(node, incarnation, effect);
        }
        let members = self.members_of(node);
        self.coordinate(node, incarnation, coordinator::Input::Membership(members));
        if self.nodes[node].suspect {
            self.coordinate(node, incarnation, coordinator::Input::SelfSuspect);
        }
        self.tell(node, region::Input::Coordinator(Some(incarnation)));
    }

    fn coordinate(&mut self, node: usize, incarnation: u64, input: coordinator::Input) {
        let now = self.now();
        if !self.nodes[node].alive {
            return;
        }
        let Some((running, machine)) = &mut self.nodes[node].coordinator else { return };
        if *running != incarnation {
            return;
        }
        let mut effects = Vec::new();
        self.tally.steps += 1;
        let shown = self.trace.is_some().then(|| format!("n{node}: C{incarnation} {input:?}"));
        let ticks = matches!(input, coordinator::Input::Tick);
        machine.handle(now, input, &mut effects);
        if ticks {
            assert_moved("coordinator", now, machine.next_deadline());
        }
        if let Some(shown) = shown {
            self.note(|| shown);
        }
        for effect in effects {
            self.coordinator_effect(node, incarnation, effect);
        }
        self.arm(node);
    }

    fn coordinator_effect(&mut self, node: usize, incarnation: u64, effect: coordinator::Effect) {
        use coordinator::Effect as E;
        self.note(|| format!("n{node}:   C{incarnation} {effect:?}"));
        match effect {
            E::Read => {
                let delay = self.random(5, 80);
                self.after(delay, Timer::StoreRead { node, incarnation });
            }
            E::Commit { batch, events } => {
                let delay = self.random(5, 80);
                self.after(delay, Timer::StoreWrite { node, incarnation, batch, events });
            }
            E::Send { to, message } => {
                self.draw_twin_deaths(node, &message);
                self.transmit(node, &to, Wire::FromCoordinator(message));
            }
            E::CallAllocate { call, shards, view } => {
                let homes = shards
                    .into_iter()
                    .map(|(shard, _)| {
                        let pick = self.net.rng().random_range(0..view.regions.len());
                        let fewest = view.regions.iter().min_by_key(|r| r.shards.len()).map(|r| r.region.clone());
                        let region =
                            if self.random_strategy { Some(view.regions[pick].region.clone()) } else { fewest };
                        (shard, region)
                    })
                    .collect();
                let delay = self.random(0, 20);
                self.after(
                    delay,
                    Timer::Coordinate { node, incarnation, input: coordinator::Input::Allocated { call, homes } },
                );
            }
            E::CallRebalance { view, in_progress } => {
                let all = view.regions.iter().flat_map(|r| &r.shards).filter(|s| !in_progress.contains(*s));
                let all: Vec<_> = all.cloned().collect();
                let mut moved = BTreeSet::new();
                for shard in all {
                    if self.faulty && self.chance(0.4) {
                        moved.insert(shard);
                    }
                }
                self.tally.moved += moved.len() as u64;
                self.after(
                    MS,
                    Timer::Coordinate { node, incarnation, input: coordinator::Input::Rebalance { shards: moved } },
                );
            }
            E::Stop(reason) => {
                if matches!(reason, StopReason::Fenced { .. }) {
                    *self.tally.fenced.entry(node).or_default() += 1;
                }
                self.nodes[node].coordinator = None;
                self.tell(node, region::Input::Coordinator(None));
                if !matches!(reason, StopReason::HandedOver | StopReason::Downed) {
                    let delay = self.random(100, 600);
                    self.after(delay, Timer::StartCoordinator { node });
                }
            }
            E::Continue => {
                let input = coordinator::Input::Continue;
                self.after(MS, Timer::Coordinate { node, incarnation, input });
            }
            E::ReadRemembered => self.after(20 * MS, Timer::ReadRemembered { node, incarnation }),
            E::Remember { shards } => self.after(20 * MS, Timer::Remember { node, incarnation, shards }),
            E::Event(_) => {}
        }
    }

    // --- time ---

    fn on_timer(&mut self, timer: Timer<A>) {
        let node = match &timer {
            Timer::View { node, .. }
            | Timer::StartCoordinator { node }
            | Timer::Coordinate { node, .. }
            | Timer::Downed { node }
            | Timer::Trust { node }
            | Timer::Reopen { node }
            | Timer::Continue { node, .. }
            | Timer::Left { node } => Some(*node),
            Timer::Application(timer) => A::node_of(timer),
            _ => None,
        };
        if let Some(until) = node.and_then(|node| self.nodes[node].resumes) {
            // A paused process does nothing; when it goes on, suspicion comes first.
            self.timer_seq += 1;
            self.timers.insert((until + MS, self.timer_seq), timer);
            return;
        }
        match timer {
            Timer::Late { from, to, wire } => {
                let (a, b) = (self.nodes[from].net, self.nodes[to].net);
                if self.nodes[from].alive && !self.net.is_cut(a, b) {
                    self.note(|| "a late copy:".into());
                    self.net.send(a, b, 9, wire);
                }
            }
            Timer::View { node, version } => self.on_view(node, version),
            Timer::StartCoordinator { node } => self.start_coordinator(node),
            Timer::StoreRead { node, .. } | Timer::StoreWrite { node, .. } | Timer::StoreFence { node, .. } => {
                self.on_store(node, timer);
            }
            Timer::ReadRemembered { node, .. } | Timer::Remember { node, .. } => self.on_remembered_store(node, timer),
            Timer::FullStop => self.full_stop(),
            Timer::Coordinate { node, incarnation, input } => self.coordinate(node, incarnation, input),
            Timer::Remove { node, clean } => self.remove(node, clean),
            Timer::Downed { node } => self.downed(node),
            Timer::Trust { node } => self.trust(node),
            Timer::Continue { node, shard } => self.tell(node, region::Input::Continue { shard }),
            Timer::Resume { node } => self.on_resume(node),
            Timer::Mend { a, b } => self.mend(a, b),
            Timer::Flow { from, to, lane } => self.on_flow(from, to, lane),
            Timer::Reopen { node } => self.restart_region(node),
            Timer::Join { old } => self.on_join_elsewhere(old),
            Timer::End { node } => {
                if self.nodes[node].alive {
                    self.note(|| format!("n{node}: gone with its host"));
                    self.end_process(node);
                }
                self.remove(node, false);
            }
            Timer::Left { node } => self.on_left(node),
            Timer::Dies { node, twin, shard } => self.on_death(node, twin, &shard),
            Timer::Fault => self.on_fault(),
            Timer::Application(timer) => A::on_timer(self, timer),
        }
    }
}
