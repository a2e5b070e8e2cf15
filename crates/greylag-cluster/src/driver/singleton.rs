//! Singletons of this node: one manager per name if the node has the role, owned by the driver's task, and one port per
//! name wherever messages are sent or taken.
//!
//! Source: cluster P1.

mod definition;
mod error;
pub(super) mod instance;
mod mailbox;
pub(super) mod order;
mod port;
mod reference;
mod registry;
pub(super) mod slot;

pub use definition::{NoMessages, Singleton};
pub use error::{SingletonAskError, SingletonSendError};
pub use instance::{SingletonContext, StopToken};
pub use mailbox::Mailbox;
pub use reference::{SingletonAnswer, SingletonRef};
pub(crate) use registry::{Singletons, StartedSingleton};
