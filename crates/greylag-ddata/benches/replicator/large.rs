//! Sends one very large entry to a new node while other entries are used.

use std::time::{Duration, Instant};

use greylag_crdt::{ClockExhausted, LwwRegister, OrSet};
use greylag_ddata::{Key, ReadLevel, Replicator, ReplicatorSettings, WriteLevel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::measure::percentiles;
use crate::nodes::{Node, PATIENCE, addresses, local_updates, set};

const ELEMENT_BYTES: usize = 96;

/// Writes one key to a majority, one write after the other, until told to stop.
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

fn measure(nodes: [&Node; 2]) -> (watch::Sender<bool>, [Measured; 3]) {
    let (stop, stopped) = watch::channel(false);
    let [holder, other] = nodes;
    let tasks = [
        holder.runtime.spawn(local_updates(holder.replicator.clone(), stopped.clone())),
        holder.runtime.spawn(majority_updates(holder.replicator.clone(), stopped.clone())),
        other.runtime.spawn(local_updates(other.replicator.clone(), stopped)),
    ];
    (stop, tasks)
}

fn report(when: &str, at: &Node, (stop, tasks): (watch::Sender<bool>, [Measured; 3])) {
    stop.send_replace(true);
    for (what, task) in ["holder, local", "holder, majority", "other node, local"].into_iter().zip(tasks) {
        println!("large: {when}: {what}: {}", percentiles(at.runtime.block_on(task).expect("measured")));
    }
}

/// How many elements a node holds.
async fn len(node: &Replicator, key: &Key<OrSet<String>>) -> usize {
    let read = node.get(key, ReadLevel::Local).await.expect("an answer").found();
    read.map_or(0, |set| set.len())
}

pub(crate) fn large(elements: usize) {
    let settings = ReplicatorSettings { max_entry_bytes: 512 * 1024 * 1024, ..ReplicatorSettings::default() };
    let all = addresses(3);
    let key = Key::<OrSet<String>>::new("large").expect("a key");
    let holder = Node::start(settings.clone(), &all[0], &all);
    for from in (0..elements).step_by(20_000) {
        let to = (from + 20_000).min(elements);
        let add = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            // Spread over the order of keys, as names are.
            let name = |n: usize| format!("{:016x}-{n:0>79}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            set.add_all(cx, (from..to).map(name));
            Ok::<_, ClockExhausted>(())
        };
        let update = holder.replicator.update(&key, WriteLevel::Local, OrSet::new, add);
        holder.runtime.block_on(update).expect("an update");
    }
    let filling = holder.longest_step();
    let has_all = |node: &Node| {
        node.runtime.block_on(async {
            while len(&node.replicator, &key).await < elements {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    };
    // Give the entry to the second node too, so that others have a peer for their majorities.
    let begun = Instant::now();
    let other = Node::start(settings.clone(), &all[1], &all);
    has_all(&other);
    println!(
        "large: {elements} elements of {ELEMENT_BYTES} bytes, {} MB, at a second node after {:.1} s",
        elements * (ELEMENT_BYTES + 4) / 1_000_000,
        begun.elapsed().as_secs_f64()
    );
    // Skip the wait for few elements, which arrive at once: synchronizing also waits for the third node, which starts
    // later.
    assert!(elements < 10_000 || other.runtime.block_on(other.replicator.wait_synced(PATIENCE)));
    let before = measure([&holder, &other]);
    std::thread::sleep(Duration::from_secs(3));
    report("before", &holder, before);
    let serving = [holder.longest_step(), other.longest_step()];
    let begun = Instant::now();
    let new = Node::start(settings, &all[2], &all);
    let during = measure([&holder, &new]);
    has_all(&new);
    let took = begun.elapsed();
    report("during", &holder, during);
    println!(
        "large: at a new node after {:.1} s; longest steps: of the holder while it was filled {filling:.1} ms, with the \
         second node {:.1} ms, with the new one {:.1} ms; of the second {:.1} and {:.1} ms; of the new one {:.1} ms",
        took.as_secs_f64(),
        serving[0],
        holder.longest_step(),
        serving[1],
        other.longest_step(),
        new.longest_step()
    );
    [holder, other, new].into_iter().for_each(Node::stop);
}
