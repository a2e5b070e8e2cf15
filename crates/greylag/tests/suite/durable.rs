//! A node whose config file makes entries durable: after a restart the entries are there.

use greylag::config::Config;
use greylag::crdt::{GCounter, GSet};
use greylag::ddata::{Key, ReadLevel, TypeTable, WriteLevel};
use greylag::{Node, NodeBuilder};

fn builder(path: &std::path::Path) -> NodeBuilder {
    let text = format!("[ddata.durable]\nkeys = [\"visits\", \"cart-*\"]\npath = {path:?}\n");
    Node::builder("shop").config(Config::new().text("node.toml", text)).bind("127.0.0.1", 0)
}

/// ddata U1, U6, U7: a path that does not end in `ddata` is taken as it is; a restarted node is a new process with
/// the old store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_named_in_the_config_file_survive_the_node() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("carts");
    let visits = Key::<GCounter>::new("visits").expect("an id");
    for expected in 1..=2 {
        let node = builder(&path).start().await.expect("a cluster of one");
        let replicator = node.replicator(TypeTable::new()).expect("it starts");
        let visit = replicator.update(&visits, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 1));
        visit.await.expect("it is stored");
        let read = replicator.get(&visits, ReadLevel::Local).await.expect("it is here").found().expect("it counts");
        assert_eq!(read.value(), expected);
        node.shutdown().await.expect("it leaves in order");
        replicator.shutdown().await;
    }
    assert!(path.join("db").exists());
}

/// ddata U5: the type of a durable entry is known before the entry is loaded, also a type that no table has by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_entry_of_any_type_survives_the_node() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("carts");
    for run in 1..=2_u64 {
        let node = builder(&path).start().await.expect("a cluster of one");
        let numbers = node.replicated::<GSet<u64>>("cart-numbers").expect("it starts");
        numbers.update(move |numbers, _| numbers.add(run)).await.expect("it is stored");
        let seen: Vec<u64> = numbers.get().await.expect("it was loaded").iter().copied().collect();
        assert_eq!(seen, (1..=run).collect::<Vec<_>>());
        node.shutdown().await.expect("it leaves in order");
        // The store is closed behind the node's end.
        numbers.replicator().shutdown().await;
    }
}
