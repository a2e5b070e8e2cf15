//! The orders of all replacement policies.

mod entries;
mod frequency;
mod most_recent;
mod ranking;
mod recency;

pub(super) use self::entries::{Area, Entries, SlotState};
use self::frequency::Frequency;
use self::most_recent::MostRecent;
pub(super) use self::ranking::{Order, share};
use self::recency::Recency;
use super::policy::{Aging, ReplacementPolicy};

/// Makes the order of a policy.
pub(super) fn order(policy: &ReplacementPolicy) -> Box<dyn Order> {
    match policy {
        ReplacementPolicy::LeastRecentlyUsed(segments) => Box::new(Recency::new(segments.as_ref())),
        ReplacementPolicy::MostRecentlyUsed => Box::new(MostRecent::default()),
        ReplacementPolicy::LeastFrequentlyUsed(aging) => Box::new(Frequency::new(*aging == Aging::Dynamic)),
    }
}
