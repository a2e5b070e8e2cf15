//! Runs the example as a user would, and checks its exit code.

#[test]
fn it_runs_and_succeeds() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_rolling-restart")).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}
