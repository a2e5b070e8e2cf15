//! The answer of a command handler: events to persist, and side effects to run once the events are durable.
//!
//! An [`Effect`] is one primary request (persist, nothing, unhandled, stash) and a chain of side
//! effects. The chain runs in its order, exactly once, with the new state, after the journal
//! acknowledged the events; never during recovery, and never if nothing was stored: then every
//! reply token in the chain is answered with the reason. Source: persistence §2.2, §2.6.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use greylag_core::{EntityError, ReplyTo, answer_dropped};

use crate::behavior::{EventSourced, Failure};
use crate::event::{Metadata, SeqNr};
use crate::marks::Mark;

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

/// The answer of [`EventSourced::on_command`].
///
/// Side effects often need the type of the state before the compiler can tell it: write
/// `Effect::<Self>::persist(event).then_reply(to, |state| …)`.
#[must_use = "an effect does nothing until the handler returns it"]
pub struct Effect<B: EventSourced> {
    pub(crate) primary: Primary<B>,
    pub(crate) metadata: Metadata,
    pub(crate) mark: Option<Mark>,
    pub(crate) mark_empty: bool,
    pub(crate) when_owned: bool,
    pub(crate) chain: Chain<B::State>,
}

pub(crate) enum Primary<B: EventSourced> {
    None,
    Unhandled,
    Stash(B::Command),
    Persist(Vec<B::Event>),
}

impl<B: EventSourced> Effect<B> {
    fn of(primary: Primary<B>) -> Self {
        let (metadata, chain) = (Metadata::new(), Chain::default());
        Self { primary, metadata, mark: None, mark_empty: false, when_owned: false, chain }
    }

    /// Persists one event.
    pub fn persist(event: B::Event) -> Self {
        Self::persist_all(vec![event])
    }

    /// Persists all events or none, under contiguous numbers and one timestamp. No event at all is
    /// the same as [`Effect::none`].
    pub fn persist_all(events: Vec<B::Event>) -> Self {
        Self::of(Primary::Persist(events))
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

    /// Runs `f` with the new state and the number of the last event, which the state contains.
    pub fn then_run_at(mut self, f: impl FnOnce(&B::State, SeqNr) + Send + 'static) -> Self {
        let run = move |state: &B::State, number| f(state, SeqNr::saturating(number));
        self.chain.0.push(SideEffect::Run(Box::new(run)));
        self
    }

    /// Attaches `bytes` to the events under `name`; `apply_with` sees them, on replay too. Names that
    /// start with `gl.` are Greylag's: an effect with such a name is rejected.
    pub fn with_metadata(mut self, name: impl Into<String>, bytes: Bytes) -> Self {
        self.metadata.insert(name.into(), bytes);
        self
    }

    /// Names the delivery that these events apply. The mark is stored with the events, and
    /// [`Ctx::marks`](crate::Ctx::marks) covers the delivery from the acknowledgement on.
    /// Without events the mark has no effect, unless [`Effect::mark_empty`] is set. Source: delivery §7.
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Whether the mark is stored even if there are no events: in a record of its own, which takes a number, and
    /// which neither the event handler nor a projection sees. A delivery without events is then not evaluated
    /// again, for the price of one append. Default: false. No effect without a mark. Source: delivery §7.
    pub fn mark_empty(mut self, marks: bool) -> Self {
        self.mark_empty = marks;
        self
    }

    /// Holds the chain of an effect that persists nothing until ownership is proved: by a later
    /// append of this incarnation, or by a read of the head. The chain's answers are then not older than
    /// any answer of another owner, whatever clocks say. If another owner has the entity by
    /// then, the chain does not run. No effect on an effect with events. A graceful stop waits for the read
    /// of the head under way, and for further reads that it begins; if one fails, the chain is refused
    /// ([`EntityError::Stopped`]). Costs one read of the head for all effects that wait for it; for the guarantee of a
    /// plain reply see [`Effect::reply`]. Source: persistence §2.7, §10.5.
    pub fn when_owned(mut self) -> Self {
        self.when_owned = true;
        self
    }

    /// Drops events and chain, answers `error` to every reply token in them, and persists
    /// nothing. For layers that wrap a behaviour.
    pub fn refused(self, error: EntityError) -> Self {
        answer_dropped(error, || drop(self));
        Self::none()
    }

    /// Number of events to persist.
    pub fn event_count(&self) -> usize {
        match &self.primary {
            Primary::Persist(events) => events.len(),
            _ => 0,
        }
    }

    /// Whether a record is stored: events, or a mark alone ([`Effect::mark_empty`]).
    pub fn is_persisting(&self) -> bool {
        match &self.primary {
            Primary::Persist(events) if !events.is_empty() => true,
            Primary::Persist(_) | Primary::None => self.mark_empty && self.mark.is_some(),
            Primary::Unhandled | Primary::Stash(_) => false,
        }
    }

    /// Whether the effect puts its command aside.
    pub fn is_stash(&self) -> bool {
        matches!(self.primary, Primary::Stash(_))
    }

    /// Whether the behaviour had no answer to its command.
    pub fn is_unhandled(&self) -> bool {
        matches!(self.primary, Primary::Unhandled)
    }

    /// The same effect for a behaviour that wraps this one. `command` wraps a stashed command.
    pub fn wrapped<C>(self, command: impl FnOnce(B::Command) -> C::Command) -> Effect<C>
    where
        C: EventSourced<Event = B::Event, State = B::State>,
    {
        let primary = match self.primary {
            Primary::None => Primary::None,
            Primary::Unhandled => Primary::Unhandled,
            Primary::Stash(stashed) => Primary::Stash(command(stashed)),
            Primary::Persist(events) => Primary::Persist(events),
        };
        let Self { metadata, mark, mark_empty, when_owned, chain, .. } = self;
        Effect { primary, metadata, mark, mark_empty, when_owned, chain }
    }
}

impl<B: EventSourced> fmt::Debug for Effect<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let primary = match &self.primary {
            Primary::None => "none".to_owned(),
            Primary::Unhandled => "unhandled".to_owned(),
            Primary::Stash(_) => "stash".to_owned(),
            Primary::Persist(events) => format!("persist {}", events.len()),
        };
        write!(f, "Effect({primary}, {:?})", self.chain)
    }
}

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
