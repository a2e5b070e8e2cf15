//! The fence that sharding builds on replicators: of several coordinators only one may decide.
//!
//! Each coordinator reads everything, writes its epoch, reads everything again, writes its decision, and reads the
//! epoch once more before it announces the decision; every step by a majority-plus, with random pauses between the
//! steps. A coordinator that knows no home decides one; no two decisions may be announced. Source: sharding §2.15,
//! ddata I4, scenario 86.

use std::time::Duration;

use greylag_crdt::{LwwMap, LwwRegister, ReplicatedData, UpdateCx};
use greylag_ddata::{Effect, Input, Key, Read, ReadLevel, Reply, WriteLevel};
use greylag_testkit::network::Link;
use rand::RngExt;

use super::faults;
use super::world::World;
use crate::Omission;

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(400);
const SHARD: u8 = 1;

type Meta = LwwRegister<u8>;
/// The allocating incarnation, by shard.
type Homes = LwwMap<u8, u8>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    ReadMeta,
    ReadHomes,
    WriteEpoch,
    ReadMetaAgain,
    ReadHomesAgain,
    WriteHome,
    Fence,
    Over,
}

/// One incarnation of the coordinator.
#[derive(Debug)]
struct Coordinator {
    node: usize,
    name: u8,
    epoch: i64,
    step: Step,
    /// The request in progress.
    request: Option<u64>,
    /// Time of the next step.
    at: Duration,
    /// The epoch under which the shard was allocated, if it was.
    known: Option<i64>,
}

/// Plays one history.
pub(super) fn history(seed: u64, without: Option<Omission>) -> World {
    let mut world = faults::quiet(seed);
    world.run_for(2_000 * MS);
    let link = Link { delay: (MS, 60 * MS), loss: 0.1, duplication: 0.1, reorder: true };
    world.net.set_default_link(link);
    let (meta, homes) = (Key::new("meta").expect("a short id"), Key::new("homes").expect("a short id"));
    let mut coordinators: Vec<Coordinator> = (0..3_usize)
        .map(|node| {
            let at = world.net.now() + world.net.rng().random_range(0..600) * MS;
            let name = u8::try_from(node).expect("there are three");
            Coordinator { node, name, epoch: 0, step: Step::ReadMeta, request: None, at, known: None }
        })
        .collect();
    let mut announced: Vec<u8> = Vec::new();
    for _ in 0..1_500 {
        world.run_for(4 * MS);
        for coordinator in &mut coordinators {
            announced.extend(coordinator.go_on(&mut world, &meta, &homes, without));
        }
        if announced.len() > 1 {
            let what = format!("coordinators {announced:?} each announced a home of its own for one shard");
            world.breaks("no two decisions are announced (sharding §2.15)", what);
        }
        if world.broken.is_some() || coordinators.iter().all(|coordinator| coordinator.step == Step::Over) {
            break;
        }
    }
    world
}

impl Coordinator {
    /// Takes the next step if it is due. Returns the coordinator's name if it announces a decision.
    fn go_on(
        &mut self,
        world: &mut World,
        meta: &Key<Meta>,
        homes: &Key<Homes>,
        without: Option<Omission>,
    ) -> Option<u8> {
        if self.step == Step::Over || world.net.now() < self.at {
            return None;
        }
        let Some(request) = self.request else {
            self.ask(world, meta, homes);
            return None;
        };
        let reply = world.watched.get_mut(&(self.node, request))?.take()?;
        self.request = None;
        // A random pause between two steps, sometimes long.
        let most = if world.chance(0.3) { 2_000 } else { 60 };
        self.at = world.net.now() + world.net.rng().random_range(0..most) * MS;
        let before = self.step;
        match reply {
            Reply::Update(Ok(())) => self.written(without),
            Reply::Get(Ok(read)) => self.read(read, without),
            // A failed request is repeated without end.
            _ => {}
        }
        world.tell(|| format!("coordinator {} was {before:?}, is {:?}, epoch {}", self.name, self.step, self.epoch));
        let decided = matches!(before, Step::Fence | Step::WriteHome) && self.known == Some(self.epoch);
        (decided && self.step == Step::Over).then_some(self.name)
    }

    fn ask(&mut self, world: &mut World, meta: &Key<Meta>, homes: &Key<Homes>) {
        world.next += 1;
        let id = world.next;
        self.request = Some(id);
        world.watched.insert((self.node, id), None);
        let level = ReadLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT };
        let get = |key, tag| Input::Get { id, key, tag, level };
        let (name, epoch) = (self.name, self.epoch);
        match self.step {
            Step::ReadMeta | Step::ReadMetaAgain | Step::Fence => {
                world.input(self.node, get(meta.id().clone(), Meta::TAG.to_string().into()));
            }
            Step::ReadHomes | Step::ReadHomesAgain => {
                world.input(self.node, get(homes.id().clone(), Homes::TAG.to_string().into()));
            }
            Step::WriteEpoch => {
                let set = move |register: &mut Meta, cx: &mut UpdateCx<'_>| {
                    register.set_with(cx, name, |_, _| epoch);
                };
                self.write(world, id, meta, set);
            }
            Step::WriteHome => {
                let put = move |map: &mut Homes, cx: &mut UpdateCx<'_>| {
                    map.put_with(cx, SHARD, name, |_, _| 2 * epoch);
                };
                self.write(world, id, homes, put);
            }
            Step::Over => {}
        }
    }

    fn write<T: ReplicatedData>(
        &self,
        world: &mut World,
        id: u64,
        key: &Key<T>,
        change: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) {
        let level = WriteLevel::MajorityPlus { additional: 1, min_cap: None, timeout: TIMEOUT };
        let (mut out, now, wall): (Vec<Effect>, _, _) = (Vec::new(), world.now(), world.wall_ms(self.node));
        let modify = |value: &mut T, cx: &mut UpdateCx<'_>| {
            change(value, cx);
            Ok::<_, ()>(())
        };
        let core = &mut world.processes[self.node].core;
        let done = core.update(now, wall, id, key, level, T::zero, modify, &mut out);
        debug_assert!(done.is_ok(), "a sound update is taken");
        world.perform(self.node, out);
    }

    fn written(&mut self, without: Option<Omission>) {
        self.step = match self.step {
            Step::WriteEpoch if without == Some(Omission::BucketReRead) => self.decide(),
            Step::WriteEpoch => Step::ReadMetaAgain,
            Step::WriteHome => {
                self.known = Some(self.epoch);
                if without == Some(Omission::FenceRead) { Step::Over } else { Step::Fence }
            }
            step => step,
        };
    }

    /// The next step: a coordinator that knows no home decides one.
    fn decide(&self) -> Step {
        if self.known.is_none() { Step::WriteHome } else { Step::Over }
    }

    fn read(&mut self, read: Read<greylag_ddata::Snapshot>, without: Option<Omission>) {
        let snapshot = read.found();
        match self.step {
            Step::ReadMeta => {
                let meta = snapshot.and_then(|snapshot| snapshot.to::<Meta>());
                self.epoch = 1 + meta.map_or(0, |meta| meta.timestamp());
                self.step = Step::ReadHomes;
            }
            Step::ReadHomes | Step::ReadHomesAgain => {
                let homes = snapshot.and_then(|snapshot| snapshot.to::<Homes>());
                let home = homes.filter(|homes| homes.contains(&SHARD)).map(|homes| homes.timestamp(&SHARD) / 2);
                self.known = self.known.max(home);
                self.step = if self.step == Step::ReadHomes {
                    self.epoch = self.epoch.max(1 + home.unwrap_or(0));
                    Step::WriteEpoch
                } else if home.is_some_and(|epoch| epoch >= self.epoch) {
                    Step::Over
                } else {
                    self.decide()
                };
            }
            Step::ReadMetaAgain | Step::Fence => {
                let meta = snapshot.and_then(|snapshot| snapshot.to::<Meta>());
                let is_own =
                    meta.is_some_and(|meta| meta.value() == Some(&self.name) && meta.timestamp() == self.epoch);
                if !is_own {
                    // The coordinator is fenced, so its decision is not announced.
                    self.known = None;
                }
                self.step = match self.step {
                    Step::ReadMetaAgain if is_own => Step::ReadHomesAgain,
                    _ => Step::Over,
                };
            }
            Step::WriteEpoch | Step::WriteHome | Step::Over => {}
        }
        debug_assert!(without != Some(Omission::BucketReRead) || self.step != Step::ReadHomesAgain);
    }
}
