//! The behaviour that a user writes, and its answers: commands in, events out, a state folded from events.
//!
//! A command handler answers an [`Effect`]: one primary request (persist, nothing, unhandled, stash), and a chain of
//! side effects that run once the events are durable (`chain`). Source: persistence §2.1, §2.2, §2.6.

use std::fmt;

use bytes::Bytes;
use greylag_core::{EntityError, ReplyTo, answer_dropped};

use super::chain::{Chain, SideEffect, chain_methods};
use super::signal::Signal;
use crate::contract::records::event::{Metadata, SeqNr, Tags, Timestamp};
use crate::entities::context::ctx::Ctx;
use crate::entities::marks::{Mark, Marks};
use crate::entities::settings::EventSourcedSettings;
use crate::entities::tracker::Tracked;

/// An entity whose state is the fold of its events.
///
/// Handlers are synchronous and must not block. A panic in any of them is caught; the state is then
/// never used again. Source: persistence §2.1.
pub trait EventSourced: Sized + Send + 'static {
    /// The commands that the entity accepts.
    type Command: Send + 'static;
    /// The events that the entity stores.
    type Event: Send + 'static;
    /// The state that the events fold to; the default is the state before the first event.
    type State: Default + Send + 'static;

    /// Name of the journal that keeps the events, of those given by `Stores::with_plugin`. Default `""`:
    /// the node's default journal. Source: persistence §1.
    fn journal_plugin_id(&self) -> &str {
        ""
    }

    /// Name of the snapshot store, likewise.
    fn snapshot_plugin_id(&self) -> &str {
        ""
    }

    /// The entity's settings, made from the settings that the node has for all entities. Default: the node's. To change
    /// some: `EventSourcedSettings { delete_events: true, ..node.clone() }`.
    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        node.clone()
    }

    /// Decides what a command does. `state` is the fold of all events until now, all of them durable.
    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &Self::State,
        command: Self::Command,
    ) -> Effect<Self>;

    /// Folds one event. Must be pure and total: it runs before the event is stored, and again at
    /// every replay.
    fn apply(state: &mut Self::State, event: &Self::Event);

    /// As [`EventSourced::apply`], with the behaviour and the event's number and metadata. Default: calls `apply`.
    fn apply_with(&self, state: &mut Self::State, event: &Self::Event, meta: &EventMeta<'_>) {
        let _ = meta;
        Self::apply(state, event);
    }

    /// Tells the behaviour what happened to the entity. `state` is the default state while the state is lost: after a
    /// panic, before recovery ended, or while it holds the events of an append that is not answered. On a signal that
    /// ends the incarnation (all but `RecoveryCompleted` and the signals of a running entity) timers, work and
    /// messages that the handler asks for are not begun.
    fn on_signal(&mut self, _cx: &mut Ctx<'_, Self::Command>, _state: &Self::State, _signal: &Signal) {}

    /// The tags of a new event, which `state` contains already.
    fn tags(&self, _state: &Self::State, _event: &Self::Event, _meta: &EventMeta<'_>) -> Tags {
        Tags::new()
    }

    /// Whether to save a snapshot after this event, which `state` contains already. A state that may lack
    /// events is not saved even so; see
    /// [`snapshot_every`](crate::EventSourcedSettings::snapshot_every).
    fn snapshot_when(&self, _state: &Self::State, _event: &Self::Event, _seq_nr: SeqNr) -> bool {
        false
    }

    /// For layers that wrap a behaviour: drops marks of deliveries that cannot come again. Called when a new stream got
    /// its first mark. Source: delivery §7.
    #[doc(hidden)]
    fn prune_marks(&self, _marks: &mut Marks, _now: Timestamp) {}

    /// The first event that a snapshot of `state` leaves data to, if the snapshot leaves any out: a
    /// state that grows too large for a snapshot can keep its bulk in the events. Recovery then applies
    /// the events from that number on to the snapshot, first those that the snapshot reflects already
    /// ([`EventMeta::refill`]), and retention keeps them. Called when a snapshot is encoded.
    /// Source: persistence §2.8 (`replay_from`).
    fn replay_from(&self, _state: &Self::State) -> Option<SeqNr> {
        None
    }

    /// The deliveries that the state keeps until they are confirmed, and their sender. A delivery that
    /// `apply` recorded is sent when its event is stored, before the side effects of the command;
    /// after recovery every unconfirmed delivery is sent again, and then from time to time.
    /// A read-only entity sends nothing. Source: persistence §6.
    fn tracker<'a>(&'a mut self, _state: &'a mut Self::State) -> Option<Tracked<'a>> {
        None
    }

    /// A copy of the state to return to when an append is rejected, instead of a restart by recovery. The copy is
    /// taken before every persist; give one only if it is cheap. Source: persistence §2.6 (`rollback`).
    fn rollback_copy(&self, _state: &Self::State) -> Option<Self::State> {
        None
    }
}

/// The number and metadata of an event when it is applied; nothing that is known only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventMeta<'a> {
    /// The event's number.
    pub seq_nr: SeqNr,
    /// The metadata attached to the event.
    pub metadata: &'a Metadata,
    /// Whether the state comes from a snapshot that reflects this event already, so that the handler takes
    /// from the event only what the snapshot left out; see [`EventSourced::replay_from`].
    pub refill: bool,
}

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
