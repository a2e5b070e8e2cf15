use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::entities::tracker::*;

type Tracker = DeliveryTracker<&'static str, String>;

const INTERVAL: Duration = Duration::from_secs(4);

fn settings(burst: usize) -> DeliveryTrackerSettings {
    DeliveryTrackerSettings {
        redeliver_interval: INTERVAL,
        redelivery_burst_limit: NonZeroUsize::new(burst).unwrap(),
        warn_after_attempts: NonZeroU32::new(2).unwrap(),
        max_unconfirmed: NonZeroUsize::new(3).unwrap(),
    }
}

/// Records `count` deliveries.
fn deliver(tracker: &mut Tracker, count: u64) {
    for _ in 0..count {
        tracker.deliver("dest", |id| format!("message {id}"));
    }
}

/// The ids that an input sends.
fn sent(tracker: &mut Tracker, now: Instant, input: TrackerInput) -> Vec<u64> {
    let mut out = Vec::new();
    tracker.handle(now, input, &mut out);
    let sent = out.into_iter().filter_map(|effect| match effect {
        TrackerEffect::Send { id, .. } => Some(id.as_u64()),
        TrackerEffect::Warn(_) => None,
    });
    sent.collect()
}

/// The ids that the next tick sends; moves `now` to that tick.
fn tick(tracker: &mut Tracker, now: &mut Instant) -> Vec<u64> {
    *now = tracker.next_deadline().expect("something is not confirmed");
    sent(tracker, *now, TrackerInput::Tick)
}

/// Scenario persistence 54, the ids: 1, 2, 3, … over all destinations, and each is confirmed once.
#[test]
fn ids_have_no_gaps_and_are_confirmed_once() {
    let mut tracker = Tracker::default();
    assert_eq!(tracker.deliver("a", |id| id.to_string()), DeliveryId::new(1));
    assert_eq!(tracker.deliver("b", |id| id.to_string()), DeliveryId::new(2));
    assert_eq!(tracker.get(DeliveryId::new(2)), Some((&"b", &"2".to_owned())));
    assert!(tracker.confirm(DeliveryId::new(2)));
    assert!(!tracker.confirm(DeliveryId::new(2)) && !tracker.confirm(DeliveryId::new(3)));
    assert_eq!(tracker.deliver("a", |id| id.to_string()), DeliveryId::new(3), "an id is never given twice");
    assert_eq!(tracker.unconfirmed().map(|(id, ..)| id.as_u64()).collect::<Vec<_>>(), [1, 3]);
}

/// Scenario persistence 66, the limit: `has_room` checks it, `deliver` never refuses.
#[test]
fn room_is_asked_for_and_never_enforced() {
    let (mut tracker, now) = (Tracker::default(), Instant::now());
    sent(&mut tracker, now, TrackerInput::Recovered(settings(10)));
    deliver(&mut tracker, 2);
    assert!(tracker.has_room(0) && tracker.has_room(1) && !tracker.has_room(2) && !tracker.has_room(usize::MAX));
    deliver(&mut tracker, 8);
    assert!(!tracker.has_room(0), "more than the limit are recorded all the same");
    assert_eq!(tracker.current_id(), DeliveryId::new(10));
}

#[test]
fn nothing_is_sent_before_it_is_stored_and_nothing_wakes_a_tracker_at_rest() {
    let (mut tracker, now) = (Tracker::default(), Instant::now());
    sent(&mut tracker, now, TrackerInput::Recovered(settings(10)));
    assert_eq!(tracker.next_deadline(), None);
    deliver(&mut tracker, 2);
    assert_eq!(sent(&mut tracker, now + INTERVAL, TrackerInput::Tick), [0; 0]);
    assert!(tracker.confirm(DeliveryId::new(1)), "given up before it left");
    assert_eq!(sent(&mut tracker, now, TrackerInput::Stored), [2]);
    assert_eq!(tracker.next_deadline(), Some(now + INTERVAL / 2));
    // Recorded, not stored: a redelivery meanwhile leaves it out.
    deliver(&mut tracker, 1);
    assert_eq!(sent(&mut tracker, now + INTERVAL, TrackerInput::Tick), [2]);
    assert_eq!(sent(&mut tracker, now + INTERVAL, TrackerInput::Stored), [3]);
    for id in [2, 3] {
        tracker.confirm(DeliveryId::new(id));
    }
    assert_eq!(tracker.next_deadline(), None);
    assert_eq!(sent(&mut tracker, now + INTERVAL * 5, TrackerInput::Tick), [0; 0]);
    // A deadline that passed while there was nothing to do delays nothing and repeats nothing.
    deliver(&mut tracker, 1);
    assert_eq!(sent(&mut tracker, now + INTERVAL * 6, TrackerInput::Stored), [4]);
    assert_eq!(tracker.next_deadline(), Some(now + INTERVAL * 6 + INTERVAL / 2));
}

/// A delivery is sent again when its own last attempt is an interval old, and early ticks do nothing.
#[test]
fn each_delivery_keeps_its_own_interval() {
    let (mut tracker, start) = (Tracker::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    sent(&mut tracker, start, TrackerInput::Recovered(settings(10)));
    deliver(&mut tracker, 1);
    assert_eq!(sent(&mut tracker, at(0), TrackerInput::Stored), [1]);
    deliver(&mut tracker, 1);
    assert_eq!(sent(&mut tracker, at(1), TrackerInput::Stored), [2]);
    let mut now = start;
    for (second, expected) in [(2, vec![]), (4, vec![1]), (6, vec![2]), (8, vec![1]), (10, vec![2])] {
        assert_eq!(sent(&mut tracker, at(second) - Duration::from_nanos(1), TrackerInput::Tick), [0; 0], "early");
        assert_eq!(tick(&mut tracker, &mut now), expected, "second {second}");
        assert_eq!(now, at(second));
    }
}

/// Scenario persistence 54, the burst limit after a recovery: in order, before fresh ones.
#[test]
fn recovered_deliveries_are_sent_before_new_ones() {
    let mut tracker = Tracker::default();
    deliver(&mut tracker, 5);
    let mut now = Instant::now();
    assert_eq!(sent(&mut tracker, now, TrackerInput::Recovered(settings(2))), [1, 2]);
    deliver(&mut tracker, 2);
    assert_eq!(sent(&mut tracker, now, TrackerInput::Stored), [0; 0], "3 to 5 come first");
    assert_eq!(tick(&mut tracker, &mut now), [3, 4]);
    assert_eq!(
        tick(&mut tracker, &mut now),
        [5, 6, 7],
        "with the last of them the fresh ones may go, and 1 and 2 are due too"
    );
    deliver(&mut tracker, 1);
    assert_eq!(sent(&mut tracker, now, TrackerInput::Stored), [8]);
}

/// A destination that never answers must not use up every tick.
#[test]
fn deliveries_with_large_ids_are_not_starved() {
    let (mut tracker, mut now) = (Tracker::default(), Instant::now());
    sent(&mut tracker, now, TrackerInput::Recovered(settings(2)));
    deliver(&mut tracker, 9);
    sent(&mut tracker, now, TrackerInput::Stored);
    let ticks: Vec<_> = (0..6).map(|_| tick(&mut tracker, &mut now)).collect();
    assert_eq!(ticks, [vec![], vec![1, 2], vec![3, 4], vec![5, 6], vec![7, 8], vec![1, 9]]);
}

/// Scenario persistence 54, the warning: once, at the attempt after the given number.
#[test]
fn unconfirmed_deliveries_warn_once_per_incarnation() {
    let (mut tracker, mut now) = (Tracker::default(), Instant::now());
    deliver(&mut tracker, 3);
    let mut warnings = Vec::new();
    for life in 0..2 {
        let mut out = Vec::new();
        tracker.handle(now, TrackerInput::Recovered(settings(10)), &mut out);
        for _ in 0..8 {
            now = tracker.next_deadline().unwrap();
            tracker.handle(now, TrackerInput::Tick, &mut out);
            tracker.confirm(DeliveryId::new(2));
        }
        assert!(out.contains(&TrackerEffect::Send { id: DeliveryId::new(1), attempt: 5 }));
        warnings.extend(out.into_iter().filter_map(|effect| match effect {
            TrackerEffect::Warn(warning) => Some((life, warning.ids)),
            TrackerEffect::Send { .. } => None,
        }));
    }
    let ids = vec![DeliveryId::new(1), DeliveryId::new(3)];
    assert_eq!(warnings, [(0, ids.clone()), (1, ids)]);
}

#[test]
fn a_snapshot_holds_what_must_not_be_lost_and_nothing_else() {
    let (mut tracker, now) = (Tracker::default(), Instant::now());
    deliver(&mut tracker, 3);
    tracker.confirm(DeliveryId::new(2));
    let snapshot = tracker.snapshot();
    assert_eq!(snapshot.current_id, DeliveryId::new(3));
    assert_eq!(snapshot.unconfirmed.iter().map(|(id, ..)| id.as_u64()).collect::<Vec<_>>(), [1, 3]);
    sent(&mut tracker, now, TrackerInput::Recovered(settings(10)));
    assert_eq!(tracker.snapshot(), snapshot, "attempts are of this life only");
    let mut restored = Tracker::restore(snapshot.clone());
    assert_eq!(restored, tracker);
    assert_eq!(sent(&mut restored, now, TrackerInput::Recovered(settings(10))), [1, 3]);
    let careless = TrackerSnapshot { current_id: DeliveryId::new(0), ..snapshot };
    assert_eq!(Tracker::restore(careless).current_id(), DeliveryId::new(3), "3 is taken");
}

/// The stored form is fixed; a change of it would make older snapshots unreadable.
#[cfg(feature = "serde")]
#[test]
fn the_serialized_form_is_fixed() {
    let mut tracker = DeliveryTracker::<String, String>::default();
    for dest in ["a", "b"] {
        tracker.deliver(dest.to_owned(), |id| format!("message {id}"));
    }
    tracker.confirm(DeliveryId::new(1));
    let text = r#"{"current_id":2,"unconfirmed":[[2,"b","message 2"]]}"#;
    assert_eq!(serde_json::to_string(&tracker).unwrap(), text);
    assert_eq!(serde_json::from_str::<DeliveryTracker<String, String>>(text).unwrap(), tracker);
}
