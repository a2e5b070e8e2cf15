//! Binds the tokens that a thread decodes to a node, and answers those that the decoder drops.
//!
//! A decoder may drop a token that it has just read: where a later field is broken, or where serde tries the next
//! variant of an untagged enum. Such a drop sends no answer by itself, since the message, and with it the right to
//! answer, may still be read. The scope counts the tokens and answers for the dropped ones when it ends.

use std::any::TypeId;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::port::{ReplyAddress, ReplyOutcome, ReplyPort};
use crate::address::UniqueAddress;
use crate::dead_letter::DeadLetterReason;

thread_local! {
    static SCOPES: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// A scope that is open on this thread.
struct Open {
    port: Arc<dyn ReplyPort>,
    tokens: Vec<Read>,
}

/// The tokens of one question that were read in a scope: more than one if the same bytes were read more than once.
struct Read {
    address: ReplyAddress,
    /// Tokens that were read and not dropped.
    left: usize,
    /// The answer that the token which was dropped last would have given.
    dropped: Option<ReplyOutcome>,
}

/// While a scope is open, reply tokens decoded on this thread are bound to its port.
///
/// The port is kept per thread because deserializers take no context argument. A token that is read and dropped within
/// the scope, with no other of its question left, answers when the scope ends: with its answer of a drop, or with the
/// reason given to [`refuse`](Self::refuse).
#[must_use = "the scope ends when it is dropped"]
pub struct ReplyScope {
    /// Makes the scope `!Send`: a scope must end on the thread that opened it.
    not_send: PhantomData<*const ()>,
}

impl ReplyScope {
    /// Opens a scope on this thread; scopes nest.
    pub fn enter(port: Arc<dyn ReplyPort>) -> Self {
        SCOPES.with_borrow_mut(|scopes| scopes.push(Open { port, tokens: Vec::new() }));
        Self { not_send: PhantomData }
    }

    /// Ends the scope of a message that could not be read: every token read so far answers that the message was
    /// dropped, except the token of `heard`, the asker that the caller answers itself.
    pub fn refuse(self, reason: DeadLetterReason, heard: Option<(&UniqueAddress, u64)>) {
        let Some(open) = Self::close() else { return };
        // Answer for all tokens: after a panic those that are left may never be dropped.
        for token in open.tokens {
            if heard != Some((&token.address.node, token.address.ask_id)) {
                open.port.reply(&token.address, ReplyOutcome::Dropped(reason));
            }
        }
        std::mem::forget(self);
    }

    /// Returns an object that a layer of the decoding node provides to decoders, such as the table of entities by name.
    pub fn resource<T: Send + Sync + 'static>() -> Option<Arc<T>> {
        // Release the borrow of the scopes before asking the port, which may open a scope.
        let port = SCOPES.with_borrow(|scopes| scopes.last().map(|open| open.port.clone()))?;
        port.resource(TypeId::of::<T>())?.downcast().ok()
    }

    /// Counts a token that is being read, and returns its port.
    pub(super) fn bind(address: &ReplyAddress) -> Option<Arc<dyn ReplyPort>> {
        SCOPES.with_borrow_mut(|scopes| {
            let open = scopes.last_mut()?;
            match open.tokens.iter_mut().find(|token| token.address == *address) {
                Some(token) => token.left += 1,
                None => open.tokens.push(Read { address: address.clone(), left: 1, dropped: None }),
            }
            Some(open.port.clone())
        })
    }

    /// Notes the drop of a token that was read in the open scope; `false` if the token was not read there.
    pub(super) fn note_drop(address: &ReplyAddress, outcome: impl FnOnce() -> ReplyOutcome) -> bool {
        SCOPES.with_borrow_mut(|scopes| {
            let read =
                scopes.last_mut().and_then(|open| open.tokens.iter_mut().find(|token| token.address == *address));
            let Some(token) = read.filter(|token| token.left > 0) else { return false };
            token.left -= 1;
            token.dropped = Some(outcome());
            true
        })
    }

    fn close() -> Option<Open> {
        SCOPES.with_borrow_mut(Vec::pop)
    }
}

impl Drop for ReplyScope {
    fn drop(&mut self) {
        let Some(open) = Self::close() else { return };
        for token in open.tokens.into_iter().filter(|token| token.left == 0) {
            if let Some(outcome) = token.dropped {
                open.port.reply(&token.address, outcome);
            }
        }
    }
}

impl fmt::Debug for ReplyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyScope").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ReplyTo;
    use crate::reply::reply_to::tests::Log;

    fn read(ask_id: u64) -> ReplyTo<i64> {
        ReplyTo::bind(ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id }).unwrap()
    }

    #[test]
    fn a_token_read_in_vain_answers_once_its_message_was_read() {
        let port = Arc::new(Log::default());
        let scope = ReplyScope::enter(port.clone());
        drop(read(1));
        let kept = read(1);
        drop(read(2));
        assert!(port.0.lock().unwrap().is_empty());
        drop(scope);
        let none = "2 failed: the entity did not reply";
        assert_eq!(*port.0.lock().unwrap(), [none]);
        kept.reply(5);
        assert_eq!(*port.0.lock().unwrap(), [none, "1 = 5"]);
    }

    #[test]
    fn tokens_of_a_message_that_cannot_be_read_answer_that_it_was_dropped() {
        let port = Arc::new(Log::default());
        let scope = ReplyScope::enter(port.clone());
        drop((read(1), read(1), read(2), read(3)));
        let node = "a:1#1".parse().unwrap();
        scope.refuse(DeadLetterReason::Undecodable, Some((&node, 2)));
        assert_eq!(*port.0.lock().unwrap(), ["1 dropped: Undecodable", "3 dropped: Undecodable"]);
        assert!(ReplyTo::<i64>::bind(ReplyAddress { node, ask_id: 4 }).is_err(), "the scope has ended");
    }

    #[test]
    fn a_scope_within_a_scope_keeps_its_own_tokens() {
        let (outer, inner) = (Arc::new(Log::default()), Arc::new(Log::default()));
        let _scope = ReplyScope::enter(outer.clone());
        let before = read(1);
        {
            let _scope = ReplyScope::enter(inner.clone());
            drop(read(1));
        }
        drop(before);
        assert_eq!(inner.0.lock().unwrap().len(), 1);
        assert!(outer.0.lock().unwrap().is_empty());
    }
}
