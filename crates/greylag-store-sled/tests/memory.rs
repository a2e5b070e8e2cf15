//! Values that a store replaces do not stay in memory. This test has its own process, so that it measures nothing else.

use greylag_store_sled::{Batch, Planner, Reader, Request, Store, StoreError, StoreSettings};

/// Writes all keys again.
struct Rewrite;

impl Request for Rewrite {
    fn bytes(&self) -> usize {
        0
    }
}

struct Keys(u8);

impl Planner for Keys {
    type Request = Rewrite;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, requests: Vec<Rewrite>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        self.0 = self.0.wrapping_add(1);
        (0_u32..4_000).for_each(|key| batch.put(&[&[1], &key.to_be_bytes()[..]].concat(), &[self.0; 100]));
        Ok(vec![(); requests.len()])
    }
}

/// The resident memory, in megabytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Overwrites half a megabyte of keys again and again: without collecting the garbage of batches this would take
/// hundreds of megabytes, and ever more.
#[test]
fn replaced_records_are_freed() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), StoreSettings::test(), Keys(0)).unwrap();
    let rewrite = |times| (0..times).for_each(|_| store.submit(Rewrite).unwrap().wait().unwrap());
    rewrite(10);
    let before = resident();
    rewrite(60);
    let grown = resident().saturating_sub(before);
    assert!(grown < 100, "{grown} MiB more than the {before} MiB after ten times");
    store.close().unwrap();
}
