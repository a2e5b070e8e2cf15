//! The built binary against real nodes over gRPC on loopback.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Node, code, greylag, json, output_text};
use greylag_cluster::{MemberStatus, Readiness};
use greylag_management::ManagementSettings;
use greylag_transport::{Remoting, TransportEvent, TransportListener};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_listed_as_a_table_and_as_json() {
    let (one, two) = Node::pair().await;
    let table = one.run(&["members"]).await;
    assert_eq!(code(&table), 0, "{}", output_text(&table));
    for wanted in ["ADDRESS", "STATUS", &one.address(), &two.address(), "Up", "shop", "self,leader,oldest"] {
        // The leader depends on the ports.
        assert!(output_text(&table).contains(wanted) || wanted.contains("leader"), "{wanted}: {}", output_text(&table));
    }
    let listed = json(&two.run(&["members", "--json"]).await);
    assert_eq!(listed["self"], two.unique());
    assert_eq!((listed["cluster_name"].as_str(), listed["converged"].as_bool()), (Some("test"), Some(true)));
    assert_eq!(listed["cluster_id"].as_str().map(str::len), Some(32));
    assert_eq!(listed["oldest"], one.unique());
    assert_eq!(listed["role_oldest"]["shop"], one.unique());
    let members = listed["members"].as_array().expect("a list");
    let own = members.iter().find(|member| member["address"] == two.address()).expect("itself");
    assert_eq!((&own["status"], &own["unique"]), (&Value::from("Up"), &Value::from(two.unique())));
    assert_eq!(own["roles"], serde_json::json!(["shop"]));
    assert_eq!((own["up_number"].as_u64(), own["unreachable"].as_bool()), (Some(2), Some(false)));
    assert_eq!(own["app_version"], "0.0.0");

    let counters = json(&one.run(&["counters", "--json"]).await);
    assert!(counters["sent_envelopes"].as_u64() > Some(0), "{counters}");
    let counters = one.run(&["counters"]).await;
    assert!(output_text(&counters).contains("sent envelopes"), "{}", output_text(&counters));
    two.end().await;
    one.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_read_only_unless_allowed_and_names_the_setting() {
    let node = Node::start(ManagementSettings::at("127.0.0.1:0")).await;
    node.cluster.join_self().await.unwrap();
    let address = node.address();
    for command in [
        &["leave", &address][..],
        &["down", &address],
        &["down", &address, "--wait"],
        &["join", &address],
        &["prepare-for-shutdown"][..],
    ] {
        let refused = node.run(command).await;
        assert_eq!(code(&refused), 1, "{command:?}: {}", output_text(&refused));
        assert!(
            output_text(&refused).contains("management.allow_writes = true"),
            "{command:?}: {}",
            output_text(&refused)
        );
    }
    assert_eq!(node.cluster.view().self_status(), Some(MemberStatus::Up), "nothing has changed");
    assert_eq!(code(&node.run(&["members"]).await), 0, "looking is allowed");
    node.end().await;
}

/// cluster M36: the health of a node that has not joined, and of one that has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_exits_with_0_only_if_the_node_is_healthy() {
    let node = Node::writable().await;
    let ill = node.run(&["health", "--json"]).await;
    assert_eq!(code(&ill), 5, "{}", output_text(&ill));
    let told: Value = serde_json::from_slice(&ill.stdout).expect("JSON all the same");
    assert_eq!((told["healthy"].as_bool(), told["initialized"].as_bool()), (Some(false), Some(false)));
    assert!(told["problems"][0].as_str().expect("in words").contains("no member"), "{told}");

    let (one, two) = Node::pair().await;
    let well = json(&one.run(&["health", "--json"]).await);
    assert_eq!((well["healthy"].as_bool(), &well["self_status"]), (Some(true), &Value::from("Up")), "{well}");
    assert_eq!((well["ready"].as_bool(), told["ready"].as_bool()), (Some(true), Some(false)), "{well}");
    // The reason of a layer above is reported by the node that has it.
    one.cluster.add_readiness_check(|| Readiness { degraded: vec!["journal: low".to_owned()], ..Readiness::default() });
    let well = one.run(&["health"]).await;
    assert!(
        output_text(&well).contains("worth a look: journal: low") && output_text(&well).contains("ready, self Up"),
        "{}",
        output_text(&well)
    );
    assert!(code(&well) == 0 && output_text(&well).starts_with("healthy"), "{}", output_text(&well));
    for node in [two, one, node] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_node_joins_when_told_to() {
    let (first, late) = (Node::writable().await, Node::writable().await);
    first.cluster.join_self().await.unwrap();
    let done = json(&late.run(&["join", &first.address(), "--wait", "--json"]).await);
    assert_eq!(done["command"], "join");
    assert_eq!((&done["members"][0], done["completed"].as_bool()), (&Value::from(late.unique()), Some(true)));
    assert_eq!(late.cluster.view().self_status(), Some(MemberStatus::Up));
    let again = late.run(&["join", &first.address()]).await;
    assert_eq!(code(&again), 1, "{}", output_text(&again));
    assert!(output_text(&again).contains("member already"), "{}", output_text(&again));
    late.end().await;
    first.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leave_waits_for_the_removal_on_every_node_asked() {
    let (one, two) = Node::pair().await;
    // The leaving node itself is asked: its end is the answer.
    let left = json(&two.run(&["leave", &two.address(), "--wait", "--json"]).await);
    assert_eq!(left["members"][0], two.unique());
    let three = Node::writable().await;
    three.cluster.join_seed_nodes(vec![one.cluster.self_address().address().clone()]).await.unwrap();
    three.cluster.wait_up().await.unwrap();
    // Another node is asked, about one incarnation.
    let left = one.run(&["leave", &three.unique(), "--wait"]).await;
    assert!(code(&left) == 0 && output_text(&left).contains("left"), "{}", output_text(&left));
    assert!(one.cluster.view().members.iter().all(|member| member.address != *three.cluster.self_address()));
    let unknown = one.run(&["leave", &three.unique()]).await;
    assert_eq!(code(&unknown), 1, "{}", output_text(&unknown));
    assert!(output_text(&unknown).contains("is not a member"), "{}", output_text(&unknown));
    one.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn down_removes_a_member() {
    let (one, two) = Node::pair().await;
    let downed = json(&one.run(&["down", &two.address(), "--wait", "--json"]).await);
    assert_eq!((&downed["members"][0], downed["completed"].as_bool()), (&Value::from(two.unique()), Some(true)));
    assert_eq!(one.cluster.view().members.len(), 1);
    two.cluster.terminated().await;
    one.end().await;
}

/// cluster M30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepare_for_shutdown_waits_until_every_member_is_ready() {
    let (one, two) = Node::pair().await;
    let ready = json(&one.run(&["prepare-for-shutdown", "--wait", "--json"]).await);
    assert_eq!((&ready["command"], ready["completed"].as_bool()), (&Value::from("prepare-for-shutdown"), Some(true)));
    let view = one.cluster.view();
    assert!(view.members.iter().all(|member| member.status == MemberStatus::ReadyForShutdown), "{view:?}");
    two.end().await;
    one.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_lists_the_members_then_one_event_a_line() {
    let (one, late) = (Node::writable().await, Node::writable().await);
    one.cluster.join_self().await.unwrap();
    let once = json(&one.run(&["watch", "--json", "--events", "1"]).await);
    assert_eq!((&once["event"], &once["snapshot"]["self"]), (&Value::from("Snapshot"), &Value::from(one.unique())));

    let mut watch = Command::new(env!("CARGO_BIN_EXE_greylag"));
    watch.args(["watch", "--json", "--address", &one.admin()]).stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut watch = watch.spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let mut seen = Vec::new();
    let first: Value = serde_json::from_str(&lines.next_line().await.unwrap().expect("a line")).expect("JSON");
    assert_eq!(first["event"], "Snapshot");
    late.cluster.join_seed_nodes(vec![one.cluster.self_address().address().clone()]).await.unwrap();
    late.cluster.wait_up().await.unwrap();
    one.cluster.wait_for(|view| view.members.len() == 2 && view.converged).await.unwrap();
    late.cluster.shutdown().await;
    one.cluster.shutdown().await;
    // The stream, and with it the program, ends with the node.
    while let Some(line) = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await.unwrap().unwrap() {
        seen.push(serde_json::from_str::<Value>(&line).expect("JSON"));
    }
    assert_eq!(watch.wait().await.unwrap().code(), Some(0));
    let told = |kind: &str| {
        let of_late = |event: &&Value| event["event"] == kind && event["member"]["address"] == late.address();
        seen.iter().find(of_late).unwrap_or_else(|| panic!("no {kind} in {seen:?}"))
    };
    assert_eq!(told("MemberUp")["member"]["status"], "Up");
    assert_eq!(told("MemberRemoved")["details"]["clean"], "true");
    late.end().await;
    one.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_failure_has_its_exit_code() {
    let closed = greylag_testkit::port::unused().to_string();
    let unreachable = greylag(&closed, &["members"]).await;
    assert_eq!(code(&unreachable), 3, "{}", output_text(&unreachable));
    assert!(output_text(&unreachable).contains(&closed) && output_text(&unreachable).contains("management.address"));

    let node = Node::writable().await;
    for (usage, names) in [
        (&["join"][..], "<HOST:PORT>"),
        (&["leave", "nonsense"], "nonsense"),
        (&["join", "two words:1"], "white space"),
        (&["dance"], "dance"),
        (&["members", "--timeout", "5"], "unit"),
    ] {
        let refused = node.run(usage).await;
        assert_eq!(code(&refused), 2, "{usage:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains(names), "{usage:?}: {}", output_text(&refused));
    }
    let mut nameless = Command::new(env!("CARGO_BIN_EXE_greylag"));
    let nameless = nameless.env_remove("GREYLAG_ADDRESS").arg("members").output().await.unwrap();
    assert_eq!(code(&nameless), 2);
    assert!(output_text(&nameless).contains("GREYLAG_ADDRESS"), "{}", output_text(&nameless));

    for address in ["", "here", ":1", "here:", "here:99999", "two words:1"] {
        let refused = greylag(address, &["members"]).await;
        assert_eq!(code(&refused), 2, "{address:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains("host:port"), "{address:?}: {}", output_text(&refused));
    }

    let late = node.run(&["join", &closed, "--timeout", "300ms"]).await;
    assert_eq!(code(&late), 4, "{}", output_text(&late));
    assert!(output_text(&late).contains("--timeout"), "{}", output_text(&late));
    let help = node.run(&["--help"]).await;
    assert!(code(&help) == 0 && output_text(&help).contains("Exit codes"), "{}", output_text(&help));
    node.end().await;
}

/// A node that is killed or cut off closes no stream: the lost connection is reported as such.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_is_told_from_a_node_that_ended() {
    let node = Node::writable().await;
    let cable = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = (cable.local_addr().unwrap().to_string(), node.admin());
    let cable = tokio::spawn(async move {
        let (mut near, _) = cable.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(far).await.unwrap();
        tokio::io::copy_bidirectional(&mut near, &mut far).await
    });
    let mut command = common::program();
    command
        .args(["watch", "--address", &near])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut watch = command.spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    assert!(lines.next_line().await.unwrap().is_some(), "the members");
    cable.abort();
    let ended = tokio::time::timeout(Duration::from_secs(60), watch.wait_with_output()).await.expect("it ends");
    let ended = ended.unwrap();
    assert_eq!(code(&ended), 3, "{}", output_text(&ended));
    assert!(output_text(&ended).contains("was lost") && output_text(&ended).contains(&near), "{}", output_text(&ended));
    node.end().await;
}

/// In `greylag members | head -1` the closed output is no failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_standard_output_is_no_failure() {
    let node = Node::writable().await;
    let mut command = common::program();
    command.args(["watch", "--address", &node.admin()]).stdout(std::process::Stdio::piped());
    let mut watch = command.spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    assert!(lines.next_line().await.unwrap().is_some(), "the members");
    drop(lines);
    // An event to print, after the reader has closed the output.
    node.cluster.join_self().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), watch.wait()).await.expect("it ends");
    assert_eq!(ended.unwrap().code(), Some(0));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_may_stand_in_the_environment() {
    let node = Node::writable().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_greylag"));
    let output = command.env("GREYLAG_ADDRESS", node.admin()).args(["members", "--json"]).output().await.unwrap();
    assert_eq!(json(&output)["self"], node.unique());
    node.end().await;
}

/// A program that dials the port of the other service is told which port it found, and where the right one is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_that_nodes_dial_and_the_admin_port_are_told_apart() {
    let node = Node::writable().await;
    node.cluster.join_self().await.unwrap();
    let wrong = greylag(&node.address(), &["members"]).await;
    assert_eq!(code(&wrong), 3, "{}", output_text(&wrong));
    for words in [&format!("the transport port of the node {}", node.address()), "management.address"] {
        assert!(output_text(&wrong).contains(words), "{words}: {}", output_text(&wrong));
    }

    let other = Node::writable().await;
    let (sender, mut failures) = tokio::sync::mpsc::unbounded_channel();
    other.transport.listen(None, Arc::new(Failures(sender)));
    let joining = other.cluster.clone();
    let seed = node.admin().parse().unwrap();
    let joining = tokio::spawn(async move { joining.join_seed_nodes(vec![seed]).await });
    let failure = tokio::time::timeout(Duration::from_secs(60), failures.recv()).await.expect("it dials").unwrap();
    assert!(failure.contains("this is the admin port (management.address) of the node"), "{failure}");
    assert!(failure.contains(&node.address()), "{failure}");
    joining.abort();
    other.end().await;
    node.end().await;
}

/// Forwards the reason of each failed dial of a node.
struct Failures(tokio::sync::mpsc::UnboundedSender<String>);

impl TransportListener for Failures {
    fn on_event(&self, event: &mut TransportEvent) {
        if let TransportEvent::DialFailed { failure, .. } = event {
            self.0.send(failure.to_string()).ok();
        }
    }
}
