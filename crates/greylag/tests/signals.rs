//! A process that gets a signal to end leaves in order.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use greylag::prelude::*;

/// Set in the child: the node to join.
const SEED: &str = "GREYLAG_TEST_SEED";

struct Killed {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The child process; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let node = Node::builder("test").bind("127.0.0.1", 0).seed_nodes([seed]).start().await.expect("it joins");
    let mut run = std::pin::pin!(node.run());
    // Signals are handled from the first poll on.
    let reason = tokio::select! {
        biased;
        reason = &mut run => reason,
        () = async { say("listens") } => run.await,
    };
    say(&format!("ended: {reason:?}"));
    std::process::exit(reason.exit_code().into());
}

/// Prints a line for the parent, uncaptured by the test harness.
fn say(line: &str) {
    writeln!(std::io::stdout(), "\n{line}").expect("the parent reads");
}

fn child(seed: &NodeAddress) -> Killed {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_process"])
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.expect("it starts");
    let said = BufReader::new(child.stdout.take().expect("piped")).lines();
    Killed { child, said }
}

/// Waits for the first line with this prefix; answers the rest of the line.
async fn told(mut child: Killed, begins: &'static str) -> (Killed, String) {
    let heard = tokio::task::spawn_blocking(move || {
        let line =
            child.said.by_ref().map_while(Result::ok).find_map(|line| Some(line.strip_prefix(begins)?.to_owned()));
        (child, line.unwrap_or_default())
    });
    tokio::time::timeout(Duration::from_secs(60), heard).await.expect("it says so").expect("no panic")
}

/// The child's reason for ending, and its exit code.
async fn ended(child: Killed) -> (String, Option<i32>) {
    let (mut child, reason) = told(child, "ended: ").await;
    let status = tokio::task::spawn_blocking(move || child.child.wait().expect("a child").code());
    (reason, tokio::time::timeout(Duration::from_secs(60), status).await.expect("it ends").expect("no panic"))
}

async fn members(node: &Node, count: usize) {
    let wanted = node.cluster().wait_for(move |view| {
        use greylag::cluster::MemberStatus::Up;
        view.members.len() == count && view.members.iter().all(|member| member.status == Up) && view.converged
    });
    tokio::time::timeout(Duration::from_secs(60), wanted).await.expect("in time").expect("it runs");
}

/// cluster M35: SIGTERM begins the coordinated shutdown, and the other nodes see a clean removal; a process whose node
/// was downed ends with another code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_leaves_in_order_and_a_downed_process_says_so_by_its_exit_code() {
    if std::env::var_os(SEED).is_some() {
        return; // the child runs its own test only
    }
    use greylag::cluster::{ClusterEvent, ShutdownReason};

    let node = Node::builder("test").bind("127.0.0.1", 0).start().await.expect("a cluster of one");
    let asked = child(node.address());
    members(&node, 2).await;
    let (asked, _) = told(asked, "listens").await;
    let mut events = node.cluster().subscribe();
    let killed = Command::new("kill").args(["-TERM", &asked.child.id().to_string()]).status().expect("kill exists");
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
    node.shutdown().await.expect("it leaves in order");
}
