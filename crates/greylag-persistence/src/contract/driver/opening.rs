//! Opens a store, retrying for as long as that takes.

use std::fmt;

use rand::RngExt;

use crate::contract::settings::Backoff;

/// Calls `open` until it succeeds, with growing waits in between: a store that is unavailable when its node
/// starts is no reason to fail for good. Each failure is logged under `name`. Drop the
/// future to stop. Source: persistence §4.1 (health).
pub async fn open_store<S, E, F, O>(name: &str, backoff: Backoff, mut open: F) -> S
where
    F: FnMut() -> O,
    O: Future<Output = Result<S, E>>,
    E: fmt::Display,
{
    let mut failures = 0_u32;
    loop {
        match open().await {
            Ok(store) => {
                if failures > 0 {
                    tracing::info!(store = name, failures, "store is open");
                }
                return store;
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                let wait = backoff.wait(failures, rand::rng().random::<f64>());
                tracing::warn!(store = name, %error, failures, ?wait, "opening the store failed; retrying");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Persistence §4.1: initialisation is retried for ever, and never latched into failure.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_at_the_start_opens_when_it_is_back() {
        let begun = tokio::time::Instant::now();
        let mut tries = Vec::new();
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        let opened = open_store("journal", backoff, || {
            tries.push(begun.elapsed().as_secs());
            let back = begun.elapsed() >= Duration::from_secs(3600);
            async move { if back { Ok("open") } else { Err("connection refused") } }
        });
        assert_eq!(opened.await, "open");
        assert_eq!(tries[..7], [0, 1, 3, 7, 15, 31, 61]);
        assert!(tries.len() > 100);
    }
}
