//! Questions to the regions of other nodes, and the limit of their questions that are answered here at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_core::UniqueAddress;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::inspection::InspectionResult;

/// Questions of other nodes that one region answers at a time. Further questions are dropped, and their senders time
/// out.
const ANSWERED_AT_A_TIME: usize = 16;

/// See the module's description.
pub(crate) struct Inquiries {
    open: Mutex<Open>,
    answering: Arc<Semaphore>,
}

#[derive(Default)]
struct Open {
    last: u64,
    askers: BTreeMap<u64, (UniqueAddress, oneshot::Sender<InspectionResult>)>,
}

impl Default for Inquiries {
    fn default() -> Self {
        Self { open: Mutex::default(), answering: Arc::new(Semaphore::new(ANSWERED_AT_A_TIME)) }
    }
}

/// An unanswered question, forgotten on drop.
pub(crate) struct Asked<'a> {
    inquiries: &'a Inquiries,
    number: u64,
    answer: oneshot::Receiver<InspectionResult>,
}

impl Asked<'_> {
    /// The number that identifies the answer.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Option<InspectionResult> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.inquiries.lock().askers.remove(&self.number);
    }
}

impl Inquiries {
    /// Registers a new question to a node.
    pub(crate) fn ask(&self, node: &UniqueAddress) -> Asked<'_> {
        let (sender, answer) = oneshot::channel();
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.askers.insert(number, (node.clone(), sender));
        drop(open);
        Asked { inquiries: self, number, answer }
    }

    /// Passes an answer on, if the question was sent to that node.
    pub(crate) fn tell(&self, node: &UniqueAddress, number: u64, result: InspectionResult) {
        let mut open = self.lock();
        if open.askers.get(&number).is_none_or(|(asked, _)| asked != node) {
            return;
        }
        let asker = open.askers.remove(&number);
        drop(open);
        if let Some((_, sender)) = asker {
            sender.send(result).ok();
        }
    }

    /// A permit to answer one question; `None` if too many are being answered.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        self.answering.clone().try_acquire_owned().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspection::RegionStats;

    #[tokio::test]
    async fn an_answer_counts_only_from_the_node_that_was_asked_and_while_its_asker_waits() {
        let inquiries = Inquiries::default();
        let (one, other) = ("a:1#1".parse().unwrap(), "b:1#2".parse().unwrap());
        let result = || InspectionResult::Stats(RegionStats::default());
        let mut asked = inquiries.ask(&one);
        inquiries.tell(&other, asked.number(), result());
        inquiries.tell(&one, asked.number() + 1, result());
        assert_eq!(inquiries.lock().askers.len(), 1);
        inquiries.tell(&one, asked.number(), result());
        assert_eq!(asked.answer().await, Some(result()));
        drop(inquiries.ask(&one));
        assert!(inquiries.lock().askers.is_empty(), "a question that was given up is forgotten");
    }

    #[test]
    fn questions_of_others_are_bounded() {
        let inquiries = Inquiries::default();
        let mut permits: Vec<_> = (0..ANSWERED_AT_A_TIME).map(|_| inquiries.admit().expect("there is room")).collect();
        assert!(inquiries.admit().is_none());
        permits.pop();
        assert!(inquiries.admit().is_some());
    }
}
