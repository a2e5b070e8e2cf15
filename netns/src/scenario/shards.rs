//! A host of entities, or of their coordinators, is killed, cut off or paused, under clients on every host.
//!
//! The world has four entity types at once (one shard and a thousand, both ways to keep homes), which share hosts and faults
//! and nothing else. Their entities are registers in a journal on PostgreSQL, which every process reaches through a socket in
//! the file system, also one that is cut off: only what the nodes know keeps it from answering.
//!
//! In each scenario no entity has two instances at a time, and what all clients were answered is linearizable, plain reads
//! included: those of clients beside a host that is cut off, and what a paused process answers when it wakes.
//!
//! Source: sharding I1, §2.12, §2.13, §4.1, §5, scenarios 20, 21, 22; cluster F9, S14, S20, 85.

mod world;

use std::time::Duration;

use world::{Break, Role, World};

use super::{PATIENCE, never};
use crate::judge::Waits;
use crate::lab::Failure;
use crate::process::{Node, STABLE_AFTER};
use crate::report::{At, Findings, What};

/// How soon entities answer that the fault does not concern: most of it is the machine's.
const UNCONCERNED: Duration = Duration::from_secs(10);

pub(super) fn kill_coordinator(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Coordinator, Break::Kill, quick)
}

pub(super) fn kill_owner(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Owner, Break::Kill, quick)
}

pub(super) fn cut_coordinator(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Coordinator, Break::Cut, quick)
}

pub(super) fn cut_owner(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Owner, Break::Cut, quick)
}

pub(super) fn pause_coordinator(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Coordinator, Break::Pause, quick)
}

pub(super) fn pause_owner(quick: bool) -> Result<Findings, Failure> {
    on_four_hosts(Role::Owner, Break::Pause, quick)
}

/// The resolver decides: detection, `stable_after`, the margin.
fn on_four_hosts(role: Role, how: Break, quick: bool) -> Result<Findings, Failure> {
    let stable_after = if quick { Duration::from_secs(7) } else { STABLE_AFTER };
    World::on_hosts(4, stable_after)?.judged(|world, findings| {
        world.warm_up()?;
        let (mut victim, hit) = world.strike(role, how)?;
        let removed = world.wait_removed(&victim, hit)?;
        findings.took("fault until removed everywhere", removed.since(hit));
        let served = world.wait_served(hit)?;
        findings.took("fault until all entities answer all hosts", served.since(hit));
        recover(world, findings, &mut victim, how)?;
        never("a survivor was downed", &world.nodes, hit, |what| *what == What::SelfDowned)?;
        world.replace(&victim)?;
        world.note_fault("fault", hit, &victim, move |waits| after_the_margin(waits, stable_after));
        Ok(())
    })
}

/// Undoes what broke the victim, and waits until its process is gone.
fn recover(world: &World, findings: &mut Findings, victim: &mut Node, how: Break) -> Result<(), Failure> {
    let is_end = |what: &What| matches!(what, What::Ended { .. });
    match how {
        Break::Kill => {}
        Break::Cut => {
            victim.wait("its end", At::EPOCH, PATIENCE, is_end)?;
            world.lab.heal()?;
        }
        Break::Pause => {
            let resumed = victim.resume()?;
            let ended = victim.wait("its end", resumed, PATIENCE, is_end)?;
            findings.took("resumed until it has ended", ended.since(resumed));
        }
    }
    victim.wait_gone(PATIENCE)
}

/// Five processes on one host, where a death is proven by the kernel: the coordinator's is killed, then the owner's.
pub(super) fn kill_on_one_host(_quick: bool) -> Result<Findings, Failure> {
    World::on_one_host(5)?.judged(|world, findings| {
        world.warm_up()?;
        for (role, name) in [(Role::Coordinator, "coordinator killed"), (Role::Owner, "owner killed")] {
            let (victim, hit) = world.strike(role, Break::Kill)?;
            let removed = world.wait_removed(&victim, hit)?;
            findings.took(format!("{name} until removed everywhere"), removed.since(hit));
            let served = world.wait_served(hit)?;
            findings.took(format!("{name} until all entities answer all processes"), served.since(hit));
            world.note_fault(name, hit, &victim, within_seconds);
        }
        never("the resolver had to act", &world.nodes, At::EPOCH, |what| matches!(what, What::Decision { .. }))
    })
}

/// What lived on the victim starts elsewhere only when the resolver's patience and the margin, which is as long, are over; what
/// lived elsewhere answers throughout.
fn after_the_margin(waits: &Waits, stable_after: Duration) -> Result<(), Failure> {
    if let Some(early) = waits.of_victim.iter().find(|wait| **wait < 2 * stable_after) {
        return Err(format!("no margin: an entity of the host answers elsewhere after {early:?}"));
    }
    unconcerned(waits)
}

/// What lived on the victim is back as soon as its death is proven, and so is its coordinator.
fn within_seconds(waits: &Waits) -> Result<(), Failure> {
    let slow = waits.of_victim.iter().chain(&waits.of_newcomers).find(|wait| **wait > 2 * UNCONCERNED);
    slow.map_or_else(|| unconcerned(waits), |wait| Err(format!("a proven death costs {wait:?}")))
}

fn unconcerned(waits: &Waits) -> Result<(), Failure> {
    let slow = waits.of_others.iter().find(|wait| **wait > UNCONCERNED);
    slow.map_or(Ok(()), |wait| Err(format!("an entity that lived on another host answers after {wait:?}")))
}
