//! Measures memory, processor time and percentiles.

use std::time::Duration;

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// The processor time of all threads of this process so far, including ended ones. Unlike wall time it does not depend
/// on what else the machine does.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The median, the 99th percentile and the maximum, in microseconds.
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
