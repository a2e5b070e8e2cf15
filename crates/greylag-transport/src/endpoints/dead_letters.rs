//! Messages that were not delivered: counted per reason, lane and peer, told to subscribers, and
//! mentioned in the log.
//!
//! Counts are exact. Subscribers read at their own pace: each has a bounded buffer, and learns how many letters it
//! missed. Log lines are rationed per reason and peer; a minute with suppressed lines ends with a line that says how
//! many. Source: cluster T41.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress};

use crate::lanes::lane::Lane;

/// The key of a counter: why, on which lane, to or from which node. Lane and peer are absent where a layer above
/// dropped the message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterKey {
    /// Why the messages were dropped.
    pub reason: DeadLetterReason,
    /// The lane they were on.
    pub lane: Option<Lane>,
    /// The node at the other end. Absent, like the lane, once there are too many counters.
    pub peer: Option<NodeAddress>,
}

/// A message that was dropped, as subscribers hear of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Why it was dropped.
    pub reason: DeadLetterReason,
    /// The lane it was on; absent where a layer above dropped it.
    pub lane: Option<Lane>,
    /// The node that sent it, if that is known.
    pub from: Option<NodeAddress>,
    /// The node it was for, if that is known.
    pub to: Option<NodeAddress>,
    /// The path of its recipient; empty where the message's content is not known.
    pub recipient: String,
    /// The manifest; empty where the message's content is not known.
    pub manifest: String,
    /// The payload in bytes; 0 if the message was never encoded.
    pub size: usize,
    /// The number of such messages: more than one only where their content is not known.
    pub count: u64,
}

/// The counters of one node.
#[derive(Debug)]
pub struct DeadLetters {
    log_rate: u32,
    counters: Mutex<Counters>,
    subscribers: Mutex<Vec<Arc<Buffer>>>,
    /// The number of subscribers, read before a letter is made.
    subscribed: AtomicUsize,
}

#[derive(Debug, Default)]
struct Counters {
    counts: BTreeMap<DeadLetterKey, u64>,
    rations: BTreeMap<RationKey, Ration>,
}

type RationKey = (DeadLetterReason, Option<NodeAddress>);

#[derive(Debug)]
struct Ration {
    since: Instant,
    logged: u32,
    suppressed: u64,
}

/// The request to write a log line about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLine {
    /// Dead letters of the same kind since the last line that were not logged.
    pub suppressed: u64,
}

/// The number of dead letters of one kind that were not logged in a minute that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppressed {
    /// Why they were dropped.
    pub reason: DeadLetterReason,
    /// The node that they were to or from.
    pub peer: Option<NodeAddress>,
    /// The number of letters.
    pub count: u64,
}

/// Limit of counters by lane and peer: callers can name any number of addresses and lanes. Drops beyond the limit count
/// under their reason alone.
const COUNTERS: usize = 16 * 1024;
const RATION: Duration = Duration::from_secs(60);

impl DeadLetters {
    /// Makes counters whose log lines are limited to `log_rate` a minute per reason and peer.
    pub fn new(log_rate: u32) -> Self {
        Self { log_rate, counters: Mutex::default(), subscribers: Mutex::default(), subscribed: AtomicUsize::new(0) }
    }

    /// Counts `count` messages; says whether to write a log line.
    pub fn count(&self, now: Instant, key: DeadLetterKey, count: u64) -> Option<LogLine> {
        let mut counters = self.counters();
        let rationed = counters.ration_key(&key);
        let ration = counters.rations.entry(rationed).or_insert(Ration { since: now, logged: 0, suppressed: 0 });
        let mut line = None;
        if now.saturating_duration_since(ration.since) >= RATION {
            (ration.since, ration.logged) = (now, 0);
        }
        if ration.logged < self.log_rate {
            ration.logged += 1;
            line = Some(LogLine { suppressed: std::mem::take(&mut ration.suppressed) });
        } else {
            ration.suppressed += count;
        }
        counters.add(key, count);
        line
    }

    /// Counts messages without publishing or logging them: their protocol repeats them.
    pub fn count_chatter(&self, key: DeadLetterKey, count: u64) {
        self.counters().add(key, count);
    }

    /// Returns the suppressed lines of the minutes that ended by `now`; each minute is returned once.
    pub fn suppressed(&self, now: Instant) -> Vec<Suppressed> {
        let mut found = Vec::new();
        self.counters().rations.retain(|(reason, peer), ration| {
            let is_over = now.saturating_duration_since(ration.since) >= RATION;
            if is_over && ration.suppressed > 0 {
                found.push(Suppressed { reason: *reason, peer: peer.clone(), count: ration.suppressed });
            }
            !is_over
        });
        found
    }

    /// Subscribes to letters from now on; at most `capacity` of them wait to be read.
    pub fn subscribe(&self, capacity: usize) -> DeadLetterEvents {
        let buffer = Arc::new(Buffer { capacity: capacity.max(1), state: Mutex::default() });
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.push(buffer.clone());
        self.subscribed.store(subscribers.len(), Ordering::Release);
        DeadLetterEvents { buffer }
    }

    /// Publishes a letter to the subscribers; without any, the letter is not even made.
    pub fn publish(&self, letter: impl FnOnce() -> DeadLetter) {
        if self.subscribed.load(Ordering::Acquire) == 0 {
            return;
        }
        let letter = letter();
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the buffers of subscribers that are gone: nothing else holds those.
        subscribers.retain(|buffer| Arc::strong_count(buffer) > 1);
        self.subscribed.store(subscribers.len(), Ordering::Release);
        subscribers.iter().for_each(|buffer| buffer.push(&letter));
    }

    /// How many messages were dropped for `reason`, over all lanes and peers.
    pub fn total(&self, reason: DeadLetterReason) -> u64 {
        self.counters().counts.iter().filter(|(key, _)| key.reason == reason).map(|(_, count)| count).sum()
    }

    /// Every counter.
    pub fn counts(&self) -> BTreeMap<DeadLetterKey, u64> {
        self.counters().counts.clone()
    }

    /// The counters by reason alone.
    pub fn totals(&self) -> BTreeMap<DeadLetterReason, u64> {
        let mut totals = BTreeMap::new();
        for (key, count) in &self.counters().counts {
            *totals.entry(key.reason).or_default() += count;
        }
        totals
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().expect("counting never panics")
    }
}

impl Counters {
    /// The key by which the log lines of this counter are rationed.
    fn ration_key(&self, key: &DeadLetterKey) -> RationKey {
        let rationed = (key.reason, key.peer.clone());
        let is_full = self.rations.len() >= COUNTERS && !self.rations.contains_key(&rationed);
        if is_full { (key.reason, None) } else { rationed }
    }

    fn add(&mut self, key: DeadLetterKey, count: u64) {
        let is_full = self.counts.len() >= COUNTERS && !self.counts.contains_key(&key);
        let key = if is_full { DeadLetterKey { lane: None, peer: None, ..key } } else { key };
        *self.counts.entry(key).or_default() += count;
    }
}

/// The letters that wait for one subscriber.
#[derive(Debug)]
struct Buffer {
    capacity: usize,
    state: Mutex<BufferState>,
}

#[derive(Debug, Default)]
struct BufferState {
    letters: VecDeque<DeadLetter>,
    missed: u64,
    waker: Option<Waker>,
}

impl Buffer {
    fn push(&self, letter: &DeadLetter) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.letters.len() >= self.capacity {
            state.missed += letter.count;
            return;
        }
        state.letters.push_back(letter.clone());
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The dead letters of a node since a subscription began. A subscriber that reads too slowly misses the newest.
#[derive(Debug)]
pub struct DeadLetterEvents {
    buffer: Arc<Buffer>,
}

impl DeadLetterEvents {
    /// The next letter that waits already.
    pub fn try_next(&mut self) -> Option<DeadLetter> {
        self.state().letters.pop_front()
    }

    /// The next letter. Cancel safe.
    #[expect(clippy::should_implement_trait, reason = "it yields a future, as the `next` of every stream here does")]
    pub fn next(&mut self) -> impl Future<Output = DeadLetter> {
        std::future::poll_fn(|cx: &mut Context<'_>| {
            let mut state = self.state();
            match state.letters.pop_front() {
                Some(letter) => Poll::Ready(letter),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    /// Returns how many messages were dropped while the buffer was full, since the last call.
    pub fn missed(&mut self) -> u64 {
        std::mem::take(&mut self.state().missed)
    }

    fn state(&self) -> MutexGuard<'_, BufferState> {
        self.buffer.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(lane: Lane) -> DeadLetterKey {
        DeadLetterKey { reason: DeadLetterReason::QueueFull, lane: Some(lane), peer: None }
    }

    fn letter(size: usize) -> DeadLetter {
        DeadLetter {
            reason: DeadLetterReason::QueueFull,
            lane: None,
            from: None,
            to: None,
            recipient: "inbox".to_owned(),
            manifest: "m".to_owned(),
            size,
            count: 1,
        }
    }

    /// Cluster T21, T41: a caller may name any number of addresses; no more than `COUNTERS` of them cost memory.
    #[test]
    fn countless_peers_share_one_ration() {
        let (letters, now) = (DeadLetters::new(1), Instant::now());
        for n in 0..COUNTERS + 1000 {
            let peer = NodeAddress::new(&format!("h{n}"), 1).ok();
            letters.count(now, DeadLetterKey { peer, ..key(Lane::CONTROL) }, 1);
        }
        assert!(letters.counters().rations.len() <= COUNTERS + 1 && letters.counters().counts.len() <= COUNTERS + 1);
        assert_eq!(letters.total(DeadLetterReason::QueueFull), (COUNTERS + 1000) as u64);
    }

    /// Cluster T41: log lines are rationed, and a line says how many were left out.
    #[test]
    fn every_message_counts_and_few_are_logged() {
        let letters = DeadLetters::new(2);
        let now = Instant::now();
        let lines: Vec<bool> = (0..5).map(|_| letters.count(now, key(Lane::ordinary(0)), 1).is_some()).collect();
        assert_eq!(lines, [true, true, false, false, false]);
        let later = letters.count(now + RATION, key(Lane::LARGE), 2);
        assert_eq!(later, Some(LogLine { suppressed: 3 }));
        assert_eq!(letters.total(DeadLetterReason::QueueFull), 7);
        assert_eq!(letters.counts()[&key(Lane::LARGE)], 2);
    }

    /// Cluster T41: every message counts, and callers cannot make counters without limit.
    #[test]
    fn counters_are_bounded_and_nothing_is_lost() {
        let letters = DeadLetters::new(0);
        let reason = DeadLetterReason::NoSuchRecipient;
        let key = |n: usize| {
            let port = u16::try_from(n % 60_000 + 1).unwrap();
            let peer = NodeAddress::new("a", port).unwrap();
            DeadLetterKey { reason, lane: Some(Lane::ordinary(u16::try_from(n / 60_000).unwrap())), peer: Some(peer) }
        };
        (0..COUNTERS + 100).for_each(|n| letters.count_chatter(key(n), 1));
        letters.count_chatter(key(0), 1);
        let counts = letters.counts();
        assert_eq!((counts.len(), counts[&key(0)]), (COUNTERS + 1, 2));
        assert_eq!(counts[&DeadLetterKey { reason, lane: None, peer: None }], 100);
        assert_eq!(letters.total(reason), COUNTERS as u64 + 101);
    }

    /// Cluster T41: a minute of suppressed lines ends with their number, once.
    #[test]
    fn a_minute_that_suppressed_lines_ends_with_their_number() {
        let letters = DeadLetters::new(1);
        let now = Instant::now();
        assert_eq!((0..4).filter_map(|_| letters.count(now, key(Lane::CONTROL), 1)).count(), 1);
        assert_eq!(letters.suppressed(now + RATION / 2), []);
        let suppressed = Suppressed { reason: DeadLetterReason::QueueFull, peer: None, count: 3 };
        assert_eq!(letters.suppressed(now + RATION), [suppressed]);
        assert_eq!(letters.suppressed(now + RATION), []);
    }

    /// Cluster T41: a subscriber that does not read delays no publisher and knows how many letters it missed.
    #[test]
    fn a_slow_subscriber_misses_letters_and_knows_how_many() {
        let letters = DeadLetters::new(1);
        letters.publish(|| panic!("there is no subscriber, so no letter is written"));
        let mut events = letters.subscribe(2);
        (0..5).for_each(|size| letters.publish(|| letter(size)));
        assert_eq!((events.try_next(), events.try_next(), events.try_next()), (Some(letter(0)), Some(letter(1)), None));
        assert_eq!((events.missed(), events.missed()), (3, 0));
        letters.publish(|| letter(9));
        assert_eq!(events.try_next(), Some(letter(9)));
        drop(events);
        letters.publish(|| letter(10));
        letters.publish(|| panic!("the last subscriber has gone"));
    }
}
