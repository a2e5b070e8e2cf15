//! Messages that arrived but cannot be decoded, and wait for an operator or a newer version of the program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_core::Encoded;

use crate::delivery::Outcomes;
use crate::delivery::payload::UnreadableError;
use crate::ids::MessageId;
use crate::machine::sharding_consumer::DeliveryHandle;

/// A message that cannot be decoded. Its link is blocked until the message is confirmed, that is skipped for good;
/// dropping this value has no effect. Source: delivery §9.
#[derive(Clone)]
pub struct Undecodable {
    entity: Arc<str>,
    handle: DeliveryHandle,
    error: UnreadableError,
    bytes: Arc<dyn Fn() -> Encoded + Send + Sync>,
    outcomes: Arc<Outcomes>,
}

impl Undecodable {
    pub(in crate::driver) fn new(
        entity: Arc<str>,
        handle: DeliveryHandle,
        error: UnreadableError,
        bytes: impl Fn() -> Encoded + Send + Sync + 'static,
        outcomes: Arc<Outcomes>,
    ) -> Self {
        Self { entity, handle, error, bytes: Arc::new(bytes), outcomes }
    }

    /// Id of the entity to which the message was sent, or the reference of the consumer controller.
    pub fn entity(&self) -> &str {
        &self.entity
    }

    /// Id of the message.
    pub fn id(&self) -> &MessageId {
        &self.handle.id
    }

    /// Why the message cannot be decoded.
    pub fn error(&self) -> &UnreadableError {
        &self.error
    }

    /// Bytes of the message, as far as they were kept: of a message that is too large, or whose chunks do not belong
    /// together, only the first chunk. Each call copies the bytes of a message in chunks.
    pub fn bytes(&self) -> Encoded {
        (self.bytes)()
    }

    /// Skips the message: it counts as processed, and the messages behind it are delivered.
    pub fn confirm(&self) {
        self.outcomes.confirm([self.handle.clone()]);
    }
}

impl fmt::Debug for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undecodable")
            .field("entity", &self.entity)
            .field("id", &self.handle.id)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// The undecodable messages of the entities of one type on one node.
#[derive(Default)]
pub(super) struct UndecodableMessages(Mutex<BTreeMap<(Arc<str>, MessageId), Undecodable>>);

impl UndecodableMessages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Arc<str>, MessageId), Undecodable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn list(&self) -> Vec<Undecodable> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn add(&self, undecodable: Undecodable) {
        let key = (undecodable.entity.clone(), undecodable.handle.id.clone());
        self.lock().insert(key, undecodable);
    }

    pub(super) fn remove(&self, entity: &Arc<str>, id: &MessageId) {
        self.lock().remove(&(entity.clone(), id.clone()));
    }
}

impl fmt::Debug for UndecodableMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UndecodableMessages").field(&self.count()).finish()
    }
}
