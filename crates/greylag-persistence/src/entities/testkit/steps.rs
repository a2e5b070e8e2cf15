//! Drives any entity machine over stores that answer at once, until the machine is idle.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures::FutureExt;
use greylag_core::{Codec, EntityError, ReplyAddress, ReplyOutcome, ReplyPort, ReplyScope, ReplyTo};

use crate::contract::driver::journal_store::Journal;
use crate::contract::driver::memory::InMemoryJournal;
use crate::contract::head::{Claim, Under};
use crate::contract::journal::Append;
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{EventKind, Metadata, NewEvent, SeqNr, Tags, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::entities::behavior::failure::Failure;
use crate::entities::context::background_work::Work;
use crate::entities::lifecycle::input::{Action, Input, Withheld};
use crate::entities::lifecycle::machine::Machine;

/// Far more steps than any command takes; only a behaviour that sends itself messages for ever exceeds the limit.
const MAX_STEPS: usize = 1_000_000;

/// The actions of a machine until it was idle.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) withheld: Vec<Withheld>,
    pub(crate) unhandled: bool,
    pub(crate) passivate: bool,
    pub(crate) stopped: bool,
    pub(crate) failure: Option<Failure>,
}

/// Performs actions until the machine waits only for commands; its clock skips over waits.
pub(crate) fn settle<M: Machine>(
    core: &mut M,
    now: &mut Instant,
    mut out: Vec<Action<M::Command, M::Call>>,
    perform: impl Fn(M::Call) -> M::Answer,
) -> Settled {
    let mut settled = Settled::default();
    for _ in 0..MAX_STEPS {
        let mut inputs = Vec::new();
        for action in out.drain(..) {
            match action {
                Action::RequestPermit(incarnation) => inputs.push(Input::PermitGranted(incarnation)),
                Action::Store { incarnation, call } => {
                    inputs.push(Input::Answer { incarnation, answer: perform(call) });
                }
                Action::Work { incarnation, work: no } => {
                    let command = core.take_work(no).and_then(|work| match work {
                        Work::Future(future) => drive(future),
                        Work::Blocking(run) => run(),
                    });
                    inputs.push(Input::Worked { incarnation, work: no, command });
                }
                Action::ToSelf { incarnation, work } => {
                    inputs.push(Input::Worked { incarnation, work, command: None });
                }
                Action::DeadLetter(dropped) => dropped.discard(),
                Action::Restarting(failure) | Action::Failed(failure) => settled.failure = Some(failure),
                Action::Unhandled => settled.unhandled = true,
                Action::Passivate => settled.passivate = true,
                Action::HostRequests(requests) if requests.stop => inputs.push(Input::Stop),
                Action::HostRequests(_) => {}
                Action::Stopped | Action::Fenced(_) => settled.stopped = true,
                Action::Withheld(what) => settled.withheld.push(what),
                Action::ReturnPermit(_) | Action::Recovered { .. } => {}
            }
        }
        if inputs.is_empty() {
            match core.work_deadline() {
                Some(deadline) => {
                    *now = (*now).max(deadline);
                    inputs.push(Input::Tick);
                }
                None => return settled,
            }
        }
        for input in inputs {
            *now += Duration::from_micros(1);
            core.handle(*now, input, &mut out);
        }
    }
    panic!("the entity does not come to rest");
}

/// Polls a future to its end; between the polls the thread sleeps until it is woken.
fn drive<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::park();
    }
}

/// Numbers the asks of a test kit and takes their answers.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    count: u64,
}

impl Asks {
    /// Makes a command with a token, and the question whose answer the token takes.
    pub(crate) fn put<C, R: Send + 'static>(&mut self, command: impl FnOnce(ReplyTo<R>) -> C) -> (C, Question<R>) {
        self.count += 1;
        let answers = Arc::new(Answers::default());
        let node = "testkit:1#1".parse().expect("a fixed address parses");
        let scope = ReplyScope::enter(answers.clone());
        let command = command(ReplyTo::new(ReplyAddress { node, ask_id: self.count }, answers.clone()));
        (command, Question { answers, scope, of: PhantomData })
    }
}

/// A question to a behaviour. While it lives, reply tokens of a command that is read back from its bytes answer in
/// place of the tokens of the original.
pub(crate) struct Question<R> {
    answers: Arc<Answers>,
    scope: ReplyScope,
    of: PhantomData<R>,
}

impl<R: Send + 'static> Question<R> {
    /// The answer to the command, once it was handled.
    pub(crate) fn answer(self) -> Result<R, EntityError> {
        // Drop the scope first: a token that was read back and dropped answers now.
        drop(self.scope);
        let answer = self.answers.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match answer.expect("the command was not answered") {
            ReplyOutcome::Value { value, .. } => Ok(*value.downcast::<R>().expect("the token answers its own type")),
            ReplyOutcome::Failed(error) => Err(error),
            // Only sharding drops messages on their way, so this does not come.
            ReplyOutcome::Dropped(_) => Err(EntityError::NoReply),
        }
    }
}

/// Writes a value and reads it back, as on the way to another node.
pub(crate) fn survive<T: 'static>(what: &str, codec: &dyn Codec<T>, value: &T) -> T {
    let mut bytes = BytesMut::new();
    codec.encode(value, &mut bytes).unwrap_or_else(|error| panic!("the {what} cannot be encoded: {error}"));
    let read = codec.decode(&codec.manifest(value), bytes.freeze());
    read.unwrap_or_else(|error| panic!("the {what} does not survive its codec: {error}"))
}

/// The clock of a kit's stores: advances by a microsecond at every read.
pub(crate) fn ticking_clock() -> impl Fn() -> crate::Timestamp + Clone + Send + Sync + 'static {
    let tick = Arc::new(Mutex::new(0));
    move || {
        let mut tick = tick.lock().unwrap_or_else(PoisonError::into_inner);
        *tick += 1;
        crate::Timestamp::from_micros(*tick)
    }
}

/// Appends one event to a history, as if by an earlier writer.
pub(crate) fn append_value(journal: &InMemoryJournal, id: &PersistenceId, value: EncodedValue) {
    let (writer_uuid, claim) = claim(journal, id);
    let event = NewEvent {
        codec_id: value.codec_id,
        manifest: value.manifest,
        schema_version: value.schema_version,
        kind: EventKind::Event,
        payload: value.payload,
        metadata: Metadata::new(),
        tags: Tags::new(),
    };
    let first = claim.highest.next().expect("a test has few events");
    let append = Append { id: id.clone(), epoch: claim.epoch, writer_uuid, first, events: vec![event] };
    let appended = journal.append(append).now_or_never().expect("memory never waits");
    appended.unwrap_or_else(|error| panic!("an event cannot be stored: {error}"));
}

/// Makes an empty history continue after number `to`.
pub(crate) fn advance(journal: &InMemoryJournal, id: &PersistenceId, to: SeqNr) {
    let (_, claim) = claim(journal, id);
    let advanced = journal.advance(id, claim.epoch, to).now_or_never().expect("memory never waits");
    advanced.unwrap_or_else(|error| panic!("the history cannot begin after {to}: {error}"));
}

fn claim(journal: &InMemoryJournal, id: &PersistenceId) -> (WriterUuid, Claim) {
    let writer_uuid = WriterUuid::from_u128(1);
    let head = journal.head(id).now_or_never().expect("memory never waits").unwrap_or_default();
    let claim = journal.claim(id, writer_uuid, Under::Seen(head.epoch)).now_or_never().expect("memory never waits");
    (writer_uuid, claim.expect("there is no other claimer"))
}

/// The seed of a kit's n-th start.
pub(crate) fn seed(start: u64) -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&start.to_le_bytes());
    seed
}

#[derive(Default)]
struct Answers(Mutex<Option<ReplyOutcome>>);

impl ReplyPort for Answers {
    fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}
