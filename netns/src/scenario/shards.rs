//! A host of entities, or of their coordinators, is killed, cut off or paused, while clients run on every host.
//!
//! The cluster has four entity types at once (with one shard and with a thousand, each with both state store modes),
//! which share only the hosts and the faults. The entities are registers with a journal in PostgreSQL. Every process
//! reaches the journal through a socket in the file system, even a process that is cut off: an entity there can still
//! write, and only the knowledge of the nodes keeps it from answering.
//!
//! In each scenario no entity has two instances at a time, and the answers to all clients are linearizable, including
//! plain reads: those of clients on a host that is cut off, and those answered by a paused process when it wakes.
//!
//! Source: sharding I1, §2.12, §2.13, §4.1, §5, scenarios 20, 21, 22; cluster F9, S14, S20, 85.

mod world;

use std::time::Duration;

use world::{Break, Role, World};

use super::{TIMEOUT, never};
use crate::judge::Waits;
use crate::lab::Failure;
use crate::process::{Node, STABLE_AFTER};
use crate::report::{At, Findings, NodeEvent};

/// Time limit for answers of entities that the fault does not concern; most of the time is the machine's.
const UNAFFECTED_LIMIT: Duration = Duration::from_secs(10);

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

/// Four hosts, where the resolver decides: recovery takes detection, `stable_after` and the margin.
fn on_four_hosts(role: Role, how: Break, quick: bool) -> Result<Findings, Failure> {
    let stable_after = if quick { Duration::from_secs(7) } else { STABLE_AFTER };
    World::on_hosts(4, stable_after)?.judged(|world, findings| {
        world.warm_up()?;
        let (mut victim, hit) = world.inject_fault(role, how)?;
        let removed = world.wait_removed(&victim, hit)?;
        findings.took("fault until removed everywhere", removed.since(hit));
        let served = world.wait_served(hit)?;
        findings.took("fault until all entities answer all hosts", served.since(hit));
        recover(world, findings, &mut victim, how)?;
        never("a survivor was downed", &world.nodes, hit, |what| *what == NodeEvent::SelfDowned)?;
        world.replace(&victim)?;
        world.note_fault("fault", hit, &victim, move |waits| after_the_margin(waits, stable_after));
        Ok(())
    })
}

/// Undoes the fault, and waits until the broken process has ended.
fn recover(world: &World, findings: &mut Findings, victim: &mut Node, how: Break) -> Result<(), Failure> {
    let is_end = |what: &NodeEvent| matches!(what, NodeEvent::Ended { .. });
    match how {
        Break::Kill => {}
        Break::Cut => {
            victim.wait("its end", At::EPOCH, TIMEOUT, is_end)?;
            world.lab.heal()?;
        }
        Break::Pause => {
            let resumed = victim.resume()?;
            let ended = victim.wait("its end", resumed, TIMEOUT, is_end)?;
            findings.took("resumed until it has ended", ended.since(resumed));
        }
    }
    victim.wait_gone(TIMEOUT)
}

/// Five processes on one host, where the kernel proves a death: the coordinator's process is killed, then the owner's.
pub(super) fn kill_on_one_host(_quick: bool) -> Result<Findings, Failure> {
    World::on_one_host(5)?.judged(|world, findings| {
        world.warm_up()?;
        for (role, name) in [(Role::Coordinator, "coordinator killed"), (Role::Owner, "owner killed")] {
            let (victim, hit) = world.inject_fault(role, Break::Kill)?;
            let removed = world.wait_removed(&victim, hit)?;
            findings.took(format!("{name} until removed everywhere"), removed.since(hit));
            let served = world.wait_served(hit)?;
            findings.took(format!("{name} until all entities answer all processes"), served.since(hit));
            world.note_fault(name, hit, &victim, within_seconds);
        }
        never("the resolver had to act", &world.nodes, At::EPOCH, |what| matches!(what, NodeEvent::Decision { .. }))
    })
}

/// Requires that entities of the broken node start elsewhere only after the resolver's `stable_after` and the margin,
/// which is as long, and that entities of other nodes answer throughout.
fn after_the_margin(waits: &Waits, stable_after: Duration) -> Result<(), Failure> {
    if let Some(early) = waits.of_victim.iter().find(|wait| **wait < 2 * stable_after) {
        return Err(format!("no margin: an entity of the host answers elsewhere after {early:?}"));
    }
    unaffected(waits)
}

/// Requires that entities and coordinators of the killed process are back as soon as its death is proven.
fn within_seconds(waits: &Waits) -> Result<(), Failure> {
    let slow = waits.of_victim.iter().chain(&waits.of_newcomers).find(|wait| **wait > 2 * UNAFFECTED_LIMIT);
    slow.map_or_else(|| unaffected(waits), |wait| Err(format!("a proven death costs {wait:?}")))
}

fn unaffected(waits: &Waits) -> Result<(), Failure> {
    let slow = waits.of_others.iter().find(|wait| **wait > UNAFFECTED_LIMIT);
    slow.map_or(Ok(()), |wait| Err(format!("an entity that lived on another host answers after {wait:?}")))
}
