//! What a user writes: commands in, a new state out, kept whole with its revision.
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
//! Others follow the states by projections, over a [`ReadJournal`](crate::ReadJournal) of the state store.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::behavior::RecoveryFailure;
use crate::ctx::Ctx;
use crate::error::{StateRejectReason, StateWriteError};
use crate::settings::{Backoff, OnFailure, SettingsError, StashOverflow};
use crate::state_effect::StateEffect;

/// An entity whose state is kept as it is, not as the events that led to it.
///
/// Handlers are synchronous and must not block. A panic in any of them is caught; the state is then
/// read anew. Source: persistence §3.
pub trait DurableState: Sized + Send + 'static {
    /// What it is asked.
    type Command: Send + 'static;
    /// What it remembers; the default is the state before the first write, and after a deletion.
    type State: Default + Send + 'static;

    /// Which stores of its node keep the state, of those given by `Stores::with_plugin`. Default `""`: the
    /// node's default. Source: persistence §1.
    fn state_plugin_id(&self) -> &str {
        ""
    }

    /// The numbers of its life, from what the node is configured with for all. Default: just that.
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

    /// Hears what happened to the entity. While there is no state (after a panic, or before recovery
    /// ended) `state` is the default. What the entity begins through its context on a signal that ends its incarnation is
    /// not begun.
    fn on_signal(&mut self, _cx: &mut Ctx<'_, Self::Command>, _state: &Self::State, _signal: &StateSignal) {}

    /// What change queries find a new state by.
    fn tag(&self, _state: &Self::State) -> Option<String> {
        None
    }
}

/// What happened to an entity with a durable state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateSignal {
    /// The state is read; commands follow.
    RecoveryCompleted,
    /// The state could not be read.
    RecoveryFailed(RecoveryFailure),
    /// The state of the last command is not stored, and the one before stands.
    PersistRejected(StateRejectReason),
    /// The write failed; what is stored only the coming recovery can tell if it is unknown.
    PersistFailed(StateWriteError),
    /// Another writer writes this state now; the entity ends.
    Fenced,
    /// The entity is about to start anew. Its state is the last one with its own revision if it ran until now, else the
    /// empty one with revision 0. Source: persistence 76.
    PreRestart,
    /// The entity has ended. After a graceful stop its state is the last one with its own revision; of an entity that did
    /// not run yet, that failed, that was stopped in the midst of a write or lost its state to another writer, the
    /// state is the empty one and the revision 0. Source: persistence 76.
    PostStop,
}

impl StateSignal {
    /// Whether it tells of something that went wrong.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::RecoveryFailed(_) | Self::PersistRejected(_) | Self::PersistFailed(_) | Self::Fenced)
    }
}

/// How one behaviour with a durable state recovers, stashes and fails. Source: persistence §9.
#[derive(Debug, Clone, PartialEq)]
pub struct DurableStateSettings {
    /// Longest wait for the state; waiting for a permit is outside of it. Default 30 s.
    pub recovery_timeout: Duration,
    /// Most commands of each stash: of those that wait by themselves, and of those that the
    /// behaviour put aside. Default 4096.
    pub stash_capacity: NonZeroUsize,
    /// What happens to one more. Default: it is dropped.
    pub stash_overflow: StashOverflow,
    /// Stashed commands handled in one go before the executor gets its turn. Default 64.
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
    /// Checks what the types leave open.
    ///
    /// # Errors
    /// [`SettingsError`], naming the keys.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.recovery_timeout.is_zero() {
            return Err(SettingsError::ZeroDuration { key: "recovery_timeout" });
        }
        match self.on_failure {
            OnFailure::RestartBackoff(backoff) => backoff.check(),
            OnFailure::Stop => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(DurableStateSettings::default().check(), Ok(()));
        let zero = DurableStateSettings { recovery_timeout: Duration::ZERO, ..DurableStateSettings::default() };
        assert!(zero.check().unwrap_err().to_string().contains("recovery_timeout"));
        let backoff = Backoff { min: Duration::ZERO, ..Backoff::default() };
        let on_failure = OnFailure::RestartBackoff(backoff);
        let backoff = DurableStateSettings { on_failure, ..DurableStateSettings::default() };
        assert!(backoff.check().unwrap_err().to_string().contains("backoff_min"));
    }
}
