//! Whether any member may host the type at all.
//!
//! A type whose role no member has would keep its messages for ever, and look like one whose coordinator is late. After a
//! while that is told once, and what has waited for that long ends; the first member with the role heals it.
//!
//! Source: sharding §2.3, scenario 108.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::ShardId;

/// See the module's description.
#[derive(Debug)]
pub(super) struct HostWatch {
    timeout: Duration,
    /// Since when this node is a member and none of the cluster has the role.
    absent_since: Option<Instant>,
    /// It was told.
    told: bool,
    /// In which shards something has waited since when, as long as no member has the role.
    waiting: VecDeque<(Instant, ShardId)>,
}

/// What is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Whether the region reports now that no member hosts: once for each absence, when its timeout has passed.
    pub(super) tell: bool,
    /// In these shards something has waited for too long.
    pub(super) shards: BTreeSet<ShardId>,
}

impl HostWatch {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, absent_since: None, told: false, waiting: VecDeque::new() }
    }

    /// Takes what the members say. `waiting` are the shards in which something waits; asked only when the last host goes.
    /// Answers whether a host has come after it was told that there is none.
    pub(super) fn observe(&mut self, now: Instant, is_absent: bool, waiting: impl FnOnce() -> Vec<ShardId>) -> bool {
        if !is_absent {
            self.absent_since = None;
            self.waiting.clear();
            return std::mem::take(&mut self.told);
        }
        if self.absent_since.is_none() {
            self.absent_since = Some(now);
            self.waiting = waiting().into_iter().map(|shard| (now, shard)).collect();
        }
        false
    }

    /// Something waits in this shard from now on.
    pub(super) fn kept(&mut self, now: Instant, shard: &ShardId) {
        if self.absent_since.is_some() {
            self.waiting.push_back((now, shard.clone()));
        }
    }

    /// Whether it was told that no member hosts.
    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    /// How long something may wait while no member hosts.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let since = self.absent_since?;
        let first = self.waiting.front().map(|(at, _)| *at + self.timeout);
        if self.told { first } else { Some(since + self.timeout) }
    }

    pub(super) fn tick(&mut self, now: Instant) -> Due {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return Due::default();
        }
        let mut due = Due { tell: !std::mem::replace(&mut self.told, true), shards: BTreeSet::new() };
        while let Some((at, _)) = self.waiting.front()
            && *at + self.timeout <= now
        {
            due.shards.extend(self.waiting.pop_front().map(|(_, shard)| shard));
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

    #[test]
    fn it_is_told_once_and_what_waits_ends_after_its_own_time() {
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
        assert!(watch.is_told());
        assert_eq!(watch.next_deadline(), Some(start + TIMEOUT * 3 / 2));
        assert_eq!(watch.tick(start + TIMEOUT * 3 / 2), due(false, &[2]));
        assert_eq!(watch.next_deadline(), None);
        assert!(watch.observe(start + TIMEOUT * 2, false, || unreachable!("it has come")), "healed");
        assert!(!watch.is_told() && !watch.observe(start + TIMEOUT * 2, false, Vec::new));
    }
}
