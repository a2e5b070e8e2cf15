//! An entity with a durable state that keeps every entry, and gates some.

use greylag_persistence::{
    Ctx, DurableState, DurableStateSettings, Persisted, PersistenceId, StateCodec, StateEffect, StateSignal,
};

use super::action_log::{ActionLog, LoggedAction, NUMBERS, Order, OrderKind, State};
use super::text::{Text, Words, number};

/// The numbers of all entries since the last deletion. Special numbers cannot be stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StateEntries {
    pub(super) numbers: Vec<u64>,
    pub(super) is_closed: bool,
    is_unencodable: bool,
    is_overtagged: bool,
}

impl Text for StateEntries {
    const MANIFEST: &'static str = "lines";

    fn write(&self) -> Option<String> {
        let words = [u64::from(self.is_closed), self.numbers.len() as u64].into_iter().chain(self.numbers.clone());
        (!self.is_unencodable).then(|| words.map(|word| word.to_string()).collect::<Vec<_>>().join(" "))
    }

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let (is_closed, count) = (number(words)? != 0, number(words)?);
        let numbers = (0..count).map(|_| number(words)).collect::<Option<_>>()?;
        Some(Self { numbers, is_closed, ..Self::default() })
    }
}

/// The behaviour of the entity.
pub(super) struct StateEntity {
    pub(super) id: PersistenceId,
    pub(super) settings: DurableStateSettings,
    pub(super) action_log: ActionLog,
}

impl DurableState for StateEntity {
    type Command = Order;
    type State = StateEntries;

    fn settings(&self, _: &DurableStateSettings) -> DurableStateSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, state: &StateEntries, order: Order) -> StateEffect<Self> {
        let is_stashed = order.kind == OrderKind::Gated && state.is_closed;
        self.action_log.write(LoggedAction::Handled { number: order.number, is_stashed });
        if is_stashed {
            return StateEffect::stash(order);
        }
        let Order { number, kind, to } = order;
        let count = |state: &StateEntries| state.numbers.len() as u64;
        let write = |entries: u64, change: fn(&mut StateEntries)| {
            let mut next = state.clone();
            next.numbers.extend((number * NUMBERS..).take(entries as usize));
            change(&mut next);
            StateEffect::<Self>::persist(next)
        };
        match kind {
            OrderKind::Write(entries) => write(entries, |_| {}).then_reply(to, count),
            OrderKind::Gated | OrderKind::Send => write(1, |_| {}).then_reply(to, count),
            OrderKind::Open => {
                let action_log = self.action_log.clone();
                let unstashes = move |_: &StateEntries| action_log.write(LoggedAction::Unstashes);
                write(1, |next| next.is_closed = false).then_run(unstashes).then_unstash_all().then_reply(to, count)
            }
            OrderKind::Close => write(1, |next| next.is_closed = true).then_reply(to, count),
            OrderKind::Read | OrderKind::ReadOwned | OrderKind::Confirm(_) => StateEffect::reply(to, count(state)),
            OrderKind::Last => write(1, |_| {}).then_stop().then_reply(to, count),
            OrderKind::Clear => StateEffect::<Self>::delete().then_reply(to, count),
            // Skips the panic hook, which would print a message for each of thousands of panics.
            OrderKind::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            OrderKind::Unencodable => write(1, |next| next.is_unencodable = true).then_reply(to, count),
            OrderKind::Overtagged => write(1, |next| next.is_overtagged = true).then_reply(to, count),
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &StateEntries, signal: &StateSignal) {
        if matches!(signal, StateSignal::RecoveryCompleted) {
            let (state, count) = (State::StateEntity(state.clone()), cx.revision().as_u64());
            self.action_log.write(LoggedAction::Recovered { state, count });
        }
    }

    fn tag(&self, state: &StateEntries) -> Option<String> {
        state.is_overtagged.then(|| "t".repeat(129))
    }
}

impl StateEntity {
    /// The entity with its name and its codecs, ready to be hosted.
    pub(super) fn stored(self) -> Persisted<Self, StateCodec<Self>> {
        let id = self.id.clone();
        StateCodec::new(Words).of(id, self)
    }
}
