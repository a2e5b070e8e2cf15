//! An entry as it travels between replicators. Source: ddata G17.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_crdt::{Markers, ReplicaId};

/// An entry as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// What it holds.
    pub content: Content,
    /// By origin, up to which version its updates are included. Source: ddata G5, G6.
    pub versions: BTreeMap<ReplicaId, u64>,
    /// What was put where of removed replicas. Source: ddata Z5.
    pub markers: Markers,
    /// When the entry was last used, wall clock in milliseconds; `None` if it does not expire at the
    /// sender. Of a tombstone its deletion time says it. Source: ddata E2.
    pub used_ms: Option<i64>,
}

/// The value of a travelling entry, or that it was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A value.
    Value {
        /// The tag of its type.
        tag: Arc<str>,
        /// Its canonical bytes.
        bytes: Bytes,
    },
    /// A deleted entry.
    Tombstone {
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Something that this version cannot read: content of another kind, or markers in another format. Only what arrives
    /// is so; it is refused, and the rest of its message is taken. Source: ddata §9.
    Unreadable,
}

impl Envelope {
    /// A travelling entry that says nothing but this.
    pub fn of(content: Content) -> Self {
        Self { content, versions: BTreeMap::new(), markers: Markers::new(), used_ms: None }
    }

    /// About how many bytes it takes in a message.
    pub(crate) fn size(&self) -> usize {
        let content = match &self.content {
            Content::Value { tag, bytes } => tag.len() + bytes.len(),
            Content::Tombstone { .. } => 10,
            Content::Unreadable => 0,
        };
        content + self.versions.len() * 20 + self.markers.iter().count() * 48 + 16
    }
}
