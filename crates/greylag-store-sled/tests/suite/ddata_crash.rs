//! A durable replicator is killed under load, again and again, and runs on a full disk: every acknowledged update is
//! still there.
//!
//! The child is this very test binary, with the directory in an environment variable. It prints what it has loaded;
//! then several writers update as fast as they can, each update is acknowledged only when it is stored, and the child
//! prints each acknowledgement. The parent kills the child after some of them and compares what the next child has
//! loaded. `cargo xtask durable --cycles 1000` is the long form.
//!
//! Source: ddata U3, C2.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::Registry;
use greylag_crdt::{CounterOverflow, GCounter, OrSet};
use greylag_ddata::{
    DurableSettings, Key, Membership, ReadLevel, Replicator, ReplicatorSettings, TypeTable, UpdateError, WriteLevel,
};
use greylag_store_sled::{DdataStore, DdataStoreSettings};
use greylag_testkit::small_disk::{self, SmallDisk};
use greylag_transport::memory::MemoryNetwork;

const PLACE: &str = "GREYLAG_DDATA_CRASH_PLACE";
const CYCLES: &str = "GREYLAG_DDATA_CRASH_CYCLES";
const WRITERS: u64 = 6;

fn count_of(writer: u64) -> Key<GCounter> {
    Key::new(format!("count-{writer}")).unwrap()
}

/// One set for all writers: it grows large, so that it is stored as a snapshot and deltas.
fn shared() -> Key<OrSet<String>> {
    Key::new("shared").unwrap()
}

fn element(writer: u64, number: u128) -> String {
    format!("{writer}:{number}:{}", "x".repeat(100))
}

fn say(line: &str) {
    // Print with one write, so that the lines of the writers do not mix.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn start(place: &Path) -> Replicator {
    let uid = (u64::from(std::process::id()) << 32) | u64::from(clock_bits());
    let remoting = MemoryNetwork::new().node(format!("solo.crash:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
    let settings = ReplicatorSettings { durable: DurableSettings::of(["*"]), ..ReplicatorSettings::test() };
    let store = Arc::new(DdataStore::new(place, DdataStoreSettings::test()));
    Replicator::start_durable(settings, TypeTable::new(), remoting, Membership::fixed([]), store).unwrap()
}

/// Bits of the clock for a unique uid: process ids are reused, but not within one nanosecond of the clock.
fn clock_bits() -> u32 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos() | 1
}

/// Not a test of its own: the child process of the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let replicator = start(Path::new(&place));
    let mut counts = BTreeMap::new();
    let set = replicator.get(&shared(), ReadLevel::Local).await.unwrap().found().unwrap_or_default();
    for writer in 0..WRITERS {
        let count = replicator.get(&count_of(writer), ReadLevel::Local).await.unwrap().found();
        let count = count.map_or(0, |count| count.value());
        let missing =
            (1..=count).filter(|number| !number.is_multiple_of(20)).find(|n| !set.contains(&element(writer, *n)));
        // The element is added before the count rises, so every counted element is there.
        assert_eq!(missing, None, "of writer {writer}, which counted {count}");
        say(&format!("have {writer} {count}"));
        counts.insert(writer, count);
    }
    let writers = counts.into_iter().map(|(writer, count)| tokio::spawn(write(replicator.clone(), writer, count)));
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

async fn write(replicator: Replicator, writer: u64, count: u128) {
    for number in count + 1.. {
        let add = element(writer, number);
        let add = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            set.add(cx, add);
            Ok::<_, CounterOverflow>(())
        };
        replicator.update(&shared(), WriteLevel::Local, OrSet::new, add).await.unwrap();
        if number.is_multiple_of(20) {
            let gone = element(writer, number);
            let remove = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
                set.remove(cx, &gone);
                Ok::<_, CounterOverflow>(())
            };
            replicator.update(&shared(), WriteLevel::Local, OrSet::new, remove).await.unwrap();
        }
        let key = count_of(writer);
        replicator.update(&key, WriteLevel::Local, GCounter::new, |count, cx| count.increment(cx, 1)).await.unwrap();
        say(&format!("ack {writer} {number}"));
    }
}

fn spawn(place: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ddata_crash::child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// The words of a line of the child: the kind, the writer, the count.
fn parse(line: &str) -> Option<(&str, u64, u128)> {
    // Search the line: output of the test harness may stand before the first word.
    let at = ["have ", "ack "].iter().find_map(|word| line.find(word))?;
    let mut words = line[at..].split_whitespace();
    Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// ddata U3, C2: a replicator killed under load loses no acknowledged update.
#[test]
fn a_replicator_killed_under_load_loses_nothing_that_was_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let cycles: usize = std::env::var(CYCLES).map_or(8, |cycles| cycles.parse().unwrap());
    let began_at = Instant::now();
    let mut acknowledged: BTreeMap<u64, u128> = BTreeMap::new();
    let (mut acks, mut unacknowledged) = (0_u64, 0_u128);
    for cycle in 0..cycles {
        let (mut child, mut lines) = spawn(place.path());
        let mut left = 20 + 37 * (cycle % 9);
        while left > 0 {
            let line = lines.next().expect("the child runs until it is killed").unwrap();
            match parse(&line) {
                Some(("have", writer, count)) => {
                    let known = acknowledged.get(&writer).copied().unwrap_or_default();
                    // The update under way when the process was killed may be there, or not.
                    let range = known..=known + 1;
                    assert!(range.contains(&count), "cycle {cycle}: writer {writer} has {count}, acknowledged {known}");
                    unacknowledged += count - known;
                    acknowledged.insert(writer, count);
                }
                Some((_, writer, number)) => {
                    acknowledged.insert(writer, number);
                    (left, acks) = (left - 1, acks + 1);
                }
                None => {}
            }
        }
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(("ack", writer, number)) = parse(&line) {
                // A line cut off by the kill shows a smaller number, which was acknowledged too.
                let known = acknowledged.entry(writer).or_default();
                *known = (*known).max(number);
                acks += 1;
            }
        }
        child.wait().unwrap();
        if (cycle + 1) % 100 == 0 {
            say(&format!("{} cycles, {acks} acknowledged updates, none lost, {:.1?}", cycle + 1, began_at.elapsed()));
        }
    }
    say(&format!(
        "{cycles} kills, {acks} acknowledged updates, none lost; {unacknowledged} more were found that were never \
         acknowledged; {:.1?}",
        began_at.elapsed()
    ));
}

/// Not a test of its own: runs on a disk of its own that is soon full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_on_a_small_disk() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let replicator = start(&disk.path().join("store"));
    let key = count_of(0);
    let visit = || replicator.update(&key, WriteLevel::Local, GCounter::new, |count, cx| count.increment(cx, 1));
    visit().await.unwrap();

    // Another program takes all free space.
    let filler = disk.fill(0);
    let (mut stored, mut failed) = (1_u128, None);
    // sled can still store some changes in space that it has reserved.
    for number in 0..20_000_u64 {
        let large = Key::<OrSet<String>>::new(format!("large-{}", number % 7)).unwrap();
        let add = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            set.add(cx, format!("{number}{}", "y".repeat(50_000)));
            Ok::<_, CounterOverflow>(())
        };
        match replicator.update(&large, WriteLevel::Local, OrSet::new, add).await {
            Ok(()) => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    assert!(matches!(failed, Some(UpdateError::StoreFailed { .. })), "{failed:?}");
    // The replicator lives on: the value is in memory, and the caller gets the error.
    match visit().await {
        Err(UpdateError::StoreFailed { .. }) => {}
        other => panic!("{other:?}"),
    }
    let read = replicator.get(&key, ReadLevel::Local).await.unwrap().found().unwrap();
    stored += 1;
    assert_eq!(read.value(), stored);

    std::fs::remove_file(filler).unwrap();
    let give_up_at = Instant::now() + Duration::from_secs(60);
    let mut acknowledged = false;
    while !acknowledged {
        assert!(Instant::now() < give_up_at, "space has returned, and nothing is stored");
        stored += 1;
        acknowledged = visit().await.is_ok();
        // Wait: the store reopens itself after pauses, and asking does not make it faster.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replicator.shutdown().await;
    let again = start(&disk.path().join("store"));
    let read = again.get(&key, ReadLevel::Local).await.unwrap().found().unwrap();
    assert_eq!(read.value(), stored, "what could not be stored at first was stored with what came after");
    again.shutdown().await;
    disk.done();
}

/// ddata U5: a full disk makes updates fail; the replicator lives on, and recovers when space returns.
#[test]
fn scenario_40_a_full_disk_is_told_and_got_over() {
    small_disk::run("ddata_crash::child_on_a_small_disk", 40);
}
