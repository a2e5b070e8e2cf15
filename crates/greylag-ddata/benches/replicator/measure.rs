//! Rulers.

use std::time::Duration;

/// Memory of this process that is in use, in bytes.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// What all threads of this process have run so far. Unlike the clock's, this time does not grow with what else the
/// machine does; nought where the system does not tell.
pub(crate) fn processor_time() -> Duration {
    // The scheduler counts when it looks at a thread.
    std::thread::yield_now();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let nanos = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.filter_map(of).sum());
    Duration::from_nanos(nanos)
}

/// The middle, the 99th of a hundred, and the longest, in microseconds.
pub(crate) fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let micros = |part: f64| {
        let at = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    format!(
        "p50 {:.0} us, p99 {:.0} us, longest {:.0} us ({} taken)",
        micros(0.5),
        micros(0.99),
        micros(1.0),
        times.len()
    )
}
