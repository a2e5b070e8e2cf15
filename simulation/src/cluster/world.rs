//! Whole processes on virtual time, with the real machines of membership, resolver, singleton manager and associations.
//!
//! Events come from one queue keyed by time and sequence. Each process has its own clock, which is a little fast or
//! slow, may jump, and, as far as the process can tell, stops while the process is paused. The world plays the driver,
//! the kernels of the hosts (dials of proofs, refused connections, closed streams) and the instance of the singleton.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use greylag_cluster::{
    Clause, ClusterCore, ClusterEvent, ClusterSettings, Command, Effect, Input, ManagerEffect, ManagerInput,
    MemberStatus, Members, Message, Omissions, ProofOfDeath, RemovalMargin, SbrSettings, ShutdownReason,
    SingletonManager, SingletonSettings,
};
use greylag_core::{NodeAddress, Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::{Destination, Holder, Lane, association};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::checks::{Checks, Seen};
use super::leases::{Lease, LeaseNews, Leases, Request};
use super::plan::{AddressIndex, Fault, LONG_PAUSE, Link, Plan};
use super::streams::{Body, DIAL_TIMEOUT, Peer, QueuedMessage, Stream, StreamId, Way};
use crate::Violation;

/// Microseconds of real time since the start.
pub(super) type Micros = u64;
pub(super) type ProcessId = usize;
/// Index of a host: first those of the places, then those that names moved to.
pub(super) type HostIndex = usize;

pub(super) fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

const SECOND: Micros = 1_000_000;
/// Interval of a process's user traffic.
const PROBE_INTERVAL: Micros = 3 * SECOND;

/// An event of the queue.
#[derive(Debug)]
pub(super) enum Happening {
    Arrival { stream: StreamId, way: Way },
    Wake { process: ProcessId },
    HungUp { stream: StreamId },
    Broken { stream: StreamId },
    Suspicion { stream: StreamId, since: Micros },
    DialTimeout { stream: StreamId },
    Refused { process: ProcessId, place: AddressIndex, lane: Lane, seq: u64 },
    Local { process: ProcessId, local: Local },
    AtStore { process: ProcessId, lease: Lease, request: Request },
    Fault(usize),
    Resume { process: ProcessId },
    Probe { process: ProcessId },
}

/// News for a process from its own host or driver.
#[derive(Debug, Clone)]
pub(super) enum Local {
    Core(Input),
    InstanceEnded,
    ExitingTasksDone,
    Lease(Lease, LeaseNews),
}

struct Event {
    at: Micros,
    seq: u64,
    what: Happening,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    /// Reversed, since the heap yields its greatest element and the earliest event must come first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// The monotonic clock of one process.
#[derive(Debug, Clone, Copy)]
struct Clock {
    since: Micros,
    shows: Micros,
    ppm: i64,
}

impl Clock {
    fn read(&self, now: Micros) -> Micros {
        let passed = now.saturating_sub(self.since);
        self.shows + passed * (1_000_000 + self.ppm) as u64 / 1_000_000
    }

    /// The real time at which the clock shows `local`.
    fn when(&self, local: Micros) -> Micros {
        let missing = local.saturating_sub(self.shows);
        let rate = (1_000_000 + self.ppm) as u64;
        self.since + (missing * 1_000_000).div_ceil(rate)
    }
}

/// One process.
pub(super) struct Process {
    pub(super) place: AddressIndex,
    /// Its host: that of its place, unless the name has moved.
    pub(super) spot: HostIndex,
    /// The host's name for itself, if it tells one.
    pub(super) host_id: Option<String>,
    /// The holders of each place's address, as its transport was told.
    pub(super) holders: Vec<Vec<Holder>>,
    pub(super) address: UniqueAddress,
    pub(super) core: ClusterCore,
    manager: SingletonManager,
    /// Whether the singleton's instance exists here.
    pub(super) instance: bool,
    /// Why the membership ended. The process may still wait for its instance.
    pub(super) ended: Option<ShutdownReason>,
    /// Whether the process has ended.
    pub(super) gone: bool,
    /// Whether its host's kernel still answers.
    pub(super) host_stands: bool,
    /// Whether the process was ended from outside.
    pub(super) killed: bool,
    /// Begin and end of its present pause.
    pub(super) paused: Option<(Micros, Micros)>,
    /// Whether the process was paused for longer than G1 covers.
    pub(super) stood_still: bool,
    pub(super) peers: Vec<Option<Box<Peer>>>,
    pub(super) joined: bool,
    deaf_to: Vec<bool>,
    clock: Clock,
    wake_at: Micros,
    pub(super) seen: Seen,
}

/// A run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) places: usize,
    /// Count of hosts. `beside` has, for each host that a name moved to, the place whose connectivity it shares.
    pub(super) spots: usize,
    beside: Vec<AddressIndex>,
    settings: ClusterSettings,
    pub(super) rng: ChaCha8Rng,
    pub(super) now: Micros,
    seq: u64,
    queue: BinaryHeap<Event>,
    pub(super) processes: Vec<Process>,
    /// The newest process at each place.
    pub(super) at: Vec<Option<ProcessId>>,
    pub(super) streams: Vec<Stream>,
    pub(super) link: Link,
    /// Since when the way from one host to another is cut.
    pub(super) cut_since: Vec<Option<Micros>>,
    pub(super) busy_until: Vec<Micros>,
    pub(super) numbers: u64,
    pub(super) steps: u64,
    pub(super) faults: u64,
    /// When the cluster had formed, and the plan began.
    begun: Micros,
    pub(super) checks: Checks,
    pub(super) leases: Leases,
    /// The story of the run, if it is kept.
    trace: Option<Vec<String>>,
    base: Instant,
}

impl World {
    pub(super) fn new(plan: Plan, without: Option<Clause>) -> Self {
        let places = plan.places;
        let spots = plan.hosts();
        let resolver = SbrSettings { strategy: plan.strategy.clone(), ..SbrSettings::default() };
        let proof_of_death = if plan.provable { ProofOfDeath::On } else { ProofOfDeath::Local };
        let settings = ClusterSettings {
            proof_of_death,
            down_removal_margin: plan.margin.map_or(RemovalMargin::Derive, RemovalMargin::Fixed),
            omissions: Omissions::of(without),
            ..ClusterSettings::default().with_roles(["worker"])
        };
        let settings = if plan.resolver { settings.with_resolver(resolver) } else { settings };
        Self {
            places,
            spots,
            beside: Vec::new(),
            settings,
            rng: ChaCha8Rng::seed_from_u64(plan.seed),
            now: 0,
            seq: 0,
            queue: BinaryHeap::new(),
            processes: Vec::new(),
            at: vec![None; places],
            streams: Vec::new(),
            link: Link::GOOD,
            cut_since: vec![None; spots * spots],
            busy_until: vec![0; spots * spots],
            numbers: 0,
            steps: 0,
            faults: 0,
            begun: 0,
            checks: Checks::new(&plan, without != Some(Clause::MovedName)),
            leases: Leases::default(),
            trace: None,
            base: Instant::now(),
            plan,
        }
    }

    /// The same, keeping the story.
    pub(super) fn traced(mut self) -> Self {
        self.trace = Some(Vec::new());
        self
    }

    pub(super) fn story(&self) -> String {
        self.trace.iter().flatten().map(|line| format!("  {line}\n")).collect()
    }

    fn tell(&mut self, process: ProcessId, what: impl FnOnce() -> String) {
        let seconds = self.now.saturating_sub(self.begun) as f64 / 1e6;
        let place = char::from(b'a' + u8::try_from(self.processes[process].place).unwrap_or(0));
        let formed = self.begun > 0;
        if let Some(trace) = self.trace.as_mut().filter(|_| formed) {
            trace.push(format!("{seconds:>9.3} s  {place}  {}", what()));
        }
    }

    pub(super) fn address(place: AddressIndex) -> NodeAddress {
        let host = ["a", "b", "c", "d", "e", "f", "g", "h"][place];
        NodeAddress::new(host, 1).expect("a message is a host name")
    }

    pub(super) fn place_of(address: &NodeAddress) -> AddressIndex {
        usize::from(address.host().as_bytes()[0] - b'a')
    }

    pub(super) fn push(&mut self, at: Micros, what: Happening) {
        self.seq += 1;
        self.queue.push(Event { at: at.max(self.now), seq: self.seq, what });
    }

    // --- the run --------------------------------------------------------------------------------

    /// Forms the cluster, plays the plan, ends all faults and waits for rest.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        self.form()?;
        self.begun = self.now;
        self.link = self.plan.link;
        for (index, timed) in self.plan.faults.iter().enumerate() {
            let at = self.now + micros(timed.at);
            self.seq += 1;
            self.queue.push(Event { at, seq: self.seq, what: Happening::Fault(index) });
        }
        self.run_until(self.begun + micros(self.plan.quiet_at))?;
        self.end_faults();
        self.come_to_rest()
    }

    /// Forms the cluster of all places; place 0 is the first seed.
    fn form(&mut self) -> Result<(), Violation> {
        for place in 0..self.places {
            self.start(place, place, Some(place));
            if place == 0 {
                self.run_until(SECOND / 10)?;
            }
        }
        let time_limit = self.now + 60 * SECOND;
        while !self.is_at_rest() {
            if self.now > time_limit {
                return self.broken("a cluster forms (cluster M24, G2)", "it did not within 60 s".to_owned());
            }
            self.run_until(self.now + SECOND / 2)?;
        }
        Ok(())
    }

    fn end_faults(&mut self) {
        self.mend_all();
        for process in &mut self.processes {
            process.deaf_to.iter_mut().for_each(|deaf| *deaf = false);
        }
        self.link = Link::GOOD;
    }

    /// Runs after the faults until all living processes form one cluster, or no process is left.
    fn come_to_rest(&mut self) -> Result<(), Violation> {
        // Longer with leases: that of a process that is gone must expire.
        let time_limit = if self.plan.leases.singleton { 300 } else { 150 };
        let time_limit = self.now + time_limit * SECOND + micros(self.plan.margin.unwrap_or_default());
        // Late events (a silence not noticed yet, margins, notices) must not end the rest again, so it must last 8 s.
        let mut calm_since = None;
        loop {
            self.run_until(self.now + 2 * SECOND)?;
            let now = self.now;
            calm_since = self.is_at_rest().then(|| calm_since.unwrap_or(now));
            if calm_since.is_some_and(|since| now - since >= 8 * SECOND) {
                return Ok(());
            }
            if now > time_limit && self.checks.may_stay_apart() {
                // Two sides have downed each other where G1 promises nothing. They stay apart, since neither trusts a
                // process that is no member of its own (cluster S19).
                return Ok(());
            }
            if now > time_limit {
                let what = "all who live agree, and host one singleton, after healing (cluster G2, S1)";
                return self.broken(what, "minutes after the last fault they did not".to_owned());
            }
        }
    }

    pub(super) fn run_until(&mut self, end: Micros) -> Result<(), Violation> {
        while let Some(event) = self.queue.peek() {
            if event.at > end {
                break;
            }
            let event = self.queue.pop().expect("peeked above");
            self.now = event.at;
            self.happen(event.what);
            if let Some(violation) = self.checks.violation.take() {
                return Err(self.explain(violation));
            }
        }
        self.now = end;
        Ok(())
    }

    pub(super) fn broken<T>(&self, promise: &'static str, what: String) -> Result<T, Violation> {
        Err(self.explain(Violation { promise, what }))
    }

    fn explain(&self, violation: Violation) -> Violation {
        let seconds = (self.now.saturating_sub(self.begun)) as f64 / 1e6;
        let Violation { promise, what } = violation;
        Violation { promise, what: format!("at {seconds:.3} s {what}\n{}", self.describe()) }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrival { stream, way } => self.on_arrival(stream, way),
            Happening::Wake { process } => self.on_wake(process),
            Happening::HungUp { stream } => self.on_closed_by_peer(stream),
            Happening::Broken { stream } => self.on_broken(stream),
            Happening::Suspicion { stream, since } => self.on_suspicion(stream, since),
            Happening::DialTimeout { stream } => self.on_dial_timeout(stream),
            Happening::Refused { process, place, lane, seq } => match self.stands_still(process) {
                Some(until) => self.push(until, Happening::Refused { process, place, lane, seq }),
                None if self.processes[process].gone => {}
                None => self.associate(process, place, association::Input::Failed { lane, seq }),
            },
            Happening::Local { process, local } => match self.stands_still(process) {
                Some(until) => self.push(until, Happening::Local { process, local }),
                None => self.on_local(process, local),
            },
            Happening::AtStore { process, lease, request } => self.on_request(process, lease, request),
            Happening::Fault(index) => {
                self.faults += 1;
                let fault = self.plan.faults[index].fault.clone();
                self.tell(0, || format!("FAULT {fault}"));
                self.inflict(&fault);
            }
            Happening::Resume { process } => self.on_resume(process),
            Happening::Probe { process } => self.on_probe(process),
        }
    }

    // --- faults ---------------------------------------------------------------------------------

    fn inflict(&mut self, fault: &Fault) {
        match fault {
            Fault::Kill(place) => self.end_at(*place, true),
            Fault::Crash(place) => self.end_at(*place, false),
            Fault::Restart(place) => {
                let spot = self.at[*place].map_or(*place, |process| self.processes[process].spot);
                self.end_at(*place, true);
                self.start(*place, spot, Some(spot));
            }
            Fault::Move { place, beside, told } => self.move_name(*place, *beside, *told),
            Fault::EndOld(place) => {
                for process in self.older_at(*place) {
                    self.processes[process].killed = true;
                    self.processes[process].host_stands = false;
                    self.vanish(process);
                }
            }
            Fault::DownOld(place) => self.down_old(*place),
            Fault::Leave { place, by } => {
                if let (Some(target), Some(by)) = (self.living_at(*place), self.living_at(*by)) {
                    let target = self.processes[target].address.clone();
                    self.when_awake(by, Input::Command(Command::Leave(target)));
                }
            }
            Fault::Cut(side) => {
                let place = |spot: HostIndex| {
                    if spot < self.places { Some(spot) } else { self.beside.get(spot - self.places).copied() }
                };
                let (here, there): (Vec<HostIndex>, Vec<HostIndex>) =
                    (0..self.spots).partition(|spot| place(*spot).is_some_and(|place| side.contains(&place)));
                for &a in &here {
                    for &b in &there {
                        self.cut(a, b);
                        self.cut(b, a);
                    }
                }
                self.suspect_cut();
            }
            Fault::OneWay { from, to } => {
                self.cut(*from, *to);
                self.suspect_cut();
            }
            Fault::Deaf { place, to } => {
                if let Some(process) = self.living_at(*place) {
                    self.processes[process].deaf_to[*to] = true;
                }
            }
            Fault::Hears(place) => {
                if let Some(process) = self.living_at(*place) {
                    self.processes[process].deaf_to.iter_mut().for_each(|deaf| *deaf = false);
                }
            }
            Fault::Heal => self.mend_all(),
            Fault::Pause { place, time } => {
                if let Some(process) = self.living_at(*place) {
                    let until = self.now + micros(*time);
                    self.processes[process].stood_still |= *time > LONG_PAUSE;
                    if self.processes[process].paused.is_none_or(|(_, old)| old < until) {
                        let since = self.processes[process].paused.map_or(self.now, |(since, _)| since);
                        self.processes[process].paused = Some((since, until));
                        self.push(until, Happening::Resume { process });
                        self.suspect(|_, from, to| from == process || to == process);
                    }
                }
            }
            Fault::Jump { place, time } => {
                if let Some(process) = self.living_at(*place) {
                    self.processes[process].clock.shows += micros(*time);
                    self.processes[process].wake_at = Micros::MAX;
                    self.reschedule(process);
                }
            }
        }
    }

    /// Makes the name lead to a new process on a host with the connectivity of `beside`.
    fn move_name(&mut self, place: AddressIndex, beside: AddressIndex, told: bool) {
        let spot = self.places + self.beside.len();
        self.beside.push(beside);
        for other in 0..self.spots {
            let (out, back) =
                (self.cut_since[beside * self.spots + other], self.cut_since[other * self.spots + beside]);
            self.cut_since[spot * self.spots + other] = out;
            self.cut_since[other * self.spots + spot] = back;
        }
        self.start(place, spot, told.then_some(spot));
    }

    /// Processes that had the name before the newest one, and have not ended.
    fn older_at(&self, place: AddressIndex) -> Vec<ProcessId> {
        let older = |id: &ProcessId| self.processes[*id].place == place && self.at[place] != Some(*id);
        (0..self.processes.len()).filter(older).filter(|id| !self.processes[*id].gone).collect()
    }

    /// Plays an operator who knows that these processes are gone: downs them at a node that knows them.
    fn down_old(&mut self, place: AddressIndex) {
        let older = |process: &&Process| process.place == place && process.gone;
        let older: Vec<UniqueAddress> = self.processes.iter().filter(older).map(|p| p.address.clone()).collect();
        for address in older {
            self.checks.sanction([address.clone()]);
            let knows = |process: &Process| {
                !process.gone && process.ended.is_none() && process.core.view().member(&address).is_some()
            };
            if let Some(by) = self.processes.iter().position(knows) {
                self.when_awake(by, Input::Command(Command::Down(address)));
            }
        }
    }

    pub(super) fn is_cut(&self, from: HostIndex, to: HostIndex) -> bool {
        self.cut_since[from * self.spots + to].is_some()
    }

    fn cut(&mut self, from: HostIndex, to: HostIndex) {
        let now = self.now;
        self.cut_since[from * self.spots + to].get_or_insert(now);
    }

    fn suspect_cut(&mut self) {
        let now = self.now;
        self.suspect(|world, from, to| {
            let (a, b) = (world.processes[from].spot, world.processes[to].spot);
            let fresh = |x: HostIndex, y: HostIndex| world.cut_since[x * world.spots + y] == Some(now);
            fresh(a, b) || fresh(b, a)
        });
    }

    fn mend_all(&mut self) {
        self.cut_since.iter_mut().for_each(|cut| *cut = None);
        self.resume_streams();
    }

    fn living_at(&self, place: AddressIndex) -> Option<ProcessId> {
        self.at[place].filter(|process| !self.processes[*process].gone)
    }

    /// End of the process's present pause.
    pub(super) fn stands_still(&self, process: ProcessId) -> Option<Micros> {
        self.processes[process].paused.map(|(_, until)| until).filter(|until| *until > self.now)
    }

    fn end_at(&mut self, place: AddressIndex, kernel_tells: bool) {
        let Some(process) = self.living_at(place) else { return };
        let state = &mut self.processes[process];
        state.killed = true;
        state.host_stands = kernel_tells;
        self.vanish(process);
    }

    /// Ends the process.
    fn vanish(&mut self, process: ProcessId) {
        let state = &mut self.processes[process];
        (state.gone, state.paused) = (true, None);
        if std::mem::take(&mut state.instance) {
            self.checks.instances -= 1;
        }
        if self.processes[process].host_stands {
            self.close_all_of(process);
        } else {
            self.suspect(|_, from, to| from == process || to == process);
        }
    }

    // --- processes ------------------------------------------------------------------------------

    /// Starts a process on a host, which may name itself, and lets it join by all places.
    pub(super) fn start(&mut self, place: AddressIndex, spot: HostIndex, told: Option<HostIndex>) {
        // Uids are random, so their order says nothing about the order of starts.
        let uid = Uid::new((self.rng.random::<u64>() >> 8) | 1).expect("it is odd");
        let address = UniqueAddress::new(Self::address(place), uid);
        let clock = Clock { since: self.now, shows: self.now, ppm: self.plan.clock_ppm[place] };
        let now = self.base + Duration::from_micros(self.now);
        let mut core = ClusterCore::new(address.clone(), self.settings.clone(), self.plan.seed ^ uid.get(), now);
        let host_id = told.map(|spot| format!("host-{spot}"));
        core = core.on_host(host_id.as_deref());
        core.handle(now, Input::WallClock(1_000_000), &mut Vec::new());
        let singleton = SingletonSettings {
            use_lease: self.plan.leases.singleton,
            ..SingletonSettings::default().with_role("worker")
        };
        let mut manager = SingletonManager::new(address.clone(), &singleton, &self.settings);
        manager.handle(now, ManagerInput::View(core.view().clone()), &mut Vec::new());
        let process = self.processes.len();
        self.processes.push(Process {
            place,
            spot,
            host_id,
            holders: vec![Vec::new(); self.places],
            address,
            core,
            manager,
            instance: false,
            ended: None,
            gone: false,
            host_stands: true,
            killed: false,
            paused: None,
            stood_still: false,
            peers: (0..self.places).map(|_| None).collect(),
            joined: false,
            deaf_to: vec![false; self.places],
            clock,
            wake_at: Micros::MAX,
            seen: Seen::default(),
        });
        self.at[place] = Some(process);
        let first = self.processes.len() == 1;
        let seeds = if first { vec![Self::address(0)] } else { (0..self.places).map(Self::address).collect() };
        self.core_input(process, Input::Command(Command::JoinSeeds(seeds)));
        let at = self.now + self.rng.random_range(0..PROBE_INTERVAL);
        self.push(at, Happening::Probe { process });
    }

    pub(super) fn clock(&self, process: ProcessId) -> Instant {
        self.base + Duration::from_micros(self.processes[process].clock.read(self.now))
    }

    /// Gives a command to a process; a paused process gets it when it wakes.
    fn when_awake(&mut self, process: ProcessId, input: Input) {
        let at = self.now;
        self.push(at, Happening::Local { process, local: Local::Core(input) });
    }

    pub(super) fn later(&mut self, process: ProcessId, after: Duration, local: Local) {
        let at = self.now + micros(after);
        self.push(at, Happening::Local { process, local });
    }

    fn on_wake(&mut self, process: ProcessId) {
        if self.processes[process].wake_at != self.now {
            return;
        }
        if let Some(until) = self.stands_still(process) {
            self.processes[process].wake_at = until;
            return self.push(until, Happening::Wake { process });
        }
        self.processes[process].wake_at = Micros::MAX;
        self.tick(process);
    }

    fn tick(&mut self, process: ProcessId) {
        if self.processes[process].gone {
            return;
        }
        let now = self.clock(process);
        let due = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if due(self.processes[process].core.next_deadline()) {
            self.core_input(process, Input::Tick);
        }
        if due(self.processes[process].manager.next_deadline()) {
            self.manage(process, ManagerInput::Tick);
        }
        for place in 0..self.places {
            if self.processes[process].peers[place].as_ref().is_some_and(|peer| due(peer.deadline)) {
                self.associate(process, place, association::Input::Tick);
            }
        }
        self.reschedule(process);
    }

    fn on_resume(&mut self, process: ProcessId) {
        let state = &self.processes[process];
        if state.gone || state.paused.is_none_or(|(_, until)| until != self.now) {
            return;
        }
        // Deadlines come first, as in the driver; then what has arrived.
        self.processes[process].paused = None;
        self.processes[process].wake_at = Micros::MAX;
        if self.processes[process].instance {
            self.checks.on_instance(&self.processes, process);
        }
        self.tick(process);
    }

    pub(super) fn reschedule(&mut self, process: ProcessId) {
        let state = &self.processes[process];
        if state.gone {
            return;
        }
        let peers = state.peers.iter().flatten().filter_map(|peer| peer.deadline).min();
        let deadlines = [state.core.next_deadline(), state.manager.next_deadline(), peers];
        let Some(next) = deadlines.into_iter().flatten().min() else { return };
        // Rounded up, since a wake-up must not come before the deadline.
        let local = micros(next.saturating_duration_since(self.base)) + 1;
        let at = state.clock.when(local).max(self.now);
        // An early wake-up finds nothing due and is scheduled again.
        if at < state.wake_at {
            self.processes[process].wake_at = at;
            self.push(at, Happening::Wake { process });
        }
    }

    fn on_local(&mut self, process: ProcessId, local: Local) {
        if self.processes[process].gone {
            return;
        }
        match local {
            Local::Core(input) => self.core_input(process, input),
            Local::InstanceEnded => {
                if std::mem::take(&mut self.processes[process].instance) {
                    self.checks.instances -= 1;
                }
                self.manage(process, ManagerInput::InstanceEnded);
                if self.processes[process].ended.is_some() {
                    self.vanish(process);
                }
            }
            Local::ExitingTasksDone => {
                self.core_input(process, Input::Command(Command::ExitingTasksDone { clean: true }));
            }
            Local::Lease(lease, news) => self.on_lease_news(process, lease, news),
        }
    }

    fn on_probe(&mut self, process: ProcessId) {
        if self.processes[process].gone {
            return;
        }
        let at = self.now + PROBE_INTERVAL;
        self.push(at, Happening::Probe { process });
        let members = &self.processes[process].core.view().members;
        if self.stands_still(process).is_none() && !members.is_empty() {
            let index = self.rng.random_range(0..members.len());
            let to = self.processes[process].core.view().members[index].address.clone();
            self.send(process, &Destination::Incarnation(to), Body::Probe);
        }
    }

    // --- machines -------------------------------------------------------------------------------

    pub(super) fn deliver(&mut self, from: ProcessId, to: ProcessId, lane: Lane, message: QueuedMessage) {
        let QueuedMessage { number, target, body } = message;
        let own = self.processes[to].address.uid();
        self.checks.on_delivery(&mut self.processes[to].seen, from, lane, number, target, own);
        if target.is_some_and(|uid| uid != own) {
            return;
        }
        match body {
            Body::Core(Message::HeartbeatRsp { .. }) if self.processes[to].deaf_to[self.processes[from].place] => {}
            Body::Core(message) => {
                let from = self.processes[from].address.clone();
                let received_at = self.clock(to);
                self.core_input(to, Input::Message { from, message, received_at });
            }
            Body::Singleton(message) => self.manage(to, ManagerInput::Message(message)),
            Body::Probe => {}
        }
    }

    pub(super) fn core_input(&mut self, process: ProcessId, input: Input) {
        if self.processes[process].gone {
            return;
        }
        let now = self.clock(process);
        let mut effects = Vec::new();
        self.steps += 1;
        let ticks = matches!(input, Input::Tick);
        self.processes[process].core.handle(now, input, &mut effects);
        if ticks {
            assert_moved("cluster core", now, self.processes[process].core.next_deadline());
        }
        for effect in effects {
            self.execute(process, effect);
        }
        self.reschedule(process);
    }

    pub(super) fn manage(&mut self, process: ProcessId, input: ManagerInput) {
        let now = self.clock(process);
        let mut effects = Vec::new();
        self.steps += 1;
        let ticks = matches!(input, ManagerInput::Tick);
        self.processes[process].manager.handle(now, input, &mut effects);
        if ticks {
            assert_moved("singleton manager", now, self.processes[process].manager.next_deadline());
        }
        for effect in effects {
            match effect {
                ManagerEffect::Send(message) => {
                    let to = message.to.address().clone().into();
                    self.send(process, &to, Body::Singleton(message));
                }
                ManagerEffect::StartInstance { .. } => {
                    self.tell(process, || "the instance starts".to_owned());
                    self.processes[process].instance = true;
                    self.checks.instances += 1;
                    self.checks.on_instance(&self.processes, process);
                }
                ManagerEffect::StopInstance => {
                    self.tell(process, || "the instance is told to stop".to_owned());
                    self.later(process, self.plan.stop_delay, Local::InstanceEnded);
                }
                ManagerEffect::ExitingDone => {
                    self.later(process, Duration::from_millis(1), Local::ExitingTasksDone);
                }
                ManagerEffect::AcquireLease => self.acquire_lease(process, Lease::Singleton),
                ManagerEffect::ReleaseLease => self.release_lease(process, Lease::Singleton),
                _ => {}
            }
        }
        self.reschedule(process);
    }

    fn execute(&mut self, process: ProcessId, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.send(process, &to, Body::Core(message)),
            Effect::View(view) => {
                let state = &mut self.processes[process];
                self.checks.on_view(&mut state.seen, &state.address, &view, state.core.gossip());
                self.manage(process, ManagerInput::View(view));
            }
            Effect::Publish(event) => self.on_event(process, event),
            Effect::Quarantine { peer, harmless } => {
                let place = Self::place_of(peer.address());
                let reason = greylag_transport::QuarantineReason::RemovedFromMembership;
                let input = association::Input::Quarantine { uid: peer.uid(), reason, harmless };
                self.associate(process, place, input);
            }
            Effect::Dial(peer) => {
                let (after, input) = self.dial_for_proof(process, peer);
                self.later(process, after, Local::Core(input));
            }
            Effect::AskWho(address) => self.associate(process, Self::place_of(&address), association::Input::Ask),
            Effect::Holders(members) => self.tell_holders(process, &members),
            Effect::StartExitingTasks => self.manage(process, ManagerInput::ExitingPhase),
            Effect::Shutdown(reason) => {
                self.processes[process].ended = Some(reason);
                self.say_terminating(process);
                if !self.processes[process].instance {
                    self.vanish(process);
                }
            }
            Effect::AcquireLease => self.acquire_lease(process, Lease::Resolver),
            Effect::ReleaseLease => self.release_lease(process, Lease::Resolver),
            Effect::ClusterId(_) => self.say_hello_again(process),
            Effect::Joined => self.processes[process].joined = true,
            _ => {}
        }
    }

    /// Does the driver's part of T15: tells each association the holders of its address.
    fn tell_holders(&mut self, process: ProcessId, members: &Members) {
        let mut by_place: Vec<Vec<Holder>> = vec![Vec::new(); self.places];
        for holder in self.settings.holders(members) {
            by_place[Self::place_of(holder.member.address())].push(holder);
        }
        let own = self.processes[process].place;
        for (place, holders) in by_place.into_iter().enumerate().filter(|(place, _)| *place != own) {
            if self.processes[process].holders[place] != holders {
                self.processes[process].holders[place].clone_from(&holders);
                self.associate(process, place, association::Input::Holders { holders });
            }
        }
    }

    fn on_event(&mut self, process: ProcessId, event: ClusterEvent) {
        self.tell_event(process, &event);
        match event {
            ClusterEvent::SelfDowned | ClusterEvent::ClusterShuttingDown => {
                self.manage(process, ManagerInput::SelfDowned);
            }
            ClusterEvent::LocalPause(_) => self.manage(process, ManagerInput::LocalPause),
            ClusterEvent::ProvenDead { member, .. } => self.checks.on_proof(&self.processes, &member),
            ClusterEvent::DowningDecision(decision) => {
                let state = &self.processes[process];
                self.checks.on_decision(&state.address, state.core.view(), &decision);
            }
            _ => {}
        }
    }

    fn tell_event(&mut self, process: ProcessId, event: &ClusterEvent) {
        if self.trace.is_none() {
            return;
        }
        let quiet = matches!(event, ClusterEvent::SeenChanged { .. });
        let accusations: Vec<String> = match event {
            ClusterEvent::ReachabilityChanged => {
                let table = &self.processes[process].core.gossip().reachability;
                table.accusations().map(|(o, s, _)| format!("{}>{}", o.address().host(), s.address().host())).collect()
            }
            _ => Vec::new(),
        };
        if !quiet {
            let text: String = format!("{event:?}").chars().take(400).collect();
            self.tell(process, || format!("{text} {}", accusations.join(" ")));
        }
    }

    /// The answer of the host's kernel to the dial of a proof.
    fn dial_for_proof(&self, from: ProcessId, peer: UniqueAddress) -> (Duration, Input) {
        // A proof dials where the last stream ended: the process's old host, even if the name leads elsewhere now.
        let known = |process: &Process| process.address == peer && process.host_stands;
        let there = self.processes.iter().position(known).filter(|id| {
            let latest = self.at[self.processes[*id].place];
            latest.is_none_or(|latest| latest == *id || self.processes[latest].spot != self.processes[*id].spot)
        });
        let own = self.processes[from].spot;
        let blocked = there.is_some_and(|id| {
            let spot = self.processes[id].spot;
            self.is_cut(own, spot) || self.is_cut(spot, own)
        });
        let quick = Duration::from_millis(1);
        match there {
            Some(_) if blocked => (DIAL_TIMEOUT, Input::DialFailed(peer)),
            // The driver takes a refusal as proof only where `proof_of_death` covers it.
            Some(id) if self.processes[id].gone && self.plan.provable => (quick, Input::DialRefused(peer)),
            Some(id) if !self.processes[id].gone => (quick, Input::DialAnswered(peer)),
            _ => (quick, Input::DialFailed(peer)),
        }
    }

    // --- looking at it --------------------------------------------------------------------------

    /// Processes that run and whose membership has not ended.
    pub(super) fn living(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| !process.gone && process.ended.is_none())
    }

    /// Whether no living process is or was a member: the cluster is lost, or all members have left.
    pub(super) fn is_lost(&self) -> bool {
        !self.living().any(|process| process.joined)
    }

    /// Whether all living processes are members of one cluster, agree on everything, and host one singleton.
    fn is_at_rest(&self) -> bool {
        let unfinished = |process: &Process| !process.gone && (process.ended.is_some() || process.paused.is_some());
        if self.processes.iter().any(unfinished) {
            return false;
        }
        if self.is_lost() {
            return true;
        }
        let living: Vec<&Process> = self.living().collect();
        let mut expected: Vec<&UniqueAddress> = living.iter().map(|process| &process.address).collect();
        expected.sort();
        let first = living[0].core.gossip();
        let agreed = living.iter().all(|process| {
            let view = process.core.view();
            view.members.iter().map(|member| &member.address).eq(expected.iter().copied())
                && view.members.iter().all(|member| member.status == MemberStatus::Up)
                && view.converged
                && view.unreachable.is_empty()
                && process.core.gossip().same_content(first)
        });
        let hosts = living.iter().filter(|process| process.instance).count();
        agreed && (hosts == 1 || self.checks.overlapped)
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for process in &self.processes {
            let view = process.core.view();
            let members: Vec<String> = view
                .members
                .iter()
                .map(|m| format!("{}:{:?}{}", m.address, m.status, if m.dead { "!" } else { "" }))
                .collect();
            text.push_str(&format!(
                "  {} ended={:?} gone={} killed={} paused={} manager={:?} instance={} leader={:?} unreachable={:?} \
                 {members:?}\n",
                process.address,
                process.ended,
                process.gone,
                process.killed,
                process.paused.is_some(),
                process.manager.state(),
                process.instance,
                view.leader,
                view.unreachable
            ));
        }
        text
    }
}
