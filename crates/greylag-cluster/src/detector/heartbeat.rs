//! Heartbeats: decides which peers this node watches, and which of them are silent.
//!
//! All members form a ring in the order of their uids; each watches the next few clockwise and sends them heartbeats.
//! Only responses count, and only from current receivers.
//!
//! ```text
//! this node --Heartbeat{seq}--> receiver
//!           <--HeartbeatRsp{seq}--        feeds the receiver's detector
//! ```
//!
//! Source: cluster F1 to F4, F9.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::FailureDetectorSettings;
use crate::detector::FailureDetector;
use crate::detector::ring::Ring;
use crate::gossip::shared::Shared;

/// Limit of watched peers up to which debug builds check each of them.
const CHECKED_PEERS: usize = 32;

/// Least time between two log lines about late responses.
const GROWING_INTERVAL: Duration = Duration::from_secs(10);

/// An input to the [`HeartbeatCore`]: the members, answers of peers, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatInput {
    /// The members, those that any member finds unreachable, and those that this node finds so.
    Members {
        /// The members, this node among them or not.
        ring: Ring,
        /// Found unreachable by any member.
        unreachable: Shared<BTreeSet<UniqueAddress>>,
        /// Found unreachable by this node.
        marked: BTreeSet<UniqueAddress>,
    },
    /// A peer answered.
    Response(UniqueAddress),
    /// This process stood still; silence up to now proves nothing.
    Paused,
    /// Time has passed: send heartbeats if they are due.
    Tick,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatEffect {
    /// Send a heartbeat.
    Send {
        /// The receiver.
        to: UniqueAddress,
        /// The number of the heartbeat.
        seq: u64,
    },
    /// The responses of this peer come so late that little more would make it unavailable.
    Growing {
        /// The peer.
        peer: UniqueAddress,
        /// The time between its last two responses.
        interval: Duration,
    },
}

#[derive(Debug)]
struct Watched {
    detector: Box<dyn FailureDetector>,
    /// The last response, unless this process stood still since.
    heard_at: Option<Instant>,
    /// When to assume a response if none has come, so that silence from the start is detected.
    expected_at: Option<Instant>,
}

/// Watches the peers of one node.
#[derive(Debug)]
pub struct HeartbeatCore {
    node: UniqueAddress,
    settings: FailureDetectorSettings,
    ring: Ring,
    unreachable: Shared<BTreeSet<UniqueAddress>>,
    marked: BTreeSet<UniqueAddress>,
    /// The peers to watch by the ring.
    receivers: BTreeSet<UniqueAddress>,
    /// Peers that left the receivers while they were silent: watched until they answer or are removed.
    lingering: BTreeSet<UniqueAddress>,
    watched: BTreeMap<UniqueAddress, Watched>,
    next_at: Instant,
    seq: u64,
    /// The earliest time of the next log line about late responses.
    quiet_until: Option<Instant>,
}

impl HeartbeatCore {
    /// A node without peers, with the first heartbeat due at once.
    pub fn new(node: UniqueAddress, settings: FailureDetectorSettings, now: Instant) -> Self {
        Self {
            node,
            settings,
            ring: Ring::default(),
            unreachable: Shared::default(),
            marked: BTreeSet::new(),
            receivers: BTreeSet::new(),
            lingering: BTreeSet::new(),
            watched: BTreeMap::new(),
            next_at: now,
            seq: 0,
            quiet_until: None,
        }
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: HeartbeatInput, out: &mut Vec<HeartbeatEffect>) {
        match input {
            HeartbeatInput::Members { ring, unreachable, marked } => self.on_members(now, ring, unreachable, marked),
            HeartbeatInput::Response(from) => self.on_response(now, &from, out),
            HeartbeatInput::Paused => self.on_paused(now),
            HeartbeatInput::Tick => self.on_tick(now, out),
        }
        self.check_invariants(now);
    }

    /// Source: cluster F2, F3, F4.
    fn check_invariants(&self, now: Instant) {
        if !cfg!(debug_assertions) {
            return;
        }
        let watched = self.receivers.len() + self.lingering.len();
        assert_eq!(self.watched.len(), watched, "the watched are the receivers and those that linger");
        assert!(!self.watched.contains_key(&self.node), "a node does not watch itself");
        if watched > CHECKED_PEERS {
            return;
        }
        assert!(self.watched.keys().all(|peer| self.ring.contains(peer)), "the watched stand on the ring");
        assert!(self.receivers.is_disjoint(&self.lingering), "who lingers is no receiver any more");
        let finds_all_silent = !self.receivers.is_empty() && self.receivers.is_subset(&self.marked);
        let others = self.ring.len() - usize::from(self.ring.contains(&self.node));
        assert!(
            !finds_all_silent || self.receivers.len() == others,
            "a node that finds all silent watches every member"
        );
        for (peer, watched) in &self.watched {
            let is_judged = watched.detector.is_started() || watched.heard_at.is_some();
            let is_asked = watched.expected_at.is_some() || self.next_at <= now;
            assert!(is_judged || is_asked, "{peer}: silence from the start is detected");
        }
    }

    /// When the next heartbeats, or the next assumed response, are due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expected = self.watched.values().filter_map(|watched| watched.expected_at).min();
        [Some(self.next_at), expected].into_iter().flatten().min()
    }

    /// How late the next round of heartbeats is; a round that is far too late indicates a pause of this process.
    pub fn lag(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.next_at)
    }

    /// The peers that this node watches.
    pub fn monitored(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.watched.keys()
    }

    /// Whether this node watches `peer`.
    pub fn monitors(&self, peer: &UniqueAddress) -> bool {
        self.watched.contains_key(peer)
    }

    /// Whether `peer` counts as alive; a peer that is not watched does.
    pub fn is_available(&self, now: Instant, peer: &UniqueAddress) -> bool {
        self.watched.get(peer).is_none_or(|watched| watched.detector.is_available(now))
    }

    fn on_members(
        &mut self,
        now: Instant,
        ring: Ring,
        unreachable: Shared<BTreeSet<UniqueAddress>>,
        marked: BTreeSet<UniqueAddress>,
    ) {
        let same_ring = self.ring.is(&ring) || self.ring == ring;
        if same_ring && self.unreachable == unreachable && self.marked == marked {
            return;
        }
        self.ring = ring;
        self.unreachable = unreachable;
        self.marked = marked;
        let ring = &self.ring;
        self.lingering.retain(|peer| ring.contains(peer));
        self.watched.retain(|peer, _| ring.contains(peer));
        let receivers = self.pick_receivers();
        for dropped in self.receivers.difference(&receivers) {
            if self.ring.contains(dropped) && !self.is_available(now, dropped) {
                self.lingering.insert(dropped.clone());
            } else {
                self.watched.remove(dropped);
            }
        }
        self.lingering.retain(|peer| !receivers.contains(peer));
        let fresh: Vec<UniqueAddress> = receivers.difference(&self.receivers).cloned().collect();
        self.receivers = receivers;
        for peer in fresh {
            let detector = self.settings.kind.make(&self.settings);
            self.watched.entry(peer).or_insert(Watched { detector, heard_at: None, expected_at: None });
            // Send the first heartbeat at once, not with the next round.
            self.next_at = self.next_at.min(now);
        }
    }

    fn pick_receivers(&self) -> BTreeSet<UniqueAddress> {
        let wanted = self.settings.monitored_by_nr_of_members;
        let mut picked = BTreeSet::new();
        let mut reachable = 0;
        for peer in self.ring.after(&self.node) {
            if reachable == wanted {
                break;
            }
            let silent = self.unreachable.contains(peer);
            if silent && picked.len() >= wanted {
                continue;
            }
            reachable += usize::from(!silent);
            picked.insert(peer.clone());
        }
        // Watch all members if all receivers are found unreachable: this node may be cut off itself.
        if picked.iter().all(|peer| self.marked.contains(peer)) {
            self.ring.after(&self.node).cloned().collect()
        } else {
            picked
        }
    }

    fn on_response(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<HeartbeatEffect>) {
        if self.lingering.remove(from) {
            self.watched.remove(from);
        } else if let Some(watched) = self.watched.get_mut(from) {
            watched.expected_at = None;
            watched.detector.heartbeat(now);
            let interval = watched.heard_at.replace(now).map(|before| now.saturating_duration_since(before));
            let late = |interval: &Duration| *interval >= self.settings.acceptable_heartbeat_pause * 2 / 3;
            if let Some(interval) = interval.filter(late) {
                self.report_growing(now, from, interval, out);
            }
        }
    }

    /// Source: cluster F6.
    fn report_growing(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        interval: Duration,
        out: &mut Vec<HeartbeatEffect>,
    ) {
        if self.quiet_until.is_none_or(|until| until <= now) {
            self.quiet_until = Some(now + GROWING_INTERVAL);
            out.push(HeartbeatEffect::Growing { peer: peer.clone(), interval });
        }
    }

    fn on_paused(&mut self, now: Instant) {
        self.next_at = now;
        for (peer, watched) in &mut self.watched {
            if !self.marked.contains(peer) {
                watched.detector.restart_after_pause(now);
                watched.heard_at = None;
                if watched.expected_at.is_some() {
                    watched.expected_at = Some(now + self.settings.expected_response_after);
                }
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<HeartbeatEffect>) {
        for watched in self.watched.values_mut() {
            if watched.expected_at.is_some_and(|expected_at| expected_at <= now) {
                watched.expected_at = None;
                watched.detector.heartbeat(now);
            }
        }
        if self.next_at > now {
            return;
        }
        self.next_at = now + self.settings.heartbeat_interval;
        self.seq += 1;
        for (peer, watched) in &mut self.watched {
            if !watched.detector.is_started() && watched.expected_at.is_none() {
                watched.expected_at = Some(now + self.settings.expected_response_after);
            }
            out.push(HeartbeatEffect::Send { to: peer.clone(), seq: self.seq });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u64) -> Vec<UniqueAddress> {
        (1..=count).map(|uid| format!("n{uid}:1#{uid}").parse().unwrap()).collect()
    }

    fn core(all: &[UniqueAddress], monitors: usize, now: Instant) -> HeartbeatCore {
        let settings =
            FailureDetectorSettings { monitored_by_nr_of_members: monitors, ..FailureDetectorSettings::default() };
        HeartbeatCore::new(all[0].clone(), settings, now)
    }

    fn members(core: &mut HeartbeatCore, now: Instant, peers: &[UniqueAddress], silent: &[UniqueAddress]) {
        let set = |nodes: &[UniqueAddress]| nodes.iter().cloned().collect::<BTreeSet<_>>();
        let ring = peers.iter().cloned().collect();
        let input = HeartbeatInput::Members { ring, unreachable: set(silent).into(), marked: set(silent) };
        core.handle(now, input, &mut Vec::new());
    }

    fn monitored(core: &HeartbeatCore) -> Vec<u64> {
        core.monitored().map(|peer| peer.uid().get()).collect()
    }

    /// cluster F2.
    #[test]
    fn scenario_41_each_watches_the_next_on_the_ring_never_itself() {
        let (now, all) = (Instant::now(), nodes(6));
        let mut core = core(&all, 3, now);
        assert!(monitored(&core).is_empty(), "alone");
        members(&mut core, now, &all[1..], &[]);
        assert_eq!(monitored(&core), [2, 3, 4]);
        members(&mut core, now, &all[1..], &all[1..2]);
        assert_eq!(monitored(&core), [2, 3, 4, 5], "an unreachable one is watched without counting");
    }

    /// cluster F2: the ring is closed, so each of six watches three.
    #[test]
    fn scenario_41_each_of_six_watches_three() {
        let (now, all) = (Instant::now(), nodes(6));
        let ring = [[2, 3, 4], [3, 4, 5], [4, 5, 6], [1, 5, 6], [1, 2, 6], [1, 2, 3]];
        for (own, expected) in all.iter().zip(ring) {
            let others: Vec<UniqueAddress> = all.iter().filter(|other| *other != own).cloned().collect();
            let mut core = HeartbeatCore::new(
                own.clone(),
                FailureDetectorSettings { monitored_by_nr_of_members: 3, ..FailureDetectorSettings::default() },
                now,
            );
            members(&mut core, now, &others, &[]);
            let mut found = monitored(&core);
            found.sort_unstable();
            assert_eq!(found, expected, "{own}");
        }
    }

    #[test]
    fn scenario_41_with_enough_monitors_everyone_else() {
        let (now, all) = (Instant::now(), nodes(6));
        let mut core = core(&all, 5, now);
        members(&mut core, now, &all[1..], &[]);
        assert_eq!(monitored(&core).len(), 5);
    }

    /// cluster F3.
    #[test]
    fn scenario_41_a_silent_receiver_rotated_out_lingers_until_it_answers() {
        let (start, all) = (Instant::now(), nodes(4));
        let mut core = core(&all, 1, start);
        members(&mut core, start, &all[2..], &[]);
        assert_eq!(monitored(&core), [3]);
        core.handle(start, HeartbeatInput::Response(all[2].clone()), &mut Vec::new());
        let later = start + Duration::from_secs(10);
        members(&mut core, later, &all[1..], &[]);
        assert_eq!(monitored(&core), [2, 3], "3 is silent and stays watched");
        core.handle(later, HeartbeatInput::Response(all[2].clone()), &mut Vec::new());
        assert_eq!(monitored(&core), [2]);
    }

    /// cluster F4.
    #[test]
    fn scenario_42_a_peer_that_never_answers_is_found_by_the_assumed_first_response() {
        let (start, all) = (Instant::now(), nodes(2));
        let mut core = core(&all, 9, start);
        members(&mut core, start, &all[1..], &[]);
        let mut out = Vec::new();
        core.handle(start, HeartbeatInput::Tick, &mut out);
        assert_eq!(out.len(), 1, "the first heartbeat goes out at once");
        let mut now = start;
        while core.is_available(now, &all[1]) {
            now += Duration::from_millis(100);
            assert!(now < start + Duration::from_secs(10), "found in time");
            core.handle(now, HeartbeatInput::Tick, &mut out);
        }
        assert!(now > start + Duration::from_secs(4));
    }

    /// cluster F2.
    #[test]
    fn a_node_whose_receivers_are_all_silent_watches_every_member() {
        let (now, all) = (Instant::now(), nodes(6));
        let mut core = core(&all, 2, now);
        members(&mut core, now, &all[1..], &all[1..]);
        assert_eq!(monitored(&core).len(), 5);
    }

    /// cluster F6.
    #[test]
    fn responses_that_come_later_and_later_are_told_now_and_then() {
        let (start, all) = (Instant::now(), nodes(2));
        let mut core = core(&all, 9, start);
        members(&mut core, start, &all[1..], &[]);
        let mut out = Vec::new();
        let mut respond = |ms: u64| {
            out.clear();
            let now = start + Duration::from_millis(ms);
            core.handle(now, HeartbeatInput::Response(all[1].clone()), &mut out);
            out.clone()
        };
        assert!(respond(0).is_empty() && respond(1900).is_empty());
        let interval = Duration::from_millis(2000);
        assert_eq!(respond(3900), [HeartbeatEffect::Growing { peer: all[1].clone(), interval }]);
        assert!(respond(6000).is_empty(), "not at each");
        assert_eq!(respond(14_000).len(), 1);
    }
}
