//! The plainest application: numbered letters, and shards that count them.
//!
//! Checked whenever a handler runs: its shard lives once, and the sender's numbers rise. At the end: every probe was
//! handled; and if links were up nothing was dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greylag_core::{DeadLetterReason, Generation};
use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::region::{self, Provenance, RegionState};
use rand::RngExt;

use super::world::{Application, Faults, MS, Sabotage, World};

/// A sending task: holds a handle of one region, so its node has another task when the region has begun anew.
pub(crate) type Sender = (usize, u64);

/// One message of one sender to one entity; `seq` counts per sender and entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Msg {
    pub(crate) sender: Sender,
    pub(crate) entity: u32,
    pub(crate) seq: u64,
}

#[derive(Debug)]
pub(crate) enum Timer {
    Ready { node: usize, shard: ShardId, generation: Generation },
    Run { node: usize, shard: ShardId, generation: Generation },
    Gone { node: usize, shard: ShardId, generation: Generation },
    Send,
}

pub(crate) struct Shard {
    generation: Generation,
    phase: Phase,
    inbox: VecDeque<(Msg, Provenance)>,
    scheduled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Stopping,
    Killed,
}

#[derive(Debug, Default)]
pub(crate) struct Letters {
    /// The last sequence number sent, per sender and entity.
    seqs: BTreeMap<(Sender, u32), u64>,
    /// The last sequence number handled, per sender and entity.
    handled: BTreeMap<(Sender, u32), u64>,
    probes: BTreeSet<(Sender, u32, u64)>,
    /// Messages that waited at other nodes when an owner and the coordinator had died: each must be handled.
    waiting: BTreeSet<(Sender, u32, u64)>,
    /// Whether an owner ended before it served: its messages along an old path may be too old for the next owner, a gap
    /// that docs/departures.md names.
    has_gap: bool,
}

impl Application for Letters {
    type Msg = Msg;
    type Beside = ();
    type Timer = Timer;
    type Shard = Shard;

    fn begin(world: &mut World<Self>) {
        world.later(20 * MS, Timer::Send);
    }

    fn start_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation) {
        let fresh = Shard { generation, phase: Phase::Starting, inbox: VecDeque::new(), scheduled: false };
        let old = world.nodes[node].shards.insert(shard.clone(), fresh);
        assert!(old.is_none(), "one task per shard lives at a time");
        let delay = world.random(0, 80);
        world.later(delay, Timer::Ready { node, shard, generation });
    }

    fn end_shard(world: &mut World<Self>, node: usize, shard: ShardId, generation: Generation, at_once: bool) {
        let delay = if at_once { world.random(0, 20) } else { world.random(0, 200) };
        let found = world.nodes[node].shards.get_mut(&shard).expect("only a running shard is stopped");
        assert_eq!(found.generation, generation);
        // The shard's region hands it off before it has served.
        let unserved = found.phase == Phase::Starting || (at_once && found.inbox.is_empty());
        found.phase = if at_once { Phase::Killed } else { Phase::Stopping };
        world.app.has_gap |= unserved;
        world.later(delay, Timer::Gone { node, shard, generation });
    }

    fn fail_shard(world: &mut World<Self>, node: usize) {
        let shards = &world.nodes[node].shards;
        let serving = shards.iter().find(|(_, found)| matches!(found.phase, Phase::Serving | Phase::Stopping));
        let Some(shard) = serving.map(|(shard, _)| shard.clone()) else { return };
        world.note(|| format!("n{node}: shard {shard} fails"));
        let failed = world.nodes[node].shards.remove(&shard).expect("found above");
        let unprocessed = world.give_back(node, failed.inbox);
        world.tell(node, region::Input::ShardFailed { shard, generation: failed.generation, unprocessed });
    }

    fn push(
        world: &mut World<Self>,
        node: usize,
        shard: &ShardId,
        generation: Generation,
        msg: Msg,
        provenance: Provenance,
    ) {
        let Some(found) = world.nodes[node].shards.get_mut(shard) else {
            panic!("n{node} delivers to no shard {shard}")
        };
        assert_eq!(found.generation, generation, "a delivery names the shard that runs");
        assert_eq!(found.phase, Phase::Serving, "nothing is delivered before the start or behind the stop marker");
        found.inbox.push_back((msg, provenance));
        world.schedule(node, shard);
    }

    fn release(world: &mut World<Self>, node: usize) {
        for shard in world.nodes[node].shards.keys().cloned().collect::<Vec<_>>() {
            world.schedule_rest(node, &shard);
        }
    }

    fn is_live(shard: &Shard) -> bool {
        shard.phase != Phase::Starting
    }

    fn on_timer(world: &mut World<Self>, timer: Timer) {
        match timer {
            Timer::Ready { node, shard, generation } => {
                let starting = |s: &&mut Shard| s.generation == generation && s.phase == Phase::Starting;
                if let Some(found) = world.nodes[node].shards.get_mut(&shard).filter(starting) {
                    found.phase = Phase::Serving;
                    world.check_exclusive(node, &shard);
                    world.tell(node, region::Input::ShardInitialized { shard, generation });
                }
            }
            Timer::Run { node, shard, generation } => world.on_run(node, &shard, generation),
            Timer::Gone { node, shard, generation } => world.on_gone(node, &shard, generation),
            Timer::Send => world.on_send(),
        }
    }

    fn node_of(timer: &Timer) -> Option<usize> {
        match timer {
            Timer::Ready { node, .. } | Timer::Run { node, .. } | Timer::Gone { node, .. } => Some(*node),
            Timer::Send => None,
        }
    }

    fn on_twin_deaths(world: &mut World<Self>, shard: &ShardId) {
        for node in world.living() {
            let waits = world.nodes[node].tokens.values().filter(|msg| ShardId::from_index(msg.entity) == *shard);
            world.app.waiting.extend(waits.map(|msg| (msg.sender, msg.entity, msg.seq)));
        }
        world.tally.waited += world.app.waiting.len() as u64;
    }

    fn on_lost(world: &mut World<Self>, msg: &Msg) {
        world.tally.waited -= u64::from(world.app.waiting.remove(&(msg.sender, msg.entity, msg.seq)));
    }

    fn warm_up(world: &mut World<Self>) {
        Self::probe(world);
        world.app.probes.clear();
    }

    /// Sends one message from every living node to every shard; all must be handled.
    fn probe(world: &mut World<Self>) {
        for node in world.living() {
            if world.nodes[node].leaving || world.nodes[node].region.state() == RegionState::Stopped {
                continue;
            }
            for entity in 0..world.shards {
                let (sender, seq) = world.send_letter(node, entity);
                world.app.probes.insert((sender, entity, seq));
            }
        }
    }

    /// Never: late messages may still break a promise, so the whole time is observed.
    fn is_settled(_world: &World<Self>) -> bool {
        false
    }

    fn verdict(world: &World<Self>) -> Option<String> {
        if !world.app.probes.is_empty() {
            return Some(format!("after healing no entity handled {:?}", world.app.probes));
        }
        if !world.app.waiting.is_empty() {
            return Some(format!("no entity handled {:?}, which waited for another owner", world.app.waiting));
        }
        let Faults { leave, lost_state, twin_deaths, .. } = world.faults;
        if world.faults.breaks_links() || leave || lost_state || twin_deaths {
            return None;
        }
        let dead: u64 = world.tally.dead.values().sum();
        // A region that a coordinator failover keeps unregistered over two moves sends along a route older than the new
        // owner's predecessor: a gap by the rule of sharding §2.6. Leftovers are valid for one owner: if that ended
        // before it served, late ones are dropped.
        let of = |reason| world.tally.dead.get(&reason).copied().unwrap_or(0);
        let stragglers = world.has_failed_over() || world.app.has_gap;
        let gaps = if stragglers { of(DeadLetterReason::RouteStraggler) } else { 0 };
        let late = if world.app.has_gap { of(DeadLetterReason::HandOffStraggler) } else { 0 };
        if dead > gaps + late {
            return Some(format!("links were up, yet messages were dropped: {:?}", world.tally.dead));
        }
        let (handled, sent) = (world.tally.handled, world.tally.sent);
        (handled + dead != sent).then(|| format!("links were up, yet {handled} of {sent} messages were handled"))
    }
}

impl World<Letters> {
    pub(crate) fn new(seed: u64, faults: Faults, sabotage: Sabotage) -> Self {
        Self::with(seed, faults, sabotage, |_, _| Letters::default())
    }

    fn on_send(&mut self) {
        if self.faulty {
            let living = self.living();
            let pick = self.net.rng().random_range(0..living.len().max(1));
            let node = living.get(pick).copied().unwrap_or(0);
            if self.nodes[node].alive && self.nodes[node].resumes.is_none() && !self.nodes[node].leaving {
                for _ in 0..self.net.rng().random_range(1..=3) {
                    let entity = self.net.rng().random_range(0..self.shards);
                    self.send_letter(node, entity);
                }
            }
            let next = self.random(2, 40);
            self.later(next, Timer::Send);
        }
    }

    /// Sends the next letter of the node's sender, and returns the sender and the letter's number.
    fn send_letter(&mut self, node: usize, entity: u32) -> (Sender, u64) {
        let sender = (node, self.nodes[node].region.id().incarnation);
        let seq = self.app.seqs.entry((sender, entity)).or_default();
        *seq += 1;
        let seq = *seq;
        self.tally.sent += 1;
        self.send(node, ShardId::from_index(entity), Msg { sender, entity, seq });
        (sender, seq)
    }

    fn schedule(&mut self, node: usize, shard: &ShardId) {
        let delay = self.random(0, 15);
        let Some(found) = self.nodes[node].shards.get_mut(shard).filter(|found| !found.scheduled) else { return };
        found.scheduled = true;
        let generation = found.generation;
        self.later(delay, Timer::Run { node, shard: shard.clone(), generation });
    }

    fn on_run(&mut self, node: usize, shard: &ShardId, generation: Generation) {
        let held = self.nodes[node].held;
        let Some(found) = self.nodes[node].shards.get_mut(shard).filter(|found| found.generation == generation) else {
            return;
        };
        found.scheduled = false;
        if held || found.phase != Phase::Serving {
            return;
        }
        if let Some((msg, _)) = found.inbox.pop_front() {
            self.handle_message(node, shard, generation, msg);
            self.schedule_rest(node, shard);
        }
    }

    fn schedule_rest(&mut self, node: usize, shard: &ShardId) {
        if self.nodes[node].shards.get(shard).is_some_and(|found| !found.inbox.is_empty()) {
            self.schedule(node, shard);
        }
    }

    /// Runs a handler: the moment at which every promise must hold.
    fn handle_message(&mut self, node: usize, shard: &ShardId, generation: Generation, msg: Msg) {
        self.note(|| format!("n{node}: shard {shard} at {generation} handles {msg:?}"));
        self.check_exclusive(node, shard);
        self.tally.handled += 1;
        let last = self.app.handled.entry((msg.sender, msg.entity)).or_default();
        if msg.seq <= *last {
            let last = *last;
            self.fail(format!("n{node}: shard {shard} at {generation} handles {msg:?} after seq {last}"));
        } else {
            *last = msg.seq;
        }
        self.app.probes.remove(&(msg.sender, msg.entity, msg.seq));
        self.app.waiting.remove(&(msg.sender, msg.entity, msg.seq));
    }

    fn on_gone(&mut self, node: usize, shard: &ShardId, generation: Generation) {
        let current = self.nodes[node].shards.get(shard).is_some_and(|found| found.generation == generation);
        if !current {
            return;
        }
        if self.nodes[node].held && self.nodes[node].shards[shard].phase == Phase::Stopping {
            return self.later(50 * MS, Timer::Gone { node, shard: shard.clone(), generation });
        }
        let mut found = self.nodes[node].shards.remove(shard).expect("checked");
        if found.phase == Phase::Stopping {
            // Some messages before the stop marker are handled, the rest are leftovers.
            let handled = self.net.rng().random_range(0..=found.inbox.len());
            for (msg, _) in found.inbox.drain(..handled).collect::<Vec<_>>() {
                self.nodes[node].shards.insert(
                    shard.clone(),
                    Shard { generation, phase: Phase::Stopping, inbox: VecDeque::new(), scheduled: true },
                );
                self.handle_message(node, shard, generation, msg);
                self.nodes[node].shards.remove(shard);
            }
        }
        let leftovers = self.give_back(node, found.inbox);
        self.tell(node, region::Input::ShardStopped { shard: shard.clone(), generation, leftovers });
    }
}
