//! After an outage of the database, waiting commands go on at once, in order. Sharding scenario 114.
//!
//! All they wait for is the journal's next try to connect, which comes within a second; the time until all are done
//! depends on what else the machine does.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{id, schema, with_server};
use futures::future::join_all;
use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::driver::{EntityHandle, RecoveryPermits, spawn};
use greylag_persistence::{
    Backoff, BreakerSettings, Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, Guarded, Journal,
    OnFailure, Persisted, Stores,
};
use greylag_testkit::stranger;
use tokio::task::{JoinHandle, block_in_place};

/// Far longer than the recovery takes, and far shorter than the entity's back-off.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Adds one, and replies with the sum once it is stored.
struct Add(ReplyTo<u64>);

struct Sum;

impl EventSourced for Sum {
    type Command = Add;
    type Event = u64;
    type State = u64;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        // A back-off so long that a test that waits for it fails.
        let hour = Duration::from_secs(3600);
        let on_failure = OnFailure::RestartBackoff(Backoff { min: hour, max: hour, jitter: 0.0 });
        EventSourcedSettings { on_failure, ..node.clone() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Add>, _: &u64, Add(reply_to): Add) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(reply_to, |sum| *sum)
    }

    fn apply(sum: &mut u64, number: &u64) {
        *sum += number;
    }
}

impl Sum {
    fn stored(name: &str) -> Persisted<Self, EventCodecs<Self>> {
        EventCodecs::new(json("sum.added")).of(id(name), Self)
    }
}

/// The stores of a journal; `guarded` puts the breakers of a node around them.
fn stores(journal: &PostgresJournal, guarded: bool) -> Stores {
    if !guarded {
        return journal.stores();
    }
    let behind = Guarded::new(Arc::new(journal.clone()), "the journal", BreakerSettings::default()).unwrap();
    let snapshots = Guarded::new(Arc::new(journal.snapshots()), "its snapshots", BreakerSettings::snapshots()).unwrap();
    Stores::new(Arc::new(behind), Arc::new(snapshots))
}

/// Asks once, which must fail in the outage, then five times more, in order.
async fn ask_through_outage(sum: EntityHandle<Add>) -> JoinHandle<Vec<u64>> {
    assert!(sum.ask(Add).await.is_err(), "the database is away");
    tokio::spawn(async move {
        let answers = join_all((0..5).map(|_| sum.ask(Add))).await;
        answers.into_iter().map(Result::unwrap).collect()
    })
}

#[test]
fn scenario_114_entities_continue_as_soon_as_the_database_answers() {
    with_server(async |mut server| {
        let soon = Duration::from_secs(1);
        let schema = schema();
        let settings =
            PostgresJournalSettings { schema, append_timeout: soon, call_timeout: soon, ..Default::default() };
        let journal = PostgresJournal::open(&server.config(), settings).await.unwrap();
        let start = |name, guarded| spawn(Sum::stored(name), stores(&journal, guarded), RecoveryPermits::default());
        let (guarded, _end) = start("guarded", true).unwrap();
        let (bare, _end) = start("bare", false).unwrap();
        assert_eq!((guarded.ask(Add).await, bare.ask(Add).await), (Ok(1), Ok(1)));

        block_in_place(|| server.stop());
        let (guarded, bare) = tokio::join!(ask_through_outage(guarded), ask_through_outage(bare));
        // After these failures every wait has its greatest length.
        for _ in 0..4 {
            assert!(journal.head(&id("nobody")).await.is_err());
        }
        let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
        let wait = block_in_place(|| stranger::shortest_wait(address, 3, 3 * TIME_LIMIT)).expect("it is tried again");
        assert!(wait < Duration::from_secs(1), "the journal waits for {wait:?} before it tries again");
        block_in_place(|| server.restart().unwrap());
        let back_at = Instant::now();
        for waiting in [guarded, bare] {
            let sums = tokio::time::timeout(TIME_LIMIT, waiting).await.expect("it does not wait for an hour").unwrap();
            // The command that met the outage may or may not be stored.
            let first = sums[0];
            assert!(first == 2 || first == 3, "{sums:?}");
            assert!(sums.iter().copied().eq(first..first + 5), "what waited is handled in order: {sums:?}");
        }
        let took = back_at.elapsed();
        writeln!(std::io::stdout(), "answered {took:.2?} after the database was back").unwrap();
        assert!(took < TIME_LIMIT, "{took:?}");
        journal.close().await.unwrap();
    });
}
