//! Entities that persist: their behaviours, the two machines with what they share, their host, and their test kits.

pub(crate) mod behavior;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod driver;
pub(crate) mod entity;
pub(crate) mod lifecycle;
pub(crate) mod marks;
pub(crate) mod settings;
pub(crate) mod state_entity;
pub(crate) mod state_testkit;
pub(crate) mod testkit;
pub(crate) mod tracker;
