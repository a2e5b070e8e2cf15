//! A message that was sent, as its sender follows it.

use futures::FutureExt;
use tokio::sync::oneshot;

use crate::error::SentError;
use crate::ids::SeqNr;

/// A message that was sent. Dropping this forgets about it; it is delivered all the same.
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
    /// A message that was accepted under this number.
    pub(crate) fn accepted(seq_nr: SeqNr, confirmation: oneshot::Receiver<Result<SeqNr, SentError>>) -> Self {
        Self { number: Number::Known(Ok(seq_nr)), confirmation }
    }

    /// A message that is on its way to its controller, and to the queue.
    pub(crate) fn on_its_way(
        number: oneshot::Receiver<Result<SeqNr, SentError>>,
        confirmation: oneshot::Receiver<Result<SeqNr, SentError>>,
    ) -> Self {
        Self { number: Number::Awaited(number), confirmation }
    }

    /// Its number. Waits until the message is accepted, and stored if its producer is durable; what
    /// [`send`](crate::Producer::send) returns is. Cancel safe.
    ///
    /// # Errors
    /// [`SentError`]: the message was not accepted, or that cannot be known.
    pub async fn seq_nr(&mut self) -> Result<SeqNr, SentError> {
        let number = match &mut self.number {
            Number::Known(number) => return number.clone(),
            Number::Awaited(number) => number.await.unwrap_or(Err(SentError::Closed)),
        };
        self.number = Number::Known(number.clone());
        number
    }

    /// Whether it is known to be accepted.
    pub(crate) fn is_accepted(&mut self) -> bool {
        matches!(self.seq_nr().now_or_never(), Some(Ok(_)))
    }

    /// Waits until its consumer has confirmed it, and returns its number. A message that was sent while nothing else to its
    /// consumer was unconfirmed is confirmed as soon as it is processed; one behind others after
    /// [`ConsumerSettings::delayed_ack_timeout`](crate::ConsumerSettings::delayed_ack_timeout) at the latest, for its
    /// consumer confirms several at once. `send_confirmed` and `ask` always ask for it at once.
    ///
    /// # Errors
    /// [`SentError::Unconfirmed`] if the producer ends before, [`SentError::Unsendable`] if the message cannot follow its
    /// entity to another node; or as [`Sent::seq_nr`].
    pub async fn confirmed(mut self) -> Result<SeqNr, SentError> {
        let number = self.seq_nr().await?;
        self.confirmation.await.unwrap_or(Err(SentError::Unconfirmed(number)))
    }
}
