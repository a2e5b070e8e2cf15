//! One very large entry goes to a new node while others are used.

use std::time::{Duration, Instant};

use greylag_crdt::{ClockExhausted, LwwRegister, OrSet};
use greylag_ddata::{Key, ReadLevel, Replicator, ReplicatorSettings, WriteLevel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::measure::percentiles;
use crate::nodes::{PATIENCE, local_updates, set, start, transports};

const ELEMENT_BYTES: usize = 96;

/// Writes of one key to a majority, one after the other, until told to stop.
async fn majority_updates(node: Replicator, mut stop: watch::Receiver<bool>) -> Vec<Duration> {
    let (key, mut times) = (Key::<LwwRegister<String>>::new("agreed").expect("a key"), Vec::new());
    while !*stop.borrow_and_update() {
        let start = Instant::now();
        let level = WriteLevel::majority(PATIENCE);
        node.update(&key, level, LwwRegister::new, set("z".into())).await.expect("an update");
        times.push(start.elapsed());
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    times
}

type Measured = JoinHandle<Vec<Duration>>;

fn measure(nodes: [&Replicator; 2]) -> (watch::Sender<bool>, [Measured; 3]) {
    let (stop, stopped) = watch::channel(false);
    let [holder, other] = nodes;
    let tasks = [
        tokio::spawn(local_updates(holder.clone(), stopped.clone())),
        tokio::spawn(majority_updates(holder.clone(), stopped.clone())),
        tokio::spawn(local_updates(other.clone(), stopped)),
    ];
    (stop, tasks)
}

async fn report(when: &str, (stop, tasks): (watch::Sender<bool>, [Measured; 3])) {
    stop.send_replace(true);
    for (what, task) in ["holder, local", "holder, majority", "other node, local"].into_iter().zip(tasks) {
        println!("large: {when}: {what}: {}", percentiles(task.await.expect("measured")));
    }
}

/// How many elements a node holds.
async fn len(node: &Replicator, key: &Key<OrSet<String>>) -> usize {
    let read = node.get(key, ReadLevel::Local).await.expect("an answer").found();
    read.map_or(0, |set| set.len())
}

pub(crate) async fn large(elements: usize) {
    let settings = ReplicatorSettings { max_entry_bytes: 512 * 1024 * 1024, ..ReplicatorSettings::default() };
    let transports = transports(3).await;
    let key = Key::<OrSet<String>>::new("large").expect("a key");
    let holder = start(settings.clone(), &transports[0], &transports);
    for from in (0..elements).step_by(20_000) {
        let to = (from + 20_000).min(elements);
        let add = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            // Spread over the order of keys, as names are.
            let name = |n: usize| format!("{:016x}-{n:0>79}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            set.add_all(cx, (from..to).map(name));
            Ok::<_, ClockExhausted>(())
        };
        holder.update(&key, WriteLevel::Local, OrSet::new, add).await.expect("an update");
    }
    // The second node gets it too, so that the others have somebody to agree with.
    let begun = Instant::now();
    let other = start(settings.clone(), &transports[1], &transports);
    while len(&other, &key).await < elements {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "large: {elements} elements of {ELEMENT_BYTES} bytes, {} MB, at a second node after {:.1} s",
        elements * (ELEMENT_BYTES + 4) / 1_000_000,
        begun.elapsed().as_secs_f64()
    );
    assert!(other.wait_synced(PATIENCE).await || elements < 10_000);
    let before = measure([&holder, &other]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    report("before", before).await;
    let steps = || async {
        [holder.metrics().await, other.metrics().await].map(|m| m.map_or(Duration::ZERO, |m| m.longest_step))
    };
    let begun = Instant::now();
    let new = start(settings, &transports[2], &transports);
    let during = measure([&holder, &new]);
    while len(&new, &key).await < elements {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = begun.elapsed();
    report("during", during).await;
    let step = new.metrics().await.map_or(Duration::ZERO, |m| m.longest_step);
    println!(
        "large: at a new node after {:.1} s; longest steps of all time: of the holder and the second node {:?}, of the new node {step:?}",
        took.as_secs_f64(),
        steps().await
    );
    for transport in transports {
        transport.shutdown().await;
    }
}
