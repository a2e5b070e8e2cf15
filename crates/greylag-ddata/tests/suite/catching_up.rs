//! New nodes get everything that others hold, whatever its size and number; drivers without the cluster crate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, Registry};
use greylag_crdt::{ClockExhausted, CounterOverflow, GCounter, LwwRegister, OrSet, UpdateCx};
use greylag_ddata::{Key, Membership, ReadLevel, Replicator, ReplicatorSettings, TypeTable, WriteLevel};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes on one fixed list, each with its own address.
struct Nodes {
    network: MemoryNetwork,
    name: &'static str,
    count: usize,
    settings: ReplicatorSettings,
}

impl Nodes {
    fn address(&self, index: usize) -> NodeAddress {
        format!("{}{index}.late:1", self.name).parse().unwrap()
    }

    fn start(&self, index: usize, uid: u64) -> Replicator {
        let own = format!("{}#{uid}", self.address(index)).parse().unwrap();
        let remoting = self.network.node(own, Arc::new(Registry::new()));
        let membership = Membership::fixed((0..self.count).map(|index| self.address(index)));
        Replicator::start(self.settings.clone(), TypeTable::new(), remoting, membership).unwrap()
    }
}

async fn set_text(node: &Replicator, id: String, text: String) {
    let set = move |register: &mut LwwRegister<String>, cx: &mut UpdateCx<'_>| register.set(cx, text).map(drop);
    node.update(&Key::new(id).unwrap(), WriteLevel::Local, LwwRegister::new, set).await.unwrap();
}

async fn add_elements(node: &Replicator, id: &str, count: usize, bytes: usize) {
    let add = move |set: &mut OrSet<String>, cx: &mut UpdateCx<'_>| {
        set.add_all(cx, (0..count).map(|n| format!("{n:0>bytes$}")));
        Ok::<_, ClockExhausted>(())
    };
    node.update(&Key::new(id).unwrap(), WriteLevel::Local, OrSet::new, add).await.unwrap();
}

async fn elements(node: &Replicator, id: &str) -> usize {
    let key = Key::<OrSet<String>>::new(id).unwrap();
    node.get(&key, ReadLevel::Local).await.unwrap().found().map_or(0, |set| set.len())
}

async fn has_keys(node: &Replicator, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while node.metrics().await.unwrap().keys < count {
        assert!(Instant::now() < deadline, "{} keys", node.metrics().await.unwrap().keys);
        tokio::task::yield_now().await;
    }
}

/// ddata G11, G12, G13: 500 small and 15 large entries, and two sets of 8 MiB, one that goes in fragments and one that
/// goes in parts, with messages of 50 KB: the new node is complete after one sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_59_small_and_large_entries_in_one_sync() {
    let settings = ReplicatorSettings {
        max_message_bytes: 50 * 1024,
        bulk_fragment_bytes: 256 * 1024,
        eager_full_state_bytes: 50 * 1024,
        inner_tree_keys: 2_000,
        // Without gossip, everything that is there later was brought by catching up.
        gossip_interval: Duration::from_secs(600),
        sync_timeout: PATIENCE,
        ..ReplicatorSettings::test()
    };
    let nodes = Nodes { network: MemoryNetwork::new(), name: "a", count: 2, settings };
    let holder = nodes.start(0, 6_001);
    for n in 0..500 {
        set_text(&holder, format!("small-{n}"), n.to_string()).await;
    }
    for n in 0..15 {
        set_text(&holder, format!("large-{n}"), n.to_string().repeat(300 * 1024)).await;
    }
    add_elements(&holder, "in-fragments", 1_000, 8 * 1024).await;
    add_elements(&holder, "in-parts", 2_500, 3_300).await;
    let new = nodes.start(1, 6_002);
    assert!(new.wait_synced(PATIENCE).await);
    let metrics = new.metrics().await.unwrap();
    assert_eq!(metrics.keys, 517, "nothing is missing the moment it has caught up");
    assert_eq!((metrics.stats.transfers_aborted, metrics.stats.malformed, metrics.stats.undecodable), (0, 0, 0));
    assert_eq!(metrics.stats.repaired_in_parts, 1);
    assert_eq!((elements(&new, "in-fragments").await, elements(&new, "in-parts").await), (1_000, 2_500));
    let text = Key::<LwwRegister<String>>::new("large-14").unwrap();
    let text = new.get(&text, ReadLevel::Local).await.unwrap().found().unwrap();
    assert_eq!(text.value().map(String::len), Some(600 * 1024));
}

/// The number of keys of scenario 66. A build that is not optimized uses fewer, and does not check the time.
const KEYS: usize = if cfg!(debug_assertions) { 3_500 } else { 100_000 };
/// The time that 100,000 entries may take. Source: ddata H3.
const H3: Duration = Duration::from_secs(2);

/// ddata 66, I2, G13, H3: three nodes from a fixed list; one is killed, comes back as another process with nothing, and
/// gets every key in time. The form with 100,000 keys is `cargo test --release -p greylag-ddata --test suite catching_up::`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_66_a_killed_node_comes_back_to_all_keys() {
    let nodes = Nodes { network: MemoryNetwork::new(), name: "b", count: 3, settings: ReplicatorSettings::test() };
    let mut running: Vec<Replicator> = (0..3).map(|index| nodes.start(index, 6_101 + index as u64)).collect();
    for node in &running {
        node.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
        assert!(node.wait_synced(PATIENCE).await);
    }
    let increment = |node: &Replicator, from: usize, to: usize| {
        let node = node.clone();
        tokio::spawn(async move {
            for n in from..to {
                let key = Key::new(format!("count-{n}")).unwrap();
                let add = |counter: &mut GCounter, cx: &mut UpdateCx<'_>| counter.increment(cx, 1);
                let done: Result<(), _> = node.update(&key, WriteLevel::Local, GCounter::new, add).await;
                done.map_err(|error: greylag_ddata::UpdateError<CounterOverflow>| error.to_string()).unwrap();
            }
        })
    };
    // Two nodes write; some of the keys are written by both.
    let (third, most) = (KEYS / 3, KEYS / 7 * 6);
    let writers = [increment(&running[0], 0, third * 2), increment(&running[1], third, most)];
    for writer in writers {
        writer.await.unwrap();
    }
    has_keys(&running[2], most).await;
    nodes.network.crash(&format!("{}#6103", nodes.address(2)).parse().unwrap());
    drop(running.pop());
    increment(&running[0], most, KEYS).await.unwrap();
    has_keys(&running[1], KEYS).await;
    let began = Instant::now();
    let back = nodes.start(2, 6_104);
    has_keys(&back, KEYS).await;
    assert!(back.wait_synced(PATIENCE).await);
    // Read locally: what the node itself holds, and not what it could ask others for.
    let looked_at = (0..KEYS).step_by(KEYS / 500).chain([third, third * 2 - 1, most - 1, most, KEYS - 1]);
    let looked_at: Vec<(usize, u128)> =
        looked_at.map(|n| (n, if (third..third * 2).contains(&n) { 2 } else { 1 })).collect();
    for (n, counted) in &looked_at {
        counts(&back, *n, *counted).await;
    }
    let took = began.elapsed();
    assert!(cfg!(debug_assertions) || took <= H3, "{KEYS} keys took {took:?}");
    for node in &running {
        for (n, counted) in &looked_at {
            counts(node, *n, *counted).await;
        }
    }
}

/// Waits until the node itself holds this count.
async fn counts(node: &Replicator, n: usize, counted: u128) {
    let key = Key::<GCounter>::new(format!("count-{n}")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held = node.get(&key, ReadLevel::Local).await.unwrap().found().map(|counter| counter.value());
        if held == Some(counted) {
            return;
        }
        assert!(Instant::now() < deadline, "count-{n} is {held:?}, not {counted}");
        tokio::task::yield_now().await;
    }
}
