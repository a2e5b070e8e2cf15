//! The deliveries of a consumer, as a stream.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::sync::mpsc;

use super::consumer_task::Command;
use crate::delivery::Delivery;
use crate::delivery::batch::DeliveryBatch;

/// The deliveries of a consumer, in order. The stream ends when its controller has stopped, or when another consumer
/// was started in its place.
///
/// A stream that is not polled holds its producer back. Dropping the stream stops its controller: confirmations are
/// sent to the producer, and unconfirmed messages are delivered to the next consumer registered there.
pub struct Deliveries<T> {
    from_task: mpsc::UnboundedReceiver<Delivery<T>>,
    /// Deliveries received for a batch, but not handed out yet.
    gathered: VecDeque<Delivery<T>>,
    commands: mpsc::UnboundedSender<Command<T>>,
    consumer: u64,
}

impl<T> Deliveries<T> {
    pub(super) fn new(
        from_task: mpsc::UnboundedReceiver<Delivery<T>>,
        commands: mpsc::UnboundedSender<Command<T>>,
        consumer: u64,
    ) -> Self {
        Self { from_task, gathered: VecDeque::new(), commands, consumer }
    }

    /// The next delivery; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Delivery<T>> {
        match self.gathered.pop_front() {
            Some(delivery) => Some(delivery),
            None => self.from_task.recv().await,
        }
    }

    /// Waits for the next delivery, and then up to `wait` for more: at most `max` deliveries, all of one producer.
    /// `None` at the end. A batch has at most
    /// [`max_outstanding_deliveries`](crate::ConsumerSettings::max_outstanding_deliveries) deliveries. Cancel safe.
    pub async fn next_batch(&mut self, max: usize, wait: Duration) -> Option<DeliveryBatch<T>> {
        if self.gathered.is_empty() {
            let first = self.from_task.recv().await?;
            self.gathered.push_back(first);
        }
        let timer = tokio::time::sleep(wait);
        let mut timer = std::pin::pin!(timer);
        while self.batch_len(max) == self.gathered.len() && self.gathered.len() < max {
            tokio::select! {
                biased;
                delivery = self.from_task.recv() => match delivery {
                    Some(delivery) => self.gathered.push_back(delivery),
                    None => break,
                },
                () = timer.as_mut() => break,
            }
        }
        let len = self.batch_len(max);
        Some(DeliveryBatch::new(self.gathered.drain(..len)))
    }

    /// Number of gathered deliveries, from the first on, that are of the first one's producer; at most `max`.
    fn batch_len(&self, max: usize) -> usize {
        let Some(first) = self.gathered.front() else { return 0 };
        let of_first = |delivery: &&Delivery<T>| {
            let (one, other) = (first.id(), delivery.id());
            (one.stream_id, &one.producer_id) == (other.stream_id, &other.producer_id)
        };
        self.gathered.iter().take(max.max(1)).take_while(of_first).count()
    }
}

impl<T> Stream for Deliveries<T> {
    type Item = Delivery<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(delivery) = self.gathered.pop_front() {
            return Poll::Ready(Some(delivery));
        }
        Poll::Ready(ready!(self.from_task.poll_recv(cx)))
    }
}

impl<T> Drop for Deliveries<T> {
    fn drop(&mut self) {
        self.commands.send(Command::ConsumerEnded(self.consumer)).ok();
    }
}

impl<T> fmt::Debug for Deliveries<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries").field("gathered", &self.gathered.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::delivery::Outcomes;
    use crate::ids::{MessageId, ProducerId, SeqNr, StreamId};
    use crate::machine::consumer_link::DeliveryKey;
    use crate::machine::sharding_consumer::DeliveryHandle;

    fn delivery(stream: u128, number: u64) -> Delivery<u64> {
        let producer_id = ProducerId::new("p").unwrap();
        let id = MessageId { producer_id, stream_id: StreamId(stream), seq_nr: SeqNr(number) };
        let handle = DeliveryHandle { id, link: 1, key: DeliveryKey { number, attempt: 1 } };
        Delivery::new(Arc::new(number), handle, Arc::new(Outcomes::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_ends_at_its_size_at_another_producer_and_with_its_time() {
        let ((to, from_task), (commands, _task)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let mut deliveries = Deliveries::new(from_task, commands, 1);
        for (stream, number) in [(1, 1), (1, 2), (1, 3), (2, 4), (1, 5)] {
            to.send(delivery(stream, number)).unwrap();
        }
        let wait = Duration::from_secs(5);
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let batch = deliveries.next_batch(2, wait).await.unwrap();
            sizes.push(batch.iter().copied().collect::<Vec<_>>());
        }
        assert_eq!(sizes, [vec![1, 2], vec![3], vec![4]]);
        // A call dropped while it waits for more deliveries has lost none.
        let begun = tokio::time::Instant::now();
        assert!(tokio::time::timeout(Duration::from_secs(1), deliveries.next_batch(2, wait)).await.is_err());
        assert_eq!(deliveries.next_batch(2, wait).await.unwrap().len(), 1);
        assert_eq!(begun.elapsed(), Duration::from_secs(6));
        drop(to);
        assert!(deliveries.next_batch(2, wait).await.is_none());
    }
}
