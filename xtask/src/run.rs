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

/// Every Rust file below a directory, in the order of names.
pub(crate) fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
