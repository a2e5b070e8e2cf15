//! Frames and envelopes as protobuf, and back.
//!
//! Rare frames go through the generated types. Batches are written and read by hand, because the transport spends most
//! of its time on them: written straight into the frame's buffer, read as slices of it, with repeated paths shared.
//! Both ways conform byte for byte to `proto/transport.proto`; the tests compare them with the generated code. Readers
//! never panic and never allocate more than the frame has bytes. Source: cluster T8, T35, T36.

mod codes;
mod compression;
mod envelopes;
mod frame;
mod handshake;
mod limits;
mod malformed;
mod names;
mod nodes;
mod reliable;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use compression::compress;
pub(crate) use envelopes::{
    Arrived, ArrivedContent, BatchPosition, BatchReader, REPLY_PATH, write_envelope, write_reply,
};
pub(crate) use frame::{Frame, read_frame, read_frame_within, write_batch_head, write_frame};
pub(crate) use limits::{MAX_CONTROL_BATCH, MAX_HELLO};
pub(crate) use malformed::Malformed;
pub(crate) use names::{NameWriter, Names};
pub(crate) use reliable::{write_reliable, write_skip};
