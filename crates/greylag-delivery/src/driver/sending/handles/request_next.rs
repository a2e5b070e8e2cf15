//! Reserves room: requests for permits, and the permit of a producer without entities.
//!
//! Source: delivery P11, P12.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::command_sender::OnDrop;
use super::handle::Sending;
use super::permit::Permit;
use super::sent::Sent;
use crate::driver::sending::command::{Address, Command, Granted};
use crate::error::{ProducerError, SendError};
use crate::ids::SeqNr;

/// A request for a permit; dropping it withdraws the request.
pub(super) struct Asking<T, A: Address> {
    sending: Sending<T, A>,
    answer: oneshot::Receiver<Granted<A>>,
    release: Option<OnDrop<Command<T, A>>>,
}

impl<T: Send + Sync + 'static, A: Address> Sending<T, A> {
    /// Requests a permit; the returned future resolves to it.
    pub(super) fn ask_for_room(&self) -> Result<Asking<T, A>, ProducerError> {
        let (answer, release) = self.reserve()?;
        Ok(Asking { sending: self.clone(), answer, release: Some(release) })
    }

    pub(crate) async fn permit(&self) -> Result<Permit<T, A>, ProducerError> {
        self.ask_for_room()?.await
    }
}

impl<T: Send + Sync + 'static, A: Address> Future for Asking<T, A> {
    type Output = Result<Permit<T, A>, ProducerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let granted = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(match (granted, self.release.take()) {
            (Ok(granted), Some(release)) => Ok(Permit { granted, release }),
            _ => Err(self.sending.no_permit()),
        })
    }
}

/// A permit: room at the consumer, reserved for one message. If dropped unused, the next sender gets the room.
///
/// Several permits may be held at a time. Source: delivery P11.
pub struct RequestNext<'a, T> {
    sending: &'a Sending<T, ()>,
    permit: Permit<T, ()>,
}

impl<'a, T: Send + Sync + 'static> RequestNext<'a, T> {
    pub(crate) fn new(sending: &'a Sending<T, ()>, permit: Permit<T, ()>) -> Self {
        Self { sending, permit }
    }

    /// The number that the next message gets, unless another sender comes first.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.permit.granted.current_seq_nr
    }

    /// The highest confirmed number when the permit was granted.
    pub fn confirmed_seq_nr(&self) -> SeqNr {
        self.permit.granted.confirmed_seq_nr
    }

    /// Sends a message, without waiting. From then on the message is delivered, unless its producer was superseded or
    /// closed, or its store fails; [`Sent`] has the outcome.
    ///
    /// # Errors
    /// [`SendError`] with the message; nothing was sent, and the next sender gets the room.
    pub fn send(self, message: T) -> Result<Sent, SendError<T>> {
        let outgoing = self.sending.prepare((), message, false)?;
        self.sending.redeem(self.permit, outgoing)
    }

    /// Sends a message, and waits as [`Producer::ask`](crate::Producer::ask) does. The message is sent even if the
    /// returned future is never polled.
    ///
    /// # Errors
    /// As [`Producer::ask`](crate::Producer::ask).
    pub fn ask(self, message: T) -> impl Future<Output = Result<SeqNr, SendError<T>>> + Send + use<T> {
        self.sending.ask_with_permit(self.permit, (), message)
    }
}

impl<T> fmt::Debug for RequestNext<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestNext")
            .field("current_seq_nr", &self.permit.granted.current_seq_nr)
            .field("confirmed_seq_nr", &self.permit.granted.confirmed_seq_nr)
            .finish_non_exhaustive()
    }
}
