//! Samples of the scenarios about joining, restarting and leaving, over real gRPC on loopback.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{spawn_child, within};
use greylag_cluster::{
    BootstrapSettings, Cluster, ClusterEvent, ClusterEvents, ClusterSettings, MemberStatus, MembershipView, Phase,
    SeedList, ShutdownReason, Singleton,
};
use greylag_core::{CodecId, NodeAddress, Registry, UniqueAddress};
use greylag_testkit::port;
use greylag_transport::{Destination, Envelope, GrpcTransport, Recipient, Remoting, TransportSettings};

struct Node {
    cluster: Cluster,
    transport: Arc<GrpcTransport>,
}

impl Node {
    async fn on_port(port: u16, settings: ClusterSettings) -> Self {
        let transport_settings = TransportSettings {
            cluster_name: "test".into(),
            canonical_host: Some("127.0.0.1".into()),
            canonical_port: port,
            ..TransportSettings::default()
        };
        let transport = GrpcTransport::bind(transport_settings, Arc::new(Registry::new())).await.unwrap();
        let cluster = Cluster::start(settings, transport.clone()).await.unwrap();
        Self { cluster, transport }
    }

    async fn start(settings: ClusterSettings) -> Self {
        Self::on_port(0, settings).await
    }

    fn ua(&self) -> &UniqueAddress {
        self.cluster.self_address()
    }

    async fn sees(&self, what: &str, wanted: impl Fn(&MembershipView) -> bool) {
        within(what, self.cluster.wait_for(wanted)).await.unwrap();
    }

    async fn end(&self) {
        within("shutdown", self.cluster.shutdown()).await;
        self.transport.shutdown().await;
    }
}

fn all_up(count: usize) -> impl Fn(&MembershipView) -> bool {
    move |view| view.members.len() == count && view.members.iter().all(|member| member.status == MemberStatus::Up)
}

fn address(port: u16) -> NodeAddress {
    NodeAddress::new("127.0.0.1", port).unwrap()
}

/// The first seed comes last, another one joins twice, and two more nodes bring other versions.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_15_the_first_seed_is_late_over_sockets() {
    let first = port::unused().port();
    let (second, third) = (Node::start(ClusterSettings::test()).await, Node::start(ClusterSettings::test()).await);
    let seeds = vec![address(first), second.ua().address().clone(), third.ua().address().clone()];
    let join = |node: &Node| {
        let (cluster, seeds) = (node.cluster.clone(), seeds.clone());
        tokio::spawn(async move { cluster.join_seed_nodes(seeds).await })
    };
    let early = [join(&second), join(&third), join(&third)];
    let late = Node::on_port(first, ClusterSettings::test()).await;
    assert!(second.cluster.view().members.is_empty(), "only the first seed founds a cluster");
    late.cluster.join_seed_nodes(seeds.clone()).await.unwrap();
    late.sees("three seeds", all_up(3)).await;
    for joined in early {
        // Either result: the node's second call may have restarted the first.
        let _joined = within("the call returns", joined).await.unwrap();
    }
    let version = |text: &str| ClusterSettings { app_version: text.parse().unwrap(), ..ClusterSettings::test() };
    let others = [Node::start(version("1.2.3")).await, Node::start(version("2.0.0")).await];
    for other in &others {
        other.cluster.join_seed_nodes(seeds.clone()).await.unwrap();
    }
    let nodes = [&late, &second, &third, &others[0], &others[1]];
    for node in nodes {
        node.sees("five members", all_up(5)).await;
        let view = node.cluster.view();
        let oldest = view.by_age(None)[0].address.clone();
        assert_eq!(oldest, *late.ua(), "the first seed is the oldest");
        for (other, text) in others.iter().zip(["1.2.3", "2.0.0"]) {
            assert_eq!(view.member(other.ua()).unwrap().app_version.to_string(), text);
        }
    }
    for node in nodes {
        node.end().await;
    }
}

const SEED: &str = "GREYLAG_SOCKETS_TEST_SEED";
const PORT: &str = "GREYLAG_SOCKETS_TEST_PORT";

/// The child of other tests: joins and waits to be killed. Without its variables, as in an ordinary test run, it does
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn child_process() {
    let (Ok(seed), Ok(port)) = (std::env::var(SEED), std::env::var(PORT)) else { return };
    let node = Node::on_port(port.parse().unwrap(), ClusterSettings::test()).await;
    node.cluster.join_seed_nodes(vec![seed.parse().unwrap()]).await.unwrap();
    node.cluster.terminated().await;
}

/// A process is killed and started again at one address three times in a row, without a downing provider.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_20_three_restarts_at_one_address_over_sockets() {
    let nodes = [Node::start(ClusterSettings::test()).await, Node::start(ClusterSettings::test()).await];
    nodes[0].cluster.join_self().await.unwrap();
    let seed = nodes[0].ua().address().clone();
    nodes[1].cluster.join_seed_nodes(vec![seed.clone()]).await.unwrap();
    let port = port::unused().port();
    let at_port = |view: &MembershipView| {
        let there = view.members.iter().find(|member| *member.address.address() == address(port));
        there.map(|member| member.address.clone())
    };
    let variables = [(SEED, seed.to_string()), (PORT, port.to_string())];
    let mut child = spawn_child("sockets::child_process", &variables);
    nodes[0].sees("three members", all_up(3)).await;
    for round in 0..3 {
        let old = at_port(&nodes[0].cluster.view()).unwrap();
        drop(child);
        child = spawn_child("sockets::child_process", &variables);
        for node in &nodes {
            let what = format!("restart {round}: the old one gone, the new one up");
            node.sees(&what, |view| all_up(3)(view) && at_port(view).is_some_and(|new| new != old)).await;
            assert!(node.cluster.view().tombstones.contains_key(&old));
        }
    }
    drop(child);
    for node in &nodes {
        node.end().await;
    }
}

/// The statuses of a member in `events` until it is removed.
async fn way_out(events: &mut ClusterEvents, of: &UniqueAddress) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        match events.next().await.expect("the node runs") {
            ClusterEvent::MemberLeft(member) if member.address == *of => seen.push("left".to_owned()),
            ClusterEvent::MemberExited(member) if member.address == *of => seen.push("exited".to_owned()),
            ClusterEvent::MemberDowned(member) if member.address == *of => seen.push("downed".to_owned()),
            ClusterEvent::MemberRemoved { member, clean, .. } if member.address == *of => {
                seen.push(format!("removed, clean: {clean}"));
                return seen;
            }
            _ => {}
        }
    }
}

/// A member leaves in order, then the leader does; the member with the next address leads.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_26_a_member_and_then_the_leader_leave_over_sockets() {
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(Node::start(ClusterSettings::test()).await);
    }
    nodes.sort_by(|a, b| a.ua().cmp(b.ua()));
    nodes[0].cluster.join_self().await.unwrap();
    let seed = nodes[0].ua().address().clone();
    for node in &nodes[1..] {
        node.cluster.join_seed_nodes(vec![seed.clone()]).await.unwrap();
    }
    for node in &nodes {
        node.sees("four members", all_up(4)).await;
    }
    for leaver in [3, 0] {
        let leaving = nodes.remove(leaver);
        let phases: Arc<Mutex<Vec<Phase>>> = Arc::default();
        for phase in [Phase::BeforeServiceUnbind, Phase::ClusterLeave, Phase::ClusterExitingDone] {
            let ran = phases.clone();
            leaving.cluster.on_phase(phase, "note", move || {
                ran.lock().unwrap().push(phase);
                Box::pin(async { true })
            });
        }
        let mut watching: Vec<ClusterEvents> = nodes.iter().map(|node| node.cluster.subscribe()).collect();
        assert_eq!(within("leaves", leaving.cluster.shutdown()).await, ShutdownReason::Left);
        leaving.transport.shutdown().await;
        let ran = phases.lock().unwrap().clone();
        assert_eq!(ran, [Phase::BeforeServiceUnbind, Phase::ClusterLeave, Phase::ClusterExitingDone]);
        for (node, events) in nodes.iter().zip(&mut watching) {
            let seen = within("the way out", way_out(events, leaving.ua())).await;
            assert_eq!(seen.last().unwrap(), "removed, clean: true");
            assert!(!seen.contains(&"downed".to_owned()), "the leaving member needs no downing: {seen:?}");
            let leader = nodes[0].ua().clone();
            node.sees("the next address leads", |view| view.leader.as_ref() == Some(&leader)).await;
        }
    }
    for node in &nodes {
        node.end().await;
    }
}

/// A node without handles leaves in order, with everything that it hosts, and its port closes; neither a membership by
/// discovery nor a singleton keeps it alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_last_handle_is_dropped_leaves_in_order_and_frees_its_port() {
    let settings = || ClusterSettings { roles: ["host".to_owned()].into(), ..ClusterSettings::test() };
    let stays = Node::start(ClusterSettings::test()).await;
    let dropped = Node::start(settings()).await;
    within("one joins", stays.cluster.join_self()).await.unwrap();
    let (leaver, seed) = (dropped.ua().clone(), stays.ua().address().clone());
    let seeds = Arc::new(SeedList(vec![seed, leaver.address().clone()]));
    within("two finds it", dropped.cluster.bootstrap(seeds, BootstrapSettings::test(2))).await.unwrap();
    within("two is up", dropped.cluster.wait_up()).await.unwrap();
    let (started, is_started) = tokio::sync::oneshot::channel();
    let (ended, is_ended) = tokio::sync::oneshot::channel();
    let once = Arc::new(Mutex::new(Some((started, ended))));
    let job = Singleton::job("job", move |_, mut stop| {
        let said = once.lock().unwrap().take();
        async move {
            let (started, ended) = said.expect("one instance");
            started.send(()).unwrap();
            stop.stopped().await;
            ended.send(()).unwrap();
        }
    });
    drop(dropped.cluster.singleton(job.role("host")).unwrap());
    within("the instance", is_started).await.unwrap();
    let mut events = stays.cluster.subscribe();
    drop(dropped);
    let way = within("its way out", way_out(&mut events, &leaver)).await;
    assert_eq!(way, ["left", "exited", "removed, clean: true"]);
    within("the instance ends", is_ended).await.unwrap();
    // Dial: no task is left that could report that the port is closed. The interval does not affect the outcome.
    let refused = async {
        while tokio::net::TcpStream::connect((leaver.address().host(), leaver.address().port())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("its port closes", refused).await;
    stays.end().await;
}

/// A node ends with the runtime of its program.
#[test]
fn a_node_ends_with_the_runtime_of_its_program() {
    let program = tokio::runtime::Runtime::new().unwrap();
    let node = program.block_on(async {
        let node = Node::start(ClusterSettings::test()).await;
        node.cluster.join_self().await.unwrap();
        node
    });
    program.shutdown_background();
    let held = node.cluster.clone();
    held.begin_shutdown(ShutdownReason::Left);
    let other = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(other.block_on(within("it ends", held.terminated())), ShutdownReason::Left);
}

/// cluster T41: lost messages of the membership are counted and not published.
#[tokio::test(flavor = "multi_thread")]
async fn membership_is_chatter() {
    let (node, other) = (Node::start(ClusterSettings::test()).await, Node::start(ClusterSettings::test()).await);
    within("it ends", node.cluster.shutdown()).await;
    let mut letters = node.transport.dead_letters(10);
    let count = || node.transport.dead_letter_totals().values().sum::<u64>();
    let before = count();
    for path in ["control/cluster", "control/heartbeat", "bulk/cluster", "nowhere"] {
        let envelope = Envelope::new(Recipient::new(path), CodecId::INTERNAL, "m", &b"x"[..]);
        other.transport.send(&Destination::from(node.ua().clone()), envelope).unwrap();
    }
    let all_four = async {
        while count() < before + 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("all four", all_four).await;
    assert_eq!(letters.try_next().map(|letter| letter.recipient), Some("nowhere".to_owned()));
    assert!(letters.try_next().is_none());
    node.transport.shutdown().await;
    other.end().await;
}
