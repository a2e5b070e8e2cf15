//! Runs the example as a user would, and checks its exit code and output.

use std::io::Write as _;
use std::process::{Command, Output};

use greylag_testkit::postgres::Postgres;

fn read_side(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_read-side")).args(arguments).output().expect("it starts")
}

fn output_text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn it_runs_and_succeeds() {
    let output = read_side(&[]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("install the package postgresql") {
        // Write directly, past the capture of the test harness, and on a line of its own.
        let _ = writeln!(std::io::stdout(), "\nSKIPPED: a test needs PostgreSQL: {complaint}");
        return;
    }
    let output_text = output_text(&output);
    assert!(output_text.contains("in 20 accounts and in the table"), "{output_text}");
}

#[test]
fn a_second_run_continues_the_first() {
    let Some(server) = Postgres::start() else { return };
    let config = server.config();
    let events = || {
        output_text(&read_side(&["--url", &config]));
        let counted = server.psql("select sum(events) from read_side_example.balance").expect("the table is there");
        counted.trim().parse::<u64>().expect("a number")
    };
    // Twenty accounts get forty commands each per run, and none is refused.
    assert_eq!((events(), events()), (800, 1600));
}
