//! Decides whether this node may trust its own view: detects pauses of the process, and handles their consequences.
//!
//! A process that stood still must not blame its peers for the silence, and must not decide in the first seconds after
//! it woke. If it stood still for long, it may have been removed meanwhile: then it distrusts itself (is *suspect*)
//! until other members confirm it. Source: cluster F9, F10.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::{ClusterCore, Effect, Life, LogLevel, Standing};
use crate::event::ClusterEvent;
use crate::gossip::Gossip;
use crate::heartbeat::HeartbeatInput;
use crate::member::MemberStatus;
use crate::settings::ClusterSettings;

/// This node's trust in itself.
#[derive(Debug)]
pub(super) struct SelfTrust {
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
    pub(super) fn new(now: Instant) -> Self {
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

    pub(super) fn start(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect_since.is_some()
    }

    /// Whether this node must take no downing decision and no leader action.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.is_suspect() || self.pauses(now)
    }

    /// Whether this process has just woken from a pause, and so must take no decision at all.
    pub(super) fn pauses(&self, now: Instant) -> bool {
        self.hold_until.is_some_and(|until| now < until)
    }

    /// Whether due marks are deferred, so that the state does not show everything that this node knows.
    pub(super) fn defers(&self, now: Instant) -> bool {
        self.defer_until.is_some_and(|until| now < until)
    }

    /// How long ago this node last exchanged gossip with another member.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_exchange_at)
    }

    /// Whether to defer marking peers: more than half of them fell silent at once while this node itself was late, so
    /// the fault is more likely its own. Defers once, for one more pause.
    pub(super) fn defers_marking(
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
}

impl ClusterCore {
    /// Detects that this process stood still, by a heartbeat round that is far too late.
    pub(super) fn notice_pause(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !matches!(self.life, Life::Member) {
            return;
        }
        let lag = self.heartbeat.lag(now).max(now.saturating_duration_since(self.rounds.reaper_at));
        let detector = &self.settings.failure_detector;
        let interval = detector.heartbeat_interval;
        if lag <= detector.local_pause_threshold {
            if lag > interval {
                self.trust.lagged_at = Some(now);
            }
            return;
        }
        // Do not defer marks beyond this: a pause gives every peer its whole time again. If marks were deferred twice,
        // a losing side would end after the winning side's margin (cluster F10, G1).
        self.trust.hold_until = Some(now + 3 * interval);
        self.tell_heartbeat(now, HeartbeatInput::Paused, out);
        // Mark no peer unreachable on this tick.
        self.rounds.reaper_at = self.rounds.reaper_at.max(now + self.settings.unreachable_nodes_reaper_interval);
        out.push(Effect::Log(LogLevel::Warn, format!("process paused for {lag:?}")));
        out.push(Effect::Publish(ClusterEvent::LocalPause(lag)));
        let long = self.settings.stable_after();
        if (lag > long || self.trust.silence(now) > long) && !self.is_alone() {
            let already = self.trust.is_suspect();
            if !already {
                out.push(Effect::Publish(ClusterEvent::SelfSuspect));
            }
            // A short stop of a node that is suspect already does not renew the suspicion, or a host that stops now and
            // then would never end.
            if !already || lag > long {
                self.trust.suspect_since = Some(now);
                self.trust.exchanged.clear();
            }
        }
        if !self.is_alone() {
            // Change the version without a change of content: gossip that shows it proves that its sender has heard
            // this process since it woke.
            self.change(now, Gossip::clone(&self.gossip), out);
            self.trust.spoke_at = self.gossip.version.count(&self.node);
        }
    }

    /// Publishes the node's standing before the step's other effects: at each tick, whenever it changes, and when the
    /// node becomes a member, since singletons and shards may start in that same step.
    pub(super) fn publish_standing(&mut self, now: Instant, ticked: bool, begin: usize, out: &mut Vec<Effect>) {
        let standing = match self.life {
            Life::Ended => Standing::Ended,
            _ if self.trust.is_suspect() || self.downed.is_some() => Standing::Held,
            Life::Member => Standing::Trusted,
            Life::Idle | Life::Joining(_) => return,
        };
        if ticked || self.trust.published != Some(standing) {
            self.trust.published = Some(standing);
            out.insert(begin, Effect::Ticked { at: now, standing });
        }
    }

    /// Whether no other living member is left that could have removed this node.
    fn is_alone(&self) -> bool {
        self.gossip.members.values().all(|member| member.address == self.node || member.dead)
    }

    /// Notes an exchange of gossip. This node is trusted again after an exchange with a member that trusts itself, or
    /// with enough members that they and this node are the majority. Gossip that waited in a socket while this process
    /// slept is no exchange: its sender may have removed this node since. `heard` is how many changes of this node the
    /// gossip knows.
    pub(super) fn note_exchange(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        heard: u64,
        suspect: bool,
        out: &mut Vec<Effect>,
    ) {
        if heard < self.trust.spoke_at {
            return;
        }
        self.trust.last_exchange_at = now;
        if !self.trust.is_suspect() {
            return;
        }
        self.trust.exchanged.insert(from.clone());
        let counted = |member: &&crate::member::Member| {
            !matches!(
                member.status,
                MemberStatus::Joining | MemberStatus::WeaklyUp | MemberStatus::Down | MemberStatus::Exiting
            )
        };
        let total = self.gossip.members.values().filter(counted).count();
        let with_us = self.gossip.members.values().filter(counted);
        let with_us = with_us.filter(|m| m.address == self.node || self.trust.exchanged.contains(&m.address)).count();
        let confirmed = !suspect && self.view.is_reachable(from);
        if confirmed || 2 * with_us > total {
            self.become_trusted(now, out);
        }
    }

    fn become_trusted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.trust.suspect_since = None;
        self.trust.exchanged.clear();
        self.refresh(now, out);
        if self.downed.is_none() {
            out.push(Effect::Publish(ClusterEvent::SelfTrusted));
        }
    }

    pub(super) fn check_trust(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(since) = self.trust.suspect_since else { return };
        if self.is_alone() {
            self.become_trusted(now, out);
        } else if now.saturating_duration_since(since) >= self.settings.stable_after() && self.downed.is_none() {
            let text = "no other member confirms this node after its pause; it ends".to_owned();
            out.push(Effect::Log(LogLevel::Warn, text));
            let node = self.node.clone();
            self.down(now, &[node], out);
        }
    }
}
