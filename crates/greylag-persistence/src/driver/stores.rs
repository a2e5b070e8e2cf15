//! What every journal and snapshot store must do, and the stores of a node as one handle.
//!
//! The contract is J1 to J13 of the specification; `greylag_persistence::tck` (feature `tck`) checks
//! a backend against it in one call. A driver awaits these; machines only name what they answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::breaker::Breakers;
use crate::counters::{EntityCounters, EntityStats};
use crate::driver::hints::Hints;
use crate::driver::query_store::EventQueries;
use crate::driver::read_journal::ReadJournal;
use crate::driver::reopenings::Reopenings;
use crate::driver::state_store::StateStore;
use crate::durable_state::DurableStateSettings;
use crate::error::{AdvanceError, AppendError, ClaimError, CloseError, DeleteError, ReadError, SnapshotError};
use crate::event::{SeqNr, Timestamp, WriterEpoch, WriterUuid};
use crate::journal::{Append, Appended, Caps, Claim, Head, Health, Page, ReadRange, Scope, Under};
use crate::persistence_id::PersistenceId;
use crate::query::QuerySettings;
use crate::settings::{EventSourcedSettings, SettingsError};
use crate::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};

/// Keeps the events of many ids, each history fenced by its own epoch.
///
/// All methods may be dropped at any await: what was begun is finished or not begun (J13). Answers
/// of different ids have no order among each other (J11). Source: persistence §4.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// What this journal can do; the same at every call.
    fn caps(&self) -> Caps;

    /// Makes `writer_uuid` the one writer of `id`: raises the epoch by one, durably, and answers
    /// it with the head. Waits for the appends of this id that are on their way anywhere. A repeat
    /// with the uuid stored answers the stored epoch and raises nothing. Source: persistence J4.
    ///
    /// # Errors
    /// [`ClaimError::Fenced`] as [`Under`] says; nothing changed then.
    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError>;

    /// Lets the numbers of an empty history begin after `to`, as if the events up to there had been
    /// deleted: `highest` and `deleted_to` become `to`. For ids whose snapshot came from elsewhere. A
    /// repeat with the same `to` before the first append is harmless. Source: persistence §2.5.
    ///
    /// # Errors
    /// [`AdvanceError::NotEmpty`] if something was ever stored or `to` is not above the highest.
    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError>;

    /// Stores all events or none, if the epoch is the stored one and `first` is `highest + 1`; Ok
    /// means durable and readable everywhere (J1, J3, J5, J6). Repeating the same append answers
    /// Ok if it was stored, fenced or not (J10). Dropping the future does not take it back (J13).
    ///
    /// # Errors
    /// [`AppendError`] says for each variant what is stored.
    async fn append(&self, append: Append) -> Result<Appended, AppendError>;

    /// One page of the events `from..=to`, ascending, without the deleted prefix. Source: J2, J8.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] in place of wrong or partial data.
    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError>;

    /// The head of `id`; [`Head::default`] if it was never claimed. Writes nothing.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError>;

    /// Deletes the events up to `to`, inclusive, clamped to the highest; [`SeqNr::MAX`] means all.
    /// Answers the number up to which all are deleted now, which never falls. Source: J9.
    ///
    /// # Errors
    /// [`DeleteError::Fenced`] unless the epoch is the stored one; nothing changed then.
    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError>;

    /// How the store feels.
    fn health(&self) -> Health;

    /// What its breakers do; none by default, since only [`Guarded`](crate::Guarded) has some.
    fn breakers(&self) -> Option<Breakers> {
        None
    }

    /// Counts when it comes back after it did not answer. Default: none, and entities that back off because of it wait
    /// until their back-off has passed.
    fn reopenings(&self) -> Option<&Reopenings> {
        None
    }

    /// Finishes what was begun and lets go of every resource; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}

/// Keeps snapshots of many ids, at most one for each number.
///
/// May be another store than the journal; nothing assumes a common transaction, and nothing is
/// fenced, since a snapshot reflects durable events only. Source: persistence §4.1, §10.10.
#[async_trait]
pub trait SnapshotStore: Send + Sync + 'static {
    /// What this store can do; the same at every call.
    fn caps(&self) -> SnapshotCaps;

    /// The snapshot of the highest number that matches, whole.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] with the number of the damaged one, so that the caller can ask
    /// for an older one; never a silent "none".
    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError>;

    /// Saves whole and durably, or not at all; replaces one of the same number. Answers the time
    /// that the store gave it.
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`] or [`SnapshotError::Unavailable`].
    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError>;

    /// Deletes the one of this number, if there is one.
    ///
    /// # Errors
    /// [`SnapshotError::Unavailable`].
    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError>;

    /// Deletes all that match.
    ///
    /// # Errors
    /// [`SnapshotError::Unavailable`].
    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError>;

    /// How the store feels.
    fn health(&self) -> Health;

    /// What its breakers do; none by default, since only [`Guarded`](crate::Guarded) has some.
    fn breakers(&self) -> Option<Breakers> {
        None
    }

    /// Counts when it comes back after it did not answer. Default: none, and entities that back off because of it wait
    /// until their back-off has passed.
    fn reopenings(&self) -> Option<&Reopenings> {
        None
    }

    /// Finishes what was begun; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}

/// A journal and the snapshot store that goes with it, and a state store if there is one: the defaults of a
/// node, and beside them others, which behaviours select by name. Cheap to clone.
///
/// ```
/// use greylag_persistence::Stores;
///
/// // `EventSourced::journal_plugin_id` of what may be forgotten with the process answers "scratch".
/// let stores = Stores::in_memory_shared().with_plugin("scratch", Stores::in_memory());
/// assert!(stores.is_shared() && !stores.select("scratch", "scratch")?.is_shared());
/// assert!(stores.select("scrap", "").is_err());
/// # Ok::<(), greylag_persistence::SettingsError>(())
/// ```
#[derive(Clone)]
pub struct Stores {
    /// Keeps events.
    pub journal: Arc<dyn Journal>,
    /// Keeps snapshots.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// Keeps durable states. Default: none, and entities with a durable state are refused.
    pub states: Option<Arc<dyn StateStore>>,
    /// What the settings of behaviours on these stores start from.
    settings: Arc<(EventSourcedSettings, DurableStateSettings)>,
    /// Whether a node that ends leaves them open.
    stays_open: bool,
    /// The others, by name.
    plugins: BTreeMap<String, Self>,
    /// Where entities on this journal count.
    pub(crate) counters: EntityCounters,
    /// Is told what entities over these stores have appended; see [`Stores::read_journal`].
    pub(crate) hints: Hints,
}

/// A state store that a behaviour selected, and where its entities count. Cheap to clone.
#[derive(Clone)]
pub struct StatesInUse {
    /// The store.
    pub states: Arc<dyn StateStore>,
    /// Where entities with a state in it count.
    pub counters: EntityCounters,
}

impl fmt::Debug for StatesInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatesInUse").field("states", &self.states.caps()).finish_non_exhaustive()
    }
}

impl StatesInUse {
    /// How often the store has come back; an entity that backs off waits for the next time.
    pub fn reopenings(&self) -> Reopenings {
        Reopenings::of_all([self.states.reopenings()])
    }
}

impl Stores {
    /// What event-sourced entities need.
    pub fn new(journal: Arc<dyn Journal>, snapshots: Arc<dyn SnapshotStore>) -> Self {
        Self {
            journal,
            snapshots,
            states: None,
            settings: Arc::default(),
            stays_open: false,
            plugins: BTreeMap::new(),
            counters: EntityCounters::default(),
            hints: Hints::default(),
        }
    }

    /// The query side of the journal, for streams and projections that need not wait for
    /// [`QuerySettings::refresh_interval`] to see what entities over these stores, or clones of them, have
    /// appended. Of events that come from elsewhere they hear nothing, and look for them as usual.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use greylag_persistence::{InMemoryJournal, InMemorySnapshots, QuerySettings, Stores};
    /// let journal = InMemoryJournal::default();
    /// let stores = Stores::new(Arc::new(journal.clone()), Arc::new(InMemorySnapshots::default()));
    /// // One for the program; `run_projection(id, &read, …)`, `read.events_by_tag(…)`.
    /// let read = stores.read_journal(Arc::new(journal.queries()), QuerySettings::default());
    /// ```
    pub fn read_journal(&self, queries: Arc<dyn EventQueries>, settings: QuerySettings) -> ReadJournal {
        ReadJournal::hinted(queries, settings, self.hints.clone())
    }

    /// These stores, and `states` for entities with a durable state.
    #[must_use]
    pub fn with_states(self, states: Arc<dyn StateStore>) -> Self {
        Self { states: Some(states), ..self }
    }

    /// These stores, and `stores` for behaviours that select them as `id`; stores that had that name are
    /// replaced. The empty name stays that of the defaults.
    #[must_use]
    pub fn with_plugin(mut self, id: impl Into<String>, stores: Self) -> Self {
        self.plugins.insert(id.into(), stores);
        self
    }

    /// These stores, and what the settings of every behaviour that is hosted on them start from, whichever plugin it
    /// selects. A node passes on what it is configured with. Source: persistence §9.
    #[must_use]
    pub fn with_settings(self, event_sourced: EventSourcedSettings, durable_state: DurableStateSettings) -> Self {
        Self { settings: Arc::new((event_sourced, durable_state)), ..self }
    }

    /// What the settings of event-sourced behaviours start from. Default: the defaults.
    pub fn event_sourced_settings(&self) -> &EventSourcedSettings {
        &self.settings.0
    }

    /// What the settings of behaviours with a durable state start from. Default: the defaults.
    pub fn durable_state_settings(&self) -> &DurableStateSettings {
        &self.settings.1
    }

    /// These stores, for a program that goes on using them when a node ends, or for several nodes of one process:
    /// [`Stores::close`] passes them by. Stores in memory are so already.
    #[must_use]
    pub fn kept_open(self) -> Self {
        Self { stays_open: true, ..self }
    }

    /// Closes all of them, plugins included, except what is kept open: what was begun is finished, and later
    /// calls answer unavailable. A store that several names stand for is closed once and then again, which does
    /// nothing. Source: persistence §10.15.
    ///
    /// # Errors
    /// What did not end cleanly, by name (as in [`Stores::health`]). The others are closed all the same.
    pub async fn close(&self) -> Result<(), Vec<(String, CloseError)>> {
        let mut failed = Vec::new();
        for (plugin, stores) in self.all().filter(|(_, stores)| !stores.stays_open) {
            let mut note = |store, closed: Result<(), CloseError>| {
                failed.extend(closed.err().map(|error| (named(plugin, store), error)));
            };
            note("journal", stores.journal.close().await);
            note("snapshots", stores.snapshots.close().await);
            if let Some(states) = &stores.states {
                note("states", states.close().await);
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// How each of them feels: `journal`, `snapshots` and `states`, and those of plugins under
    /// `<plugin>.journal` and so on. Source: persistence §4.1 (Health).
    pub fn health(&self) -> BTreeMap<String, Health> {
        let mut health = BTreeMap::new();
        for (plugin, stores) in self.all() {
            health.insert(named(plugin, "journal"), stores.journal.health());
            health.insert(named(plugin, "snapshots"), stores.snapshots.health());
            if let Some(states) = &stores.states {
                health.insert(named(plugin, "states"), states.health());
            }
        }
        health
    }

    /// What the entities that selected each of them have done: `""` are the defaults, the others plugins by name.
    /// An entity counts where its journal is, also for its snapshots, or where its state store is. All clones
    /// count together, so a program that keeps one sees what its node does. Source: persistence §10.16.
    ///
    /// ```
    /// # use greylag_persistence::Stores;
    /// # let stores = Stores::in_memory();
    /// let stats = stores.entity_stats()[""];
    /// println!("{} recoveries of {:?}, {} commands dropped", stats.recoveries, stats.mean_recovery(), stats.stash_drops);
    /// ```
    pub fn entity_stats(&self) -> BTreeMap<String, EntityStats> {
        self.all().map(|(plugin, stores)| (plugin.to_owned(), stores.counters.stats())).collect()
    }

    /// Where entities on this journal count, for their host.
    pub fn counters(&self) -> &EntityCounters {
        &self.counters
    }

    /// What the breakers of those that have some ([`Guarded`](crate::Guarded)) do, named as in [`Stores::health`].
    /// Source: persistence §10.16.
    pub fn breakers(&self) -> BTreeMap<String, Breakers> {
        let mut breakers = BTreeMap::new();
        for (plugin, stores) in self.all() {
            let mut note = |store, found: Option<Breakers>| {
                breakers.extend(found.map(|found| (named(plugin, store), found)));
            };
            note("journal", stores.journal.breakers());
            note("snapshots", stores.snapshots.breakers());
            note("states", stores.states.as_ref().and_then(|states| states.breakers()));
        }
        breakers
    }

    /// How often the journal and the snapshots have come back; an entity that backs off waits for the next time.
    pub fn reopenings(&self) -> Reopenings {
        Reopenings::of_all([self.journal.reopenings(), self.snapshots.reopenings()])
    }

    /// These stores, and the plugins by name.
    fn all(&self) -> impl Iterator<Item = (&str, &Self)> {
        std::iter::once(("", self)).chain(self.plugins.iter().map(|(id, stores)| (id.as_str(), stores)))
    }

    /// The journal and the snapshots that a behaviour selects; `""` is the default. Source: persistence §1.
    ///
    /// # Errors
    /// [`SettingsError::UnknownPlugin`].
    pub fn select(&self, journal_plugin_id: &str, snapshot_plugin_id: &str) -> Result<Self, SettingsError> {
        let Self { journal, hints, counters, .. } = self.plugin("journal_plugin_id", journal_plugin_id)?.clone();
        let snapshots = self.plugin("snapshot_plugin_id", snapshot_plugin_id)?.snapshots.clone();
        // With that journal go its hints, so that the journal's readers hear of appends to it.
        Ok(Self { journal, hints, counters, snapshots, ..self.clone() })
    }

    /// The durable states that a behaviour selects; `""` is the default. Source: persistence §1.
    ///
    /// # Errors
    /// [`SettingsError::UnknownPlugin`]; [`SettingsError::NoStates`] if what is selected keeps none.
    pub fn select_states(&self, state_plugin_id: &str) -> Result<StatesInUse, SettingsError> {
        let Self { states, counters, .. } = self.plugin("state_plugin_id", state_plugin_id)?.clone();
        let states = states.ok_or_else(|| SettingsError::NoStates { plugin: state_plugin_id.to_owned() })?;
        Ok(StatesInUse { states, counters })
    }

    fn plugin(&self, key: &'static str, id: &str) -> Result<&Self, SettingsError> {
        if id.is_empty() {
            return Ok(self);
        }
        self.plugins.get(id).ok_or_else(|| {
            let known = self.plugins.keys().map(|known| format!("{known:?}")).collect::<Vec<_>>().join(", ");
            SettingsError::UnknownPlugin { key, plugin: id.to_owned(), known }
        })
    }

    /// Whether every node reaches this journal. Code that moves entities between nodes must refuse a
    /// journal that is not shared, because a moved entity would come up empty and look healthy. Source: persistence §1.
    pub fn is_shared(&self) -> bool {
        self.journal.caps().scope == Scope::Shared
    }
}

/// How a store is told of.
fn named(plugin: &str, store: &str) -> String {
    if plugin.is_empty() { store.to_owned() } else { format!("{plugin}.{store}") }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("journal", &self.journal.caps())
            .field("snapshots", &self.snapshots.caps())
            .field("states", &self.states.as_ref().map(|states| states.caps()))
            .field("plugins", &self.plugins)
            .finish()
    }
}
