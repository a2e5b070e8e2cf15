//! Salvage of a journal whose log has holes, has lost its end, or is older than its guard says; and the reported
//! losses.
//!
//! Source: persistence §4.3, scenario 75. `GREYLAG_HOLES=200` is the long form, over a log of 64 MiB.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::log::{SEGMENT, UNWRITTEN, places_of, segment_number};
use crate::common::rows::{Do, on_row};
use crate::common::{Writer, copy, id, in_memory, open};
use greylag_journal_sled::maintenance::{LEFT_OVER_FILE, Missing, export, salvage, verify};
use greylag_persistence::Journal;
use greylag_store_sled::GUARD_FILE;

const HOLES: &str = "GREYLAG_HOLES";
/// The most small events in a page of the log; one hole may lose all of them.
const OF_A_PAGE: usize = 40;

/// An event: its id, its number, and the beginning of its payload.
type Event = (String, u64, String);

fn holes() -> usize {
    std::env::var(HOLES).map_or(5, |holes| holes.parse().unwrap())
}

/// Fills a journal with about `mebibytes` MiB of few large events and many small ones; answers the events.
async fn fill(path: &Path, mebibytes: u64) -> BTreeSet<Event> {
    let mut held = BTreeSet::new();
    let rounds = mebibytes * 20;
    for opening in 0..4 {
        let journal = open(path).await;
        for round in (0..rounds).filter(|round| round * 4 / rounds == opening) {
            let name = format!("Large|{}", round % 7);
            let mut writer = Writer::claim(&journal, id(&name)).await;
            let payload = format!("{name}:{}:{}", writer.highest.as_u64() + 1, "x".repeat(30_000));
            writer.append(&journal, &[&payload]).await;
            held.insert((name, writer.highest.as_u64(), payload[..20.min(payload.len())].to_owned()));
            let name = format!("Small|{}", round % 50);
            let mut writer = Writer::claim(&journal, id(&name)).await;
            for _ in 0..3 {
                let payload = format!("{name}:{}:{}", writer.highest.as_u64() + 1, "y".repeat(100));
                writer.append(&journal, &[&payload]).await;
                held.insert((name.clone(), writer.highest.as_u64(), payload[..20].to_owned()));
            }
        }
        journal.close().await.unwrap();
    }
    held
}

/// The events in an export.
fn events_in(lines: &str) -> BTreeSet<Event> {
    let parse = |line: &str| -> Option<Event> {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let event = value.get("event")?;
        let payload = event["payload"].as_str().unwrap();
        let payload = payload.as_bytes().chunks(2).take(20).map(|hex| std::str::from_utf8(hex).unwrap());
        let payload = payload.map(|hex| u8::from_str_radix(hex, 16).unwrap() as char).collect();
        Some((event["id"].as_str().unwrap().to_owned(), event["seq_nr"].as_u64().unwrap(), payload))
    };
    lines.lines().filter_map(parse).collect()
}

fn numbers(missing: &[Missing]) -> BTreeSet<(String, u64)> {
    let of = |missing: &Missing| {
        let id = missing.id.clone();
        (missing.first..=missing.last).map(move |number| (id.clone(), number)).collect::<Vec<_>>()
    };
    missing.iter().flat_map(of).collect()
}

/// Salvages a damaged journal and compares everything; answers how many events and how many commits are lost.
async fn judge(damaged: &Path, held: &BTreeSet<Event>, what: &str) -> (usize, u64) {
    let new = in_memory();
    let before = std::fs::read(damaged.join("db")).unwrap();
    let saved = salvage(damaged, new.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(std::fs::read(damaged.join("db")).unwrap() == before, "{what}: the damaged log was changed");
    let mut lines = Vec::new();
    export(new.path(), &mut lines).unwrap();
    let mut found = events_in(&String::from_utf8(lines).unwrap());
    let left_over = std::fs::read_to_string(new.path().join(LEFT_OVER_FILE)).unwrap_or_default();
    assert_eq!(left_over.lines().count() as u64, saved.left_over, "{what}");
    let left_over = events_in(&left_over);
    assert!(found.is_disjoint(&left_over), "{what}");
    found.extend(left_over);
    assert!(found.is_subset(held), "{what}: another event came up: {:?}", found.difference(held).next());

    // Every loss is reported: an event by name, or its commit in the count of missing commits.
    let lost: BTreeSet<_> = held.difference(&found).map(|(id, number, _)| (id.clone(), *number)).collect();
    let told = numbers(&saved.missing);
    assert!(told.is_subset(&lost), "{what}: told as missing, and saved: {:?}", told.difference(&lost).next());
    let untold = lost.difference(&told).count() as u64;
    // Each commit of this journal has at most one event, and names it.
    assert!(untold <= saved.missing_commits, "{what}: {untold} events are lost and not told: {:?}", saved.damage);
    let is_whole = lost.is_empty() && saved.missing_commits == 0;
    assert!(is_whole || !saved.damage.is_empty(), "{what}: {} events are lost, and nothing is told", lost.len());
    // The new journal takes appends.
    let journal = open(new.path()).await;
    Writer::claim(&journal, id("Small|1")).await.append(&journal, &["goes on"]).await;
    journal.close().await.unwrap();

    let counted = verify(damaged).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(saved.damage.is_empty() || !counted.is_sound(), "{what}: {:?} is not told by `verify`", saved.damage);
    assert_eq!((counted.missing, counted.missing_commits), (saved.missing, saved.missing_commits), "{what}");
    let guarded = greylag_store_sled::guarded(damaged).unwrap().unwrap();
    assert_eq!(saved.missing_commits, guarded - commits_in(damaged), "{what}: of {guarded} commits");
    (lost.len(), counted.missing_commits)
}

/// Count of whole commit records in a log, one for each commit: nothing was deleted, so none were merged.
fn commits_in(damaged: &Path) -> u64 {
    let whole = in_memory();
    greylag_store_sled::rebuild(damaged, whole.path()).unwrap();
    on_row(whole.path(), Do::Count(0x04)).len() as u64
}

/// Places of all payloads that the log holds in one copy only, in the order of the file. sled leaves older copies of a
/// page behind when it moves the page, and a hole over one copy does not lose an event with several.
fn sole_copies(path: &Path) -> Vec<usize> {
    let log = std::fs::read(path.join("db")).unwrap();
    let mut copies: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for mark in ["Large|", "Small|"] {
        for at in places_of(mark.as_bytes(), &log) {
            let mut parts = log[at..log.len().min(at + 24)].splitn(3, |byte| *byte == b':');
            let (name, number) = (parts.next().unwrap(), parts.next().unwrap_or_default());
            // A payload begins with its id and number; other rows have the id alone.
            if name.len() < 12 && !number.is_empty() && number.iter().all(u8::is_ascii_digit) {
                copies.entry(&log[at..at + name.len() + 1 + number.len()]).or_default().push(at);
            }
        }
    }
    let mut sole: Vec<_> = copies.into_values().filter(|places| places.len() == 1).flatten().collect();
    sole.sort_unstable();
    sole
}

/// A copy of a journal, with zeros in the place of a range of its log.
fn without(original: &Path, range: Range<usize>) -> tempfile::TempDir {
    let damaged = in_memory();
    copy(original, damaged.path());
    std::fs::create_dir_all(damaged.path().join("blobs")).unwrap();
    let log = File::options().write(true).open(damaged.path().join("db")).unwrap();
    log.write_all_at(&vec![0; range.len()], range.start as u64).unwrap();
    damaged
}

/// persistence 75: records in the hole are lost and reported; all others are salvaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_75_a_hole_costs_what_lies_in_it_and_that_is_told() {
    let original = in_memory();
    let mebibytes = if std::env::var_os(HOLES).is_some() { 64 } else { 20 };
    let held = fill(original.path(), mebibytes).await;
    let (sole, holes) = (sole_copies(original.path()), holes());
    let mut lost = Vec::new();
    for hole in 0..holes {
        let at = sole[sole.len() / holes * hole] & !4095;
        let damaged = without(original.path(), at..at + 4096);
        lost.push(judge(damaged.path(), &held, &format!("a hole at {at}")).await.0);
    }
    let text = format!("{} events, {holes} holes of 4 KiB; events lost by each: {lost:?}\n", held.len());
    std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).unwrap();
    assert!(lost.iter().all(|lost| (1..=OF_A_PAGE).contains(lost)), "{lost:?}");
}

/// persistence 75: the last segment of the log is lost, or its second half; the lost commits are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_75_a_lost_segment_is_told_as_missing_commits() {
    let original = in_memory();
    let held = fill(original.path(), 20).await;
    let guarded = greylag_store_sled::guarded(original.path()).unwrap().unwrap();
    let (log, sole) = (std::fs::read(original.path().join("db")).unwrap(), sole_copies(original.path()));
    // The last segment that holds events: sled may just have begun another one.
    let last = sole.iter().map(|at| at / SEGMENT).max_by_key(|index| segment_number(&log, *index)).unwrap();
    let numbers = (0..log.len().div_ceil(SEGMENT)).map(|index| segment_number(&log, index));
    let is_end = !numbers.filter(|number| *number < UNWRITTEN).any(|number| number > segment_number(&log, last));
    let end = log.len().min((last + 1) * SEGMENT);
    let of_it: Vec<_> = sole.into_iter().filter(|at| at / SEGMENT == last).collect();
    for (what, from) in [("the last segment", last * SEGMENT), ("its second half", of_it[of_it.len() / 2])] {
        let damaged = without(original.path(), from..end);
        let (lost, commits) = judge(damaged.path(), &held, what).await;
        let least = of_it.iter().filter(|at| **at >= from).count();
        assert!(lost >= least, "{what}: {lost} events are lost, and at least {least} lay there alone");
        // If the segment is the end of the log, the latest commits are lost with it.
        assert!((u64::from(is_end)..guarded).contains(&commits), "{what}: {commits} commits of {guarded}");
    }
}

/// persistence 75: lost commit records in the middle of the sequence are counted, and their events are salvaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_75_commits_that_are_gone_from_the_midst_are_counted() {
    let original = in_memory();
    let held = fill(original.path(), 1).await;
    for number in [40_u64, 41, 90] {
        on_row(original.path(), Do::Remove([&[0x04][..], &number.to_be_bytes()].concat()));
    }
    let (lost, commits) = judge(original.path(), &held, "commits out of the midst").await;
    assert_eq!((lost, commits), (0, 3));
}

/// persistence 75: the guard names later commits than the log holds; the difference is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_75_fewer_commits_than_the_guard_says_are_counted() {
    let original = in_memory();
    let held = fill(original.path(), 1).await;
    let guarded = greylag_store_sled::guarded(original.path()).unwrap().unwrap();
    greylag_store_sled::renew_guard(original.path(), guarded + 17).unwrap();
    let (lost, commits) = judge(original.path(), &held, "a guard that is ahead").await;
    assert_eq!((lost, commits), (0, 17));
    let saved = salvage(original.path(), in_memory().path()).unwrap();
    assert!(saved.damage.iter().any(|what| what.contains("17 commits are missing")), "{:?}", saved.damage);
    // Without the guard missing commits at the end cannot be counted.
    std::fs::remove_file(original.path().join(GUARD_FILE)).unwrap();
    let saved = salvage(original.path(), in_memory().path()).unwrap();
    assert!(saved.missing_commits == 0 && saved.damage.iter().any(|what| what.contains("tail guard")), "{saved:?}");
}
