//! The inputs of the machine. Source: ddata O2.

use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::api::error::StopReason;
use crate::api::key::KeyId;
use crate::api::level::{ReadLevel, WriteLevel};
use crate::membership::replicas::Replicas;
use crate::messages::message::Message;
use crate::storage::store::{LoadedRecord, StoreError, StoreMeta};

/// Why bytes of a peer were dropped before they became a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The bytes are no message of this protocol.
    Malformed,
    /// A fragment came from a process that is no replica.
    Stranger,
    /// A fragment contradicted its transfer, came twice, or exceeded a bound; or the whole does not match its digest.
    Transfer,
}

/// An input of the machine: messages of peers, requests of this node's users, membership, and the store's answers.
/// Updates have an entry point of their own, since closures are no data.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A message of a peer arrived.
    Received {
        /// The peer.
        from: UniqueAddress,
        /// The message.
        message: Message,
    },
    /// The transport could not take a message for this peer.
    SendFailed {
        /// The peer.
        to: UniqueAddress,
        /// The request of the message, if it had one: [`Message::request`].
        request: Option<u64>,
    },
    /// Bytes of a peer were dropped before they became a message.
    Dropped {
        /// The peer that sent them.
        from: UniqueAddress,
        /// Why they were dropped.
        why: DropReason,
    },
    /// Membership changed.
    Replicas(Arc<Replicas>),
    /// The wall clock, in milliseconds since 1970. Until the next such input it advances with `now`.
    Wall(i64),
    /// A deadline may have passed.
    Tick,
    /// A caller reads an entry.
    Get {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// The tag of the expected type.
        tag: Arc<str>,
        /// How many replicas have to answer.
        level: ReadLevel,
    },
    /// A caller deletes an entry.
    Delete {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// How many replicas have to confirm.
        level: WriteLevel,
        /// The wall clock in milliseconds.
        wall_ms: i64,
    },
    /// A subscriber subscribes to an entry, or to a prefix if the pattern ends in `*`.
    Subscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// An id, or a prefix and `*`.
        pattern: KeyId,
        /// The tag; entries of other types are left out.
        tag: Arc<str>,
    },
    /// A subscriber subscribes to entries of all types. Source: ddata R17.
    SubscribeAny {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// An id, or a prefix and `*`.
        pattern: KeyId,
    },
    /// A subscription ends.
    Unsubscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
    },
    /// Notify subscribers now.
    Flush,
    /// The store did, or failed to do, what [`Effect::Store`](crate::Effect::Store) asked, including the flush. Source:
    /// ddata U3.
    Stored {
        /// The ticket of the effect.
        ticket: u64,
        /// The outcome.
        result: Result<(), StoreError>,
    },
    /// A batch of stored records, after [`Effect::Load`](crate::Effect::Load).
    Loaded(Vec<LoadedRecord>),
    /// The whole store was read; with the replicator's own record, `None` in a new store.
    LoadDone(Option<StoreMeta>),
    /// The store could not be read to its end.
    LoadFailed(StoreError),
    /// Send the changes that no peer has yet, then stop.
    Stop(StopReason),
}
