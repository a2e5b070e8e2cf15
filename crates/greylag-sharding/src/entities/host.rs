//! Hosted entities: the layer below [`Entity`](crate::Entity), for wrappers with a protocol of their own.
//!
//! A shard calls its hosted entities one at a time and never re-enters one. Plain and persistent entities are built on
//! this layer; so is delivery, whose wrapper takes protocol messages in front of the entity that it holds. Requests of
//! a handler to its [`ShardCx`] take effect when the handler returns.
//!
//! ```text
//! first message --> factory --> on_start --> receive* --> on_stop --> receive* --> on_signal(PostStop)
//! ```
//!
//! Source: sharding §4.

mod cx;
mod direct_ref;
mod hosted;
mod signal;
mod suspension;

pub use self::cx::{AlreadySuspended, ShardCx};
pub(crate) use self::cx::{CtxScope, MakeMessage, ReceiveTimeoutRequest, Requests, TimerRequest, Work};
pub use self::direct_ref::DirectRef;
pub use self::hosted::HostedEntity;
pub use self::signal::{Fenced, Signal};
pub(crate) use self::suspension::Resumption;
pub use self::suspension::Suspension;
pub use crate::driver::{DurableStateEntity, EventSourcedEntity, HostedMachine, MachineState, PersistentEntity};
