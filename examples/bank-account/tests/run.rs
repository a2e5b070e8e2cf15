//! Runs the example as a user would, and checks its exit code and output.

#[test]
fn it_runs_and_succeeds() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_bank-account")).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).expect("it writes text");
    for line in [
        r#"manifest "account.event" is stored at version 2, known are versions up to 1"#,
        r#"knows no stored manifest "account.frozen""#,
        "the account holds 141.50 EUR, as the replies said",
    ] {
        assert!(told.contains(line), "no {line:?} in {told}");
    }
}
