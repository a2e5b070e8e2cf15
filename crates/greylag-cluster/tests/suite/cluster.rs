//! The whole crate over real gRPC on loopback: a few runs that test the wiring.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Killed, spawn_child, within};
use greylag_cluster::{
    Cluster, ClusterEvent, ClusterSettings, MemberStatus, NoMessages, Phase, SbrSettings, ShutdownReason, Singleton,
    SingletonSettings,
};
use greylag_core::{NodeAddress, Registry};
use greylag_transport::{GrpcTransport, TransportSettings};
use tokio::sync::watch;

struct Node {
    cluster: Cluster,
    transport: Arc<GrpcTransport>,
}

async fn start(settings: ClusterSettings) -> Node {
    let transport_settings = TransportSettings {
        cluster_name: "test".into(),
        canonical_host: Some("127.0.0.1".into()),
        canonical_port: 0,
        ..TransportSettings::default()
    };
    let transport = GrpcTransport::bind(transport_settings, Arc::new(Registry::new())).await.unwrap();
    let cluster = Cluster::start(settings, transport.clone()).await.unwrap();
    Node { cluster, transport }
}

async fn join(node: &Node, seed: &NodeAddress) {
    node.cluster.join_seed_nodes(vec![seed.clone()]).await.unwrap();
    within("up", node.cluster.wait_up()).await.unwrap();
}

/// A singleton that counts its instances; each runs until told to stop.
fn counting(running: &watch::Sender<usize>) -> Singleton<NoMessages> {
    let running = running.clone();
    let job = Singleton::job("counter", move |_context, mut stop| {
        let running = running.clone();
        async move {
            running.send_modify(|count| *count += 1);
            stop.stopped().await;
            running.send_modify(|count| *count -= 1);
        }
    });
    job.settings(SingletonSettings::test())
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_56_three_nodes_form_a_cluster_one_leaves_the_singleton_moves() {
    let running = watch::Sender::new(0);
    let mut counts = running.subscribe();
    let mut nodes = Vec::new();
    let mut handles = Vec::new();
    for _ in 0..3 {
        let node = start(ClusterSettings::test()).await;
        handles.push(node.cluster.singleton(counting(&running)).unwrap());
        nodes.push(node);
    }
    let seed = nodes[0].cluster.self_address().address().clone();
    for node in &nodes {
        join(node, &seed).await;
    }
    for node in &nodes {
        within("three members", node.cluster.wait_for(|view| view.members.len() == 3 && view.converged)).await.unwrap();
    }
    let mut here = handles[0].running_here();
    within("the instance on the oldest", here.wait_for(|running| *running)).await.unwrap();
    assert_eq!(handles[2].host().as_ref(), Some(nodes[0].cluster.self_address()));

    let flushed = Arc::new(AtomicUsize::new(0));
    let count = flushed.clone();
    nodes[0].cluster.on_phase(Phase::ClusterExitingDone, "flush", move || {
        Box::pin(async move {
            count.fetch_add(1, Ordering::SeqCst);
            true
        })
    });
    let mut events = nodes[1].cluster.subscribe();
    let reason = within("the first leaves", nodes[0].cluster.shutdown()).await;
    assert_eq!((reason, flushed.load(Ordering::SeqCst)), (ShutdownReason::Left, 1));
    let mut there = handles[1].running_here();
    within("the instance on the next oldest", there.wait_for(|running| *running)).await.unwrap();
    within("a clean removal", async {
        loop {
            if let Some(ClusterEvent::MemberRemoved { clean, previous_status, .. }) = events.next().await {
                assert_eq!((clean, previous_status), (true, MemberStatus::Exiting));
                break;
            }
        }
    })
    .await;
    within("one instance", counts.wait_for(|count| *count == 1)).await.unwrap();
    for node in &nodes[1..] {
        within("shutdown", node.cluster.shutdown()).await;
    }
    assert_eq!(*running.borrow(), 0, "every instance ended before its node did");
    for node in &nodes {
        node.transport.shutdown().await;
    }
}

const CHILD: &str = "GREYLAG_CLUSTER_TEST_SEED";

/// The child of other tests: joins and waits to be killed. Without its variable, as in an ordinary test run, it does
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child_process() {
    let Ok(seed) = std::env::var(CHILD) else { return };
    let node = start(ClusterSettings::default().with_resolver(SbrSettings::default())).await;
    node.cluster.join_seed_nodes(vec![seed.parse().unwrap()]).await.unwrap();
    node.cluster.terminated().await;
}

/// With default settings and four processes on one host, a process killed by SIGKILL is removed clean.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_61_a_killed_process_is_removed_clean_within_seconds() {
    let parent = start(ClusterSettings::default().with_resolver(SbrSettings::default())).await;
    parent.cluster.join_self().await.unwrap();
    let seed = parent.cluster.self_address().address().clone();
    let mut children: Vec<Killed> =
        (0..3).map(|_| spawn_child("cluster::child_process", &[(CHILD, seed.to_string())])).collect();
    let all_up = |count: usize| {
        move |view: &greylag_cluster::MembershipView| {
            view.members.len() == count && view.members.iter().all(|member| member.status == MemberStatus::Up)
        }
    };
    within("four processes", parent.cluster.wait_for(all_up(4))).await.unwrap();
    for left in [3, 2] {
        let mut events = parent.cluster.subscribe();
        let killed_at = Instant::now();
        drop(children.pop());
        within("removal", async {
            loop {
                match events.next().await {
                    Some(ClusterEvent::MemberRemoved { clean, .. }) => break assert!(clean, "without a margin"),
                    Some(ClusterEvent::DowningDecision(decision)) => panic!("the resolver acted: {decision:?}"),
                    _ => {}
                }
            }
        })
        .await;
        let took = killed_at.elapsed();
        assert!(took < Duration::from_secs(8), "took {took:?}");
        within("the others agree", parent.cluster.wait_for(all_up(left))).await.unwrap();
        eprintln_time(left, took);
        let proofs = parent.cluster.view().tombstones.values().filter(|tombstone| tombstone.dead).count();
        assert_eq!(proofs, 4 - left, "each was proven dead");
    }
    parent.cluster.shutdown().await;
    parent.transport.shutdown().await;
}

/// Prints the time that a removal took, for a developer who runs the test with `--nocapture`.
#[expect(clippy::print_stderr, reason = "a measurement for people")]
fn eprintln_time(left: usize, took: Duration) {
    eprintln!("{left} left: removed after {took:?}");
}
