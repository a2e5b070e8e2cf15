//! A process is killed: the time until the cluster has removed the member and the singleton works elsewhere.

use std::time::Duration;

use super::{TIMEOUT, form, is_downing, never, never_two_instances, removed};
use crate::lab::{Failure, Lab};
use crate::node::Proof;
use crate::process::{Node, Start};
use crate::report::{At, Findings, NodeEvent};

/// The time that the reference's documentation promises, for the table.
const REFERENCE: &str = "25 to 45 s";

/// The times of one kill.
struct Kill {
    /// From the kill until every survivor has removed the member.
    removed: Duration,
    /// From the kill until the singleton works on another node.
    singleton: Duration,
    clean: bool,
}

/// Kills the oldest node, which hosts the singleton.
fn kill_oldest(nodes: &mut Vec<Node>) -> Result<(Kill, Node), Failure> {
    let mut victim = nodes.remove(0);
    let at = victim.kill()?;
    let mut last = at;
    let mut clean = true;
    for node in nodes.iter() {
        last = last.max(node.wait("the removal", at, TIMEOUT, removed(&victim.name))?);
        let is_unclean = |what: &NodeEvent| matches!(what, NodeEvent::Removed { clean: false, .. });
        clean &= never("", [node], at, is_unclean).is_ok();
    }
    let works = |what: &NodeEvent| *what == NodeEvent::SingletonWorks;
    let working = nodes[0].wait("the singleton", at, TIMEOUT, works)?;
    Ok((Kill { removed: last.since(at), singleton: working.since(at), clean }, victim))
}

/// Ten processes on one host, `proof_of_death = local`: the oldest is killed again and again, and each time replaced.
pub(super) fn on_one_host(quick: bool) -> Result<Findings, Failure> {
    let (size, kills): (usize, usize) = if quick { (4, 3) } else { (10, 21) };
    let lab = Lab::new(1)?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut outcomes = Vec::new();
    let mut dead = Vec::new();
    for port in (20_000..).take(size + kills) {
        // The youngest living node is the seed; the first node is its own seed and forms the cluster.
        let seed = nodes.last().map_or_else(|| format!("127.0.0.1:{port}"), |node| node.name.clone());
        nodes.push(Start::beside(&lab, port, &seed).spawn()?);
        let count = nodes.len();
        nodes[count - 1].wait_up(count)?;
        if count == size && outcomes.len() < kills {
            nodes[0].wait("the singleton", At::EPOCH, TIMEOUT, |what| *what == NodeEvent::SingletonWorks)?;
            let (kill, victim) = kill_oldest(&mut nodes)?;
            outcomes.push(kill);
            dead.push(victim);
        }
    }
    dead.append(&mut nodes);
    never("the resolver had to act", &dead, At::EPOCH, |what| matches!(what, NodeEvent::Decision { .. }))?;
    never_two_instances(&dead)?;
    let mut findings = Findings::default();
    findings.add("processes, kills", format!("{size}, {kills}"));
    let mut removals: Vec<_> = outcomes.iter().map(|kill| kill.removed).collect();
    let mut singletons: Vec<_> = outcomes.iter().map(|kill| kill.singleton).collect();
    let removed = summary(&mut findings, "killed until removed everywhere", &mut removals);
    // In a larger cluster, the removal has to reach more processes (cluster 61 gives the time for four).
    let usual = Duration::from_secs(if size == 4 { 4 } else { 5 });
    let working = summary(&mut findings, "killed until the singleton works elsewhere", &mut singletons);
    if !outcomes.iter().all(|kill| kill.clean) {
        return Err("a removal was not clean".into());
    }
    if removed.0 >= usual || removed.1.max(working.1) > Duration::from_secs(8) {
        return Err(format!("too slow: {removals:?} {singletons:?}"));
    }
    Ok(findings)
}

/// Four processes, default settings (cluster 61): one is paused for 15 s, which must not count as a proof of its death;
/// then the process is killed and started again at its address.
pub(super) fn paused_then_restarted(_quick: bool) -> Result<Findings, Failure> {
    const FIRST: u16 = 20_000;
    let lab = Lab::new(1)?;
    let seed = format!("127.0.0.1:{FIRST}");
    let mut nodes: Vec<Node> = Vec::new();
    for port in (FIRST..).take(4) {
        nodes.push(Start::beside(&lab, port, &seed).spawn()?);
        nodes.iter().try_for_each(|node| node.wait_up(nodes.len()))?;
    }
    let victim = nodes.len() - 1;
    let name = nodes[victim].name.clone();
    let paused = nodes[victim].pause()?;
    std::thread::sleep(Duration::from_secs(15));
    let resumed = nodes[victim].resume()?;
    for node in &nodes[..victim] {
        node.wait("unreachable", paused, TIMEOUT, |what| *what == NodeEvent::Unreachable { member: name.clone() })?;
        node.wait("reachable again", resumed, TIMEOUT, |what| *what == NodeEvent::Reachable { member: name.clone() })?;
    }
    let proves = |what: &NodeEvent| matches!(what, NodeEvent::ProvenDead { .. });
    never("something was proven of a process that stood still", &nodes, paused, proves)?;
    never("somebody was downed", &nodes, paused, is_downing)?;

    let killed = nodes[victim].kill()?;
    drop(nodes.remove(victim));
    let again = Start::beside(&lab, FIRST + 3, &seed).spawn()?;
    again.wait_up(4)?;
    let (mut gone, mut back) = (killed, killed);
    for node in &nodes {
        gone = gone.max(node.wait("the removal", killed, TIMEOUT, removed(&name))?);
        let unclean = |what: &NodeEvent| matches!(what, NodeEvent::Removed { clean: false, .. });
        never("the removal was not clean", [node], killed, unclean)?;
        back = back.max(node.wait("four Up again", gone, TIMEOUT, |what| *what == NodeEvent::Up { count: 4 })?);
    }
    nodes.push(again);
    never("the resolver had to act", &nodes, killed, |what| matches!(what, NodeEvent::Decision { .. }))?;
    let took = back.since(killed);
    if took > Duration::from_secs(10) {
        return Err(format!("the new process is Up everywhere after {took:?}"));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", gone.since(killed));
    findings.took("killed until the new process is Up everywhere", took);
    Ok(findings)
}

/// Adds median and maximum beside the reference's figure; returns median and maximum.
fn summary(findings: &mut Findings, name: &str, times: &mut [Duration]) -> (Duration, Duration) {
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    let seconds = |time: Duration| time.as_secs_f64();
    let text = format!("median {:.2} s, most {:.2} s (reference: {REFERENCE})", seconds(median), seconds(most));
    findings.add(name, text);
    (median, most)
}

/// Four hosts with `proof_of_death = on`, by which the operator vouches for the network: as fast as on one host.
pub(super) fn with_proof_on(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let mut nodes = form(&lab, 4, |start| start.proof(Proof::On))?;
    let (kill, victim) = kill_oldest(&mut nodes)?;
    nodes.push(victim);
    never("the resolver had to act", &nodes, At::EPOCH, |what| matches!(what, NodeEvent::Decision { .. }))?;
    never_two_instances(&nodes)?;
    if !kill.clean || kill.removed.max(kill.singleton) > Duration::from_secs(8) {
        return Err(format!("clean {}, removed after {:?}", kill.clean, kill.removed));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", kill.removed);
    findings.took("killed until the singleton works elsewhere", kill.singleton);
    Ok(findings)
}

/// Four hosts at default settings: removal takes detection and `stable_after`, and the singleton also the margin.
pub(super) fn without_proof(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let mut nodes = form(&lab, 4, |start| start)?;
    let (kill, victim) = kill_oldest(&mut nodes)?;
    nodes.push(victim);
    never("a death was proven from afar", &nodes, At::EPOCH, |what| matches!(what, NodeEvent::ProvenDead { .. }))?;
    never_two_instances(&nodes)?;
    if kill.clean || kill.singleton < kill.removed + Duration::from_secs(15) {
        return Err(format!("no margin: removed {:?}, singleton {:?}", kill.removed, kill.singleton));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", kill.removed);
    findings.took("killed until the singleton works elsewhere", kill.singleton);
    Ok(findings)
}
