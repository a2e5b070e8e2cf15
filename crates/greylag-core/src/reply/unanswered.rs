//! The answer of a reply token that is dropped unused.

use std::cell::RefCell;

use super::port::ReplyOutcome;
use crate::dead_letter::DeadLetterReason;
use crate::entity_error::EntityError;

thread_local! {
    /// Set by `answer_dropped` and `answer_undelivered`.
    static UNANSWERED: RefCell<Option<Unanswered>> = const { RefCell::new(None) };
}

/// Runs `f`; reply tokens that it drops unanswered answer `error` in place of
/// [`EntityError::NoReply`]. For runtimes that drop messages and side effects whose tokens they
/// cannot see. Source: persistence §2.6.
pub fn answer_dropped<T>(error: EntityError, f: impl FnOnce() -> T) -> T {
    with_unanswered(Unanswered::Failed(error), f)
}

/// Runs `f`; reply tokens that it drops unanswered answer that their message was dropped for `reason`, before any
/// handler saw it. For runtimes that drop messages whose tokens they cannot see. Source: sharding §4.11.
pub fn answer_undelivered<T>(reason: DeadLetterReason, f: impl FnOnce() -> T) -> T {
    with_unanswered(Unanswered::Dropped(reason), f)
}

/// The answer of reply tokens that are dropped unused, if it is not [`EntityError::NoReply`].
#[derive(Clone)]
enum Unanswered {
    Failed(EntityError),
    Dropped(DeadLetterReason),
}

fn with_unanswered<T>(answer: Unanswered, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Unanswered>);
    impl Drop for Restore {
        fn drop(&mut self) {
            UNANSWERED.with_borrow_mut(|answer| *answer = self.0.take());
        }
    }
    let _restore = Restore(UNANSWERED.with_borrow_mut(|before| before.replace(answer)));
    f()
}

pub(super) fn outcome_of_drop() -> ReplyOutcome {
    if std::thread::panicking() {
        return ReplyOutcome::Failed(EntityError::Failed("the handler panicked".to_owned()));
    }
    match UNANSWERED.with_borrow(Clone::clone) {
        Some(Unanswered::Failed(error)) => ReplyOutcome::Failed(error),
        Some(Unanswered::Dropped(reason)) => ReplyOutcome::Dropped(reason),
        None => ReplyOutcome::Failed(EntityError::NoReply),
    }
}
