//! Runs commands, and prints each before it runs.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The error of a task, as a text for people.
pub(crate) type Failure = String;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // Read at run time: checkouts may share a target directory and so this program, built in another checkout.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().expect("xtask lies below the root").to_path_buf()
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    // A closed pipe is not a failure of the task.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A program that runs in the root of the workspace.
///
/// Removes the variables by which cargo describes the package xtask: build scripts that read them would run again in the
/// started cargo, and everything that depends on these build scripts.
pub(crate) fn command(program: &str) -> Command {
    let describes_xtask = |name: &str| {
        let of_a_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start));
        of_a_package || ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"].contains(&name)
    };
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_xtask) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program in the root of the workspace and fails unless it succeeds.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    run_with(program, arguments, &[])
}

/// As [`run`], with environment variables.
pub(crate) fn run_with(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), Failure> {
    let shown = format!("{program} {}", arguments.join(" "));
    say(&format!("==> {shown}"));
    let status = command(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .status()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed ({status})")) }
}

/// As [`run`]; prints the lines of the program, and returns those that `wanted` selects.
pub(crate) fn run_and_read(
    program: &str,
    arguments: &[&str],
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<String>, Failure> {
    let shown = format!("{program} {}", arguments.join(" "));
    say(&format!("==> {shown}"));
    let cannot = |error: std::io::Error| format!("cannot run `{shown}`: {error}");
    let mut child = command(program).args(arguments).stdout(std::process::Stdio::piped()).spawn().map_err(cannot)?;
    let mut found = Vec::new();
    let printed = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    for line in printed.lines().map_while(Result::ok) {
        say(&line);
        if wanted(&line) {
            found.push(line);
        }
    }
    let status = child.wait().map_err(cannot)?;
    if status.success() { Ok(found) } else { Err(format!("`{shown}` failed ({status})")) }
}

/// Runs a program and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let shown = format!("{program} {}", arguments.join(" "));
    let output = command(program).args(arguments).output().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_lines_are_returned_and_a_failure_is_an_error() {
        // Not `SKIPPED:`, because the gate reads the output of this test, too.
        let wanted = |line: &str| line.starts_with("WANTED:");
        let script = "echo ok; printf '\\nWANTED: this line\\n'";
        assert_eq!(run_and_read("sh", &["-c", script], wanted).unwrap(), ["WANTED: this line"]);
        assert!(run_and_read("sh", &["-c", "exit 3"], wanted).is_err());
    }
}
