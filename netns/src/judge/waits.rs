//! How long the entities of each type gave no answer after a fault.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{client_calls, lives};
use crate::lab::Failure;
use crate::record::{RecordedEvent, Records};
use crate::report::{At, Findings};
use crate::sharded::KINDS;

/// The breaking of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// The time of the fault.
    pub(crate) at: At,
    /// The id of the broken process.
    pub(crate) victim: u32,
}

/// The time from a fault to an entity's first answer, one for each entity. Only calls count that a client in another
/// process made after the fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// For entities that ran in the broken process.
    pub(crate) of_victim: Vec<Duration>,
    /// For entities that ran in other processes.
    pub(crate) of_others: Vec<Duration>,
    /// For entities that ran nowhere, in shards without a home.
    pub(crate) of_newcomers: Vec<Duration>,
}

/// The process that hosts the entities of a type at a time; fails unless it is exactly one.
pub(crate) fn host_of(records: &Records, kind: &str, at: At) -> Result<u32, Failure> {
    let hosts = homes(records, at);
    let mut of_kind: Vec<u32> =
        hosts.iter().filter(|(entity, _)| entity.starts_with(kind)).map(|(_, &host)| host).collect();
    of_kind.sort_unstable();
    of_kind.dedup();
    match of_kind[..] {
        [host] => Ok(host),
        ref hosts => Err(format!("the entities of {kind} live in the processes {hosts:?}, not in one")),
    }
}

/// The process in which each entity last started before a time.
fn homes(records: &Records, at: At) -> BTreeMap<&str, u32> {
    let last = |(entity, lives): (_, Vec<super::InstanceLife>)| {
        lives.iter().rfind(|life| life.from <= at).map(|life| (entity, life.pid))
    };
    lives(records).into_iter().filter_map(last).collect()
}

/// The waits of one type's entities.
fn waits(records: &Records, fault: Fault, is_of_kind: impl Fn(&str) -> bool) -> Waits {
    let of_survivors: Records =
        records.iter().filter(|(pid, _)| **pid != fault.victim).map(|(pid, entries)| (*pid, entries.clone())).collect();
    let mut first: BTreeMap<&str, At> = BTreeMap::new();
    let client_calls = client_calls(&of_survivors);
    for call in client_calls.iter().filter(|call| call.at >= fault.at && is_of_kind(call.entity)) {
        if let Some(end) = call.end.filter(|end| matches!(end.what, RecordedEvent::Answered { .. })) {
            first.entry(call.entity).and_modify(|at| *at = (*at).min(end.at)).or_insert(end.at);
        }
    }
    let homes = homes(records, fault.at);
    let mut waits = Waits::default();
    for (entity, at) in first {
        let list = match homes.get(entity) {
            Some(&home) if home == fault.victim => &mut waits.of_victim,
            Some(_) => &mut waits.of_others,
            None => &mut waits.of_newcomers,
        };
        list.push(at.since(fault.at));
    }
    waits
}

impl Waits {
    /// Adds a line for each group of entities to the table.
    fn tell(&self, findings: &mut Findings, fault: &str, about: &str) {
        let groups = [
            ("of that host", &self.of_victim),
            ("of other hosts", &self.of_others),
            ("in shards without a home until then", &self.of_newcomers),
        ];
        for (which, waits) in groups {
            if let (Some(first), Some(last)) = (waits.iter().min(), waits.iter().max()) {
                let (first, last, count) = (first.as_secs_f64(), last.as_secs_f64(), waits.len());
                let name = format!("{fault} until the first answer, {about}, entities {which}");
                findings.add(name, format!("first {first:.2} s, all {count} within {last:.2} s"));
            }
        }
    }
}

/// Adds the waits of all types to the table, and returns them by type.
pub(crate) fn report_all(records: &Records, fault: Fault, name: &str, findings: &mut Findings) -> Vec<Waits> {
    let of_kinds = KINDS.iter().map(|kind| {
        let waits = waits(records, fault, |entity| kind.has(entity));
        waits.tell(findings, name, kind.about);
        waits
    });
    of_kinds.collect()
}

/// Adds the calls that clients in the broken process made after the fault: their count, the answers among them, and the
/// time of the last answer. Without any such calls, the answers of the broken process were not tested.
pub(crate) fn report_beside(records: &Records, fault: Fault, name: &str, findings: &mut Findings) {
    let Some(entries) = records.get(&fault.victim) else { return };
    let of_victim = Records::from([(fault.victim, entries.clone())]);
    let client_calls = client_calls(&of_victim);
    let later = client_calls.iter().filter(|call| call.at >= fault.at);
    let answers: Vec<At> = later
        .clone()
        .filter_map(|call| call.end.filter(|end| matches!(end.what, RecordedEvent::Answered { .. })))
        .map(|end| end.at)
        .collect();
    if let (count @ 1.., last) = (later.count(), answers.iter().max()) {
        let last =
            last.map_or(String::new(), |at| format!(", the last {:.2} s after it", at.since(fault.at).as_secs_f64()));
        let name = format!("{name}: calls of its own clients after it, answers");
        findings.add(name, format!("{count}, {}{last}", answers.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Entry;

    fn entry(at: u64, entity: &str, what: RecordedEvent) -> Entry {
        Entry { at: At(at), entity: entity.into(), what }
    }

    fn started(at: u64, entity: &str) -> Entry {
        entry(at, entity, RecordedEvent::Started { life: 1, pid: 0, generation: "1".into() })
    }

    fn exchange(entity: &str, call: u64, from: u64, to: u64) -> [Entry; 2] {
        let answered = RecordedEvent::Answered { call, version: 0, value: Some(0) };
        [entry(from, entity, RecordedEvent::Called { call, write: None }), entry(to, entity, answered)]
    }

    #[test]
    fn waits_last_from_the_fault_to_answers_of_survivors() {
        let victim = [vec![started(1, "k/1")], exchange("k/1", 1, 105, 106).to_vec()].concat();
        let survivor = [
            vec![started(1, "k/2")],
            exchange("k/1", 1, 90, 110).to_vec(),
            exchange("k/1", 2, 120, 200).to_vec(),
            exchange("k/2", 3, 101, 103).to_vec(),
            exchange("k/3", 4, 101, 150).to_vec(),
        ]
        .concat();
        let records = Records::from([(1, victim), (2, survivor)]);
        let found = waits(&records, Fault { at: At(100), victim: 1 }, |entity| entity.starts_with("k/"));
        let micros = |micros| vec![Duration::from_micros(micros)];
        assert_eq!(found, Waits { of_victim: micros(100), of_others: micros(3), of_newcomers: micros(50) });
    }

    #[test]
    fn answers_to_the_broken_process_are_reported_apart() {
        let victim = [exchange("k/1", 1, 90, 95), exchange("k/1", 2, 105, 106)].concat();
        let unanswered = entry(107, "k/1", RecordedEvent::Called { call: 3, write: None });
        let records = Records::from([(1, [victim, vec![unanswered]].concat())]);
        let mut findings = Findings::default();
        report_beside(&records, Fault { at: At(100), victim: 1 }, "cut", &mut findings);
        report_beside(&records, Fault { at: At(200), victim: 1 }, "cut", &mut findings);
        let (name, value) = ("cut: calls of its own clients after it, answers", "2, 1, the last 0.00 s after it");
        assert_eq!(findings.0, [(name.to_owned(), value.to_owned())]);
    }

    #[test]
    fn the_host_of_a_type_is_where_its_entities_last_started() {
        let records = Records::from([(1, vec![started(1, "k/1")]), (2, vec![started(5, "k/1")])]);
        assert_eq!((host_of(&records, "k/", At(4)), host_of(&records, "k/", At(9))), (Ok(1), Ok(2)));
        let apart = Records::from([(1, vec![started(1, "k/1")]), (2, vec![started(5, "k/2")])]);
        host_of(&apart, "k/", At(9)).expect_err("two processes");
    }
}
