//! The token that travels inside a question, and is consumed by replying.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{AnswerReader, AnswerWriter};
use super::port::{ReplyAddress, ReplyOutcome, ReplyPort};
use super::scope::ReplyScope;
use super::unanswered::outcome_of_drop;
use crate::entity_error::EntityError;

/// A one-shot right to answer a question with an `R`.
///
/// Dropped unanswered, the token answers [`EntityError::NoReply`] (or the error of [`answer_dropped`](crate::answer_dropped) or
/// [`answer_undelivered`](crate::answer_undelivered), or [`EntityError::Failed`] during a panic), so an asker never waits for an answer that
/// cannot come.
/// Source: sharding §4.11, persistence §2.2.
#[must_use = "dropping it answers the ask with EntityError::NoReply"]
pub struct ReplyTo<R> {
    /// Boxed to keep tokens small: an enum of messages is as large as its largest variant, and most messages ask for no
    /// answer.
    right: Box<Right>,
    reply: PhantomData<fn(R)>,
}

/// The content of a token, whatever the type of the answer.
struct Right {
    address: ReplyAddress,
    /// Taken when the token answers; `None` means that another token answers now.
    port: Option<Arc<dyn ReplyPort>>,
    /// Set when the token was written into bytes: from then on the right to answer lives where the bytes are read.
    written: AtomicBool,
    writer: Option<AnswerWriter>,
}

impl<R: Send + 'static> ReplyTo<R> {
    /// A token for `address` that answers through `port`.
    pub fn new(address: ReplyAddress, port: Arc<dyn ReplyPort>) -> Self {
        let right = Right { address, port: Some(port), written: AtomicBool::new(false), writer: None };
        Self { right: Box::new(right), reply: PhantomData }
    }

    /// Has the answer travel by `writer`: see [`ReplyOutcome::Value`].
    pub fn written_by(self, writer: AnswerWriter) -> Self {
        let mut token = self;
        token.right.writer = Some(writer);
        token
    }

    /// Answers with `value`.
    pub fn reply(mut self, value: R) {
        let (value, type_name) = (Box::new(value), std::any::type_name::<R>());
        let writer = self.right.writer.take();
        self.right.send(ReplyOutcome::Value { value, type_name, writer });
    }

    /// Binds a token read from bytes to the port of the surrounding [`ReplyScope`].
    ///
    /// # Errors
    /// [`UnboundReply`] outside of any scope.
    pub fn bind(address: ReplyAddress) -> Result<Self, UnboundReply> {
        let port = ReplyScope::bind(&address).ok_or(UnboundReply)?;
        Ok(Self::new(address, port))
    }
}

impl<R> ReplyTo<R> {
    /// Answers in the entity's stead.
    pub fn fail(mut self, error: EntityError) {
        self.right.send(ReplyOutcome::Failed(error));
    }

    /// Where the answer goes.
    pub fn address(&self) -> &ReplyAddress {
        &self.right.address
    }

    /// The address, for writing the token into bytes. The right to answer moves with the bytes:
    /// dropping this token afterwards says nothing to the asker. The answer is read by `reader`, or else by the codec
    /// that the asker's registry has for its type.
    pub fn write(&self, reader: Option<AnswerReader>) -> &ReplyAddress {
        let Right { address, port, written, .. } = &*self.right;
        if let (Some(port), Some(reader)) = (port, reader) {
            port.expect(address, reader);
        }
        written.store(true, Ordering::Relaxed);
        address
    }
}

impl Right {
    fn send(&mut self, outcome: ReplyOutcome) {
        if let Some(port) = self.port.take() {
            port.reply(&self.address, outcome);
        }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        if !*self.written.get_mut() && self.port.is_some() && !ReplyScope::note_drop(&self.address, outcome_of_drop) {
            self.send(outcome_of_drop());
        }
    }
}

impl<R> fmt::Debug for ReplyTo<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplyAddress { node, ask_id } = self.address();
        write!(f, "ReplyTo({node}/{ask_id})")
    }
}

/// A reply token was read outside of a [`ReplyScope`], so no answer could leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a reply token was decoded outside of a node; nothing can be answered through it")]
pub struct UnboundReply;

#[cfg(feature = "serde")]
mod serde_impls {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::Error};

    use super::ReplyTo;
    use crate::address::UniqueAddress;
    use crate::reply::format::serde_impls::FormatScope;
    use crate::reply::format::{AnswerReader, AnswerWriter};
    use crate::reply::port::ReplyAddress;
    use crate::reply::storage::StorageScope;

    /// Keeps a reader of the open format: the answer comes back in the format of the message.
    impl<R: DeserializeOwned + Send + 'static> Serialize for ReplyTo<R> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if StorageScope::is_open() {
                return Err(S::Error::custom("a reply token cannot be stored: its asker is gone when it is read"));
            }
            let address = self.write(FormatScope::current().map(AnswerReader::of_format::<R>));
            (&address.node, address.ask_id).serialize(serializer)
        }
    }

    /// Keeps a writer of the open format: the answer goes back in the format of the message.
    impl<'de, R: Serialize + Send + 'static> Deserialize<'de> for ReplyTo<R> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let (node, ask_id) = <(UniqueAddress, u64)>::deserialize(deserializer)?;
            let token = Self::bind(ReplyAddress { node, ask_id }).map_err(de::Error::custom)?;
            Ok(match FormatScope::current() {
                Some(format) => token.written_by(AnswerWriter::of_format::<R>(format)),
                None => token,
            })
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::dead_letter::DeadLetterReason;
    use crate::reply::{answer_dropped, answer_undelivered};

    /// Port of the tests: writes down every answer.
    #[derive(Default)]
    pub(in crate::reply) struct Log(pub(in crate::reply) Mutex<Vec<String>>);

    impl ReplyPort for Log {
        fn reply(&self, to: &ReplyAddress, outcome: ReplyOutcome) {
            let text = match outcome {
                ReplyOutcome::Value { value, .. } => format!("{} = {}", to.ask_id, value.downcast::<i64>().unwrap()),
                ReplyOutcome::Failed(error) => format!("{} failed: {error}", to.ask_id),
                ReplyOutcome::Dropped(reason) => format!("{} dropped: {reason}", to.ask_id),
            };
            self.0.lock().unwrap().push(text);
        }
    }

    fn token(port: &Arc<Log>, ask_id: u64) -> ReplyTo<i64> {
        ReplyTo::new(ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id }, port.clone())
    }

    #[test]
    fn an_ask_is_answered_once_whatever_becomes_of_the_token() {
        let port = Arc::new(Log::default());
        token(&port, 1).reply(42);
        token(&port, 2).fail(EntityError::Stopped);
        drop(token(&port, 3));
        assert_eq!(
            *port.0.lock().unwrap(),
            ["1 = 42", "2 failed: the entity stopped before it answered", "3 failed: the entity did not reply"]
        );
    }

    #[test]
    fn a_dropped_token_tells_why() {
        let port = Arc::new(Log::default());
        answer_dropped(EntityError::StashFull, || {
            answer_dropped(EntityError::Stopped, || drop(token(&port, 1)));
            drop(token(&port, 2));
            answer_undelivered(DeadLetterReason::ShardInboxFull, || drop(token(&port, 5)));
        });
        drop(token(&port, 3));
        let held = token(&port, 4);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = held;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(
            *port.0.lock().unwrap(),
            [
                "1 failed: the entity stopped before it answered",
                "2 failed: the entity's stash is full",
                "5 dropped: ShardInboxFull",
                "3 failed: the entity did not reply",
                "4 failed: the entity failed on this message: the handler panicked",
            ]
        );
    }

    #[test]
    fn a_token_adds_a_word_to_the_messages_of_its_type() {
        assert_eq!(size_of::<ReplyTo<i64>>(), size_of::<usize>());
    }

    #[test]
    fn a_written_token_leaves_the_answer_to_its_reader() {
        let port = Arc::new(Log::default());
        let there = Arc::new(Log::default());
        let here = token(&port, 1);
        let address = here.write(None).clone();
        drop(here);
        assert_eq!(ReplyTo::<i64>::bind(address.clone()).map(drop), Err(UnboundReply));
        let scope = ReplyScope::enter(there.clone());
        ReplyTo::<i64>::bind(address).unwrap().reply(5);
        drop(scope);
        assert!(port.0.lock().unwrap().is_empty());
        assert_eq!(*there.0.lock().unwrap(), ["1 = 5"]);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_travels_in_a_serde_message() {
        let port = Arc::new(Log::default());
        let _scope = ReplyScope::enter(port.clone());
        let text = serde_json::to_string(&token(&port, 9)).unwrap();
        serde_json::from_str::<ReplyTo<i64>>(&text).unwrap().reply(1);
        assert_eq!(*port.0.lock().unwrap(), ["9 = 1"]);
    }
}
