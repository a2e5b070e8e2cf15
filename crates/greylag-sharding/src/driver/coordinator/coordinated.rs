//! Timings of a coordinator's incarnations on this node.
//!
//! The machine is observed from outside: its effects, and the inputs that answer them, show when a step begins and
//! ends.
//!
//! Source: sharding §6.5.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::driver::metrics::histogram::{Histogram, Recorder, WriteRecorder, Writes};
use crate::ids::ShardId;
use crate::machine::coordinator::{CoordinatorEvent, Effect, HandOffPhase, StateEvent};
use crate::machine::message::CoordinatorMessage;

/// Counters of the type's coordinator on this node, since the type was set up here. All incarnations together, except
/// for the present state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoordinatorMetrics {
    /// Whether the coordinator runs on this node now.
    pub is_here: bool,
    /// Hosting regions that are registered with the coordinator; 0 if it does not run here.
    pub regions: usize,
    /// Commits of the coordinator: the time each took, and the number of events.
    pub commits: Writes,
    /// How long the strategy took to choose homes, for all shards of one call together.
    pub allocations: Histogram,
    /// The first part of a handoff: from its begin until the owner was told to stop the shard.
    pub handoff_acks: Histogram,
    /// The second part of a handoff: from then until the shard had stopped.
    pub handoff_stops: Histogram,
    /// The last part of a handoff: from the end of the shard until its next home is committed. A shard that no region
    /// asks for is not counted, since it has no next home.
    pub handoff_homes: Histogram,
    /// Contradictions in the history that were repaired when it was read. Only in mode persistence. Source: sharding
    /// §2.14.
    pub recovery_repairs: u64,
}

/// The counters behind [`CoordinatorMetrics`].
#[derive(Debug, Default)]
pub(crate) struct Coordinated {
    pub(crate) commits: WriteRecorder,
    pub(crate) allocations: Recorder,
    regions: AtomicUsize,
    repairs: AtomicU64,
    acks: Recorder,
    stops: Recorder,
    homes: Recorder,
}

impl Coordinated {
    /// Sets the number of regions registered now.
    pub(crate) fn has_regions(&self, count: usize) {
        self.regions.store(count, Ordering::Relaxed);
    }

    /// Adds the repairs of a history that was read.
    pub(crate) fn repaired(&self, repairs: u64) {
        self.repairs.fetch_add(repairs, Ordering::Relaxed);
    }

    pub(crate) fn metrics(&self, is_here: bool) -> CoordinatorMetrics {
        CoordinatorMetrics {
            is_here,
            regions: if is_here { self.regions.load(Ordering::Relaxed) } else { 0 },
            commits: self.commits.writes(),
            allocations: self.allocations.histogram(),
            handoff_acks: self.acks.histogram(),
            handoff_stops: self.stops.histogram(),
            handoff_homes: self.homes.histogram(),
            recovery_repairs: self.repairs.load(Ordering::Relaxed),
        }
    }
}

/// The phase of a shard's handoff, kept with the time of its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandoffPhase {
    Acks,
    Stop,
    Home,
}

/// The handoffs of one incarnation.
#[derive(Debug, Default)]
pub(crate) struct HandoffWatch {
    moving: BTreeMap<ShardId, (HandoffPhase, Instant)>,
}

impl HandoffWatch {
    /// Notes an effect of the machine.
    pub(crate) fn on_effect(&mut self, now: Instant, effect: &Effect, told: &Coordinated) {
        match effect {
            Effect::Send { message, .. } => match &message.message {
                CoordinatorMessage::BeginHandOff { shard, .. } => self.begins(now, shard),
                CoordinatorMessage::HandOff { shard, .. } => {
                    self.goes_on(now, shard, HandoffPhase::Acks, HandoffPhase::Stop, &told.acks);
                }
                _ => {}
            },
            Effect::Commit { events, .. } => {
                for event in events {
                    let StateEvent::Home { shard, home } = event else { continue };
                    if home.deallocated {
                        self.goes_on(now, shard, HandoffPhase::Stop, HandoffPhase::Home, &told.stops);
                    } else if let Some(since) = self.ends(shard, HandoffPhase::Home) {
                        told.homes.record(now.saturating_duration_since(since), 1);
                    }
                }
            }
            Effect::Event(CoordinatorEvent::HandOffTimedOut { shard, phase: HandOffPhase::AwaitAcks }) => {
                // Drop a handoff that was given up: its owner was never told.
                self.ends(shard, HandoffPhase::Acks);
            }
            _ => {}
        }
    }

    /// Notes the begin of a handoff, also after one that was given up; further `BeginHandOff`s of the same handoff are
    /// ignored.
    fn begins(&mut self, now: Instant, shard: &ShardId) {
        let begun = self.moving.get(shard).is_some_and(|(phase, _)| *phase != HandoffPhase::Home);
        if !begun {
            self.moving.insert(shard.clone(), (HandoffPhase::Acks, now));
        }
    }

    /// Ends a phase and begins the next; repeated messages change nothing.
    fn goes_on(&mut self, now: Instant, shard: &ShardId, from: HandoffPhase, to: HandoffPhase, told: &Recorder) {
        let Some((phase, since)) = self.moving.get_mut(shard).filter(|(phase, _)| *phase == from) else { return };
        told.record(now.saturating_duration_since(*since), 1);
        (*phase, *since) = (to, now);
    }

    fn ends(&mut self, shard: &ShardId, last: HandoffPhase) -> Option<Instant> {
        let (phase, since) = *self.moving.get(shard)?;
        (phase == last).then(|| {
            self.moving.remove(shard);
            since
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greylag_core::Generation;

    use super::*;
    use crate::ids::RegionId;
    use crate::machine::coordinator::StoredHome;
    use crate::machine::message::{Attempt, CoordinatorId, FromCoordinator};

    fn shard() -> ShardId {
        ShardId::from_index(7)
    }

    fn region() -> RegionId {
        RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 }
    }

    fn send(message: CoordinatorMessage) -> Effect {
        let (to, coordinator) = (region().node, CoordinatorId { node: region().node, incarnation: 1 });
        Effect::Send { to, message: FromCoordinator { coordinator, epoch: 1, to: Some(region()), message } }
    }

    fn begin() -> Effect {
        let generation = Generation::new(1, 1).unwrap();
        send(CoordinatorMessage::BeginHandOff { shard: shard(), generation, attempt: Attempt(1), owner: region() })
    }

    fn hand_off() -> Effect {
        let generation = Generation::new(1, 1).unwrap();
        send(CoordinatorMessage::HandOff { shard: shard(), generation, attempt: Attempt(1), flush_from: Vec::new() })
    }

    fn commit(deallocated: bool) -> Effect {
        let generation = Generation::new(1, 2 - u64::from(deallocated)).unwrap();
        let home = StoredHome { region: region(), generation, deallocated, previous: None, leftovers_from: None };
        Effect::Commit { batch: 1, events: vec![StateEvent::Home { shard: shard(), home }] }
    }

    #[test]
    fn each_phase_of_a_handoff_is_measured_once() {
        let (told, mut watch, now) = (Coordinated::default(), HandoffWatch::default(), Instant::now());
        let steps =
            [(0, begin()), (1, begin()), (10, hand_off()), (12, hand_off()), (40, commit(true)), (45, commit(false))];
        for (millis, effect) in steps {
            watch.on_effect(now + Duration::from_millis(millis), &effect, &told);
        }
        let CoordinatorMetrics { handoff_acks, handoff_stops, handoff_homes, .. } = told.metrics(true);
        let times =
            [handoff_acks, handoff_stops, handoff_homes].map(|times| (times.count(), times.total().as_millis()));
        assert_eq!(times, [(1, 10), (1, 30), (1, 5)]);
        assert!(watch.moving.is_empty());
    }

    #[test]
    fn a_timed_out_handoff_is_measured_anew_and_a_home_without_a_handoff_is_not_measured() {
        let (told, mut watch, now) = (Coordinated::default(), HandoffWatch::default(), Instant::now());
        let given_up = CoordinatorEvent::HandOffTimedOut { shard: shard(), phase: HandOffPhase::AwaitAcks };
        let steps =
            [(0, commit(false)), (1, begin()), (90, Effect::Event(given_up)), (100, begin()), (103, hand_off())];
        for (millis, effect) in steps {
            watch.on_effect(now + Duration::from_millis(millis), &effect, &told);
        }
        let metrics = told.metrics(false);
        assert_eq!((metrics.handoff_acks.count(), metrics.handoff_acks.total().as_millis()), (1, 3));
        assert_eq!((metrics.handoff_homes.count(), metrics.handoff_stops.count()), (0, 0));
    }
}
