//! A coordinator that fails over among regions with many shards: every control message passes through its frames.
//!
//! ```text
//! a (gone) coordinated b and c, each with half of the shards; c buffers a message for each shard of b, and for shards
//! without a home whose leftovers lie at c.
//! b --Read--> coordinator --RegionInquiry--> b, c --Register, GetShardHome--> coordinator --ShardHomes, HostShard--> b, c
//! ```
//! Source: sharding scenario 98.

use crate::common::machines;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::machines::{fingerprint, up};
use bytes::Bytes;
use greylag_core::{Generation, UniqueAddress};
use greylag_sharding::Omissions;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorEvent, Effect as CoordinatorEffect, Input as CoordinatorInput, Meta,
    StateEvent, StoredHome, StoredState,
};
use greylag_sharding::machine::membership::{Members, Removal};
use greylag_sharding::machine::message::{CoordinatorId, CoordinatorMessage, FromCoordinator, Home};
use greylag_sharding::machine::region::{Effect, Input, MessageInfo, Region, RegionConfig, Route, Token};
use greylag_sharding::parts::{Cutter, Joiner, PART_MANIFEST};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::wire::{self, Control};

const SHARDS: u32 = 100_000;
/// The number of shards without a home, whose leftovers are at `c`: the last ones.
const HOMELESS: u32 = SHARDS / 10;
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
/// Longest frame that may be sent, with room for the header of its envelope.
const FRAME: usize = 64 * 1024 - 256;

fn node(index: usize) -> UniqueAddress {
    let host = ["a", "b", "c"][index].repeat(64);
    format!("{host}:1#{}", index + 1).parse().unwrap()
}

fn region(index: usize) -> RegionId {
    RegionId { node: node(index), incarnation: 1 }
}

fn owner(shard: u32) -> usize {
    if shard.is_multiple_of(2) { B } else { C }
}

fn generation(shard: u32) -> Generation {
    Generation::new(1, u64::from(shard) + 1).unwrap()
}

fn members(alive: &[usize], at: Instant) -> Arc<Members> {
    let members = alive.iter().map(|index| (node(*index), up(*index as u32 + 1))).collect();
    let gone = (A..=C).filter(|index| !alive.contains(index));
    Arc::new(Members { members, removed: gone.map(|index| (node(index), Removal { at, clean: true })).collect() })
}

fn settings() -> ShardingSettings {
    ShardingSettings { buffer_size: SHARDS as usize, ..ShardingSettings::test() }
}

/// The state that `a` left behind.
fn stored() -> StoredState {
    let record = |shard: u32| {
        let homeless = shard >= SHARDS - HOMELESS;
        let home = StoredHome {
            region: region(if homeless { A } else { owner(shard) }),
            generation: generation(shard),
            deallocated: homeless,
            previous: None,
            leftovers_from: homeless.then(|| region(C)),
        };
        (ShardId::from_index(shard), home)
    };
    let coordinator = CoordinatorId { node: node(A), incarnation: 1 };
    let meta = Meta { epoch: 1, coordinator, fingerprint: fingerprint(SHARDS) };
    StoredState { meta: Some(meta), homes: (0..SHARDS).map(record).collect(), ..StoredState::default() }
}

/// The longest frame, and the messages that took several: the test asserts a bound of the former and the kinds of the
/// latter.
#[derive(Default)]
struct Traffic {
    longest: usize,
    /// Messages that were cut, by their kind.
    cut: BTreeMap<&'static str, u32>,
}

struct World {
    now: Instant,
    regions: [Region; 2],
    coordinator: Option<Coordinator>,
    stored: StoredState,
    cutters: [Cutter; 2],
    joiners: [Joiner; 2],
    frames: VecDeque<(usize, usize, &'static str, Bytes)>,
    traffic: Traffic,
    active: Option<(Instant, usize)>,
    /// Turns that the coordinator asked for.
    turns: u32,
    routes: BTreeMap<(usize, ShardId), Route>,
    sent: u32,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let config = |index| {
            let (fingerprint, settings) = (fingerprint(SHARDS), settings());
            RegionConfig { fingerprint, settings, ..machines::config(region(index)) }
        };
        Self {
            now,
            regions: [B, C].map(|index| Region::new(config(index), now)),
            coordinator: None,
            stored: stored(),
            cutters: [Cutter::default(), Cutter::default()],
            joiners: [Joiner::default(), Joiner::default()],
            frames: VecDeque::new(),
            traffic: Traffic::default(),
            active: None,
            turns: 0,
            routes: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Cuts a message into frames, which go into one queue.
    fn send(&mut self, from: usize, to: &UniqueAddress, (manifest, bytes): (&'static str, Bytes)) {
        let Some(to) = [B, C].into_iter().find(|index| node(*index) == *to) else { return };
        let frames = self.cutters[from - B].frames(manifest, bytes);
        if frames.len() > 1 {
            *self.traffic.cut.entry(manifest).or_default() += 1;
        }
        for (manifest, frame) in frames {
            self.traffic.longest = self.traffic.longest.max(frame.len());
            self.frames.push_back((from, to, manifest, frame));
        }
    }

    fn tell(&mut self, index: usize, input: Input) {
        let mut effects = Vec::new();
        self.regions[index - B].handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::SendCoordinator { to, message } => self.send(index, &to, wire::encode_region(&message)),
                Effect::SendPeer { to, message } => self.send(index, &to, wire::encode_peer(&message)),
                Effect::StartShard { shard, generation } => {
                    self.tell(index, Input::ShardInitialized { shard, generation });
                }
                Effect::RouteChange { shard, route } => drop(self.routes.insert((index, shard), route)),
                Effect::SendData { .. } => self.sent += 1,
                Effect::Agreement { coordinator: Some(2), outcome } => {
                    self.coordinate(CoordinatorInput::Agreement(outcome));
                }
                _ => {}
            }
        }
    }

    fn coordinate(&mut self, input: CoordinatorInput) {
        let mut deeds = Vec::new();
        self.coordinator.as_mut().unwrap().handle(self.now, input, &mut deeds);
        for deed in deeds {
            self.perform(deed);
        }
    }

    fn perform(&mut self, deed: CoordinatorEffect) {
        match deed {
            CoordinatorEffect::Send { to, message } => self.send(B, &to, wire::encode_coordinator(&message)),
            CoordinatorEffect::Read => {
                let state = self.stored.clone();
                self.coordinate(CoordinatorInput::Read { state, wall_secs: 5, seen_epoch: 1 });
            }
            CoordinatorEffect::Commit { batch, events } => {
                for event in events {
                    match event {
                        StateEvent::EpochStarted(meta) => self.stored.meta = Some(meta),
                        StateEvent::Home { shard, home } => drop(self.stored.homes.insert(shard, home)),
                        other => panic!("{other:?} in mode ddata"),
                    }
                }
                self.coordinate(CoordinatorInput::Committed { batch });
            }
            CoordinatorEffect::CallAllocate { call, shards, .. } => {
                let homes = shards.into_iter().map(|(shard, _)| (shard, Some(region(B)))).collect();
                self.coordinate(CoordinatorInput::Allocated { call, homes });
            }
            CoordinatorEffect::Event(CoordinatorEvent::Active { shards, .. }) => self.active = Some((self.now, shards)),
            CoordinatorEffect::Continue => self.turns += 1,
            CoordinatorEffect::Stop(reason) => panic!("the coordinator ended: {reason:?}"),
            _ => {}
        }
    }

    /// Delivers all frames; then lets time pass until the next deadline of a machine, up to `end`.
    fn run_until(&mut self, end: Instant) {
        loop {
            while let Some((from, to, manifest, frame)) = self.frames.pop_front() {
                self.arrive(from, to, manifest, frame);
            }
            if self.turns > 0 {
                self.turns -= 1;
                self.coordinate(CoordinatorInput::Continue);
                continue;
            }
            let deadlines = self.regions.iter().filter_map(Region::next_deadline);
            let deadlines = deadlines.chain(self.coordinator.as_ref().and_then(Coordinator::next_deadline));
            let Some(next) = deadlines.min().filter(|next| *next <= end) else { return };
            self.now = self.now.max(next);
            self.tell(B, Input::Tick);
            self.tell(C, Input::Tick);
            self.coordinate(CoordinatorInput::Tick);
        }
    }

    fn arrive(&mut self, from: usize, to: usize, manifest: &'static str, frame: Bytes) {
        let whole = if manifest == PART_MANIFEST {
            self.joiners[to - B].take(&node(from), frame).unwrap()
        } else {
            Some((manifest, frame))
        };
        let Some((manifest, bytes)) = whole else { return };
        let from = node(from);
        match wire::decode(manifest, bytes, Horizon::after(1_800_000_000)).unwrap() {
            Control::ToCoordinator(message) => self.coordinate(CoordinatorInput::FromRegion { node: from, message }),
            Control::FromCoordinator(message) => self.tell(to, Input::FromCoordinator { node: from, message }),
            Control::Peer(message) => self.tell(to, Input::FromPeer { node: from, message }),
            Control::Inspection(message) => panic!("nobody asked for {message:?}"),
        }
    }

    /// Lets `a` give all shards except the homeless ones to `b` and `c`, which run them.
    fn hosted(&mut self) {
        let coordinator = CoordinatorId { node: node(A), incarnation: 1 };
        for index in [B, C] {
            self.tell(index, Input::Membership(members(&[A, B, C], self.now)));
            let own = (0..SHARDS - HOMELESS)
                .filter(|shard| owner(*shard) == index)
                .map(|shard| Home::new(ShardId::from_index(shard), region(index), generation(shard)));
            let messages =
                [CoordinatorMessage::RegisterAck { serial: 1 }, CoordinatorMessage::HostShard(own.collect())];
            for message in messages {
                let message =
                    FromCoordinator { coordinator: coordinator.clone(), epoch: 1, to: Some(region(index)), message };
                self.tell(index, Input::FromCoordinator { node: node(A), message });
            }
        }
        self.frames.clear();
    }

    fn fail_over(&mut self) {
        for shard in (0..SHARDS).filter(|shard| owner(*shard) == B || *shard >= SHARDS - HOMELESS) {
            let (shard, token) = (ShardId::from_index(shard), Token(u64::from(shard) + 1));
            self.tell(C, Input::LocalSend { shard, message: MessageInfo::of(token) });
        }
        self.frames.clear();
        for index in [B, C] {
            self.tell(index, Input::Membership(members(&[B, C], self.now)));
        }
        let config = CoordinatorConfig {
            id: CoordinatorId { node: node(B), incarnation: 2 },
            fingerprint: fingerprint(SHARDS),
            role: String::new(),
            settings: settings(),
            down_removal_margin: Duration::from_secs(1),
            max_batch: usize::MAX,
            omissions: Omissions::default(),
        };
        let mut deeds = Vec::new();
        self.coordinator = Some(Coordinator::new(config, &mut deeds));
        self.coordinate(CoordinatorInput::Membership(members(&[B, C], self.now)));
        for deed in deeds {
            self.perform(deed);
        }
        self.tell(B, Input::Coordinator(Some(2)));
    }
}

#[test]
fn scenario_98_many_shards_fail_over_in_frames_below_64_kib() {
    let mut world = World::new();
    world.hosted();
    let began = world.now;
    world.fail_over();
    world.run_until(began + Duration::from_secs(5));
    let (at, shards) = world.active.expect("it is active within 5 s");
    assert_eq!(
        (at.saturating_duration_since(began) <= Duration::from_secs(5), shards),
        (true, (SHARDS - HOMELESS) as usize)
    );
    assert!(world.traffic.longest <= FRAME, "a frame of {} bytes", world.traffic.longest);
    for manifest in [wire::REGION_MANIFEST, wire::COORDINATOR_MANIFEST] {
        assert!(world.traffic.cut.contains_key(manifest), "no {manifest} was cut: {:?}", world.traffic.cut);
    }
    for shard in 0..SHARDS {
        let at_b = shard >= SHARDS - HOMELESS || owner(shard) == B;
        for (index, is_home) in [(B, at_b), (C, !at_b)] {
            let route = world.routes.get(&(index, ShardId::from_index(shard)));
            let is_right = match route {
                Some(Route::Local { .. }) => is_home,
                Some(Route::Remote { region: home, .. }) => !is_home && *home == region(if at_b { B } else { C }),
                _ => false,
            };
            assert!(is_right, "shard {shard} at {index}: {route:?}");
        }
    }
    let expected = (0..SHARDS).filter(|shard| owner(*shard) == B || *shard >= SHARDS - HOMELESS).count();
    assert_eq!(world.sent as usize, expected, "each message that waited left once");
}
