//! The handle and its task, over an in-process network and threads: tests the wiring, not the protocol.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_crdt::{ClockExhausted, GCounter, LwwMap, OrSet};
use greylag_ddata::{
    Changed, DeleteError, Key, Lifecycle, Membership, Read, ReadLevel, Replicator, ReplicatorSettings, StartError,
    StopReason, TypeTable, UpdateError, WriteLevel,
};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(10);

fn address(index: usize) -> NodeAddress {
    format!("n{index}.ddata:1").parse().unwrap()
}

/// Starts one replicator per uid, on nodes that know each other.
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
        replicator.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
        assert!(replicator.wait_synced(PATIENCE).await);
    }
    replicators
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_read_sees_a_majority_write_of_another_node() {
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

/// ddata I1, scenario 65: a replicator starts only on a node with all its roles; the error names both sets of roles.
#[tokio::test]
async fn scenario_65_a_node_without_the_roles_is_refused() {
    let network = MemoryNetwork::new();
    let remoting = network.node("roles.ddata:1#551".parse().unwrap(), Arc::new(Registry::new()));
    let settings =
        ReplicatorSettings { roles: ["cart".to_owned(), "eu".to_owned()].into(), ..ReplicatorSettings::test() };
    let start = |own: &[&str]| {
        let membership = Membership::fixed([]).with_roles(own.iter().copied());
        Replicator::start(settings.clone(), TypeTable::new(), remoting.clone(), membership)
    };
    let refused = start(&["eu", "us"]).unwrap_err();
    let (required, own) = (vec!["cart".to_owned(), "eu".to_owned()], vec!["eu".to_owned(), "us".to_owned()]);
    assert_eq!(refused.to_string(), r#"the replicator needs the roles ["cart", "eu"], this node has ["eu", "us"]"#);
    assert_eq!(refused, StartError::RoleMismatch { required, own });
    // A refused start frees the name.
    start(&["cart", "eu", "us"]).unwrap().shutdown().await;
}

/// ddata I1, scenario 65: two replicators of one process, each with its own name, settings and data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_65_two_instances_in_a_process_do_not_mix() {
    let network = MemoryNetwork::new();
    let names = ["ddata", "second"];
    let peers: Vec<NodeAddress> = (60..62).map(address).collect();
    let mut instances: Vec<Vec<Replicator>> = vec![Vec::new(), Vec::new()];
    for (index, peer) in peers.iter().enumerate() {
        let remoting = network.node(format!("{peer}#{}", 601 + index).parse().unwrap(), Arc::new(Registry::new()));
        for (name, instances) in names.iter().zip(&mut instances) {
            let (settings, membership) = (ReplicatorSettings::test().named(*name), Membership::fixed(peers.clone()));
            let started = Replicator::start(settings, TypeTable::new(), remoting.clone(), membership);
            instances.push(started.unwrap());
        }
    }
    for replicator in instances.iter().flatten() {
        replicator.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
        assert!(replicator.wait_synced(PATIENCE).await);
    }
    let key = Key::<GCounter>::new("c").unwrap();
    for (by, instances) in (1..).zip(&instances) {
        let level = WriteLevel::all(PATIENCE);
        instances[0].update(&key, level, GCounter::new, move |c, cx| c.increment(cx, by)).await.unwrap();
    }
    for (by, instances) in (1..).zip(&instances) {
        let held = instances[1].get(&key, ReadLevel::all(PATIENCE)).await.unwrap().found();
        assert_eq!(held.map(|c| c.value()), Some(by));
    }
    // The type under a key may differ between instances.
    let other = Key::<OrSet<String>>::new("only-here").unwrap();
    instances[0][0]
        .update(&other, WriteLevel::all(PATIENCE), OrSet::new, |set, cx| {
            set.add(cx, "x".to_owned());
            Ok::<_, ClockExhausted>(())
        })
        .await
        .unwrap();
    assert_eq!(instances[1][1].keys("", None, 10).await.unwrap(), ["c".into()]);
}

/// ddata R6: keys are paged, in order, without deleted ones; counts and metrics can be read.
#[tokio::test]
async fn keys_are_paged_and_numbers_are_at_hand() {
    let network = MemoryNetwork::new();
    let remoting = network.node("pages.ddata:1#701".parse().unwrap(), Arc::new(Registry::new()));
    let alone =
        Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    assert!(alone.wait_loaded().await);
    for index in 0..7 {
        let key = Key::<GCounter>::new(format!("k{index}")).unwrap();
        alone.update(&key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, 1)).await.unwrap();
    }
    alone.delete(&Key::<GCounter>::new("k3").unwrap(), WriteLevel::Local).await.unwrap();
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = alone.keys("k", after.as_deref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.to_string());
        pages.push(page.join(" "));
    }
    assert_eq!(pages, ["k0 k1", "k2 k4", "k5 k6"]);
    assert_eq!(alone.replica_count(), 1);
    let _changes = alone.subscribe_any("k");
    let metrics = alone.metrics().await.unwrap();
    assert_eq!((metrics.keys, metrics.tombstones, metrics.in_flight), (6, 1, 0));
    assert_eq!(metrics.latency[&greylag_ddata::LevelName::Local].count(), 8);
    assert!(metrics.longest_step > Duration::ZERO && metrics.bytes > 0);
    assert_eq!(alone.conflicts().await.unwrap(), []);
}

/// ddata I2, Z11: a peer of a fixed list that will not come is taken out while the replicator runs, and no longer
/// counts.
#[tokio::test]
async fn a_peer_of_a_fixed_list_is_taken_out() {
    let network = MemoryNetwork::new();
    let remoting = network.node("fixed.ddata:1#711".parse().unwrap(), Arc::new(Registry::new()));
    let gone: NodeAddress = "gone.ddata:1".parse().unwrap();
    let (peers, membership) = Membership::fixed_with_handle([gone.clone()]);
    let node = Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, membership).unwrap();
    assert!(node.wait_loaded().await);
    assert_eq!(node.replica_count(), 2);
    let key = Key::<GCounter>::new("c").unwrap();
    let count = || node.update(&key, WriteLevel::majority(PATIENCE), GCounter::new, |count, cx| count.increment(cx, 1));
    assert!(count().await.is_err(), "two of two are needed");
    peers.removed(&"stranger.ddata:1".parse().unwrap());
    peers.removed(&gone);
    node.replicas().wait_for(|now| now.unmet.is_empty()).await.unwrap();
    assert_eq!(node.replica_count(), 1);
    count().await.unwrap();
}

/// ddata I2: the program sets the membership through a handle.
#[tokio::test]
async fn a_program_sets_the_membership_through_a_handle() {
    let network = MemoryNetwork::new();
    let remoting = network.node("manual.ddata:1#801".parse().unwrap(), Arc::new(Registry::new()));
    let (members, membership) = Membership::manual(greylag_ddata::Replicas::alone());
    let node = Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, membership).unwrap();
    let other: UniqueAddress = "other.ddata:1#802".parse().unwrap();
    members.joined(other.clone());
    assert_eq!(node.replica_count(), 1, "who joins does not count yet");
    members.up(other.clone());
    assert_eq!(node.replica_count(), 2);
    members.unreachable(&other);
    members.leaving(&other);
    let seen = node.replicas().borrow().clone();
    assert_eq!((node.replica_count(), seen.others[0].reachable), (2, false));
    members.reachable(&other);
    members.removed(&other);
    members.up(other);
    assert_eq!(node.replica_count(), 1, "who was removed stays removed");
}

/// ddata I2: a program that keeps its uid gives a floor that only grows; numbers begin above the floor, and a counter
/// does not add to a slot from before.
#[tokio::test]
async fn numbers_begin_above_the_floor() {
    let network = MemoryNetwork::new();
    let remoting = network.node("floor.ddata:1#901".parse().unwrap(), Arc::new(Registry::new()));
    let floor = greylag_ddata::DotFloor::from_wall_ms(1_700_000_000_000);
    assert_eq!(floor.0, 1_700_000_000_000 << 20);
    let settings = ReplicatorSettings { dot_floor: Some(floor), ..ReplicatorSettings::test() };
    let node = Replicator::start(settings, TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    let key = Key::<OrSet<String>>::new("s").unwrap();
    let add = |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
        set.add(cx, "x".to_owned());
        Ok::<_, ClockExhausted>(set.dots(&"x".to_owned())[0])
    };
    let dot = node.update(&key, WriteLevel::Local, OrSet::new, add).await.unwrap();
    assert!(dot.number > floor.0 && dot.number < floor.0 + 100);
    let key = Key::<GCounter>::new("c").unwrap();
    let own = dot.replica;
    let count = move |c: &mut GCounter, cx: &mut greylag_crdt::UpdateCx<'_>| {
        c.increment(cx, 1)?;
        Ok::<_, greylag_crdt::CounterOverflow>(c.slots().iter().map(|(slot, _)| slot).collect::<Vec<_>>())
    };
    let slots = node.update(&key, WriteLevel::Local, GCounter::new, count).await.unwrap();
    assert!(matches!(&slots[..], [slot] if slot.replica == own && slot.birth > floor.0));
}

/// ddata R1: the mailbox is bounded, and a caller that finds it full gets an error at once; an accepted request is
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_refuses_and_loses_nothing() {
    let network = MemoryNetwork::new();
    let remoting = network.node("full.ddata:1#1001".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ReplicatorSettings { mailbox_capacity: 2, ..ReplicatorSettings::test() };
    let node = Replicator::start(settings, TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    let key = Key::<GCounter>::new("c").unwrap();
    // A closure blocks the replicator until the test releases it.
    let (started, has_started) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let holding = {
        let (node, key) = (node.clone(), key.clone());
        tokio::spawn(async move {
            let hold = move |c: &mut GCounter, cx: &mut greylag_crdt::UpdateCx<'_>| {
                started.send(()).unwrap();
                may_go_on.recv().unwrap();
                c.increment(cx, 1)
            };
            node.update(&key, WriteLevel::Local, GCounter::new, hold).await
        })
    };
    tokio::task::spawn_blocking(move || has_started.recv()).await.unwrap().unwrap();
    // Calls are queued when they are first polled, in this order.
    let count = || node.update(&key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, 1));
    let (mut first, mut second, third) = (Box::pin(count()), Box::pin(count()), count());
    for queued in [&mut first, &mut second] {
        let waits = tokio::time::timeout(Duration::ZERO, queued).await;
        assert!(waits.is_err(), "it is taken and waits");
    }
    assert_eq!(third.await, Err(UpdateError::Request(greylag_ddata::RequestError::Overloaded)));
    go_on.send(()).unwrap();
    assert_eq!((holding.await.unwrap(), first.await, second.await), (Ok(()), Ok(()), Ok(())));
    assert_eq!(node.get(&key, ReadLevel::Local).await.unwrap().found().map(|c| c.value()), Some(3));
}

/// ddata R7: updates of one key run one at a time, whichever tasks call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_35_two_tasks_update_one_set() {
    let network = MemoryNetwork::new();
    let remoting = network.node("tasks.ddata:1#1101".parse().unwrap(), Arc::new(Registry::new()));
    let node =
        Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    let key = Key::<OrSet<u64>>::new("s").unwrap();
    let tasks: Vec<_> = (0..2_u64)
        .map(|task| {
            let (node, key) = (node.clone(), key.clone());
            tokio::spawn(async move {
                for element in 0..100 {
                    let add = move |set: &mut OrSet<u64>, cx: &mut greylag_crdt::UpdateCx<'_>| {
                        set.add(cx, task * 100 + element);
                        Ok::<_, ClockExhausted>(())
                    };
                    node.update(&key, WriteLevel::Local, OrSet::new, add).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let held = node.get(&key, ReadLevel::Local).await.unwrap().found().unwrap();
    assert!(held.iter().copied().eq(0..200));
}

/// ddata E1: over the handle, with the clock of the machine: a change, the expiry, and the id used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_38_a_key_expires_and_is_used_again() {
    let network = MemoryNetwork::new();
    let remoting = network.node("cache.ddata:1#1601".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ReplicatorSettings {
        expire_keys_after_inactivity: [("session-*".to_owned(), Duration::from_millis(500))].into(),
        ..ReplicatorSettings::test()
    };
    let node = Replicator::start(settings, TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    let key = Key::<GCounter>::new("session-1").unwrap();
    let mut changes = node.subscribe(&key);
    let first = loop {
        node.update(&key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, 4)).await.unwrap();
        // Try again: on a machine that stalls for half a second the entry expires before the subscriber is notified.
        if let Ok(first) = tokio::time::timeout(Duration::from_secs(1), changes.next()).await {
            break first;
        }
    };
    assert!(matches!(first, Some(Changed::Value { .. })));
    assert_eq!(changes.next().await, Some(Changed::Expired { key: key.id().clone() }));
    assert_eq!(node.get(&key, ReadLevel::Local).await, Ok(Read::NotFound));
    // The id can be used again, with any type.
    let key = Key::<OrSet<String>>::new("session-1").unwrap();
    let add = |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
        set.add(cx, "again".to_owned());
        Ok::<_, ClockExhausted>(set.len())
    };
    assert_eq!(node.update(&key, WriteLevel::Local, OrSet::new, add).await, Ok(1));
}

/// ddata R1: dropping the last handle ends the replicator, even if a subscriber still follows an entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_handle_is_the_end_for_followers_too() {
    let network = MemoryNetwork::new();
    let remoting = network.node("last.ddata:1#1701".parse().unwrap(), Arc::new(Registry::new()));
    let node =
        Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, Membership::fixed([])).unwrap();
    let key = Key::<GCounter>::new("visits").unwrap();
    let (mut changes, mut lifecycle) = (node.subscribe(&key), node.lifecycle());
    node.update(&key, WriteLevel::Local, GCounter::new, |c, cx| c.increment(cx, 4)).await.unwrap();
    node.flush_changes();
    assert!(matches!(changes.next().await, Some(Changed::Value { .. })));
    drop(node);
    assert_eq!(tokio::time::timeout(PATIENCE, changes.next()).await, Ok(None));
    lifecycle.wait_for(|now| matches!(now, Lifecycle::Stopped(StopReason::ShutDown))).await.unwrap();
}

/// ddata 92, R9: in whatever order the task handles its inputs, no request fails because no replica is known yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_92_a_request_right_after_the_start_waits_for_the_replicas() {
    let network = MemoryNetwork::new();
    let key = Key::<GCounter>::new("c").unwrap();
    for uid in 1_001..1_041 {
        let remoting = network.node(format!("early.ddata:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
        let start = Replicator::start(ReplicatorSettings::test(), TypeTable::new(), remoting, Membership::fixed([]));
        let early = start.unwrap();
        let level = WriteLevel::majority(PATIENCE);
        let written = early.update(&key, level, GCounter::new, |c, cx| c.increment(cx, 1)).await;
        assert_eq!(written, Ok(()), "start {uid}");
    }
}
