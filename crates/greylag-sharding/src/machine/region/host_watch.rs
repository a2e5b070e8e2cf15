//! Whether any member may host the type at all.
//!
//! A type whose role no member has would keep its messages for ever, and look like a type whose coordinator is late.
//! After a timeout the absence is reported once, and messages that have waited that long end; the first member with the
//! role heals it.
//!
//! Source: sharding §2.3, scenario 108.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::ids::ShardId;

/// Shortest time between two looks into one shard's buffer: messages end in batches, not one by one.
const STEP: Duration = Duration::from_millis(100);

/// See the module's description.
#[derive(Debug)]
pub(super) struct HostWatch {
    timeout: Duration,
    /// Since when this node is a member and no member of the cluster has the role.
    absent_since: Option<Instant>,
    /// Whether the absence was reported.
    is_absence_reported: bool,
    /// When the longest-waiting message of a shard expires while no member has the role: one entry for each shard.
    due: BTreeSet<(Instant, ShardId)>,
    watched: BTreeSet<ShardId>,
}

/// The result of a tick.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Whether the region reports now that no member hosts: once for each absence, when its timeout has passed.
    pub(super) tell: bool,
    /// Shards in which messages have waited for too long.
    pub(super) shards: Vec<ShardId>,
}

impl HostWatch {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, absent_since: None, is_absence_reported: false, due: BTreeSet::new(), watched: BTreeSet::new() }
    }

    /// Takes the members' view. `waiting` lists the shards in which messages wait; called only when the last host goes.
    /// Returns whether a host has come after its absence was reported.
    pub(super) fn observe(&mut self, now: Instant, is_absent: bool, waiting: impl FnOnce() -> Vec<ShardId>) -> bool {
        if !is_absent {
            self.absent_since = None;
            self.due.clear();
            self.watched.clear();
            return std::mem::take(&mut self.is_absence_reported);
        }
        if self.absent_since.is_none() {
            self.absent_since = Some(now);
            waiting().iter().for_each(|shard| self.kept(now, shard));
        }
        false
    }

    /// Watches a shard in which a message waits from now on.
    pub(super) fn kept(&mut self, now: Instant, shard: &ShardId) {
        if self.absent_since.is_some() && !self.watched.contains(shard) {
            self.watch(now + self.timeout, shard);
        }
    }

    /// Watches a shard again whose longest-waiting message waits since `since`.
    pub(super) fn waits_on(&mut self, now: Instant, shard: &ShardId, since: Instant) {
        self.watch((since + self.timeout).max(now + STEP), shard);
    }

    fn watch(&mut self, at: Instant, shard: &ShardId) {
        self.watched.insert(shard.clone());
        self.due.insert((at, shard.clone()));
    }

    /// Source: sharding §2.3.
    pub(super) fn check_invariants(&self) {
        debug_assert_eq!(self.due.len(), self.watched.len(), "each watched shard is looked at once");
        let is_idle = self.due.is_empty() && !self.is_absence_reported;
        debug_assert!(self.absent_since.is_some() || is_idle, "nothing is watched while a member hosts");
    }

    /// Whether the absence of hosts was reported.
    pub(super) fn is_reported(&self) -> bool {
        self.is_absence_reported
    }

    /// How long a message may wait while no member hosts.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let since = self.absent_since?;
        let first = self.due.first().map(|(at, _)| *at);
        if self.is_absence_reported { first } else { Some(since + self.timeout) }
    }

    pub(super) fn tick(&mut self, now: Instant) -> Due {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return Due::default();
        }
        let mut due = Due { tell: !std::mem::replace(&mut self.is_absence_reported, true), shards: Vec::new() };
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let (_, shard) = self.due.pop_first().expect("just seen");
            self.watched.remove(&shard);
            due.shards.push(shard);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn shard(index: u32) -> ShardId {
        ShardId::from_index(index)
    }

    fn due(tell: bool, shards: &[u32]) -> Due {
        Due { tell, shards: shards.iter().map(|index| shard(*index)).collect() }
    }

    /// One shard is looked at once in a step, however many messages wait in it.
    #[test]
    fn a_shard_has_one_entry() {
        let (start, mut watch) = (Instant::now(), HostWatch::new(TIMEOUT));
        watch.observe(start, true, Vec::new);
        (0..1000).for_each(|ms| watch.kept(start + Duration::from_millis(ms), &shard(1)));
        assert_eq!(watch.due.len(), 1);
        assert_eq!(watch.tick(start + TIMEOUT), due(true, &[1]));
        watch.waits_on(start + TIMEOUT, &shard(1), start + Duration::from_millis(1));
        assert_eq!(watch.next_deadline(), Some(start + TIMEOUT + STEP));
        watch.waits_on(start + TIMEOUT, &shard(2), start + Duration::from_secs(2));
        assert_eq!(watch.tick(start + TIMEOUT + STEP), due(false, &[1]));
        assert_eq!(watch.next_deadline(), Some(start + TIMEOUT + Duration::from_secs(2)));
    }

    #[test]
    fn the_absence_of_hosts_is_reported_once_and_shards_end_after_their_own_timeout() {
        let (start, mut watch) = (Instant::now(), HostWatch::new(TIMEOUT));
        assert!(!watch.observe(start, false, || unreachable!("no host has gone")));
        watch.kept(start, &shard(9));
        assert_eq!(watch.next_deadline(), None, "there is a host");
        watch.observe(start, true, || vec![shard(1)]);
        watch.observe(start + TIMEOUT / 2, true, || unreachable!("it is absent already"));
        watch.kept(start + TIMEOUT / 2, &shard(2));
        assert_eq!(watch.tick(start + TIMEOUT - Duration::from_millis(1)), due(false, &[]));
        assert_eq!(watch.next_deadline(), Some(start + TIMEOUT));
        assert_eq!(watch.tick(start + TIMEOUT), due(true, &[1]));
        assert!(watch.is_reported());
        assert_eq!(watch.next_deadline(), Some(start + TIMEOUT * 3 / 2));
        assert_eq!(watch.tick(start + TIMEOUT * 3 / 2), due(false, &[2]));
        assert_eq!(watch.next_deadline(), None);
        assert!(watch.observe(start + TIMEOUT * 2, false, || unreachable!("it has come")), "healed");
        assert!(!watch.is_reported() && !watch.observe(start + TIMEOUT * 2, false, Vec::new));
    }
}
