//! How a new replica gets the data of others: at first from each a share, or all from one, then what differs. Source:
//! ddata G13.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

/// What is asked of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// No peer was asked so far.
    #[default]
    Before,
    /// Several peers are asked, each for a share of the hash space.
    Shares,
    /// One peer, the only one known then, is asked for everything; others come after it.
    One,
    /// Each peer is asked for its differences, which are few now.
    Whole,
}

/// The progress of catching up.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    stage: Stage,
    /// Since when membership has known this node while it synchronizes.
    since: Option<Instant>,
    synced_with: BTreeSet<UniqueAddress>,
    /// Whether a peer did not answer in time.
    has_lost: bool,
}

impl CatchUp {
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Notes that peers are asked in this way from now on.
    pub(super) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Notes that membership knows this node.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Returns to the state before any share was requested: answers to earlier requests are no longer accepted, so the
    /// shares are requested again.
    pub(super) fn begin_anew(&mut self) {
        if self.stage != Stage::Whole {
            self.stage = Stage::Before;
        }
    }

    /// Notes that the replica has caught up.
    pub(super) fn end(&mut self) {
        self.since = None;
        self.stage = Stage::Whole;
    }

    /// When the replica counts as caught up, however few peers have answered.
    pub(super) fn times_out_at(&self, timeout: Duration) -> Option<Instant> {
        self.since.map(|since| since + timeout)
    }

    /// Notes that everything was exchanged with a peer.
    pub(super) fn on_synced(&mut self, peer: &UniqueAddress) {
        self.synced_with.insert(peer.clone());
    }

    pub(super) fn is_synced_with(&self, peer: &UniqueAddress) -> bool {
        self.synced_with.contains(peer)
    }

    /// Notes that a peer did not answer in time. Returns whether this is the first time while shares are asked for:
    /// they are then asked for once more.
    pub(super) fn on_lost(&mut self) -> bool {
        !std::mem::replace(&mut self.has_lost, true) && self.stage == Stage::Shares
    }

    pub(super) fn has_lost(&self) -> bool {
        self.has_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_asked_for_once_more_after_the_first_loss_and_never_after_the_whole() {
        let mut catch_up = CatchUp::default();
        catch_up.enter(Stage::Shares);
        assert_eq!([catch_up.on_lost(), catch_up.on_lost()], [true, false]);
        catch_up.begin_anew();
        assert_eq!(catch_up.stage(), Stage::Before);
        let now = Instant::now();
        catch_up.begin(now);
        catch_up.begin(now + Duration::from_secs(3));
        assert_eq!(catch_up.times_out_at(Duration::from_secs(5)), Some(now + Duration::from_secs(5)));
        catch_up.end();
        catch_up.begin_anew();
        assert_eq!((catch_up.stage(), catch_up.times_out_at(Duration::ZERO)), (Stage::Whole, None));
    }
}
