//! Frames of one link travel together: those of one run of the producer's task, up to a number and a size.
//!
//! Order matters within a link alone, so a link's frames need not lie next to each other. Source: delivery §12.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::message::{BatchHeader, SequencedBatch, SequencedMessage};
use crate::payload::Payload;

/// Frames of one batch.
const MAX_FRAMES: usize = 256;
/// Bytes of the payloads of one batch, unless its only frame has more.
const MAX_BYTES: usize = 64 << 10;

/// A batch with the entity that it goes to.
pub(super) type Addressed<T> = (Arc<str>, SequencedBatch<Payload<T>>);

/// See the module's documentation.
pub(super) struct Batches<T> {
    /// By the instance of the link: which batch is open for it.
    open: BTreeMap<u64, Open<T>>,
}

struct Open<T> {
    entity: Arc<str>,
    batch: SequencedBatch<Payload<T>>,
    bytes: usize,
}

impl<T: 'static> Batches<T> {
    pub(super) fn new() -> Self {
        Self { open: BTreeMap::new() }
    }

    /// Takes a frame. The batch that has no room for it, or another header, comes back to be sent first.
    pub(super) fn add(
        &mut self,
        entity: Arc<str>,
        header: BatchHeader,
        message: SequencedMessage<Payload<T>>,
    ) -> Option<Addressed<T>> {
        let (instance, size) = (header.controller.instance, message.frame.payload.size());
        if let Some(open) = self.open.get_mut(&instance) {
            let has_room = open.batch.frames.len() < MAX_FRAMES && open.bytes + size <= MAX_BYTES;
            if has_room && open.batch.header == header {
                open.bytes += size;
                open.batch.frames.push(message);
                return None;
            }
        }
        let batch = SequencedBatch { header, frames: vec![message] };
        let full = self.open.insert(instance, Open { entity, batch, bytes: size });
        full.map(|full| (full.entity, full.batch))
    }

    /// The open batch of one link.
    pub(super) fn take(&mut self, instance: u64) -> Option<Addressed<T>> {
        self.open.remove(&instance).map(|open| (open.entity, open.batch))
    }

    /// The open batches of all links.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Addressed<T>> + use<T> {
        std::mem::take(&mut self.open).into_values().map(|open| (open.entity, open.batch))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use greylag_codec::json;
    use greylag_core::CodecId;

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

    fn numbers(batch: &Addressed<i64>) -> Vec<u64> {
        batch.1.frames.iter().map(|message| message.frame.seq_nr).collect()
    }

    /// Of delivery 88: frames are merged up to 64 KiB and 256 of them, those of several links beside each other.
    #[test]
    fn scenario_88_frames_of_a_link_travel_together() {
        let mut batches = Batches::new();
        let mut sent = Vec::new();
        for seq_nr in 1..=50 {
            for instance in [1, 2] {
                sent.extend(batches.add("e".into(), header(instance, 1), frame(seq_nr, 6 << 10)));
            }
        }
        sent.extend(batches.take_all());
        assert_eq!(sent.len(), 2 * 5, "ten frames of 6 KiB are the most that 64 KiB take");
        assert!(sent.iter().all(|batch| numbers(batch).len() == 10));

        for seq_nr in 1..=256 {
            assert!(batches.add("e".into(), header(1, 1), frame(seq_nr, 1)).is_none());
        }
        let full = batches.add("e".into(), header(1, 1), frame(257, 1)).unwrap();
        assert_eq!(numbers(&full), (1..=256).collect::<Vec<_>>());
        // A frame larger than the limit goes alone; another header begins another batch.
        assert_eq!(numbers(&batches.add("e".into(), header(1, 1), frame(258, 100 << 10)).unwrap()), [257]);
        assert_eq!(numbers(&batches.add("e".into(), header(1, 2), frame(259, 1)).unwrap()), [258]);
        assert_eq!(numbers(&batches.take(1).unwrap()), [259]);
        assert!(batches.take(1).is_none());
    }
}
