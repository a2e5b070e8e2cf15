//! All shards of which a region has heard.
//!
//! Most shards live on other nodes and are at rest: their route is open, and nothing else is to be known. Such a shard
//! is stored as its home alone, and becomes a whole [`ShardPlace`] only while it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::Generation;

use super::ShardPlace;
use crate::ids::{RegionId, ShardId};
use crate::interned::Interned;
use crate::timetable::Timetable;

/// All shards of which the region has heard, and when each has work to do.
#[derive(Debug, Default)]
pub(in crate::machine::region) struct Places {
    stored: BTreeMap<ShardId, StoredPlace>,
    /// The shards hosted here: few, where many live elsewhere.
    hosted: BTreeSet<ShardId>,
    /// The homes of shards at rest.
    regions: Interned<RegionId, RegionId>,
    alarms: Timetable<ShardId>,
}

/// The stored form of a shard.
#[derive(Debug)]
enum StoredPlace {
    /// The shard lives on another node, its route is open, and nothing else is known or waits.
    AtRest {
        region: Arc<RegionId>,
        generation: Generation,
    },
    Place(Box<ShardPlace>),
}

/// Read access to a shard in either form.
#[allow(clippy::large_enum_variant, reason = "it lies on the stack for as long as it is looked at")]
pub(in crate::machine::region) enum PlaceView<'a> {
    Stored(&'a ShardPlace),
    Restored(ShardPlace),
}

impl Deref for PlaceView<'_> {
    type Target = ShardPlace;

    fn deref(&self) -> &ShardPlace {
        match self {
            Self::Stored(place) => place,
            Self::Restored(place) => place,
        }
    }
}

impl StoredPlace {
    fn view(&self) -> PlaceView<'_> {
        match self {
            Self::AtRest { region, generation } => PlaceView::Restored(ShardPlace::at_rest(region, *generation)),
            Self::Place(place) => PlaceView::Stored(place),
        }
    }
}

impl Places {
    /// Takes a place out, so that it can be changed together with the rest of the region.
    pub(in crate::machine::region) fn take(&mut self, shard: &ShardId) -> ShardPlace {
        match self.stored.remove(shard) {
            None => ShardPlace::default(),
            Some(StoredPlace::AtRest { region, generation }) => ShardPlace::at_rest(&region, generation),
            Some(StoredPlace::Place(place)) => {
                if place.slot.hosted().is_some() {
                    self.hosted.remove(shard);
                }
                *place
            }
        }
    }

    /// Puts a place back, and updates its state and its alarm.
    pub(in crate::machine::region) fn put(&mut self, shard: &ShardId, mut place: ShardPlace) {
        place.slot.update_unknown(!place.buffer.is_empty());
        self.alarms.change(shard, place.deadline());
        if place.slot.hosted().is_some() {
            self.hosted.insert(shard.clone());
        }
        let stored = match place.rests_at() {
            Some((region, generation)) => {
                StoredPlace::AtRest { region: self.regions.share(region, || region.clone()), generation }
            }
            None => StoredPlace::Place(Box::new(place)),
        };
        self.stored.insert(shard.clone(), stored);
    }

    pub(in crate::machine::region) fn iter(&self) -> impl Iterator<Item = (&ShardId, PlaceView<'_>)> {
        self.stored.iter().map(|(shard, stored)| (shard, stored.view()))
    }

    /// The hosted shards; an ending region calls this after every input.
    pub(in crate::machine::region) fn hosted(&self) -> impl Iterator<Item = (&ShardId, &ShardPlace)> {
        self.hosted.iter().filter_map(|shard| match self.stored.get(shard)? {
            StoredPlace::Place(place) => Some((shard, &**place)),
            StoredPlace::AtRest { .. } => None,
        })
    }

    pub(in crate::machine::region) fn len(&self) -> usize {
        self.stored.len()
    }

    /// Checks each place, for a region with few. `compares`: whether generations are compared, which a simulation may
    /// leave out. Source: sharding §2.4, §2.9.
    pub(in crate::machine::region) fn check_invariants(&self, compares: bool) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut busy = 0;
        for (shard, stored) in &self.stored {
            let is_hosted = self.hosted.contains(shard);
            let StoredPlace::Place(place) = stored else {
                assert!(!is_hosted, "{shard:?} is hosted, and elsewhere");
                continue;
            };
            assert_eq!(is_hosted, place.slot.hosted().is_some(), "{shard:?} is hosted, or not");
            assert_eq!(self.alarms.get(shard), place.deadline(), "{shard:?} has an alarm for its work");
            busy += usize::from(place.deadline().is_some());
            place.check_invariants(shard, compares);
        }
        assert_eq!(self.alarms.len(), busy, "only a shard with work to do has an alarm");
    }

    /// The shards whose place satisfies `wanted`.
    pub(in crate::machine::region) fn of(&self, wanted: impl Fn(&ShardPlace) -> bool) -> Vec<ShardId> {
        self.iter().filter(|(_, place)| wanted(place)).map(|(shard, _)| shard.clone()).collect()
    }

    /// When the first shard has work to do.
    pub(in crate::machine::region) fn next_deadline(&self) -> Option<Instant> {
        self.alarms.next()
    }

    /// The shards that have work to do by `now`.
    pub(in crate::machine::region) fn due(&self, now: Instant) -> Vec<ShardId> {
        self.alarms.due(now)
    }

    pub(in crate::machine::region) fn clear(&mut self) {
        self.stored.clear();
        self.hosted.clear();
        self.alarms.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Remote, Slot};
    use super::*;
    use std::time::Duration;

    fn region(node: &str) -> RegionId {
        RegionId { node: node.parse().unwrap(), incarnation: 3 }
    }

    fn generation(seq: u64) -> Generation {
        Generation::new(1, seq).unwrap()
    }

    fn shard() -> ShardId {
        ShardId::from_index(7)
    }

    fn is_at_rest(places: &Places) -> bool {
        matches!(places.stored[&shard()], StoredPlace::AtRest { .. })
    }

    /// Sharding §10: a known home takes as much memory as its name in the table, and comes back unchanged.
    #[test]
    fn a_shard_at_rest_is_kept_as_its_home_and_comes_back_as_it_was() {
        assert_eq!(size_of::<StoredPlace>(), 16);
        let mut places = Places::default();
        let at_rest = ShardPlace::at_rest(&region("b:1#2"), generation(5));
        let as_it_was = format!("{at_rest:?}");
        places.put(&shard(), at_rest);
        assert!(is_at_rest(&places));
        assert_eq!(places.iter().map(|(_, place)| format!("{:?}", *place)).collect::<Vec<_>>(), [as_it_was.as_str()]);
        assert_eq!(format!("{:?}", places.take(&shard())), as_it_was);
        assert_eq!(places.len(), 0);
    }

    /// A shard of which anything more than its home is known is stored whole.
    #[test]
    fn a_shard_of_which_more_is_known_is_kept_whole() {
        let now = Instant::now();
        let changes: [fn(&mut ShardPlace, Instant); 11] = [
            |place, _| place.slot = Slot::Unknown,
            |place, _| {
                let remote = Remote { region: region("b:1#2"), generation: generation(5), is_open: false };
                place.slot = Slot::Remote(remote);
            },
            |place, _| place.heard = Some(generation(6)),
            |place, _| place.ended = Some(generation(4)),
            |place, _| place.last_home = Some(region("c:1#3")),
            |place, _| place.is_turn_asked = true,
            |place, _| place.owes_leftover_mark = true,
            |place, now| place.asking.later(now, Duration::from_secs(1)),
            |place, _| {
                let attempt = crate::machine::message::Attempt(1);
                place.acked = Some(super::super::Acked { generation: generation(5), attempt, flushed: true });
            },
            |place, _| {
                place.marks.insert(region("b:1#2"), crate::machine::message::Attempt(1));
            },
            |place, _| {
                place.leftover_marks.insert((generation(5), region("b:1#2")));
            },
        ];
        for change in changes {
            let mut places = Places::default();
            let mut place = ShardPlace::at_rest(&region("b:1#2"), generation(5));
            change(&mut place, now);
            let as_it_was = format!("{place:?}");
            places.put(&shard(), place);
            assert!(!is_at_rest(&places), "{as_it_was}");
            assert_eq!(format!("{:?}", places.take(&shard())), as_it_was);
        }
    }
}
