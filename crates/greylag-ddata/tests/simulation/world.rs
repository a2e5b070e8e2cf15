//! Three to five replicators under loss, delay, duplication, reordering, partitions, crashes and
//! restarts, drawn from a seed; then the faults stop and everybody must agree.
//!
//! Checked after every step: no replica shows an origin's later update without its earlier ones
//! (ddata C5). Checked at every acknowledgement: so many replicas hold the update (C2). Checked after
//! healing: all replicas are equal (C1); nothing that a survivor held is lost, and nothing that a
//! survivor removed is back (C3), against a model that knows neither dots nor deltas.
//!
//! Processes that are gone are pruned all the while, much earlier than everything has spread: late
//! copies, several owners and owners that die are the rule. No update of theirs counts twice, and in
//! the end no data name them (Z8).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{Dot, DotSource, GCounter, LwwMap, OrSet, ReplicaId};
use greylag_ddata::{
    Effect, Input, Key, Lifecycle, Message, Replica, ReplicaStatus, Replicas, ReplicatorCore, ReplicatorSettings,
    Reply, TypeTable, UpdateError, WriteLevel,
};
use greylag_testkit::network::{Happening, Link, Network, NodeId};
use rand::RngExt;

const TIMEOUT: Duration = Duration::from_millis(800);
const KEYS: usize = 6;

/// One process incarnation.
struct Process {
    node: NodeId,
    address: UniqueAddress,
    core: ReplicatorCore,
    alive: bool,
    /// What membership says to it.
    unreachable: BTreeSet<UniqueAddress>,
}

impl Process {
    fn replica(&self) -> ReplicaId {
        ReplicaId(self.address.uid().get())
    }
}

/// An element of a set is added once, so its life is easy to follow.
#[derive(Debug, Clone)]
struct Added {
    by: usize,
    dot: Dot,
    /// Who removed it.
    removed_by: Vec<usize>,
}

struct Pending {
    key: usize,
    dot: Dot,
    level: WriteLevel,
    voters: usize,
}

pub(crate) struct World {
    pub(crate) net: Network<(UniqueAddress, Message)>,
    base: Instant,
    seed: u64,
    /// All incarnations ever; those of one slot share an address.
    processes: Vec<Process>,
    slots: Vec<usize>,
    removed: BTreeSet<UniqueAddress>,
    added: BTreeMap<(usize, u64), Added>,
    /// Per origin and key, the numbers it drew and for which elements, in order.
    drawn: BTreeMap<(ReplicaId, usize), Vec<(u64, u64)>>,
    increments: BTreeMap<usize, u64>,
    /// Per map key, the highest timestamp put by each incarnation.
    puts: BTreeMap<(u8, usize), i64>,
    pending: BTreeMap<(usize, u64), Pending>,
    next: u64,
    /// Updates that reached their level, and those that did not in time.
    pub(crate) acknowledged: usize,
    pub(crate) failed: usize,
    /// Faults injected, and inputs that machines took.
    pub(crate) faults: usize,
    pub(crate) steps: usize,
}

fn set_key(index: usize) -> Key<OrSet<u64>> {
    Key::new(format!("set-{index}")).unwrap()
}

fn counter_key() -> Key<GCounter> {
    Key::new("counter").unwrap()
}

fn map_key() -> Key<LwwMap<u8, i64>> {
    Key::new("map").unwrap()
}

fn settings(seed: u64) -> ReplicatorSettings {
    ReplicatorSettings {
        gossip_interval: Duration::from_millis(200),
        delta_propagation_interval: Duration::from_millis(40),
        delta_resend_timeout: Duration::from_millis(150),
        // Beyond every run: who caught up did so by complete rounds.
        sync_timeout: Duration::from_secs(600),
        // Small enough that batches split, hints are used and logs overflow now and then.
        max_delta_elements: if seed.is_multiple_of(3) { 2 } else { 500 },
        eager_full_state_bytes: if seed.is_multiple_of(4) { 64 } else { 64 * 1024 },
        delta_log_max_entries: if seed.is_multiple_of(5) { 12 } else { 100_000 },
        inner_tree_keys: if seed % 4 == 1 { 3 } else { 4_096 },
        delta_enabled: !seed.is_multiple_of(7),
        pruning_interval: (!seed.is_multiple_of(6)).then_some(Duration::from_millis(300)),
        max_pruning_dissemination: Duration::from_millis(200),
        ..ReplicatorSettings::default()
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut net = Network::new(seed, Link::reliable(Duration::from_millis(5)));
        let count = net.rng().random_range(3..=5);
        let mut world = Self {
            net,
            base: Instant::now(),
            seed,
            processes: Vec::new(),
            slots: Vec::new(),
            removed: BTreeSet::new(),
            added: BTreeMap::new(),
            drawn: BTreeMap::new(),
            increments: BTreeMap::new(),
            puts: BTreeMap::new(),
            pending: BTreeMap::new(),
            next: 0,
            acknowledged: 0,
            failed: 0,
            faults: 0,
            steps: 0,
        };
        for slot in 0..count {
            let process = world.start(slot);
            world.slots.push(process);
        }
        world.publish();
        world
    }

    fn now(&self) -> Instant {
        self.base + self.net.now()
    }

    fn start(&mut self, slot: usize) -> usize {
        let node = self.net.add_node();
        let index = self.processes.len();
        let address: UniqueAddress = format!("n{slot}:1#{}", index + 1).parse().unwrap();
        let types = TypeTable::new().with::<OrSet<u64>>().with::<LwwMap<u8, i64>>();
        // The settings differ by seed, and deltas may be off on one node only.
        let mut settings = settings(self.seed);
        settings.delta_enabled |= slot != 0;
        let now = self.now();
        let core = ReplicatorCore::new(settings, types, address.clone(), DotSource::new(), self.seed, now);
        self.processes.push(Process { node, address, core, alive: true, unreachable: BTreeSet::new() });
        index
    }

    /// Tells every live process who the replicas are.
    fn publish(&mut self) {
        for index in self.slots.clone() {
            let others = self.slots.iter().filter(|other| **other != index).map(|other| {
                let address = self.processes[*other].address.clone();
                let reachable = !self.processes[index].unreachable.contains(&address);
                Replica { address, status: ReplicaStatus::Up, reachable, age: *other as u64 }
            });
            let replicas = Replicas {
                own_status: Some(ReplicaStatus::Up),
                own_age: index as u64,
                others: others.collect(),
                unmet: 0,
                removed: self.removed.clone(),
            };
            self.input(index, Input::Replicas(Arc::new(replicas)));
        }
    }

    fn input(&mut self, index: usize, input: Input) {
        self.steps += 1;
        let mut out = Vec::new();
        let now = self.now();
        self.processes[index].core.handle(now, input, &mut out);
        self.perform(index, out);
    }

    fn perform(&mut self, index: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, bulk, message } => {
                    let Some(target) = self.processes.iter().find(|process| process.address == to) else { continue };
                    let (from, to) = (self.processes[index].node, target.node);
                    let address = self.processes[index].address.clone();
                    self.net.send(from, to, bulk.into(), (address, message));
                }
                Effect::Reply { id, reply: Reply::Update(result) } => self.on_reply(index, id, &result),
                _ => {}
            }
        }
        if let Some(deadline) = self.processes[index].core.next_deadline() {
            self.net.wake_at(self.processes[index].node, deadline.saturating_duration_since(self.base));
        }
        self.check_causal_order(index);
    }

    /// An acknowledged update is on as many replicas as its level says, at that moment.
    fn on_reply(&mut self, index: usize, id: u64, result: &Result<(), UpdateError<std::convert::Infallible>>) {
        let Some(pending) = self.pending.remove(&(index, id)) else { return };
        if result.is_err() {
            self.failed += 1;
            return;
        }
        self.acknowledged += 1;
        let needed = match pending.level {
            WriteLevel::Local => 1,
            WriteLevel::To { n, .. } => n,
            WriteLevel::Majority { .. } => pending.voters / 2 + 1,
            WriteLevel::MajorityPlus { additional, .. } => (pending.voters / 2 + 1 + additional).min(pending.voters),
            WriteLevel::All { .. } => pending.voters,
        };
        // Those that crashed since they acknowledged count as they were.
        let holders = self.processes.iter().filter(|process| {
            let set = process.core.value(&set_key(pending.key));
            set.is_some_and(|set| set.context().contains(pending.dot))
        });
        let holders = holders.count();
        assert!(holders >= needed, "seed {}: acknowledged by {needed}, held by {holders}", self.seed);
    }

    fn check_causal_order(&self, index: usize) {
        for ((origin, key), numbers) in &self.drawn {
            // Of who is pruned, numbers go by other names.
            if !self.processes[origin.0 as usize - 1].alive {
                continue;
            }
            let Some(set) = self.processes[index].core.value(&set_key(*key)) else { continue };
            // A dot may be known early because somebody else's removal names it; shown it must not be.
            let shown =
                numbers.iter().rposition(|(number, element)| set.dots(element).contains(&Dot::new(*origin, *number)));
            let earlier = &numbers[..shown.unwrap_or(0)];
            let gap = earlier.iter().any(|(number, _)| !set.context().contains(Dot::new(*origin, *number)));
            assert!(
                !gap,
                "seed {}: process {index} shows a later update of {origin} without its earlier ones",
                self.seed
            );
        }
    }

    /// Something a user does at a random node.
    fn act(&mut self) {
        let slot = self.net.rng().random_range(0..self.slots.len());
        let index = self.slots[slot];
        let level = match self.net.rng().random_range(0..6) {
            0..=2 => WriteLevel::Local,
            3 => WriteLevel::To { n: 2, timeout: TIMEOUT },
            4 => WriteLevel::majority(TIMEOUT),
            _ => WriteLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT },
        };
        let key = self.net.rng().random_range(0..KEYS);
        self.next += 1;
        let id = self.next;
        match self.net.rng().random_range(0..10) {
            0..=4 => self.add(index, key, id, level),
            5..=6 => self.remove(index, key, id, level),
            7 => {
                let mut out = Vec::new();
                let by = self.net.rng().random_range(1..5);
                let now = self.now();
                let core = &mut self.processes[index].core;
                let done = core.update(
                    now,
                    0,
                    id,
                    &counter_key(),
                    level,
                    GCounter::new,
                    |c, cx| c.increment(cx, by),
                    &mut out,
                );
                done.unwrap();
                *self.increments.entry(index).or_default() += by;
                self.perform(index, out);
            }
            8 => {
                let (mut out, now) = (Vec::new(), self.now());
                let map_entry = self.net.rng().random_range(0..4_u8);
                let timestamp = i64::from(self.net.rng().random_range(0..1_000_u16)) * 1_000 + id as i64;
                let core = &mut self.processes[index].core;
                core.update(
                    now,
                    0,
                    id,
                    &map_key(),
                    level,
                    LwwMap::new,
                    |map, cx| {
                        map.put_with(cx, map_entry, timestamp, |_, value| *value);
                        Ok::<_, ()>(())
                    },
                    &mut out,
                )
                .unwrap();
                let put = self.puts.entry((map_entry, index)).or_default();
                *put = (*put).max(timestamp);
                self.perform(index, out);
            }
            _ => {
                let level = greylag_ddata::ReadLevel::majority(TIMEOUT);
                let tag = <OrSet<u64> as greylag_crdt::ReplicatedData>::TAG.to_string().into();
                self.input(index, Input::Get { id, key: set_key(key).id().clone(), tag, level });
            }
        }
    }

    fn add(&mut self, index: usize, key: usize, id: u64, level: WriteLevel) {
        let (mut out, now) = (Vec::new(), self.now());
        let core = &mut self.processes[index].core;
        core.update(
            now,
            0,
            id,
            &set_key(key),
            level,
            OrSet::new,
            |set, cx| {
                set.add(cx, id);
                Ok::<_, ()>(())
            },
            &mut out,
        )
        .unwrap();
        let dot = core.value(&set_key(key)).unwrap().dots(&id)[0];
        self.added.insert((key, id), Added { by: index, dot, removed_by: Vec::new() });
        self.drawn.entry((dot.replica, key)).or_default().push((dot.number, id));
        self.pending.insert((index, id), Pending { key, dot, level, voters: self.slots.len() });
        self.perform(index, out);
    }

    fn remove(&mut self, index: usize, key: usize, id: u64, level: WriteLevel) {
        let Some(set) = self.processes[index].core.value(&set_key(key)) else { return };
        let elements: Vec<u64> = set.iter().copied().collect();
        if elements.is_empty() {
            return;
        }
        let element = elements[self.net.rng().random_range(0..elements.len())];
        let (mut out, now) = (Vec::new(), self.now());
        let core = &mut self.processes[index].core;
        core.update(
            now,
            0,
            id,
            &set_key(key),
            level,
            OrSet::new,
            |set, cx| {
                assert!(set.remove(cx, &element));
                Ok::<_, ()>(())
            },
            &mut out,
        )
        .unwrap();
        self.added.get_mut(&(key, element)).unwrap().removed_by.push(index);
        self.perform(index, out);
    }

    fn fault(&mut self) {
        self.faults += 1;
        let live: Vec<NodeId> = self.slots.iter().map(|index| self.processes[*index].node).collect();
        match self.net.rng().random_range(0..10) {
            0..=2 => {
                let split = self.net.rng().random_range(1..live.len());
                self.net.partition(&live[..split], &live[split..]);
                if self.net.rng().random_bool(0.5) {
                    let (left, right) = self.slots.split_at(split);
                    let (left, right) = (left.to_vec(), right.to_vec());
                    for (own, others) in [(&left, &right), (&right, &left)] {
                        for index in own {
                            let addresses = others.iter().map(|other| self.processes[*other].address.clone());
                            self.processes[*index].unreachable = addresses.collect();
                        }
                    }
                    self.publish();
                }
            }
            3..=5 => self.mend(),
            6 => {
                let node = live[self.net.rng().random_range(0..live.len())];
                self.net.pause(node, Duration::from_millis(700));
            }
            7 => self.restart(),
            _ => {
                let link = Link {
                    delay: (Duration::from_millis(1), Duration::from_millis(60)),
                    loss: self.net.rng().random_range(0.0..0.4),
                    duplication: self.net.rng().random_range(0.0..0.3),
                    reorder: true,
                };
                self.net.set_default_link(link);
            }
        }
    }

    fn mend(&mut self) {
        self.net.heal();
        self.slots.clone().into_iter().for_each(|index| self.processes[index].unreachable.clear());
        self.publish();
    }

    /// A process dies with its memory, and another one takes its place under a new uid.
    fn restart(&mut self) {
        let slot = self.net.rng().random_range(0..self.slots.len());
        let former = self.slots[slot];
        self.net.crash(self.processes[former].node);
        self.processes[former].alive = false;
        self.removed.insert(self.processes[former].address.clone());
        self.slots[slot] = self.start(slot);
        self.publish();
    }

    fn run_until(&mut self, end: Duration) {
        while let Some(happening) = self.net.step_until(end) {
            let (node, input) = match happening {
                Happening::Delivered { to, message: (from, message), .. } => (to, Input::Received { from, message }),
                Happening::Woken { node } => (node, Input::Tick),
            };
            let index = self.processes.iter().position(|process| process.node == node).unwrap();
            self.input(index, input);
        }
    }

    /// One history under faults, healed at its end.
    pub(crate) fn run(seed: u64) -> Self {
        let mut world = Self::new(seed);
        for _ in 0..world.net.rng().random_range(30..90) {
            if world.net.rng().random_bool(0.25) {
                world.fault();
            } else {
                world.act();
            }
            let pause = Duration::from_millis(world.net.rng().random_range(0..120));
            let end = world.net.now() + pause;
            world.run_until(end);
        }
        world.net.set_default_link(Link::reliable(Duration::from_millis(5)));
        world.mend();
        let end = world.net.now() + Duration::from_secs(8);
        world.run_until(end);
        world
    }

    /// All are equal, and what survivors did is there.
    pub(crate) fn check_healed(&mut self) {
        let seed = self.seed;
        let digests: Vec<_> = self.slots.iter().map(|index| self.processes[*index].core.digests()).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: replicas differ after healing");
        let sums: Vec<_> = self.slots.iter().map(|index| self.processes[*index].core.root_sum()).collect();
        assert!(sums.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: sums differ");
        for index in &self.slots {
            let core = &self.processes[*index].core;
            assert_eq!(*core.lifecycle(), Lifecycle::Running, "seed {seed}: process {index} never caught up");
            assert_eq!(core.log_len(), 0, "seed {seed}: the log of process {index} is not acknowledged");
        }
        let survivor = &self.processes[self.slots[0]].core;
        for ((key, element), added) in &self.added {
            let set = survivor.value(&set_key(*key));
            let present = set.is_some_and(|set| set.contains(element));
            let known = set.is_some_and(|set| set.context().contains(added.dot));
            if self.processes[added.by].alive {
                assert!(known, "seed {seed}: element {element} of a survivor is unknown");
            }
            if added.removed_by.is_empty() && self.processes[added.by].alive {
                assert_eq!(present, known, "seed {seed}: element {element} was lost, nobody removed it");
            }
            if added.removed_by.iter().any(|by| self.processes[*by].alive) {
                assert!(!present, "seed {seed}: element {element} is back, a survivor removed it");
            }
        }
        let counter = survivor.value(&counter_key());
        for (index, total) in &self.increments {
            let process = &self.processes[*index];
            let slot = counter.map_or(0, |counter| counter.slots().get(process.replica()));
            assert!(!process.alive || slot >= u128::from(*total), "seed {seed}: increments were lost");
            assert!(slot == 0 || process.alive || !self.prunes(), "seed {seed}: who is gone has a slot");
        }
        // The slot of an owner holds what it took over, too; the value tells whether anything counts twice.
        let all: u128 = self.increments.values().map(|total| u128::from(*total)).sum();
        let of_survivors = self.increments.iter().filter(|(index, _)| self.processes[**index].alive);
        let of_survivors: u128 = of_survivors.map(|(_, total)| u128::from(*total)).sum();
        let value = counter.map_or(0, GCounter::value);
        assert!(of_survivors <= value && value <= all, "seed {seed}: {value} of {of_survivors} to {all}");
        self.check_names();
        for ((entry, index), timestamp) in &self.puts {
            let winner = survivor.value(&map_key()).and_then(|map| map.get(entry)).copied().unwrap_or(-1);
            let known = !self.processes[*index].alive || winner >= *timestamp;
            assert!(known, "seed {seed}: put {timestamp} of a survivor lost to {winner}");
        }
    }

    fn prunes(&self) -> bool {
        settings(self.seed).pruning_interval.is_some()
    }

    /// No data name a process that is gone.
    fn check_names(&self) {
        let gone = |replica: &ReplicaId| !self.processes[replica.0 as usize - 1].alive;
        for index in self.slots.iter().filter(|_| self.prunes()) {
            let core = &self.processes[*index].core;
            for key in 0..KEYS {
                let named = core.value(&set_key(key)).and_then(|set| set.context().replicas().find(gone));
                assert_eq!(named, None, "seed {}: set {key} of process {index}", self.seed);
            }
        }
    }

    /// Entries that were put under another name, and how many of them more than once.
    pub(crate) fn performed(&self) -> (u64, u64) {
        let stats = self.processes.iter().map(|process| process.core.stats());
        stats.fold((0, 0), |(all, again), stats| (all + stats.performed, again + stats.performed_again))
    }

    /// After healing everything is served: majorities are found, at once.
    pub(crate) fn check_serves(&mut self) {
        for index in self.slots.clone() {
            self.next += 1;
            let before = self.acknowledged;
            self.add(index, 0, self.next, WriteLevel::all(TIMEOUT));
            let end = self.net.now() + TIMEOUT / 2;
            self.run_until(end);
            assert_eq!(self.acknowledged, before + 1, "seed {}: process {index} does not serve", self.seed);
        }
    }

    /// Rounds of anti-entropy that all processes went through.
    pub(crate) fn repaired(&self) -> u64 {
        self.processes.iter().map(|process| process.core.stats().rounds_completed).sum()
    }

    /// Values that were repaired range by range.
    pub(crate) fn repaired_in_parts(&self) -> u64 {
        self.processes.iter().map(|process| process.core.stats().repaired_in_parts).sum()
    }

    /// What the living replicas hold, as digests.
    pub(crate) fn digests(&self) -> Vec<String> {
        self.slots.iter().map(|index| format!("{:?}", self.processes[*index].core.digests())).collect()
    }

    /// Who says that it has caught up holds what was there, however many messages of its rounds were
    /// lost, doubled or overtaken: otherwise it would hide a confirmed write from a majority read
    /// (ddata G13).
    pub(crate) fn check_catch_up(seed: u64) {
        let mut world = Self::new(seed);
        for id in 1..=300 {
            let (mut out, now) = (Vec::new(), world.now());
            let key = Key::<GCounter>::new(format!("counter-{id}")).unwrap();
            let core = &mut world.processes[world.slots[1]].core;
            core.update(now, 0, id, &key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, id), &mut out)
                .unwrap();
            let from = world.slots[1];
            world.perform(from, out);
        }
        world.run_until(Duration::from_secs(5));
        let link = Link {
            delay: (Duration::from_millis(1), Duration::from_millis(80)),
            loss: 0.05,
            duplication: 0.5,
            reorder: true,
        };
        world.net.set_default_link(link);
        let former = world.slots[0];
        world.net.crash(world.processes[former].node);
        world.removed.insert(world.processes[former].address.clone());
        world.slots[0] = world.start(0);
        world.publish();
        let fresh = world.slots[0];
        while *world.processes[fresh].core.lifecycle() != Lifecycle::Running {
            let end = world.net.now() + Duration::from_millis(1);
            world.run_until(end);
            assert!(end < Duration::from_secs(120), "seed {seed}: never caught up");
        }
        let held = world.processes[fresh].core.digests();
        let there = world.processes[world.slots[1]].core.digests();
        assert_eq!(held, there, "seed {seed}: it has {} of {} entries", held.len(), there.len());
    }
}
