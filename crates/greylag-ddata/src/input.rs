//! What a replicator is told. Source: ddata O2.

use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::error::StopReason;
use crate::key::KeyId;
use crate::level::{ReadLevel, WriteLevel};
use crate::message::Message;
use crate::replicas::Replicas;
use crate::store::{LoadedRecord, StoreError, StoreMeta};

/// Why something of a peer never became a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The bytes are no message of this protocol.
    Malformed,
    /// A piece came of a process that is no replica.
    Stranger,
    /// A piece contradicted its transfer, came twice, or was one too much; or the whole is not what it
    /// was said to be.
    Transfer,
}

/// An input to the replicator: messages of peers, requests of this node's users, membership, and the store's answers.
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
        /// The request that the message was about, if it was about one: [`Message::request`].
        request: Option<u64>,
    },
    /// Something of a peer was dropped before it was a message.
    Dropped {
        /// The peer that sent it.
        from: UniqueAddress,
        /// Why it was dropped.
        why: DropReason,
    },
    /// Membership changed.
    Replicas(Arc<Replicas>),
    /// The wall clock, in milliseconds since 1970. Until told otherwise it goes on as `now` does.
    Wall(i64),
    /// A deadline may have passed.
    Tick,
    /// A caller reads an entry.
    Get {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// The tag of the type expected.
        tag: Arc<str>,
        /// How many have to answer.
        level: ReadLevel,
    },
    /// A caller deletes an entry.
    Delete {
        /// The caller's number for the request.
        id: u64,
        /// The entry.
        key: KeyId,
        /// How many have to confirm.
        level: WriteLevel,
        /// The wall clock in milliseconds.
        wall_ms: i64,
    },
    /// A subscriber follows an entry, or a prefix if the pattern ends in `*`.
    Subscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The id, or prefix and `*`.
        pattern: KeyId,
        /// Only entries with this tag.
        tag: Arc<str>,
    },
    /// A subscriber follows entries of all types. Source: ddata R17.
    SubscribeAny {
        /// The caller's number for the subscription.
        subscriber: u64,
        /// The id, or prefix and `*`.
        pattern: KeyId,
    },
    /// A subscriber follows nothing any more.
    Unsubscribe {
        /// The caller's number for the subscription.
        subscriber: u64,
    },
    /// Subscribers are to be told now.
    Flush,
    /// The store did what [`Effect::Store`](crate::Effect::Store) asked, and flushed it; or it did not. Source: ddata U3.
    Stored {
        /// Of the effect.
        ticket: u64,
        /// What came of it.
        result: Result<(), StoreError>,
    },
    /// Some of what is stored, after [`Effect::Load`](crate::Effect::Load).
    Loaded(Vec<LoadedRecord>),
    /// The whole store was read, and this is what the replicator had remembered; `None` in a new store.
    LoadDone(Option<StoreMeta>),
    /// The store could not be read to its end.
    LoadFailed(StoreError),
    /// Send the changes that no peer has yet, then stop.
    Stop(StopReason),
}
