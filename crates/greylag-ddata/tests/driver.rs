//! The handle and its task, over an in-process network and threads: the wiring, not the protocol.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{NodeAddress, Registry};
use greylag_crdt::{ClockExhausted, GCounter, LwwMap, OrSet};
use greylag_ddata::{
    Changed, DeleteError, Key, Membership, Read, ReadLevel, Replicator, ReplicatorSettings, StartError, TypeTable,
    UpdateError, WriteLevel,
};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(10);

fn address(index: usize) -> NodeAddress {
    format!("n{index}.ddata:1").parse().unwrap()
}

/// Replicators on nodes 0 to `count`, which know each other.
async fn start(network: &MemoryNetwork, uids: &[u64]) -> Vec<Replicator> {
    let peers: Vec<NodeAddress> = (0..uids.len()).map(address).collect();
    let mut replicators = Vec::new();
    for (index, uid) in uids.iter().enumerate() {
        let ua = format!("{}#{uid}", address(index)).parse().unwrap();
        let remoting = network.node(ua, Arc::new(Registry::new()));
        let membership = Membership::fixed(peers.clone());
        replicators
            .push(Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, membership).unwrap());
    }
    for replicator in &replicators {
        replicator.replicas().wait_for(|now| now.unmet == 0).await.unwrap();
        assert!(replicator.wait_synced(PATIENCE).await);
    }
    replicators
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_writes_to_a_majority_another_reads_from_a_majority() {
    let network = MemoryNetwork::new();
    let nodes = start(&network, &[101, 102, 103]).await;
    let key = Key::<GCounter>::new("visits").unwrap();
    for (node, by) in nodes.iter().zip([20, 1, 1]) {
        let level = WriteLevel::majority(PATIENCE);
        node.update(&key, level, GCounter::new, move |visits, cx| visits.increment(cx, by)).await.unwrap();
    }
    let read = nodes[2].get(&key, ReadLevel::majority(PATIENCE)).await.unwrap();
    assert_eq!(read.found().unwrap().value(), 22);
    assert_eq!(nodes[0].replica_count(), 3);
    assert_eq!(nodes[0].keys("v", None, 10).await.unwrap(), ["visits".into()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_elsewhere_end_with_the_final_state() {
    let network = MemoryNetwork::new();
    let nodes = start(&network, &[201, 202]).await;
    let mut changes = nodes[1].subscribe(&Key::<LwwMap<String, String>>::prefix("cart-"));
    let key = Key::new("cart-7").unwrap();
    for fruit in ["apple", "pear"] {
        nodes[0]
            .update(&key, WriteLevel::Local, LwwMap::new, move |cart: &mut LwwMap<String, String>, cx| {
                cart.put(cx, "fruit".to_owned(), fruit.to_owned())?;
                Ok::<_, ClockExhausted>(())
            })
            .await
            .unwrap();
    }
    loop {
        match changes.next().await.expect("the replicator runs") {
            Changed::Value { key: changed, value } if value.get("fruit").is_some_and(|fruit| fruit == "pear") => {
                assert_eq!(&changed, key.id());
                break;
            }
            Changed::Value { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    nodes[1].delete(&key, WriteLevel::all(PATIENCE)).await.unwrap();
    assert_eq!(changes.next().await, Some(Changed::Deleted { key: key.id().clone() }));
    assert_eq!(nodes[0].get(&key, ReadLevel::Local).await, Ok(Read::Deleted));
    let again = nodes[0].delete(&key, WriteLevel::Local).await;
    assert_eq!(again, Err(DeleteError::AlreadyDeleted { key: key.id().clone() }));
    nodes[1].shutdown().await;
    assert_eq!(changes.next().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_empty_catches_up_before_it_answers() {
    let network = MemoryNetwork::new();
    let mut nodes = start(&network, &[301, 302, 303]).await;
    let key = Key::<OrSet<String>>::new("birds").unwrap();
    let add = |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
        set.add(cx, "greylag".to_owned());
        Ok::<_, ClockExhausted>(())
    };
    nodes[0].update(&key, WriteLevel::all(PATIENCE), OrSet::new, add).await.unwrap();
    drop(nodes.pop());
    let again = network.node("n2.ddata:1#304".parse().unwrap(), Arc::new(Registry::new()));
    let membership = Membership::fixed((0..3).map(address));
    let back = Replicator::start(ReplicatorSettings::test(), TypeTable::new(), again, membership).unwrap();
    assert!(back.wait_synced(PATIENCE).await);
    let read = back.get(&key, ReadLevel::Local).await.unwrap();
    assert!(read.found().is_some_and(|birds| birds.contains("greylag")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_larger_than_any_frame_arrives() {
    let network = MemoryNetwork::new();
    let nodes = start(&network, &[501, 502]).await;
    let key = Key::<OrSet<String>>::new("large").unwrap();
    let add = |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
        set.add_all(cx, (0..5).map(|index| index.to_string().repeat(1024 * 1024)));
        Ok::<_, ClockExhausted>(())
    };
    nodes[0].update(&key, WriteLevel::all(PATIENCE), OrSet::new, add).await.unwrap();
    let read = nodes[1].get(&key, ReadLevel::Local).await.unwrap();
    assert_eq!(read.found().unwrap().len(), 5);
}

#[tokio::test]
async fn refusals_reach_the_caller() {
    let network = MemoryNetwork::new();
    let remoting = network.node("solo.ddata:1#401".parse().unwrap(), Arc::new(Registry::new()));
    let start =
        || Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting.clone(), Membership::fixed([]));
    let alone = start().unwrap();
    assert!(matches!(start(), Err(StartError::DuplicateName { .. })));
    let key = Key::<GCounter>::new("c").unwrap();
    let refused = alone.update(&key, WriteLevel::Local, GCounter::new, |_, _| Err::<(), _>("no")).await;
    assert_eq!(refused, Err(UpdateError::Modify("no")));
    let level = WriteLevel::To { n: 2, timeout: PATIENCE };
    let lonely = alone.update(&key, level, GCounter::new, |c, cx| c.increment(cx, 4)).await;
    assert_eq!(lonely, Err(UpdateError::Timeout { needed: 2, acked: 1, refused: 0 }));
    assert_eq!(alone.get(&key, ReadLevel::majority(PATIENCE)).await.unwrap().found().unwrap().value(), 4);
    alone.shutdown().await;
    assert!(alone.get(&key, ReadLevel::Local).await.is_err());
}
