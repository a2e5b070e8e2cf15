//! Finds commits that hang, and values outside the log.

use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::shared::{StoreInner, StorePhase};
use crate::error::StoreError;
use crate::files::ballast::Ballast;
use crate::planner::Planner;

const CHORES_INTERVAL: Duration = Duration::from_secs(60);

/// Watches one store until it is closed.
pub(crate) fn watch<P: Planner>(shared: &Arc<StoreInner<P>>) {
    let interval = (shared.settings.commit_stall_timeout / 4).clamp(Duration::from_millis(1), CHORES_INTERVAL);
    let mut chores = Chores::new(CHORES_INTERVAL);
    let mut state = shared.lock();
    while !matches!(state.phase, StorePhase::Closed) {
        let stalled = |since: Instant| since.elapsed() > shared.settings.commit_stall_timeout;
        if matches!(state.phase, StorePhase::Up) && state.committing.front().is_some_and(|group| stalled(group.since)) {
            shared.poison_locked(&mut state, &StoreError::Stalled(shared.settings.commit_stall_timeout));
            state.hung_since = Some(Instant::now());
        }
        if shared.settings.abort_when_stuck && state.hung_since.is_some_and(stalled) {
            tracing::error!(path = %shared.path.display(), "the store hangs and cannot be closed; ending the process");
            std::process::abort();
        }
        let looked_after = shared.clone();
        chores.start_if_due(move || do_chores(&looked_after));
        state = shared.phase_changed.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn do_chores<P: Planner>(shared: &StoreInner<P>) {
    let has_blobs = shared.reader().is_ok_and(|reader| reader.has_blobs());
    Ballast::new(&shared.path, shared.settings.ballast_bytes).restore();
    shared.lock().has_blobs = has_blobs;
}

/// Periodic chores, on a thread of their own: they ask the disk, and a hanging disk must not keep the watchdog from
/// noticing a stall.
struct Chores {
    interval: Duration,
    begun_at: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl Chores {
    fn new(interval: Duration) -> Self {
        Self { interval, begun_at: Instant::now(), under_way: None }
    }

    /// Starts the chores if they are due, unless the former ones still run.
    fn start_if_due(&mut self, chores: impl FnOnce() + Send + 'static) {
        let are_under_way = self.under_way.as_ref().is_some_and(|thread| !thread.is_finished());
        if are_under_way || self.begun_at.elapsed() < self.interval {
            return;
        }
        self.begun_at = Instant::now();
        match thread::Builder::new().name("greylag-chores".into()).spawn(chores) {
            Ok(thread) => self.under_way = Some(thread),
            Err(error) => tracing::error!(%error, "no thread could be started to watch a store"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn chores_that_hang_delay_no_other_and_are_not_begun_again() {
        let (begun, beginnings) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let mut chores = Chores::new(Duration::ZERO);
        let hang = begun.clone();
        chores.start_if_due(move || {
            hang.send("first").unwrap();
            let _ended = wait.recv();
        });
        assert_eq!(beginnings.recv().unwrap(), "first");
        chores.start_if_due(|| panic!("the first ones are under way"));
        drop(go_on);
        chores.under_way.take().unwrap().join().unwrap();
        chores.start_if_due(move || begun.send("second").unwrap());
        assert_eq!(beginnings.recv().unwrap(), "second");
        chores.under_way.take().unwrap().join().unwrap();
        chores.interval = Duration::from_secs(3600);
        chores.start_if_due(|| ());
        assert!(chores.under_way.is_none(), "it is too early");
    }
}
