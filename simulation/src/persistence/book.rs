//! An event-sourced entity that keeps every entry, gates some, and delivers others until they are confirmed.
//!
//! Every entry names the one before, as its writer knew it, so two histories cannot be mixed unnoticed.

use greylag_persistence::{
    Ctx, DeliveryId, DeliveryTracker, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, Persisted,
    PersistenceId, SeqNr, Signal, Tags, Tracked, TrackerSnapshot,
};

use super::diary::{Diary, Line, NUMBERS, Order, State, Wish};
use super::text::{Text, Words, number};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Note,
    Send,
    Confirm(u64),
    Open,
    Close,
    /// Cannot be encoded.
    Mute,
    /// Has more tags than any store takes.
    Overtagged,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    /// The number of the entry before; 0 for the first.
    pub(super) after: u64,
    pub(super) what: What,
}

impl Text for Entry {
    const MANIFEST: &'static str = "entry";

    fn write(&self) -> Option<String> {
        let what = match self.what {
            What::Note => "note".to_owned(),
            What::Send => "send".to_owned(),
            What::Confirm(delivery) => format!("confirm {delivery}"),
            What::Open => "open".to_owned(),
            What::Close => "close".to_owned(),
            What::Overtagged => "overtagged".to_owned(),
            What::Mute => return None,
        };
        Some(format!("{} {} {what}", self.number, self.after))
    }

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let (own, after) = (number(words)?, number(words)?);
        let what = match words.next()? {
            "note" => What::Note,
            "send" => What::Send,
            "confirm" => What::Confirm(number(words)?),
            "open" => What::Open,
            "close" => What::Close,
            "overtagged" => What::Overtagged,
            _ => return None,
        };
        Some(Self { number: own, after, what })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pages {
    pub(super) numbers: Vec<u64>,
    pub(super) is_closed: bool,
    /// Delivers numbers of entries.
    pub(super) tracker: DeliveryTracker<(), u64>,
}

impl Pages {
    pub(super) fn last(&self) -> u64 {
        self.numbers.last().copied().unwrap_or(0)
    }
}

impl Text for Pages {
    const MANIFEST: &'static str = "pages";

    fn write(&self) -> Option<String> {
        let TrackerSnapshot { current_id, unconfirmed } = self.tracker.snapshot();
        let mut words = vec![u64::from(self.is_closed), self.numbers.len() as u64];
        words.extend(&self.numbers);
        words.extend([current_id.as_u64(), unconfirmed.len() as u64]);
        words.extend(unconfirmed.iter().flat_map(|(id, (), entry)| [id.as_u64(), *entry]));
        Some(words.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
    }

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let (is_closed, count) = (number(words)? != 0, number(words)?);
        let numbers = (0..count).map(|_| number(words)).collect::<Option<_>>()?;
        let (current_id, count) = (DeliveryId::new(number(words)?), number(words)?);
        let one = |_| Some((DeliveryId::new(number(words)?), (), number(words)?));
        let unconfirmed = (0..count).map(one).collect::<Option<_>>()?;
        let tracker = DeliveryTracker::restore(TrackerSnapshot { current_id, unconfirmed });
        Some(Self { numbers, is_closed, tracker })
    }
}

/// The behaviour of the entity.
pub(super) struct Book {
    pub(super) id: PersistenceId,
    pub(super) settings: EventSourcedSettings,
    pub(super) diary: Diary,
    pub(super) rollback: bool,
    /// With an omission: deliveries leave when they are recorded, not when they are stored.
    pub(super) sends_early: bool,
    /// The newest snapshot known to be saved.
    pub(super) snapshot: Option<SeqNr>,
}

impl Book {
    fn write(state: &Pages, first: u64, whats: &[What]) -> Effect<Self> {
        let mut after = state.last();
        let entry = |(number, what): (u64, &What)| {
            let entry = Entry { number, after, what: *what };
            after = number;
            entry
        };
        Effect::persist_all((first..).zip(whats).map(entry).collect())
    }
}

impl EventSourced for Book {
    type Command = Order;
    type Event = Entry;
    type State = Pages;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Pages, order: Order) -> Effect<Self> {
        let aside = order.wish == Wish::Gated && state.is_closed;
        self.diary.write(Line::Handled { number: order.number, aside });
        if aside {
            return Effect::stash(order);
        }
        let Order { number, wish, to } = order;
        let count = |state: &Pages| state.numbers.len() as u64;
        let write = |whats: &[What]| Self::write(state, number * NUMBERS, whats);
        match wish {
            Wish::Write(entries) => write(&vec![What::Note; entries as usize]).then_reply(to, count),
            Wish::Gated => write(&[What::Note]).then_reply(to, count),
            Wish::Send if state.tracker.has_room(1) => write(&[What::Send]).then_reply(to, count),
            Wish::Send => Effect::reply(to, count(state)),
            Wish::Confirm(delivery) if state.tracker.get(DeliveryId::new(delivery)).is_none() => {
                Effect::reply(to, count(state))
            }
            Wish::Confirm(delivery) => write(&[What::Confirm(delivery)]).then_reply(to, count),
            Wish::Open => {
                let diary = self.diary.clone();
                let unstashes = move |_: &Pages| diary.write(Line::Unstashes);
                write(&[What::Open]).then_run(unstashes).then_unstash_all().then_reply(to, count)
            }
            Wish::Close => write(&[What::Close]).then_reply(to, count),
            Wish::Look => Effect::reply(to, count(state)),
            Wish::LookOwned => Effect::<Self>::none().when_owned().then_reply(to, count),
            Wish::Last => write(&[What::Note]).then_stop().then_reply(to, count),
            Wish::Clear => {
                self.snapshot.into_iter().for_each(|covered| cx.delete_events_to(covered));
                Effect::reply(to, count(state))
            }
            // Skips the panic hook, which would print a message for each of thousands of panics.
            Wish::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Wish::Mute => write(&[What::Note, What::Mute]).then_reply(to, count),
            Wish::Overtagged => write(&[What::Note, What::Overtagged]).then_reply(to, count),
        }
    }

    fn apply(_: &mut Pages, _: &Entry) {
        unreachable!("a book writes its diary")
    }

    fn apply_with(&self, state: &mut Pages, entry: &Entry, _: &EventMeta<'_>) {
        state.numbers.push(entry.number);
        match entry.what {
            What::Send => {
                let delivery = state.tracker.deliver((), |_| entry.number).as_u64();
                if self.sends_early {
                    self.diary.write(Line::Sent { delivery, entry: entry.number });
                }
            }
            What::Confirm(delivery) => {
                state.tracker.confirm(DeliveryId::new(delivery));
            }
            What::Open => state.is_closed = false,
            What::Close => state.is_closed = true,
            What::Note | What::Mute | What::Overtagged => {}
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Pages, signal: &Signal) {
        match signal {
            Signal::RecoveryCompleted => {
                let (state, count) = (State::Book(state.clone()), cx.seq_nr().as_u64());
                self.diary.write(Line::Recovered { state, count });
            }
            Signal::SnapshotCompleted(seq_nr) => self.snapshot = self.snapshot.max(Some(*seq_nr)),
            // A new incarnation knows nothing of the snapshot.
            Signal::PreRestart => self.snapshot = None,
            _ => {}
        }
    }

    fn tags(&self, _: &Pages, entry: &Entry, _: &EventMeta<'_>) -> Tags {
        let tags = if entry.what == What::Overtagged { 40 } else { 0 };
        (0..tags).map(|tag| tag.to_string()).collect()
    }

    fn tracker<'a>(&'a mut self, state: &'a mut Pages) -> Option<Tracked<'a>> {
        let diary = &self.diary;
        Some(state.tracker.send_by(|attempt| {
            diary.write(Line::Sent { delivery: attempt.id.as_u64(), entry: *attempt.message });
        }))
    }

    fn rollback_copy(&self, state: &Pages) -> Option<Pages> {
        self.rollback.then(|| state.clone())
    }
}

impl Book {
    /// The entity with its name and its codecs, ready to be hosted.
    pub(super) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.id.clone();
        EventCodecs::new(Words).snapshots(Words).of(id, self)
    }
}
