//! The journal that a node opens by itself, as named by its settings.
//!
//! Source: persistence §9.

use std::sync::Arc;

use greylag_persistence::{
    EventQueries, Guarded, Journal, OffsetStore, SettingsError, SnapshotStore, StateStore, Stores,
};

use crate::settings::NodeSettings;
#[cfg(feature = "journal-postgres")]
use crate::settings::PostgresJournalPlace;
#[cfg(feature = "journal-service")]
use crate::settings::ServiceJournalPlace;
#[cfg(feature = "journal-sled")]
use crate::settings::SledJournalPlace;
use crate::settings::{JournalKind, refused, refused_by};

/// The journal that a node opened by its settings. Cheap to clone; the node closes it when it ends.
#[derive(Clone)]
pub struct NodeJournal {
    /// The stores for entities, behind the breakers.
    pub stores: Stores,
    /// The query side of the journal, for projections of events; `None` if a served journal has none.
    pub queries: Option<Arc<dyn EventQueries>>,
    /// The query side of durable states, for projections of their changes
    /// ([`ReadJournal`](greylag_persistence::ReadJournal) says how they read); `None` if a served journal has none.
    pub changes: Option<Arc<dyn EventQueries>>,
    /// The offset store of projections; `None` if a served journal has none.
    pub offsets: Option<Arc<dyn OffsetStore>>,
    /// The journal itself, if it is on PostgreSQL, without breakers: for projections that write into the same database,
    /// each event exactly once. They share its connections.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// use greylag::journal_postgres::{PostgresHandler, Transactional};
    /// use greylag::persistence::{BoxError, ProjectionId, run_transactional};
    ///
    /// # async fn run(node: greylag::Node, counts: impl PostgresHandler) -> Result<(), BoxError> {
    /// let journal = node.journal().ok_or("no journal is configured")?;
    /// let database = journal.postgres.as_ref().ok_or("it is not on PostgreSQL")?;
    /// let id = ProjectionId { name: "cart-counts".into(), entity_type: "Cart".into(), slices: 0..=1023 };
    /// // One for the program: its projections share a reader.
    /// let read = journal.stores.read_journal(Arc::new(database.queries()), node.settings().query.clone());
    /// let offsets = Arc::new(database.offsets());
    /// let handler = Transactional::new(database.offsets(), counts);
    /// let counting = run_transactional(id, &read, offsets, handler, node.settings().projection.clone())?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "journal-postgres")]
    pub postgres: Option<greylag_journal_postgres::PostgresJournal>,
}

impl std::fmt::Debug for NodeJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeJournal").field("stores", &self.stores).finish_non_exhaustive()
    }
}

/// The journal named by the settings could not be opened.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct JournalError {
    /// The setting that names the journal.
    pub key: String,
    /// The error of the journal.
    pub why: String,
}

greylag_core::debug_is_sentence!(JournalError);

/// The stores of a journal, opened by its crate.
struct Opened {
    journal: Arc<dyn Journal>,
    snapshots: Arc<dyn SnapshotStore>,
    states: Option<Arc<dyn StateStore>>,
    queries: Option<Arc<dyn EventQueries>>,
    changes: Option<Arc<dyn EventQueries>>,
    offsets: Option<Arc<dyn OffsetStore>>,
    #[cfg(feature = "journal-postgres")]
    postgres: Option<greylag_journal_postgres::PostgresJournal>,
}

/// Opens the stores named by the settings. A database that cannot be reached is waited for in the background; a
/// directory that another process has open, or a service that does not answer, is an error.
pub(crate) async fn open(settings: &NodeSettings) -> Result<Option<NodeJournal>, JournalError> {
    let opened = match settings.journal.kind {
        JournalKind::Program => return Ok(None),
        JournalKind::Sled => open_sled(settings).await,
        JournalKind::Postgres => open_postgres(settings),
        JournalKind::Service => open_service(settings).await,
    };
    let opened = opened.map_err(|(key, why)| JournalError { key, why })?;
    let (breaker, snapshot_breaker) = settings.journal.breakers();
    let guarded = || -> Result<NodeJournal, SettingsError> {
        let Opened { journal, snapshots, states, queries, changes, offsets, .. } = opened;
        let journal = Guarded::new(journal, "the journal", breaker.clone())?;
        let snapshots = Guarded::new(snapshots, "its snapshots", snapshot_breaker)?;
        let stores = Stores::new(Arc::new(journal), Arc::new(snapshots));
        let stores = match states {
            Some(states) => stores.with_states(Arc::new(Guarded::new(states, "its states", breaker)?)),
            None => stores,
        };
        Ok(NodeJournal {
            stores,
            queries,
            changes,
            offsets,
            #[cfg(feature = "journal-postgres")]
            postgres: opened.postgres,
        })
    };
    guarded().map(Some).map_err(|error| {
        let (key, why) = refused_by(&error);
        JournalError { key, why }
    })
}

#[cfg(feature = "journal-sled")]
async fn open_sled(settings: &NodeSettings) -> Result<Opened, (String, String)> {
    let SledJournalPlace { dir, settings } = &settings.journal.sled;
    let opened = greylag_journal_sled::SledJournal::open(dir, settings.clone()).await;
    let journal = opened.map_err(|error| refused("sled.dir", format!("{}: {error}", dir.display())))?;
    Ok(Opened {
        snapshots: Arc::new(journal.snapshots()),
        states: Some(Arc::new(journal.states())),
        queries: Some(Arc::new(journal.queries())),
        changes: Some(Arc::new(journal.states().queries())),
        offsets: Some(Arc::new(journal.offsets())),
        journal: Arc::new(journal),
        #[cfg(feature = "journal-postgres")]
        postgres: None,
    })
}

#[cfg(feature = "journal-postgres")]
fn open_postgres(settings: &NodeSettings) -> Result<Opened, (String, String)> {
    use greylag_journal_postgres::PostgresJournal;

    let PostgresJournalPlace { url, password_file, settings } = &settings.journal.pg;
    let (opened, key) = match password_file {
        None => (PostgresJournal::lazy(url.reveal(), settings.clone()), "pg.url"),
        Some(file) => {
            let opened = PostgresJournal::lazy_with_password_file(url.reveal(), file, settings.clone());
            (opened, if file.exists() { "pg.url" } else { "pg.password_file" })
        }
    };
    let journal = opened.map_err(|error| refused(key, error))?;
    Ok(Opened {
        snapshots: Arc::new(journal.snapshots()),
        states: Some(Arc::new(journal.states())),
        queries: Some(Arc::new(journal.queries())),
        changes: Some(Arc::new(journal.states().queries())),
        offsets: Some(Arc::new(journal.offsets())),
        journal: Arc::new(journal.clone()),
        postgres: Some(journal),
    })
}

#[cfg(feature = "journal-service")]
async fn open_service(settings: &NodeSettings) -> Result<Opened, (String, String)> {
    use greylag_journal_service::{ClientSettings, JournalClient};

    let ServiceJournalPlace { address, settings: of_client } = &settings.journal.service;
    let of_client = ClientSettings { tls: settings.transport.tls.clone(), ..of_client.clone() };
    let client = JournalClient::connect(address, of_client).await.map_err(|error| refused("service.address", error))?;
    Ok(Opened {
        journal: Arc::new(client.journal()),
        snapshots: Arc::new(client.snapshots()),
        states: client.states().map(|states| Arc::new(states) as Arc<dyn StateStore>),
        queries: client.queries().map(|queries| Arc::new(queries) as Arc<dyn EventQueries>),
        changes: client.changes().map(|changes| Arc::new(changes) as Arc<dyn EventQueries>),
        offsets: client.offsets().map(|offsets| Arc::new(offsets) as Arc<dyn OffsetStore>),
        #[cfg(feature = "journal-postgres")]
        postgres: None,
    })
}

/// Never called: without its feature this journal is refused by the settings.
#[cfg(not(feature = "journal-sled"))]
async fn open_sled(_: &NodeSettings) -> Result<Opened, (String, String)> {
    Err(refused("journal", "this program was built without the feature journal-sled"))
}

/// Never called: without its feature this journal is refused by the settings.
#[cfg(not(feature = "journal-postgres"))]
fn open_postgres(_: &NodeSettings) -> Result<Opened, (String, String)> {
    Err(refused("journal", "this program was built without the feature journal-postgres"))
}

/// Never called: without its feature this journal is refused by the settings.
#[cfg(not(feature = "journal-service"))]
async fn open_service(_: &NodeSettings) -> Result<Opened, (String, String)> {
    Err(refused("journal", "this program was built without the feature journal-service"))
}
