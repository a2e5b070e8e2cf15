//! A process is paused (SIGSTOP) and resumed: it finds no other node unreachable, and no singleton runs twice.

use std::time::Duration;

use greylag_testkit::postgres::{Postgres, USER};

use super::{TIMEOUT, form, is_downing, never, never_two_instances, removed};
use crate::lab::{Failure, Lab};
use crate::process::Node;
use crate::report::{Findings, NodeEvent};

/// A pause of eight seconds: the node becomes unreachable, then reachable again.
pub(super) fn short(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let nodes = form(&lab, 4, |start| start)?;
    let (sleeper, others) = (&nodes[0], &nodes[1..]);
    let is_of_sleeper = |what: &NodeEvent| matches!(what, NodeEvent::Reachable { member } if *member == sleeper.name);
    let paused = sleeper.pause()?;
    std::thread::sleep(Duration::from_secs(8));
    let resumed = sleeper.resume()?;
    let mut found = Duration::ZERO;
    for node in others {
        let marks = |what: &NodeEvent| matches!(what, NodeEvent::Unreachable { member } if *member == sleeper.name);
        found = found.max(node.wait("unreachable", paused, TIMEOUT, marks)?.since(paused));
        node.wait("reachable again", resumed, TIMEOUT, is_of_sleeper)?;
    }
    // Wait until any decision that the pause might have caused would have been made.
    std::thread::sleep(Duration::from_secs(25));
    never("a node was downed", &nodes, paused, is_downing)?;
    never("it accused others on waking", [sleeper], resumed, |what| matches!(what, NodeEvent::Unreachable { .. }))?;
    never_two_instances(&nodes)?;
    let mut findings = Findings::default();
    findings.took("paused until all find it unreachable", found);
    Ok(findings)
}

/// A pause of thirty seconds: the others down and remove the node, which learns of it when it wakes.
pub(super) fn long(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let nodes = form(&lab, 4, |start| start)?;
    pause_the_oldest(&nodes)
}

/// The pause of thirty seconds with a lease, which closes the gap that a longer pause would open (cluster P7). The
/// pause is shorter than the lease's `heartbeat_timeout`, so the old holder wakes with the lease and must release it in
/// order before the successor gets it.
pub(super) fn long_with_a_lease(_quick: bool) -> Result<Findings, Failure> {
    let server = Postgres::try_start(&[]).map_err(|error| error.to_string())?;
    // A socket in the file system is reachable from every namespace.
    let (socket, port) = (server.socket_directory().display(), server.port());
    let database = format!("host={socket} port={port} user={USER} dbname=postgres");
    let lab = Lab::new(4)?;
    let nodes = form(&lab, 4, |start| start.lease(&database))?;
    let holder = || server.psql("select owner from greylag_lease where expires_at > now()");
    let (before, first) = (holder()?, &nodes[0].name);
    if !before.contains(first.as_str()) {
        return Err(format!("{first} works and does not hold the lease: {before:?}"));
    }
    let mut findings = pause_the_oldest(&nodes)?;
    let after = holder()?;
    if !after.contains(nodes[1].name.as_str()) {
        return Err(format!("{} works and does not hold the lease: {after:?}", nodes[1].name));
    }
    findings.add("who held the lease before and after", format!("{}; {}", before.trim(), after.trim()));
    Ok(findings)
}

fn pause_the_oldest(nodes: &[Node]) -> Result<Findings, Failure> {
    let (sleeper, others) = (&nodes[0], &nodes[1..]);
    let paused = sleeper.pause()?;
    std::thread::sleep(Duration::from_secs(30));
    let resumed = sleeper.resume()?;
    let mut gone = Duration::ZERO;
    for node in others {
        gone = gone.max(node.wait("the removal", paused, TIMEOUT, removed(&sleeper.name))?.since(paused));
    }
    let ended = sleeper.wait("its end", resumed, TIMEOUT, |what| matches!(what, NodeEvent::Ended { .. }))?;
    let working = others[0].wait("the singleton", resumed, TIMEOUT, |what| *what == NodeEvent::SingletonWorks)?;
    never("it accused others on waking", [sleeper], resumed, |what| matches!(what, NodeEvent::Unreachable { .. }))?;
    never("another was downed", others, paused, |what| *what == NodeEvent::SelfDowned)?;
    never_two_instances(nodes)?;
    let mut findings = Findings::default();
    findings.took("paused until removed everywhere", gone);
    findings.took("resumed until it has ended", ended.since(resumed));
    findings.took("paused until the singleton works elsewhere", working.since(paused));
    Ok(findings)
}
