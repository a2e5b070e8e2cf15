//! The part of a tracker that is stored with the entity's snapshots.

use std::collections::BTreeMap;

use super::settings::DeliveryTrackerSettings;
use super::{DeliveryId, DeliveryTracker, Unconfirmed};

/// The stored form of a tracker.
///
/// With the feature `serde` a [`DeliveryTracker`] is serialized in this form, so that a state that holds a tracker
/// can derive its serialization; without, the state's codec calls [`DeliveryTracker::snapshot`] and
/// [`DeliveryTracker::restore`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TrackerSnapshot<D, M> {
    /// The last id given.
    pub current_id: DeliveryId,
    /// The unconfirmed deliveries, ascending: id, destination, message.
    pub unconfirmed: Vec<(DeliveryId, D, M)>,
}

impl<D, M> DeliveryTracker<D, M> {
    /// The part that must be in the entity's snapshot.
    pub fn snapshot(&self) -> TrackerSnapshot<D, M>
    where
        D: Clone,
        M: Clone,
    {
        let unconfirmed = self.unconfirmed().map(|(id, dest, message)| (id, dest.clone(), message.clone()));
        TrackerSnapshot { current_id: self.current_id, unconfirmed: unconfirmed.collect() }
    }

    /// A tracker from the result of [`DeliveryTracker::snapshot`]. All its deliveries are due.
    pub fn restore(snapshot: TrackerSnapshot<D, M>) -> Self {
        let unconfirmed = snapshot.unconfirmed.into_iter();
        let unconfirmed: BTreeMap<_, _> = unconfirmed
            .map(|(id, dest, message)| (id, Unconfirmed { dest, message, attempts: 0, sent_at: None }))
            .collect();
        // Never give an id twice, even if a snapshot written by hand has a `current_id` below its deliveries.
        let current_id = unconfirmed.keys().copied().fold(snapshot.current_id, Ord::max);
        Self {
            settings: DeliveryTrackerSettings::default(),
            current_id,
            unconfirmed,
            stored_to: DeliveryId(0),
            recovered_to: DeliveryId(0),
            sent_to: DeliveryId(0),
            tick_at: None,
        }
    }
}

impl<D, M> Default for DeliveryTracker<D, M> {
    fn default() -> Self {
        Self::restore(TrackerSnapshot { current_id: DeliveryId(0), unconfirmed: Vec::new() })
    }
}

#[cfg(feature = "serde")]
impl<D: serde::Serialize, M: serde::Serialize> serde::Serialize for DeliveryTracker<D, M> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        TrackerSnapshot { current_id: self.current_id, unconfirmed: self.unconfirmed().collect() }.serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de, D: serde::Deserialize<'de>, M: serde::Deserialize<'de>> serde::Deserialize<'de> for DeliveryTracker<D, M> {
    fn deserialize<De: serde::Deserializer<'de>>(deserializer: De) -> Result<Self, De::Error> {
        TrackerSnapshot::deserialize(deserializer).map(Self::restore)
    }
}
