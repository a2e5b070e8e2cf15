//! Running commands, and saying so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a task failed, in words for a person.
pub(crate) type Failure = String;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies below the root").to_path_buf()
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    // A closed pipe is the reader's choice, not a failure of the task.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs a program in the root of the workspace and fails unless it succeeds.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    run_with(program, arguments, &[])
}

/// As [`run`], with environment variables.
pub(crate) fn run_with(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), Failure> {
    let shown = format!("{program} {}", arguments.join(" "));
    say(&format!("==> {shown}"));
    let status = Command::new(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(root())
        .status()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed ({status})")) }
}

/// Runs a program and returns what it printed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let shown = format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .output()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{shown}` failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{shown}` printed something that is not text"))
}
