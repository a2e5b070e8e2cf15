//! A process is killed: how long until the cluster has removed it and its singleton works elsewhere.

use std::time::Duration;

use super::{PATIENCE, form, is_downing, never, never_two_instances, removed};
use crate::lab::{Failure, Lab};
use crate::node::Proof;
use crate::process::{Node, Start};
use crate::report::{At, Findings, What};

/// The promise of the reference's own documentation, for the table.
const REFERENCE: &str = "25 to 45 s";

/// What became of one kill.
struct Kill {
    /// Until every survivor has removed it.
    removed: Duration,
    /// Until the instance works elsewhere.
    singleton: Duration,
    clean: bool,
}

/// Kills the oldest, which hosts the singleton.
fn kill_oldest(nodes: &mut Vec<Node>) -> Result<(Kill, Node), Failure> {
    let mut victim = nodes.remove(0);
    let at = victim.kill()?;
    let mut last = at;
    let mut clean = true;
    for node in nodes.iter() {
        last = last.max(node.wait("the removal", at, PATIENCE, removed(&victim.name))?);
        let is_unclean = |what: &What| matches!(what, What::Removed { clean: false, .. });
        clean &= never("", [node], at, is_unclean).is_ok();
    }
    let works = |what: &What| *what == What::SingletonWorks;
    let working = nodes[0].wait("the singleton", at, PATIENCE, works)?;
    Ok((Kill { removed: last.since(at), singleton: working.since(at), clean }, victim))
}

/// Ten processes, `proof_of_death = local`: killed one after another, each replaced by a new one.
pub(super) fn on_one_host(quick: bool) -> Result<Findings, Failure> {
    let (size, kills): (usize, usize) = if quick { (4, 3) } else { (10, 21) };
    let lab = Lab::new(1)?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut outcomes = Vec::new();
    let mut dead = Vec::new();
    for port in (20_000..).take(size + kills) {
        // The last of the living nodes serves as the seed; the first node forms the cluster.
        let seed = nodes.last().map_or_else(|| format!("127.0.0.1:{port}"), |node| node.name.clone());
        nodes.push(Start::beside(&lab, port, &seed).spawn()?);
        let count = nodes.len();
        nodes[count - 1].wait_up(count)?;
        if count == size && outcomes.len() < kills {
            nodes[0].wait("the singleton", At::EPOCH, PATIENCE, |what| *what == What::SingletonWorks)?;
            let (kill, victim) = kill_oldest(&mut nodes)?;
            outcomes.push(kill);
            dead.push(victim);
        }
    }
    dead.append(&mut nodes);
    never("the resolver had to act", &dead, At::EPOCH, |what| matches!(what, What::Decision { .. }))?;
    never_two_instances(&dead)?;
    let mut findings = Findings::default();
    findings.add("processes, kills", format!("{size}, {kills}"));
    let mut removals: Vec<_> = outcomes.iter().map(|kill| kill.removed).collect();
    let mut singletons: Vec<_> = outcomes.iter().map(|kill| kill.singleton).collect();
    let removed = summary(&mut findings, "killed until removed everywhere", &mut removals);
    // Each further process has to hear of it (cluster 61 speaks of four).
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

/// Four processes, default settings (cluster 61): one stands still for 15 s and nothing is proven of it; then it is
/// killed and started again at its address.
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
        node.wait("unreachable", paused, PATIENCE, |what| *what == What::Unreachable { member: name.clone() })?;
        node.wait("reachable again", resumed, PATIENCE, |what| *what == What::Reachable { member: name.clone() })?;
    }
    let proves = |what: &What| matches!(what, What::ProvenDead { .. });
    never("something was proven of a process that stood still", &nodes, paused, proves)?;
    never("somebody was downed", &nodes, paused, is_downing)?;

    let killed = nodes[victim].kill()?;
    drop(nodes.remove(victim));
    let again = Start::beside(&lab, FIRST + 3, &seed).spawn()?;
    again.wait_up(4)?;
    let (mut gone, mut back) = (killed, killed);
    for node in &nodes {
        gone = gone.max(node.wait("the removal", killed, PATIENCE, removed(&name))?);
        let unclean = |what: &What| matches!(what, What::Removed { clean: false, .. });
        never("the removal was not clean", [node], killed, unclean)?;
        back = back.max(node.wait("four Up again", gone, PATIENCE, |what| *what == What::Up { count: 4 })?);
    }
    nodes.push(again);
    never("the resolver had to act", &nodes, killed, |what| matches!(what, What::Decision { .. }))?;
    let took = back.since(killed);
    if took > Duration::from_secs(10) {
        return Err(format!("the new process is Up everywhere after {took:?}"));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", gone.since(killed));
    findings.took("killed until the new process is Up everywhere", took);
    Ok(findings)
}

/// Adds median, most, and the reference's figure; yields median and most.
fn summary(findings: &mut Findings, name: &str, times: &mut [Duration]) -> (Duration, Duration) {
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    let seconds = |time: Duration| time.as_secs_f64();
    let text = format!("median {:.2} s, most {:.2} s (reference: {REFERENCE})", seconds(median), seconds(most));
    findings.add(name, text);
    (median, most)
}

/// Four hosts whose operator vouches for the network: as fast as on one host.
pub(super) fn with_proof_on(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let mut nodes = form(&lab, 4, |start| start.proof(Proof::On))?;
    let (kill, victim) = kill_oldest(&mut nodes)?;
    nodes.push(victim);
    never("the resolver had to act", &nodes, At::EPOCH, |what| matches!(what, What::Decision { .. }))?;
    never_two_instances(&nodes)?;
    if !kill.clean || kill.removed.max(kill.singleton) > Duration::from_secs(8) {
        return Err(format!("clean {}, removed after {:?}", kill.clean, kill.removed));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", kill.removed);
    findings.took("killed until the singleton works elsewhere", kill.singleton);
    Ok(findings)
}

/// Four hosts at default settings: detection, `stable_after`, and then the margin.
pub(super) fn without_proof(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let mut nodes = form(&lab, 4, |start| start)?;
    let (kill, victim) = kill_oldest(&mut nodes)?;
    nodes.push(victim);
    never("a death was proven from afar", &nodes, At::EPOCH, |what| matches!(what, What::ProvenDead { .. }))?;
    never_two_instances(&nodes)?;
    if kill.clean || kill.singleton < kill.removed + Duration::from_secs(15) {
        return Err(format!("no margin: removed {:?}, singleton {:?}", kill.removed, kill.singleton));
    }
    let mut findings = Findings::default();
    findings.took("killed until removed everywhere", kill.removed);
    findings.took("killed until the singleton works elsewhere", kill.singleton);
    Ok(findings)
}
