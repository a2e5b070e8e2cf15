//! Processor time, which, unlike wall time, does not depend on the other users of the machine.

use std::time::{Duration, Instant};

/// Measures the processor time of this thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    on_processor: Option<Duration>,
    begun: Instant,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { on_processor: on_processor(), begun: Instant::now() }
    }

    /// Processor time since the start; wall time if the kernel gives none.
    pub(super) fn elapsed(&self) -> Duration {
        match (self.on_processor, on_processor()) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => self.begun.elapsed(),
        }
    }
}

/// Processor time of this thread so far: the first number of the kernel's accounts, in nanoseconds.
fn on_processor() -> Option<Duration> {
    let accounts = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    accounts.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Resident memory of this process.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let watch = Stopwatch::start();
        let mut sum = 0u64;
        while watch.elapsed() < Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0 && watch.begun.elapsed() >= watch.elapsed() - Duration::from_millis(5));
    }
}
