//! Asking an entity that runs as a task: the answer, or the error of a command without one.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_codec::json;
use greylag_core::{EntityError, NotStoredReason, ReplyTo};
use greylag_persistence::driver::{self, Ended, EntityHandle};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, Ctx, DeleteError, Effect,
    EventCodecs, EventSourced, EventSourcedSettings, Failure, FaultyJournal, Head, Health, InMemoryJournal,
    InMemorySnapshots, Journal, JournalOp, OnFailure, Page, Persisted, PersistenceId, ReadError, ReadRange,
    RecoveryPermits, SeqNr, SettingsError, StoreFault, Stores, Under, WriterEpoch, WriterUuid,
};
use tokio::sync::oneshot;

const LOST: StoreFault = StoreFault::AnswerLost { done: false };

enum Command {
    Add(u32, ReplyTo<u32>),
    Forget(ReplyTo<u32>),
    Read(ReplyTo<u32>),
    /// As `Read`, but answered only once ownership is proved.
    ReadOwned(ReplyTo<u32>),
    End,
}

#[derive(Default)]
struct Sum {
    journal: &'static str,
    /// Stash capacity; the default if `None`.
    stash: Option<NonZeroUsize>,
    /// Whether the entity ends when an append fails.
    ends: bool,
}

impl EventSourced for Sum {
    type Command = Command;
    type Event = u32;
    type State = u32;

    fn journal_plugin_id(&self) -> &str {
        self.journal
    }

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings {
            stash_capacity: self.stash.unwrap_or(node.stash_capacity),
            on_failure: if self.ends { OnFailure::Stop } else { EventSourcedSettings::test().on_failure },
            ..EventSourcedSettings::test()
        }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, sum: &u32, command: Command) -> Effect<Self> {
        match command {
            Command::Add(number, reply_to) => Effect::<Self>::persist(number).then_reply(reply_to, |sum| *sum),
            Command::Forget(reply_to) => Effect::none().then_run(move |_| drop(reply_to)),
            Command::Read(reply_to) => Effect::reply(reply_to, *sum),
            Command::ReadOwned(reply_to) => Effect::<Self>::none().when_owned().then_reply(reply_to, |sum| *sum),
            Command::End => Effect::stop(),
        }
    }

    fn apply(sum: &mut u32, number: &u32) {
        *sum += number;
    }
}

impl Sum {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = PersistenceId::of("Sum", "1").unwrap();
        EventCodecs::new(json("sum.added")).of(id, self)
    }
}

fn start(stores: &Stores) -> (EntityHandle<Command>, oneshot::Receiver<Ended>) {
    driver::spawn(Sum::default().stored(), stores.clone(), RecoveryPermits::default()).unwrap()
}

fn add(number: u32) -> impl FnOnce(ReplyTo<u32>) -> Command {
    move |reply_to| Command::Add(number, reply_to)
}

#[tokio::test]
async fn an_ask_is_answered_when_its_event_is_stored() {
    let stores = Stores::in_memory();
    let (sum, _end) = start(&stores);
    assert_eq!(sum.ask(add(2)).await, Ok(2));
    assert_eq!(sum.ask(add(3)).await, Ok(5));
    let head = stores.journal.head(&PersistenceId::of("Sum", "1").unwrap()).await.unwrap();
    assert_eq!(head.highest.as_u64(), 2);
}

#[tokio::test]
async fn an_ask_is_answered_with_the_outcome_of_its_command() {
    let stores = Stores::in_memory();
    let (sum, end) = start(&stores);
    assert_eq!(sum.ask(Command::Forget).await, Err(EntityError::NoReply));
    // The runtime has one thread: the second command is in the inbox when the entity takes the first.
    sum.tell(Command::End).await.unwrap();
    assert_eq!(sum.ask(add(1)).await, Err(EntityError::Stopped), "it was waiting");
    assert_eq!(end.await, Ok(Ended::Stopped));
    assert_eq!(sum.ask(add(1)).await, Err(EntityError::Stopped), "the entity has ended");
}

/// Sharding scenario 113: commands that waited behind a failed append have had no effect, and may be sent again,
/// whether the entity goes on or ends.
#[tokio::test]
async fn scenario_113_chains_behind_a_failed_append_are_not_stored() {
    for (ends, fault) in [(false, StoreFault::Unavailable), (true, StoreFault::Unavailable), (true, LOST)] {
        let faulty = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
        let stores = Stores::new(faulty.clone(), Arc::new(InMemorySnapshots::default()));
        let (sum, end) =
            driver::spawn(Sum { ends, ..Sum::default() }.stored(), stores, RecoveryPermits::default()).unwrap();
        assert_eq!(sum.ask(add(1)).await, Ok(1));
        // The read of the head for `ReadOwned` is under way when the append begins, and its answer comes too late.
        faulty.plan(None, JournalOp::Head, 0, StoreFault::Hang { done: false });
        faulty.plan(None, JournalOp::Append, 0, fault);
        // The runtime has one thread: all commands are in the inbox when the entity takes the first.
        let (owned, added, read, another) =
            futures::join!(sum.ask(Command::ReadOwned), sum.ask(add(1)), sum.ask(Command::Read), sum.ask(add(1)));
        assert!(added.is_err());
        let is_not_stored = |answer: &Result<u32, EntityError>| match answer {
            Err(error @ EntityError::NotStored(NotStoredReason::Unavailable(_))) => {
                !error.may_have_run() && error.is_retryable()
            }
            _ => false,
        };
        assert!(is_not_stored(&owned), "ends: {ends}, {fault:?}: {owned:?}");
        if ends {
            assert!(is_not_stored(&read) && is_not_stored(&another), "{fault:?}: {read:?}, {another:?}");
            assert!(matches!(end.await, Ok(Ended::Failed(Failure::Persist(_)))));
        } else {
            assert_eq!((read, another), (Ok(1), Ok(2)), "the entity goes on, in order");
        }
    }
}

#[tokio::test]
async fn an_ask_that_meets_a_newer_owner_is_answered_not_stored() {
    let stores = Stores::in_memory();
    let (old, end) = start(&stores);
    assert_eq!(old.ask(add(1)).await, Ok(1));
    let (new, _end) = start(&stores);
    assert_eq!(new.ask(add(1)).await, Ok(2));
    let fenced = Err(EntityError::NotStored(NotStoredReason::Fenced));
    let (first, second) = futures::join!(old.ask(add(1)), old.ask(add(1)));
    assert_eq!((first, second), (fenced.clone(), fenced));
    assert!(matches!(end.await, Ok(Ended::Fenced(_))));
}

/// Scenario persistence 9.
#[tokio::test]
async fn scenario_09_an_unknown_journal_is_refused_at_the_start() {
    let (archive, default) = (Stores::in_memory(), Stores::in_memory());
    let stores = default.clone().with_plugin("archive", archive.clone());
    let spawn =
        |journal| driver::spawn(Sum { journal, ..Sum::default() }.stored(), stores.clone(), RecoveryPermits::default());
    let refused = spawn("attic").map(|_| ()).unwrap_err();
    let known = "\"archive\"".to_owned();
    let expected = SettingsError::UnknownPlugin { key: "journal_plugin_id", plugin: "attic".to_owned(), known };
    assert_eq!(refused, expected);
    let (sum, _end) = spawn("archive").unwrap();
    assert_eq!(sum.ask(add(2)).await, Ok(2));
    let id = PersistenceId::of("Sum", "1").unwrap();
    assert_eq!(archive.journal.head(&id).await.unwrap().highest.as_u64(), 1);
    assert_eq!(default.journal.head(&id).await.unwrap().highest.as_u64(), 0);
}

/// A journal whose appends panic, as by a bug of a backend.
struct Panics(InMemoryJournal);

#[async_trait]
impl Journal for Panics {
    fn caps(&self) -> Caps {
        self.0.caps()
    }

    async fn claim(&self, id: &PersistenceId, uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        self.0.claim(id, uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.0.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.0.append(append).await.unwrap();
        panic!("as planned, once it is stored")
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.0.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.0.head(id).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        self.0.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.0.close().await
    }
}

/// persistence §2.6: no asker waits for ever, and none gets "not stored".
#[tokio::test]
async fn a_store_that_panics_ends_its_entity_with_an_unknown_outcome() {
    let memory = InMemoryJournal::default();
    let stores = Stores::new(Arc::new(Panics(memory.clone())), Stores::in_memory().snapshots);
    let (sum, end) = start(&stores);
    let (asked, behind) = futures::join!(sum.ask(add(2)), sum.ask(add(3)));
    assert_eq!((asked, behind), (Err(EntityError::OutcomeUnknown), Err(EntityError::Stopped)));
    assert_eq!(end.await, Ok(Ended::Failed(Failure::StoreLost)));
    assert_eq!(memory.head(&PersistenceId::of("Sum", "1").unwrap()).await.unwrap().highest.as_u64(), 1);
}

/// Scenario persistence 20: an asker that meets a full stash gets that error; stashed commands are answered.
#[tokio::test(start_paused = true)]
async fn scenario_20_an_ask_of_a_full_stash_gets_stash_full() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Stores::in_memory().snapshots);
    let sum = Sum { stash: NonZeroUsize::new(2), ..Sum::default() };
    let (entity, _end) = driver::spawn(sum.stored(), stores, RecoveryPermits::default()).unwrap();
    assert_eq!(entity.ask(|to| Command::Add(0, to)).await, Ok(0));
    journal.plan(None, JournalOp::Append, 0, StoreFault::Delay(Duration::from_secs(1)));
    let asked = [1, 10, 100, 1000].map(|number| entity.ask(move |to| Command::Add(number, to)));
    let answers = futures::future::join_all(asked).await;
    assert_eq!(answers, [Ok(1), Ok(11), Ok(111), Err(EntityError::StashFull)]);
}

/// Scenario persistence 6: a timer's message during a recovery is handled after it, once.
#[tokio::test(start_paused = true)]
async fn scenario_06_a_timer_message_during_a_recovery_is_handled_after_it() {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Stores::in_memory().snapshots);
    journal.plan(None, JournalOp::Head, 0, StoreFault::Delay(Duration::from_secs(2)));
    let began = tokio::time::Instant::now();
    let (entity, _end) = start(&stores);
    let sender = entity.clone();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sender.ask(|to| Command::Add(1, to)).await
    });
    assert_eq!(timer.await.unwrap(), Ok(1));
    assert_eq!(began.elapsed().as_secs(), 2, "not before the state is complete");
    assert_eq!(entity.ask(|to| Command::Add(0, to)).await, Ok(1), "once");
}
