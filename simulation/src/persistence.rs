//! Persistent entities on several nodes, over shared stores.
//!
//! Event-sourced machines with a delivery tracker, and machines with a durable state: hosted by nodes one after another
//! and at once, under generations or under the epochs they saw, so that stale writers write, claim, delete and snapshot
//! late. Answers are lost, calls are duplicated, disks fill, breakers open, nodes crash, handlers panic. Then faults
//! stop: of every entity one host must be able to write, every delivery is confirmed, all hosts stop.
//!
//! A model that shares no code with the machines is told of every write that the stores took. Checked against it at every
//! step: a recovered state is the fold of all stored events, of acknowledged ones and of those whose outcome was
//! unknown and that turned out stored; no reply leaves before the events that it depends on are stored, and an order
//! that was answered as not stored never is; every event names the one before, so there is one history; stashed orders
//! keep their order; nothing is sent without its event; recovery permits are returned.
//!
//! Source: persistence §2, §3, §4.1, §6, §10; scenarios 61 to 69.

mod action_log;
mod event_entity;
mod faults;
mod history;
mod hosting;
mod machine;
mod network;
mod permits;
mod setup;
mod stash;
mod state_entity;
mod store;
mod text;
mod world;

use std::time::Duration;

use rand::RngExt;

use crate::{Omission, Outcome, Run, Violation};
use action_log::OrderKind;
use machine::HostInput;
use world::{Due, World};

pub(crate) fn worlds() -> Vec<crate::World> {
    vec![crate::World {
        name: "persistence",
        profile: None,
        about: "entities that persist: one history, no early reply, recovered is what is stored, stash order kept",
        omissions: &[
            Omission::GenerationCheck,
            Omission::EpochCheck,
            Omission::NumberCheck,
            Omission::SeenCheck,
            Omission::RevisionCheck,
            Omission::Unanswered,
            Omission::Incarnation,
            Omission::SendBeforeStore,
            Omission::DurableFlush,
        ],
        run: Run::Plain(run),
    }]
}

/// How long faults last; and the limits until everything must be well after them.
const SAFETY: Duration = Duration::from_secs(6);
const TIME_LIMIT: u32 = 1_200;
const STEP: Duration = Duration::from_millis(50);

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let mut world = World::new(seed, without);
    for entity in 0..world.entities() {
        let node = world.rng.random_range(0..world.setup.nodes);
        world.start(node, entity, false);
    }
    world.later(STEP, Due::Fault);
    while world.now < SAFETY && world.broken.is_none() {
        let (entity, kind) = (world.rng.random_range(0..world.entities()), world.draw_order_kind());
        world.want(entity, kind);
        let pause = Duration::from_millis(world.rng.random_range(0..40));
        world.run_for(pause);
    }
    heal(&mut world);
    end(&mut world);
    match world.broken {
        Some(violation) => Err(violation),
        None => Ok(Outcome { steps: world.steps, faults: world.faults, checked: world.checked, ..Outcome::default() }),
    }
}

/// The faults end: of every entity one host must be able to write, and every delivery must be confirmed.
fn heal(world: &mut World) {
    world.is_faulty = false;
    (world.disk_full_until, world.breaker_until) = (Duration::ZERO, Duration::ZERO);
    let mut owners: Vec<u64> = (0..world.entities()).map(|entity| world.start(0, entity, false)).collect();
    let mut asked: Vec<Vec<u64>> = vec![Vec::new(); owners.len()];
    for _ in 0..TIME_LIMIT {
        if world.broken.is_some() {
            return;
        }
        let is_served = |entity: usize| asked[entity].iter().any(|number| world.served.contains(number));
        let is_confirmed = |entity: usize| world.event_histories.get(entity).is_none_or(|of| of.open_deliveries() == 0);
        if (0..owners.len()).all(|entity| is_served(entity) && is_confirmed(entity)) {
            return;
        }
        for entity in 0..owners.len() {
            if !world.hosted.contains_key(&owners[entity]) {
                owners[entity] = world.start(0, entity, false);
            }
            let is_running = world.hosted.get(&owners[entity]).is_some_and(|hosted| hosted.machine.is_running());
            if is_running && asked[entity].len() < 1_000 {
                asked[entity].push(world.order(owners[entity], OrderKind::Write(1)));
            }
        }
        world.run_for(STEP);
    }
    world.fail(
        "every entity can be written once faults have stopped",
        "an entity does not serve, or a delivery is not confirmed".to_owned(),
    );
}

/// All hosts stop; then each entity is recovered once more, and must have the stored state.
fn end(world: &mut World) {
    stop_all(world);
    for entity in 0..world.entities() {
        if world.broken.is_some() {
            return;
        }
        let (before, key) = (world.checked, world.start(0, entity, false));
        for _ in 0..TIME_LIMIT {
            if world.hosted.get(&key).is_some_and(|hosted| hosted.machine.is_running()) {
                break;
            }
            world.run_for(STEP);
        }
        if world.checked == before {
            world.fail("every entity recovers", format!("entity {entity} does not"));
        }
    }
    stop_all(world);
}

fn stop_all(world: &mut World) {
    for key in world.hosted.keys().copied().collect::<Vec<_>>() {
        world.tell(key, HostInput::Stop);
    }
    for _ in 0..TIME_LIMIT {
        if world.hosted.is_empty() || world.broken.is_some() {
            break;
        }
        world.run_for(STEP);
    }
    if !world.hosted.is_empty() {
        world.fail("who is asked to stop does", format!("machines {:?} run on", world.hosted.keys()));
    }
    if world.broken.is_none() && !world.permits.iter().all(permits::Permits::is_at_rest) {
        world.fail("recovery permits come back (§2.5)", format!("{:?}", world.permits));
    }
}
