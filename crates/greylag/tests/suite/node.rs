//! Nodes started as programs start them: over real sockets, with the facade's defaults.

use std::time::Duration;

use greylag::cluster::{Downing, MemberStatus};
use greylag::prelude::*;
use greylag::{Config, NodeBuilder, NodeSettings, StartError};
use greylag_testkit::port;

fn builder() -> NodeBuilder {
    Node::builder("test").bind("127.0.0.1", 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_node_joins_through_the_first_and_leaves_in_order() {
    let first = builder().start().await.expect("a cluster of one");
    let second = builder().roles(["guest"]).seed_nodes([first.address().to_string()]).start().await.expect("it joins");
    first.cluster().wait_for(|view| up(view) == 2).await.expect("both are Up");
    second.shutdown().await.expect("it leaves in order");
    let alone = first.cluster().wait_for(|view| view.members.len() == 1);
    tokio::time::timeout(Duration::from_secs(30), alone).await.expect("no node has to be downed").expect("it stays");
    first.shutdown().await.expect("it leaves in order");
}

fn up(view: &greylag::cluster::MembershipView) -> usize {
    view.members.iter().filter(|member| member.status == MemberStatus::Up).count()
}

/// cluster S1: the facade turns the resolver on; the cluster crate's default has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_builder_turns_the_resolver_on_by_default() {
    let node = builder().start().await.expect("a cluster of one");
    assert!(matches!(node.cluster().settings().downing, Downing::SplitBrainResolver(_)));
    node.shutdown().await.expect("it leaves in order");
    let node = builder().configure(|settings| settings.cluster.downing = Downing::None).start().await.expect("starts");
    assert!(matches!(node.cluster().settings().downing, Downing::None));
    node.shutdown().await.expect("it leaves in order");
}

#[tokio::test]
async fn wrong_settings_of_a_node_are_reported_before_it_joins() {
    let seed = builder().seed_nodes(["nowhere"]).start().await.expect_err("no port");
    assert!(matches!(&seed, StartError::Seed(error) if error.to_string().contains("nowhere")), "{seed}");
    let name = Node::builder("").bind("127.0.0.1", 0).start().await.expect_err("no name");
    assert!(matches!(&name, StartError::Config(_)), "{name}");
    assert!(name.to_string().contains("transport.cluster_name"), "{name}");
    let role = builder().roles(["dc-west"]).start().await.expect_err("reserved");
    assert!(role.to_string().contains("dc-"), "{role}");
}

/// A node that is let in but never Up, since it waits for a second member.
fn never_up(port: u16) -> NodeBuilder {
    let wants_two = |settings: &mut NodeSettings| settings.cluster.min_number_of_members = 2;
    Node::builder("test").bind("127.0.0.1", port).configure(wants_two)
}

/// A dropped start leaves no member without a handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_dropped_ends_the_node() {
    let port = port::unused().port();
    let start = never_up(port).start();
    tokio::time::timeout(Duration::from_millis(500), start).await.expect_err("it waits for another member");
    let is_free = async {
        while std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), is_free).await.expect("the node ends and gives its port back");
}

/// A start with a time limit ends with an error that says what it waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timed_out_start_names_the_missing_condition() {
    let port = port::unused().port();
    let error = never_up(port).start_timeout(Duration::from_millis(500)).start().await.expect_err("one is not two");
    assert!(matches!(&error, StartError::TimedOut { .. }), "{error}");
    let text = format!("{error:?}");
    assert!(text.contains("not Up within 500ms") && text.contains("Joining"), "{text}");
    std::net::TcpListener::bind(("127.0.0.1", port)).expect("the node has ended");

    // The error names each seed node that does not answer, and why.
    let nowhere = format!("127.0.0.1:{}", port::unused().port());
    let error = builder().seed_nodes([nowhere.clone()]).start_timeout(Duration::from_secs(2)).start().await;
    let text = format!("{:?}", error.expect_err("nothing listens there"));
    assert!(text.contains(&nowhere) && text.contains("refused"), "{text}");

    let node = builder().start_timeout(Duration::from_secs(60)).start().await.expect("in time");
    node.shutdown().await.expect("it leaves in order");
}

/// A start with an unreachable seed node ends at its limit, with the reason for the seed node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_times_out_and_names_the_state_of_each_seed() {
    let closed = port::unused();
    let config = Config::new().text("node.toml", "cluster.shutdown_after_unsuccessful_join_seed_nodes = \"2s\"");
    let node = Node::from_config(config).bind("127.0.0.1", 0).seed_nodes([closed.to_string()]);
    let named = node.configure(|settings| settings.transport.cluster_name = "test".to_owned());
    let error = named.start().await.expect_err("nothing listens there");
    assert!(matches!(&error, StartError::Join(greylag::cluster::JoinError::Unsuccessful(_))), "{error}");
    let text = format!("{error:?}");
    assert!(text.contains("cluster.shutdown_after_unsuccessful_join_seed_nodes"), "{text}");
    assert!(text.contains(&closed.to_string()) && text.contains("nothing listens at that port"), "{text}");
}

/// The admin service is off unless configured, and listens on the configured address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_service_is_off_unless_configured() {
    use greylag::management::{connect, v1};

    let node = builder().start().await.expect("a cluster of one");
    assert_eq!(node.management_address(), None);
    node.shutdown().await.expect("it leaves in order");
    let text = "transport = { cluster_name = \"test\", canonical_host = \"127.0.0.1\", canonical_port = 0 }\n\
                management.address = \"127.0.0.1:0\"";
    let node = Node::from_config(Config::new().text("node.toml", text)).join_later().start().await.expect("starts");
    let admin = node.management_address().expect("it is on");
    let mut client = connect(&admin.to_string()).expect("an address");
    let health = client.health(v1::HealthRequest {}).await.expect("it answers before the node has joined");
    assert!(!health.into_inner().initialized);
    node.cluster().join_self().await.expect("joins");
    assert_eq!(client.members(v1::MembersRequest {}).await.expect("it answers").into_inner().members.len(), 1);
    node.shutdown().await.expect("it leaves in order");
    assert!(client.members(v1::MembersRequest {}).await.is_err(), "it ends with the node");
    let wide = builder().configure(|s| s.management.address = Some("0.0.0.0:0".to_owned())).start().await;
    assert!(wide.expect_err("plain text on every interface").to_string().contains("management.tls"));
}

/// The program wins over the environment, the environment over the file, the file over the default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_wins_over_the_environment_and_the_environment_over_the_file() {
    let text = "transport.cluster_name = \"file\"\ncluster.gossip_interval = \"700ms\"\ncluster.roles = [\"file\"]\n\
                sharding.number_of_shards = 5";
    let config = Config::new()
        .text("node.toml", text)
        .variables([("GREYLAG_CLUSTER__GOSSIP_INTERVAL", "800ms"), ("GREYLAG_CLUSTER__ROLES", "environment")]);
    let node = builder().config(config).roles(["program"]).start().await.expect("starts");
    let settings = node.settings();
    assert_eq!(settings.transport.cluster_name, "test", "by the program");
    assert!(settings.cluster.roles.contains("program") && settings.cluster.roles.len() == 1);
    assert_eq!(settings.cluster.gossip_interval, Duration::from_millis(800), "by the environment");
    assert_eq!(settings.sharding.number_of_shards, 5, "by the file");
    assert_eq!(settings.cluster.leader_actions_interval, Duration::from_secs(1), "by default");
    node.shutdown().await.expect("it leaves in order");
}

/// cluster T33, S20: a port that refuses connections proves that no work runs behind it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_stays_bound_while_a_hook_still_runs_and_closes_when_nothing_does() {
    use greylag::cluster::Phase;

    let refuses = |node: &Node| {
        let address = node.address().clone();
        async move { tokio::net::TcpStream::connect((address.host(), address.port())).await.is_err() }
    };
    for still_runs in [false, true] {
        let short = |settings: &mut NodeSettings| {
            settings.cluster.coordinated_shutdown.default_phase_timeout = Duration::from_millis(100);
        };
        let node = builder().configure(short).start().await.expect("a cluster of one");
        assert!(!refuses(&node).await);
        node.cluster().on_phase(Phase::ServiceStop, "a long transaction", move || {
            Box::pin(async move {
                if still_runs {
                    std::future::pending::<()>().await;
                }
                true
            })
        });
        node.shutdown().await.expect("it leaves in order");
        assert_eq!(refuses(&node).await, !still_runs);
        let later = refuses(&node);
        drop(node);
        assert_eq!(later.await, !still_runs, "until the process ends");
    }
}

/// A provider whose `Arc` count tells whether it is still held.
#[derive(Debug)]
struct Held {
    _count: std::sync::Arc<()>,
}

impl greylag::cluster::LeaseProvider for Held {
    fn lease(
        &self,
        _: &str,
        _: &str,
        _: &greylag::cluster::LeaseSettings,
    ) -> Result<std::sync::Arc<dyn greylag::cluster::Lease>, greylag::cluster::LeaseError> {
        unreachable!("no lease is asked for")
    }
}

/// Everything that a failed start began ends with it, also the admin service, which holds the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_running_of_a_node_that_could_not_start() {
    let other = Node::builder("other").bind("127.0.0.1", 0).start().await.expect("a cluster of one");
    let held = std::sync::Arc::new(());
    let failed = builder()
        .configure(|settings| settings.management.address = Some("127.0.0.1:0".to_owned()))
        .lease_provider("held", Held { _count: held.clone() })
        .seed_nodes([other.address().to_string()])
        .start()
        .await;
    assert!(matches!(failed, Err(StartError::Join(_))), "{failed:?}");
    let is_gone = async {
        while std::sync::Arc::strong_count(&held) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_gone).await.expect("all of it has ended");
    other.shutdown().await.expect("it leaves in order");
}

/// A node that is dropped without a shutdown leaves in order and closes its port; other handles of the node do not keep
/// it alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_dropped_leaves_in_order_and_closes_its_port() {
    let stays = builder().start().await.expect("a cluster of one");
    let node = builder().seed_nodes([stays.address().to_string()]).start().await.expect("it joins");
    stays.cluster().wait_for(|view| up(view) == 2).await.expect("both are Up");
    let (address, cluster, clone) = (node.address().clone(), node.cluster().clone(), node.clone());
    drop(node);
    assert_eq!(cluster.ended(), None, "a clone is the same node");
    assert_eq!(up(&cluster.view()), 2);
    drop(clone);
    let gone = async {
        stays.cluster().wait_for(|view| view.members.len() == 1).await.expect("it stays");
        while tokio::net::TcpStream::connect((address.host(), address.port())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("no node has to be downed");
    assert_eq!(cluster.ended(), Some(greylag::cluster::ShutdownReason::Stopped));
    stays.shutdown().await.expect("it leaves in order");
}

/// Cluster T33, S20: an instance that ignores its stop keeps the port, past all phases and the last handle of its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_stays_bound_while_an_instance_still_runs() {
    let short = |settings: &mut NodeSettings| {
        settings.cluster.coordinated_shutdown.default_phase_timeout = Duration::from_millis(100);
    };
    let node = builder().configure(short).start().await.expect("a cluster of one");
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let job = greylag::cluster::Singleton::job("deaf", move |_, _| {
        let started = started.lock().expect("no panic").take();
        async move {
            started.expect("one instance").send(()).expect("it is awaited");
            std::future::pending::<()>().await;
        }
    });
    node.cluster().singleton(job).expect("it starts");
    has_started.await.expect("it runs");
    let address = node.address().clone();
    tokio::time::timeout(Duration::from_secs(60), node.shutdown())
        .await
        .expect("nothing waits for it for ever")
        .expect("it leaves in order");
    drop(node);
    assert!(tokio::net::TcpStream::connect((address.host(), address.port())).await.is_ok(), "it still runs");
}
