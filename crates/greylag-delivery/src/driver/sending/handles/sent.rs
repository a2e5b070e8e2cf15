//! The handle by which a sender follows a message that was sent.

use futures::FutureExt;
use tokio::sync::oneshot;

use crate::error::SentError;
use crate::ids::SeqNr;

/// A message that was sent. The message is delivered even if this value is dropped.
#[derive(Debug)]
pub struct Sent {
    number: Number,
    confirmation: oneshot::Receiver<Result<SeqNr, SentError>>,
}

#[derive(Debug)]
enum Number {
    Known(Result<SeqNr, SentError>),
    Awaited(oneshot::Receiver<Result<SeqNr, SentError>>),
}

impl Sent {
    /// A message that was accepted with this number.
    pub(crate) fn accepted(seq_nr: SeqNr, confirmation: oneshot::Receiver<Result<SeqNr, SentError>>) -> Self {
        Self { number: Number::Known(Ok(seq_nr)), confirmation }
    }

    /// A message whose acceptance (and storing, if durable) is still to come.
    pub(crate) fn on_its_way(
        number: oneshot::Receiver<Result<SeqNr, SentError>>,
        confirmation: oneshot::Receiver<Result<SeqNr, SentError>>,
    ) -> Self {
        Self { number: Number::Awaited(number), confirmation }
    }

    /// The number of the message. Waits until the message is accepted, and stored if its producer is durable; after
    /// [`send`](crate::Producer::send) that is already the case. Cancel safe.
    ///
    /// # Errors
    /// [`SentError`]: the message was not accepted, or whether it was is unknown.
    pub async fn seq_nr(&mut self) -> Result<SeqNr, SentError> {
        let number = match &mut self.number {
            Number::Known(number) => return number.clone(),
            Number::Awaited(number) => number.await.unwrap_or(Err(SentError::Closed)),
        };
        self.number = Number::Known(number.clone());
        number
    }

    /// Whether the message is known to be accepted.
    pub(crate) fn is_accepted(&mut self) -> bool {
        matches!(self.seq_nr().now_or_never(), Some(Ok(_)))
    }

    /// Waits until the consumer has confirmed the message, and returns its number. If no other message to its consumer
    /// was unconfirmed when the message was sent, the confirmation comes as soon as it is processed; otherwise after
    /// [`ConsumerSettings::delayed_ack_timeout`](crate::ConsumerSettings::delayed_ack_timeout) at the latest, since the
    /// consumer confirms several messages at once. `send_confirmed` and `ask` always request an immediate confirmation.
    ///
    /// # Errors
    /// [`SentError::Unconfirmed`] if the producer ends before, [`SentError::Unsendable`] if the message cannot be sent
    /// to its entity's new node; or as [`Sent::seq_nr`].
    pub async fn confirmed(mut self) -> Result<SeqNr, SentError> {
        let number = self.seq_nr().await?;
        self.confirmation.await.unwrap_or(Err(SentError::Unconfirmed(number)))
    }

    /// Waits until the message is stored if its producer `is_durable`, and otherwise until it is confirmed.
    pub(super) async fn stored_or_confirmed(mut self, is_durable: bool) -> Result<SeqNr, SentError> {
        if is_durable { self.seq_nr().await } else { self.confirmed().await }
    }
}
