//! The side effects of an effect, which run once its events or state are durable.
//!
//! A chain runs in its order, exactly once, with the new state, after the store acknowledged the write; never during
//! recovery, and never if nothing was stored: then every reply token in the chain is answered with the reason.
//! Source: persistence §2.2, §2.6.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use greylag_core::{EntityError, answer_dropped};

use super::failure::Failure;

/// The side effects that can follow every effect; one text for event-sourced entities and durable states.
macro_rules! chain_methods {
    ($state:ty) => {
        /// Answers at once, persisting nothing.
        ///
        /// Guarantee: the answer comes from a state that was durable, and an entity that runs in a
        /// shard of a cluster answers nothing that was asked after its process, or its machine, woke from
        /// a sleep before the node has made sure that no other node took the entity over meanwhile (cluster F9).
        /// This depends on clocks: on the process's own, which goes on while it sleeps, and on the times
        /// after which other nodes take over (`stable_after`, `down_removal_margin`). Where one of these
        /// bounds is broken (a margin that is off, an operator who downs a node that lives, storage that was
        /// moved by hand), a plain reply may be older than an answer of another owner. `when_owned`
        /// asks the store instead and trusts no clock, for the price of one read.
        pub fn reply<R: Send + 'static>(to: ReplyTo<R>, value: R) -> Self {
            Self::none().then_run(move |_| to.reply(value))
        }

        /// Stops the entity, persisting nothing.
        pub fn stop() -> Self {
            Self::none().then_stop()
        }

        /// Asks the shard to passivate the entity, persisting nothing.
        pub fn passivate() -> Self {
            Self::none().then_passivate()
        }

        /// Runs `f` with the new state.
        pub fn then_run(mut self, f: impl FnOnce(&$state) + Send + 'static) -> Self {
            self.chain.0.push(SideEffect::Run(Box::new(move |state, _| f(state))));
            self
        }

        /// Answers `to` with the value that `f` makes of the new state. If nothing was stored, the asker gets an error
        /// that says so, and whether that is certain.
        pub fn then_reply<R: Send + 'static>(
            self,
            to: ReplyTo<R>,
            f: impl FnOnce(&$state) -> R + Send + 'static,
        ) -> Self {
            self.then_run(move |state| to.reply(f(state)))
        }

        /// Handles every command put aside until now before any newer one.
        pub fn then_unstash_all(mut self) -> Self {
            self.chain.0.push(SideEffect::UnstashAll);
            self
        }

        /// Asks the shard to passivate the entity; it runs on until the shard stops it.
        pub fn then_passivate(mut self) -> Self {
            self.chain.0.push(SideEffect::Passivate);
            self
        }

        /// Stops the entity after the rest of the chain.
        pub fn then_stop(mut self) -> Self {
            self.chain.0.push(SideEffect::Stop);
            self
        }
    };
}

pub(crate) use chain_methods;

/// The side effects of an effect, in order.
pub(crate) struct Chain<S>(pub(crate) Vec<SideEffect<S>>);

pub(crate) enum SideEffect<S> {
    /// Gets the new state and its number: that of the last event, or the revision.
    Run(Box<dyn FnOnce(&S, u64) + Send>),
    UnstashAll,
    Passivate,
    Stop,
}

/// A side effect that the machine has to carry out.
pub(crate) enum ChainRequest {
    UnstashAll,
    Passivate,
    Stop,
}

impl<S> Chain<S> {
    /// Runs the side effects in order. A panic ends the chain: the reply tokens of the rest are answered,
    /// and the failure is returned, to fail the entity.
    pub(crate) fn run(self, state: &S, number: u64, mut request: impl FnMut(ChainRequest)) -> Result<(), Failure> {
        let mut rest = self.0.into_iter();
        while let Some(side_effect) = rest.next() {
            match side_effect {
                SideEffect::Run(f) => {
                    if let Err(message) = guard(|| f(state, number)) {
                        let failure = Failure::Handler { handler: "side effect", message };
                        Self(rest.collect()).refuse(EntityError::Failed(failure.to_string()));
                        return Err(failure);
                    }
                }
                SideEffect::UnstashAll => request(ChainRequest::UnstashAll),
                SideEffect::Passivate => request(ChainRequest::Passivate),
                SideEffect::Stop => request(ChainRequest::Stop),
            }
        }
        Ok(())
    }

    /// Drops the chain; reply tokens inside are answered `error`.
    pub(crate) fn refuse(self, error: EntityError) {
        answer_dropped(error, || drop(self));
    }
}

impl<S> Default for Chain<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> fmt::Debug for Chain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|side_effect| match side_effect {
            SideEffect::Run(_) => "run",
            SideEffect::UnstashAll => "unstash_all",
            SideEffect::Passivate => "passivate",
            SideEffect::Stop => "stop",
        });
        f.debug_list().entries(names).finish()
    }
}

/// Runs user code; a panic becomes an error with the panic's message.
pub(crate) fn guard<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
    })
}
