//! The stores of a node as one handle, with the settings and counters of its entities.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::contract::breaker::Breakers;
use crate::contract::driver::journal_store::{Journal, SnapshotStore};
use crate::contract::driver::query_store::EventQueries;
use crate::contract::driver::state_store::StateStore;
use crate::contract::driver::store_returns::StoreReturns;
use crate::contract::error::CloseError;
use crate::contract::journal::Health;
use crate::contract::scope::Scope;
use crate::contract::settings::SettingsError;
use crate::entities::behavior::durable_state::DurableStateSettings;
use crate::entities::counters::{EntityCounters, EntityStats};
use crate::entities::settings::EventSourcedSettings;
use crate::reading::driver::hints::Hints;
use crate::reading::driver::read_journal::ReadJournal;
use crate::reading::query::settings::QuerySettings;

/// A journal and its snapshot store, and a state store if there is one: the defaults of a
/// node, and further stores, which behaviours select by name. Cheap to clone.
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
    /// The journal, for events.
    pub journal: Arc<dyn Journal>,
    /// The snapshot store.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// The state store. Default: none, and entities with a durable state are refused.
    pub states: Option<Arc<dyn StateStore>>,
    /// Settings that behaviours on these stores start from.
    settings: Arc<(EventSourcedSettings, DurableStateSettings)>,
    /// Whether [`Stores::close`] leaves the stores open.
    stays_open: bool,
    /// Further stores, by name.
    plugins: BTreeMap<String, Self>,
    /// Counters of the entities on this journal.
    pub(crate) counters: EntityCounters,
    /// Gets the announcements of appends over these stores; see [`Stores::read_journal`].
    pub(crate) hints: Hints,
}

/// A state store that a behaviour selected, with the counters of its entities. Cheap to clone.
#[derive(Clone)]
pub struct StatesInUse {
    /// The store.
    pub states: Arc<dyn StateStore>,
    /// Counters of the entities with a state in the store.
    pub counters: EntityCounters,
}

impl fmt::Debug for StatesInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatesInUse").field("states", &self.states.caps()).finish_non_exhaustive()
    }
}

impl StatesInUse {
    /// Count of the store's returns after outages; an entity that backs off waits for the next one.
    pub fn store_returns(&self) -> StoreReturns {
        StoreReturns::of_all([self.states.store_returns()])
    }
}

impl Stores {
    /// The stores that event-sourced entities need.
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
    /// [`QuerySettings::refresh_interval`] to see the appends of entities over these stores, or clones of them.
    /// Events from elsewhere are not announced and seen after the refresh interval, as usual.
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

    /// These stores, with `states` for entities with a durable state.
    #[must_use]
    pub fn with_states(self, states: Arc<dyn StateStore>) -> Self {
        Self { states: Some(states), ..self }
    }

    /// These stores, with `stores` for behaviours that select them as `id`, in place of any others of that
    /// name. The empty name always means the defaults.
    #[must_use]
    pub fn with_plugin(mut self, id: impl Into<String>, stores: Self) -> Self {
        self.plugins.insert(id.into(), stores);
        self
    }

    /// These stores, with settings that every behaviour hosted on them starts from, whichever plugin it
    /// selects. A node passes its configuration here. Source: persistence §9.
    #[must_use]
    pub fn with_settings(self, event_sourced: EventSourcedSettings, durable_state: DurableStateSettings) -> Self {
        Self { settings: Arc::new((event_sourced, durable_state)), ..self }
    }

    /// Settings that event-sourced behaviours start from. Default: the defaults.
    pub fn event_sourced_settings(&self) -> &EventSourcedSettings {
        &self.settings.0
    }

    /// Settings that behaviours with a durable state start from. Default: the defaults.
    pub fn durable_state_settings(&self) -> &DurableStateSettings {
        &self.settings.1
    }

    /// These stores, for a program that goes on using them when a node ends, or for several nodes of one process:
    /// [`Stores::close`] skips them. Stores in memory are kept open already.
    #[must_use]
    pub fn kept_open(self) -> Self {
        Self { stays_open: true, ..self }
    }

    /// Closes all stores, plugins included, except those kept open: calls under way are finished, and later
    /// calls answer unavailable. A store under several names is closed several times; the repeats do
    /// nothing. Source: persistence §10.15.
    ///
    /// # Errors
    /// The stores that did not close cleanly, by name (as in [`Stores::health`]). The others are closed all the same.
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

    /// The health of each store: `journal`, `snapshots` and `states`, and those of plugins as
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

    /// Counts of the entities that selected each plugin: `""` are the defaults, the others plugins by name.
    /// An entity counts with its journal, also for its snapshots, or with its state store. All clones
    /// count together, so a program that keeps one sees the counts of its node. Source: persistence §10.16.
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

    /// Counters of the entities on this journal, for their host.
    pub fn counters(&self) -> &EntityCounters {
        &self.counters
    }

    /// State and counts of the breakers of those stores that have some ([`Guarded`](crate::Guarded)), named as in
    /// [`Stores::health`]. Source: persistence §10.16.
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

    /// Count of the returns of journal and snapshots after outages; an entity that backs off waits for the next one.
    pub fn store_returns(&self) -> StoreReturns {
        StoreReturns::of_all([self.journal.store_returns(), self.snapshots.store_returns()])
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
        // Take the hints of that journal too, so that the journal's readers get hints of appends to it.
        Ok(Self { journal, hints, counters, snapshots, ..self.clone() })
    }

    /// The durable states that a behaviour selects; `""` is the default. Source: persistence §1.
    ///
    /// # Errors
    /// [`SettingsError::UnknownPlugin`]; [`SettingsError::NoStates`] if the selected stores keep no states.
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
    /// journal that is not shared: a moved entity would start with an empty history, without any error. Source:
    /// persistence §1.
    pub fn is_shared(&self) -> bool {
        self.journal.caps().scope == Scope::Shared
    }
}

/// The name of a store in reports.
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
