//! Frames on their way out: those of one link share a batch, those that the lane has no room for wait for it.
//!
//! Source: delivery §12, "Frames of one link share a batch"; scenarios 88 and 94.

use std::sync::Arc;

use bytes::BytesMut;
use futures::stream::{FuturesUnordered, StreamExt};
use greylag_core::CodecId;
use greylag_transport::{Destination, Envelope, LaneKind, Recipient, Remoting, SendError, Sending};

use crate::ids::ControllerRef;
use crate::message::{BatchHeader, ProducerStopped, SequencedBatch, SequencedMessage};
use crate::payload::Payload;
use crate::settings::LANE_MARGIN;
use crate::wire;

/// Frames of one batch.
const MAX_FRAMES: usize = 256;
/// Bytes of the payloads of one batch, unless its only frame has more.
const MAX_BYTES: usize = 64 << 10;
/// Batches that wait for room; beyond it they are dropped, and repeated by the protocol.
const MAX_WAITING: usize = 256;

/// See the module's documentation.
pub(super) struct Outgoing<T> {
    remoting: Arc<dyn Remoting>,
    open: Option<Open<T>>,
    max_bytes: usize,
    waiting: FuturesUnordered<Sending>,
}

struct Open<T> {
    to: ControllerRef,
    batch: SequencedBatch<Payload<T>>,
    bytes: usize,
}

impl<T: 'static> Outgoing<T> {
    pub(super) fn new(remoting: Arc<dyn Remoting>) -> Self {
        let lane = remoting.maximum_message_size(LaneKind::Ordinary);
        let max_bytes = lane.saturating_sub(LANE_MARGIN).min(MAX_BYTES);
        Self { remoting, open: None, max_bytes, waiting: FuturesUnordered::new() }
    }

    /// Adds a frame to the batch of its link.
    pub(super) fn push(&mut self, to: ControllerRef, header: BatchHeader, message: SequencedMessage<Payload<T>>) {
        let bytes = message.frame.payload.size();
        if let Some(open) = &mut self.open
            && open.to == to
            && open.batch.header == header
            && open.batch.frames.len() < MAX_FRAMES
            && open.bytes + bytes <= self.max_bytes
        {
            open.batch.frames.push(message);
            open.bytes += bytes;
            return;
        }
        self.flush();
        self.open = Some(Open { to, batch: SequencedBatch { header, frames: vec![message] }, bytes });
    }

    /// Sends the batch that is open.
    pub(super) fn flush(&mut self) {
        let Some(Open { to, batch, bytes }) = self.open.take() else { return };
        let mut buffer = BytesMut::with_capacity(bytes + 512);
        wire::put_batch(&batch.header, &batch.frames, Payload::piece, &mut buffer);
        self.send(&to, wire::BATCH, buffer);
    }

    /// Tells a consumer controller that its link has ended.
    pub(super) fn stopped(&mut self, to: &ControllerRef, message: &ProducerStopped) {
        self.flush();
        let mut buffer = BytesMut::new();
        wire::put_stopped(message, &mut buffer);
        self.send(to, wire::STOPPED, buffer);
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
                tracing::debug!(to = %to, error = %rejected.error, "frames were not taken; they come again");
            }
        }
    }

    /// Completes when a batch that waited was taken or refused; pending where none waits.
    pub(super) async fn room(&mut self) {
        if self.waiting.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
