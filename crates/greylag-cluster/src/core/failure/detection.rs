//! Detection of silent peers: the heartbeats, and the rounds in which this node marks peers unreachable or reachable.
//!
//! Source: cluster F1 to F10.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::core::state::State;
use crate::core::{Effect, LogLevel};
use crate::detector::FailureDetectorSettings;
use crate::detector::heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
use crate::gossip::reachability::Status;
use crate::gossip::state::Gossip;
use crate::membership::message::Message;

/// This node's detection of silent peers.
#[derive(Debug)]
pub(in crate::core) struct Detection {
    heartbeat: HeartbeatCore,
    /// When the marks are next judged.
    reaper_at: Instant,
}

impl Detection {
    pub(in crate::core) fn new(node: UniqueAddress, settings: &FailureDetectorSettings, now: Instant) -> Self {
        Self { heartbeat: HeartbeatCore::new(node, settings.clone(), now), reaper_at: now }
    }

    /// Begins anew, as this node becomes a member; the first round is at `first_at`.
    pub(in crate::core) fn start(
        &mut self,
        node: UniqueAddress,
        settings: &FailureDetectorSettings,
        now: Instant,
        first_at: Instant,
    ) {
        *self = Self { reaper_at: first_at, ..Self::new(node, settings, now) };
    }

    /// When a heartbeat or a round is next due.
    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        self.heartbeat.next_deadline().into_iter().chain([self.reaper_at]).min()
    }

    /// How late the latest heartbeat or round is.
    pub(in crate::core) fn lag(&self, now: Instant) -> Duration {
        self.heartbeat.lag(now).max(now.saturating_duration_since(self.reaper_at))
    }

    /// Whether this node watches `peer`.
    pub(in crate::core) fn monitors(&self, peer: &UniqueAddress) -> bool {
        self.heartbeat.monitors(peer)
    }

    /// Gives every peer its whole time again, since this process stood still; no round is due for `interval`.
    pub(in crate::core) fn on_paused(&mut self, now: Instant, interval: Duration, out: &mut Vec<Effect>) {
        self.tell(now, HeartbeatInput::Paused, out);
        // Mark no peer unreachable on this tick.
        self.reaper_at = self.reaper_at.max(now + interval);
    }

    /// Sends the heartbeats that are due.
    pub(in crate::core) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.tell(now, HeartbeatInput::Tick, out);
    }

    pub(in crate::core) fn on_response(&mut self, now: Instant, from: UniqueAddress, out: &mut Vec<Effect>) {
        self.tell(now, HeartbeatInput::Response(from), out);
    }

    /// Watches the peers that follow from a new state.
    pub(in crate::core) fn on_state(&mut self, now: Instant, state: &State, out: &mut Vec<Effect>) {
        let ring = state.gossip().members.ring();
        let marked = state.gossip().reachability.accused_by(state.node()).cloned().collect();
        let input = HeartbeatInput::Members { ring, unreachable: state.view().unreachable.clone(), marked };
        self.tell(now, input, out);
    }

    /// Source: cluster F2.
    pub(in crate::core) fn check_invariants(&self, state: &State) {
        if cfg!(debug_assertions) && state.gossip().members.len() <= 32 {
            let watches_members = self.heartbeat.monitored().all(|peer| state.is_member(peer));
            assert!(watches_members, "only members are watched");
        }
    }

    fn tell(&mut self, now: Instant, input: HeartbeatInput, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.heartbeat.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                HeartbeatEffect::Send { to, seq } => {
                    out.push(Effect::send(to.clone(), Message::Heartbeat { to, seq }));
                }
                HeartbeatEffect::Growing { peer, interval } => {
                    let text = format!("heartbeat interval growing: {interval:?} between two responses of {peer}");
                    out.push(Effect::Log(LogLevel::Warn, text));
                }
            }
        }
    }

    /// Whether a round is due; the next one is due after `interval`.
    pub(in crate::core) fn reaps(&mut self, now: Instant, interval: Duration) -> bool {
        let due = self.reaper_at <= now;
        if due {
            self.reaper_at = now + interval;
        }
        due
    }

    /// The state with the own row of the reachability table updated from the detectors; `None` if it stays as it is.
    /// `withholds` is told how many of how many watched peers are newly silent, and says whether to mark none of them.
    /// Source: cluster F8, F10.
    pub(in crate::core) fn reap(
        &self,
        now: Instant,
        state: &State,
        withholds: impl FnOnce(usize, usize) -> bool,
        out: &mut Vec<Effect>,
    ) -> Option<Gossip> {
        let table = &state.gossip().reachability;
        let status = |peer: &UniqueAddress| table.status(state.node(), peer);
        let is_available = |peer: &UniqueAddress| self.heartbeat.is_available(now, peer);
        let watched = self.heartbeat.monitored().filter(|peer| state.is_member(peer));
        let silent = watched.filter(|peer| status(peer) == Status::Reachable && !is_available(peer));
        let mut silent: Vec<UniqueAddress> = silent.cloned().collect();
        // Include accused peers that this node does not watch any more: it keeps their detectors until they answer
        // (cluster F3).
        let accused = table.accused_by(state.node());
        let back = accused.filter(|peer| status(peer) == Status::Unreachable && is_available(peer));
        let back: Vec<UniqueAddress> = back.cloned().collect();
        if withholds(silent.len(), self.heartbeat.monitored().count()) {
            silent.clear();
        }
        if silent.is_empty() && back.is_empty() {
            return None;
        }
        let mut gossip = Gossip::clone(state.gossip());
        for peer in &silent {
            out.push(Effect::Log(LogLevel::Warn, format!("{peer} does not answer; marked unreachable")));
            gossip.reachability.set(state.node(), peer, Status::Unreachable);
        }
        for peer in &back {
            out.push(Effect::Log(LogLevel::Info, format!("{peer} answers again")));
            gossip.reachability.set(state.node(), peer, Status::Reachable);
        }
        Some(gossip)
    }
}
