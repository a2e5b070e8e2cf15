//! Child processes, for tests that kill them.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Panics unless the future completes within half a minute, longer than any step that works takes.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within 30 s"),
    }
}

/// A child process that is killed when this is dropped.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Runs only this test, in a process of its own with these variables; without them that test does nothing.
pub(crate) fn spawn_child(test: &str, variables: &[(&str, String)]) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}
