//! Why an entity type is not set up on a node.

use crate::entity_type::Incomplete;
use crate::error::{InvalidSetting, InvalidTypeName};
use crate::ids::EntityTypeName;

/// Why an entity type was not set up. Nothing was started.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// The name is not valid for an entity type.
    #[error(transparent)]
    InvalidTypeName(#[from] InvalidTypeName),
    /// A setting is invalid.
    #[error(transparent)]
    InvalidSetting(#[from] InvalidSetting),
    /// The node shuts down, so no shard could live on it. Set the type up on a node that runs.
    #[error("entity type {name} is not set up: this node shuts down")]
    ShuttingDown {
        /// The name.
        name: EntityTypeName,
    },
    /// A type of this name is set up already, with other messages.
    #[error("entity type {name} is initialised already, with another message type")]
    AlreadyInitialized {
        /// The name.
        name: EntityTypeName,
    },
    /// A type of this name is set up already, and differs from this one. Nothing of the second one was set up.
    #[error("entity type {name} is initialised already, with another {field}")]
    Differs {
        /// The name.
        name: EntityTypeName,
        /// The first difference.
        field: &'static str,
    },
    /// A method about messages was called before a layer wraps the messages on their way to the entities. Call it after
    /// the method that adds the layer.
    #[error("entity type {name}: call {what} after the layer that wraps its messages is added")]
    OfWrappedMessages {
        /// The name.
        name: EntityTypeName,
        /// The method.
        what: &'static str,
    },
    /// The type keeps its state in a journal, and sharding was started without one.
    #[error("entity type {name} is persistent, but sharding was started without stores")]
    NoStores {
        /// The name.
        name: EntityTypeName,
    },
    /// The type keeps its state in a state store, and sharding was started without one.
    #[error("entity type {name} keeps durable states, but sharding was started without a state store")]
    NoStateStore {
        /// The name.
        name: EntityTypeName,
    },
    /// The state store is reachable from this node only: a shard that moves would come up empty and look healthy.
    #[error(
        "entity type {name} keeps durable states, but only this node reaches the state store; use a shared one, or \
         set allow_local_journal for a cluster of one node"
    )]
    StatesNotShared {
        /// The name.
        name: EntityTypeName,
    },
    /// A store is reachable from this node only: a shard that moves would come up empty and look healthy.
    #[error(
        "entity type {name} keeps {what} in a store that only this node reaches; use a shared one, or set \
         allow_local_journal for a cluster of one node"
    )]
    JournalNotShared {
        /// The name.
        name: EntityTypeName,
        /// The data that would be lost with the node: events, or, in mode persistence, homes of shards or snapshots of
        /// them.
        what: &'static str,
    },
    /// Homes of shards or remembered entities are to be kept in a journal, and sharding was started without one.
    #[error(
        "sharding was started without stores to keep {what} of entity type {name} in; name a journal that every node \
         reaches, or set {} to \"ddata\"",
        key_of(what)
    )]
    NoCoordinatorJournal {
        /// The name.
        name: EntityTypeName,
        /// The data to be kept in the journal.
        what: &'static str,
    },
    /// The replicator of the coordinators' state did not start.
    #[error("the replicator for coordinator state did not start: {reason}")]
    NoReplicator {
        /// The replicator's error.
        #[source]
        reason: greylag_ddata::StartError,
    },
    /// The type's allocation strategy cannot work here.
    #[error("entity type {name}: {reason}")]
    Strategy {
        /// The name.
        name: EntityTypeName,
        /// The strategy's error.
        reason: String,
    },
    /// A node of a cluster lacks a codec to write or read the type's data.
    #[error("entity type {name} has no codec for its {what}{}", advice(what))]
    NoCodec {
        /// The name.
        name: EntityTypeName,
        /// The data without a codec: messages, events or states.
        what: &'static str,
    },
    /// The type's shards are to hold leases, but there is no store of leases.
    #[error(
        "entity type {name} is to hold leases, but the cluster has no store of leases: give its settings a provider, or \
         leave use_lease empty"
    )]
    NoLeases {
        /// The name.
        name: EntityTypeName,
    },
    /// A function of [`EntityType::before_set_up`](crate::EntityType::before_set_up) failed, so the type is not set up.
    #[error("entity type {name}: {why}")]
    Refused {
        /// The name.
        name: EntityTypeName,
        /// The failure of the function.
        why: String,
    },
    /// A daemon process cannot be set up as described.
    #[error("daemon process {name}: {reason}")]
    DaemonProcess {
        /// The name of the process.
        name: String,
        /// The reason.
        reason: String,
    },
}

greylag_core::debug_is_sentence!(InitError);

impl InitError {
    /// The type of this name cannot be hosted as it is described.
    pub(in crate::driver) fn incomplete(name: &EntityTypeName, incomplete: Incomplete) -> Self {
        let name = name.clone();
        match incomplete {
            Incomplete::NoCodec(what) => Self::NoCodec { name, what },
            Incomplete::OfWrappedMessages(what) => Self::OfWrappedMessages { name, what },
        }
    }
}

/// The end of the text of [`InitError::NoCodec`]: how to name the codec that is missing. Messages have a second way,
/// since only they may stay on the node.
fn advice(what: &str) -> &'static str {
    match what {
        "messages" => "; name one where the type is defined, or say local_only() if no other node is to reach it",
        _ => "; name one where the type is defined",
    }
}

/// The setting that selects another place than a journal for `what`.
fn key_of(what: &str) -> &'static str {
    match what {
        "remembered entities" => "remember_entities_store",
        _ => "state_store_mode",
    }
}

/// No entity type of this name was set up on this node.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("entity type {name:?} is not initialised here; these are: {known:?}")]
pub struct NotStarted {
    /// The name asked for.
    pub name: String,
    /// The types that are set up.
    pub known: Vec<String>,
}

greylag_core::debug_is_sentence!(NotStarted);
