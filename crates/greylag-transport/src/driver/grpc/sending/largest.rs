//! The largest messages so far, for the log (cluster T41).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The largest message so far of each manifest above the limit that the settings set.
#[derive(Default)]
pub(crate) struct LargestMessages(Mutex<HashMap<String, usize>>);

impl LargestMessages {
    /// Logs a message above `limit` that is larger by a tenth than any of its manifest so far.
    pub(crate) fn note(&self, limit: Option<usize>, manifest: &str, size: usize) {
        let Some(limit) = limit.filter(|limit| size > *limit) else { return };
        if self.is_larger(manifest, size) {
            tracing::info!(manifest, size, limit, "largest message of this manifest so far");
        }
    }

    /// Whether the message is larger by a tenth than any of its manifest so far.
    fn is_larger(&self, manifest: &str, size: usize) -> bool {
        let mut largest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = largest.entry(manifest.to_owned()).or_default();
        let is_larger = size > *known + *known / 10;
        if is_larger {
            *known = size;
        }
        is_larger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_larger_by_more_than_a_tenth() {
        let largest = LargestMessages::default();
        let seen = [100, 110, 111, 111, 122, 123].map(|size| largest.is_larger("m", size));
        assert_eq!(seen, [true, false, true, false, false, true]);
        assert!(largest.is_larger("another", 1));
    }
}
