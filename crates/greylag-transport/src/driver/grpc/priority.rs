//! The priority of the threads on which heartbeats and membership run.
//!
//! A thread that wakes up may have to wait until another one has used its time slice, 3 ms and more, and on a busy machine
//! most heartbeats are late by that much. Threads with a priority wait less.

/// Lower values run before others; 0 is what threads have that do not ask.
#[cfg(target_os = "linux")]
const NICENESS: i32 = -10;

/// Asks for more than the ordinary priority for the thread that calls. Where the system does not allow that (it takes
/// `CAP_SYS_NICE`, or a limit such as systemd's `LimitNICE=-10`), the thread keeps what it has, as the threads of other
/// systems do.
pub(super) fn raise() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS) {
        tracing::debug!(%error, "the threads of heartbeats have no priority; LimitNICE=-10 or CAP_SYS_NICE would allow it");
    }
}
