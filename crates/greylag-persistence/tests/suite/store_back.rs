//! Entities that back off because a store does not answer start as soon as its breaker closes, long before
//! their back-off has passed. Rule persistence §4.1 (breaker). Time is paused.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::support::cell::Cell;
use crate::support::log::Log;
use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_persistence::{
    Backoff, BreakerMode, BreakerSettings, Ctx, DurableStateSettings, Effect, EventCodecs, EventSourced,
    EventSourcedSettings, FaultyJournal, FaultyStates, Guarded, InMemoryJournal, InMemorySnapshots, InMemoryStates,
    JournalOp, OnFailure, Persisted, RecoveryPermits, StateOp, StoreFault, Stores, driver,
};
use tokio::time::Instant;

/// Adds one, and answers with the sum once it is stored.
struct Add(ReplyTo<u32>);

#[derive(Default)]
struct Sum {
    /// The default if `None`.
    on_failure: Option<OnFailure>,
}

fn an_hour() -> OnFailure {
    let hour = Duration::from_secs(3600);
    OnFailure::RestartBackoff(Backoff { min: hour, max: hour, jitter: 0.0 })
}

impl EventSourced for Sum {
    type Command = Add;
    type Event = u32;
    type State = u32;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings { on_failure: self.on_failure.unwrap_or(node.on_failure), ..node.clone() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Add>, _: &u32, Add(reply_to): Add) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(reply_to, |sum| *sum)
    }

    fn apply(sum: &mut u32, number: &u32) {
        *sum += number;
    }
}

impl Sum {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = "Sum|1".parse().unwrap();
        EventCodecs::new(json("sum.added")).of(id, self)
    }
}

fn quick() -> BreakerSettings {
    BreakerSettings { max_failures: NonZeroU32::MIN, ..BreakerSettings::default() }
}

#[tokio::test(start_paused = true)]
async fn an_entity_starts_as_soon_as_its_journal_is_back() {
    let faulty = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let journal = Arc::new(Guarded::new(faulty.clone(), "journal", quick()).unwrap());
    let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
    let waits = Sum { on_failure: Some(an_hour()) };
    let (sum, _end) = driver::spawn(waits.stored(), stores, RecoveryPermits::default()).unwrap();
    assert_eq!(sum.ask(Add).await, Ok(1));
    // The append fails, then two probes; the third probe is answered, after 0.1, 0.2 and 0.4 s.
    faulty.plan(None, JournalOp::Append, 0, StoreFault::Unavailable);
    (0..2).for_each(|_| faulty.plan(None, JournalOp::Head, 0, StoreFault::Unavailable));
    let begun = Instant::now();
    assert!(sum.ask(Add).await.is_err(), "it is not stored");
    assert!(matches!(journal.write_breaker(), BreakerMode::Open { .. }));
    assert_eq!(sum.ask(Add).await, Ok(2));
    assert!((700..800).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    // The closed breaker does not end a later back-off.
    faulty.plan(None, JournalOp::Append, 0, StoreFault::Refused);
    assert!(sum.ask(Add).await.is_err());
    assert!(tokio::time::timeout(Duration::from_secs(60), sum.ask(Add)).await.is_err(), "it backs off");
}

#[tokio::test(start_paused = true)]
async fn a_durable_state_starts_as_soon_as_its_store_is_back() {
    let faulty = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default())));
    let states = Arc::new(Guarded::new(faulty.clone(), "states", quick()).unwrap());
    let stores = Stores::in_memory().with_states(states.clone());
    let settings = DurableStateSettings { on_failure: an_hour(), ..DurableStateSettings::default() };
    let log = Log::default();
    faulty.plan(None, StateOp::Get, 0, StoreFault::Unavailable);
    let begun = Instant::now();
    let cell = Cell::new("Cell|1", settings, log.clone());
    let (cell, end) = driver::spawn_state(cell.stored(), stores, RecoveryPermits::default()).unwrap();
    cell.tell("set 5".into()).await.unwrap();
    cell.stop().await;
    end.await.unwrap();
    assert!((100..200).contains(&begun.elapsed().as_millis()), "{:?}: {:?}", begun.elapsed(), log.take());
    assert_eq!(states.breakers().reads.opened, 1);
}

/// Sharding scenario 114: with the default settings, whatever the length of the outage. One entity alone makes too few
/// calls to open a breaker for minutes, and backs off for up to half a minute meanwhile.
#[tokio::test(start_paused = true)]
async fn scenario_114_an_entity_answers_within_a_second_of_the_return_of_its_journal() {
    for outage in [1, 4, 10, 100, 3600].map(Duration::from_secs) {
        let faulty = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
        let journal = Arc::new(Guarded::new(faulty.clone(), "journal", BreakerSettings::default()).unwrap());
        let stores = Stores::new(journal, Arc::new(InMemorySnapshots::default()));
        let (sum, _end) = driver::spawn(Sum::default().stored(), stores, RecoveryPermits::default()).unwrap();
        assert_eq!(sum.ask(Add).await, Ok(1));
        faulty.set_away(true);
        assert!(sum.ask(Add).await.is_err(), "it is not stored");
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let sum = sum.clone();
                tokio::spawn(async move { (sum.ask(Add).await, Instant::now()) })
            })
            .collect();
        tokio::time::sleep(outage).await;
        faulty.set_away(false);
        let back = Instant::now();
        for (waiting, expected) in waiting.into_iter().zip(2..) {
            let (answer, at) = waiting.await.unwrap();
            let took = at.duration_since(back);
            assert_eq!(answer, Ok(expected), "what waited is handled in order");
            assert!(took < Duration::from_secs(1), "after {outage:?} away it took {took:?} more");
        }
    }
}

/// The same for an entity with a durable state.
#[tokio::test(start_paused = true)]
async fn scenario_114_a_durable_state_answers_within_a_second_of_the_return_of_its_store() {
    for outage in [4, 10, 100].map(Duration::from_secs) {
        let faulty = Arc::new(FaultyStates::new(Arc::new(InMemoryStates::default())));
        let states = Arc::new(Guarded::new(faulty.clone(), "states", BreakerSettings::default()).unwrap());
        let stores = Stores::in_memory().with_states(states);
        let log = Log::default();
        let cell = Cell::new("Cell|1", DurableStateSettings::default(), log.clone());
        faulty.set_away(true);
        let (cell, end) = driver::spawn_state(cell.stored(), stores, RecoveryPermits::default()).unwrap();
        cell.tell("set 5".into()).await.unwrap();
        cell.tell("set 6".into()).await.unwrap();
        cell.stop().await;
        tokio::time::sleep(outage).await;
        faulty.set_away(false);
        let back = Instant::now();
        end.await.unwrap();
        assert!(back.elapsed() < Duration::from_secs(1), "after {outage:?} away: {:?}", back.elapsed());
        let handled: Vec<_> = log.take().into_iter().filter(|line| line.contains("handle")).collect();
        assert!(handled.len() == 2 && handled[0].contains("set 5"), "{handled:?}");
    }
}
