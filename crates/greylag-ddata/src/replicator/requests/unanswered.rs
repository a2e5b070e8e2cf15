//! Finds peers that were asked several times in a row and never answered.
//!
//! A member on which no replicator was started makes requests wait for it until they time out, and nothing else tells
//! why. Three requests in a row without a single answer are reported once, with the peer's name. Source: ddata I1.

use std::collections::BTreeMap;
use std::time::Instant;

use greylag_core::UniqueAddress;

/// How many unanswered requests in a row are reported.
const REQUESTS: usize = 3;

#[derive(Debug, Default)]
struct PeerRequests {
    /// The ends of the first requests since the peer's last answer.
    over_at: Vec<Instant>,
    reported: bool,
}

impl PeerRequests {
    /// When the peer counts as silent if it does not answer.
    fn silent_at(&self) -> Option<Instant> {
        (self.over_at.len() == REQUESTS && !self.reported).then(|| self.over_at.iter().max().copied())?
    }
}

/// The requests to each peer since its last answer.
#[derive(Debug, Default)]
pub(crate) struct UnansweredRequests(BTreeMap<UniqueAddress, PeerRequests>);

impl UnansweredRequests {
    /// Notes that a peer was asked for a request that ends at `over_at`.
    pub(crate) fn asked(&mut self, peer: &UniqueAddress, over_at: Instant) {
        let asked = match self.0.get_mut(peer) {
            Some(asked) => asked,
            None => self.0.entry(peer.clone()).or_default(),
        };
        if asked.over_at.len() < REQUESTS {
            asked.over_at.push(over_at);
        }
    }

    /// Notes that a peer answered, whatever and however late.
    pub(crate) fn answered(&mut self, peer: &UniqueAddress) {
        self.0.remove(peer);
    }

    /// Returns the peers that count as silent from now on.
    pub(crate) fn on_tick(&mut self, now: Instant) -> Vec<UniqueAddress> {
        let silent = self.0.iter_mut().filter(|(_, asked)| asked.silent_at().is_some_and(|at| at <= now));
        let found = silent.map(|(peer, asked)| {
            asked.reported = true;
            peer.clone()
        });
        found.collect()
    }

    /// When `on_tick` next has a peer to report.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(PeerRequests::silent_at).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// ddata I1: three requests in a row without an answer are reported once, and after any answer the count begins
    /// again.
    #[test]
    fn three_unanswered_requests_in_a_row_are_reported_once() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let peer: UniqueAddress = "a:1#1".parse().unwrap();
        let mut unanswered = UnansweredRequests::default();
        unanswered.asked(&peer, now + second);
        unanswered.asked(&peer, now + second);
        assert_eq!(unanswered.next_deadline(), None);
        unanswered.answered(&peer);
        for _ in 0..4 {
            unanswered.asked(&peer, now + second * 2);
        }
        assert_eq!(unanswered.next_deadline(), Some(now + second * 2));
        assert_eq!(unanswered.on_tick(now + second), []);
        assert_eq!(unanswered.on_tick(now + second * 2), std::slice::from_ref(&peer));
        assert_eq!((unanswered.on_tick(now + second * 9), unanswered.next_deadline()), (Vec::new(), None));
        unanswered.answered(&peer);
        (0..3).for_each(|_| unanswered.asked(&peer, now + second * 3));
        assert_eq!(unanswered.on_tick(now + second * 3), [peer]);
    }
}
