//! Telling of a store that does not answer: loudly only when it lasts, and then ever less often.
//!
//! Source: sharding §2.15.

use std::time::{Duration, Instant};

use crate::ids::EntityTypeName;

/// Failures after which a repeated read or write is an error and not a warning any more.
const FAILURES_BEFORE_ERROR: u32 = 5;
/// Between a failure and the next try.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Tries that failed in a row. Counted in the time that a try may take, since many fail at once.
pub(crate) struct Failures {
    name: EntityTypeName,
    patience: Duration,
    /// What an operator may look for when it lasts.
    hint: &'static str,
    since: Option<Instant>,
    told: u32,
}

impl Failures {
    /// None yet. `patience`: how long one try may take.
    pub(crate) fn new(name: &EntityTypeName, patience: Duration, hint: &'static str) -> Self {
        Self { name: name.clone(), patience, hint, since: None, told: 0 }
    }

    /// A try has succeeded: what comes is the first failure again.
    pub(crate) fn end(&mut self) {
        (self.since, self.told) = (None, 0);
    }

    /// Says that a try failed, and leaves the store some time.
    pub(crate) async fn report(&mut self, what: &str, error: &(dyn std::error::Error + Sync)) {
        let (number, name) = (self.next(), &self.name);
        let lasting = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        match number {
            None => {}
            Some(1) => tracing::info!(entity_type = %name, %error, "coordinator state: {what} failed, trying again"),
            Some(n) if n < FAILURES_BEFORE_ERROR => {
                tracing::warn!(entity_type = %name, %error, "coordinator state: {what} fails for {lasting:?}");
            }
            Some(_) => {
                let hint = self.hint;
                tracing::error!(entity_type = %name, %error, "coordinator state: {what} fails for {lasting:?}; {hint}");
            }
        }
        // A request that fails at once (a replicator that still starts) must not spin.
        tokio::time::sleep(RETRY_PAUSE).await;
    }

    /// The number of this failure, if it is one to tell of: the first five, then ever fewer.
    fn next(&mut self) -> Option<u32> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let number = 1 + (since.elapsed().as_secs_f64() / self.patience.as_secs_f64()) as u32;
        let tell = number > self.told && (number <= FAILURES_BEFORE_ERROR || number.is_power_of_two());
        self.told = number;
        tell.then_some(number)
    }
}
