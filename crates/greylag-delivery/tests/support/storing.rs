//! The storing machine, driven and shown as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use greylag_delivery::machine::storing::{Answer, Call, Effect, End, Input, Storing, StoringSettings, Unstored};
use greylag_delivery::queue::{Confirmation, MessageSent, QueueError, QueueState};
use greylag_delivery::{DeliverySettings, Epoch, SeqNr, StreamId};
use greylag_testkit::transcript::{Case, duration};

use crate::support::producer::seconds;

/// Time of acceptance and of confirmation, in every transcript.
pub(crate) const WALL_MS: u64 = 7;

pub(crate) struct StoringWorld {
    machine: Storing<u64>,
    start: Instant,
    now: Instant,
    next_ticket: u64,
    last_call: u64,
}

impl StoringWorld {
    pub(crate) fn new(case: &Case<'_>) -> Self {
        let machine = if case.flag("durable") { Storing::durable(settings(case)) } else { Storing::in_memory() };
        let now = Instant::now();
        Self { machine, start: now, now, next_ticket: 1, last_call: 0 }
    }

    pub(crate) fn run(&mut self, case: &Case<'_>) -> String {
        let mut output = String::new();
        match case.command {
            "start" => self.handle_input(Input::Start, &mut output),
            "accept" => {
                for _ in 0..case.parse("count").unwrap_or(1) {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    let message = Unstored {
                        ticket,
                        qualifier: case.positional(0).unwrap_or_default().into(),
                        message: ticket,
                        bytes: case.parse("size").unwrap_or(1),
                        ack: false,
                        timestamp_ms: WALL_MS,
                    };
                    self.handle_input(Input::Accept { message, reserved: None }, &mut output);
                }
            }
            "confirm" => {
                let confirmation = confirmation(case);
                let messages = case.parse("messages").unwrap_or(1);
                self.handle_input(Input::Confirm { confirmation, messages }, &mut output);
            }
            "loaded" | "stored" | "confirmed" => {
                let call = case.parse("call").unwrap_or(self.last_call);
                self.handle_input(Input::Answered { call, answer: answer(case) }, &mut output);
            }
            "close" => self.handle_input(Input::Close, &mut output),
            "fence" => self.handle_input(Input::Fence, &mut output),
            "advance" => {
                let end = self.now + duration(case.positional(0).unwrap()).unwrap();
                while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
                    self.now = deadline.max(self.now);
                    self.handle_input(Input::Tick, &mut output);
                    assert!(
                        self.machine.next_deadline().is_none_or(|next| next > self.now),
                        "a tick moves the deadline"
                    );
                }
                self.now = end;
            }
            "state" => {
                let (state, current) = (self.machine.state(), self.machine.current_seq_nr());
                let _ = writeln!(output, "{state:?} current {current} pending {}", self.machine.pending());
            }
            other => panic!("line {}: no command {other}", case.line),
        }
        output
    }

    fn handle_input(&mut self, input: Input<u64>, output: &mut String) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        let at = seconds(self.now.duration_since(self.start));
        for effect in effects {
            if let Effect::Call { id, .. } = &effect {
                self.last_call = *id;
            }
            let _ = writeln!(output, "{at} {}", describe(&effect));
        }
    }
}

pub(crate) fn settings(case: &Case<'_>) -> StoringSettings {
    let mut settings = DeliverySettings::test().storing();
    settings.request_timeout = case.duration("timeout").unwrap_or(settings.request_timeout);
    settings.retry_attempts = case.parse("attempts").unwrap_or(settings.retry_attempts);
    settings.max_batch = case.parse("batch").unwrap_or(settings.max_batch);
    settings.max_batch_bytes = case.parse("batch_bytes").unwrap_or(settings.max_batch_bytes);
    settings.confirm_flush_count = case.parse("flush_count").unwrap_or(settings.confirm_flush_count);
    settings
}

/// `confirm q 3` confirms up to 3 of a qualifier, `confirm exact 1,3` exactly these numbers.
fn confirmation(case: &Case<'_>) -> Confirmation {
    let numbers = case.positional(1).unwrap();
    match case.positional(0).unwrap() {
        "exact" => {
            let seq_nrs = numbers.split(',').map(|number| SeqNr(number.parse().unwrap())).collect();
            Confirmation::Exact { seq_nrs, timestamp_ms: WALL_MS }
        }
        qualifier => Confirmation::UpTo {
            qualifier: qualifier.into(),
            seq_nr: SeqNr(numbers.parse().unwrap()),
            timestamp_ms: WALL_MS,
        },
    }
}

/// `loaded current=5 epoch=2 unconfirmed=a:3,b:4`, `stored 3`, `confirmed`; each with `error=` and an error's name.
pub(crate) fn answer(case: &Case<'_>) -> Answer<u64> {
    let error = case.arg("error").map(|error| match error {
        "fenced" => QueueError::Fenced { by: None },
        "out-of-order" => QueueError::OutOfOrder { expected: SeqNr(case.parse("expected").unwrap()) },
        "rejected" => QueueError::Rejected("too large".to_owned()),
        "not-stored" => QueueError::NotStored("no disk".to_owned()),
        "unknown" => QueueError::OutcomeUnknown,
        "not-loaded" => QueueError::NotLoaded,
        other => panic!("no error {other}"),
    });
    match (case.command, error) {
        ("loaded", Some(error)) => Answer::Loaded(Err(error)),
        ("loaded", None) => Answer::Loaded(Ok(queue_state(case))),
        ("stored", Some(error)) => Answer::Stored(Err(error)),
        ("stored", None) => Answer::Stored(Ok(SeqNr(case.positional(0).unwrap().parse().unwrap()))),
        ("confirmed", Some(error)) => Answer::Confirmed(Err(error)),
        ("polled", Some(error)) => Answer::Polled(Err(error)),
        ("polled", None) => Answer::Polled(Ok(messages(case.positional(0).unwrap_or_default()))),
        (_, None) => Answer::Confirmed(Ok(())),
        (other, _) => panic!("no answer {other}"),
    }
}

/// The answer of [`answer`], with converted messages.
pub(crate) fn answer_with<M>(case: &Case<'_>, message: impl Fn(u64) -> M) -> Answer<M> {
    match answer(case) {
        Answer::Stored(result) => Answer::Stored(result),
        Answer::Confirmed(result) => Answer::Confirmed(result),
        Answer::Loaded(Err(error)) => Answer::Loaded(Err(error)),
        Answer::Polled(_) => panic!("only an outbox is polled"),
        Answer::Loaded(Ok(state)) => {
            let unconfirmed = state.unconfirmed.into_iter();
            let unconfirmed = unconfirmed.map(|sent| sent.try_map(|_, number| Ok::<_, ()>(message(number))).unwrap());
            Answer::Loaded(Ok(QueueState {
                stream_id: state.stream_id,
                epoch: state.epoch,
                current_seq_nr: state.current_seq_nr,
                highest_confirmed_seq_nr: state.highest_confirmed_seq_nr,
                confirmed_seq_nr: state.confirmed_seq_nr,
                unconfirmed: unconfirmed.collect(),
            }))
        }
    }
}

/// `a:3,b:4` are 3 of qualifier `a` and 4 of `b`. A message's content is its number.
fn messages(words: &str) -> Vec<MessageSent<u64>> {
    let sent = |(qualifier, number): (&str, &str)| {
        let number: u64 = number.parse().unwrap();
        MessageSent {
            seq_nr: SeqNr(number),
            message: number,
            ack: false,
            qualifier: qualifier.into(),
            timestamp_ms: WALL_MS,
        }
    };
    let words = words.split(',').filter(|word| !word.is_empty());
    words.map(|word| sent(word.split_once(':').unwrap_or(("", word)))).collect()
}

fn queue_state(case: &Case<'_>) -> QueueState<u64> {
    QueueState {
        stream_id: StreamId(1),
        epoch: Epoch(case.parse("epoch").unwrap_or(1)),
        current_seq_nr: SeqNr(case.parse("current").unwrap_or(1)),
        highest_confirmed_seq_nr: SeqNr(case.parse("highest").unwrap_or(0)),
        confirmed_seq_nr: BTreeMap::new(),
        unconfirmed: messages(case.arg("unconfirmed").unwrap_or_default()),
    }
}

/// `store #3 1 2` is call 3 with messages 1 and 2.
pub(crate) fn call<M>(id: u64, call: &Call<M>) -> String {
    match call {
        Call::Load => format!("load #{id}"),
        Call::Poll(max_messages) => format!("poll #{id} at most {max_messages}"),
        Call::Store(batch) => {
            let numbers: Vec<_> = batch.iter().map(|message| message.seq_nr.to_string()).collect();
            format!("store #{id} {}", numbers.join(" "))
        }
        Call::Confirm(confirmations) => {
            let words: Vec<_> = confirmations
                .iter()
                .map(|confirmation| match confirmation {
                    Confirmation::UpTo { qualifier, seq_nr, .. } => format!("{qualifier:?} up to {seq_nr}"),
                    Confirmation::Exact { seq_nrs, .. } => format!("exactly {seq_nrs:?}"),
                })
                .collect();
            format!("store #{id} confirmed {}", words.join(", "))
        }
    }
}

fn describe(effect: &Effect<u64>) -> String {
    match effect {
        Effect::Call { id, call: content } => call(*id, content),
        Effect::Opened(state) => {
            let unconfirmed: Vec<_> = state.unconfirmed.iter().map(|message| message.seq_nr).collect();
            format!("opened epoch {} current {} unconfirmed {unconfirmed:?}", state.epoch, state.current_seq_nr)
        }
        Effect::Released { ticket, sent } => format!("message {ticket} released as {}", sent.seq_nr),
        Effect::Unknown { ticket, seq_nr, .. } => format!("message {ticket} perhaps stored as {seq_nr}"),
        Effect::GivenBack(message) => format!("message {} given back", message.ticket),
        Effect::Ended(End::Fenced { .. }) => "ended: fenced".to_owned(),
        Effect::Ended(End::Lost { expected }) => format!("ended: the queue has lost {expected} and later"),
        Effect::Ended(End::Exhausted) => "ended: no numbers are left".to_owned(),
        Effect::Closed => "closed".to_owned(),
    }
}
