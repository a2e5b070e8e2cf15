//! A process that is asked to end by a signal leaves in order.

#![cfg(unix)]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use greylag::prelude::*;

/// In the child: where to join.
const SEED: &str = "GREYLAG_TEST_SEED";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Not a test of its own: what the child process runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let node = Node::builder("test").bind("127.0.0.1", 0).seed_nodes([seed]).start().await.expect("it joins");
    let reason = node.run().await;
    // Past the capture of the test harness.
    writeln!(std::io::stdout(), "ended: {reason:?}").expect("the parent reads");
    std::process::exit(reason.exit_code().into());
}

fn child(seed: &NodeAddress) -> Killed {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_process"])
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.expect("it starts"))
}

/// What it says of its end, and its exit code.
async fn ended(mut child: Killed) -> (String, Option<i32>) {
    let ended = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        child.0.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        let reason = said.lines().find_map(|line| line.split_once("ended: ")).map(|(_, reason)| reason.to_owned());
        (reason.unwrap_or(said), child.0.wait().expect("a child").code())
    });
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends").expect("no panic")
}

async fn members(node: &Node, count: usize) {
    let wanted = node.cluster().wait_for(move |view| {
        use greylag::cluster::MemberStatus::Up;
        view.members.len() == count && view.members.iter().all(|member| member.status == Up) && view.converged
    });
    tokio::time::timeout(Duration::from_secs(60), wanted).await.expect("in time").expect("it runs");
}

/// cluster M35: SIGTERM begins the coordinated shutdown, the others see a clean removal; and a
/// process that was downed ends with another code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_leaves_in_order_and_a_downed_process_says_so_by_its_exit_code() {
    if std::env::var_os(SEED).is_some() {
        return; // the child runs its own test only
    }
    use greylag::cluster::{ClusterEvent, ShutdownReason};

    let node = Node::builder("test").bind("127.0.0.1", 0).start().await.expect("a cluster of one");
    let asked = child(node.address());
    members(&node, 2).await;
    let mut events = node.cluster().subscribe();
    let killed = Command::new("kill").args(["-TERM", &asked.0.id().to_string()]).status().expect("kill exists");
    assert!(killed.success());
    assert_eq!(ended(asked).await, ("Terminated".to_owned(), Some(0)), "the reason is the signal");
    let removed = async {
        loop {
            match events.next().await.expect("the node runs") {
                ClusterEvent::MemberRemoved { clean, .. } => return clean,
                _ => continue,
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), removed).await.expect("removed"), "it left in order");

    let downed = child(node.address());
    members(&node, 2).await;
    let view = node.cluster().view();
    let other = view.members.iter().find(|member| member.address != view.self_address).expect("two members");
    node.cluster().down(other.address.clone()).expect("a member");
    let code = i32::from(ShutdownReason::Downed.exit_code());
    assert_eq!(ended(downed).await, ("Downed".to_owned(), Some(code)));
    assert_ne!(ShutdownReason::Downed.exit_code(), ShutdownReason::Left.exit_code());
    node.shutdown().await;
}
