//! Every clause of persistence §4.1 (breaker).

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> BreakerSettings {
    let max_failures = NonZeroU32::new(3).unwrap();
    BreakerSettings { max_failures, ..BreakerSettings::default() }
}

fn failed() -> CallOutcome {
    CallOutcome::Failed("connection refused".to_owned())
}

/// A breaker with a clock of its own.
struct Steps {
    breaker: Breaker,
    now: Instant,
}

impl Steps {
    fn new() -> Self {
        Self { breaker: Breaker::new("write breaker of journal", settings()), now: Instant::now() }
    }

    fn call(&mut self, outcome: CallOutcome) {
        let admission = self.breaker.admit(self.now).expect("the call may go");
        self.breaker.settle(self.now, admission, outcome);
    }

    fn opened() -> Self {
        let mut steps = Self::new();
        (0..3).for_each(|_| steps.call(failed()));
        steps
    }

    fn left(&self) -> Option<u64> {
        match self.breaker.mode(self.now) {
            BreakerMode::Open { left, .. } => Some(left.as_secs()),
            BreakerMode::Closed | BreakerMode::HalfOpen => None,
        }
    }
}

#[test]
fn it_opens_after_failures_in_a_row_only() {
    let mut steps = Steps::new();
    for _ in 0..5 {
        steps.call(failed());
        steps.call(failed());
        steps.call(CallOutcome::Answered);
    }
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::Closed);
    (0..3).for_each(|_| steps.call(failed()));
    assert_eq!(steps.left(), Some(30));
}

#[test]
fn while_open_it_names_itself_the_cause_and_the_time_left() {
    let mut steps = Steps::opened();
    steps.now += 12 * SECOND;
    let refusal = steps.breaker.admit(steps.now).unwrap_err().to_string();
    for part in ["write breaker of journal", "18.0s", "3 failures", "connection refused"] {
        assert!(refusal.contains(part), "{refusal} must name {part}");
    }
}

#[test]
fn one_probe_is_let_through_and_its_answer_closes() {
    let mut steps = Steps::opened();
    steps.now += 30 * SECOND;
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::HalfOpen);
    let probe = steps.breaker.admit(steps.now).unwrap();
    assert!(steps.breaker.admit(steps.now).is_err(), "only one call probes");
    steps.breaker.settle(steps.now, probe, CallOutcome::Answered);
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::Closed);
    // Failures from before do not count any more.
    steps.call(failed());
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::Closed);
}

#[test]
fn a_failed_probe_opens_twice_as_long_up_to_five_minutes() {
    let mut steps = Steps::opened();
    let mut waits = Vec::new();
    for _ in 0..6 {
        steps.now += Duration::from_secs(steps.left().unwrap());
        steps.call(failed());
        waits.push(steps.left().unwrap());
    }
    assert_eq!(waits, [60, 120, 240, 300, 300, 300]);
    // One answer, and the next time it begins with the shortest wait.
    steps.now += 300 * SECOND;
    steps.call(CallOutcome::Answered);
    (0..3).for_each(|_| steps.call(failed()));
    assert_eq!(steps.left(), Some(30));
}

#[test]
fn calls_from_before_say_nothing_about_now() {
    let mut steps = Steps::new();
    let slow: Vec<_> = (0..4).map(|_| steps.breaker.admit(steps.now).unwrap()).collect();
    (0..3).for_each(|_| steps.call(failed()));
    steps.breaker.settle(steps.now, slow[0], CallOutcome::Answered);
    assert_eq!(steps.left(), Some(30), "a late answer does not close it");
    steps.now += 29 * SECOND;
    steps.breaker.settle(steps.now, slow[1], failed());
    assert_eq!(steps.left(), Some(1), "a late failure does not keep it open");
    steps.now += SECOND;
    let probe = steps.breaker.admit(steps.now).unwrap();
    steps.breaker.settle(steps.now, slow[2], failed());
    steps.breaker.settle(steps.now, probe, CallOutcome::Answered);
    steps.breaker.settle(steps.now, slow[3], failed());
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::Closed);
}

#[test]
fn a_probe_that_nobody_waits_for_leaves_its_place_to_the_next() {
    let mut steps = Steps::opened();
    steps.now += 30 * SECOND;
    steps.call(CallOutcome::Abandoned);
    steps.call(CallOutcome::Answered);
    assert_eq!(steps.breaker.mode(steps.now), BreakerMode::Closed);
}

#[test]
fn defaults_are_those_of_the_specification() {
    let show = |settings: BreakerSettings| {
        assert_eq!((settings.check(), settings.max_reset_timeout), (Ok(()), 300 * SECOND));
        (settings.max_failures.get(), settings.call_timeout, settings.reset_timeout)
    };
    assert_eq!(show(BreakerSettings::default()), (10, 10 * SECOND, 30 * SECOND));
    assert_eq!(show(BreakerSettings::snapshots()), (5, 20 * SECOND, 60 * SECOND));
    let none = BreakerSettings { call_timeout: Duration::ZERO, ..BreakerSettings::default() };
    assert!(none.check().unwrap_err().to_string().contains("breaker.call_timeout"));
    let order = BreakerSettings { max_reset_timeout: SECOND, ..BreakerSettings::default() };
    assert!(order.check().unwrap_err().to_string().contains("reset_timeout"));
}

#[test]
fn a_write_is_doubtful_from_its_lost_answer_to_the_next_known_one() {
    let [id, other] = ["Counter|1", "Counter|2"].map(|id| id.parse::<PersistenceId>().unwrap());
    let [writer, stranger] = [1, 2].map(WriterUuid::from_u128);
    let (mut unanswered, now) = (Unanswered::new(1), Instant::now());
    unanswered.note(now, &id, writer, 7);
    assert!(unanswered.is_doubtful(now, &id, writer, 7));
    for (id, writer, number) in [(&other, writer, 7), (&id, stranger, 7), (&id, writer, 8)] {
        assert!(!unanswered.is_doubtful(now, id, writer, number));
    }
    assert!(!unanswered.is_doubtful(now + DOUBT_LASTS, &id, writer, 7), "nobody asks again that late");
    unanswered.settle(&id);
    assert!(!unanswered.is_doubtful(now, &id, writer, 7));
    // Past the bound nothing is certain, until what is not remembered is past.
    unanswered.note(now, &id, writer, 7);
    unanswered.note(now, &other, writer, 1);
    assert!(unanswered.is_doubtful(now, &other, writer, 1) && unanswered.is_doubtful(now, &id, stranger, 9));
    let later = now + DOUBT_LASTS;
    assert!(!unanswered.is_doubtful(later, &id, stranger, 9));
    unanswered.note(later, &other, writer, 2);
    assert!(unanswered.is_doubtful(later, &other, writer, 2), "what is past makes room");
}

/// Persistence §10.16: what an operator sees of an outage.
#[test]
fn what_it_did_is_counted() {
    let mut steps = Steps::opened();
    let seen = |steps: &Steps| {
        let BreakerStats { mode, failures, opened, refused } = steps.breaker.stats(steps.now);
        (mode == BreakerMode::Closed, failures, opened, refused)
    };
    assert_eq!(seen(&steps), (false, 3, 1, 0));
    assert!(steps.breaker.admit(steps.now).is_err() && steps.breaker.admit(steps.now).is_err());
    assert_eq!(seen(&steps), (false, 3, 1, 2));
    steps.now += 31 * SECOND;
    steps.call(failed());
    assert_eq!(seen(&steps), (false, 4, 2, 2), "a failed probe opens it again");
    steps.now += 61 * SECOND;
    steps.call(CallOutcome::Answered);
    steps.call(failed());
    assert_eq!(seen(&steps), (true, 5, 2, 2), "all failures count, also those that open nothing");
}
