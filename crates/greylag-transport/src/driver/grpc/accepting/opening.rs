//! The body of a call; refuses a first message that is longer than a Hello.
//!
//! tonic has one size limit for all messages of a call, and collects a whole message before handing it over. A Hello is
//! short, so a longer first message is refused when its length is announced: unknown callers must not make this node
//! buffer as much as its lanes may carry. Source: cluster T36, §7.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Frame;
use tonic::Status;
use tonic::body::Body;

use crate::wire::MAX_HELLO;

/// Bytes before a message: a flag, and the message's length.
const HEAD: usize = 5;

/// A call's body whose first message has a limited length.
pub(crate) struct Opening {
    body: Body,
    head: [u8; HEAD],
    seen: usize,
}

impl Opening {
    pub(crate) fn of(body: Body) -> Body {
        Body::new(Self { body, head: [0; HEAD], seen: 0 })
    }

    /// Checks the length of the first message, whose head may come in pieces.
    fn check(&mut self, data: &[u8]) -> Result<(), Status> {
        let len = data.len().min(HEAD - self.seen);
        if len == 0 {
            return Ok(());
        }
        self.head[self.seen..self.seen + len].copy_from_slice(&data[..len]);
        self.seen += len;
        let [_, announced @ ..] = self.head;
        let announced = u32::from_be_bytes(announced) as usize;
        if self.seen == HEAD && announced > MAX_HELLO {
            let detail = format!("a first frame of {announced} bytes, where at most {MAX_HELLO} are allowed");
            return Err(Status::out_of_range(detail));
        }
        Ok(())
    }
}

impl hyper::body::Body for Opening {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(status) = self.check(data)
        {
            return Poll::Ready(Some(Err(status)));
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_first_message_counts_however_it_comes() {
        let check = |len: usize, piece: usize| {
            let mut opening = Opening { body: Body::empty(), head: [0; HEAD], seen: 0 };
            let mut bytes = vec![0];
            bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
            // Bytes of the message itself, which must not be taken for a length.
            bytes.extend([0xff; 20]);
            bytes.chunks(piece).try_for_each(|piece| opening.check(piece)).is_ok()
        };
        for piece in 1..8 {
            assert!(check(MAX_HELLO, piece) && !check(MAX_HELLO + 1, piece), "{piece}");
        }
    }
}
