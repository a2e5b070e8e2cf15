//! Counts the replicas that take part in one request.
//!
//! As many replicas as are needed are asked at once (the primaries). After a fifth of the timeout those that have not
//! answered are asked again, and others (the secondaries) for the first time. A replica that cannot help is replaced by
//! the next at once; the needed number never shrinks. A replica that is not ready yet is asked again every twentieth of
//! the timeout. Source: ddata R10, R11.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

/// The longest timeout; a clock cannot name times that are arbitrarily far off.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// The state of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More answers are needed.
    Pending,
    /// Enough replicas answered.
    Done,
    /// The replicas that are left are too few.
    Impossible,
}

/// The replicas of one request.
#[derive(Debug)]
pub(crate) struct Quorum {
    /// How many other replicas have to answer.
    needed: usize,
    /// Whether this replica counts in addition.
    pub(crate) own: bool,
    answered: BTreeSet<UniqueAddress>,
    waiting: BTreeSet<UniqueAddress>,
    refused: BTreeSet<UniqueAddress>,
    /// Replicas that were not asked so far, in order.
    spare: VecDeque<UniqueAddress>,
    escalate_at: Option<Instant>,
    /// The members of `waiting` that answered `NotReady` since they were last asked.
    unready: BTreeSet<UniqueAddress>,
    /// When the unready replicas are asked again.
    retry_at: Option<Instant>,
    retry_after: Duration,
    deadline: Instant,
}

impl Quorum {
    /// A request to `needed` of `candidates`; returns also the replicas to ask first. The timeout may be unlimited.
    pub(crate) fn new(
        now: Instant,
        needed: usize,
        own: bool,
        candidates: Vec<UniqueAddress>,
        timeout: Duration,
    ) -> (Self, Vec<UniqueAddress>) {
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let mut spare = VecDeque::from(candidates);
        let first: Vec<UniqueAddress> = spare.drain(..needed.min(spare.len())).collect();
        let quorum = Self {
            needed,
            own,
            answered: BTreeSet::new(),
            waiting: first.iter().cloned().collect(),
            refused: BTreeSet::new(),
            spare,
            escalate_at: Some(now + timeout / 5),
            unready: BTreeSet::new(),
            retry_at: None,
            retry_after: timeout / 20,
            deadline: now + timeout,
        };
        (quorum, first)
    }

    pub(crate) fn progress(&self) -> Progress {
        if self.answered.len() >= self.needed {
            Progress::Done
        } else if self.answered.len() + self.waiting.len() + self.spare.len() < self.needed {
            Progress::Impossible
        } else {
            Progress::Pending
        }
    }

    /// How many answers were needed, including this replica if it counts.
    pub(crate) fn needed(&self) -> usize {
        self.needed + usize::from(self.own)
    }

    /// How many replicas answered, including this one if it counts.
    pub(crate) fn got(&self) -> usize {
        self.answered.len() + usize::from(self.own)
    }

    pub(crate) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Counts an answer. Returns whether it was awaited; a second answer of a replica is not.
    pub(crate) fn answer(&mut self, from: &UniqueAddress) -> bool {
        self.waiting.remove(from) && self.answered.insert(from.clone())
    }

    /// The replicas that answered.
    pub(crate) fn answerers(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.answered.iter()
    }

    pub(crate) fn awaits(&self, from: &UniqueAddress) -> bool {
        self.waiting.contains(from)
    }

    /// Gives up a replica that refused. Returns the one to ask in its place.
    pub(crate) fn refuse(&mut self, from: &UniqueAddress) -> Option<UniqueAddress> {
        if !self.waiting.remove(from) {
            self.spare.retain(|spare| spare != from);
            return None;
        }
        self.refused.insert(from.clone());
        self.ask_next()
    }

    /// Returns one more replica to ask, because `peer` is not ready: it is starting, and will be asked again.
    pub(crate) fn not_ready(&mut self, now: Instant, peer: &UniqueAddress) -> Option<UniqueAddress> {
        if !self.waiting.contains(peer) {
            return None;
        }
        self.unready.insert(peer.clone());
        self.retry_at.get_or_insert(now + self.retry_after);
        self.ask_next()
    }

    /// Stops counting this replica, so that one more of the others is needed. Returns the replicas to ask now.
    pub(crate) fn lose_own(&mut self) -> Vec<UniqueAddress> {
        if !std::mem::replace(&mut self.own, false) {
            return Vec::new();
        }
        self.needed += 1;
        match self.escalate_at {
            Some(_) => self.ask_next().into_iter().collect(),
            None => self.ask_secondaries(),
        }
    }

    /// Returns one more replica to ask, because `peer` became unreachable; `peer` may still answer.
    pub(crate) fn suspect(&mut self, peer: &UniqueAddress) -> Option<UniqueAddress> {
        if self.waiting.contains(peer) { self.ask_next() } else { None }
    }

    fn ask_next(&mut self) -> Option<UniqueAddress> {
        let next = self.spare.pop_front()?;
        self.waiting.insert(next.clone());
        Some(next)
    }

    /// The replicas to ask now: all, once a fifth of the timeout has passed; unready ones, every twentieth of it.
    pub(crate) fn ask_again(&mut self, now: Instant) -> Vec<UniqueAddress> {
        let is_late = self.escalate_at.take_if(|at| *at <= now).is_some();
        let is_retry = self.retry_at.take_if(|at| *at <= now).is_some();
        if self.progress() == Progress::Done || !(is_late || is_retry) {
            return Vec::new();
        }
        let unready = std::mem::take(&mut self.unready);
        if !is_late {
            return unready.into_iter().filter(|peer| self.waiting.contains(peer)).collect();
        }
        self.retry_at = None;
        self.ask_secondaries();
        self.waiting.iter().cloned().collect()
    }

    fn ask_secondaries(&mut self) -> Vec<UniqueAddress> {
        let secondaries = self.needed().saturating_sub(1).max(10).min(self.spare.len());
        let asked: Vec<UniqueAddress> = self.spare.drain(..secondaries).collect();
        self.waiting.extend(asked.iter().cloned());
        asked
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    /// When the request ends, however few replicas answered.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        [self.escalate_at, self.retry_at].into_iter().flatten().fold(self.deadline, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> UniqueAddress {
        format!("{name}:1#1").parse().unwrap()
    }

    fn nodes(names: &str) -> Vec<UniqueAddress> {
        names.chars().map(|c| node(&c.to_string())).collect()
    }

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn silent_primaries_are_joined_by_secondaries_after_a_fifth_of_the_timeout() {
        let now = Instant::now();
        let (mut quorum, first) = Quorum::new(now, 2, true, nodes("abcd"), TIMEOUT);
        assert_eq!(first, nodes("ab"));
        assert_eq!(quorum.ask_again(now + TIMEOUT / 6), []);
        assert_eq!(quorum.ask_again(now + TIMEOUT / 5), nodes("abcd"));
        assert!(quorum.answer(&node("c")));
        assert!(!quorum.answer(&node("c")), "an answer counts once");
        assert_eq!(quorum.progress(), Progress::Pending);
        assert!(quorum.answer(&node("d")));
        assert_eq!((quorum.progress(), quorum.got()), (Progress::Done, 3));
    }

    #[test]
    fn a_refusing_replica_is_replaced_at_once_while_others_are_left() {
        let (mut quorum, _) = Quorum::new(Instant::now(), 2, false, nodes("abc"), TIMEOUT);
        assert_eq!(quorum.refuse(&node("a")), Some(node("c")));
        assert_eq!(quorum.progress(), Progress::Pending);
        assert_eq!(quorum.refuse(&node("b")), None);
        assert_eq!(quorum.progress(), Progress::Impossible);
    }

    /// ddata R12: a replica whose own store failed needs one more acknowledgement.
    #[test]
    fn a_replica_that_no_longer_counts_itself_needs_one_more() {
        let (mut quorum, _) = Quorum::new(Instant::now(), 1, true, nodes("abc"), TIMEOUT);
        assert!(quorum.answer(&node("a")));
        assert_eq!((quorum.progress(), quorum.needed(), quorum.got()), (Progress::Done, 2, 2));
        assert_eq!(quorum.lose_own(), nodes("b"));
        assert_eq!((quorum.progress(), quorum.needed(), quorum.got()), (Progress::Pending, 2, 1));
        assert_eq!(quorum.lose_own(), [], "once");
        assert!(quorum.answer(&node("b")));
        assert_eq!((quorum.progress(), quorum.needed(), quorum.got()), (Progress::Done, 2, 2));
        let (mut late, _) = Quorum::new(Instant::now(), 1, true, nodes("abc"), TIMEOUT);
        assert!(late.answer(&node("a")));
        assert_eq!(late.ask_again(Instant::now() + TIMEOUT / 5), [], "enough have answered");
        assert_eq!(late.lose_own(), nodes("bc"), "it is late: all are asked");
    }

    /// ddata R11: a replica that is starting is no reason to give up while there is time.
    #[test]
    fn a_replica_that_is_not_ready_is_asked_again_every_twentieth_of_the_timeout() {
        let now = Instant::now();
        let (mut quorum, _) = Quorum::new(now, 1, true, nodes("ab"), TIMEOUT);
        assert_eq!(quorum.not_ready(now, &node("c")), None, "it was not asked");
        assert_eq!(quorum.not_ready(now, &node("a")), Some(node("b")), "another is asked at once");
        assert_eq!(quorum.not_ready(now, &node("b")), None);
        assert_eq!((quorum.progress(), quorum.next_deadline()), (Progress::Pending, now + TIMEOUT / 20));
        assert_eq!(quorum.ask_again(now + TIMEOUT / 21), []);
        assert_eq!(quorum.ask_again(now + TIMEOUT / 20), nodes("ab"));
        assert_eq!(quorum.next_deadline(), now + TIMEOUT / 5, "nothing is repeated before they have answered");
        assert_eq!(quorum.not_ready(now + TIMEOUT / 5, &node("b")), None);
        assert_eq!(quorum.ask_again(now + TIMEOUT / 5), nodes("ab"), "all are asked now, once");
        assert_eq!(quorum.next_deadline(), now + TIMEOUT);
        assert_eq!(quorum.not_ready(now + TIMEOUT / 2, &node("a")), None);
        assert_eq!(quorum.refuse(&node("a")), None);
        assert_eq!(quorum.ask_again(now + TIMEOUT), [], "one that was removed meanwhile is not asked");
    }

    #[test]
    fn a_suspect_may_still_answer() {
        let (mut quorum, _) = Quorum::new(Instant::now(), 1, true, nodes("ab"), TIMEOUT);
        assert_eq!(quorum.suspect(&node("a")), Some(node("b")));
        assert!(quorum.answer(&node("a")));
        assert_eq!(quorum.progress(), Progress::Done);
    }
}
