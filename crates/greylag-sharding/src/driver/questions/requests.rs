//! Requests of users to the coordinator, and the receivers of the answers.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::machine::region::Answer;

/// The answers to one request, the last of them an [`Answer::Ended`].
pub(crate) type Answers = mpsc::UnboundedReceiver<Answer>;

/// The requests under way of one region.
#[derive(Default)]
pub(crate) struct Requests(Mutex<Open>);

#[derive(Default)]
struct Open {
    last: u64,
    askers: BTreeMap<u64, mpsc::UnboundedSender<Answer>>,
}

impl Requests {
    /// Opens a new request: returns its number, and its answers.
    pub(crate) fn open(&self) -> (u64, Answers) {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.askers.insert(number, sender);
        (number, answers)
    }

    /// Passes an answer on, if its receiver still exists.
    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        let mut open = self.lock();
        let is_last = matches!(answer, Answer::Ended(_));
        if let Some(asker) = open.askers.get(&number) {
            asker.send(answer).ok();
        }
        if is_last {
            open.askers.remove(&number);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
