//! Messages in as many chunks as were drawn, each of which says whose it is and where it stands.

use greylag_delivery::machine::producer_link::Frames;

/// How many chunks the messages of a run have at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunks(pub(crate) u64);

impl Chunks {
    /// The frames of a message.
    pub(crate) fn cut(self, content: u64) -> Frames<u64> {
        match self.of(content) {
            1 => Frames::Whole(content << 8),
            count => Frames::Chunks((0..count).map(|index| content << 8 | index).collect()),
        }
    }

    /// How many frames a message is.
    pub(crate) fn of(self, content: u64) -> u64 {
        1 + content.wrapping_mul(0x9e37_79b9) % self.0
    }

    /// The message that was put together, unless it is not what was cut.
    pub(crate) fn joined(self, frames: &Frames<u64>) -> Result<u64, String> {
        let content = content_of(frames);
        if self.cut(content) == *frames { Ok(content) } else { Err(format!("message {content} came as {frames:?}")) }
    }
}

/// The message that these frames are of.
pub(crate) fn content_of(frames: &Frames<u64>) -> u64 {
    match frames {
        Frames::Whole(payload) => payload >> 8,
        Frames::Chunks(parts) => parts[0] >> 8,
    }
}
