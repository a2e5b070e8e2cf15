//! The tonic codec of frames: passes bytes through, since frames are written and read elsewhere.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::wire;

/// A frame on its way into a stream.
#[derive(Debug)]
pub(crate) enum OutFrame {
    /// A complete frame.
    Ready(Bytes),
    /// The content of a batch, which lacks only its head.
    Batch(BytesMut),
}

/// Passes the bytes of frames through.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = OutFrame;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for FrameCodec {
    type Item = OutFrame;
    type Error = Status;

    fn encode(&mut self, frame: OutFrame, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match frame {
            OutFrame::Ready(bytes) => out.put(bytes),
            OutFrame::Batch(batch) => {
                out.reserve(batch.len() + 11);
                wire::write_batch_head(batch.len(), out);
                out.put(batch);
            }
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(8 * 1024, 64 * 1024)
    }
}

impl Decoder for FrameCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, frame: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(frame.copy_to_bytes(frame.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(64 * 1024, 64 * 1024)
    }
}
