//! Decides whether this node may trust its own view after a pause of the process.
//!
//! A process that stood still must not blame its peers for the silence, and must not decide in the first seconds after
//! it woke. If it stood still for long, it may have been removed meanwhile: then it distrusts itself (is *suspect*)
//! until other members confirm it. Source: cluster F9, F10.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::core::Standing;
use crate::core::state::State;
use crate::detector::FailureDetectorSettings;
use crate::membership::member::{Member, MemberStatus};
use crate::settings::ClusterSettings;

/// This node's trust in itself.
#[derive(Debug)]
pub(in crate::core) struct SelfTrust {
    /// No decisions before this time.
    hold_until: Option<Instant>,
    suspect_since: Option<Instant>,
    /// Members that this node exchanged gossip with while suspect.
    exchanged: BTreeSet<UniqueAddress>,
    last_exchange_at: Instant,
    /// The own version after the last pause: gossip that knows only an older one was sent before this process woke, and
    /// proves nothing about the present.
    spoke_at: u64,
    /// The last tick that was late, though not late enough for a pause.
    lagged_at: Option<Instant>,
    /// End of a deferral of marks, because many peers fell silent while this node lagged; granted once.
    defer_until: Option<Instant>,
    /// The standing that was published last, since this node became a member.
    published: Option<Standing>,
}

impl SelfTrust {
    pub(in crate::core) fn new(now: Instant) -> Self {
        Self {
            hold_until: None,
            suspect_since: None,
            exchanged: BTreeSet::new(),
            last_exchange_at: now,
            spoke_at: 0,
            lagged_at: None,
            defer_until: None,
            published: None,
        }
    }

    pub(in crate::core) fn start(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub(in crate::core) fn is_suspect(&self) -> bool {
        self.suspect_since.is_some()
    }

    /// Whether this node must take no downing decision and no leader action.
    pub(in crate::core) fn holds(&self, now: Instant) -> bool {
        self.is_suspect() || self.pauses(now)
    }

    /// Whether this process has just woken from a pause, and so must take no decision at all.
    pub(in crate::core) fn pauses(&self, now: Instant) -> bool {
        self.hold_until.is_some_and(|until| now < until)
    }

    /// Whether due marks are deferred, so that the state does not show everything that this node knows.
    pub(in crate::core) fn defers(&self, now: Instant) -> bool {
        self.defer_until.is_some_and(|until| now < until)
    }

    /// How long ago this node last exchanged gossip with another member.
    pub(in crate::core) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_exchange_at)
    }

    /// Whether to defer marking peers: more than half of them fell silent at once while this node itself was late, so
    /// the fault is more likely its own. Defers once, for one more pause.
    pub(in crate::core) fn defers_marking(
        &mut self,
        now: Instant,
        silent: usize,
        receivers: usize,
        settings: &ClusterSettings,
    ) -> bool {
        if let Some(until) = self.defer_until {
            if now >= until + Duration::from_secs(10) {
                self.defer_until = None;
            }
            return now < until && silent > 0;
        }
        let lagged = self.lagged_at.is_some_and(|at| now.saturating_duration_since(at) < Duration::from_secs(10));
        if lagged && 2 * silent > receivers {
            self.defer_until = Some(now + settings.failure_detector.acceptable_heartbeat_pause);
            return true;
        }
        false
    }

    /// Notes how late the latest round is. Returns true if the process stood still; then it takes no decision for a
    /// while.
    pub(in crate::core) fn on_lag(&mut self, now: Instant, lag: Duration, detector: &FailureDetectorSettings) -> bool {
        let interval = detector.heartbeat_interval;
        if lag <= detector.local_pause_threshold {
            if lag > interval {
                self.lagged_at = Some(now);
            }
            return false;
        }
        // Do not defer marks beyond this: a pause gives every peer its whole time again. If marks were deferred twice,
        // a losing side would end after the winning side's margin (cluster F10, G1).
        self.hold_until = Some(now + 3 * interval);
        true
    }

    /// Distrusts this node, which is not alone, if it stood still or heard no member for more than `long`. Returns true
    /// if it trusted itself before.
    pub(in crate::core) fn on_pause(&mut self, now: Instant, lag: Duration, long: Duration) -> bool {
        if lag <= long && self.silence(now) <= long {
            return false;
        }
        let already = self.is_suspect();
        // A short stop of a node that is suspect already does not renew the suspicion, or a host that stops now and
        // then would never end.
        if !already || lag > long {
            self.suspect_since = Some(now);
            self.exchanged.clear();
        }
        !already
    }

    /// Notes this node's own version after a pause.
    pub(in crate::core) fn on_spoken(&mut self, version: u64) {
        self.spoke_at = version;
    }

    /// Notes an exchange of gossip. Returns true if it ends the suspicion: after an exchange with a member that trusts
    /// itself, or with enough members that they and this node are the majority. Gossip that waited in a socket while
    /// this process slept is no exchange: its sender may have removed this node since. `heard` is how many changes of
    /// this node the gossip knows.
    pub(in crate::core) fn on_exchange(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        heard: u64,
        suspect: bool,
        state: &State,
    ) -> bool {
        if heard < self.spoke_at {
            return false;
        }
        self.last_exchange_at = now;
        if !self.is_suspect() {
            return false;
        }
        self.exchanged.insert(from.clone());
        let counted = |member: &&Member| {
            !matches!(
                member.status,
                MemberStatus::Joining | MemberStatus::WeaklyUp | MemberStatus::Down | MemberStatus::Exiting
            )
        };
        let total = state.gossip().members.values().filter(counted).count();
        let with_us = state.gossip().members.values().filter(counted);
        let with_us = with_us.filter(|m| m.address == *state.node() || self.exchanged.contains(&m.address)).count();
        let confirmed = !suspect && state.view().is_reachable(from);
        confirmed || 2 * with_us > total
    }

    /// Ends the suspicion.
    pub(in crate::core) fn on_confirmed(&mut self) {
        self.suspect_since = None;
        self.exchanged.clear();
    }

    /// How long this node has distrusted itself.
    pub(in crate::core) fn suspect_for(&self, now: Instant) -> Option<Duration> {
        self.suspect_since.map(|since| now.saturating_duration_since(since))
    }

    /// Source: cluster F9.
    pub(in crate::core) fn check_invariants(&self) {
        debug_assert!(self.is_suspect() || self.exchanged.is_empty(), "only a suspect node counts who confirms it");
    }

    /// Whether to publish this standing: at each tick, and whenever it changes.
    pub(in crate::core) fn publishes(&mut self, standing: Standing, ticked: bool) -> bool {
        let publishes = ticked || self.published != Some(standing);
        if publishes {
            self.published = Some(standing);
        }
        publishes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster F9, F10: a long stop makes a node suspect; a short stop of a suspect node does not renew the suspicion.
    #[test]
    fn a_short_stop_does_not_renew_the_suspicion() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let (long, short) = (Duration::from_secs(20), Duration::from_secs(5));
        let mut trust = SelfTrust::new(begin);
        assert!(!trust.on_pause(at(5), short, long), "short, and a member was heard lately");
        assert!(trust.on_pause(at(30), Duration::from_secs(21), long), "it stood still for long");
        assert!(!trust.on_pause(at(40), short, long), "suspect already");
        assert_eq!(trust.suspect_for(at(41)), Some(Duration::from_secs(11)));
        trust.on_pause(at(70), Duration::from_secs(21), long);
        assert_eq!(trust.suspect_for(at(71)), Some(Duration::from_secs(1)), "a long stop begins it anew");
        trust.on_confirmed();
        assert!(!trust.is_suspect());
    }
}
