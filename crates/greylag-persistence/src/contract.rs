//! The contract of the stores: nouns, traits and errors, the stores in memory, and the kit that checks a backend.
//!
//! Nothing here uses an entity, a projection or a reader; only [`settings::SettingsError`] speaks of their settings,
//! since all of them share one error. [`records`] are what stores keep; [`driver`] holds the traits that a backend
//! implements, with the stores in memory, and the guard and the faults that go around any store.

pub(crate) mod breaker;
pub(crate) mod driver;
pub(crate) mod error;
pub(crate) mod head;
pub(crate) mod history_part;
pub(crate) mod journal;
pub(crate) mod offset;
pub(crate) mod query;
pub(crate) mod records;
pub(crate) mod scope;
pub(crate) mod settings;
#[cfg(feature = "tck")]
pub(crate) mod tck;
