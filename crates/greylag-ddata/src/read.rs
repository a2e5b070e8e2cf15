//! What a read found.

/// The answer to a read. Source: ddata R4.
#[derive(Debug, Clone, PartialEq)]
pub enum Read<T> {
    /// The value, with everything that the replicas asked hold.
    Found(T),
    /// None of the replicas asked has the entry.
    NotFound,
    /// The entry is deleted.
    Deleted,
}

impl<T> Read<T> {
    /// The value, if there is one.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotFound | Self::Deleted => None,
        }
    }
}

/// What a subscriber is told. Source: ddata R15.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed<T> {
    /// The entry holds this value now.
    Value {
        /// The entry; with a prefix subscription, the one that changed.
        key: crate::KeyId,
        /// Its value.
        value: T,
    },
    /// The entry was deleted.
    Deleted {
        /// The entry.
        key: crate::KeyId,
    },
    /// The entry expired.
    Expired {
        /// The entry.
        key: crate::KeyId,
    },
}

/// What a subscriber to entries of all types is told. Source: ddata R17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedAny {
    /// The entry holds another value now.
    Value {
        /// The entry.
        key: crate::KeyId,
        /// The tag of its type.
        tag: std::sync::Arc<str>,
    },
    /// The entry was deleted.
    Deleted {
        /// The entry.
        key: crate::KeyId,
    },
    /// The entry expired.
    Expired {
        /// The entry.
        key: crate::KeyId,
    },
}

/// Where a replicator is in its life. Source: ddata R1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifecycle {
    /// Durable entries are being read; requests wait.
    Loading,
    /// Local requests are served; reads by others are answered `NotReady`, and this replica does not
    /// count in its own reads, until enough others were synchronized with. Source: ddata G13.
    Syncing,
    /// Everything is served.
    Running,
    /// Nothing is served any more.
    Stopped(crate::StopReason),
}
