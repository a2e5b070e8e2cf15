//! Groups frames of one link into batches: frames of one run of the producer's task, up to a number and a size.
//!
//! Order matters only within a link, so frames of several links may be interleaved. Source: delivery §12; scenario 88.

use std::collections::BTreeMap;

use greylag_transport::{LaneKind, Remoting};

use crate::delivery::payload::Payload;
use crate::message::{BatchHeader, SequencedBatch, SequencedMessage};
use crate::settings::LANE_MARGIN;

/// Maximum number of frames in a batch.
const MAX_FRAMES: usize = 256;
/// Maximum bytes of payload in a batch; a single larger frame travels alone.
const MAX_BYTES: usize = 64 << 10;

/// A batch with its target: a consumer controller, or an entity.
pub(crate) struct Addressed<A, T> {
    pub(crate) to: A,
    pub(crate) batch: SequencedBatch<Payload<T>>,
    /// Bytes of the batch's payloads.
    pub(crate) bytes: usize,
}

/// See the module's documentation.
pub(crate) struct Batches<A, T> {
    max_bytes: usize,
    /// The open batch of each link, by the link's instance.
    open: BTreeMap<u64, Addressed<A, T>>,
}

impl<A: PartialEq, T: 'static> Batches<A, T> {
    /// Batches that fit into a frame of the lane.
    pub(crate) fn new(remoting: &dyn Remoting) -> Self {
        let lane = remoting.maximum_message_size(LaneKind::Ordinary);
        Self { max_bytes: lane.saturating_sub(LANE_MARGIN).min(MAX_BYTES), open: BTreeMap::new() }
    }

    /// Adds a frame. If the open batch of its link has no room, another header or another target, returns that batch,
    /// which must be sent first.
    pub(crate) fn add(
        &mut self,
        to: A,
        header: BatchHeader,
        message: SequencedMessage<Payload<T>>,
    ) -> Option<Addressed<A, T>> {
        let (instance, bytes) = (header.controller.instance, message.frame.payload.size());
        if let Some(open) = self.open.get_mut(&instance) {
            let has_room = open.batch.frames.len() < MAX_FRAMES && open.bytes + bytes <= self.max_bytes;
            if has_room && open.to == to && open.batch.header == header {
                open.bytes += bytes;
                open.batch.frames.push(message);
                return None;
            }
        }
        let batch = SequencedBatch { header, frames: vec![message] };
        self.open.insert(instance, Addressed { to, batch, bytes })
    }

    /// The open batch of one link.
    pub(crate) fn take(&mut self, instance: u64) -> Option<Addressed<A, T>> {
        self.open.remove(&instance)
    }

    /// The open batches of all links.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Addressed<A, T>> + use<A, T> {
        std::mem::take(&mut self.open).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use greylag_codec::json;
    use greylag_core::{CodecId, Registry};
    use greylag_transport::memory::MemoryNetwork;

    use super::*;
    use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
    use crate::message::Frame;

    fn header(instance: u64, lowest: u64) -> BatchHeader {
        BatchHeader {
            producer_id: ProducerId::new("p").unwrap(),
            stream_id: StreamId(1),
            epoch: Epoch(1),
            controller: ControllerRef { node: "n:1#1".parse().unwrap(), path: "p".into(), instance },
            ordered: true,
            lowest,
        }
    }

    fn frame(seq_nr: u64, size: usize) -> SequencedMessage<Payload<i64>> {
        let payload = Payload::encode(1, &json::<i64>("n")).unwrap();
        let payload = payload.with_encoded(CodecId::JSON, "n", Bytes::from(vec![0; size]));
        let total = SeqNr(seq_nr);
        let frame = Frame { seq_nr, total, ack: false, first_chunk: true, last_chunk: true, payload };
        SequencedMessage { frame, first: false }
    }

    /// Batches for a lane with messages of at most so many bytes; 0 for any size.
    fn batches(max_lane_bytes: usize) -> Batches<&'static str, i64> {
        let network = MemoryNetwork::new();
        network.limit_ordinary_lanes(max_lane_bytes);
        Batches::new(&*network.node("n:1#1".parse().unwrap(), Arc::new(Registry::new())))
    }

    fn numbers(batch: &Addressed<&str, i64>) -> Vec<u64> {
        batch.batch.frames.iter().map(|message| message.frame.seq_nr).collect()
    }

    /// Of delivery 88: batches have at most 64 KiB and 256 frames, with open batches for several links at once.
    #[test]
    fn scenario_88_frames_of_a_link_travel_together() {
        let mut batches = batches(0);
        let mut sent = Vec::new();
        for seq_nr in 1..=50 {
            for instance in [1, 2] {
                sent.extend(batches.add("e", header(instance, 1), frame(seq_nr, 6 << 10)));
            }
        }
        sent.extend(batches.take_all());
        assert_eq!(sent.len(), 2 * 5, "ten frames of 6 KiB are the most that 64 KiB take");
        assert!(sent.iter().all(|batch| numbers(batch).len() == 10));

        for seq_nr in 1..=256 {
            assert!(batches.add("e", header(1, 1), frame(seq_nr, 1)).is_none());
        }
        let full = batches.add("e", header(1, 1), frame(257, 1)).unwrap();
        assert_eq!(numbers(&full), (1..=256).collect::<Vec<_>>());
        // A frame larger than the limit goes alone; another header begins another batch.
        assert_eq!(numbers(&batches.add("e", header(1, 1), frame(258, 100 << 10)).unwrap()), [257]);
        assert_eq!(numbers(&batches.add("e", header(1, 2), frame(259, 1)).unwrap()), [258]);
        assert_eq!(numbers(&batches.take(1).unwrap()), [259]);
        assert!(batches.take(1).is_none());
        // A frame to another consumer begins another batch, too.
        assert!(batches.add("e", header(1, 2), frame(260, 1)).is_none());
        assert_eq!(numbers(&batches.add("f", header(1, 2), frame(261, 1)).unwrap()), [260]);
        assert_eq!(batches.take(1).unwrap().to, "f");
    }

    #[test]
    fn a_batch_fits_into_the_lane() {
        let mut batches = batches(LANE_MARGIN + (10 << 10));
        assert!(batches.add("e", header(1, 1), frame(1, 4 << 10)).is_none());
        assert!(batches.add("e", header(1, 1), frame(2, 6 << 10)).is_none());
        assert_eq!(numbers(&batches.add("e", header(1, 1), frame(3, 1)).unwrap()), [1, 2]);
    }
}
