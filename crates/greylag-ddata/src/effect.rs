//! What a replicator asks its driver to do, and what it answers its users. Source: ddata O3.

use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;
use greylag_crdt::ReplicatedData;

use crate::error::{DeleteError, GetError, UpdateError};
use crate::event::ReplicatorEvent;
use crate::key::KeyId;
use crate::message::Message;
use crate::read::{Lifecycle, Read};
use crate::store::StoreOp;
use crate::types::AnyData;

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to the same-named replicator of that very process.
    Send {
        /// The process.
        to: UniqueAddress,
        /// Whether it goes over the bulk mailbox.
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
        /// What became of it.
        notice: Notice,
    },
    /// Store these, in this order, and flush; answered by [`Input::Stored`](crate::Input::Stored). At most one is unanswered.
    Store {
        /// Comes back with the answer.
        ticket: u64,
        /// The changes.
        ops: Vec<StoreOp>,
    },
    /// Read everything that is stored; answered by [`Input::Loaded`](crate::Input::Loaded) any number of times and then
    /// [`Input::LoadDone`](crate::Input::LoadDone) or [`Input::LoadFailed`](crate::Input::LoadFailed).
    Load,
    /// Set aside what is stored under another name, and go on as for [`Effect::Load`].
    LoadAnew,
    /// The replicator's life went on.
    Lifecycle(Lifecycle),
    /// Something that operators may want to know.
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

/// What became of a followed entry.
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

    /// Snapshots are equal where the values are: of one type, with the same content.
    #[test]
    fn snapshots_are_equal_by_type_and_content() {
        let set = |elements: &[u64]| {
            let mut set = GSet::new();
            elements.iter().for_each(|element| set.add(*element));
            Snapshot::new(&set)
        };
        assert_eq!(set(&[1, 2]), set(&[2, 1]));
        assert_ne!(set(&[1]), set(&[2]));
        // Two empty sets: only the types tell them apart.
        assert_ne!(set(&[]), Snapshot::new(&GSet::<u32>::new()));
    }
}
