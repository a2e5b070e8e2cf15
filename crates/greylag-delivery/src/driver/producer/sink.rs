//! A sharding producer as a sink.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Sink};

use super::{Command, ShardingProducer};
use crate::driver::entrance::OnDrop;
use crate::driver::permits::Granted;
use crate::error::{ProducerError, SendError, SentError};
use crate::ids::SeqNr;

/// Longest wait of a sink that closes for all confirmations; nobody waits so long.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

type Permit<T> = (Granted, OnDrop<Command<T>>);

/// A sink of messages with their entities; made by [`ShardingProducer::into_sink`].
///
/// It is ready while it holds a permit. Flushed, everything is accepted, of a durable producer stored; closed, everything
/// is confirmed and the producer has ended. Source: delivery §6.
pub struct ShardingSink<T> {
    producer: ShardingProducer<T>,
    asking: Option<BoxFuture<'static, Result<Permit<T>, ProducerError>>>,
    permit: Option<Permit<T>>,
    accepting: VecDeque<BoxFuture<'static, Result<SeqNr, SentError>>>,
    closing: Option<BoxFuture<'static, ()>>,
}

impl<T: Send + Sync + 'static> ShardingSink<T> {
    pub(super) fn new(producer: ShardingProducer<T>) -> Self {
        Self { producer, asking: None, permit: None, accepting: VecDeque::new(), closing: None }
    }

    /// The producer of this sink.
    pub fn producer(&self) -> &ShardingProducer<T> {
        &self.producer
    }

    fn poll_accepted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError<T>>> {
        while let Some(next) = self.accepting.front_mut() {
            let accepted = ready!(next.poll_unpin(cx));
            self.accepting.pop_front();
            accepted.map_err(|error| SendError::of(error, None))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Send + Sync + 'static> Sink<(Arc<str>, T)> for ShardingSink<T> {
    type Error = SendError<T>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.permit.is_some() {
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        let asking = this.asking.get_or_insert_with(|| {
            let producer = this.producer.clone();
            async move { producer.permit().await }.boxed()
        });
        let answer = ready!(asking.poll_unpin(cx));
        this.asking = None;
        this.permit = Some(answer.map_err(|error| match error {
            ProducerError::Fenced { newer, .. } => SendError::Fenced { newer, message: None },
            ProducerError::Superseded => SendError::Superseded(None),
            _ => SendError::Closed(None),
        })?);
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, (entity, message): (Arc<str>, T)) -> Result<(), Self::Error> {
        let Some(permit) = self.permit.take() else { return Err(SendError::Unavailable(Some(message))) };
        let sent = super::ShardingRequestNext::new(&self.producer, permit).send(entity, message);
        let mut sent = sent?;
        // What is accepted already is not looked at again.
        while self.accepting.front_mut().is_some_and(|next| matches!(next.now_or_never(), Some(Ok(_)))) {
            self.accepting.pop_front();
        }
        self.accepting.push_back(async move { sent.seq_nr().await }.boxed());
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_accepted(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.poll_accepted(cx))?;
        let this = &mut *self;
        let closing = this.closing.get_or_insert_with(|| {
            let producer = this.producer.clone();
            let close = async move {
                producer.drain(FOR_EVER).await.ok();
                producer.close().await;
            };
            close.boxed()
        });
        closing.poll_unpin(cx).map(Ok)
    }
}

impl<T> fmt::Debug for ShardingSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingSink").field("producer", &self.producer).finish_non_exhaustive()
    }
}
