//! Measures the machine alone, in one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, GCounter, LwwRegister};
use greylag_ddata::{
    Effect, Input, Key, Message, Replica, ReplicaStatus, Replicas, ReplicatorCore, ReplicatorSettings, TypeTable,
    WriteLevel,
};

use crate::measure::processor_time;

pub(crate) struct Machine {
    pub(crate) core: ReplicatorCore,
    own: UniqueAddress,
    next: u64,
    pub(crate) out: Vec<Effect>,
}

fn address(uid: usize) -> UniqueAddress {
    format!("n{uid}:1#{uid}").parse().expect("an address")
}

impl Machine {
    pub(crate) fn new(uid: usize, now: Instant) -> Self {
        let own = address(uid);
        // Rounds begin only when the benchmark lets time pass.
        let settings = ReplicatorSettings { pruning_interval: None, ..ReplicatorSettings::default() };
        let core = ReplicatorCore::new(settings, TypeTable::new(), own.clone(), DotSource::new(), uid as u64, now);
        Self { core, own, next: 0, out: Vec::new() }
    }

    pub(crate) fn meet(&mut self, now: Instant, others: &[usize], reachable: bool) {
        let others = others.iter().map(|uid| Replica {
            address: address(*uid),
            status: ReplicaStatus::Up,
            reachable,
            age: *uid as u64,
        });
        let replicas =
            Replicas { own_status: Some(ReplicaStatus::Up), others: others.collect(), ..Replicas::default() };
        self.core.handle(now, Input::Replicas(Arc::new(replicas)), &mut self.out);
    }

    fn increment(&mut self, now: Instant, key: &Key<GCounter>) {
        self.next += 1;
        let (id, out) = (self.next, &mut self.out);
        let done = self.core.update(now, 0, id, key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, 1), out);
        done.expect("an increment");
    }

    fn put(&mut self, now: Instant, key: &Key<LwwRegister<String>>, value: &str) {
        self.next += 1;
        let (id, out) = (self.next, &mut self.out);
        let set = |register: &mut LwwRegister<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            register.set(cx, value.to_owned()).map(drop)
        };
        self.core.update(now, 0, id, key, WriteLevel::Local, LwwRegister::new, set, out).expect("a put");
    }
}

/// Creates counters with one increment each, and then increments them again.
pub(crate) fn keys(count: u32) {
    let now = Instant::now();
    let keys: Vec<Key<GCounter>> = (0..count).map(|n| Key::new(format!("key-{n:08}")).expect("a key")).collect();
    let mut machine = Machine::new(1, now);
    machine.meet(now, &[], true);
    let start = processor_time();
    for (n, key) in keys.iter().enumerate() {
        machine.increment(now, key);
        if n % 1_024 == 0 {
            machine.out.clear();
        }
    }
    let created = processor_time() - start;
    machine.out.clear();
    let at_random = |n: u32| &keys[(n.wrapping_mul(2_654_435_761) % count) as usize];
    let rate = |machine: &mut Machine, updates: u32| {
        let start = processor_time();
        for n in 0..updates {
            machine.increment(now, at_random(n));
            if n % 1_024 == 0 {
                machine.out.clear();
            }
        }
        f64::from(updates) / (processor_time() - start).as_secs_f64()
    };
    let alone = rate(&mut machine, 1_000_000.min(count * 100));
    machine.meet(now, &[2], true);
    // As many as the log holds.
    let logged = rate(&mut machine, 100_000.min(count * 100));
    println!(
        "keys: {count:>8} counters: created at {:.0}/s of processor time, incremented at {alone:.0}/s, at {logged:.0}/s \
         while every increment is logged for a peer",
        f64::from(count) / created.as_secs_f64(),
    );
}

/// Two machines that hold the same entries and get no requests: the cost of a gossip interval for each of them, with
/// the round that it opens and the one that it answers.
pub(crate) fn idle(count: u32) {
    let (mut now, mut machines, _) = alike(count);
    let (mut opened, mut answered) = (0, 0);
    let mut interval = |machines: &mut [Machine; 2]| {
        now += Duration::from_secs(3);
        tick_both(now, machines);
        deliver(now, machines, |message| match message {
            Message::SyncOpen { .. } => opened += 1,
            Message::SyncSame { .. } => answered += 1,
            other => panic!("replicators that hold the same have nothing to exchange: {other:?}"),
        });
    };
    let rounds = 10_000;
    let start = processor_time();
    for _ in 0..rounds {
        interval(&mut machines);
    }
    let took = processor_time() - start;
    assert_eq!(opened, answered);
    println!(
        "idle: {count:>8} entries, machines alone: {:.2} us of processor of each per gossip interval ({opened} rounds \
         opened and answered by both)",
        took.as_secs_f64() * 1e6 / (2 * rounds) as f64
    );
}

/// The messages that two machines exchanged until nothing was left to send.
#[derive(Default)]
struct Talk {
    /// Round trips: messages there and back, one waiting for the other.
    trips: usize,
    comparing: usize,
    entries: usize,
    full_states: usize,
    deltas: usize,
    messages: usize,
}

/// Ticks both machines, so that both may begin rounds of their own.
fn tick_both(now: Instant, machines: &mut [Machine; 2]) {
    for Machine { core, out, .. } in machines {
        core.handle(now, Input::Wall(0), out);
        core.handle(now, Input::Tick, out);
    }
}

/// Delivers all messages of the machines until none is sent; `see` is shown each message. Returns the number of half
/// turns: one delivers everything that is under way at one time.
fn deliver(now: Instant, machines: &mut [Machine; 2], mut see: impl FnMut(&Message)) -> usize {
    let mut flights: Vec<(usize, Message)> = Vec::new();
    for half_turns in 0.. {
        for (index, machine) in machines.iter_mut().enumerate() {
            for effect in machine.out.drain(..) {
                if let Effect::Send { message, .. } = effect {
                    flights.push((index, message));
                }
            }
        }
        if flights.is_empty() {
            return half_turns;
        }
        for (from, message) in flights.drain(..) {
            see(&message);
            let (own, to) = (machines[from].own.clone(), 1 - from);
            let Machine { core, out, .. } = &mut machines[to];
            core.handle(now, Input::Received { from: own, message }, out);
        }
    }
    unreachable!("the half turns have no end")
}

fn exchange(now: Instant, machines: &mut [Machine; 2]) -> Talk {
    let mut talk = Talk::default();
    let half_turns = deliver(now, machines, |message| {
        let size = message.encoded_len();
        talk.messages += 1;
        match message {
            Message::Gossip { entries, .. } => {
                talk.entries += size;
                talk.full_states += entries.len();
            }
            Message::DeltaBatch { .. } => talk.deltas += size,
            _ => talk.comparing += size,
        }
    });
    talk.trips = half_turns.div_ceil(2);
    talk
}

/// Runs one round, which the first machine opens.
fn round(now: Instant, machines: &mut [Machine; 2]) -> Talk {
    // Drop the other's own round, which is not measured.
    machines[1].core.handle(now, Input::Tick, &mut Vec::new());
    let Machine { core, out, .. } = &mut machines[0];
    core.handle(now, Input::Tick, out);
    exchange(now, machines)
}

/// Two replicas that hold the same entries and know each other, with the time and the keys.
fn alike(count: u32) -> (Instant, [Machine; 2], Vec<Key<LwwRegister<String>>>) {
    let mut now = Instant::now();
    let mut machines = [Machine::new(1, now), Machine::new(2, now)];
    for machine in &mut machines {
        machine.meet(now, &[], true);
    }
    let keys: Vec<Key<LwwRegister<String>>> =
        (0..count).map(|n| Key::new(format!("key-{n:08}")).expect("a key")).collect();
    // Make the data at one machine and send them to the other, so that both hold the same.
    for key in &keys {
        machines[0].put(now, key, "value");
    }
    machines[0].meet(now, &[2], true);
    machines[1].meet(now, &[1], true);
    // Replicas that meet first ask for each other's standing (ddata Z11), and exchange nothing until both have
    // answered.
    for _ in 0..5 {
        now += Duration::from_secs(10);
        tick_both(now, &mut machines);
        exchange(now, &mut machines);
    }
    assert_eq!(machines[0].core.root_sum(), machines[1].core.root_sum());
    (now, machines, keys)
}

/// Two replicas with the same keys, of which a hundred differ.
pub(crate) fn differ(count: u32) {
    let (mut now, mut machines, keys) = alike(count);
    // Separate the replicas, so that nothing is logged for a peer.
    machines[0].meet(now, &[], true);
    machines[1].meet(now, &[], true);
    machines.iter_mut().for_each(|machine| machine.out.clear());
    for n in 0..100.min(count) {
        machines[0].put(now, &keys[(n.wrapping_mul(2_654_435_761) % count) as usize], "another");
    }
    machines[0].meet(now, &[2], true);
    machines[1].meet(now, &[1], true);
    machines.iter_mut().for_each(|machine| machine.out.clear());
    let start = Instant::now();
    now += Duration::from_secs(10);
    let talk = round(now, &mut machines);
    assert_eq!(machines[0].core.root_sum(), machines[1].core.root_sum());
    println!(
        "differ: 100 of {count:>8} keys: {} round trips, {} messages, {} bytes of sums and listings, {} bytes of \
         {} entries, {:.1} ms of both machines",
        talk.trips,
        talk.messages,
        talk.comparing,
        talk.entries,
        talk.full_states,
        start.elapsed().as_secs_f64() * 1e3
    );
}

/// A peer that was unreachable while so many deltas were made.
pub(crate) fn lag(deltas: u32) {
    let mut now = Instant::now();
    let mut machines = [Machine::new(1, now), Machine::new(2, now)];
    machines[0].meet(now, &[2], false);
    machines[1].meet(now, &[1], false);
    // Let `sync_timeout` end the wait for each other.
    now += Duration::from_secs(31);
    for machine in &mut machines {
        let Machine { core, out, .. } = machine;
        core.handle(now, Input::Tick, out);
    }
    let keys: Vec<Key<GCounter>> = (0..1_000).map(|n| Key::new(format!("key-{n}")).expect("a key")).collect();
    let start = processor_time();
    for n in 0..deltas {
        machines[0].increment(now, &keys[(n % 1_000) as usize]);
        if n % 1_024 == 0 {
            machines[0].out.clear();
        }
    }
    let made = processor_time() - start;
    machines.iter_mut().for_each(|machine| machine.out.clear());
    machines[0].meet(now, &[2], true);
    machines[1].meet(now, &[1], true);
    now += Duration::from_millis(500);
    let start = processor_time();
    let Machine { core, out, .. } = &mut machines[0];
    core.handle(now, Input::Tick, out);
    let talk = exchange(now, &mut machines);
    assert_eq!(machines[0].core.root_sum(), machines[1].core.root_sum());
    println!(
        "lag: {deltas} deltas logged at {:.0}/s of processor time; the peer got them in {} bytes of batches, {} full states, {:.1} ms of both machines",
        f64::from(deltas) / made.as_secs_f64(),
        talk.deltas,
        talk.full_states,
        (processor_time() - start).as_secs_f64() * 1e3
    );
}
