//! Links are cut: in one direction, for good, repeatedly, or by loss of packets only.

use std::time::Duration;

use super::{TIMEOUT, form, is_downing, never, never_two_instances, removed};
use crate::lab::{Failure, Lab};
use crate::report::{At, Findings, NodeEvent};

/// cluster 44: packets from the second node to the third are dropped. Both are indirectly connected, and both end.
pub(super) fn one_way(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(5)?;
    let nodes = form(&lab, 5, |start| start)?;
    let cut = At::now();
    lab.cut(1, 2)?;
    let mut gone = Duration::ZERO;
    for survivor in [&nodes[0], &nodes[3], &nodes[4]] {
        for ended in [&nodes[1], &nodes[2]] {
            gone = gone.max(survivor.wait("the removal", cut, TIMEOUT, removed(&ended.name))?.since(cut));
        }
        never("a third was downed", [survivor], cut, |what| *what == NodeEvent::SelfDowned)?;
    }
    for ended in [&nodes[1], &nodes[2]] {
        ended.wait("its end", cut, TIMEOUT, |what| matches!(what, NodeEvent::Ended { .. }))?;
    }
    never_two_instances(&nodes)?;
    let mut findings = Findings::default();
    findings.took("cut until the two are removed everywhere", gone);
    Ok(findings)
}

/// Three nodes against two; the singleton runs on the side of two.
pub(super) fn clean(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(5)?;
    let nodes = form(&lab, 5, |start| start)?;
    let cut = At::now();
    lab.part(&[0, 1], &[2, 3, 4])?;
    let (mut gone, mut ended) = (Duration::ZERO, Duration::ZERO);
    for loser in &nodes[..2] {
        for winner in &nodes[2..] {
            gone = gone.max(winner.wait("the removal", cut, TIMEOUT, removed(&loser.name))?.since(cut));
        }
        let is_end = |what: &NodeEvent| matches!(what, NodeEvent::Ended { .. });
        ended = ended.max(loser.wait("its end", cut, TIMEOUT, is_end)?.since(cut));
    }
    let working = nodes[2].wait("the singleton", cut, TIMEOUT, |what| *what == NodeEvent::SingletonWorks)?;
    never("a winner was downed", &nodes[2..], cut, |what| *what == NodeEvent::SelfDowned)?;
    never_two_instances(&nodes)?;
    let mut findings = Findings::default();
    findings.took("cut until the two are removed everywhere", gone);
    findings.took("cut until the two have ended", ended);
    findings.took("cut until the singleton works elsewhere", working.since(cut));
    Ok(findings)
}

/// Cut for 7 s, healed for 7 s, five times: each cut is detected, but is too short for any decision.
pub(super) fn flapping(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let nodes = form(&lab, 4, |start| start)?;
    let begun = At::now();
    for _ in 0..5 {
        lab.part(&[3], &[0, 1, 2])?;
        std::thread::sleep(Duration::from_secs(7));
        lab.heal()?;
        std::thread::sleep(Duration::from_secs(7));
    }
    let found =
        nodes[0].lines_since(begun).iter().filter(|line| matches!(line.what, NodeEvent::Unreachable { .. })).count();
    // Wait until any decision that the last cut might have caused would have been made.
    std::thread::sleep(Duration::from_secs(25));
    never("a node was downed", &nodes, begun, is_downing)?;
    never_two_instances(&nodes)?;
    let mut findings = Findings::default();
    findings.add("cuts, times found unreachable", format!("5, {found}"));
    Ok(findings)
}

/// One node loses one in ten of the packets that arrive.
pub(super) fn loss(_quick: bool) -> Result<Findings, Failure> {
    let lab = Lab::new(4)?;
    let nodes = form(&lab, 4, |start| start)?;
    let begun = At::now();
    lab.lose(10, 3)?;
    std::thread::sleep(Duration::from_secs(60));
    never("a node was downed", &nodes, begun, is_downing)?;
    let found =
        nodes[0].lines_since(begun).iter().filter(|line| matches!(line.what, NodeEvent::Unreachable { .. })).count();
    let mut findings = Findings::default();
    findings.add("times found unreachable in a minute", found.to_string());
    Ok(findings)
}
