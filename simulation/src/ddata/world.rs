//! Processes with a replicator each, a network between them, and time.
//!
//! Membership is told by the world, to each process in its own time; see [`super::membership`].
//! Whatever a process is told or told to do, what it shows afterwards is checked; see
//! [`super::checks`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, LwwMap, LwwRegister, ReplicaId, ReplicatedData};
use greylag_ddata::{
    Effect, Input, Key, Lifecycle, Message, ReplicaStatus, ReplicatorCore, ReplicatorSettings, Reply, StopReason, Sum,
    TypeTable,
};
use greylag_testkit::deadlines::Steps;
use greylag_testkit::network::{Happening, Link, Network, NodeId};
use rand::RngExt;

use super::checks::Pending;
use super::disks::Disk;
use super::ledger::{Book, Ledger, Mask, Tally};
use super::membership::{News, View};
use crate::Violation;

/// A history has a few thousand inputs. One with so many has machines that answer each other for ever.
const MOST_STEPS: u64 = 100_000;

/// One process incarnation; its replicator may have several lives.
pub(super) struct Process {
    pub(super) node: NodeId,
    /// Where it runs: processes of one place have one address.
    pub(super) place: usize,
    pub(super) address: UniqueAddress,
    pub(super) core: ReplicatorCore,
    steps: Steps,
    numbers: DotSource,
    pub(super) life: u32,
    pub(super) alive: bool,
    /// How far its clock is ahead, in milliseconds.
    skew: i64,
    pub(super) view: View,
    /// What each entry has seen, as it shows; and what former lives of the replicator had.
    pub(super) seen: Vec<Mask>,
    pub(super) held: Vec<Mask>,
    pub(super) deleted: BTreeSet<usize>,
    /// What its subscriber was shown.
    pub(super) told: BTreeMap<usize, Mask>,
    /// The sum over its data when they were checked.
    pub(super) checked: Option<Sum>,
}

impl Process {
    /// From now on its wall clock is so many milliseconds ahead.
    pub(super) fn set_skew(&mut self, skew: i64) {
        self.skew = skew;
    }

    pub(super) fn replica(&self) -> ReplicaId {
        ReplicaId(self.address.uid().get())
    }
}

/// Something that reaches a process in its own time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    Heard(News),
    Flushed(u64),
    Loaded,
    /// Its replicator has ended for good.
    Ended,
}

/// How a history's replicators are set.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    pub(super) settings: ReplicatorSettings,
    /// How long a process may take to hear what membership says.
    pub(super) lag: Duration,
    /// How far clocks may be apart, in milliseconds.
    pub(super) skew: i64,
    /// How many ledgers, and how many bare counters.
    pub(super) ledgers: usize,
    pub(super) tallies: usize,
    /// A place whose replicator has deltas off.
    pub(super) without_deltas: Option<usize>,
    /// Now and then a disk says that it failed.
    pub(super) disks_fail: bool,
    /// Processes whose stores are refused go on and say so; else they end.
    pub(super) refused_stay: bool,
}

/// The processes of one history, and what is known of them from outside.
pub(super) struct World {
    pub(super) net: Network<(usize, Message)>,
    base: Instant,
    pub(super) arrangement: Arrangement,
    pub(super) processes: Vec<Process>,
    /// The members, each with its status; ascending.
    pub(super) members: BTreeMap<usize, ReplicaStatus>,
    pub(super) removed: BTreeSet<UniqueAddress>,
    /// News of members and of disks that is on its way to processes: by time and order, the process and what it hears.
    pub(super) news: BTreeMap<(Duration, u64), (usize, Due)>,
    /// By place.
    pub(super) disks: BTreeMap<usize, Disk>,
    pub(super) books: Vec<Book>,
    pub(super) tallies: Vec<Tally>,
    pub(super) ledger_keys: Vec<Key<Ledger>>,
    pub(super) tally_keys: Vec<Key<GCounter>>,
    pub(super) pending: BTreeMap<(usize, u64), Pending>,
    /// Requests whose answers are kept for the history that made them.
    pub(super) watched: BTreeMap<(usize, u64), Option<Reply>>,
    pub(super) next: u64,
    /// Whether deltas of one origin are joined in order.
    pub(super) is_ordered: bool,
    pub(super) broken: Option<Violation>,
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    pub(super) faults: u64,
    pub(super) steps: u64,
    /// The process that is, or was lately, out of touch with all others: since when, and until when that counts.
    pub(super) alone: Option<(usize, Duration, Duration)>,
    /// What happened, in words, for the people who look for the cause of a failure.
    pub(super) story: Option<Vec<String>>,
}

impl World {
    /// As many members as named, all up and known to each other.
    pub(super) fn new(seed: u64, arrangement: Arrangement, members: usize) -> Self {
        let (ledgers, tallies) = (arrangement.ledgers, arrangement.tallies);
        let mut world = Self {
            net: Network::new(seed, Link::reliable(Duration::from_millis(2))),
            base: Instant::now(),
            arrangement,
            processes: Vec::new(),
            members: BTreeMap::new(),
            removed: BTreeSet::new(),
            news: BTreeMap::new(),
            disks: BTreeMap::new(),
            books: (0..ledgers).map(|_| Book::default()).collect(),
            tallies: (0..tallies).map(|_| Tally::default()).collect(),
            ledger_keys: (0..ledgers).map(|index| Key::new(format!("l{index}")).expect("a short id")).collect(),
            tally_keys: (0..tallies).map(|index| Key::new(format!("c{index}")).expect("a short id")).collect(),
            pending: BTreeMap::new(),
            watched: BTreeMap::new(),
            next: 0,
            is_ordered: true,
            broken: None,
            acknowledged: 0,
            failed: 0,
            faults: 0,
            steps: 0,
            alone: None,
            story: None,
        };
        let all: Vec<usize> = (0..members).map(|place| world.start(place)).collect();
        world.members = all.iter().map(|index| (*index, ReplicaStatus::Up)).collect();
        for index in all {
            world.introduce(index);
        }
        world
    }

    pub(super) fn now(&self) -> Instant {
        self.base + self.net.now()
    }

    /// How many entries there are; ledgers come first, then bare counters.
    pub(super) fn entries(&self) -> usize {
        self.books.len() + self.tallies.len()
    }

    /// The wall clock of a process, in milliseconds.
    pub(super) fn wall_ms(&self, index: usize) -> i64 {
        let passed = i64::try_from(self.net.now().as_millis()).expect("histories are short");
        1_000_000 + passed + self.processes[index].skew
    }

    fn core(&self, place: usize, address: &UniqueAddress, numbers: &DotSource, life: u32) -> ReplicatorCore {
        let mut settings = self.arrangement.settings.clone();
        settings.delta_enabled &= self.arrangement.without_deltas != Some(place);
        let seed = address.uid().get() * 1_000 + u64::from(life);
        let types = TypeTable::new().with::<Ledger>().with::<LwwRegister<u8>>().with::<LwwMap<u8, u8>>();
        ReplicatorCore::new(settings, types, address.clone(), numbers.clone(), seed, self.now())
    }

    /// Starts a process that no other process knows yet.
    pub(super) fn start(&mut self, place: usize) -> usize {
        let index = self.processes.len();
        let address: UniqueAddress = format!("n{place}:1#{}", index + 1).parse().expect("an address");
        let numbers = DotSource::new();
        let core = self.core(place, &address, &numbers, 0);
        let most = self.arrangement.skew;
        let skew = if most > 0 { self.net.rng().random_range(0..=most) } else { 0 };
        let entries = self.entries();
        let node = self.net.add_node();
        self.processes.push(Process {
            node,
            place,
            address,
            core,
            steps: Steps::default(),
            numbers,
            life: 0,
            alive: true,
            skew,
            view: View::default(),
            seen: vec![0; entries],
            held: vec![0; entries],
            deleted: BTreeSet::new(),
            told: BTreeMap::new(),
            checked: None,
        });
        self.begin_life(index);
        index
    }

    /// A process looks at its clock.
    pub(super) fn tell_wall(&mut self, index: usize) {
        let wall = self.wall_ms(index);
        self.input(index, Input::Wall(wall));
    }

    /// What every replicator is told first.
    fn begin_life(&mut self, index: usize) {
        let wall = self.wall_ms(index);
        self.input(index, Input::Wall(wall));
        let tag = Ledger::TAG.to_string().into();
        self.input(index, Input::Subscribe { subscriber: 0, pattern: "l*".into(), tag });
    }

    /// The replicator of a process ends, with what it knows, and another one begins.
    pub(super) fn restart_in_place(&mut self, index: usize) {
        self.tell(|| format!("the replicator of {index} starts anew"));
        self.tear(index);
        let process = &self.processes[index];
        let core = self.core(process.place, &process.address, &process.numbers, process.life + 1);
        let process = &mut self.processes[index];
        process.core = core;
        process.life += 1;
        process.seen.fill(0);
        process.deleted.clear();
        process.told.clear();
        process.checked = None;
        self.pending.retain(|(own, _), _| *own != index);
        self.begin_life(index);
        self.say_members(index);
    }

    /// A process ends, and what it knows with it.
    pub(super) fn crash(&mut self, index: usize) {
        if !self.processes[index].alive {
            return;
        }
        self.tell(|| format!("{index} dies"));
        self.tear(index);
        self.net.crash(self.processes[index].node);
        self.processes[index].alive = false;
        self.pending.retain(|(own, _), _| *own != index);
    }

    pub(super) fn input(&mut self, index: usize, input: Input) {
        self.steps += 1;
        if self.steps == MOST_STEPS {
            self.breaks("machines come to rest (ddata G10, Z11)", format!("{MOST_STEPS} inputs, the last at {index}"));
        }
        let mut out = Vec::new();
        let now = self.now();
        let ticks = matches!(input, Input::Tick);
        self.processes[index].core.handle(now, input, &mut out);
        if ticks {
            let process = &mut self.processes[index];
            process.steps.assert_end("replicator", now, process.core.next_deadline());
        }
        self.perform(index, out);
    }

    /// Does what a machine asks for, and looks at what it shows.
    pub(super) fn perform(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, bulk, message } => {
                    // A process is its uid.
                    let target = usize::try_from(to.uid().get()).expect("uids are small") - 1;
                    let (from, to) = (self.processes[index].node, self.processes[target].node);
                    self.tell(|| format!("  {index} -> {target}: {}", shortly(&message)));
                    self.net.send(from, to, bulk.into(), (index, message));
                }
                Effect::Reply { id, reply } => self.on_reply(index, id, reply),
                Effect::Notify { key, notice, .. } => self.on_notice(index, &key, notice),
                Effect::Store { ticket, ops } => self.store(index, ticket, ops),
                Effect::LoadAnew => unreachable!("no store of a simulation loses its end"),
                Effect::Load => self.due(Duration::from_millis(3), index, Due::Loaded),
                // The process goes on to tell others that its store is too old, for as long as the history lets it.
                Effect::Lifecycle(Lifecycle::Stopped(StopReason::StoreTooOld { .. }))
                    if self.arrangement.refused_stay => {}
                // The store is too old, or the process is not wanted any more.
                Effect::Lifecycle(Lifecycle::Stopped(_)) => self.due(Duration::ZERO, index, Due::Ended),
                Effect::Lifecycle(_) | Effect::Event(_) => {}
            }
        }
        let process = &self.processes[index];
        if let Some(deadline) = process.core.next_deadline() {
            self.net.wake_at(process.node, deadline.saturating_duration_since(self.base));
        }
        self.check_process(index);
    }

    /// The next thing that happens, if that is by `end`. Returns whether there was one.
    pub(super) fn step(&mut self, end: Duration) -> bool {
        let first = self.news.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= end);
        let Some(happening) = self.net.step_until(first.unwrap_or(end)) else {
            let Some((_, (index, due))) = first.and_then(|_| self.news.pop_first()) else { return false };
            self.reach(index, due);
            return true;
        };
        let (node, input) = match happening {
            Happening::Delivered { to, message: (from, message), .. } => {
                (to, Input::Received { from: self.processes[from].address.clone(), message })
            }
            Happening::Woken { node } => (node, Input::Tick),
        };
        // Every process is one node, in order.
        self.input(node.0, input);
        true
    }

    fn reach(&mut self, index: usize, due: Due) {
        if !self.processes[index].alive {
            return;
        }
        match due {
            Due::Heard(news) => self.hear(index, news),
            Due::Flushed(ticket) => self.on_flushed(index, ticket),
            Due::Loaded => self.on_load(index),
            Due::Ended if self.members.contains_key(&index) => self.kill(index),
            Due::Ended => self.crash(index),
        }
    }

    /// Something will reach a process so much later.
    pub(super) fn due(&mut self, later: Duration, index: usize, due: Due) {
        self.next += 1;
        self.news.insert((self.net.now() + later, self.next), (index, due));
    }

    /// Time passes.
    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.net.now() + time;
        while self.broken.is_none() && self.step(end) {}
    }

    /// Time passes until something is so, or for that long. Returns whether it is so.
    pub(super) fn run_until(&mut self, limit: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let end = self.net.now() + limit;
        while self.broken.is_none() {
            if is_so(self) {
                return true;
            }
            if !self.step(end) {
                return false;
            }
        }
        false
    }

    /// Members that run.
    pub(super) fn living(&self) -> Vec<usize> {
        self.members.keys().copied().filter(|index| self.processes[*index].alive).collect()
    }

    /// One of several, by the seed.
    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.net.rng().random_range(0..from.len())])
    }

    pub(super) fn chance(&mut self, of: f64) -> bool {
        self.net.rng().random_bool(of)
    }

    /// Notes a broken promise; the first one counts.
    pub(super) fn breaks(&mut self, promise: &'static str, what: String) {
        let what = format!("{what}, at {:?}", self.net.now());
        self.tell(|| format!("{promise}: {what}"));
        self.broken.get_or_insert(Violation { promise, what });
    }

    /// Goes on with the story, if it is told.
    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        let at = self.net.now();
        if let Some(story) = &mut self.story {
            story.push(format!("{:>8.3} {}", at.as_secs_f64(), what()));
        }
    }
}

/// A message in a line: how its sender stands, or its beginning.
fn shortly(message: &Message) -> String {
    match message {
        Message::SyncOpen { round, part, root, pruning } => {
            format!("SyncOpen {round} of {part:?}, {} entries: {:?}", root.count, pruning.standing)
        }
        Message::SyncSame { round, pruning } => format!("SyncSame {round}: {:?}", pruning.standing),
        Message::SyncDiffers { round, pruning } => format!("SyncDiffers {round}: {:?}", pruning.standing),
        other => format!("{other:?}").chars().take(120).collect(),
    }
}
