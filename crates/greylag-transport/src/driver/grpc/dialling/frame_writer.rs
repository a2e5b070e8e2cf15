//! Writes messages of a lane into frames, and keeps from frame to frame what saves work: the numbers of names, and the
//! memory.

use bytes::BytesMut;
use greylag_core::{DeadLetterReason, Uid};

use crate::driver::grpc::http2::FRAME_OVERHEAD;
use crate::endpoints::endpoint::Reply;
use crate::messages::envelope::Envelope;
use crate::wire::{self, NameWriter};

/// Largest buffer kept for the next frame: a stream may rest after a larger frame.
const KEPT_ROOM: usize = 64 * 1024;

/// The frame of one stream that is being written.
pub(super) struct FrameWriter {
    /// Numbers no name before the first frame: only then is it known how many names the reader keeps.
    names: NameWriter,
    /// Whether the first frame has begun.
    has_begun: bool,
    scratch: BytesMut,
    /// The messages written, in the memory of the frame before if tonic has copied and released that by now.
    frame: BytesMut,
    /// The room to reserve for a frame.
    frame_size: usize,
    max_message: usize,
    max_batch: usize,
}

/// The end of a frame before a message was written.
pub(super) struct FrameEnd {
    len: usize,
    names: usize,
}

impl FrameWriter {
    /// A writer of messages of at most `max_message` bytes, in frames that are full at `max_batch` bytes.
    pub(super) fn new(max_message: usize, max_batch: usize) -> Self {
        let (scratch, frame) = (BytesMut::new(), BytesMut::new());
        Self {
            names: NameWriter::default(),
            has_begun: false,
            scratch,
            frame,
            frame_size: 1024,
            max_message,
            max_batch,
        }
    }

    /// Begins a frame. `max_names` is asked with the first one.
    pub(super) fn begin(&mut self, max_names: impl FnOnce() -> usize) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.names = NameWriter::new(max_names());
        }
        self.frame.reserve(self.frame_size);
    }

    /// The present end of the frame.
    pub(super) fn mark(&self) -> FrameEnd {
        FrameEnd { len: self.frame.len(), names: self.names.mark() }
    }

    /// Writes an envelope; returns the size of its payload.
    pub(super) fn write_envelope(&mut self, envelope: &Envelope) -> Result<usize, DeadLetterReason> {
        let written = wire::write_envelope(envelope, &mut self.names, &mut self.scratch, &mut self.frame);
        written.map_err(|_| DeadLetterReason::SerializeFailed)
    }

    /// Writes an answer; returns the size of its payload.
    pub(super) fn write_reply(&mut self, to: Uid, ask_id: u64, reply: &Reply) -> usize {
        wire::write_reply(to, ask_id, reply, &mut self.names, &mut self.frame)
    }

    /// Whether the message written since the mark, with a payload of this size, is larger than messages may be. Names
    /// are no part of a message, but they too must fit into the frame.
    pub(super) fn is_too_large(&self, payload: usize, since: &FrameEnd) -> bool {
        payload > self.max_message || self.frame.len() - since.len > self.max_message + FRAME_OVERHEAD / 2
    }

    /// Whether the frame holds more than one frame should.
    pub(super) fn is_over_full(&self) -> bool {
        self.frame.len() > self.max_batch
    }

    /// Takes back the message written since the mark: a message that does not leave must not number any names.
    pub(super) fn undo(&mut self, to: &FrameEnd) {
        self.frame.truncate(to.len);
        self.names.forget_since(to.names);
    }

    /// Ends the frame; `None` if no message is in it.
    pub(super) fn end(&mut self) -> Option<BytesMut> {
        let written = self.frame.split();
        if written.len() > KEPT_ROOM {
            self.frame = BytesMut::new();
        }
        if written.is_empty() {
            return None;
        }
        // Reserve for the next frame by this one's size: they are mostly alike.
        self.frame_size = (written.len() + written.len() / 8).max(1024);
        Some(written)
    }
}

#[cfg(test)]
mod tests {
    use greylag_core::CodecId;

    use super::*;
    use crate::messages::envelope::Recipient;

    fn message(path: &str, bytes: usize) -> Envelope {
        Envelope::new(Recipient::new(path), CodecId::JSON, "m", vec![0; bytes]).to_uid(Uid::new(9).unwrap())
    }

    /// Cluster T37: a message that is taken back leaves no byte and no number of a name.
    #[test]
    fn undo_leaves_nothing_of_a_message() {
        let frame = |paths: &[&str]| {
            let mut writer = FrameWriter::new(1000, 1000);
            writer.begin(|| 8);
            assert_eq!(writer.write_envelope(&message("first", 10)), Ok(10));
            for path in paths {
                let mark = writer.mark();
                writer.write_envelope(&message(path, 10)).unwrap();
                writer.undo(&mark);
            }
            writer.write_envelope(&message("last", 10)).unwrap();
            writer.end().unwrap()
        };
        assert_eq!(frame(&["second", "third"]), frame(&[]));
    }

    #[test]
    fn a_frame_without_a_message_is_none_and_a_large_frame_leaves_no_memory() {
        let mut writer = FrameWriter::new(KEPT_ROOM, KEPT_ROOM);
        writer.begin(|| 0);
        assert_eq!(writer.end(), None);
        let mark = writer.mark();
        let payload = writer.write_envelope(&message("a", KEPT_ROOM)).unwrap();
        assert!(writer.is_over_full() && !writer.is_too_large(payload, &mark));
        assert!(writer.is_too_large(KEPT_ROOM + 1, &mark));
        assert!(writer.end().unwrap().len() > KEPT_ROOM);
        assert_eq!(writer.frame.capacity(), 0);
    }
}
