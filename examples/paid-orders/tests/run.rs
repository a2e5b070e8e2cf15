//! The program as people run it.

#[test]
fn it_runs_and_is_content() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_paid-orders")).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}
