//! The answer of a command handler of a durable state: a new state, and side effects to run once the state is durable.
//!
//! The chain of side effects is that of [`Effect`](crate::Effect): it runs in its order, exactly
//! once, with the new state, after the store acknowledged the state; if nothing was stored, every reply token
//! in the chain is answered with the reason. Source: persistence §2.2, §3.

use std::fmt;

use greylag_core::{EntityError, ReplyTo, answer_dropped};

use crate::durable_state::DurableState;
use crate::effect::{Chain, SideEffect, chain_methods};
use crate::state::Revision;

/// The answer of [`DurableState::on_command`].
///
/// Side effects often need the type of the state before the compiler can tell it: write
/// `StateEffect::<Self>::persist(state).then_reply(to, |state| …)`.
#[must_use = "an effect does nothing until the handler returns it"]
pub struct StateEffect<B: DurableState> {
    pub(crate) primary: Primary<B>,
    pub(crate) when_owned: bool,
    pub(crate) chain: Chain<B::State>,
}

pub(crate) enum Primary<B: DurableState> {
    None,
    Unhandled,
    Stash(B::Command),
    Persist(B::State),
    Delete,
}

impl<B: DurableState> StateEffect<B> {
    fn of(primary: Primary<B>) -> Self {
        Self { primary, when_owned: false, chain: Chain::default() }
    }

    /// Replaces the state. Handlers see it only after it is durable.
    pub fn persist(state: B::State) -> Self {
        Self::of(Primary::Persist(state))
    }

    /// Deletes the state: the state becomes the default again, at the next revision.
    pub fn delete() -> Self {
        Self::of(Primary::Delete)
    }

    /// Persists nothing; side effects run at once.
    pub fn none() -> Self {
        Self::of(Primary::None)
    }

    /// Marks the command as one to which the behaviour has no answer; such commands are counted.
    pub fn unhandled() -> Self {
        Self::of(Primary::Unhandled)
    }

    /// Puts the command aside, behind those put aside before, until an unstash-all.
    pub fn stash(command: B::Command) -> Self {
        Self::of(Primary::Stash(command))
    }

    chain_methods!(B::State);

    /// Runs `f` with the new state and its revision.
    pub fn then_run_at(mut self, f: impl FnOnce(&B::State, Revision) + Send + 'static) -> Self {
        let run = move |state: &B::State, number| f(state, Revision::new(number).unwrap_or(Revision::MAX));
        self.chain.0.push(SideEffect::Run(Box::new(run)));
        self
    }

    /// Holds the chain of an effect that persists nothing until a read of the store, or a later write of
    /// this incarnation, shows that no other owner has stored a newer state. The chain's answers are then not
    /// older than any answer of another owner, whatever clocks say. If another owner has stored a
    /// newer state, the chain does not run, and its reply tokens are answered
    /// [`NotStored(Fenced)`](EntityError::NotStored). No effect on an effect with a state or a deletion. A
    /// graceful stop waits for the read of the store under way; if that read fails, the chain is refused
    /// ([`EntityError::Stopped`]). Costs one read of the store for all effects that wait for it.
    ///
    /// For the guarantee of a plain reply see [`StateEffect::reply`]. Source: persistence §10.5.
    pub fn when_owned(mut self) -> Self {
        self.when_owned = true;
        self
    }

    /// Drops state and chain, answers `error` to every reply token in them, and persists nothing.
    /// For layers that wrap a behaviour.
    pub fn refused(self, error: EntityError) -> Self {
        answer_dropped(error, || drop(self));
        Self::none()
    }
}

impl<B: DurableState> fmt::Debug for StateEffect<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let primary = match &self.primary {
            Primary::None => "none",
            Primary::Unhandled => "unhandled",
            Primary::Stash(_) => "stash",
            Primary::Persist(_) => "persist",
            Primary::Delete => "delete",
        };
        write!(f, "StateEffect({primary}, {:?})", self.chain)
    }
}
