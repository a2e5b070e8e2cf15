//! The results of reads and subscriptions, and the lifecycle.

/// The answer to a read. Source: ddata R4.
#[derive(Debug, Clone, PartialEq)]
pub enum Read<T> {
    /// The value, joined with the states of all replicas asked.
    Found(T),
    /// No replica asked has the entry.
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

/// An event of a subscription. Source: ddata R15.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed<T> {
    /// The entry holds this value now.
    Value {
        /// The entry; with a prefix subscription, the one that changed.
        key: crate::KeyId,
        /// The entry's value.
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

/// An event of a subscription to entries of all types. Source: ddata R17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedAny {
    /// The entry holds another value now.
    Value {
        /// The entry.
        key: crate::KeyId,
        /// The tag of the value's type.
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

/// The lifecycle of a replicator. Source: ddata R1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifecycle {
    /// Durable entries are being read; requests wait.
    Loading,
    /// Local requests are served. Until this replica has synchronized with enough others, it answers their reads with
    /// `NotReady` and does not count in its own reads. Source: ddata G13.
    Syncing,
    /// All requests are served.
    Running,
    /// Nothing is served any more.
    Stopped(crate::StopReason),
}
