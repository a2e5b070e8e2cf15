//! What a producer's queue says, and what it is asked: messages as bytes there, and as frames here.

use greylag_core::Encoded;

use super::engine::Entities;
use crate::machine::sharding_producer::Parcel;
use crate::machine::storing::{Answer, Call};
use crate::payload::Payload;
use crate::queue::{MessageSent, QueueError, QueueState};

impl<T: Send + Sync + 'static> Entities<T> {
    /// The queue's answer, with its messages as they are sent.
    pub(super) fn parcels_of(&self, answer: Answer<Encoded>) -> Answer<Parcel<Payload<T>>> {
        match answer {
            Answer::Loaded(loaded) => Answer::Loaded(loaded.and_then(|state| self.loaded(state))),
            Answer::Stored(stored) => Answer::Stored(stored),
            Answer::Confirmed(stored) => Answer::Confirmed(stored),
            Answer::Polled(polled) => Answer::Polled(polled.and_then(|messages| self.parcels(messages))),
        }
    }

    /// The messages of a loaded queue as they are sent.
    fn loaded(&self, mut state: QueueState<Encoded>) -> Result<QueueState<Parcel<Payload<T>>>, QueueError> {
        let mut parcels = self.parcels(std::mem::take(&mut state.unconfirmed))?;
        let mut loaded = state.map(|sent| sent.map(|_| unreachable!("no message is left in it")));
        loaded.unconfirmed.append(&mut parcels);
        Ok(loaded)
    }

    /// Messages of the queue as they are sent: decoded, cut into chunks, with the shards of their entities.
    fn parcels(&self, messages: Vec<MessageSent<Encoded>>) -> Result<Vec<MessageSent<Parcel<Payload<T>>>>, QueueError> {
        let parcel = |sent: MessageSent<Encoded>| {
            let shard = self.downstream.shard_of(&sent.qualifier).map_err(|reason| {
                let error = format!("no entity can have the id {}: {reason}", sent.qualifier);
                tracing::warn!(%error, "a producer's queue has a message that cannot be sent");
                QueueError::Closed(error)
            })?;
            Ok(sent.map(|encoded| {
                let bytes = encoded.payload.len();
                Parcel { shard, bytes, frames: self.encoding.frames_of(encoded) }
            }))
        };
        messages.into_iter().map(parcel).collect()
    }
}

/// A call of the queue, with its messages as they are stored.
pub(super) fn encoded<T: 'static>(call: Call<Parcel<Payload<T>>>) -> Call<Encoded> {
    match call {
        Call::Load => Call::Load,
        Call::Confirm(confirmations) => Call::Confirm(confirmations),
        Call::Poll(max_messages) => Call::Poll(max_messages),
        Call::Store(batch) => {
            let encoded = |sent: MessageSent<Parcel<Payload<T>>>| sent.map(|parcel| parcel.frames.encoded());
            Call::Store(batch.into_iter().map(encoded).collect())
        }
    }
}
