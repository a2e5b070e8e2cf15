//! What a command handler asks for: events to persist, and what follows once they are durable.
//!
//! An [`Effect`] is one primary request (persist, nothing, unhandled, stash) and a chain of side
//! effects. The chain runs in its order, exactly once, with the new state, after the journal
//! acknowledged the events; never during recovery, and never if nothing was stored: then every
//! reply token in it is answered with the reason. Source: persistence §2.2, §2.6.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use greylag_core::{EntityError, ReplyTo, answer_dropped};

use crate::behavior::{EventSourced, Failure};
use crate::event::{Metadata, SeqNr};
use crate::marks::Mark;

/// What every effect is followed by, whatever it persists; one text for all kinds of entities.
macro_rules! chain_methods {
    ($state:ty) => {
        /// Answers at once, persisting nothing.
        ///
        /// What it promises: the answer rests on a state that was durable, and an entity that runs in a
        /// shard of a cluster answers nothing that was asked after its process, or its machine, woke from
        /// a sleep before the node has made sure that no other node took the entity over meanwhile (cluster F9).
        /// That rests on clocks: on the process's own, which goes on while it sleeps, and on the times
        /// after which others take over (`stable_after`, `down_removal_margin`). Where a bound of those
        /// is broken (a margin that is off, an operator who downs a node that lives, storage that was
        /// moved by hand), a plain reply may be older than what another owner has answered. `when_owned`
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

        /// Answers `to` with what `f` makes of the new state. If nothing was stored, the asker is told
        /// so, and whether that is certain.
        pub fn then_reply<R: Send + 'static>(
            self,
            to: ReplyTo<R>,
            f: impl FnOnce(&$state) -> R + Send + 'static,
        ) -> Self {
            self.then_run(move |state| to.reply(f(state)))
        }

        /// Takes every command put aside until now before any newer one.
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

    /// Says that the behaviour has no answer to this command; it is counted.
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

    /// Attaches `bytes` to the events under `name`; `apply` sees it, on replay too. Names that
    /// start with `gl.` are Greylag's: an effect with one is rejected.
    pub fn with_metadata(mut self, name: impl Into<String>, bytes: Bytes) -> Self {
        self.metadata.insert(name.into(), bytes);
        self
    }

    /// Says which delivery these events apply. The mark is stored with them, and
    /// [`Ctx::marks`](crate::Ctx::marks) covers it from the acknowledgement on.
    /// Without events it has no effect, unless [`Effect::mark_empty`] is set. Source: delivery §7.
    pub fn with_mark(mut self, mark: Mark) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Whether the mark is stored where there are no events, too: in a record of its own, which takes a number, and
    /// which neither the event handler nor a projection sees. A delivery that led to nothing is then not evaluated
    /// again, for the price of one append. Default: false. Without a mark it has no effect. Source: delivery §7.
    pub fn mark_empty(mut self, marks: bool) -> Self {
        self.mark_empty = marks;
        self
    }

    /// Holds the chain of an effect that persists nothing until ownership is proved: by a later
    /// append of this incarnation, or by a look at the head. What the chain answers is then not older than
    /// anything that another owner has answered, whatever clocks say. If another owner has the entity by
    /// then, the chain does not run. With events it changes nothing. A graceful stop waits for the look
    /// that is on its way, and for those that it begins; if one fails, the chain is refused
    /// ([`EntityError::Stopped`]). Costs one read of the head for all effects that wait for it; what a plain
    /// reply promises is said at [`Effect::reply`]. Source: persistence §2.7, §10.5.
    pub fn when_owned(mut self) -> Self {
        self.when_owned = true;
        self
    }

    /// Drops events and chain, answers `error` to every reply token among them, and persists
    /// nothing. For layers that wrap a behaviour.
    pub fn refused(self, error: EntityError) -> Self {
        answer_dropped(error, || drop(self));
        Self::none()
    }

    /// How many events it persists.
    pub fn event_count(&self) -> usize {
        match &self.primary {
            Primary::Persist(events) => events.len(),
            _ => 0,
        }
    }

    /// Whether anything is stored: events, or a mark alone ([`Effect::mark_empty`]).
    pub fn is_persisting(&self) -> bool {
        match &self.primary {
            Primary::Persist(events) if !events.is_empty() => true,
            Primary::Persist(_) | Primary::None => self.mark_empty && self.mark.is_some(),
            Primary::Unhandled | Primary::Stash(_) => false,
        }
    }

    /// Whether it puts its command aside.
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

/// What follows an effect, in order.
pub(crate) struct Chain<S>(pub(crate) Vec<SideEffect<S>>);

pub(crate) enum SideEffect<S> {
    /// Sees the new state and its number: of the last event, or the revision.
    Run(Box<dyn FnOnce(&S, u64) + Send>),
    UnstashAll,
    Passivate,
    Stop,
}

/// What a chain asks of the machine that runs it.
pub(crate) enum Asked {
    UnstashAll,
    Passivate,
    Stop,
}

impl<S> Chain<S> {
    /// Runs the side effects in order. A panic ends it: the reply tokens of the rest are answered,
    /// and the failure is the entity's.
    pub(crate) fn run(self, state: &S, number: u64, mut asked: impl FnMut(Asked)) -> Result<(), Failure> {
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
                SideEffect::UnstashAll => asked(Asked::UnstashAll),
                SideEffect::Passivate => asked(Asked::Passivate),
                SideEffect::Stop => asked(Asked::Stop),
            }
        }
        Ok(())
    }

    /// Drops it; reply tokens inside are answered `error`.
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

/// Runs user code; a panic becomes its message.
pub(crate) fn guard<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
    })
}
