//! Child processes, for tests that kill them.

#![allow(unreachable_pub, reason = "each test file has its own copy")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Panics unless the future completes within half a minute, longer than any step that works takes.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within 30 s"),
    }
}

/// A child process that is killed when this is dropped.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Runs only the test `child_process` of the present file, in a process of its own with these variables; without them
/// that test does nothing.
pub fn spawn_child(variables: &[(&str, String)]) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}
