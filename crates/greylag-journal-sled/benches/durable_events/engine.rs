//! The journal's batches, written to the engine directly: no checks, no guard, no answers to a thousand tasks.

use std::path::Path;
use std::time::Instant;

use greylag_journal_sled::{StoreError, StoreSettings};
use greylag_store_sled::{Batch, MAX_VALUE_BYTES, Planner, Reader, Request, Store};

use crate::{Load, Shape, journal};

/// Bytes of a row's checksum. A key and its checksum take 9 to 30 bytes, which the sizes below do not count.
const SEAL_BYTES: usize = 4;
const HEAD_BYTES: usize = 78;
/// Bytes of a commit record for one append and its head.
const RECORD_BYTES: usize = 10;

/// Writes groups as the journal does: a head that is written over and a new event for each of some entities, and
/// a commit record.
struct Bare {
    load: Load,
    group_events: u64,
    event_bytes: usize,
    /// Bytes that all values are cut from.
    filler: Vec<u8>,
}

/// One group, by its number.
struct Group(u64);

impl Request for Group {
    fn bytes(&self) -> usize {
        0
    }
}

impl Planner for Bare {
    type Request = Group;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, groups: Vec<Group>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        for Group(group) in &groups {
            for event in group * self.group_events..(group + 1) * self.group_events {
                let (entity, seq_nr) = (event % self.load.entities, event / self.load.entities + 1);
                let head = [&[1], journal::id(entity).as_str().as_bytes()].concat();
                // sled skips a write of the value already stored, so each head of an entity must differ from the one
                // before.
                batch.put(&head, &[&seq_nr.to_be_bytes(), &self.filler[8..HEAD_BYTES]].concat());
                let key = [&[2], &entity.to_be_bytes()[..], &seq_nr.to_be_bytes()[..]].concat();
                batch.put(&key, &self.filler[..self.event_bytes]);
            }
            let record = RECORD_BYTES * usize::try_from(self.group_events).expect("a group fits in memory");
            batch.put(&[&[4], &group.to_be_bytes()[..]].concat(), &self.filler[..record]);
        }
        Ok(vec![(); groups.len()])
    }
}

/// Writes groups of this shape one after the other; answers events per second.
pub(crate) fn run(path: &Path, load: Load, shape: Shape) -> Result<f64, Box<dyn std::error::Error>> {
    let group_events = (load.events() / shape.groups).max(1);
    let groups = load.events().div_ceil(group_events);
    // Event sizes are chosen so that the engine writes as many bytes in all as the journal wrote.
    let keys = 1 + journal::id(load.entities / 2).as_str().len() + 17 + 2 * SEAL_BYTES;
    let each = usize::try_from(shape.bytes / load.events())?;
    let record = RECORD_BYTES + (9 + SEAL_BYTES) / usize::try_from(group_events)?;
    let event_bytes = each.saturating_sub(keys + HEAD_BYTES + record);
    let store = Store::open(
        path,
        StoreSettings::default(),
        Bare { load, group_events, event_bytes, filler: vec![7; MAX_VALUE_BYTES] },
    )?;
    let began_at = Instant::now();
    for group in 0..groups {
        store.submit(Group(group))?.wait()?;
    }
    let rate = (groups * group_events) as f64 / began_at.elapsed().as_secs_f64();
    let stats = store.stats();
    store.close()?;
    let (written, wanted) = (stats.bytes as f64, shape.bytes as f64);
    assert!((0.97..1.03).contains(&(written / wanted)), "the engine wrote {written} bytes, the journal {wanted}");
    Ok(rate)
}
