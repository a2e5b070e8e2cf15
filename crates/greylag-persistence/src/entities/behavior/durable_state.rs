//! The behaviour that a user writes for a durable state: commands in, a new state out, stored whole with its revision.
//!
//! ```
//! use std::time::Instant;
//!
//! use greylag_codec::json;
//! use greylag_core::ReplyTo;
//! use greylag_persistence::{Ctx, DurableState, PersistenceId, StateCodec, StateEffect, StateTestKit};
//!
//! #[derive(Default, serde::Serialize, serde::Deserialize)]
//! struct Profile { name: String }
//!
//! enum Command { Rename(String, ReplyTo<u64>), Forget(ReplyTo<u64>) }
//!
//! struct User;
//!
//! impl DurableState for User {
//!     type Command = Command;
//!     type State = Profile;
//!
//!     fn on_command(&mut self, cx: &mut Ctx<'_, Command>, _: &Profile, command: Command) -> StateEffect<Self> {
//!         let next = cx.revision().as_u64() + 1;
//!         match command {
//!             // The answer leaves only when the new name is durable.
//!             Command::Rename(name, to) => StateEffect::<Self>::persist(Profile { name }).then_reply(to, move |_| next),
//!             Command::Forget(to) => StateEffect::<Self>::delete().then_reply(to, move |_| next),
//!         }
//!     }
//! }
//!
//! let id = PersistenceId::of("User", "7")?;
//! let codec = StateCodec::new(json("user.profile"));
//! let mut user = StateTestKit::new(Instant::now(), move || codec.of(id.clone(), User));
//! assert_eq!(user.ask(|to| Command::Rename("Ada".into(), to)), Ok(1));
//! user.restart();
//! assert_eq!(user.state().map(|profile| profile.name.as_str()), Some("Ada"));
//! assert_eq!(user.ask(Command::Forget), Ok(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Readers follow the states by projections, over a [`ReadJournal`](crate::ReadJournal) of the state store.
//!
//! A command handler answers a [`StateEffect`]: a new state, and a chain of side effects as that of
//! [`Effect`](crate::Effect), which runs once the state is durable. Source: persistence §2.2, §3.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use greylag_core::{EntityError, ReplyTo, answer_dropped};

use super::chain::{Chain, SideEffect, chain_methods};
use super::failure::RecoveryFailure;
use crate::contract::error::{StateRejectReason, StateWriteError};
use crate::contract::records::revision::Revision;
use crate::contract::settings::{Backoff, SettingsError};
use crate::entities::context::ctx::Ctx;
use crate::entities::settings::{OnFailure, StashOverflow};

/// An entity whose state itself is stored, not the events that led to it.
///
/// Handlers are synchronous and must not block. A panic in any of them is caught; the state is then
/// read anew. Source: persistence §3.
pub trait DurableState: Sized + Send + 'static {
    /// The commands that the entity accepts.
    type Command: Send + 'static;
    /// The state that the entity stores; the default is the state before the first write, and after a deletion.
    type State: Default + Send + 'static;

    /// Name of the stores that keep the state, of those given by `Stores::with_plugin`. Default `""`: the
    /// node's default stores. Source: persistence §1.
    fn state_plugin_id(&self) -> &str {
        ""
    }

    /// The entity's settings, made from the settings that the node has for all entities. Default: the node's.
    fn settings(&self, node: &DurableStateSettings) -> DurableStateSettings {
        node.clone()
    }

    /// Decides what a command does. `state` is durable.
    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &Self::State,
        command: Self::Command,
    ) -> StateEffect<Self>;

    /// Tells the behaviour what happened to the entity. While there is no state (after a panic, or before recovery
    /// ended) `state` is the default. On a signal that ends the incarnation, timers, work and messages that the handler
    /// asks for are not begun.
    fn on_signal(&mut self, _cx: &mut Ctx<'_, Self::Command>, _state: &Self::State, _signal: &StateSignal) {}

    /// Tag of a new state, by which change queries find it.
    fn tag(&self, _state: &Self::State) -> Option<String> {
        None
    }
}

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

/// An occurrence in the life of an entity with a durable state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateSignal {
    /// The state is read; commands follow.
    RecoveryCompleted,
    /// The state could not be read.
    RecoveryFailed(RecoveryFailure),
    /// The state of the last command is not stored, and the previous state stands.
    PersistRejected(StateRejectReason),
    /// The write failed; if its outcome is unknown, only the coming recovery can tell what is stored.
    PersistFailed(StateWriteError),
    /// Another writer owns this state now; the entity ends.
    Fenced,
    /// The entity is about to start anew. If the entity ran until now, the handler gets its last state and that state's
    /// revision, else the default state and revision 0. Source: persistence 76.
    PreRestart,
    /// The entity has ended. After a graceful stop the handler gets the last state and that state's revision; of an
    /// entity that did not run yet, that failed, that was stopped in the midst of a write or lost its state to another
    /// writer, the default state and revision 0. Source: persistence 76.
    PostStop,
}

impl StateSignal {
    /// Whether the signal is logged as a warning.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::RecoveryFailed(_) | Self::PersistRejected(_) | Self::PersistFailed(_) | Self::Fenced)
    }
}

/// How one behaviour with a durable state recovers, stashes and fails. Source: persistence §9.
#[derive(Debug, Clone, PartialEq)]
pub struct DurableStateSettings {
    /// Longest wait for the state; waiting for a permit does not count. Default 30 s.
    pub recovery_timeout: Duration,
    /// Most commands in each of the two stashes: those that wait for the entity, and those that the
    /// behaviour put aside. Default 4096.
    pub stash_capacity: NonZeroUsize,
    /// What happens to a command that finds its stash full. Default: it is dropped.
    pub stash_overflow: StashOverflow,
    /// Stashed commands handled in one go before the entity yields to the executor. Default 64.
    pub unstash_budget: NonZeroUsize,
    /// What follows a failed recovery or write. Default: restart with back-off.
    pub on_failure: OnFailure,
}

impl Default for DurableStateSettings {
    fn default() -> Self {
        Self {
            recovery_timeout: Duration::from_secs(30),
            stash_capacity: NonZeroUsize::new(4096).expect("not zero"),
            stash_overflow: StashOverflow::Drop,
            unstash_budget: NonZeroUsize::new(64).expect("not zero"),
            on_failure: OnFailure::RestartBackoff(Backoff::default()),
        }
    }
}

impl DurableStateSettings {
    /// Checks the values that the types do not rule out.
    ///
    /// # Errors
    /// [`SettingsError`], naming the keys.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.recovery_timeout.is_zero() {
            return Err(SettingsError::ZeroDuration { key: "recovery_timeout" });
        }
        match self.on_failure {
            OnFailure::RestartBackoff(backoff) => backoff.validate(),
            OnFailure::Stop => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(DurableStateSettings::default().validate(), Ok(()));
        let zero = DurableStateSettings { recovery_timeout: Duration::ZERO, ..DurableStateSettings::default() };
        assert!(zero.validate().unwrap_err().to_string().contains("recovery_timeout"));
        let backoff = Backoff { min: Duration::ZERO, ..Backoff::default() };
        let on_failure = OnFailure::RestartBackoff(backoff);
        let backoff = DurableStateSettings { on_failure, ..DurableStateSettings::default() };
        assert!(backoff.validate().unwrap_err().to_string().contains("backoff_min"));
    }
}
