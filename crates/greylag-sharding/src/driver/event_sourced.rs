//! An event-sourced entity as a shard hosts it.
//!
//! The machine is `greylag_persistence::EntityCore`; this hands it commands, performs what it asks
//! of the stores, and keeps the mailbox suspended whenever it does not run (recovering, persisting,
//! backing off), so that commands wait in the shard's queue and nowhere else.
//!
//! ```text
//! receive --> Input::Command --> Append --> suspend_for(store call | deadline) --> on_resume --> Answer
//! ```
//! Store calls run as tasks of their own: an append is never dropped with the entity that began it.
//!
//! Source: sharding §4.3, §4.6; persistence §2, §11.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use greylag_persistence::{
    Action, EntityCore, EntityInit as CoreInit, EventSourced, Incarnation, Input, Marks, PhaseName, StoreAnswer,
    StoreCall, Stores,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::entity::{Ctx, Entity, EntityInit, Failure, Fenced, Signal};

/// What a suspension of the entity ended with.
enum Woken {
    /// A permit to recover.
    Permit(Incarnation, OwnedSemaphorePermit),
    /// A store answered.
    Answer(Incarnation, StoreAnswer),
    /// The store ended without an answer.
    Lost,
    /// The machine's deadline came first; the answer is still to come.
    Deadline(Option<Waiting>),
}

/// What a suspended machine waits for.
enum Waiting {
    Permit(Incarnation),
    Answer(oneshot::Receiver<(Incarnation, StoreAnswer)>),
}

/// Hosts the machine of one event-sourced entity. An [`Entity`] whose messages are the commands.
///
/// `EntityType::event_sourced` makes these; a wrapper that adds a protocol of its own (as delivery
/// does) holds one and calls it through [`Ctx::nested`].
pub struct EventSourcedEntity<B: EventSourced> {
    /// Until `on_start`.
    behavior: Option<B>,
    core: Option<EntityCore<B>>,
    init: EntityInit,
    permit: Option<OwnedSemaphorePermit>,
    waiting: Option<Waiting>,
    /// The deadline for which a timer runs while the entity is not suspended.
    timer: Option<Instant>,
    /// The machine waits for a verdict that only a new incarnation can be.
    failed: Option<String>,
}

impl<B: EventSourced> EventSourcedEntity<B> {
    /// Hosts `behavior` as the entity `init`.
    pub fn new(behavior: B, init: &EntityInit) -> Self {
        Self {
            behavior: Some(behavior),
            core: None,
            init: init.clone(),
            permit: None,
            waiting: None,
            timer: None,
            failed: None,
        }
    }

    /// Whether the state is complete and commands are taken.
    pub fn is_running(&self) -> bool {
        self.core.as_ref().is_some_and(|core| core.phase() == PhaseName::Running)
    }

    /// The machine; `None` before `on_start`.
    pub fn core(&self) -> Option<&EntityCore<B>> {
        self.core.as_ref()
    }

    /// Which deliveries the history shows as applied; complete while the entity runs.
    pub fn marks(&self) -> Option<&Marks> {
        self.core.as_ref().map(EntityCore::marks)
    }

    fn stores(&self) -> Result<Stores, Failure> {
        self.init.stores.clone().ok_or_else(|| Failure::new("sharding was started without stores"))
    }

    fn handle(&mut self, input: Input<B::Command>, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        let mut actions = Vec::new();
        let Some(core) = &mut self.core else { return Ok(()) };
        core.handle(cx.now(), input, &mut actions);
        self.perform(actions, cx)
    }

    fn perform(&mut self, actions: Vec<Action<B::Command>>, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        for action in actions {
            self.perform_one(action, cx)?;
        }
        if let Some(failure) = self.failed.take() {
            return Err(Failure::new(failure));
        }
        self.suspend(cx)
    }

    fn perform_one(&mut self, action: Action<B::Command>, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        match action {
            Action::RequestPermit(incarnation) => self.waiting = Some(Waiting::Permit(incarnation)),
            Action::ReturnPermit(_) => self.permit = None,
            Action::Store { incarnation, call } => self.call_store(incarnation, call, cx)?,
            Action::Recovered(_) => {}
            Action::Passivate => cx.passivate(),
            Action::Unhandled => {
                tracing::debug!(entity_type = %cx.entity_type(), id = %cx.id(), "command unhandled");
            }
            Action::DeadLetter(dropped) => {
                cx.remoting().dead_letter(dropped.reason, cx.id().as_str(), "");
                dropped.discard();
            }
            Action::Restarting(cause) => {
                tracing::warn!(entity_type = %cx.entity_type(), id = %cx.id(), %cause, "entity recovers again");
            }
            Action::Fenced(by) => {
                cx.fenced(Fenced { stored: by.generation() });
            }
            Action::Failed(failure) => self.failed = Some(failure.to_string()),
            Action::Stopped => cx.stop(),
        }
        Ok(())
    }

    /// Performs a store call as a task of its own. The machine's phase tells whether it waits for it.
    fn call_store(
        &mut self,
        incarnation: Incarnation,
        call: StoreCall,
        cx: &mut Ctx<'_, B::Command>,
    ) -> Result<(), Failure> {
        let stores = self.stores()?;
        let awaited = match call {
            StoreCall::ReadHead { .. } => !self.is_running(),
            StoreCall::Claim { .. }
            | StoreCall::Advance { .. }
            | StoreCall::LoadSnapshot { .. }
            | StoreCall::ReadPage { .. }
            | StoreCall::Append(_) => true,
            StoreCall::DeleteEvents { .. } | StoreCall::SaveSnapshot(_) | StoreCall::DeleteSnapshots { .. } => false,
        };
        let (answered, answer) = oneshot::channel();
        tokio::spawn(async move {
            // Nobody listens once the entity has ended; the call itself goes on to its end.
            answered.send((incarnation, call.perform(&stores).await)).ok();
        });
        if awaited {
            self.waiting = Some(Waiting::Answer(answer));
        } else {
            cx.spawn_for(async move {
                match answer.await {
                    Ok((incarnation, answer)) => Some(Woken::Answer(incarnation, answer)),
                    Err(_) => None,
                }
            });
        }
        Ok(())
    }

    /// Suspends the mailbox until the machine can go on, or sets a timer if it runs.
    fn suspend(&mut self, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        let Some(core) = &self.core else { return Ok(()) };
        let deadline = core.next_deadline();
        match core.phase() {
            PhaseName::Running => {
                if let Some(deadline) = deadline
                    && self.timer.is_none_or(|timer| deadline < timer)
                {
                    self.timer = Some(deadline);
                    cx.spawn_for(async move {
                        tokio::time::sleep_until(deadline.into()).await;
                        Some(Woken::Deadline(None))
                    });
                }
                Ok(())
            }
            PhaseName::Failed | PhaseName::Stopped => Ok(()),
            _ => {
                let (waiting, recoveries) = (self.waiting.take(), cx.node_services().recoveries.clone());
                let wait = async move { Some(wait(waiting, recoveries, deadline).await) };
                cx.suspend_for(wait).map_err(Failure::from)
            }
        }
    }
}

async fn wait(mut waiting: Option<Waiting>, recoveries: Arc<Semaphore>, deadline: Option<Instant>) -> Woken {
    let woken = async {
        match &mut waiting {
            Some(Waiting::Permit(incarnation)) => {
                let permit = recoveries.acquire_owned().await.expect("nobody closes the semaphore");
                Some(Woken::Permit(*incarnation, permit))
            }
            Some(Waiting::Answer(answer)) => {
                Some(answer.await.map_or(Woken::Lost, |(incarnation, answer)| Woken::Answer(incarnation, answer)))
            }
            None => None,
        }
    };
    let due = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        Some(woken) = woken => woken,
        () = due => Woken::Deadline(waiting),
    }
}

impl<B: EventSourced> Entity for EventSourcedEntity<B> {
    type Msg = B::Command;

    fn on_start(&mut self, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        let Some(behavior) = self.behavior.take() else { return Ok(()) };
        let stores = self.stores()?;
        let init = CoreInit {
            generation: Some(cx.generation()),
            start: cx.incarnation(),
            seed: rand::random(),
            caps: stores.journal.caps(),
            snapshot_caps: stores.snapshots.caps(),
        };
        let mut actions = Vec::new();
        self.core = Some(EntityCore::start(behavior, init, cx.now(), &mut actions)?);
        self.perform(actions, cx)
    }

    fn receive(&mut self, command: B::Command, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        self.handle(Input::Command(command), cx)
    }

    fn on_stop(&mut self, stop: Option<B::Command>, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        match stop {
            Some(command) => self.handle(Input::Command(command), cx),
            None => self.handle(Input::Stop, cx),
        }
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        // An entity that is stopped by force, or replaced, drops what it put aside.
        if signal == Signal::PostStop
            && let Some(core) = &mut self.core
        {
            let mut actions = Vec::new();
            core.handle(cx.now(), Input::StopNow, &mut actions);
            for action in actions {
                if let Action::DeadLetter(dropped) = action {
                    cx.remoting().dead_letter(dropped.reason, cx.id().as_str(), "");
                    dropped.discard();
                }
            }
        }
        Ok(())
    }

    fn on_resume(&mut self, value: Box<dyn Any + Send>, cx: &mut Ctx<'_, B::Command>) -> Result<(), Failure> {
        let Ok(woken) = value.downcast::<Option<Woken>>() else { return Ok(()) };
        match *woken {
            None => Ok(()),
            Some(Woken::Permit(incarnation, permit)) => {
                self.permit = Some(permit);
                self.handle(Input::PermitGranted(incarnation), cx)
            }
            Some(Woken::Answer(incarnation, answer)) => self.handle(Input::Answer { incarnation, answer }, cx),
            // What it was asked to do may be done: only a new incarnation can find out.
            Some(Woken::Lost) => Err(Failure::new("a store call ended without an answer")),
            Some(Woken::Deadline(waiting)) => {
                self.timer = None;
                if self.waiting.is_none() {
                    self.waiting = waiting;
                }
                self.handle(Input::Tick, cx)
            }
        }
    }
}

impl<B: EventSourced> fmt::Debug for EventSourcedEntity<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSourcedEntity").field("id", &self.init.id).finish_non_exhaustive()
    }
}
