//! Processes with a replicator each, a network between them, and time.
//!
//! The world plays membership, of which each process hears in its own time; see [`super::membership`]. After every
//! input to a process the values that it shows are checked; see [`super::checks`].

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
use super::ledger::{Ledger, Mask, OperationHistory, Tally};
use super::membership::{News, View};
use crate::Violation;

/// Limit of inputs. A history has a few thousand; more mean that machines answer each other without end.
const MOST_STEPS: u64 = 100_000;

/// One process incarnation; its replicator may have several lives.
pub(super) struct Process {
    pub(super) node: NodeId,
    /// Its place; all processes of a place have one address.
    pub(super) place: usize,
    pub(super) address: UniqueAddress,
    pub(super) core: ReplicatorCore,
    steps: Steps,
    numbers: DotSource,
    pub(super) life: u32,
    pub(super) alive: bool,
    /// By how much its clock is ahead, in milliseconds.
    skew: i64,
    pub(super) view: View,
    /// Operations of each entry that it shows, with those of former lives of the replicator.
    pub(super) seen: Vec<Mask>,
    pub(super) held: Vec<Mask>,
    pub(super) deleted: BTreeSet<usize>,
    /// Operations of each entry that its subscriber was shown.
    pub(super) told: BTreeMap<usize, Mask>,
    /// Checksum of its data at the last check.
    pub(super) checked: Option<Sum>,
}

impl Process {
    /// Sets by how many milliseconds its wall clock is ahead.
    pub(super) fn set_skew(&mut self, skew: i64) {
        self.skew = skew;
    }

    pub(super) fn replica(&self) -> ReplicaId {
        ReplicaId(self.address.uid().get())
    }
}

/// Something that is due at a process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    Heard(News),
    Flushed(u64),
    Loaded,
    /// The end of its replicator, for good.
    Ended,
}

/// Settings of a history.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    pub(super) settings: ReplicatorSettings,
    /// The longest delay of membership's news.
    pub(super) lag: Duration,
    /// The greatest difference of clocks, in milliseconds.
    pub(super) skew: i64,
    /// Count of ledgers; and of bare counters.
    pub(super) ledgers: usize,
    pub(super) tallies: usize,
    /// A place whose replicator has deltas switched off.
    pub(super) without_deltas: Option<usize>,
    /// Whether flushes fail now and then.
    pub(super) disks_fail: bool,
    /// Whether processes whose stores are refused stay and report it; otherwise they end.
    pub(super) refused_stay: bool,
}

/// The processes of one history, and the model.
pub(super) struct World {
    pub(super) net: Network<(usize, Message)>,
    base: Instant,
    pub(super) arrangement: Arrangement,
    pub(super) processes: Vec<Process>,
    /// The members with their status, ascending.
    pub(super) members: BTreeMap<usize, ReplicaStatus>,
    pub(super) removed: BTreeSet<UniqueAddress>,
    /// News and events on their way to processes: by time and order, the process and the news.
    pub(super) news: BTreeMap<(Duration, u64), (usize, Due)>,
    /// The disks by place.
    pub(super) disks: BTreeMap<usize, Disk>,
    pub(super) books: Vec<OperationHistory>,
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
    /// The process that is or was out of touch with all others: since when, and until when that counts.
    pub(super) alone: Option<(usize, Duration, Duration)>,
    /// The story in words, for finding the cause of a failure.
    pub(super) story: Option<Vec<String>>,
}

impl World {
    /// A world of this many members, all Up and known to each other.
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
            books: (0..ledgers).map(|_| OperationHistory::default()).collect(),
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

    /// Count of entries; ledgers come first, then bare counters.
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

    /// Tells a process the time of its clock.
    pub(super) fn tell_wall(&mut self, index: usize) {
        let wall = self.wall_ms(index);
        self.input(index, Input::Wall(wall));
    }

    /// Gives a new replicator its first inputs.
    fn begin_life(&mut self, index: usize) {
        let wall = self.wall_ms(index);
        self.input(index, Input::Wall(wall));
        let tag = Ledger::TAG.to_string().into();
        self.input(index, Input::Subscribe { subscriber: 0, pattern: "l*".into(), tag });
    }

    /// Ends the replicator of a process, which forgets everything, and starts another one.
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

    /// Ends a process, which forgets everything.
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

    /// Carries out the effects of a machine, and checks what it shows.
    pub(super) fn perform(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, bulk, message } => {
                    // A process is identified by its uid.
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
                // The process stays to tell others that its store is too old, if the history lets it.
                Effect::Lifecycle(Lifecycle::Stopped(StopReason::StoreTooOld { .. }))
                    if self.arrangement.refused_stay => {}
                // The store is too old, or the process was removed.
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

    /// Moves to the next event up to `end`. Returns whether there was one.
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
        // The nodes of the network are numbered as the processes.
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

    /// Schedules something for a process.
    pub(super) fn due(&mut self, later: Duration, index: usize, due: Due) {
        self.next += 1;
        self.news.insert((self.net.now() + later, self.next), (index, due));
    }

    /// Runs for a time.
    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.net.now() + time;
        while self.broken.is_none() && self.step(end) {}
    }

    /// Runs until a condition holds, but at most for `limit`. Returns whether it holds.
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

    /// Draws one of several.
    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.net.rng().random_range(0..from.len())])
    }

    pub(super) fn chance(&mut self, of: f64) -> bool {
        self.net.rng().random_bool(of)
    }

    /// Notes a broken promise; only the first one counts.
    pub(super) fn breaks(&mut self, promise: &'static str, what: String) {
        let what = format!("{what}, at {:?}", self.net.now());
        self.tell(|| format!("{promise}: {what}"));
        self.broken.get_or_insert(Violation { promise, what });
    }

    /// Adds to the story, if one is kept.
    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        let at = self.net.now();
        if let Some(story) = &mut self.story {
            story.push(format!("{:>8.3} {}", at.as_secs_f64(), what()));
        }
    }
}

/// A message in one line: its sender's standing, or its beginning.
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
