//! The world around the machines: nodes, links, the cluster's judgement, the store: replicated, or a journal.
//!
//! What runs in the shards, and what is sent there, is an [`Application`]: the letters of this crate's
//! own tests, or whole entities with their journal in the workspace's simulation.
//!
//! Everything is drawn from one seed. The cluster is an oracle that keeps the promises sharding rests
//! on: a node that is removed without proof of its end is dead, downed or suspicious of itself before
//! `down_removal_margin` is over. Everything else may go wrong: messages are delayed, lost with their
//! link, control messages come twice and late, nodes crash, pause, leave, come back as new processes,
//! coordinators fail and two of them may run, data lanes stand still for longer than anything waits for them.

#[path = "journal.rs"]
mod journal;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_cluster::AppVersion;
use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_sharding::coordinator::{self, Coordinator, CoordinatorConfig, Meta, StateEvent, StopReason, StoredState};
use greylag_sharding::fingerprint::{Fingerprint, StateStoreMode};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::membership::{MemberFacts, Members, Phase, Removal};
use greylag_sharding::message::{CoordinatorId, FromCoordinator, Mark, PeerMessage, RegionMessage, Stamp};
use greylag_sharding::region::{
    self, Effect, MessageInfo, Provenance, Region, RegionConfig, RegionEvent, RegionState, Returned, Route, Token,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_testkit::deadlines::assert_moved;
use greylag_testkit::network::{Happening, Link, Network, NodeId};
use greylag_transport::Lane;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::journal::{Answer, FakeJournal, Fate};

pub(crate) const MARGIN: Duration = Duration::from_millis(1500);
/// How long a run lasts before the faults stop.
pub(crate) const SAFETY: Duration = Duration::from_secs(15);
/// How long answers may take after healing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(12);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// What runs in the shards, and what is sent there.
pub(crate) trait Application: Sized {
    /// What regions carry to shards.
    type Msg: Clone + Debug;
    /// What nodes tell each other past the regions.
    type Beside: Clone + Debug;
    /// Whatever it wants to be told later.
    type Timer: Debug;
    /// One shard on one node; gone with the node's process.
    type Shard;

    /// Traffic begins.
    fn begin(world: &mut World<Self>);
    /// The region wants a shard.
    fn start_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation);
    /// The region wants a shard to end: at once, or behind what stands in its inbox.
    fn end_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation, at_once: bool);
    /// A fault: some shard of the node panics.
    fn fail_shard(world: &mut World<Self>, node: usize);
    /// A message for a shard that runs.
    fn push(
        world: &mut World<Self>,
        node: usize,
        shard: &ShardId,
        generation: Generation,
        msg: Self::Msg,
        provenance: Provenance,
    );
    /// Handlers of the node may run again.
    fn release(world: &mut World<Self>, node: usize);
    /// Whether handlers of the shard may have run, or may run.
    fn is_live(shard: &Self::Shard) -> bool;
    /// A timer is due.
    fn on_timer(world: &mut World<Self>, timer: Self::Timer);
    /// The node whose timer it is; the timer waits while that node stands still.
    fn node_of(timer: &Self::Timer) -> Option<usize>;
    /// A message past the regions arrives.
    fn on_beside(_world: &mut World<Self>, _from: usize, _to: usize, _msg: Self::Beside) {}
    /// The region of a node learns something.
    fn on_news(_world: &mut World<Self>, _node: usize, _news: News) {}
    /// The process of a node has ended.
    fn on_end(_world: &mut World<Self>, _node: usize) {}
    /// Sends something everywhere after healing, so that every route is put right.
    fn warm_up(_world: &mut World<Self>) {}
    /// Asks everything for an answer.
    fn probe(world: &mut World<Self>);
    /// Whether all that has to come after healing has come.
    fn is_settled(world: &World<Self>) -> bool;
    /// What is wrong at the end.
    fn verdict(world: &World<Self>) -> Option<String>;
}

/// What an application may want to know from a region.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// Messages for the shard leave now, or no longer.
    Routed(ShardId, bool),
    /// As the region says it.
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
    Coordinate {
        node: usize,
        incarnation: u64,
        input: coordinator::Input,
    },
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
    /// A region's flush goes on.
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
    /// The region begins anew, if the former one has ended.
    Reopen {
        node: usize,
    },
    /// What was sent along a lane that stood still arrives.
    Flow {
        from: usize,
        to: usize,
        lane: u32,
    },
    /// The process at the address of `old` that runs on another host joins, once it may.
    Join {
        old: usize,
    },
    /// The process is gone with its host, and an operator says so.
    End {
        node: usize,
    },
    Left {
        node: usize,
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
    tokens: BTreeMap<Token, A::Msg>,
    pub(crate) alive: bool,
    pub(crate) suspect: bool,
    pub(crate) held: bool,
    pub(crate) resumes: Option<Duration>,
    pub(crate) leaving: bool,
    /// No other node reaches this one any more, and its name leads to another process.
    moved: bool,
    proxy: bool,
}

/// What may happen in a run.
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
    /// A data lane stands still for longer than a flush is waited for, as while it is connected anew.
    pub(crate) stall: bool,
    /// Control messages from one node to another one come late for a while: what reaches proxies can be too late for a
    /// handoff, which does not wait for them.
    pub(crate) slow_control: bool,
    /// Regions stop and start again, in the same process.
    pub(crate) restart: bool,
    /// Names of nodes that are cut off lead to new processes on other hosts.
    pub(crate) moved: bool,
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
    };

    /// Everything, and names that move.
    pub(crate) const MOVED: Self = Self { moved: true, ..Self::ALL };

    /// The faults of a seed: every fourth has healthy links, half of them without a failover; every
    /// fourth loses the state.
    pub(crate) fn of(seed: u64) -> Self {
        let healthy = Self { shard_failure: true, late_copies: true, slow_control: true, ..Self::default() };
        match seed % 8 {
            0 => healthy,
            4 => Self { failover: true, ..healthy },
            1 | 5 => Self { lost_state: true, ..Self::ALL },
            _ => Self::ALL,
        }
    }

    pub(crate) fn breaks_links(self) -> bool {
        self.crash || self.cut || self.pause || self.stall || self.restart
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sabotage {
    pub(crate) region: Option<region::Sabotage>,
    pub(crate) coordinator: Option<coordinator::Sabotage>,
    /// The cluster takes a new process at a member's address for the end of the old one, whatever its host.
    pub(crate) moved_name: bool,
    /// The store takes writes of every coordinator that ever claimed it.
    pub(crate) unfenced: bool,
    /// A region that starts again has the name of the one before.
    pub(crate) incarnation: bool,
}

/// What a run did; printed with a failure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) handled: u64,
    pub(crate) moved: u64,
    pub(crate) faults: u64,
    pub(crate) steps: u64,
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
    store: StoredState,
    /// In mode persistence, and then in place of the store; what it takes in one append.
    journal: Option<(FakeJournal, usize)>,
    incarnations: u64,
    pub(crate) faults: Faults,
    pub(crate) faulty: bool,
    /// What stands between a removal without proof and the start elsewhere.
    margin: Duration,
    /// What waits in lanes that stand still.
    stalled: BTreeMap<(usize, usize, u32), Vec<Wire<A::Msg, A::Beside>>>,
    sabotage: Sabotage,
    pub(crate) tally: Tally,
    pub(crate) app: A,
    violation: Option<String>,
    trace: Option<Vec<String>>,
    clock_back: u64,
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
            store: StoredState::default(),
            journal: None,
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
            clock_back: 0,
            random_strategy,
        };
        for _ in 0..count {
            world.add_node();
        }
        A::begin(&mut world);
        world.after(800 * MS, Timer::Fault);
        world
    }

    /// The same in mode persistence, over a journal that takes one event in an append, or a few, or any number.
    pub(crate) fn over_journal(mut self) -> Self {
        let max_batch = [1, 2, 3, usize::MAX][self.net.rng().random_range(0..4)];
        self.journal = Some((FakeJournal::new(self.sabotage.unfenced), max_batch));
        self
    }

    /// The same with another margin.
    pub(crate) fn with_margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// Runs under faults for `safety`, then heals and waits until everything answers, `patience` at most.
    pub(crate) fn run(&mut self, safety: Duration, patience: Duration) -> Result<Tally, String> {
        self.run_until(safety);
        self.heal();
        let healed = self.net.now() + Duration::from_secs(20);
        self.run_until(healed);
        // The first message along a route that is two moves old is a gap by the rule of sharding §2.6; it
        // also puts the route right, so whatever follows has to be handled.
        A::warm_up(self);
        let warm = self.net.now() + Duration::from_secs(4);
        self.run_until(warm);
        A::probe(self);
        let end = self.net.now() + patience;
        while self.violation.is_none() && self.net.now() < end && !A::is_settled(self) {
            let next = self.net.now() + Duration::from_secs(1);
            self.run_until(next.min(end));
        }
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

    /// Tells the application later.
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

    // --- the cluster ---

    fn add_node(&mut self) {
        self.add_node_named(None);
    }

    /// `name`: the node whose address the process has; `None`: a new one.
    fn add_node_named(&mut self, name: Option<usize>) {
        let net = self.net.add_node();
        let index = net.0;
        for node in self.nodes.iter().filter(|node| node.moved) {
            self.net.cut(net, node.net);
            self.net.cut(node.net, net);
        }
        let address = match name {
            Some(name) => self.nodes[name].address.address().to_string(),
            None => format!("n{index}:1"),
        };
        let address: UniqueAddress = format!("{address}#{}", index + 1).parse().expect("an address");
        let id = RegionId { node: address.clone(), incarnation: 1 };
        let proxy = index == 2 && self.chance(0.3);
        let region = self.new_region(index, id, proxy);
        self.nodes.push(Node {
            net,
            address: address.clone(),
            region,
            coordinator: None,
            seen_epoch: 0,
            view: 0,
            removed_at: BTreeMap::new(),
            routes: BTreeMap::new(),
            admitted: BTreeSet::new(),
            shards: BTreeMap::new(),
            tokens: BTreeMap::new(),
            alive: true,
            suspect: false,
            held: false,
            resumes: None,
            leaving: false,
            moved: false,
            proxy,
        });
        let facts = MemberFacts {
            phase: Phase::Up,
            up_number: index as u32 + 1,
            reachable: true,
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
        };
        self.change_view(|members| {
            members.members.insert(address, facts);
        });
    }

    fn new_region(&self, node: usize, id: RegionId, proxy: bool) -> Region {
        let config = RegionConfig {
            id,
            proxy,
            fingerprint: Self::fingerprint(),
            coordinator_role: String::new(),
            settings: Self::settings(),
            lane_of: Arc::new(|shard: &ShardId| Lane::ordinary((shard.index().unwrap_or(0) % 2) as u16)),
        };
        let mut region = Region::new(config, self.now());
        // Buffers are small here: what takes one turn elsewhere takes several, with everything else in between.
        region.flush_in_turns_of(1 + node % 3);
        if let Some(sabotage) = self.sabotage.region {
            region.sabotage(sabotage);
        }
        region
    }

    /// The cluster agrees on a new view; every node learns of it in its own time.
    fn change_view(&mut self, change: impl FnOnce(&mut Members)) {
        let mut members = self.views.last().expect("there is a first").clone();
        change(&mut members);
        self.views.push(members);
        let version = self.views.len() as u64 - 1;
        for node in 0..self.nodes.len() {
            let delay = self.random(0, 300);
            self.after(delay, Timer::View { node, version });
        }
    }

    fn on_view(&mut self, node: usize, version: u64) {
        let now = self.now();
        let members = &self.views[version as usize];
        let state = &mut self.nodes[node];
        if !state.alive || state.view >= version || !members.contains(&state.address) {
            return;
        }
        state.view = version;
        let mut own = members.clone();
        for (address, removal) in &mut own.removed {
            removal.at = *state.removed_at.entry(address.clone()).or_insert(now);
        }
        let own = Arc::new(own);
        if let Some((incarnation, _)) = &state.coordinator {
            let (incarnation, input) = (*incarnation, coordinator::Input::Membership(own.clone()));
            self.coordinate(node, incarnation, input);
        }
        let gone: Vec<_> = own.removed.keys().cloned().collect();
        self.tell(node, region::Input::Membership(own));
        for address in gone {
            self.tell(node, region::Input::HandedBack { node: address, frames: Vec::new() });
        }
        if self.is_oldest(node) && self.nodes[node].coordinator.is_none() {
            let delay = self.random(10, 400);
            self.after(delay, Timer::StartCoordinator { node });
        }
    }

    fn members_of(&self, node: usize) -> Arc<Members> {
        let state = &self.nodes[node];
        let mut own = self.views[state.view as usize].clone();
        for (address, removal) in &mut own.removed {
            removal.at = state.removed_at.get(address).copied().unwrap_or(removal.at);
        }
        Arc::new(own)
    }

    fn is_oldest(&self, node: usize) -> bool {
        let members = &self.views[self.nodes[node].view as usize];
        let staying = members.members.iter().filter(|(_, m)| !matches!(m.phase, Phase::Down | Phase::Exiting));
        staying.min_by_key(|(_, m)| m.up_number).is_some_and(|(oldest, _)| *oldest == self.nodes[node].address)
    }

    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].alive).collect()
    }

    // --- faults ---

    fn on_fault(&mut self) {
        if !self.faulty {
            return;
        }
        let living = self.living();
        let settled: Vec<_> =
            living.iter().copied().filter(|n| self.nodes[*n].resumes.is_none() && !self.nodes[*n].leaving).collect();
        let pick = self.net.rng().random_range(0..settled.len().max(1));
        let Some(&node) = settled.get(pick) else { return self.after(500 * MS, Timer::Fault) };
        let faults = self.faults;
        let enough = settled.len() > 2;
        self.tally.faults += 1;
        match self.net.rng().random_range(0..12) {
            0 if faults.crash && enough => self.crash(node),
            1 if faults.pause && enough => self.pause(node),
            2 | 3 if faults.cut => self.cut_links(node),
            4 if faults.leave && enough => self.leave(node),
            5 if faults.failover => self.fail_coordinator(),
            6 if faults.shard_failure => A::fail_shard(self, node),
            7 if faults.lost_state && self.chance(0.5) => {
                self.note(|| "store: everything is lost".into());
                self.store = StoredState::default();
                self.clock_back = 100;
                self.fail_coordinator();
            }
            8 if faults.moved && enough => self.move_name(node),
            9 if faults.stall => {
                let lane = self.net.rng().random_range(1..=2);
                let time = self.random(200, 5000);
                self.stall_lane(node, lane, time);
            }
            11 if faults.slow_control => {
                let time = self.random(100, 600);
                self.stall_lane(node, 0, time);
            }
            10 if faults.restart => self.stop_region(node),
            _ => {}
        }
        if self.living().len() < 4 && self.chance(0.5) && (faults.crash || faults.leave) {
            self.add_node();
        }
        let next = self.random(200, 1200);
        self.after(next, Timer::Fault);
    }

    fn crash(&mut self, node: usize) {
        self.note(|| format!("n{node}: crash"));
        self.end_process(node);
        let delay = self.random(500, 1500);
        let clean = self.chance(0.3);
        self.after(delay, Timer::Remove { node, clean });
    }

    fn end_process(&mut self, node: usize) {
        self.net.crash(self.nodes[node].net);
        let state = &mut self.nodes[node];
        state.alive = false;
        state.coordinator = None;
        state.shards.clear();
        A::on_end(self, node);
        for other in self.living() {
            self.lose_link(other, node);
        }
    }

    fn lose_link(&mut self, at: usize, peer: usize) {
        let address = self.nodes[peer].address.clone();
        for lane in [Lane::CONTROL, Lane::ordinary(0), Lane::ordinary(1)] {
            self.tell(at, region::Input::LinkLost { node: address.clone(), lane });
        }
    }

    /// A process stands still. Longer than others put up with, it is removed meanwhile.
    fn pause(&mut self, node: usize) {
        let pause = self.random(100, 4000);
        self.note(|| format!("n{node}: pause {pause:?}"));
        self.net.pause(self.nodes[node].net, pause);
        self.nodes[node].resumes = Some(self.net.now() + pause);
        self.after(pause, Timer::Resume { node });
        if pause > 2000 * MS {
            let delay = self.random(1000, 1900);
            self.after(delay, Timer::Remove { node, clean: false });
        }
    }

    fn on_resume(&mut self, node: usize) {
        self.nodes[node].resumes = None;
        if !self.nodes[node].alive {
            return;
        }
        let removed = !self.views.last().expect("there is one").contains(&self.nodes[node].address);
        let long = removed || self.chance(0.5);
        if long {
            // The first thing a process does after a long pause is to distrust its own view.
            self.suspect(node);
            let delay = self.random(50, 400);
            self.after(delay, if removed { Timer::Downed { node } } else { Timer::Trust { node } });
        }
    }

    fn suspect(&mut self, node: usize) {
        self.nodes[node].suspect = true;
        self.tell(node, region::Input::SelfSuspect);
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::SelfSuspect);
        }
    }

    fn trust(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        // Trust rests on hearing from the others, and they may have removed it since.
        if !self.views.last().is_some_and(|view| view.contains(&self.nodes[node].address)) {
            return self.downed(node);
        }
        self.nodes[node].suspect = false;
        self.tell(node, region::Input::SelfTrusted);
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::SelfTrusted);
        }
    }

    fn downed(&mut self, node: usize) {
        if self.nodes[node].alive {
            self.note(|| format!("n{node}: downed"));
            self.tell(node, region::Input::SelfDowned);
            self.end_process(node);
        }
    }

    /// Links of one node break: for a moment, or so long that the node is downed.
    fn cut_links(&mut self, node: usize) {
        let others: Vec<_> = self.living().into_iter().filter(|n| *n != node).collect();
        let long = self.chance(0.25) && others.len() > 2;
        let some = self.net.rng().random_range(1..=others.len().max(1));
        let cut: Vec<_> = if long { others } else { others.into_iter().take(some).collect() };
        let duration = if long { Duration::from_secs(60) } else { self.random(5, 900) };
        self.note(|| format!("n{node}: cut from {cut:?} for {duration:?}"));
        for peer in cut {
            let (a, b) = (self.nodes[node].net, self.nodes[peer].net);
            self.net.cut(a, b);
            self.net.cut(b, a);
            self.after(duration, Timer::Mend { a: node, b: peer });
        }
        if long {
            // Both sides come to their decision at about the same time; the margin covers the rest.
            let down = self.random(900, 1400);
            let remove = self.random(900, 1400);
            self.nodes[node].leaving = true;
            self.after(down, Timer::Downed { node });
            self.after(remove, Timer::Remove { node, clean: false });
        }
    }

    /// A lane from the node to another one stands still, and loses nothing.
    fn stall_lane(&mut self, from: usize, lane: u32, time: Duration) {
        let others: Vec<_> = self.living().into_iter().filter(|n| *n != from).collect();
        let Some(&to) = others.get(self.net.rng().random_range(0..others.len().max(1))) else { return };
        self.note(|| format!("n{from}: lane {lane} to n{to} stands still for {time:?}"));
        self.stalled.entry((from, to, lane)).or_default();
        self.after(time, Timer::Flow { from, to, lane });
    }

    fn on_flow(&mut self, from: usize, to: usize, lane: u32) {
        let (a, b) = (self.nodes[from].net, self.nodes[to].net);
        for wire in self.stalled.remove(&(from, to, lane)).unwrap_or_default() {
            if self.nodes[from].alive {
                self.net.send(a, b, lane, wire);
            }
        }
    }

    /// The region of the node ends at once, and another one begins.
    fn stop_region(&mut self, node: usize) {
        self.note(|| format!("n{node}: the region stops"));
        self.tell(node, region::Input::Stop);
        self.restart_region(node);
    }

    /// Begins with a new region once nothing of the former one lives any more.
    fn restart_region(&mut self, node: usize) {
        if !self.nodes[node].alive || self.nodes[node].leaving {
            return;
        }
        if self.nodes[node].region.state() != RegionState::Stopped || self.nodes[node].suspect {
            return self.after(50 * MS, Timer::Reopen { node });
        }
        let RegionId { node: address, incarnation } = self.nodes[node].region.id().clone();
        let incarnation = if self.sabotage.incarnation { incarnation } else { incarnation + 1 };
        self.note(|| format!("n{node}: region {incarnation} begins"));
        let region = self.new_region(node, RegionId { node: address, incarnation }, self.nodes[node].proxy);
        let state = &mut self.nodes[node];
        state.region = region;
        state.routes.clear();
        state.admitted.clear();
        let coordinator = state.coordinator.as_ref().map(|(incarnation, _)| *incarnation);
        let members = self.members_of(node);
        self.tell(node, region::Input::Membership(members));
        self.tell(node, region::Input::Coordinator(coordinator));
    }

    /// A node is cut off for good, and its name leads to a process on another host. Both sides come to their verdict
    /// later than the margin lasts, as by default settings; or no resolver decides (`none`), and the old process goes on
    /// until its host is gone and an operator says so. Source: cluster 76, M25, S20 (a).
    fn move_name(&mut self, node: usize) {
        self.note(|| format!("n{node}: cut off, and its name moves"));
        for peer in self.living().into_iter().filter(|peer| *peer != node) {
            let (a, b) = (self.nodes[node].net, self.nodes[peer].net);
            self.net.cut(a, b);
            self.net.cut(b, a);
        }
        self.nodes[node].leaving = true;
        self.nodes[node].moved = true;
        if self.chance(0.5) {
            let down = self.verdict_after();
            let remove = self.verdict_after();
            self.after(down, Timer::Downed { node });
            self.after(remove, Timer::Remove { node, clean: false });
        } else {
            let end = self.margin + self.random(3_000, 5_000);
            self.after(end, Timer::End { node });
        }
        let moves = self.random(0, 1_000);
        self.after(moves, Timer::Join { old: node });
    }

    fn verdict_after(&mut self) -> Duration {
        MARGIN + self.random(500, 1_000)
    }

    /// Source: cluster M25: the new process waits until the old one is removed.
    fn on_join_elsewhere(&mut self, old: usize) {
        let is_held = self.views.last().is_some_and(|view| view.contains(&self.nodes[old].address));
        if is_held && self.sabotage.moved_name {
            self.remove(old, false);
        } else if is_held {
            return self.after(100 * MS, Timer::Join { old });
        }
        self.add_node_named(Some(old));
    }

    fn mend(&mut self, a: usize, b: usize) {
        let (na, nb) = (self.nodes[a].net, self.nodes[b].net);
        self.net.mend(na, nb);
        self.net.mend(nb, na);
        if self.nodes[a].alive && self.nodes[b].alive {
            self.lose_link(a, b);
            self.lose_link(b, a);
        }
    }

    fn leave(&mut self, node: usize) {
        self.note(|| format!("n{node}: leaves"));
        self.nodes[node].leaving = true;
        let address = self.nodes[node].address.clone();
        self.change_view(|members| {
            if let Some(member) = members.members.get_mut(&address) {
                member.phase = Phase::Leaving;
            }
        });
        self.tell(node, region::Input::GracefulShutdown);
        self.after(300 * MS, Timer::Left { node });
    }

    /// Waits for the region, then hands the coordinator over, then goes.
    fn on_left(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        if self.nodes[node].region.state() != RegionState::Stopped {
            return self.after(300 * MS, Timer::Left { node });
        }
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::Terminate);
            return self.after(200 * MS, Timer::Left { node });
        }
        self.note(|| format!("n{node}: has left"));
        self.end_process(node);
        self.after(100 * MS, Timer::Remove { node, clean: true });
    }

    fn remove(&mut self, node: usize, clean: bool) {
        let address = self.nodes[node].address.clone();
        if !self.views.last().expect("there is one").contains(&address) {
            return;
        }
        let now = self.now();
        self.note(|| format!("n{node}: removed, clean={clean}"));
        self.change_view(|members| {
            members.members.remove(&address);
            members.removed.insert(address, Removal { at: now, clean });
        });
        // A node removed while it was cut off, or stood still, finds out when it can hear again.
        let hears = !self.nodes[node].moved && self.nodes[node].resumes.is_none();
        if self.nodes[node].alive && hears {
            self.after(300 * MS, Timer::Downed { node });
        }
    }

    /// A coordinator fails; or it goes on, and another node begins one beside it, as no singleton would.
    fn fail_coordinator(&mut self) {
        let usurper = self.living().into_iter().rev().find(|n| self.runs(*n) && self.nodes[*n].coordinator.is_none());
        if let Some(node) = usurper.filter(|_| self.chance(0.3)) {
            return self.begin_coordinator(node);
        }
        let with: Vec<_> = self.living().into_iter().filter(|n| self.nodes[*n].coordinator.is_some()).collect();
        if let Some(&node) = with.first() {
            self.note(|| format!("n{node}: the coordinator fails"));
            self.nodes[node].coordinator = None;
            self.tell(node, region::Input::Coordinator(None));
            let delay = self.random(50, 500);
            self.after(delay, Timer::StartCoordinator { node });
        }
    }

    fn heal(&mut self) {
        self.note(|| "healing".into());
        self.faulty = false;
        // Whatever the faults have left, there are nodes that can host.
        if self.faults.breaks_links() || self.faults.leave {
            self.add_node();
            self.add_node();
        }
    }

    // --- traffic ---

    /// As a sending task does it: by the route table if it is open, else through the machine.
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
                    let provenance = Provenance::Travelled { origin: stamp.origin, first: stamp.generation };
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

    /// I1, among all processes that run and trust themselves, members or not: what a node runs that was removed has to
    /// have ended before it starts elsewhere.
    pub(crate) fn check_exclusive(&mut self, node: usize, shard: &ShardId) {
        let hosts: Vec<_> = (0..self.nodes.len())
            .filter(|n| self.runs(*n))
            .filter(|n| self.nodes[*n].shards.get(shard).is_some_and(A::is_live))
            .collect();
        if hosts.len() > 1 {
            self.fail(format!("shard {shard} lives on nodes {hosts:?} at once (seen from n{node})"));
        }
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
            Effect::Standing { coordinator, standing } => {
                if let Some(incarnation) = coordinator {
                    self.coordinate(node, incarnation, coordinator::Input::Standing(standing));
                }
            }
            Effect::Answer { .. } | Effect::Stopped => {}
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
            fingerprint: Self::fingerprint(),
            role: String::new(),
            settings: ShardingSettings {
                state_store_mode: match self.journal {
                    Some(_) => StateStoreMode::Persistence,
                    None => StateStoreMode::Ddata,
                },
                ..Self::settings()
            },
            down_removal_margin: self.margin,
            max_batch: self.journal.as_ref().map_or(usize::MAX, |(_, max_batch)| *max_batch),
        };
        self.note(|| format!("n{node}: coordinator {incarnation} starts"));
        let mut effects = Vec::new();
        let mut machine = Coordinator::new(config, &mut effects);
        if let Some(sabotage) = self.sabotage.coordinator {
            machine.sabotage(sabotage);
        }
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
            E::Send { to, message } => self.transmit(node, &to, Wire::FromCoordinator(message)),
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
            E::ReadRemembered | E::Remember { .. } => unreachable!("the type remembers no entities"),
            E::Event(_) => {}
        }
    }

    // --- the store: one register and one map that a majority keeps ---

    fn reaches_majority(&self, node: usize) -> bool {
        let members = &self.views.last().expect("there is one").members;
        let reached = self.nodes.iter().filter(|other| {
            members.contains_key(&other.address)
                && other.alive
                && (other.net == self.nodes[node].net || !self.net.is_cut(self.nodes[node].net, other.net))
        });
        reached.count() * 2 > members.len()
    }

    fn input_of(&self, node: usize, state: StoredState) -> coordinator::Input {
        let wall_secs = (1000 + self.net.now().as_secs()).saturating_sub(self.clock_back);
        coordinator::Input::Read { state, wall_secs, seen_epoch: self.nodes[node].seen_epoch }
    }

    fn on_state_journal(&mut self, timer: Timer<A>) {
        let (delay, fate) = (self.random(5, 80), self.net.rng().random_range(0..100));
        let fate = match fate {
            0..5 if self.faulty => Fate::NotStored,
            5..8 if self.faulty => Fate::AnswerLost,
            _ => Fate::Taken,
        };
        let Some((journal, _)) = &mut self.journal else { return };
        let (node, incarnation, answer) = match timer {
            Timer::StoreRead { node, incarnation } => match journal.read(incarnation, &Self::fingerprint()) {
                Ok(state) => (node, incarnation, self.input_of(node, state)),
                Err(what) => return self.fail(what),
            },
            Timer::StoreWrite { node, incarnation, batch, events } => {
                let answer = match journal.append(incarnation, events, fate) {
                    Answer::Stored => coordinator::Input::Committed { batch },
                    Answer::NotStored => coordinator::Input::CommitFailed { batch, retryable: true },
                    Answer::Lost => coordinator::Input::CommitFailed { batch, retryable: false },
                };
                (node, incarnation, answer)
            }
            _ => return,
        };
        self.after(delay, Timer::Coordinate { node, incarnation, input: answer });
    }

    fn on_store(&mut self, node: usize, timer: Timer<A>) {
        if self.journal.is_some() {
            return self.on_state_journal(timer);
        }
        if !self.nodes[node].alive {
            return;
        }
        if !self.reaches_majority(node) || self.nodes[node].resumes.is_some() {
            let delay = self.random(50, 200);
            return self.after(delay, timer);
        }
        let delay = self.random(5, 80);
        match timer {
            Timer::StoreRead { node, incarnation } => {
                let input = self.input_of(node, self.store.clone());
                self.after(delay, Timer::Coordinate { node, incarnation, input });
            }
            Timer::StoreWrite { node, incarnation, batch, events } => {
                for event in events {
                    self.write(event);
                }
                self.after(delay, Timer::StoreFence { node, incarnation, batch });
            }
            Timer::StoreFence { node, incarnation, batch } => {
                let own = CoordinatorId { node: self.nodes[node].address.clone(), incarnation };
                let unfenced =
                    self.sabotage.unfenced || self.store.meta.as_ref().is_some_and(|meta| meta.coordinator == own);
                let input = if unfenced {
                    coordinator::Input::Committed { batch }
                } else {
                    coordinator::Input::CommitFailed { batch, retryable: false }
                };
                self.after(delay, Timer::Coordinate { node, incarnation, input });
            }
            _ => {}
        }
    }

    fn write(&mut self, event: StateEvent) {
        match event {
            StateEvent::EpochStarted(meta) => {
                let rank = |meta: &Meta| {
                    (meta.epoch, std::cmp::Reverse(meta.coordinator.node.clone()), meta.coordinator.incarnation)
                };
                if self.store.meta.as_ref().is_none_or(|known| rank(known) < rank(&meta)) {
                    self.store.meta = Some(meta);
                }
            }
            StateEvent::FingerprintRecorded(_)
            | StateEvent::Initialized
            | StateEvent::RegionRegistered(_)
            | StateEvent::RegionTerminated(_) => {}
            StateEvent::Home { shard, home } => {
                let known = self.store.homes.get(&shard);
                if known.is_none_or(|known| known.clock() <= home.clock()) {
                    self.store.homes.insert(shard, home);
                }
            }
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
            // A process that stands still does nothing; when it goes on, suspicion comes first.
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
            Timer::Fault => self.on_fault(),
            Timer::Application(timer) => A::on_timer(self, timer),
        }
    }
}
