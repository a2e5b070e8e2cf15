//! Limits how many calls of the admin service run at a time, and how many in a second.
//!
//! Calls run on the tasks that keep the cluster alive, so they must take little of these tasks' time, whatever callers
//! do. A call waits for its turn; a call that would wait too long is refused with a reason. Source: cluster 80.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Calls in progress, over all connections.
const CALLS: usize = 8;
/// Calls begun per second, over all connections.
const CALLS_PER_SECOND: u32 = 100;
/// Calls that may begin at once after a quiet time.
const BURST: u32 = 20;
/// Longest wait; a call that would wait longer is refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Admits calls; the module describes the limits.
#[derive(Debug)]
pub(crate) struct Admission {
    calls: Arc<Semaphore>,
    pace: Mutex<Pace>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { calls: Arc::new(Semaphore::new(CALLS)), pace: Mutex::new(Pace { next: None }) }
    }
}

impl Admission {
    /// Waits for the turn of one call, which lasts until the returned value is dropped.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if too many calls wait already.
    pub(crate) async fn admit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let turn = self.pace.lock().unwrap_or_else(PoisonError::into_inner).take_turn(Instant::now());
        let at = turn.ok_or_else(busy)?;
        tokio::time::sleep_until(at.into()).await;
        let permit = tokio::time::timeout(PATIENCE, self.calls.clone().acquire_owned()).await;
        permit.map_err(|_| busy())?.map_err(|_| Status::unavailable("the admin service is ending"))
    }
}

fn busy() -> Status {
    Status::resource_exhausted(format!(
        "the admin service answers {CALLS_PER_SECOND} calls a second, {CALLS} at a time, and more are waiting; try again later"
    ))
}

/// Spaces calls evenly, with room for a few at once.
#[derive(Debug)]
struct Pace {
    /// When the next call would be due if all were spaced evenly.
    next: Option<Instant>,
}

impl Pace {
    /// Takes a turn, and returns when its call may begin. `None`: the call would wait too long, so no turn is taken.
    fn take_turn(&mut self, now: Instant) -> Option<Instant> {
        let interval = Duration::from_secs(1) / CALLS_PER_SECOND;
        let next = self.next.map_or(now, |next| next.max(now));
        let at = next.checked_sub(interval * (BURST - 1)).map_or(now, |at| at.max(now));
        if at.saturating_duration_since(now) > PATIENCE {
            return None;
        }
        self.next = Some(next + interval);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster 80: a burst at once, then calls at even intervals, then refusals.
    #[test]
    fn calls_are_spaced_and_those_that_would_wait_for_long_are_refused() {
        let (mut pace, now) = (Pace { next: None }, Instant::now());
        let waits: Vec<_> = std::iter::from_fn(|| pace.take_turn(now)).map(|at| at - now).take(10_000).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), BURST as usize);
        assert_eq!(waits.len(), (BURST + 2 * CALLS_PER_SECOND) as usize);
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]) && *waits.last().unwrap() <= PATIENCE);
        // A second later a second's worth of calls may begin.
        let later = now + Duration::from_secs(1);
        let more = std::iter::from_fn(|| pace.take_turn(later)).take(10_000).count();
        assert_eq!(more, CALLS_PER_SECOND as usize);
        // After a quiet time a whole burst may begin again.
        let at = now + Duration::from_secs(60);
        assert_eq!((0..BURST).filter(|_| pace.take_turn(at) == Some(at)).count(), BURST as usize);
    }

    /// Cluster 80: no more than [`CALLS`] run at a time, however many ask.
    #[tokio::test]
    async fn few_calls_run_at_a_time() {
        let admission = Admission::default();
        let mut running = Vec::new();
        for _ in 0..CALLS {
            running.push(admission.admit().await.unwrap());
        }
        let mut waiting = Box::pin(admission.admit());
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        running.pop();
        assert!(waiting.await.is_ok());
    }
}
