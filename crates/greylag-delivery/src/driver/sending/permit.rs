//! Room for one message, taken before there is one.

use std::fmt;
use std::future::Future;

use super::{Grant, Sending};
use crate::driver::sent::Sent;
use crate::error::{SendError, SentError};
use crate::ids::SeqNr;

/// A permit: the consumer has room for one message, and it is kept for this one. Dropped unused, it goes to the next sender.
///
/// Several may be had at the same time. Source: delivery P11.
pub struct RequestNext<'a, T: Send + Sync + 'static> {
    sending: &'a Sending<T>,
    /// `None` once it is used.
    ticket: Option<u64>,
    grant: Grant,
}

impl<'a, T: Send + Sync + 'static> RequestNext<'a, T> {
    pub(super) fn new(sending: &'a Sending<T>, ticket: u64, grant: Grant) -> Self {
        Self { sending, ticket: Some(ticket), grant }
    }

    /// The number that the next message gets.
    pub fn current_seq_nr(&self) -> SeqNr {
        self.grant.current_seq_nr
    }

    /// The highest number that was confirmed when the permit was given.
    pub fn confirmed_seq_nr(&self) -> SeqNr {
        self.grant.confirmed_seq_nr
    }

    /// Sends a message. It is delivered from now on, unless its producer was superseded or closed, or its store fails;
    /// [`Sent`] tells.
    ///
    /// # Errors
    /// [`SendError::Encode`] and [`SendError::MessageTooLarge`]; nothing was sent, and the permit goes to the next sender.
    pub fn send(self, message: T) -> Result<Sent, SendError<T>> {
        self.send_with(message, false)
    }

    /// Sends a message, and waits as [`Producer::ask`](crate::Producer::ask) does: the returned future need not be polled
    /// for it to be sent.
    ///
    /// # Errors
    /// As [`RequestNext::send`].
    pub fn ask(
        self,
        message: T,
    ) -> Result<impl Future<Output = Result<SeqNr, SentError>> + Send + 'static, SendError<T>> {
        let is_durable = self.sending.encoding.is_durable;
        let mut sent = self.send_with(message, true)?;
        Ok(async move { if is_durable { sent.seq_nr().await } else { sent.confirmed().await } })
    }

    fn send_with(mut self, message: T, ack: bool) -> Result<Sent, SendError<T>> {
        let message = self.sending.encode(message, ack)?;
        match self.ticket.take() {
            Some(ticket) => Ok(self.sending.redeem(ticket, message)),
            None => Err(SendError::Closed(None)),
        }
    }
}

impl<T: Send + Sync + 'static> Drop for RequestNext<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.sending.give_back(ticket);
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for RequestNext<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestNext").field("grant", &self.grant).finish_non_exhaustive()
    }
}
