//! How a producer encodes its messages, by its settings, its lane and its queue.

use std::sync::Arc;

use greylag_core::{Codec, Encoded};
use greylag_transport::{LaneKind, Remoting};

use crate::delivery::payload::{Format, Payload};
use crate::driver::queue::DurableProducerQueue;
use crate::message::Frames;
use crate::settings::{DeliverySettings, LANE_MARGIN};

/// Encodes messages, cuts them into frames, and limits their size.
pub(crate) struct Encoding<T> {
    pub(super) format: Arc<Format<T>>,
    /// Whether messages are stored, so that an accepted message outlives its producer.
    pub(super) is_durable: bool,
}

impl<T: 'static> Encoding<T> {
    /// Messages must fit into a frame of the lane if they are not cut.
    pub(super) fn new(
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
        remoting: &Arc<dyn Remoting>,
        queue: Option<&dyn DurableProducerQueue<Encoded>>,
    ) -> Self {
        let chunk_bytes = settings.producer.chunk_large_messages;
        let lane = remoting.maximum_message_size(LaneKind::Ordinary);
        let max = settings.producer.max_message_bytes;
        let in_one_piece = if chunk_bytes == 0 { lane.saturating_sub(LANE_MARGIN) } else { usize::MAX };
        let stored = queue.map_or(usize::MAX, DurableProducerQueue::max_message_bytes);
        let max_message_bytes = max.min(in_one_piece).min(stored);
        let format = Arc::new(Format { codec, chunk_bytes, max_message_bytes });
        Self { format, is_durable: queue.is_some() }
    }

    /// The frames of a stored message. A message that this codec cannot decode is sent all the same; its consumer's
    /// codec may be newer.
    pub(crate) fn frames_of(&self, encoded: Encoded) -> Frames<Payload<T>> {
        self.format.frames(self.format.read(encoded))
    }
}
