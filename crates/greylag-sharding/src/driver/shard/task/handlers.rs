//! Runs the handlers of a shard's entities, and gives the machine what came of them.
//!
//! A handler that panics is caught: the failure is the entity's, and the shard goes on. Source: sharding §4.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use greylag_core::ReplyTo;

use crate::driver::shard::queued_message::QueuedMessage;
use crate::driver::shard::works::panic_text;
use crate::entity::{EntityInit, Failure, FailureCause, TimerKey};
use crate::entity_type::BoxedEntity;
use crate::held::{Held, discard};
use crate::host::{ReceiveTimeoutRequest, Resumption, ShardCx, Signal, TimerRequest, Work};
use crate::ids::EntityId;
use crate::machine::shard::{Fired, Input, Outcome, RepeatSpec, SlotId, TimerChange};
use crate::start::StartEntityAck;

use super::ShardTask;

impl<M: Send + 'static> ShardTask<M> {
    pub(super) fn run_handler(&mut self, slot: SlotId, queued: QueuedMessage<M>) {
        match queued {
            QueuedMessage::User { message, .. }
            | QueuedMessage::Direct { message, .. }
            | QueuedMessage::Own(message) => {
                self.run_message(slot, message);
            }
            QueuedMessage::Resumption(resumption) => {
                let result = self.with_entity(slot, |entity, cx| match resumption.into_inner() {
                    Resumption::Message(message) => entity.receive(message, cx),
                    Resumption::Value(value) => entity.on_resume(value, cx),
                });
                self.after(slot, result, false);
            }
            QueuedMessage::Start { reply_to, .. } => self.ack_start(slot, reply_to),
            QueuedMessage::Repeat(key) => self.repeat(slot, key),
        }
    }

    pub(super) fn run_message(&mut self, slot: SlotId, message: Held<M>) {
        let result = self.with_entity(slot, |entity, cx| entity.receive(message.into_inner(), cx));
        self.after(slot, result, false);
    }

    /// Runs a repeating timer whose turn has come.
    pub(super) fn repeat(&mut self, slot: SlotId, key: TimerKey) {
        let Some(fired) = self.slot_work.repeats.fire(slot, key, self.now) else { return };
        let Fired { make, next: at, influences } = fired;
        match catch_unwind(AssertUnwindSafe(make.get_mut())) {
            Ok(message) => {
                // Set the timer again before the handler runs, which may replace or cancel the timer, or fail.
                let timers = vec![TimerChange::Set { key, at, payload: QueuedMessage::Repeat(key), influences }];
                self.input(Input::Done { slot, outcome: Outcome { timers, ..Outcome::default() } });
                self.run_message(slot, Held::new(message));
            }
            Err(panic) => self.fail(slot, FailureCause::Panic(panic_text(&*panic)), None),
        }
    }

    /// Acks a start request: the entity runs, and has handled the messages before the request.
    pub(super) fn ack_start(&self, slot: SlotId, reply_to: ReplyTo<StartEntityAck>) {
        if let Some((entity, _)) = self.shard.identity(slot) {
            reply_to.reply(StartEntityAck { entity: entity.clone(), shard: self.scope.shard.clone() });
        }
    }

    pub(super) fn notify_receive_timeout(&mut self, slot: SlotId) {
        let Some(make) = self.slot_work.repeats.receive_timeout(slot) else { return };
        match catch_unwind(AssertUnwindSafe(make.get_mut())) {
            Ok(message) => self.run_message(slot, Held::new(message)),
            Err(panic) => self.fail(slot, FailureCause::Panic(panic_text(&*panic)), None),
        }
    }

    /// Runs a handler; the inner result is the handler's, the outer error is the text of a panic.
    pub(super) fn with_entity(
        &mut self,
        slot: SlotId,
        run: impl FnOnce(&mut BoxedEntity<M>, &mut ShardCx<'_, M>) -> Result<(), Failure>,
    ) -> Result<(), FailureCause> {
        let Some((entity, id, incarnation)) = self.shard.entity(slot) else { return Ok(()) };
        let mut cx = ShardCx::new(&self.scope, id, incarnation, self.now, &mut self.requests);
        self.measures.enter(slot);
        let ended = catch_unwind(AssertUnwindSafe(|| run(entity, &mut cx)));
        self.measures.leave();
        // Note the address also after a failure: a failed handler may have asked for it, and its requests are dropped.
        if self.requests.direct || !matches!(ended, Ok(Ok(()))) {
            self.watchables.note(slot, incarnation);
        }
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(failure.into_cause()),
            Err(panic) => Err(FailureCause::Panic(panic_text(&*panic))),
        }
    }

    /// Carries out a handler's requests. `report`: tell the machine even if there are none.
    pub(super) fn after(&mut self, slot: SlotId, result: Result<(), FailureCause>, report: bool) {
        match result {
            Ok(()) if self.requests.is_empty() && !report => {}
            Ok(()) => {
                let outcome = self.outcome(slot);
                self.input(Input::Done { slot, outcome });
            }
            Err(cause) => {
                std::mem::take(&mut self.requests).discard();
                self.fail(slot, cause, None);
            }
        }
    }

    pub(super) fn fail(&mut self, slot: SlotId, cause: FailureCause, payload: Option<QueuedMessage<M>>) {
        self.input(Input::Failed { slot, cause, payload });
    }

    pub(super) fn start(&mut self, slot: SlotId, payload: Option<QueuedMessage<M>>) {
        let Some((id, incarnation)) = self.shard.identity(slot) else { return };
        self.log_verbosely(id, "starts");
        let init = EntityInit {
            entity_type: self.scope.entity_type.clone(),
            id: id.clone(),
            shard: self.scope.shard.clone(),
            generation: self.scope.generation,
            incarnation,
            node: self.shared.node.clone(),
            allow_local_journal: self.shared.settings.allow_local_journal,
        };
        let hosted = self.shared.entity_type.hosted.as_ref().expect("only hosting regions run shards");
        self.measures.enter(slot);
        let made = catch_unwind(AssertUnwindSafe(|| (hosted.factory)(&init)));
        self.measures.leave();
        let result = match made {
            Ok(Ok(entity)) => {
                discard(self.shard.place(slot, entity));
                self.with_entity(slot, |entity, cx| entity.on_start(cx)).map_err(|cause| match cause {
                    FailureCause::Handler(text) | FailureCause::Panic(text) | FailureCause::StateLost(text) => text,
                    other => other.to_string(),
                })
            }
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(panic) => Err(panic_text(&*panic)),
        };
        match result {
            Ok(()) => {
                let outcome = self.outcome(slot);
                self.input(Input::Started { slot, outcome, payload });
            }
            Err(text) => {
                std::mem::take(&mut self.requests).discard();
                self.start_failure.clone_from(&text);
                self.fail(slot, FailureCause::Start(text), payload);
            }
        }
    }

    /// Returns the messages that the entity gave back; its other requests are ignored.
    pub(super) fn signal_slot(&mut self, slot: SlotId, signal: Signal) -> Vec<QueuedMessage<M>> {
        self.with_entity(slot, |entity, cx| entity.on_signal(signal, cx)).ok();
        let give_back = std::mem::take(&mut self.requests.give_back);
        std::mem::take(&mut self.requests).discard();
        give_back.into_iter().map(QueuedMessage::given_back).collect()
    }

    pub(super) fn signal(&mut self, slot: SlotId, entity: &mut BoxedEntity<M>, id: &EntityId, incarnation: u64) {
        let mut cx = ShardCx::new(&self.scope, id, incarnation, self.now, &mut self.requests);
        // Ignore failures: the incarnation ends in any case, and no supervision applies.
        let _ = catch_unwind(AssertUnwindSafe(|| entity.on_signal(Signal::PostStop, &mut cx)));
        if self.requests.direct {
            self.watchables.note(slot, incarnation);
        }
        std::mem::take(&mut self.requests).discard();
    }

    pub(super) fn cancel(&mut self, slot: SlotId) {
        self.slot_work.cancel(slot);
    }

    // --- requests ---

    /// Starts the work that a handler requested, and returns the rest for the machine.
    pub(super) fn outcome(&mut self, slot: SlotId) -> Outcome<QueuedMessage<M>> {
        if self.requests.is_empty() {
            return Outcome::default();
        }
        let requests = std::mem::take(&mut self.requests);
        let suspend = requests.suspend.map(|(work, suspension)| {
            self.begin(slot, work, true);
            suspension
        });
        for work in requests.spawn {
            self.begin(slot, work, false);
        }
        if let Some(fenced) = requests.fenced {
            self.on_fenced(slot, fenced);
        }
        let timers = requests.timers.into_iter().map(|request| self.timer_change(slot, request)).collect();
        let receive_timeout = requests.receive_timeout.map(|told| self.receive_timeout(slot, told));
        Outcome {
            stop: requests.stop,
            passivate: requests.passivate,
            suspend,
            touch: requests.touch,
            direct: requests.direct,
            veto: requests.veto,
            fenced: requests.fenced.is_some(),
            to_self: requests.to_self.into_iter().map(QueuedMessage::own).collect(),
            give_back: requests.give_back.into_iter().map(QueuedMessage::given_back).collect(),
            timers,
            receive_timeout,
        }
    }

    /// Sets the maker of a receive timeout's messages; returns the timeout, if any.
    pub(super) fn receive_timeout(&mut self, slot: SlotId, told: Option<ReceiveTimeoutRequest<M>>) -> Option<Duration> {
        let (after, make) = told.map(|told| (told.after, Held::new(told.make))).unzip();
        discard(self.slot_work.repeats.set_receive_timeout(slot, make));
        after
    }

    pub(super) fn timer_change(&mut self, slot: SlotId, request: TimerRequest<M>) -> TimerChange<QueuedMessage<M>> {
        match request {
            TimerRequest::Once { key, at, message, influences } => {
                self.slot_work.repeats.cancel(slot, key);
                TimerChange::Set { key, at, payload: QueuedMessage::own(message), influences }
            }
            TimerRequest::Every { key, period, pace, make, influences } => {
                let spec = RepeatSpec { period, pace, influences };
                let at = self.slot_work.repeats.set(slot, key, spec, Held::new(make), self.now);
                TimerChange::Set { key, at, payload: QueuedMessage::Repeat(key), influences }
            }
            TimerRequest::Wake { key, at, value } => {
                let payload = QueuedMessage::Resumption(Held::new(Resumption::Value(value)));
                TimerChange::Set { key, at, payload, influences: false }
            }
            TimerRequest::Cancel(key) => {
                self.slot_work.repeats.cancel(slot, key);
                TimerChange::Cancel(key)
            }
        }
    }

    pub(super) fn begin(&mut self, slot: SlotId, work: Work<M>, suspension: bool) {
        if let Some((_, incarnation)) = self.shard.identity(slot) {
            let (node, control) = (&self.shared.node, self.inboxes.control().clone());
            self.slot_work.works.begin(node, control, (slot, incarnation), (work, suspension));
        }
    }
}
