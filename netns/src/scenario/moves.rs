//! The address of the singleton's host moves to another namespace, while the old process runs on, cut off.
//!
//! The other members hear a new process at the address of a member that does not answer, but whose death is not proven.
//! The new process must change nothing: the old process ends itself when its own resolver decides so, the others remove
//! the old process when their resolvers do, and the singleton starts elsewhere after the margin.
//!
//! Source: cluster scenario 76, M25, T15.

use std::time::Duration;

use super::{TIMEOUT, form, never, never_two_instances, removed};
use crate::lab::{Failure, Lab};
use crate::process::Start;
use crate::report::{At, Findings, NodeEvent};

/// Count of runs of the long form, and of those that run in parallel.
const RUNS: u32 = 40;
const TOGETHER: usize = 8;
/// The longest delay from the cut to the start of the new process.
const LATEST: Duration = Duration::from_secs(60);

/// The times of one run.
struct Move {
    /// From the cut until all others have removed the old process.
    removed: Duration,
    /// From the removal until the singleton works elsewhere.
    margin: Duration,
    /// From the later of removal and start until the new process is an Up member.
    joined: Duration,
}

/// Moves the address 0 to 60 s after the cut, mostly early; for the gate once, with short settings.
pub(super) fn of_an_address(quick: bool) -> Result<Findings, Failure> {
    let (runs, stable_after) = if quick { (1, Duration::from_secs(7)) } else { (RUNS, Duration::from_secs(20)) };
    let delays: Vec<Duration> = (0..runs)
        .map(|run| {
            let part = f64::from(run) / f64::from(RUNS - 1);
            if quick { Duration::from_secs(1) } else { LATEST.mul_f64(part * part) }
        })
        .collect();
    let mut moves = Vec::new();
    for batch in delays.chunks(TOGETHER) {
        let outcomes: Vec<Result<Move, Failure>> = std::thread::scope(|scope| {
            let start = |delay: &Duration| {
                let delay = *delay;
                scope.spawn(move || one(delay, stable_after))
            };
            let running: Vec<_> = batch.iter().map(start).collect();
            let panicked = |_| Err("a run panicked".to_owned());
            running.into_iter().map(|run| run.join().unwrap_or_else(panicked)).collect()
        });
        for outcome in outcomes {
            moves.push(outcome?);
        }
    }
    let mut findings = Findings::default();
    findings.add("runs, never two instances", moves.len().to_string());
    let most = |time: fn(&Move) -> Duration| moves.iter().map(time).max().unwrap_or_default();
    let least = moves.iter().map(|run| run.margin).min().unwrap_or_default();
    findings.took("cut until removed everywhere, most", most(|run| run.removed));
    findings.took("removed until the singleton works elsewhere, least", least);
    findings.took("free until the new process is Up, most", most(|run| run.joined));
    Ok(findings)
}

fn one(delay: Duration, stable_after: Duration) -> Result<Move, Failure> {
    // The fourth host runs no node until the address moves there.
    let lab = Lab::new(4)?;
    let mut nodes = form(&lab, 3, |start| start.stable_after(stable_after))?;
    let old = nodes[0].name.clone();
    let cut = At::now();
    lab.unplug(0)?;
    std::thread::sleep(delay);
    lab.move_address(0, 3)?;
    let seed = nodes[1].name.clone();
    let started = At::now();
    nodes.push(Start::at_address_of(&lab, 0, 3, &seed).stable_after(stable_after).spawn()?);
    let mut gone = cut;
    for survivor in &nodes[1..3] {
        gone = gone.max(survivor.wait("the removal", cut, TIMEOUT, removed(&old))?);
        let is_proof =
            |what: &NodeEvent| matches!(what, NodeEvent::ProvenDead { .. } | NodeEvent::Removed { clean: true, .. });
        never("the moved name was taken for a death", [survivor], cut, is_proof)?;
        never("a survivor was downed", [survivor], cut, |what| *what == NodeEvent::SelfDowned)?;
    }
    let held = |what: &NodeEvent| matches!(what, NodeEvent::AddressHeld { .. });
    if started.since(cut) + Duration::from_secs(2) < gone.since(cut) && never("", &nodes[1..3], started, held).is_ok() {
        return Err(format!("no node reported that the address of {old} was claimed before {old} was removed"));
    }
    let working = nodes[1].wait("the singleton", cut, TIMEOUT, |what| *what == NodeEvent::SingletonWorks)?;
    let is_up = |what: &NodeEvent| *what == NodeEvent::Up { count: 3 };
    let up = nodes[3].wait("that it is Up", started, TIMEOUT, is_up)?;
    nodes[0].wait("its end", cut, TIMEOUT, |what| matches!(what, NodeEvent::Ended { .. }))?;
    never_two_instances(&nodes)?;
    let margin = working.since(gone);
    // Allow 4 s less: the margin counts from the removal that the node itself saw, `gone` from the last one anywhere.
    if margin + Duration::from_secs(4) < stable_after {
        return Err(format!("no margin: the singleton works {margin:?} after the removal"));
    }
    Ok(Move { removed: gone.since(cut), margin, joined: up.since(gone.max(started)) })
}
