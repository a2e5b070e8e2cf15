//! The outbox over a table in memory: messages of applications are numbered, returned by polls, confirmed and loaded.

use futures::FutureExt;
use greylag_core::{CodecId, Encoded};
use greylag_delivery::queue::{Confirmation, MessageSent, OutboxSettings, QueueChange, QueueClaim};
use greylag_delivery::queue::{QueueError, QueueHead, QueueRows, QueueStoreError};
use greylag_delivery::{
    ControllerRef, DurableProducerQueue, Epoch, InMemoryQueues, OutboxProducerQueue, OutboxStore, QueueCall,
    QueueFault, QueueStore, SeqNr,
};

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "outbox".into(), instance }
}

fn mail(text: &str) -> Encoded {
    Encoded { codec: CodecId::JSON, manifest: "mail".into(), payload: text.to_owned().into() }
}

fn numbered(messages: &[MessageSent<Encoded>]) -> Vec<(u64, String)> {
    let text = |sent: &MessageSent<Encoded>| String::from_utf8(sent.message.payload.to_vec()).unwrap();
    messages.iter().map(|sent| (sent.seq_nr.get(), text(sent))).collect()
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(seq_nr, text)| (*seq_nr, (*text).to_owned())).collect()
}

/// Of delivery §4.4: messages are numbered when they are first seen, once, and keep their numbers.
#[tokio::test]
async fn messages_are_numbered_in_the_order_in_which_they_are_seen() {
    let disk = InMemoryQueues::new();
    disk.write_to_outbox("mails", "ada", mail("a"));
    let mut outbox = disk.open_outbox("mails");
    assert_eq!(outbox.poll_new(10).await, Err(QueueError::NotLoaded));
    assert!(outbox.load(&controller(1)).await.unwrap().unconfirmed.is_empty(), "not numbered yet");
    disk.write_to_outbox("mails", "bob", mail("b"));
    disk.write_to_outbox("other", "bob", mail("x"));
    assert_eq!(numbered(&outbox.poll_new(1).await.unwrap()), pairs(&[(1, "a")]));
    assert_eq!(numbered(&outbox.poll_new(10).await.unwrap()), pairs(&[(2, "b")]));
    assert!(outbox.poll_new(10).await.unwrap().is_empty(), "each is handed out once");

    let confirmation = Confirmation::UpTo { qualifier: "ada".into(), seq_nr: SeqNr(1), timestamp_ms: u64::MAX };
    outbox.store_message_confirmed(vec![confirmation]).await.unwrap();
    let mut next = disk.open_outbox("mails");
    let state = next.load(&controller(2)).await.unwrap();
    assert_eq!((numbered(&state.unconfirmed), state.current_seq_nr), (pairs(&[(2, "b")]), SeqNr(3)));
    assert!(next.poll_new(10).await.unwrap().is_empty(), "a load hands out what has a number");
    disk.write_to_outbox("mails", "ada", mail("c"));
    let fenced = outbox.poll_new(10).await;
    assert_eq!(fenced, Err(QueueError::Fenced { by: Some(controller(2)) }), "one writer gives numbers");
    assert_eq!(numbered(&next.poll_new(10).await.unwrap()), pairs(&[(3, "c")]));
}

/// A poll that was dropped, or whose answer was lost, loses no message.
#[tokio::test]
async fn messages_numbered_by_a_lost_poll_are_handed_out() {
    let disk = InMemoryQueues::new();
    let mut outbox = disk.open_outbox("mails");
    outbox.load(&controller(1)).await.unwrap();
    for text in ["a", "b", "c"] {
        disk.write_to_outbox("mails", "", mail(text));
    }
    assert!(outbox.poll_new(2).now_or_never().is_none());
    assert_eq!(numbered(&outbox.poll_new(3).await.unwrap()), pairs(&[(1, "a"), (2, "b"), (3, "c")]));

    disk.write_to_outbox("mails", "", mail("d"));
    disk.fail_when(|_, call| matches!(call, QueueCall::Number).then_some(QueueFault::AnswerLost { done: true }));
    assert_eq!(outbox.poll_new(3).await, Err(QueueError::OutcomeUnknown));
    disk.fail_never();
    assert_eq!(outbox.poll_new(3).await, Err(QueueError::NotLoaded));
    let state = outbox.load(&controller(1)).await.unwrap();
    assert_eq!(numbered(&state.unconfirmed), pairs(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]));
}

/// A producer that stores new messages in an outbox is refused; messages returned by polls count as stored.
#[tokio::test]
async fn an_outbox_is_written_by_applications() {
    let disk = InMemoryQueues::new();
    let mut outbox = disk.open_outbox("mails");
    outbox.load(&controller(1)).await.unwrap();
    disk.write_to_outbox("mails", "", mail("a"));
    let handed_out = outbox.poll_new(1).await.unwrap();
    assert_eq!(outbox.store_message_sent(handed_out.clone()).await, Ok(SeqNr(1)));
    let own = MessageSent { seq_nr: SeqNr(2), ..handed_out[0].clone() };
    assert!(matches!(outbox.store_message_sent(vec![own]).await, Err(QueueError::Rejected(_))));
    assert_eq!(outbox.poll_interval(), Some(std::time::Duration::from_millis(200)));
    assert_eq!(disk.open("mails").poll_interval(), None, "no other queue is polled");
}

/// A store that assigns wrong numbers: off by `skip` at each poll.
struct Misnumbering(InMemoryQueues, i64);

#[async_trait::async_trait]
impl QueueStore for Misnumbering {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        self.0.head(queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        self.0.read(queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        self.0.claim(queue, claim).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        self.0.write(queue, change).await
    }

    fn max_message_bytes(&self) -> usize {
        self.0.max_message_bytes()
    }
}

#[async_trait::async_trait]
impl OutboxStore for Misnumbering {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        let mut new = self.0.number(queue, epoch, max_messages).await?;
        for message in &mut new {
            message.seq_nr = SeqNr(message.seq_nr.get().saturating_add_signed(self.1));
        }
        Ok(new)
    }
}

/// Of delivery §4.4: numbers may have gaps, but must rise; a number that was returned before is `OutOfOrder`.
#[tokio::test]
async fn a_number_that_comes_again_is_out_of_order() {
    let open = |skip| async move {
        let disk = InMemoryQueues::new();
        let store = Misnumbering(disk.clone(), skip);
        let mut outbox = OutboxProducerQueue::open(store, "mails", OutboxSettings::default()).unwrap();
        outbox.load(&controller(1)).await.unwrap();
        (disk, outbox)
    };
    let (disk, mut outbox) = open(5).await;
    for text in ["a", "b"] {
        disk.write_to_outbox("mails", "", mail(text));
    }
    assert_eq!(numbered(&outbox.poll_new(9).await.unwrap()), pairs(&[(6, "a"), (7, "b")]), "a gap is no harm");

    let (disk, mut outbox) = open(-1).await;
    disk.write_to_outbox("mails", "", mail("a"));
    assert_eq!(outbox.poll_new(9).await, Err(QueueError::OutOfOrder { expected: SeqNr(1) }));
    assert_eq!(outbox.poll_new(9).await, Err(QueueError::NotLoaded));
}
