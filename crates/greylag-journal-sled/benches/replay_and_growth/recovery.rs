//! Recovery of many entities at once, through the same host that runs entities in production.

use std::path::Path;
use std::time::Instant;

use futures::future::try_join_all;
use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_journal_sled::SledJournal;
use greylag_persistence::driver::{self, EntityHandle};
use greylag_persistence::{Ctx, Effect, EventCodecs, EventSourced, Journal, Persisted, PersistenceId, RecoveryPermits};

use crate::{Failure, open, print, process, write_elsewhere};

const EVENTS_EACH: u32 = 100;
const PERMITS: usize = 50;
/// How many entities are created at once.
const MADE_AT_ONCE: u64 = 1_000;

enum Command {
    /// Persists this number of events.
    Add(u32, ReplyTo<u32>),
    Tell(ReplyTo<u32>),
}

struct Counter(PersistenceId);

impl EventSourced for Counter {
    type Command = Command;
    type Event = u32;
    type State = u32;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u32, command: Command) -> Effect<Self> {
        match command {
            Command::Add(count, reply_to) => {
                Effect::<Self>::persist_all(vec![1; count as usize]).then_reply(reply_to, |sum| *sum)
            }
            Command::Tell(reply_to) => Effect::<Self>::none().then_reply(reply_to, |sum| *sum),
        }
    }

    fn apply(sum: &mut u32, number: &u32) {
        *sum += number;
    }
}

impl Counter {
    /// The entity with its name and its codecs, ready to be hosted.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.0.clone();
        EventCodecs::new(json("counter.added")).of(id, self)
    }
}

fn start(journal: &SledJournal, number: u64, permits: &RecoveryPermits) -> Result<EntityHandle<Command>, Failure> {
    let id = PersistenceId::of("Counter", &number.to_string())?;
    let (entity, _ended) = driver::spawn(Counter(id).stored(), journal.stores(), permits.clone())?;
    Ok(entity)
}

pub(crate) async fn write(path: &Path, entities: u64) -> Result<(), Failure> {
    let (journal, permits) = (open(path).await?, RecoveryPermits::new(PERMITS));
    for first in (0..entities).step_by(usize::try_from(MADE_AT_ONCE)?) {
        let made = (first..entities.min(first + MADE_AT_ONCE)).map(|number| start(&journal, number, &permits));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        try_join_all(made.iter().map(|entity| entity.ask(|reply_to| Command::Add(EVENTS_EACH, reply_to)))).await?;
        for entity in made {
            entity.stop().await;
        }
    }
    journal.close().await?;
    Ok(())
}

pub(crate) async fn measure(directory: &Path, entities: u64) -> Result<(), Failure> {
    let scratch = tempfile::tempdir_in(directory)?;
    write_elsewhere("recovery", entities, scratch.path())?;
    let (journal, permits) = (open(scratch.path()).await?, RecoveryPermits::new(PERMITS));
    let before = process::resident()?;
    process::forget_peak()?;
    let began_at = Instant::now();
    let counters = (0..entities).map(|number| start(&journal, number, &permits)).collect::<Result<Vec<_>, _>>()?;
    let sums = try_join_all(counters.iter().map(|counter| counter.ask(Command::Tell))).await?;
    let took = began_at.elapsed().as_secs_f64();
    assert!(sums.iter().all(|sum| *sum == EVENTS_EACH), "an entity came back with another state");
    let events = entities as f64 * f64::from(EVENTS_EACH);
    print(format_args!(
        "recovery: {entities} entities of {EVENTS_EACH} events, {PERMITS} permits: {took:.2} s, {:.0} entities/s, {:.0} events/s; resident {before:.0} MiB after opening, {:.0} MiB at most",
        entities as f64 / took,
        events / took,
        process::peak()?,
    ))?;
    drop(counters);
    journal.close().await?;
    Ok(())
}
