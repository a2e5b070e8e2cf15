//! A customer's account: its behaviour, and the way back from its side effects.
//!
//! The behaviour repeats the steps of greylag-delivery's own wrapper inside the machine of persistence, since that
//! wrapper needs a runtime: compare with the marks, refuse a delivery that is too early, attach the mark, confirm after
//! the append, hand out again what was dropped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greylag_codec::json;
use greylag_core::EntityError;
use greylag_delivery::machine::sharding_consumer::DeliveryHandle;
use greylag_delivery::{Dedupe, MessageId, SeqNr, StreamId};
use greylag_persistence::{
    Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, Mark, Persisted, PersistenceId, Signal,
};

/// Outcomes of deliveries and questions since the customer last looked.
#[derive(Debug)]
pub(super) enum Outcome {
    Confirmed(DeliveryHandle),
    Abandoned(DeliveryHandle),
    Recovered(Dedupe),
    /// The total, in answer to a question.
    Answered(u64, u64),
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) outcomes: Vec<Outcome>,
    /// Deliveries handed out but not confirmed.
    pub(super) open: BTreeSet<(StreamId, SeqNr)>,
}

/// Outcomes shared by one customer's behaviour, its side effects and its controller.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcomes(Arc<Mutex<Pending>>);

impl Outcomes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, outcome: Outcome) {
        self.lock().outcomes.push(outcome);
    }

    fn has_earlier(&self, id: &MessageId) -> bool {
        let from = (id.stream_id, SeqNr::NONE);
        self.lock().open.range(from..(id.stream_id, id.seq_nr)).next().is_some()
    }
}

/// The right to confirm one delivery; if it is dropped, the delivery is handed out again.
#[derive(Debug)]
pub(super) struct Confirm {
    handle: Option<DeliveryHandle>,
    outcomes: Outcomes,
}

impl Confirm {
    pub(super) fn new(handle: DeliveryHandle, outcomes: Outcomes) -> Self {
        Self { handle: Some(handle), outcomes }
    }

    fn confirm(mut self) {
        if let Some(handle) = self.handle.take() {
            self.outcomes.push(Outcome::Confirmed(handle));
        }
    }
}

impl Drop for Confirm {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.outcomes.push(Outcome::Abandoned(handle));
        }
    }
}

#[derive(Debug)]
pub(super) enum Command {
    Purchase { number: u64, id: MessageId, confirm: Confirm },
    Total { question: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) cents: u64,
}

/// The price of purchase `number`.
pub(super) fn cents(number: u64) -> u64 {
    100 + number * 7
}

pub(super) struct Account {
    pub(super) id: PersistenceId,
    pub(super) outcomes: Outcomes,
    /// With the omission: marks are ignored.
    pub(super) forgets: bool,
}

impl Account {
    fn on_purchase(&self, cx: &Ctx<'_, Command>, number: u64, id: &MessageId, confirm: Confirm) -> Effect<Self> {
        let mark = Mark {
            producer_id: id.producer_id.as_str().to_owned(),
            stream_id: greylag_persistence::StreamId::from_u128(id.stream_id.0),
            total_seq_nr: id.seq_nr.get(),
        };
        if !self.forgets && cx.marks().covers(mark.stream_id, mark.total_seq_nr) {
            return Effect::none().then_run(move |_| confirm.confirm());
        }
        let overtakes = self.outcomes.has_earlier(id);
        let effect = Effect::persist(number).with_mark(mark).when_owned().then_run(move |_| confirm.confirm());
        if overtakes { effect.refused(EntityError::NotInOrder) } else { effect }
    }
}

impl EventSourced for Account {
    type Command = Command;
    type Event = u64;
    type State = Totals;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings { under_delivery: true, ..EventSourcedSettings::test() }
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, _state: &Totals, command: Command) -> Effect<Self> {
        match command {
            Command::Purchase { number, id, confirm } => self.on_purchase(cx, number, &id, confirm),
            Command::Total { question } => {
                let outcomes = self.outcomes.clone();
                Effect::none().then_run(move |state: &Totals| outcomes.push(Outcome::Answered(question, state.cents)))
            }
        }
    }

    fn apply(state: &mut Totals, number: &u64) {
        state.cents += cents(*number);
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, _state: &Totals, signal: &Signal) {
        if *signal == Signal::RecoveryCompleted {
            let marks = cx.marks().iter();
            let dedupe = marks.map(|(stream, applied)| (StreamId(stream.as_u128()), SeqNr(applied.total_seq_nr)));
            self.outcomes.push(Outcome::Recovered(dedupe.collect()));
        }
    }
}

impl Account {
    /// The entity with its name and its codecs, ready to be hosted.
    pub(super) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.id.clone();
        EventCodecs::new(json::<u64>("purchased")).of(id, self)
    }
}
