//! Automatic passivation: which entities of a shard end so that no more than a limit are active.
//!
//! [`Passivation`] is the user's setting for an entity type. [`Strategy`] is the machine of one shard: its inputs say
//! which slots are touched, which have ended and which are under a veto, and it names the slots to passivate. A limit
//! counts per region and is divided between the region's shards, so that a limit per shard changes whenever a shard
//! starts or stops.
//!
//! ```text
//! touched(slot) --> live: moves up in its order
//!                   new:  victims (pushed), then the slot comes in
//! set_limit, set_veto(slot, false) --> victims (pushed), until the limit holds
//! terminated(slot) --> the slot leaves, and its veto falls
//! ```
//!
//! A plain strategy is one order: a set of slots, and which of them goes next. The composite strategy has two, an
//! admission window and a main area, with a filter between them. A slot under a veto is passed over and the next one
//! goes; if all are under a veto the limit is exceeded until a veto is lifted.
//!
//! Left to others: the passivation itself, and idle entities, which the shard finds by its own sweep.
//!
//! Source: sharding §4.10.

mod composite;
mod hill_climber;
mod order;
mod plain;
mod policy;
mod settings;
mod sketch;
mod strategy;
#[cfg(test)]
mod tests;
mod validate;

pub use policy::{AdmissionWindow, Aging, FrequencySketch, HillClimbing, ReplacementPolicy, Segments};
pub use settings::Passivation;
pub use strategy::Strategy;
