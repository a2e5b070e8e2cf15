//! The two kinds of entity machines behind one interface.

use std::time::Instant;

use greylag_persistence::{
    Action, DroppedCommand, EntityCore, EntityInit, Failure, Incarnation, Input, PhaseName, StateAnswer, StateCall,
    StateEntityCore, StateEntityInit, StatePhase, StoreAnswer, StoreCall,
};

use super::action_log::Order;
use super::event_entity::EventEntity;
use super::state_entity::StateEntity;

pub(super) enum Machine {
    EventEntity(Box<EntityCore<EventEntity>>),
    StateEntity(Box<StateEntityCore<StateEntity>>),
}

/// A machine's call to the stores.
#[derive(Debug, Clone)]
pub(super) enum Call {
    EventEntity(StoreCall),
    StateEntity(StateCall),
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    EventEntity(StoreAnswer),
    StateEntity(StateAnswer),
}

/// An input to an entity machine, whichever kind of entity it runs.
pub(super) enum HostInput {
    Order(Order),
    Permit(Incarnation),
    Answer(Incarnation, Answer),
    Tick,
    Stop,
    StopNow,
}

/// A machine's request to its host.
pub(super) enum HostRequest {
    RequestPermit(Incarnation),
    ReturnPermit(Incarnation),
    Call(Incarnation, Call),
    Dropped(DroppedCommand<Order>),
    Fenced,
    Failed(Failure),
    Stopped,
}

impl Machine {
    pub(super) fn event_entity(event_entity: EventEntity, init: EntityInit, now: Instant) -> (Self, Vec<HostRequest>) {
        let mut out = Vec::new();
        let core = EntityCore::start(event_entity.stored(), init, now, &mut out).expect("drawn settings work");
        (Self::EventEntity(Box::new(core)), asked(out, Call::EventEntity))
    }

    pub(super) fn state_entity(
        state_entity: StateEntity,
        init: StateEntityInit,
        now: Instant,
    ) -> (Self, Vec<HostRequest>) {
        let mut out = Vec::new();
        let core = StateEntityCore::start(state_entity.stored(), init, now, &mut out).expect("drawn settings work");
        (Self::StateEntity(Box::new(core)), asked(out, Call::StateEntity))
    }

    pub(super) fn handle(&mut self, now: Instant, host_input: HostInput) -> Vec<HostRequest> {
        match self {
            Self::EventEntity(core) => {
                let mut out = Vec::new();
                let answer = |answer| match answer {
                    Answer::EventEntity(answer) => answer,
                    Answer::StateEntity(_) => unreachable!("the world keeps the kinds apart"),
                };
                core.handle(now, input(host_input, answer), &mut out);
                asked(out, Call::EventEntity)
            }
            Self::StateEntity(core) => {
                let mut out = Vec::new();
                let answer = |answer| match answer {
                    Answer::StateEntity(answer) => answer,
                    Answer::EventEntity(_) => unreachable!("the world keeps the kinds apart"),
                };
                core.handle(now, input(host_input, answer), &mut out);
                asked(out, Call::StateEntity)
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::EventEntity(core) => core.next_deadline(),
            Self::StateEntity(core) => core.next_deadline(),
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        match self {
            Self::EventEntity(core) => core.incarnation(),
            Self::StateEntity(core) => core.incarnation(),
        }
    }

    /// Whether a step of recovery, which has a deadline, is in progress.
    pub(super) fn is_recovering(&self) -> bool {
        match self {
            Self::EventEntity(core) => {
                matches!(core.phase(), PhaseName::Claiming | PhaseName::LoadingSnapshot | PhaseName::Replaying)
            }
            Self::StateEntity(core) => core.phase() == StatePhase::Loading,
        }
    }

    /// Whether it may hold a recovery permit.
    pub(super) fn may_hold_permit(&self) -> bool {
        let awaits = match self {
            Self::EventEntity(core) => core.phase() == PhaseName::AwaitingPermit,
            Self::StateEntity(core) => core.phase() == StatePhase::AwaitingPermit,
        };
        awaits || self.is_recovering()
    }

    pub(super) fn is_running(&self) -> bool {
        match self {
            Self::EventEntity(core) => matches!(core.phase(), PhaseName::Running | PhaseName::Persisting),
            Self::StateEntity(core) => matches!(core.phase(), StatePhase::Running | StatePhase::Persisting),
        }
    }

    pub(super) fn take_waiting(&mut self) -> Vec<Order> {
        match self {
            Self::EventEntity(core) => core.take_waiting(),
            Self::StateEntity(core) => core.take_waiting(),
        }
    }
}

fn input<A>(host_input: HostInput, answer: impl FnOnce(Answer) -> A) -> Input<Order, A> {
    match host_input {
        HostInput::Order(order) => Input::Command(order),
        HostInput::Permit(incarnation) => Input::PermitGranted(incarnation),
        HostInput::Answer(incarnation, given) => Input::Answer { incarnation, answer: answer(given) },
        HostInput::Tick => Input::Tick,
        HostInput::Stop => Input::Stop,
        HostInput::StopNow => Input::StopNow,
    }
}

pub(super) fn asked<C>(out: Vec<Action<Order, C>>, call: impl Fn(C) -> Call) -> Vec<HostRequest> {
    let asked = out.into_iter().filter_map(|action| match action {
        Action::RequestPermit(incarnation) => Some(HostRequest::RequestPermit(incarnation)),
        Action::ReturnPermit(incarnation) => Some(HostRequest::ReturnPermit(incarnation)),
        Action::Store { incarnation, call: asked } => Some(HostRequest::Call(incarnation, call(asked))),
        Action::DeadLetter(dropped) => Some(HostRequest::Dropped(dropped)),
        Action::Fenced(_) => Some(HostRequest::Fenced),
        Action::Failed(failure) => Some(HostRequest::Failed(failure)),
        Action::Stopped => Some(HostRequest::Stopped),
        Action::Recovered { .. }
        // These behaviours start nothing besides their commands.
        | Action::Work { .. }
        | Action::ToSelf { .. }
        | Action::Passivate
        | Action::HostRequests(_)
        | Action::Unhandled
        | Action::Withheld(_)
        | Action::Restarting(_) => None,
    });
    asked.collect()
}
