//! Receives the messages of producer controllers at a consumer controller's path.

use std::sync::Arc;

use greylag_core::{Codec, DeadLetterReason, DecodeError};
use greylag_transport::{Inbound, Receiver, Remoting};
use tokio::sync::mpsc;

use crate::delivery::payload::Payload;
use crate::message::{ProducerStopped, SequencedBatch, SequencedMessage};
use crate::wire;

/// Capacity of the controller's inbox, in batches; further batches are dropped, and producers repeat them.
const INBOX: usize = 4096;

/// A message of a producer controller to a consumer controller.
pub(super) enum FromProducer<T> {
    Batch(SequencedBatch<Payload<T>>),
    Stopped(ProducerStopped),
}

impl<T> FromProducer<T> {
    fn is_from(&self, message: &Inbound) -> bool {
        let controller = match self {
            Self::Batch(batch) => &batch.header.controller,
            Self::Stopped(stopped) => &stopped.controller,
        };
        controller.node == message.from
    }
}

/// The receiver at a consumer controller's path.
pub(super) struct Downstream<T> {
    inbox: mpsc::Sender<FromProducer<T>>,
    remoting: Arc<dyn Remoting>,
    codec: Arc<dyn Codec<T>>,
}

impl<T: Send + Sync + 'static> Downstream<T> {
    pub(super) fn new(
        remoting: Arc<dyn Remoting>,
        codec: Arc<dyn Codec<T>>,
    ) -> (Self, mpsc::Receiver<FromProducer<T>>) {
        let (inbox, from_producers) = mpsc::channel(INBOX);
        (Self { inbox, remoting, codec }, from_producers)
    }

    fn read(&self, message: &Inbound) -> Result<FromProducer<T>, DecodeError> {
        let bytes = message.payload.clone();
        match &*message.manifest {
            wire::BATCH => {
                let SequencedBatch { header, frames } = wire::read_batch(bytes)?;
                let frames = frames.into_iter().map(|SequencedMessage { frame, first }| {
                    let is_chunk = !(frame.first_chunk && frame.last_chunk);
                    let frame = frame.map(|piece| Payload::arrived(piece, is_chunk, &self.codec));
                    SequencedMessage { frame, first }
                });
                Ok(FromProducer::Batch(SequencedBatch { header, frames: frames.collect() }))
            }
            wire::STOPPED => wire::read_stopped(bytes).map(FromProducer::Stopped),
            other => Err(DecodeError::UnknownManifest { codec: message.codec, manifest: other.to_owned() }),
        }
    }
}

impl<T: Send + Sync + 'static> Receiver for Downstream<T> {
    fn receive(&self, message: Inbound) {
        match self.read(&message) {
            // The controller named in the message must be on the node that sent the message.
            Ok(from_producer) if from_producer.is_from(&message) => {
                if self.inbox.try_send(from_producer).is_err() {
                    self.remoting.refuse(&message, DeadLetterReason::MailboxFull);
                }
            }
            Ok(_) => self.remoting.refuse(&message, DeadLetterReason::Untrusted),
            Err(error) => {
                tracing::warn!(%error, "message of a producer controller could not be read");
                self.remoting.refuse(&message, DeadLetterReason::Undecodable);
            }
        }
    }
}
