//! What a producer's queue says, and what it is asked: messages as bytes there, and as frames here.

use greylag_core::Encoded;

use super::task::Task;
use crate::machine::sharding_producer::{Input, Parcel};
use crate::machine::storing::{Answer, Call, StoringState};
use crate::payload::Payload;
use crate::queue::{MessageSent, QueueError, QueueState};

impl<T: Send + Sync + 'static> Task<T> {
    pub(super) fn on_answer(&mut self, call: u64, answer: Answer<Encoded>) {
        let before = self.machine.storing_state();
        let answer = match answer {
            Answer::Loaded(loaded) => Answer::Loaded(loaded.and_then(|state| self.loaded(state))),
            Answer::Stored(stored) => Answer::Stored(stored),
            Answer::Confirmed(stored) => Answer::Confirmed(stored),
            Answer::Polled(polled) => Answer::Polled(polled.and_then(|messages| self.parcels(messages))),
        };
        if let Answer::Loaded(Err(error))
        | Answer::Stored(Err(error))
        | Answer::Confirmed(Err(error))
        | Answer::Polled(Err(error)) = &answer
        {
            tracing::warn!(%error, "a producer's queue did not do what it was asked");
        }
        self.tell(Input::Queue { call, answer });
        if before == StoringState::Degraded && self.machine.storing_state() == StoringState::Open {
            tracing::info!("a producer's queue is open again");
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
            let shard = self.shared.downstream.shard_of(&sent.qualifier);
            let shard = shard.map_err(|reason| {
                QueueError::Closed(format!("no entity can have the id {}: {reason}", sent.qualifier))
            })?;
            Ok(sent.map(|encoded| {
                let payload = Payload::decode(encoded, &*self.shared.codec);
                let bytes = payload.size();
                Parcel { shard, bytes, frames: payload.frames(self.shared.limits.chunk_bytes) }
            }))
        };
        messages.into_iter().map(parcel).collect()
    }

    pub(super) fn call_store(&mut self, id: u64, call: Call<Parcel<Payload<T>>>) {
        let call = match call {
            Call::Load => Call::Load,
            Call::Confirm(confirmations) => Call::Confirm(confirmations),
            Call::Poll(max_messages) => Call::Poll(max_messages),
            Call::Store(batch) => {
                let encoded = |sent: MessageSent<Parcel<Payload<T>>>| sent.map(|parcel| parcel.frames.encoded());
                Call::Store(batch.into_iter().map(encoded).collect())
            }
        };
        self.calls.push((id, call));
    }
}
