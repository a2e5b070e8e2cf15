//! An entity with a durable state that keeps every entry, and gates some.

use greylag_persistence::{
    Ctx, DurableState, DurableStateSettings, Persisted, PersistenceId, StateCodec, StateEffect, StateSignal,
};

use super::diary::{Diary, Line, NUMBERS, Order, State, Wish};
use super::text::{Text, Words, number};

/// The numbers of all entries since the last deletion. Special numbers cannot be stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) numbers: Vec<u64>,
    pub(super) is_closed: bool,
    is_mute: bool,
    is_overtagged: bool,
}

impl Text for Lines {
    const MANIFEST: &'static str = "lines";

    fn write(&self) -> Option<String> {
        let words = [u64::from(self.is_closed), self.numbers.len() as u64].into_iter().chain(self.numbers.clone());
        (!self.is_mute).then(|| words.map(|word| word.to_string()).collect::<Vec<_>>().join(" "))
    }

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let (is_closed, count) = (number(words)? != 0, number(words)?);
        let numbers = (0..count).map(|_| number(words)).collect::<Option<_>>()?;
        Some(Self { numbers, is_closed, ..Self::default() })
    }
}

/// The behaviour of the entity.
pub(super) struct Slate {
    pub(super) id: PersistenceId,
    pub(super) settings: DurableStateSettings,
    pub(super) diary: Diary,
}

impl DurableState for Slate {
    type Command = Order;
    type State = Lines;

    fn settings(&self, _: &DurableStateSettings) -> DurableStateSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, state: &Lines, order: Order) -> StateEffect<Self> {
        let aside = order.wish == Wish::Gated && state.is_closed;
        self.diary.write(Line::Handled { number: order.number, aside });
        if aside {
            return StateEffect::stash(order);
        }
        let Order { number, wish, to } = order;
        let count = |state: &Lines| state.numbers.len() as u64;
        let write = |entries: u64, change: fn(&mut Lines)| {
            let mut next = state.clone();
            next.numbers.extend((number * NUMBERS..).take(entries as usize));
            change(&mut next);
            StateEffect::<Self>::persist(next)
        };
        match wish {
            Wish::Write(entries) => write(entries, |_| {}).then_reply(to, count),
            Wish::Gated | Wish::Send => write(1, |_| {}).then_reply(to, count),
            Wish::Open => {
                let diary = self.diary.clone();
                let unstashes = move |_: &Lines| diary.write(Line::Unstashes);
                write(1, |next| next.is_closed = false).then_run(unstashes).then_unstash_all().then_reply(to, count)
            }
            Wish::Close => write(1, |next| next.is_closed = true).then_reply(to, count),
            Wish::Look | Wish::LookOwned | Wish::Confirm(_) => StateEffect::reply(to, count(state)),
            Wish::Last => write(1, |_| {}).then_stop().then_reply(to, count),
            Wish::Clear => StateEffect::<Self>::delete().then_reply(to, count),
            // Skips the panic hook, which would print a message for each of thousands of panics.
            Wish::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Wish::Mute => write(1, |next| next.is_mute = true).then_reply(to, count),
            Wish::Overtagged => write(1, |next| next.is_overtagged = true).then_reply(to, count),
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Lines, signal: &StateSignal) {
        if matches!(signal, StateSignal::RecoveryCompleted) {
            let (state, count) = (State::Slate(state.clone()), cx.revision().as_u64());
            self.diary.write(Line::Recovered { state, count });
        }
    }

    fn tag(&self, state: &Lines) -> Option<String> {
        state.is_overtagged.then(|| "t".repeat(129))
    }
}

impl Slate {
    /// The entity with its name and its codecs, ready to be hosted.
    pub(super) fn stored(self) -> Persisted<Self, StateCodec<Self>> {
        let id = self.id.clone();
        StateCodec::new(Words).of(id, self)
    }
}
