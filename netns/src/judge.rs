//! Checks the files of a scenario: no entity ever has two instances, and each entity's history is linearizable.
//!
//! At the end, when all clients have ended, each entity is asked for everything that was written to it. The result
//! tells of every unanswered write whether it took effect, and gives each write its place in the order; the checker
//! then only tests whether the answers keep that order and real time. A plain read is an operation like any other.

mod waits;

use std::collections::BTreeMap;

use greylag_testkit::linearizability::register::{Call, Register, Reply};
use greylag_testkit::linearizability::{self, Checked, Operation};

use crate::lab::Failure;
use crate::record::{Entry, RecordedEvent, Records};
use crate::report::At;

pub(crate) use waits::{Fault, Waits, host_of, report_all as report_waits, report_beside};

/// The most steps in the check of one entity; thousands of operations take tens of thousands of steps.
const MOST_STEPS: u64 = 5_000_000;

/// One instance of an entity: from its start to its last activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstanceLife {
    /// The process in which the instance ran.
    pub(crate) pid: u32,
    /// The start.
    pub(crate) from: At,
    /// The end, or the last handled message of an instance that never reported its end.
    pub(crate) to: At,
    /// The generation of the instance's shard.
    generation: String,
}

/// The instances of each entity, ordered by their starts.
pub(crate) fn lives(records: &Records) -> BTreeMap<&str, Vec<InstanceLife>> {
    let mut lives: BTreeMap<&str, Vec<InstanceLife>> = BTreeMap::new();
    for (&pid, entries) in records {
        let mut open: BTreeMap<(&str, u64), InstanceLife> = BTreeMap::new();
        for Entry { at, entity, what } in entries {
            match what {
                RecordedEvent::Started { life, generation, .. } => {
                    let begun = InstanceLife { pid, from: *at, to: *at, generation: generation.clone() };
                    open.insert((entity, *life), begun);
                }
                RecordedEvent::Worked { life } | RecordedEvent::Stopped { life } => {
                    open.entry((entity, *life)).and_modify(|life| life.to = life.to.max(*at));
                }
                _ => {}
            }
        }
        open.into_iter().for_each(|((entity, _), life)| lives.entry(entity).or_default().push(life));
    }
    lives.values_mut().for_each(|lives| lives.sort_by_key(|life| life.from));
    lives
}

/// Fails if two instances of an entity overlap in time; returns the count of all instances. An instance lasts until its
/// reported end, or else until the last message that it handled: the memory of a killed or paused process does nothing.
pub(crate) fn never_two_instances(records: &Records) -> Result<usize, Failure> {
    let lives = lives(records);
    for (entity, lives) in &lives {
        for (index, later) in lives.iter().enumerate() {
            if let Some(earlier) = lives[..index].iter().find(|earlier| earlier.to > later.from) {
                let (generation, newer) = (&earlier.generation, &later.generation);
                let beside = earlier.to.min(later.to).since(later.from);
                return Err(format!(
                    "two instances of {entity}: that of generation {generation} in process {} worked for {beside:?} beside \
                     that of generation {newer} in process {}, which began at {}",
                    earlier.pid, later.pid, later.from.0
                ));
            }
        }
    }
    Ok(lives.values().map(Vec::len).sum())
}

/// One call of a client, with its end.
struct ClientCall<'a> {
    entity: &'a str,
    at: At,
    write: Option<u64>,
    /// The answer or the error; `None` while the call has no end.
    end: Option<&'a Entry>,
}

fn client_calls(records: &Records) -> Vec<ClientCall<'_>> {
    let mut all = Vec::new();
    for entries in records.values() {
        let mut by_call = BTreeMap::new();
        for entry in entries {
            match &entry.what {
                RecordedEvent::Called { call, write } => {
                    by_call.insert(*call, all.len());
                    all.push(ClientCall { entity: &entry.entity, at: entry.at, write: *write, end: None });
                }
                RecordedEvent::Answered { call, .. } | RecordedEvent::Failed { call, .. } => {
                    if let Some(&index) = by_call.get(call) {
                        all[index].end = Some(entry);
                    }
                }
                _ => {}
            }
        }
    }
    all
}

/// Everything that was written to one entity, as read at the end between `since` and `until`.
struct Log<'a> {
    since: At,
    until: At,
    values: &'a [u64],
    /// The version that each written value got.
    versions: BTreeMap<u64, u64>,
}

fn logs(records: &Records) -> Result<BTreeMap<&str, Log<'_>>, Failure> {
    let mut logs = BTreeMap::new();
    for Entry { at, entity, what } in records.values().flatten() {
        let RecordedEvent::Logged { since, values } = what else { continue };
        let mut versions = BTreeMap::new();
        for (&value, version) in values.iter().zip(1..) {
            if let Some(before) = versions.insert(value, version) {
                return Err(format!("{entity}: {value} was written twice, as write {before} and as write {version}"));
            }
        }
        logs.insert(entity.as_str(), Log { since: *since, until: *at, values, versions });
    }
    Ok(logs)
}

/// The call as an operation of the history; `None` for a call without any effect or answer to check.
fn operation(call: &ClientCall<'_>, log: &Log<'_>) -> Result<Option<Operation<Call, Reply>>, Failure> {
    let entity = call.entity;
    let stored = call.write.and_then(|value| log.versions.get(&value).copied());
    let (input, called_at) = (call.write.map_or(Call::Read, Call::Write), call.at.0);
    match call.end.map(|end| (end.at, &end.what)) {
        Some((at, RecordedEvent::Answered { version, value, .. })) => {
            let version = *version;
            let output = value.map_or(Reply::Written { version }, |value| Reply::Read { version, value });
            Ok(Some(Operation::answered(input, called_at, output, at.0)))
        }
        Some((at, RecordedEvent::Failed { may_have_run: false, error, .. })) if stored.is_some() => {
            Err(format!("{entity}: the error at {} says that a write did not run, and it is stored: {error}", at.0))
        }
        // An unanswered write took effect if the log has it, at some time before the log was read.
        _ => Ok(stored.map(|version| Operation::answered(input, called_at, Reply::Written { version }, log.until.0))),
    }
}

/// Checks that the history of every entity is linearizable, by means of the final logs.
pub(crate) fn linearizable(records: &Records) -> Result<Checked, Failure> {
    let logs = logs(records)?;
    let mut history = Vec::new();
    for call in client_calls(records) {
        let entity = call.entity;
        let log = logs.get(entity).ok_or_else(|| format!("{entity} was not asked for all its writes"))?;
        history.extend(operation(&call, log)?.map(|operation| (entity, operation)));
    }
    for (entity, log) in &logs {
        let (version, value) = (log.values.len() as u64, log.values.last().copied().unwrap_or(0));
        let reply = Reply::Read { version, value };
        history.push((*entity, Operation::answered(Call::Read, log.since.0, reply, log.until.0)));
    }
    linearizability::check(&Register, history, MOST_STEPS).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, what: RecordedEvent) -> Entry {
        Entry { at: At(at), entity: "x/1".into(), what }
    }

    fn called(at: u64, call: u64, write: Option<u64>) -> Entry {
        entry(at, RecordedEvent::Called { call, write })
    }

    fn answered(at: u64, call: u64, version: u64, value: Option<u64>) -> Entry {
        entry(at, RecordedEvent::Answered { call, version, value })
    }

    fn failed(at: u64, call: u64, may_have_run: bool) -> Entry {
        entry(at, RecordedEvent::Failed { call, may_have_run, error: "dropped".into() })
    }

    fn logged(since: u64, at: u64, values: &[u64]) -> Entry {
        entry(at, RecordedEvent::Logged { since: At(since), values: values.to_vec() })
    }

    fn started(at: u64, life: u64) -> Entry {
        entry(at, RecordedEvent::Started { life, pid: 0, generation: life.to_string() })
    }

    fn worked(at: u64, life: u64) -> Entry {
        entry(at, RecordedEvent::Worked { life })
    }

    #[track_caller]
    fn refused(records: &Records, why: &str) {
        let failure = linearizable(records).expect_err("it must be refused");
        assert!(failure.contains(why), "{failure}");
    }

    #[test]
    fn one_copy_read_by_two_processes_is_linearizable() {
        let first = vec![called(1, 1, Some(7)), answered(5, 1, 1, None), called(6, 2, Some(8))];
        let second =
            vec![called(2, 1, None), answered(3, 1, 0, Some(0)), called(4, 2, None), answered(5, 2, 1, Some(7))];
        let checked = linearizable(&Records::from([
            (1, first.clone()),
            (2, [second.clone(), vec![logged(8, 9, &[7, 8])]].concat()),
        ]));
        assert_eq!(checked.expect("the write without an answer took effect").operations, 5);
        let checked = linearizable(&Records::from([(1, first), (2, [second, vec![logged(8, 9, &[7])]].concat())]));
        assert_eq!(checked.expect("the write without an answer took none").operations, 4);
    }

    #[test]
    fn a_stale_read_of_a_process_that_slept_is_refused() {
        let awake =
            vec![called(1, 1, Some(7)), answered(2, 1, 1, None), called(3, 2, Some(8)), answered(4, 2, 2, None)];
        let slept = vec![called(5, 1, None), answered(6, 1, 1, Some(7)), logged(8, 9, &[7, 8])];
        refused(&Records::from([(1, awake), (2, slept)]), "the history of \"x/1\" has no order");
    }

    #[test]
    fn a_write_that_was_answered_and_is_not_stored_is_refused() {
        let lost = vec![called(1, 1, Some(7)), answered(2, 1, 1, None), logged(8, 9, &[])];
        refused(&Records::from([(1, lost)]), "has no order");
    }

    #[test]
    fn a_write_that_is_stored_twice_is_refused() {
        let doubled = vec![called(1, 1, Some(7)), answered(2, 1, 1, None), logged(8, 9, &[7, 7])];
        refused(&Records::from([(1, doubled)]), "was written twice");
    }

    #[test]
    fn a_value_that_no_client_wrote_is_refused() {
        refused(
            &Records::from([(1, vec![called(1, 1, None), answered(2, 1, 0, Some(0)), logged(8, 9, &[7])])]),
            "no order",
        );
    }

    #[test]
    fn an_error_that_denies_a_stored_write_is_refused() {
        let calls = vec![called(1, 1, Some(7)), failed(2, 1, false)];
        refused(
            &Records::from([(1, [calls.clone(), vec![logged(8, 9, &[7])]].concat())]),
            "did not run, and it is stored",
        );
        linearizable(&Records::from([(1, [calls, vec![logged(8, 9, &[])]].concat())])).expect("it is not stored");
        let unknown = vec![called(1, 1, Some(7)), failed(2, 1, true), logged(8, 9, &[7])];
        linearizable(&Records::from([(1, unknown)])).expect("it may have run");
    }

    #[test]
    fn an_entity_that_was_not_surveyed_is_no_success() {
        refused(&Records::from([(1, vec![called(1, 1, None)])]), "was not asked for all its writes");
    }

    #[test]
    fn two_overlapping_instances_are_found() {
        let owner = vec![started(1, 1), worked(5, 1)];
        let follower = vec![started(6, 1), worked(9, 1)];
        assert_eq!(never_two_instances(&Records::from([(1, owner.clone()), (2, follower.clone())])), Ok(2));
        let wakes = [owner, vec![worked(7, 1)]].concat();
        let failure = never_two_instances(&Records::from([(1, wakes), (2, follower)])).expect_err("both worked");
        assert!(failure.contains("two instances of x/1"), "{failure}");
    }

    #[test]
    fn two_instances_in_one_process_are_found() {
        let both = vec![started(1, 1), started(2, 2), worked(3, 1)];
        never_two_instances(&Records::from([(1, both)])).expect_err("the first still works");
    }
}
