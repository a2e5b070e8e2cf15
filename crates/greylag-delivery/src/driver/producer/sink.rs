//! A sharding producer as a sink.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Sink;

use super::ShardingProducer;
use super::entity::Entity;
use crate::driver::sending::SinkState;
use crate::error::SendError;

/// A sink of messages with their entities; made by [`ShardingProducer::into_sink`].
///
/// Ready while the sink holds a permit. Flushed when all messages are accepted, and stored if the producer is durable;
/// closed when all messages are confirmed and the producer has ended. Source: delivery §6.
pub struct ShardingSink<T: Send + Sync + 'static> {
    producer: ShardingProducer<T>,
    state: SinkState<T, Entity>,
}

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// A sink of messages with their entities. Flushed when all messages are accepted, and stored if the producer is
    /// durable; closed when all messages are confirmed and the producer has ended.
    pub fn into_sink(self) -> ShardingSink<T> {
        let state = SinkState::new(self.sending().clone());
        ShardingSink { producer: self, state }
    }
}

impl<T: Send + Sync + 'static> ShardingSink<T> {
    /// The producer of this sink.
    pub fn producer(&self) -> &ShardingProducer<T> {
        &self.producer
    }
}

impl<T: Send + Sync + 'static> Sink<(Arc<str>, T)> for ShardingSink<T> {
    type Error = SendError<T>;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.state.poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, (entity, message): (Arc<str>, T)) -> Result<(), Self::Error> {
        let (entity, message) = self.producer.sender.address(entity, message)?;
        self.state.start_send(entity, message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.state.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.state.poll_close(cx)
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for ShardingSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingSink").field("producer", &self.producer).finish_non_exhaustive()
    }
}
