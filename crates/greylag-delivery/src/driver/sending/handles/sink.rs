//! A producer as a sink: ready when there is room, flushed when all messages are accepted (and stored, if durable),
//! closed when all messages are confirmed.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use futures::Sink;
use futures::future::BoxFuture;

use super::handle::Sending;
use super::permit::Permit;
use super::request_next::Asking;
use super::sent::Sent;
use crate::driver::sending::command::Address;
use crate::error::{ProducerError, SendError};

/// The sink of a producer of any kind.
pub(crate) struct SinkState<T: Send + Sync + 'static, A: Address> {
    sending: Sending<T, A>,
    room: Room<T, A>,
    /// Messages not yet known to be accepted, in order.
    unflushed: VecDeque<Sent>,
    closing: Option<BoxFuture<'static, bool>>,
}

/// The permit for the next message.
enum Room<T, A: Address> {
    Unasked,
    Asked(Asking<T, A>),
    Held(Permit<T, A>),
}

impl<T: Send + Sync + 'static, A: Address> SinkState<T, A> {
    pub(crate) fn new(sending: Sending<T, A>) -> Self {
        Self { sending, room: Room::Unasked, unflushed: VecDeque::new(), closing: None }
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        loop {
            let next = match &mut self.room {
                Room::Unasked => self.sending.ask_for_room().map(Room::Asked),
                Room::Asked(asking) => ready!(Pin::new(asking).poll(cx)).map(Room::Held),
                Room::Held(_) => return Poll::Ready(Ok(())),
            };
            match next {
                Ok(room) => self.room = room,
                Err(error) => {
                    self.room = Room::Unasked;
                    return Poll::Ready(Err(no_room(error)));
                }
            }
        }
    }

    pub(crate) fn start_send(&mut self, to: A, message: T) -> Result<(), SendError<T>> {
        let Room::Held(permit) = std::mem::replace(&mut self.room, Room::Unasked) else {
            return Err(SendError::Unavailable(Some(message)));
        };
        let outgoing = match self.sending.prepare(to, message, false) {
            Ok(outgoing) => outgoing,
            Err(error) => {
                self.room = Room::Held(permit);
                return Err(error);
            }
        };
        let sent = self.sending.redeem(permit, outgoing)?;
        // Remove the messages known to be accepted; otherwise the list would grow with every send.
        while self.unflushed.front_mut().is_some_and(Sent::is_accepted) {
            self.unflushed.pop_front();
        }
        self.unflushed.push_back(sent);
        Ok(())
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        while let Some(sent) = self.unflushed.front_mut() {
            let number = ready!(pin!(sent.seq_nr()).poll(cx));
            self.unflushed.pop_front();
            if let Err(error) = number {
                return Poll::Ready(Err(SendError::of(error, None)));
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        ready!(self.poll_flush(cx))?;
        self.room = Room::Unasked;
        let sending = self.sending.clone();
        let closing = self.closing.get_or_insert_with(|| {
            Box::pin(async move {
                let all_confirmed = sending.drained().await;
                sending.close().await;
                all_confirmed
            })
        });
        let all_confirmed = ready!(closing.as_mut().poll(cx));
        self.closing = None;
        let error = self.sending.failure().unwrap_or(ProducerError::Closed);
        Poll::Ready(if all_confirmed { Ok(()) } else { Err(no_room(error)) })
    }

    pub(crate) fn unflushed(&self) -> usize {
        self.unflushed.len()
    }
}

/// The error of a sink that can send no more.
fn no_room<T>(error: ProducerError) -> SendError<T> {
    match error {
        ProducerError::Fenced { newer, .. } => SendError::Fenced { newer, message: None },
        ProducerError::Superseded => SendError::Superseded(None),
        _ => SendError::Closed(None),
    }
}

/// Made by `into_sink` of a producer. See [`Producer::into_sink`](crate::Producer::into_sink).
pub struct ProducerSink<T: Send + Sync + 'static>(SinkState<T, ()>);

impl<T: Send + Sync + 'static> ProducerSink<T> {
    pub(crate) fn new(sending: Sending<T, ()>) -> Self {
        Self(SinkState::new(sending))
    }
}

impl<T: Send + Sync + 'static> Sink<T> for ProducerSink<T> {
    type Error = SendError<T>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: T) -> Result<(), Self::Error> {
        self.0.start_send((), message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_close(cx)
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for ProducerSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerSink").field("unflushed", &self.0.unflushed()).finish_non_exhaustive()
    }
}
