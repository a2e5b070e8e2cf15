//! The machine alone, in one thread.

use std::collections::VecDeque;
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
        // Rounds begin when they are asked for, by time that passes.
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

/// Counters, one increment each, and then increments of those.
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

/// A machine that holds so many entries and has nothing to do: what a gossip interval costs it, with the round that it
/// opens and the one that it answers.
pub(crate) fn idle(count: u32) {
    let mut now = Instant::now();
    let mut machine = Machine::new(1, now);
    machine.meet(now, &[], true);
    for n in 0..count {
        machine.increment(now, &Key::new(format!("key-{n:08}")).expect("a key"));
        machine.out.clear();
    }
    machine.meet(now, &[2], true);
    let (root, rounds) = (machine.core.root_sum(), 10_000);
    let mut opened = 0;
    let start = processor_time();
    for round in 0..rounds {
        now += Duration::from_secs(3);
        let Machine { core, out, .. } = &mut machine;
        core.handle(now, Input::Wall(0), out);
        core.handle(now, Input::Tick, out);
        for effect in std::mem::take(out) {
            if let Effect::Send { message: Message::SyncOpen { round: number, part, pruning, .. }, .. } = effect {
                opened += 1;
                let same = Message::SyncSame { round: number, pruning: pruning.clone() };
                core.handle(now, Input::Received { from: address(2), message: same }, out);
                let open = Message::SyncOpen { round, part, root, pruning };
                core.handle(now, Input::Received { from: address(2), message: open }, out);
            }
        }
        assert!(out.iter().all(|effect| !matches!(effect, Effect::Send { message: Message::SyncDiffers { .. }, .. })));
        out.clear();
    }
    let took = processor_time() - start;
    println!(
        "idle: {count:>8} entries, machine alone: {:.2} us of processor per gossip interval ({opened} rounds opened and \
         as many answered)",
        took.as_secs_f64() * 1e6 / rounds as f64
    );
}

/// What two machines said until nothing was left to say.
#[derive(Default)]
struct Talk {
    /// Messages there and back, one waiting for the other.
    trips: usize,
    comparing: usize,
    entries: usize,
    full_states: usize,
    deltas: usize,
    messages: usize,
}

/// Delivers what the machines send, all of it at once, until nothing is sent. A half turn is everything that is under
/// way at one time.
fn exchange(now: Instant, machines: &mut [Machine; 2]) -> Talk {
    let (mut talk, mut half_turns) = (Talk::default(), 0_usize);
    let mut flights: VecDeque<(usize, Message)> = VecDeque::new();
    loop {
        for (index, machine) in machines.iter_mut().enumerate() {
            for effect in machine.out.drain(..) {
                if let Effect::Send { message, .. } = effect {
                    flights.push_back((index, message));
                }
            }
        }
        if flights.is_empty() {
            talk.trips = half_turns.div_ceil(2);
            return talk;
        }
        half_turns += 1;
        for (from, message) in std::mem::take(&mut flights) {
            let size = message.encoded_len();
            talk.messages += 1;
            match &message {
                Message::Gossip { entries, .. } => {
                    talk.entries += size;
                    talk.full_states += entries.len();
                }
                Message::DeltaBatch { .. } => talk.deltas += size,
                _ => talk.comparing += size,
            }
            let (own, to) = (machines[from].own.clone(), 1 - from);
            let Machine { core, out, .. } = &mut machines[to];
            core.handle(now, Input::Received { from: own, message }, out);
        }
    }
}

/// One round, which the first machine opens.
fn round(now: Instant, machines: &mut [Machine; 2]) -> Talk {
    // The other's own round is not what is measured.
    machines[1].core.handle(now, Input::Tick, &mut Vec::new());
    let Machine { core, out, .. } = &mut machines[0];
    core.handle(now, Input::Tick, out);
    exchange(now, machines)
}

/// Two replicas with the same keys, of which a hundred differ.
pub(crate) fn differ(count: u32) {
    let mut now = Instant::now();
    let mut machines = [Machine::new(1, now), Machine::new(2, now)];
    for machine in &mut machines {
        machine.meet(now, &[], true);
    }
    let keys: Vec<Key<LwwRegister<String>>> =
        (0..count).map(|n| Key::new(format!("key-{n:08}")).expect("a key")).collect();
    // The same data everywhere: one machine makes it, the other gets it.
    for key in &keys {
        machines[0].put(now, key, "value");
    }
    machines[0].meet(now, &[2], true);
    machines[1].meet(now, &[1], true);
    now += Duration::from_secs(10);
    round(now, &mut machines);
    assert_eq!(machines[0].core.root_sum(), machines[1].core.root_sum());
    // Apart from each other, so that nothing is logged for a peer.
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

/// A peer that could not be reached while so many deltas were made.
pub(crate) fn lag(deltas: u32) {
    let mut now = Instant::now();
    let mut machines = [Machine::new(1, now), Machine::new(2, now)];
    machines[0].meet(now, &[2], false);
    machines[1].meet(now, &[1], false);
    // They stop waiting for each other.
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
