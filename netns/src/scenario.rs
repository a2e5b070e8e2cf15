//! The scenarios, each with the guarantee that it tests, and the functions that run them.

mod cuts;
mod kills;
mod moves;
mod pauses;
mod shards;

use std::time::Duration;

use crate::lab::{Failure, Lab};
use crate::process::{Node, Start};
use crate::report::{At, Findings, Line, NodeEvent};
use crate::say;

/// One way to break a cluster, and the checks that must hold then.
pub(crate) struct Scenario {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// A sentence on what the scenario does.
    pub(crate) about: &'static str,
    /// Whether the gate runs it.
    pub(crate) in_quick: bool,
    /// Runs while no other scenario does, since its measured times would suffer on a busy machine.
    alone: bool,
    run: fn(quick: bool) -> Result<Findings, Failure>,
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "kill-on-one-host",
        about: "ten processes on one host, default settings: the singleton's host is killed again and again",
        in_quick: true,
        alone: true,
        run: kills::on_one_host,
    },
    Scenario {
        name: "restart-on-one-host",
        about: "four processes on one host, default settings: one is paused for 15 s, then killed and started again at its address",
        in_quick: true,
        alone: false,
        run: kills::paused_then_restarted,
    },
    Scenario {
        name: "kill-proof-on",
        about: "four hosts, `proof_of_death = on`: the singleton's host is killed",
        in_quick: true,
        alone: false,
        run: kills::with_proof_on,
    },
    Scenario {
        name: "kill-no-proof",
        about: "four hosts, default settings: no node can prove a death on another host, the resolver decides",
        in_quick: false,
        alone: false,
        run: kills::without_proof,
    },
    Scenario {
        name: "moved-address",
        about: "three hosts, 40 times: the address of the singleton's host moves to a fourth while its process, cut off, runs on",
        in_quick: true,
        alone: false,
        run: moves::of_an_address,
    },
    Scenario {
        name: "pause-short",
        about: "four hosts: the singleton's host is paused for 8 s and no node is downed",
        in_quick: true,
        alone: false,
        run: pauses::short,
    },
    Scenario {
        name: "pause-long",
        about: "four hosts: the singleton's host is paused for 30 s and is removed meanwhile",
        in_quick: false,
        alone: false,
        run: pauses::long,
    },
    Scenario {
        name: "pause-long-lease",
        about: "the same with the singleton under a lease in PostgreSQL: never two instances, whatever the timing",
        in_quick: true,
        alone: false,
        run: pauses::long_with_a_lease,
    },
    Scenario {
        name: "one-way-cut",
        about: "five hosts: what one sends to another is lost; those two end, and no others",
        in_quick: false,
        alone: false,
        run: cuts::one_way,
    },
    Scenario {
        name: "clean-cut",
        about: "five hosts: three against two; the majority goes on and the others end themselves",
        in_quick: false,
        alone: false,
        run: cuts::clean,
    },
    Scenario {
        name: "flapping",
        about: "four hosts: the links of one are cut for 7 s and whole for 7 s, for a minute; no node is downed",
        in_quick: false,
        alone: false,
        run: cuts::flapping,
    },
    Scenario {
        name: "loss",
        about: "four hosts: one in ten packets to one of them is lost for a minute; no node is downed",
        in_quick: false,
        alone: false,
        run: cuts::loss,
    },
    Scenario {
        name: "shards-one-host",
        about: "five processes on one host, four sharded types under clients: the coordinators' process is killed, then the owner's",
        in_quick: true,
        alone: true,
        run: shards::kill_on_one_host,
    },
    Scenario {
        name: "shards-kill-coordinator",
        about: "four hosts, the same types and clients, default settings: the host of the coordinators is killed",
        in_quick: false,
        alone: true,
        run: shards::kill_coordinator,
    },
    Scenario {
        name: "shards-kill-owner",
        about: "the same: the host of the single shards is killed",
        in_quick: false,
        alone: true,
        run: shards::kill_owner,
    },
    Scenario {
        name: "shards-cut-coordinator",
        about: "the same: the host of the coordinators is cut off until it is removed and has ended itself",
        in_quick: false,
        alone: true,
        run: shards::cut_coordinator,
    },
    Scenario {
        name: "shards-cut-owner",
        about: "the same: the host of the single shards is cut off",
        in_quick: false,
        alone: true,
        run: shards::cut_owner,
    },
    Scenario {
        name: "shards-pause-coordinator",
        about: "the same: the process of the coordinators is paused until others have taken over, and wakes",
        in_quick: false,
        alone: true,
        run: shards::pause_coordinator,
    },
    Scenario {
        name: "shards-pause-owner",
        about: "the same: the process of the single shards is paused",
        in_quick: true,
        alone: true,
        run: shards::pause_owner,
    },
];

/// Runs the chosen scenarios; returns their results, those that ran alone first.
pub(crate) fn run_all<'a>(
    chosen: &[&'a Scenario],
    quick: bool,
    serial: bool,
) -> Vec<(&'a Scenario, Result<Findings, Failure>)> {
    let run = |scenario: &Scenario| {
        say(&format!("{}: {}", scenario.name, scenario.about));
        let outcome = (scenario.run)(quick);
        say(&format!("{}: {}", scenario.name, if outcome.is_ok() { "as promised" } else { "FAILED" }));
        outcome
    };
    let is_alone = |scenario: &&&Scenario| serial || scenario.alone;
    let mut outcomes: Vec<_> = chosen.iter().filter(is_alone).map(|scenario| (*scenario, run(scenario))).collect();
    std::thread::scope(|scope| {
        let together = chosen.iter().filter(|scenario| !is_alone(scenario));
        let running: Vec<_> = together.map(|scenario| (*scenario, scope.spawn(move || run(scenario)))).collect();
        outcomes.extend(running.into_iter().map(|(scenario, thread)| {
            let outcome = thread.join().unwrap_or_else(|_| Err("the scenario panicked".into()));
            (scenario, outcome)
        }));
    });
    outcomes
}

/// Time limit for anything that the resolver decides: detection, `stable_after` and the margin, doubled for a machine
/// that is busy with other work.
const TIMEOUT: Duration = Duration::from_secs(100);

/// Starts a node on each of the first `hosts` hosts and waits until all are Up; the first node is the oldest.
fn form(lab: &Lab, hosts: usize, adapt: impl Fn(Start<'_>) -> Start<'_>) -> Result<Vec<Node>, Failure> {
    let seed = format!("{}:17355", Lab::address(0));
    let mut nodes = Vec::new();
    for host in 0..hosts {
        nodes.push(adapt(Start::on(lab, host, &seed)).spawn()?);
        // Start one after another, so that each node is older than the next.
        nodes.iter().try_for_each(|node| node.wait_up(host + 1))?;
    }
    nodes[0].wait("the singleton", At::EPOCH, TIMEOUT, |what| *what == NodeEvent::SingletonStarted)?;
    Ok(nodes)
}

/// Fails if any of these nodes wrote an unwanted line at `since` or later.
fn never<'a>(
    what: &str,
    nodes: impl IntoIterator<Item = &'a Node>,
    since: At,
    unwanted: impl Fn(&NodeEvent) -> bool,
) -> Result<(), Failure> {
    for node in nodes {
        if let Some(line) = node.lines_since(since).into_iter().find(|line| unwanted(&line.what)) {
            return Err(format!("{}: {what}: it said {:?}", node.name, line.what));
        }
    }
    Ok(())
}

/// The first and last report of each run of the singleton's instance, on any of the nodes.
fn instances(nodes: &[Node]) -> Vec<(At, At)> {
    let mut runs = Vec::new();
    for node in nodes {
        let is_work = |line: &Line| matches!(line.what, NodeEvent::SingletonStarted | NodeEvent::SingletonWorks);
        for line in node.lines().into_iter().filter(is_work) {
            match runs.last_mut() {
                Some((owner, _, end)) if *owner == node.name && line.what == NodeEvent::SingletonWorks => {
                    *end = line.at;
                }
                _ => runs.push((node.name.clone(), line.at, line.at)),
            }
        }
    }
    runs.into_iter().map(|(_, begin, end)| (begin, end)).collect()
}

/// Fails if two instances of the singleton worked at the same time.
fn never_two_instances(nodes: &[Node]) -> Result<(), Failure> {
    let mut runs = instances(nodes);
    runs.sort();
    match runs.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        None => Ok(()),
        Some(pair) => Err(format!("two instances worked beside each other for {:?}", pair[0].1.since(pair[1].0))),
    }
}

fn is_downing(what: &NodeEvent) -> bool {
    matches!(
        what,
        NodeEvent::Downed { .. } | NodeEvent::Decision { .. } | NodeEvent::SelfDowned | NodeEvent::Removed { .. }
    )
}

fn removed(member: &str) -> impl Fn(&NodeEvent) -> bool {
    move |what| matches!(what, NodeEvent::Removed { member: removed, .. } if removed == member)
}
