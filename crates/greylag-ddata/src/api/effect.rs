//! The effects of the machine: what its driver must do, and the answers to its users. Source: ddata O3.

use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicatedData;

use crate::api::error::{DeleteError, GetError, UpdateError};
use crate::api::event::ReplicatorEvent;
use crate::api::key::KeyId;
use crate::api::read::{Lifecycle, Read};
use crate::data::types::AnyData;
use crate::messages::message::Message;
use crate::storage::store::StoreOp;

/// An effect; the driver performs effects in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a message to the same-named replicator of exactly this process.
    Send {
        /// The process.
        to: UniqueAddress,
        /// Whether the message goes to the bulk mailbox.
        bulk: bool,
        /// The message.
        message: Message,
    },
    /// Answer a caller.
    Reply {
        /// The caller's number for the request.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// Tell a subscriber.
    Notify {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The entry.
        key: KeyId,
        /// The change.
        notice: Notice,
    },
    /// Store these changes, in this order, and flush; answered by [`Input::Stored`](crate::Input::Stored). At most one
    /// is unanswered.
    Store {
        /// A number that comes back with the answer.
        ticket: u64,
        /// The changes.
        ops: Vec<StoreOp>,
    },
    /// Read everything that is stored; answered by any number of [`Input::Loaded`](crate::Input::Loaded) and then
    /// [`Input::LoadDone`](crate::Input::LoadDone) or [`Input::LoadFailed`](crate::Input::LoadFailed).
    Load,
    /// Rename the stored data, and go on as for [`Effect::Load`].
    LoadAnew,
    /// Publish the new lifecycle.
    Lifecycle(Lifecycle),
    /// Publish an event for operators.
    Event(ReplicatorEvent),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To an update whose closure succeeded.
    Update(Result<(), UpdateError<std::convert::Infallible>>),
    /// To a read.
    Get(Result<Read<Snapshot>, GetError>),
    /// To a delete.
    Delete(Result<(), DeleteError>),
}

/// The change of an entry that a subscriber gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The entry holds this value now.
    Value(Snapshot),
    /// The entry was deleted.
    Deleted,
    /// The entry expired.
    Expired,
}

/// A value as it was at one moment.
#[derive(Clone)]
pub struct Snapshot(Arc<dyn AnyData>);

impl Snapshot {
    pub(crate) fn new(value: &dyn AnyData) -> Self {
        Self(value.boxed_clone().into())
    }

    /// The value, if it is a `T`.
    pub fn to<T: ReplicatedData>(&self) -> Option<T> {
        self.0.as_any().downcast_ref::<T>().cloned()
    }

    /// The value.
    pub fn data(&self) -> &dyn AnyData {
        &*self.0
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.0.tag() == other.0.tag() && self.0.digest() == other.0.digest()
    }
}

impl Eq for Snapshot {}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use greylag_crdt::GSet;

    use super::*;

    /// Snapshots are equal if their values are: of one type, with the same content.
    #[test]
    fn snapshots_are_equal_by_type_and_content() {
        let set = |elements: &[u64]| {
            let mut set = GSet::new();
            elements.iter().for_each(|element| set.add(*element));
            Snapshot::new(&set)
        };
        assert_eq!(set(&[1, 2]), set(&[2, 1]));
        assert_ne!(set(&[1]), set(&[2]));
        // Two empty sets differ by their types only.
        assert_ne!(set(&[]), Snapshot::new(&GSet::<u32>::new()));
    }
}
