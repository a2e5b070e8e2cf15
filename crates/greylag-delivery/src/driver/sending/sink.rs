//! A producer as a sink: ready when the consumer has room, flushed when everything is stored or on its way, closed when all
//! of it is confirmed.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use futures::Sink;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::{Grant, Sending};
use crate::driver::sent::Sent;
use crate::error::{ProducerError, SendError};

/// Made by `into_sink` of a producer. See [`Producer::into_sink`](crate::Producer::into_sink).
pub struct ProducerSink<T: Send + Sync + 'static> {
    sending: Sending<T>,
    room: Room,
    /// Messages whose acceptance was not seen yet, in order.
    unflushed: VecDeque<Sent>,
    closing: Option<BoxFuture<'static, bool>>,
}

/// Room for the next message.
enum Room {
    Unasked,
    Asked(u64, oneshot::Receiver<Result<Grant, ProducerError>>),
    Held(u64),
}

impl<T: Send + Sync + 'static> ProducerSink<T> {
    pub(crate) fn new(sending: Sending<T>) -> Self {
        Self { sending, room: Room::Unasked, unflushed: VecDeque::new(), closing: None }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        loop {
            match &mut self.room {
                Room::Unasked => {
                    let (ticket, grant) = self.sending.reserve();
                    self.room = Room::Asked(ticket, grant);
                }
                Room::Asked(ticket, grant) => {
                    let ticket = *ticket;
                    let granted = ready!(Pin::new(grant).poll(cx));
                    self.room = Room::Unasked;
                    match granted {
                        Ok(Ok(_)) => self.room = Room::Held(ticket),
                        Ok(Err(ProducerError::Superseded)) => return Poll::Ready(Err(SendError::Superseded(None))),
                        Ok(Err(ProducerError::Fenced { newer, .. })) => {
                            return Poll::Ready(Err(SendError::Fenced { newer, message: None }));
                        }
                        _ => return Poll::Ready(Err(SendError::Closed(None))),
                    }
                }
                Room::Held(_) => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_accepted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        while let Some(sent) = self.unflushed.front_mut() {
            let number = ready!(pin!(sent.seq_nr()).poll(cx));
            self.unflushed.pop_front();
            if let Err(error) = number {
                return Poll::Ready(Err(error.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn give_room_back(&mut self) {
        match std::mem::replace(&mut self.room, Room::Unasked) {
            Room::Unasked => {}
            Room::Asked(ticket, _) | Room::Held(ticket) => self.sending.give_back(ticket),
        }
    }
}

impl<T: Send + Sync + 'static> Sink<T> for ProducerSink<T> {
    type Error = SendError<T>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_room(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: T) -> Result<(), Self::Error> {
        let Room::Held(ticket) = self.room else { return Err(SendError::Unavailable(Some(message))) };
        let message = self.sending.encode(message, false)?;
        self.room = Room::Unasked;
        let sent = self.sending.redeem(ticket, message);
        self.unflushed.push_back(sent);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_accepted(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.poll_accepted(cx))?;
        self.give_room_back();
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
        let failure = self.sending.shared.failure();
        Poll::Ready(match failure.map(ProducerError::from) {
            _ if all_confirmed => Ok(()),
            Some(ProducerError::Fenced { newer, .. }) => Err(SendError::Fenced { newer, message: None }),
            _ => Err(SendError::Closed(None)),
        })
    }
}

impl<T: Send + Sync + 'static> Drop for ProducerSink<T> {
    fn drop(&mut self) {
        self.give_room_back();
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for ProducerSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerSink").field("unflushed", &self.unflushed.len()).finish_non_exhaustive()
    }
}
