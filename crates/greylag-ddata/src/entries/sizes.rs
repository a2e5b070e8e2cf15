//! Sizes of entries, as far as known without encoding.
//!
//! The exact size is known when an entry is encoded; after that every delta adds its own length to a bound. When the
//! bound has grown by a tenth, the entry is encoded to measure it, so measuring costs a fraction of the updates
//! themselves. Source: ddata E4.

use super::Entries;
use crate::envelope::Content;
use crate::key::KeyId;

/// The largest entry that is encoded only to measure it; for larger ones the bound is good enough.
const MEASURED_UP_TO: usize = 1024 * 1024;

impl Entries {
    /// The size of an entry, if it must be reported: at or above `limit`, and a tenth above the size reported last.
    pub(crate) fn size_to_report(&mut self, key: &KeyId, limit: usize) -> Option<usize> {
        let entry = self.tree.find(key).filter(|entry| entry.value().is_some())?;
        let (bound, (measured, reported)) = (entry.size_bound, entry.sizes());
        if bound < limit.max(tenth_above(measured)) {
            return None;
        }
        let size = if bound > MEASURED_UP_TO { bound } else { self.encoded_size(key)? };
        let is_news = size >= limit && size >= tenth_above(reported);
        self.tree.find_mut(key)?.set_sizes(size, if is_news { size } else { reported });
        is_news.then_some(size)
    }

    /// The exact size of an entry's value.
    pub(crate) fn encoded_size(&mut self, key: &KeyId) -> Option<usize> {
        match self.envelope(key)?.content {
            Content::Value { bytes, .. } => Some(bytes.len()),
            Content::Tombstone { .. } | Content::Unreadable => None,
        }
    }
}

fn tenth_above(size: usize) -> usize {
    size + size / 10
}
