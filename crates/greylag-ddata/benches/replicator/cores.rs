//! Which core threads run on.

use std::process::{Command, Stdio};

/// Keeps all threads of this process whose names begin so on one core. `false` where `taskset` or `/proc` is missing.
pub(crate) fn keep(threads: &str, core: usize) -> bool {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    let named = tasks
        .filter_map(Result::ok)
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(threads)));
    let ids: Vec<_> = named.map(|task| task.file_name()).collect();
    let kept = |id: &std::ffi::OsString| {
        let core = core.to_string();
        let told = Command::new("taskset").args(["-p", "-c", &core]).arg(id).stdout(Stdio::null()).status();
        told.is_ok_and(|status| status.success())
    };
    // A thread may end meanwhile.
    ids.into_iter().filter(|id| kept(id)).count() > 0
}
