//! Runs the example as a user would, on a part of the real file.

use std::path::Path;
use std::process::{Command, Output};

/// Writes the header and the first `lines` lines of the shipped file; returns the path.
fn part_of_the_file(directory: &Path, lines: usize) -> String {
    let whole = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("cdnow_purchases.csv")).unwrap();
    let part: String = whole.lines().take(lines + 1).flat_map(|line| [line, "\n"]).collect();
    let path = directory.join("part.csv");
    std::fs::write(&path, part).unwrap();
    path.to_str().expect("a temporary directory").to_owned()
}

fn storefront(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_storefront")).args(arguments).arg("--plain").output().expect("it starts")
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_killed_node_changes_no_cent_and_a_second_run_applies_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 3000);
    let data = directory.path().join("data");
    let data = data.to_str().expect("a temporary directory");
    let first = storefront(&["--input", &input, "--data-dir", data]);
    let told = text(&first);
    assert!(first.status.success() && told.contains("\nmatch\n"), "{told}");
    assert!(told.contains("was killed at 50 %") && told.contains("has its share"), "{told}");
    assert!(told.contains("newly applied                      3,000"), "{told}");

    let second = storefront(&["--input", &input, "--data-dir", data, "--kill", "none"]);
    let told = text(&second);
    assert!(second.status.success() && told.contains("nothing new was applied"), "{told}");
}

#[test]
fn the_coordinators_node_can_be_killed() {
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 2000);
    for mode in ["ddata", "persistence"] {
        let kill = ["--kill", "coordinator", "--kill-at", "30"];
        let output = storefront(&[&["--input", &input, "--store-mode", mode], &kill[..]].concat());
        let told = text(&output);
        assert!(output.status.success() && told.contains("\nmatch\n"), "{mode}: {told}");
        assert!(told.contains("the coordinator's node, was killed at 30 %"), "{mode}: {told}");
    }
}

/// The selling process is killed and another one continues: no purchase is lost, and none is made twice.
#[test]
fn a_killed_seller_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 2000);
    for mode in ["ddata", "persistence"] {
        let output = storefront(&["--input", &input, "--store-mode", mode, "--kill", "producer", "--kill-at", "40"]);
        let told = text(&output);
        assert!(output.status.success() && told.contains("\nmatch\n"), "{mode}: {told}");
        assert!(told.contains("the node that sells, was killed at 40 %"), "{mode}: {told}");
        assert!(told.contains("newly applied                      2,000"), "{mode}: {told}");
    }
}

/// With fewer shards than nodes, the new node can get no share, and the run does not wait for one.
#[test]
fn a_file_of_one_line_succeeds_under_every_kind_of_kill() {
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 1);
    for (mode, kill, told_of) in [
        ("ddata", "region", "was killed at"),
        ("ddata", "coordinator", "was killed at"),
        ("ddata", "none", "no node was killed"),
        ("persistence", "region", "was killed at"),
        ("persistence", "coordinator", "was killed at"),
        ("ddata", "producer", "was killed at"),
    ] {
        let output = storefront(&["--input", &input, "--store-mode", mode, "--kill", kill]);
        let told = text(&output);
        let is_well = output.status.success() && told.contains("\nmatch\n") && told.contains(told_of);
        assert!(is_well, "{mode}, {kill}: {told}");
    }
}

/// A file with columns but no purchases: nothing is sent, and the report matches.
#[test]
fn a_file_without_purchases_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 0);
    let output = storefront(&["--input", &input]);
    let told = text(&output);
    assert!(output.status.success() && told.contains("\nmatch\n"), "{told}");
}

/// Checks the exit code and the stream of the error.
#[test]
fn a_file_that_is_empty_or_missing_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let (empty, missing) = (directory.path().join("empty.csv"), directory.path().join("missing.csv"));
    std::fs::write(&empty, "").unwrap();
    for (path, why) in [(&empty, "empty.csv: the file is empty"), (&missing, "missing.csv: cannot be read: ")] {
        let output = storefront(&["--input", path.to_str().expect("a temporary directory")]);
        let told = text(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(why) && told.contains("nothing was sent"), "{told}");
        assert!(!told.contains("runs as process"), "{told}");
    }
}

#[test]
fn a_line_that_is_no_purchase_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.csv");
    std::fs::write(&path, "customer_id,date,quantity,amount_usd\n1,1997-01-01,1,1.00\n1,1997-13-01,1,1.00\n").unwrap();
    let output = storefront(&["--input", path.to_str().expect("a temporary directory")]);
    let told = text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("bad.csv, line 3, column 2 (date): expected a date as YYYY-MM-DD"), "{told}");
    assert!(!told.contains("runs as process"), "{told}");
}

/// Follows README.md's section on the admin service: an operator looks on, makes a node leave, and ends the program.
#[cfg(unix)]
#[tokio::test]
async fn operators_watch_and_make_a_node_leave() {
    use std::process::Stdio;
    use std::time::Duration;

    use greylag::management::{connect, v1};
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(120);
    let directory = tempfile::tempdir().unwrap();
    let input = part_of_the_file(directory.path(), 300);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_storefront"));
    command.args(["--input", &input, "--kill", "none", "--management", "--allow-writes", "--stay", "--plain"]);
    let mut shop = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("it starts");
    let mut lines = BufReader::new(shop.stdout.take().expect("piped")).lines();
    let (mut admin, mut nodes) = (String::new(), Vec::new());
    loop {
        let line = timeout(LONG, lines.next_line()).await.expect("in time").unwrap().expect("it goes on");
        if let Some((_, rest)) = line.split_once("greylag --address ") {
            admin = rest.split(' ').next().expect("an address").to_owned();
        } else if line.contains(" runs as process ") {
            assert!(line.contains("admin service at 127.0.0.1:"), "{line}");
            nodes.push(line.split(' ').nth(1).expect("an address").to_owned());
        } else if line.starts_with("The cluster goes on") {
            break;
        }
    }
    let mut client = connect(&admin).unwrap();
    let members = client.members(v1::MembersRequest {}).await.unwrap().into_inner().members;
    assert_eq!(members.len(), 2 + nodes.len(), "those that host customers, the one that sells, and the program itself");
    let mut events = client.watch(v1::WatchRequest {}).await.unwrap().into_inner();
    client.leave(v1::LeaveRequest { address: nodes[0].clone() }).await.unwrap();
    let removed = loop {
        let event = timeout(LONG, events.message()).await.expect("in time").unwrap().expect("the node runs");
        if event.kind == "MemberRemoved" {
            break event;
        }
    };
    assert_eq!(removed.member.expect("one").address, nodes[0]);
    assert_eq!(removed.details["clean"], "true");
    let pid = shop.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(timeout(LONG, shop.wait()).await.expect("in time").unwrap().success());
}
