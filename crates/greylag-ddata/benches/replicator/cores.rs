//! Pins threads to cores.

use std::process::{Command, Stdio};
use std::time::Duration;

/// Pins all threads of this process whose names begin with `threads` to one core, once there are `count` of them.
/// `false` if `taskset` or `/proc` is missing.
pub(crate) fn keep(threads: &str, count: usize, core: usize) -> bool {
    // Retry: a thread gets its name a moment after it began.
    (0..100).any(|_| {
        let is_done = keep_named(threads, core) >= count;
        if !is_done {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_done
    })
}

/// Pins the threads, and returns how many there are.
fn keep_named(threads: &str, core: usize) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let named = tasks
        .filter_map(Result::ok)
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(threads)));
    let ids: Vec<_> = named.map(|task| task.file_name()).collect();
    let kept = |id: &std::ffi::OsString| {
        let core = core.to_string();
        let told = Command::new("taskset").args(["-p", "-c", &core]).arg(id).stdout(Stdio::null()).status();
        told.is_ok_and(|status| status.success())
    };
    // A thread may have ended meanwhile.
    ids.into_iter().filter(|id| kept(id)).count()
}
