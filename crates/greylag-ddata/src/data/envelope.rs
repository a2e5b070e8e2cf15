//! Envelopes: entries as they travel between replicators. Source: ddata G17.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_crdt::{Markers, ReplicaId};

/// An entry as it travels, with its bookkeeping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The value or the tombstone.
    pub content: Content,
    /// For each origin, the version up to which its updates are included. Source: ddata G5, G6.
    pub versions: BTreeMap<ReplicaId, u64>,
    /// The markers of removed replicas. Source: ddata Z5.
    pub markers: Markers,
    /// When the entry was last used, wall clock in milliseconds; `None` if it does not expire at the sender. The
    /// used-time of a tombstone is its deletion time. Source: ddata E2.
    pub used_ms: Option<i64>,
}

/// The content of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A value.
    Value {
        /// The tag of the value's type.
        tag: Arc<str>,
        /// The canonical bytes of the value.
        bytes: Bytes,
    },
    /// A deleted entry.
    Tombstone {
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Content that this version cannot read: of another kind, or with markers in another format. Occurs in received
    /// messages only; the entry is refused, and the rest of the message is taken. Source: ddata §9.
    Unreadable,
}

impl Envelope {
    /// An envelope with this content and no bookkeeping.
    pub fn of(content: Content) -> Self {
        Self { content, versions: BTreeMap::new(), markers: Markers::new(), used_ms: None }
    }

    /// About how many bytes the envelope takes in a message.
    pub(crate) fn size(&self) -> usize {
        let content = match &self.content {
            Content::Value { tag, bytes } => tag.len() + bytes.len(),
            Content::Tombstone { .. } => 10,
            Content::Unreadable => 0,
        };
        content + self.versions.len() * 20 + self.markers.iter().count() * 48 + 16
    }
}
