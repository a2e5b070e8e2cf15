//! The stores of a server.

use std::fmt;
use std::sync::Arc;

use greylag_persistence::{EventQueries, OffsetStore, Stores};

/// The stores that a server serves. Journal and snapshots are always served; clients find the optional stores on the
/// same connection.
///
/// Converts from [`Stores`] with `into`, without offsets and queries.
#[derive(Clone)]
pub struct Served {
    /// Journal, snapshots, and durable states if there are any.
    pub stores: Stores,
    /// Offsets of projections. Default: not served.
    pub offsets: Option<Arc<dyn OffsetStore>>,
    /// Events across histories. Default: not served.
    pub queries: Option<Arc<dyn EventQueries>>,
    /// Changes of durable states, for projections. Default: not served.
    pub changes: Option<Arc<dyn EventQueries>>,
}

impl Served {
    /// Journal and snapshots, and the states that `stores` names.
    pub fn new(stores: Stores) -> Self {
        Self { stores, offsets: None, queries: None, changes: None }
    }

    /// These stores, and an offset store for projections.
    #[must_use]
    pub fn with_offsets(self, offsets: Arc<dyn OffsetStore>) -> Self {
        Self { offsets: Some(offsets), ..self }
    }

    /// These stores, and the query side of the journal.
    #[must_use]
    pub fn with_queries(self, queries: Arc<dyn EventQueries>) -> Self {
        Self { queries: Some(queries), ..self }
    }

    /// These stores, and the query side of the durable states.
    #[must_use]
    pub fn with_changes(self, changes: Arc<dyn EventQueries>) -> Self {
        Self { changes: Some(changes), ..self }
    }

    /// The query side that a call asks for.
    pub(crate) fn query_side(&self, of_changes: bool) -> Option<&dyn EventQueries> {
        if of_changes { self.changes.as_deref() } else { self.queries.as_deref() }
    }
}

impl From<Stores> for Served {
    fn from(stores: Stores) -> Self {
        Self::new(stores)
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served")
            .field("stores", &self.stores)
            .field("offsets", &self.offsets.as_ref().map(|offsets| offsets.caps()))
            .field("queries", &self.queries.as_ref().map(|queries| queries.caps()))
            .field("changes", &self.changes.as_ref().map(|changes| changes.caps()))
            .finish()
    }
}
