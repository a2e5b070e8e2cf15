//! The inbox of a coordinator incarnation.
//!
//! Inputs from the own node are never refused: answers of the store and the strategy, and the membership. Messages of
//! regions are bounded by number and by bytes, since regions repeat all of them. Source: sharding scenario 105.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::machine::coordinator::Input;

/// Most messages of regions that may wait.
const MESSAGES: usize = 65_536;
/// Most bytes of these messages.
const BYTES: usize = 64 << 20;

/// The writing end. Clones share one bound.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: mpsc::UnboundedSender<Mail>,
    waiting: Arc<Backlog>,
}

/// The reading end.
pub(crate) struct Inputs {
    receiver: mpsc::UnboundedReceiver<Mail>,
    waiting: Arc<Backlog>,
}

/// An input, and its size if it is a region's message.
struct Mail {
    input: Input,
    bytes: Option<usize>,
}

/// Number and size of the waiting messages of regions.
#[derive(Default)]
struct Backlog {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

/// An inbox for one incarnation.
pub(crate) fn mailbox() -> (Mailbox, Inputs) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::<Backlog>::default();
    (Mailbox { sender, waiting: waiting.clone() }, Inputs { receiver, waiting })
}

impl Mailbox {
    /// Puts an input of the own node into the inbox. An incarnation that has ended does not need it.
    pub(crate) fn tell(&self, input: Input) {
        self.sender.send(Mail { input, bytes: None }).ok();
    }

    /// Puts a region's message of `bytes` bytes into the inbox. False if too many wait.
    pub(crate) fn offer(&self, input: Input, bytes: usize) -> bool {
        let messages = self.waiting.messages.fetch_add(1, Ordering::Relaxed);
        let waiting = self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A message larger than the whole bound is accepted if no other waits.
        if messages >= MESSAGES || (messages > 0 && waiting.saturating_add(bytes) > BYTES) {
            self.waiting.take(bytes);
            return false;
        }
        self.sender.send(Mail { input, bytes: Some(bytes) }).ok();
        true
    }
}

impl Inputs {
    /// The next input; `None` when all writing ends are dropped.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        let Mail { input, bytes } = self.receiver.recv().await?;
        if let Some(bytes) = bytes {
            self.waiting.take(bytes);
        }
        Some(input)
    }
}

impl Backlog {
    fn take(&self, bytes: usize) {
        self.messages.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_of_regions_are_bounded_and_inputs_of_the_node_are_not() {
        let (mailbox, mut inputs) = mailbox();
        let told = (0..MESSAGES + 10).filter(|_| mailbox.offer(Input::Tick, 1)).count();
        assert_eq!(told, MESSAGES);
        mailbox.tell(Input::Terminate);
        assert_eq!(inputs.next().await, Some(Input::Tick));
        assert!(mailbox.offer(Input::Tick, 1) && !mailbox.offer(Input::Tick, 1), "one was read");
        for _ in 1..MESSAGES {
            inputs.next().await;
        }
        assert_eq!(inputs.next().await, Some(Input::Terminate));
    }

    #[tokio::test]
    async fn bytes_are_bounded_and_one_long_message_waits_alone() {
        let (mailbox, mut inputs) = mailbox();
        assert!(mailbox.offer(Input::Tick, BYTES * 2) && !mailbox.offer(Input::Tick, 1));
        inputs.next().await;
        assert!(mailbox.offer(Input::Tick, BYTES) && !mailbox.offer(Input::Tick, 1));
    }
}
