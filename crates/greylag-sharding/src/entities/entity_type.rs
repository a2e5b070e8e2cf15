//! The description of an entity type: everything that a node must know to host or to reach its entities.
//!
//! The same value is given to `Sharding::init` on every node. Codecs, extractor and role must agree
//! between the nodes of a cluster; the factory stays on its node.
//!
//! Source: sharding §1.1, §1.2.

mod builder;
mod described;
mod kinds;

pub use self::builder::EntityType;
pub(crate) use self::builder::SetUpHooks;
pub(crate) use self::described::{BoxedEntity, Common, Described, Persisted, Remember};
pub use self::described::{Hosted, Incomplete};
pub use self::kinds::{ByEvents, ByState, EventSourcedParts, Kind, Plain, Proxy};
