//! Logging of a store that does not answer: an error only if the outage lasts, and then ever less often.
//!
//! Source: sharding §2.15.

use std::time::{Duration, Instant};

use crate::ids::EntityTypeName;

/// Number of failures after which the log level is error instead of warning.
const FAILURES_BEFORE_ERROR: u32 = 5;
/// Pause between a failure and the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Attempts that failed in a row. Counted by elapsed timeouts, since many attempts fail at once.
pub(crate) struct Failures {
    name: EntityTypeName,
    patience: Duration,
    /// Hint for an operator during a long outage.
    hint: &'static str,
    since: Option<Instant>,
    reported: u32,
}

impl Failures {
    /// No failure yet. `patience`: timeout of one attempt.
    pub(crate) fn new(name: &EntityTypeName, patience: Duration, hint: &'static str) -> Self {
        Self { name: name.clone(), patience, hint, since: None, reported: 0 }
    }

    /// An attempt has succeeded: the next failure counts as the first.
    pub(crate) fn end(&mut self) {
        (self.since, self.reported) = (None, 0);
    }

    /// Logs a failed attempt, and pauses.
    pub(crate) async fn report(&mut self, what: &str, error: &(dyn std::error::Error + Sync)) {
        let (number, name) = (self.next(), &self.name);
        let lasting = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        match number {
            None => {}
            Some(1) => tracing::info!(entity_type = %name, %error, "coordinator state: {what} failed, trying again"),
            Some(n) if n < FAILURES_BEFORE_ERROR => {
                tracing::warn!(entity_type = %name, %error, "coordinator state: {what} has been failing for {lasting:?}");
            }
            Some(_) => {
                let hint = self.hint;
                tracing::error!(
                    entity_type = %name, %error,
                    "coordinator state: {what} has been failing for {lasting:?}; {hint}"
                );
            }
        }
        // Pause, since a request that fails at once (a replicator that still starts) must not spin.
        tokio::time::sleep(RETRY_PAUSE).await;
    }

    /// The number of this failure, if it is to be logged: the first five, then ever fewer.
    fn next(&mut self) -> Option<u32> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let number = 1 + (since.elapsed().as_secs_f64() / self.patience.as_secs_f64()) as u32;
        let is_logged = number > self.reported && (number <= FAILURES_BEFORE_ERROR || number.is_power_of_two());
        self.reported = number;
        is_logged.then_some(number)
    }
}
