use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(path: &Path) -> Engine {
    Engine::open(path, &StoreSettings::test(), "repair it").unwrap()
}

fn records(path: &Path) -> Records {
    let engine = open(path);
    engine.range(&[], &BEHIND_ALL).map(|record| record.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

/// Fills a store with writes, overwrites and removals, and opens it several times. Keys have long common beginnings, so
/// that pages have prefixes.
fn fill(path: &Path, rounds: u32, value_bytes: usize) -> Records {
    let mut kept = Records::new();
    let mut state = 7_u32;
    let mut draw = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for opening in 0..4 {
        let engine = open(path);
        for round in 0..rounds / 4 {
            let mut batch = Batch::default();
            for _ in 0..1 + draw(6) {
                let (space, number) = (draw(3) as u8 + 1, draw(rounds));
                let key = [&[space; 9][..], &number.to_be_bytes()].concat();
                if draw(4) == 0 {
                    batch.remove(&key);
                    kept.remove(&key);
                } else {
                    let value =
                        [&[opening as u8, round as u8][..], &vec![number as u8; draw(value_bytes as u32) as usize]]
                            .concat();
                    batch.put(&key, &value);
                    kept.insert(key, value);
                }
            }
            engine.commit(batch).unwrap();
        }
    }
    kept
}

#[test]
fn of_a_log_that_is_whole_nothing_is_lost_and_nothing_comes_back() {
    for (rounds, value_bytes) in [(400, 300), (160, 60_000)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = fill(from.path(), rounds, value_bytes);
        assert_eq!(records(from.path()), kept);
        rebuild(from.path(), to.path()).unwrap();
        assert!(records(to.path()) == kept, "{rounds} rounds");
    }
}

/// Holes of 4 KiB: sled opens over some of them and loses what follows; a rebuild loses only what lay in the hole.
#[test]
fn a_hole_costs_only_the_records_in_it() {
    let from = tempfile::tempdir().unwrap();
    let kept = fill(from.path(), 800, 2_000);
    let path = from.path().join("db");
    let whole = std::fs::read(&path).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut lost = Vec::new();
    for part in 0..20 {
        let at = used * part / 20;
        let log = File::options().write(true).open(&path).unwrap();
        log.write_all_at(&[0; 4096], at as u64).unwrap();
        let to = tempfile::tempdir().unwrap();
        rebuild(from.path(), to.path()).unwrap();
        let found = records(to.path());
        // Count the records that are lost, have a former value, or have come back.
        let differs = kept.iter().filter(|(key, value)| found.get(*key) != Some(value)).count()
            + found.keys().filter(|key| !kept.contains_key(*key)).count();
        lost.push(differs);
        log.write_all_at(&whole[at..(at + 4096).min(whole.len())], at as u64).unwrap();
    }
    // A hole takes some messages of 2 KB on average; each holds one record, or a page of twenty.
    assert!(lost.iter().all(|lost| *lost <= 40), "{lost:?} of {}", kept.len());
    assert!(lost.iter().sum::<usize>() > 0, "the holes were nowhere");
}

/// The page with the prefix of its changes lies in the hole.
#[test]
fn keys_are_told_by_their_checksums_where_their_page_is_lost() {
    let mut prefixes = Prefixes::default();
    prefixes.of.insert(1, b"old".to_vec());
    prefixes.all.extend([b"".to_vec(), b"other".to_vec(), b"new".to_vec()]);
    let mut batch = Batch::default();
    batch.put(b"newkey", b"value");
    let sealed = batch.writes()[0].1.clone().unwrap();
    assert_eq!(prefixes.find(1, b"key", &sealed).unwrap(), b"newkey");
    assert_eq!(prefixes.find(9, b"key", &sealed).unwrap(), b"newkey");
    assert_eq!(prefixes.find(9, b"kez", &sealed), None);
    assert_eq!(prefixes.find(9, b"key", b"abc"), None);
}
