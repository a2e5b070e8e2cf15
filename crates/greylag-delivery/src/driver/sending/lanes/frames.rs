//! Sends frames through the transport: batches without room in the lane wait for it.
//!
//! Source: delivery §12; scenario 94.

use std::sync::Arc;

use bytes::BytesMut;
use futures::stream::{FuturesUnordered, StreamExt};
use greylag_core::CodecId;
use greylag_transport::{Destination, Envelope, Recipient, Remoting, SendError, Sending};

use super::batches::{Addressed, Batches};
use crate::delivery::payload::Payload;
use crate::ids::ControllerRef;
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage};
use crate::wire;

/// Limit of batches that wait for room; further batches are dropped, and the protocol repeats them.
const MAX_WAITING: usize = 256;

/// See the module's documentation.
pub(in crate::driver::sending) struct Outgoing<T> {
    remoting: Arc<dyn Remoting>,
    batches: Batches<ControllerRef, T>,
    waiting: FuturesUnordered<Sending>,
}

impl<T: 'static> Outgoing<T> {
    pub(in crate::driver::sending) fn new(remoting: Arc<dyn Remoting>) -> Self {
        Self { batches: Batches::new(&*remoting), remoting, waiting: FuturesUnordered::new() }
    }

    /// Adds a frame to the batch of its link.
    pub(in crate::driver::sending) fn push(
        &mut self,
        to: ControllerRef,
        header: BatchHeader,
        message: SequencedMessage<Payload<T>>,
    ) {
        if let Some(full) = self.batches.add(to, header, message) {
            self.send_batch(full);
        }
    }

    /// Sends the open batches.
    pub(in crate::driver::sending) fn flush(&mut self) {
        self.batches.take_all().for_each(|batch| self.send_batch(batch));
    }

    /// Tells a consumer controller that its link has ended.
    pub(in crate::driver::sending) fn stopped(&mut self, to: &ControllerRef, message: &ProducerStopped) {
        if let Some(last) = self.batches.take(message.controller.instance) {
            self.send_batch(last);
        }
        let mut buffer = BytesMut::new();
        wire::put_stopped(message, &mut buffer);
        self.send(to, wire::STOPPED, buffer);
    }

    fn send_batch(&self, Addressed { to, batch, bytes }: Addressed<ControllerRef, T>) {
        let mut buffer = BytesMut::with_capacity(bytes + 512);
        wire::put_batch(&batch.header, &batch.frames, Payload::piece, &mut buffer);
        self.send(&to, wire::BATCH, buffer);
    }

    fn send(&self, to: &ControllerRef, manifest: &'static str, bytes: BytesMut) {
        let recipient = Recipient::new(to.path.clone()).with_instance(to.instance);
        let envelope = Envelope::new(recipient, CodecId::INTERNAL, manifest, bytes.freeze()).to_uid(to.node.uid());
        let node = Destination::Incarnation(to.node.clone());
        match self.remoting.send(&node, envelope) {
            Ok(()) => {}
            Err(rejected) if rejected.error == SendError::QueueFull && self.waiting.len() < MAX_WAITING => {
                self.waiting.push(self.remoting.send_async(&node, *rejected.envelope, None));
            }
            Err(rejected) => {
                tracing::debug!(to = %to, error = %rejected.error, "frames refused; the protocol will resend them");
            }
        }
    }

    /// Completes when a waiting batch was taken or refused; pending if none waits.
    pub(in crate::driver::sending) async fn room(&mut self) {
        if self.waiting.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
