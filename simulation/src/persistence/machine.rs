//! The two kinds of entity machines behind one interface.

use std::time::Instant;

use greylag_persistence::{
    Action, DroppedCommand, EntityCore, EntityInit, Failure, Incarnation, Input, PhaseName, StateAnswer, StateCall,
    StateEntityCore, StateEntityInit, StatePhase, StoreAnswer, StoreCall,
};

use super::book::Book;
use super::diary::Order;
use super::slate::Slate;

pub(super) enum Machine {
    Book(Box<EntityCore<Book>>),
    Slate(Box<StateEntityCore<Slate>>),
}

/// A machine's call to the stores.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Book(StoreCall),
    Slate(StateCall),
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Book(StoreAnswer),
    Slate(StateAnswer),
}

/// An input to an entity machine, whichever kind of entity it runs.
pub(super) enum Told {
    Order(Order),
    Permit(Incarnation),
    Answer(Incarnation, Answer),
    Tick,
    Stop,
    StopNow,
}

/// A machine's request to its host.
pub(super) enum Asked {
    RequestPermit(Incarnation),
    ReturnPermit(Incarnation),
    Call(Incarnation, Call),
    Dropped(DroppedCommand<Order>),
    Fenced,
    Failed(Failure),
    Stopped,
}

impl Machine {
    pub(super) fn book(book: Book, init: EntityInit, now: Instant) -> (Self, Vec<Asked>) {
        let mut out = Vec::new();
        let core = EntityCore::start(book.stored(), init, now, &mut out).expect("drawn settings work");
        (Self::Book(Box::new(core)), asked(out, Call::Book))
    }

    pub(super) fn slate(slate: Slate, init: StateEntityInit, now: Instant) -> (Self, Vec<Asked>) {
        let mut out = Vec::new();
        let core = StateEntityCore::start(slate.stored(), init, now, &mut out).expect("drawn settings work");
        (Self::Slate(Box::new(core)), asked(out, Call::Slate))
    }

    pub(super) fn handle(&mut self, now: Instant, told: Told) -> Vec<Asked> {
        match self {
            Self::Book(core) => {
                let mut out = Vec::new();
                let answer = |answer| match answer {
                    Answer::Book(answer) => answer,
                    Answer::Slate(_) => unreachable!("the world keeps the kinds apart"),
                };
                core.handle(now, input(told, answer), &mut out);
                asked(out, Call::Book)
            }
            Self::Slate(core) => {
                let mut out = Vec::new();
                let answer = |answer| match answer {
                    Answer::Slate(answer) => answer,
                    Answer::Book(_) => unreachable!("the world keeps the kinds apart"),
                };
                core.handle(now, input(told, answer), &mut out);
                asked(out, Call::Slate)
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Book(core) => core.next_deadline(),
            Self::Slate(core) => core.next_deadline(),
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        match self {
            Self::Book(core) => core.incarnation(),
            Self::Slate(core) => core.incarnation(),
        }
    }

    /// Whether a step of recovery, which has a deadline, is in progress.
    pub(super) fn is_recovering(&self) -> bool {
        match self {
            Self::Book(core) => {
                matches!(core.phase(), PhaseName::Claiming | PhaseName::LoadingSnapshot | PhaseName::Replaying)
            }
            Self::Slate(core) => core.phase() == StatePhase::Loading,
        }
    }

    /// Whether it may hold a recovery permit.
    pub(super) fn may_hold_permit(&self) -> bool {
        let awaits = match self {
            Self::Book(core) => core.phase() == PhaseName::AwaitingPermit,
            Self::Slate(core) => core.phase() == StatePhase::AwaitingPermit,
        };
        awaits || self.is_recovering()
    }

    pub(super) fn is_running(&self) -> bool {
        match self {
            Self::Book(core) => matches!(core.phase(), PhaseName::Running | PhaseName::Persisting),
            Self::Slate(core) => matches!(core.phase(), StatePhase::Running | StatePhase::Persisting),
        }
    }

    pub(super) fn take_waiting(&mut self) -> Vec<Order> {
        match self {
            Self::Book(core) => core.take_waiting(),
            Self::Slate(core) => core.take_waiting(),
        }
    }
}

fn input<A>(told: Told, answer: impl FnOnce(Answer) -> A) -> Input<Order, A> {
    match told {
        Told::Order(order) => Input::Command(order),
        Told::Permit(incarnation) => Input::PermitGranted(incarnation),
        Told::Answer(incarnation, given) => Input::Answer { incarnation, answer: answer(given) },
        Told::Tick => Input::Tick,
        Told::Stop => Input::Stop,
        Told::StopNow => Input::StopNow,
    }
}

pub(super) fn asked<C>(out: Vec<Action<Order, C>>, call: impl Fn(C) -> Call) -> Vec<Asked> {
    let asked = out.into_iter().filter_map(|action| match action {
        Action::RequestPermit(incarnation) => Some(Asked::RequestPermit(incarnation)),
        Action::ReturnPermit(incarnation) => Some(Asked::ReturnPermit(incarnation)),
        Action::Store { incarnation, call: asked } => Some(Asked::Call(incarnation, call(asked))),
        Action::DeadLetter(dropped) => Some(Asked::Dropped(dropped)),
        Action::Fenced(_) => Some(Asked::Fenced),
        Action::Failed(failure) => Some(Asked::Failed(failure)),
        Action::Stopped => Some(Asked::Stopped),
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
