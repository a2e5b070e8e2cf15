//! Contents of messages: a random number of chunks, each with message and position; or messages without bytes, which
//! are whole until they leave their node.

use greylag_delivery::Content;
use greylag_delivery::machine::portable::{Portable, UnsendableError};
use greylag_delivery::machine::producer_link::Frames;

/// Maximum number of chunks of a message in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks(pub(crate) u64);

impl Chunks {
    /// The frames of a message.
    pub(crate) fn cut(self, content: u64) -> Frames<u64> {
        match self.of(content) {
            1 => Frames::Whole(content << 8),
            count => Frames::Chunks((0..count).map(|index| content << 8 | index).collect()),
        }
    }

    /// Number of frames of a message.
    pub(crate) fn of(self, content: u64) -> u64 {
        1 + content.wrapping_mul(0x9e37_79b9) % self.0
    }

    /// The content of a joined message.
    ///
    /// # Errors
    /// The message differs from the one that was cut.
    pub(crate) fn joined(self, frames: &Frames<u64>) -> Result<u64, String> {
        let content = content_of(frames);
        if self.cut(content) == *frames { Ok(content) } else { Err(format!("message {content} came as {frames:?}")) }
    }
}

/// The content of the message to which the frames belong.
pub(crate) fn content_of(frames: &Frames<u64>) -> u64 {
    match frames {
        Frames::Whole(payload) => payload >> 8,
        Frames::Chunks(parts) => parts[0] >> 8,
    }
}

/// The payload of a frame to an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestPayload {
    /// A message with its bytes, or a chunk of one.
    Piece(u64),
    /// A message without bytes, and how to cut it when it is encoded.
    Unencoded(u64, Chunks),
}

impl TestPayload {
    /// The frames of a message with bytes.
    pub(crate) fn cut(content: u64, chunks: Chunks) -> Frames<Self> {
        match chunks.cut(content) {
            Frames::Whole(piece) => Frames::Whole(Self::Piece(piece)),
            Frames::Chunks(pieces) => Frames::Chunks(pieces.into_iter().map(Self::Piece).collect()),
        }
    }

    /// The content of a joined message.
    ///
    /// # Errors
    /// The message differs from the one that was sent.
    pub(crate) fn joined(frames: &Frames<Self>, chunks: Chunks) -> Result<u64, String> {
        let content = Self::content(frames);
        let is_unencoded = *frames == Frames::Whole(Self::Unencoded(content, chunks));
        if is_unencoded || Self::cut(content, chunks) == *frames {
            return Ok(content);
        }
        Err(format!("message {content} came as {frames:?}"))
    }

    /// The content of the message to which the frames belong.
    pub(crate) fn content(frames: &Frames<Self>) -> u64 {
        let first = match frames {
            Frames::Whole(payload) => payload,
            Frames::Chunks(parts) => &parts[0],
        };
        match first {
            Self::Piece(piece) => piece >> 8,
            Self::Unencoded(content, _) => *content,
        }
    }
}

impl Content for TestPayload {
    fn size(&self) -> u64 {
        8
    }

    fn total_len(&self) -> Option<u64> {
        None
    }
}

impl Portable for TestPayload {
    fn is_portable(&self) -> bool {
        matches!(self, Self::Piece(_))
    }

    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        match frames {
            Frames::Whole(Self::Unencoded(content, chunks)) => Ok(Self::cut(content, chunks)),
            frames => Ok(frames),
        }
    }
}
