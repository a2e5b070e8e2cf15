//! The calling side: dials a lane, says Hello, writes the lane's frames, and reads the answers.

mod connector;
mod delayed;
mod dial;
mod failure;
mod frame_writer;
mod outbound;
mod resolve;

pub(crate) use dial::start;
pub(crate) use resolve::Resolver;
