//! Replicators fed by a real cluster, over real sockets on loopback.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_core::Registry;
use greylag_crdt::{ClockExhausted, GCounter, OrSet, UpdateCx};
use greylag_ddata::{
    Key, Lifecycle, Membership, Read, ReadLevel, Replicator, ReplicatorSettings, StartError, StopReason, TypeTable,
    WriteLevel,
};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};

const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    cluster: Cluster,
    remoting: Arc<GrpcTransport>,
}

impl Node {
    async fn start(role: &str) -> Self {
        let remoting = GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await.unwrap();
        let settings = ClusterSettings::test().with_roles([role]);
        let cluster = Cluster::start(settings, remoting.clone()).await.unwrap();
        Self { cluster, remoting }
    }

    fn replicator(&self, name: &str, roles: &[&str]) -> Result<Replicator, StartError> {
        let roles = roles.iter().map(ToString::to_string).collect();
        let settings = ReplicatorSettings { roles, ..ReplicatorSettings::test().named(name) };
        let membership = Membership::from_cluster(&self.cluster);
        Replicator::start(settings, TypeTable::new(), self.remoting.clone(), membership)
    }
}

/// Starts nodes with these roles, all of them Up in one cluster.
async fn cluster(roles: &[&str]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for role in roles {
        let node = Node::start(role).await;
        let seed = nodes.first().unwrap_or(&node).remoting.self_address().address().clone();
        node.cluster.join_seed_nodes(vec![seed]).await.unwrap();
        node.cluster.wait_up().await.unwrap();
        nodes.push(node);
    }
    nodes
}

async fn ready(replicators: &[Replicator]) {
    for replicator in replicators {
        let all = replicators.len();
        replicator.replicas().wait_for(|now| now.voter_count() == all).await.unwrap();
        assert!(replicator.wait_synced(PATIENCE).await);
    }
}

fn add(element: &'static str) -> impl FnOnce(&mut OrSet<String>, &mut UpdateCx<'_>) -> Result<(), ClockExhausted> {
    move |set, cx| {
        set.add(cx, element.to_owned());
        Ok(())
    }
}

/// ddata I1, scenario 65: only members with all the roles have a replica and count; two instances in a process do not
/// mix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_65_only_members_with_the_roles_count() {
    let nodes = cluster(&["cart", "cart", "cart", "web"]).await;
    let refused = nodes[3].replicator("carts", &["cart"]).unwrap_err();
    assert!(
        matches!(&refused, StartError::RoleMismatch { required, own }
        if required == &["cart"] && own.contains(&"web".to_owned())),
        "{refused}"
    );
    let carts: Vec<Replicator> = nodes[..3].iter().map(|node| node.replicator("carts", &["cart"]).unwrap()).collect();
    let everywhere: Vec<Replicator> = nodes.iter().map(|node| node.replicator("ddata", &[]).unwrap()).collect();
    ready(&carts).await;
    ready(&everywhere).await;
    assert_eq!((carts[0].replica_count(), everywhere[0].replica_count()), (3, 4));
    let key = Key::<GCounter>::new("c").unwrap();
    for (by, replicators) in [(3, &carts), (4, &everywhere)] {
        let level = WriteLevel::all(PATIENCE);
        replicators[0].update(&key, level, GCounter::new, move |c, cx| c.increment(cx, by)).await.unwrap();
        for replicator in replicators {
            let held = replicator.get(&key, ReadLevel::Local).await.unwrap().found();
            assert_eq!(held.map(|counter| counter.value()), Some(by.into()), "on all that count, and no other's");
        }
    }
    assert!(matches!(nodes[0].replicator("carts", &["cart"]), Err(StartError::DuplicateName { .. })));
}

/// ddata G13, G15, R1: a node that joins gets all data; a node that leaves hands over what no peer has yet, stops, and
/// no longer counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_join_and_leave_and_nothing_is_lost() {
    let mut nodes = cluster(&["any", "any"]).await;
    let mut replicators: Vec<Replicator> = nodes.iter().map(|node| node.replicator("ddata", &[]).unwrap()).collect();
    ready(&replicators).await;
    let key = Key::<OrSet<String>>::new("birds").unwrap();
    replicators[0].update(&key, WriteLevel::all(PATIENCE), OrSet::new, add("greylag")).await.unwrap();

    // The replicator starts before its node is a member, and gets its replicas from the first gossip on.
    let third = Node::start("any").await;
    replicators.push(third.replicator("ddata", &[]).unwrap());
    assert_eq!(replicators[2].replica_count(), 0);
    third.cluster.join_seed_nodes(vec![nodes[0].remoting.self_address().address().clone()]).await.unwrap();
    nodes.push(third);
    ready(&replicators).await;
    let held = replicators[2].get(&key, ReadLevel::Local).await.unwrap();
    assert!(held.found().is_some_and(|birds| birds.contains("greylag")));

    replicators[1].update(&key, WriteLevel::Local, OrSet::new, add("heron")).await.unwrap();
    nodes[1].cluster.shutdown().await;
    let stopped = replicators[1].lifecycle().borrow().clone();
    assert!(matches!(stopped, Lifecycle::Stopped(StopReason::ShutDown | StopReason::Removed)), "{stopped:?}");
    for replicator in [&replicators[0], &replicators[2]] {
        replicator.replicas().wait_for(|now| now.voter_count() == 2).await.unwrap();
        let read = replicator.get(&key, ReadLevel::majority(PATIENCE)).await.unwrap();
        assert!(matches!(read, Read::Found(birds) if birds.contains("heron")), "written locally just before leaving");
    }
}
