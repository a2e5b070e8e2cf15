//! How large entries are, as far as it is known without encoding them.
//!
//! An entry's size is known exactly when it was encoded last; since then every delta has added its own
//! length to a bound. It is encoded again, to know, when the bound has grown by a tenth, so knowing costs
//! no more than a fraction of what the updates themselves cost. Source: ddata E4.

use super::Entries;
use crate::envelope::Content;
use crate::key::KeyId;

/// Larger entries are not encoded only to know their size; for them the bound is good enough.
const MEASURED_UP_TO: usize = 1024 * 1024;

impl Entries {
    /// The size of an entry that is worth telling of: at or above the limit, and a tenth above what was told
    /// before.
    pub(crate) fn worth_telling(&mut self, key: &KeyId, limit: usize) -> Option<usize> {
        let entry = self.tree.find(key).filter(|entry| entry.value().is_some())?;
        let (bound, (measured, told)) = (entry.size_bound, entry.sizes());
        if bound < limit.max(tenth_above(measured)) {
            return None;
        }
        let size = if bound > MEASURED_UP_TO { bound } else { self.encoded_size(key)? };
        let is_news = size >= limit && size >= tenth_above(told);
        self.tree.find_mut(key)?.set_sizes(size, if is_news { size } else { told });
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
