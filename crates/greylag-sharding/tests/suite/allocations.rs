//! Sharding scenario 106: the coordinator's work for one allocation does not grow with the number of others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::machines::{fingerprint, up};
use greylag_core::UniqueAddress;
use greylag_sharding::Omissions;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::{Coordinator, CoordinatorConfig, Effect, Input, StateEvent, StoredState};
use greylag_sharding::machine::membership::Members;
use greylag_sharding::machine::message::{
    AgreementOutcome, CoordinatorId, CoordinatorMessage, RegionMessage, Register,
};
use greylag_sharding::settings::ShardingSettings;

/// So many shards that quadratic work would not end.
const SHARDS: u32 = 100_000;
/// Most homes of a table sent in one turn.
const TURN: usize = 2_000;

fn node(n: u64) -> UniqueAddress {
    format!("n{n}:1#{n}").parse().unwrap()
}

fn region(n: u64) -> RegionId {
    RegionId { node: node(n), incarnation: 1 }
}

/// A coordinator on `n1` of a cluster of two, and its effects.
struct World {
    now: Instant,
    coordinator: Coordinator,
    stored: StoredState,
    epoch: u64,
    /// Shards of each call of the strategy.
    asked: Vec<ShardId>,
    /// Events of each write.
    writes: Vec<usize>,
    /// The write under way, unless it is answered at once.
    held: Option<u64>,
    holds_writes: bool,
    /// Homes sent by `ShardHomes` in one turn, for each region.
    told: Vec<(u64, usize)>,
    continues: usize,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let members = Members { members: [(node(1), up(1)), (node(2), up(2))].into(), ..Members::default() };
        let config = CoordinatorConfig {
            id: CoordinatorId { node: node(1), incarnation: 1 },
            fingerprint: fingerprint(SHARDS),
            role: String::new(),
            settings: ShardingSettings::default(),
            down_removal_margin: Duration::from_secs(1),
            max_batch: usize::MAX,
            omissions: Omissions::default(),
        };
        let mut effects = Vec::new();
        let mut world = Self {
            now,
            coordinator: Coordinator::new(config, &mut effects),
            stored: StoredState::default(),
            epoch: 0,
            asked: Vec::new(),
            writes: Vec::new(),
            held: None,
            holds_writes: false,
            told: Vec::new(),
            continues: 0,
        };
        world.input(Input::Membership(Arc::new(members)));
        world.input(Input::Agreement(AgreementOutcome::Agreed));
        world.input(Input::Read { state: StoredState::default(), wall_secs: 5, seen_epoch: 0 });
        world.epoch = world.coordinator.epoch();
        for serial in 1..=2 {
            world.register(1, serial);
        }
        world
    }

    fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.coordinator.handle(self.now, input, &mut effects);
        let mut answers = Vec::new();
        let mut told = 0;
        let mut to = 0;
        for effect in effects {
            match effect {
                Effect::Read => {
                    let state = self.stored.clone();
                    answers.push(Input::Read { state, wall_secs: 5, seen_epoch: 0 });
                }
                Effect::Commit { batch, events } => {
                    self.writes.push(events.len());
                    for event in events {
                        match event {
                            StateEvent::EpochStarted(meta) => self.stored.meta = Some(meta),
                            StateEvent::Home { shard, home } => drop(self.stored.homes.insert(shard, home)),
                            other => panic!("{other:?} in mode ddata"),
                        }
                    }
                    if self.holds_writes {
                        self.held = Some(batch);
                    } else {
                        answers.push(Input::Committed { batch });
                    }
                }
                Effect::CallAllocate { call, shards, .. } => {
                    self.asked.extend(shards.iter().map(|(shard, _)| shard.clone()));
                    let homes = shards.into_iter().map(|(shard, _)| (shard, Some(region(1)))).collect();
                    answers.push(Input::Allocated { call, homes });
                }
                Effect::Send { to: node, message } => {
                    if let CoordinatorMessage::ShardHomes(homes) = message.message {
                        told += homes.len();
                        to = node.uid().get();
                    }
                }
                Effect::Continue => {
                    self.continues += 1;
                    answers.push(Input::Continue);
                }
                _ => {}
            }
        }
        if told > 0 {
            self.told.push((to, told));
        }
        for answer in answers {
            self.input(answer);
        }
    }

    fn register(&mut self, of: u64, serial: u64) {
        let register = Register {
            region: region(of),
            proxy: of == 2,
            serial,
            fingerprint: fingerprint(SHARDS),
            highest_epoch: if serial == 1 { 0 } else { self.coordinator.epoch() },
            hosted: Vec::new(),
        };
        self.input(Input::FromRegion { node: node(of), message: RegionMessage::Register(register) });
    }

    fn ask_for(&mut self, shard: u32) {
        let message = RegionMessage::GetShardHome { region: region(1), shards: vec![ShardId::from_index(shard)] };
        self.input(Input::FromRegion { node: node(1), message });
    }
}

#[test]
fn scenario_106_each_shard_is_decided_once_while_others_are_being_committed() {
    let mut world = World::new();
    // `NoRegion` of the node that registers only a proxy completes the inventory.
    world.input(Input::FromRegion { node: node(2), message: RegionMessage::NoRegion { epoch: world.epoch } });
    world.register(2, 1);
    world.writes.clear();
    world.holds_writes = true;
    (0..SHARDS).for_each(|shard| world.ask_for(shard));
    let asked: BTreeSet<_> = world.asked.iter().collect();
    assert_eq!((world.asked.len(), asked.len()), (SHARDS as usize, SHARDS as usize), "the strategy is asked once each");
    assert_eq!(world.writes, [1], "one write is under way, the others wait for it");
    world.holds_writes = false;
    let batch = world.held.take().expect("under way");
    world.input(Input::Committed { batch });
    assert_eq!(world.writes, [1, SHARDS as usize - 1], "all that waited go in the next one");
    assert_eq!(world.coordinator.homes().count(), SHARDS as usize);
}

#[test]
fn scenario_106_a_table_goes_out_in_turns() {
    let mut world = World::new();
    world.input(Input::FromRegion { node: node(2), message: RegionMessage::NoRegion { epoch: world.epoch } });
    let shards = (0..SHARDS).map(ShardId::from_index).collect();
    let message = RegionMessage::GetShardHome { region: region(1), shards };
    world.input(Input::FromRegion { node: node(1), message });
    world.told.clear();
    world.continues = 0;
    world.register(2, 1);
    assert_eq!(world.told.iter().map(|(_, homes)| homes).sum::<usize>(), SHARDS as usize);
    assert!(world.told.iter().all(|(to, homes)| *to == 2 && *homes <= TURN), "no turn tells more than {TURN}");
    assert!(world.continues >= SHARDS as usize / TURN - 1, "others have their turn between two parts");
}
