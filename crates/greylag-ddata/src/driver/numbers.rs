//! State of a process incarnation, shared by its replicators: the source of numbers, and the names in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use greylag_core::{Uid, UniqueAddress};
use greylag_crdt::DotSource;

use crate::api::error::StartError;
use crate::api::settings::DotFloor;

#[derive(Debug, Default)]
struct Process {
    numbers: DotSource,
    names: BTreeSet<String>,
}

/// The state of each incarnation, by uid: a test runs several incarnations in one process.
static PROCESSES: Mutex<BTreeMap<Uid, Process>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<Uid, Process>> {
    PROCESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name in use on a node; dropping it frees the name.
#[derive(Debug)]
pub(super) struct Name {
    uid: Uid,
    name: String,
}

/// Takes a name, and returns the incarnation's source of numbers. A replicator restarted in the same process goes on
/// with the same numbers: dots must never be used twice. Source: ddata K2, I1.
///
/// The numbers begin above `floor`, if there is one.
pub(super) fn claim(
    node: &UniqueAddress,
    name: &str,
    floor: Option<DotFloor>,
) -> Result<(Name, DotSource), StartError> {
    let mut processes = lock();
    let process = processes.entry(node.uid()).or_default();
    if !process.names.insert(name.to_owned()) {
        return Err(StartError::DuplicateName { name: name.to_owned(), node: node.clone() });
    }
    if let Some(DotFloor(floor)) = floor {
        // Reserving never fails: the jump ends at the floor.
        process.numbers.reserve(floor.saturating_sub(process.numbers.last()));
    }
    Ok((Name { uid: node.uid(), name: name.to_owned() }, process.numbers.clone()))
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(process) = lock().get_mut(&self.uid) {
            process.names.remove(&self.name);
        }
    }
}
