//! A consumer's memory of each stream: the highest total processed contiguously (watermark), and the highest epoch
//! seen.
//!
//! Totals (producer-wide sequence numbers) of one stream at one consumer increase strictly, so one watermark per stream
//! is enough to recognise duplicates. Watermarks outlive links and producers; an event-sourced entity recovers them
//! from its own journal (the marks `gl.delivery`).
//!
//! Source: delivery C8, S14, §7.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ids::{Epoch, ProducerId, SeqNr, StreamId};

/// The knowledge with which a consumer starts: the highest processed total of each stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dedupe(BTreeMap<StreamId, SeqNr>);

impl Dedupe {
    /// No stream is known to be processed: for an entity that keeps no record of its streams.
    pub fn none() -> Self {
        Self::default()
    }

    /// Notes that `stream` is processed up to `total`; the higher of the old and the new number stands.
    pub fn insert(&mut self, stream: StreamId, total: SeqNr) {
        let known = self.0.entry(stream).or_default();
        *known = total.max(*known);
    }

    /// Streams and their highest processed totals.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, SeqNr)> + '_ {
        self.0.iter().map(|(stream, total)| (*stream, *total))
    }
}

impl FromIterator<(StreamId, SeqNr)> for Dedupe {
    fn from_iter<I: IntoIterator<Item = (StreamId, SeqNr)>>(marks: I) -> Self {
        let mut dedupe = Self::default();
        for (stream, total) in marks {
            dedupe.insert(stream, total);
        }
        dedupe
    }
}

/// State of an unconfirmed message, taken over from an earlier controller of the same consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Attempts {
    /// How often the message was handed out.
    pub(crate) count: u32,
    /// The earliest time of the next attempt.
    pub(crate) until: Option<Instant>,
}

/// The watermark of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watermark {
    confirmed: SeqNr,
    epoch: Epoch,
    touched_at: Instant,
    /// A later stream of the same producer exists, so this stream will send nothing more and may be pruned early.
    superseded: bool,
}

/// The watermarks of a consumer, by stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermarks {
    streams: BTreeMap<StreamId, Watermark>,
    /// The most recent stream of each producer from which frames arrived.
    latest: BTreeMap<ProducerId, StreamId>,
    /// Attempts at unconfirmed messages, taken over from an earlier controller. Empty except after a failure.
    attempts: BTreeMap<(StreamId, SeqNr), Attempts>,
    max_streams: usize,
    retention: Duration,
}

impl Watermarks {
    /// No watermarks yet. Up to `max_streams` are kept for ever; beyond that, a watermark is kept for `retention`, or
    /// until its producer begins another stream.
    pub fn new(max_streams: usize, retention: Duration) -> Self {
        let (streams, latest, attempts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { streams, latest, attempts, max_streams, retention }
    }

    /// Merges in the consumer's own knowledge of each stream.
    pub fn merge(&mut self, now: Instant, dedupe: &Dedupe) {
        for (stream, total) in dedupe.iter() {
            self.confirm(now, stream, total);
        }
    }

    /// The highest total of `stream` that is processed contiguously.
    pub fn confirmed(&self, stream: StreamId) -> SeqNr {
        self.streams.get(&stream).map_or(SeqNr::NONE, |mark| mark.confirmed)
    }

    /// The highest epoch of `stream` to which the consumer switched.
    pub fn epoch(&self, stream: StreamId) -> Epoch {
        self.streams.get(&stream).map_or(Epoch(0), |mark| mark.epoch)
    }

    /// Stores the attempts of an earlier controller at a message.
    pub(crate) fn remember_attempts(&mut self, stream: StreamId, total: SeqNr, attempts: Attempts) {
        self.attempts.insert((stream, total), attempts);
    }

    /// Removes and returns the attempts of an earlier controller at a message.
    pub(crate) fn take_attempts(&mut self, stream: StreamId, total: SeqNr) -> Option<Attempts> {
        if self.attempts.is_empty() { None } else { self.attempts.remove(&(stream, total)) }
    }

    /// Attempts of an earlier controller at messages that have not arrived again yet.
    pub(crate) fn attempts_not_taken(&self) -> impl Iterator<Item = (StreamId, SeqNr, Attempts)> + '_ {
        self.attempts.iter().map(|((stream, total), attempts)| (*stream, *total, *attempts))
    }

    pub(crate) fn confirm(&mut self, now: Instant, stream: StreamId, total: SeqNr) {
        let mark = self.entry(now, stream);
        mark.confirmed = mark.confirmed.max(total);
    }

    pub(crate) fn switch(&mut self, now: Instant, producer: &ProducerId, stream: StreamId, epoch: Epoch) {
        let mark = self.entry(now, stream);
        mark.epoch = mark.epoch.max(epoch);
        mark.superseded = false;
        let former = match self.latest.get_mut(producer) {
            Some(latest) => std::mem::replace(latest, stream),
            None => *self.latest.entry(producer.clone()).or_insert(stream),
        };
        if former != stream
            && let Some(mark) = self.streams.get_mut(&former)
        {
            mark.superseded = true;
        }
    }

    /// Number of streams with a watermark.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether no stream has a watermark.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    fn entry(&mut self, now: Instant, stream: StreamId) -> &mut Watermark {
        let fresh = Watermark { confirmed: SeqNr::NONE, epoch: Epoch(0), touched_at: now, superseded: false };
        let mark = self.streams.entry(stream).or_insert(fresh);
        mark.touched_at = mark.touched_at.max(now);
        mark
    }

    /// Drops the oldest watermarks beyond the limit, except those of streams that are `alive`, and those younger than
    /// the retention unless their producer has begun another stream.
    pub(crate) fn prune(&mut self, now: Instant, alive: impl Fn(StreamId) -> bool) {
        let excess = self.streams.len().saturating_sub(self.max_streams);
        if excess == 0 {
            return;
        }
        let old = |mark: &Watermark| mark.superseded || now.saturating_duration_since(mark.touched_at) > self.retention;
        let mut candidates: Vec<(Instant, StreamId)> = (self.streams.iter())
            .filter(|(stream, mark)| old(mark) && !alive(**stream))
            .map(|(stream, mark)| (mark.touched_at, *stream))
            .collect();
        candidates.sort();
        for (_, stream) in candidates.into_iter().take(excess) {
            self.streams.remove(&stream);
        }
        let streams = &self.streams;
        self.latest.retain(|_, stream| streams.contains_key(stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_only_rise_and_only_old_dead_streams_are_forgotten() {
        let start = Instant::now();
        let day = Duration::from_secs(86_400);
        let mut marks = Watermarks::new(1, day);
        for stream in 1..=3 {
            marks.confirm(start, StreamId(stream), SeqNr(7));
            marks.confirm(start, StreamId(stream), SeqNr(5));
        }
        assert_eq!(marks.confirmed(StreamId(1)), SeqNr(7));
        marks.prune(start + day, |_| false);
        assert_eq!(marks.streams.len(), 3, "not older than the retention");
        marks.confirm(start + day * 2, StreamId(3), SeqNr(8));
        marks.prune(start + day * 2, |stream| stream == StreamId(2));
        assert_eq!(marks.streams.keys().copied().collect::<Vec<_>>(), [StreamId(2), StreamId(3)]);
    }

    /// delivery 75: frames of 1000 producers arrive while 500 old, dead streams are known.
    #[test]
    fn no_mark_of_a_living_stream_is_dropped() {
        let start = Instant::now();
        let day = Duration::from_secs(86_400);
        let mut marks = Watermarks::new(1000, day);
        for stream in 1..=1500 {
            let producer = ProducerId::new(format!("p{stream}")).unwrap();
            marks.switch(start, &producer, StreamId(stream), Epoch::FIRST);
            marks.confirm(start, StreamId(stream), SeqNr(7));
        }
        let is_live = |stream: StreamId| !stream.0.is_multiple_of(3);
        marks.prune(start + day * 2, is_live);
        assert_eq!(marks.len(), 1000);
        let live = (1..=1500).map(StreamId).filter(|stream| is_live(*stream));
        assert!(live.into_iter().all(|stream| marks.confirmed(stream) == SeqNr(7)));
    }
}
