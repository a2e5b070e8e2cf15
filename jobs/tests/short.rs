//! Short runs of the program, as part of the ordinary tests.

use std::process::Command;

fn jobs(arguments: &[&str]) -> String {
    let jobs = Command::new(env!("CARGO_BIN_EXE_greylag-jobs")).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&jobs.stdout).into_owned();
    assert!(jobs.status.success(), "{said}\n{}", String::from_utf8_lossy(&jobs.stderr));
    said
}

/// Delivery §2: while workers are killed, every job is done, and none is begun again once it is confirmed.
#[test]
fn jobs_outlive_their_workers_and_none_is_done_again_once_it_is_confirmed() {
    let said = jobs(&["--jobs", "12000", "--workers", "3", "--kill-every-ms", "500", "--work-us", "3000"]);
    assert!(said.contains("none was begun again after that"), "{said}");
}

/// Delivery W4: a job for which there is no room is refused with an error, and takes no memory.
#[test]
fn an_overload_is_refused_by_name_and_takes_no_memory() {
    let said = jobs(&["overload", "--seconds", "3", "--workers", "2", "--lenient"]);
    assert!(said.contains("refused, each by \"there is no room for a message now\""), "{said}");
    assert!(said.contains("memory is flat"), "{said}");
}
