//! Entities: how a program describes them, how shards host them, and how they are referred to.

pub mod entity;
pub(crate) mod entity_ref;
pub mod entity_type;
pub(crate) mod extensions;
pub mod host;
