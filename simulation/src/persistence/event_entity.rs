//! An event-sourced entity that keeps every entry, gates some, and delivers others until they are confirmed.
//!
//! Every entry names the one before, as its writer knew it, so two histories cannot be mixed unnoticed.

use greylag_persistence::{
    Ctx, DeliveryId, DeliveryTracker, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, Persisted,
    PersistenceId, SeqNr, Signal, Tags, Tracked, TrackerSnapshot,
};

use super::action_log::{ActionLog, LoggedAction, NUMBERS, Order, OrderKind, State};
use super::text::{Text, Words, number};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Note,
    Send,
    Confirm(u64),
    Open,
    Close,
    /// Cannot be encoded.
    Unencodable,
    /// Has more tags than any store takes.
    Overtagged,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    /// The number of the entry before; 0 for the first.
    pub(super) after: u64,
    pub(super) what: EntryKind,
}

impl Text for Entry {
    const MANIFEST: &'static str = "entry";

    fn write(&self) -> Option<String> {
        let what = match self.what {
            EntryKind::Note => "note".to_owned(),
            EntryKind::Send => "send".to_owned(),
            EntryKind::Confirm(delivery) => format!("confirm {delivery}"),
            EntryKind::Open => "open".to_owned(),
            EntryKind::Close => "close".to_owned(),
            EntryKind::Overtagged => "overtagged".to_owned(),
            EntryKind::Unencodable => return None,
        };
        Some(format!("{} {} {what}", self.number, self.after))
    }

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self> {
        let (own, after) = (number(words)?, number(words)?);
        let what = match words.next()? {
            "note" => EntryKind::Note,
            "send" => EntryKind::Send,
            "confirm" => EntryKind::Confirm(number(words)?),
            "open" => EntryKind::Open,
            "close" => EntryKind::Close,
            "overtagged" => EntryKind::Overtagged,
            _ => return None,
        };
        Some(Self { number: own, after, what })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct EventEntries {
    pub(super) numbers: Vec<u64>,
    pub(super) is_closed: bool,
    /// Delivers numbers of entries.
    pub(super) tracker: DeliveryTracker<(), u64>,
}

impl EventEntries {
    pub(super) fn last(&self) -> u64 {
        self.numbers.last().copied().unwrap_or(0)
    }
}

impl Text for EventEntries {
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
pub(super) struct EventEntity {
    pub(super) id: PersistenceId,
    pub(super) settings: EventSourcedSettings,
    pub(super) action_log: ActionLog,
    pub(super) rollback: bool,
    /// With an omission: deliveries leave when they are recorded, not when they are stored.
    pub(super) sends_early: bool,
    /// The newest snapshot known to be saved.
    pub(super) snapshot: Option<SeqNr>,
}

impl EventEntity {
    fn write(state: &EventEntries, first: u64, whats: &[EntryKind]) -> Effect<Self> {
        let mut after = state.last();
        let entry = |(number, what): (u64, &EntryKind)| {
            let entry = Entry { number, after, what: *what };
            after = number;
            entry
        };
        Effect::persist_all((first..).zip(whats).map(entry).collect())
    }
}

impl EventSourced for EventEntity {
    type Command = Order;
    type Event = Entry;
    type State = EventEntries;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &EventEntries, order: Order) -> Effect<Self> {
        let is_stashed = order.kind == OrderKind::Gated && state.is_closed;
        self.action_log.write(LoggedAction::Handled { number: order.number, is_stashed });
        if is_stashed {
            return Effect::stash(order);
        }
        let Order { number, kind, to } = order;
        let count = |state: &EventEntries| state.numbers.len() as u64;
        let write = |whats: &[EntryKind]| Self::write(state, number * NUMBERS, whats);
        match kind {
            OrderKind::Write(entries) => write(&vec![EntryKind::Note; entries as usize]).then_reply(to, count),
            OrderKind::Gated => write(&[EntryKind::Note]).then_reply(to, count),
            OrderKind::Send if state.tracker.has_room(1) => write(&[EntryKind::Send]).then_reply(to, count),
            OrderKind::Send => Effect::reply(to, count(state)),
            OrderKind::Confirm(delivery) if state.tracker.get(DeliveryId::new(delivery)).is_none() => {
                Effect::reply(to, count(state))
            }
            OrderKind::Confirm(delivery) => write(&[EntryKind::Confirm(delivery)]).then_reply(to, count),
            OrderKind::Open => {
                let action_log = self.action_log.clone();
                let unstashes = move |_: &EventEntries| action_log.write(LoggedAction::Unstashes);
                write(&[EntryKind::Open]).then_run(unstashes).then_unstash_all().then_reply(to, count)
            }
            OrderKind::Close => write(&[EntryKind::Close]).then_reply(to, count),
            OrderKind::Read => Effect::reply(to, count(state)),
            OrderKind::ReadOwned => Effect::<Self>::none().when_owned().then_reply(to, count),
            OrderKind::Last => write(&[EntryKind::Note]).then_stop().then_reply(to, count),
            OrderKind::Clear => {
                self.snapshot.into_iter().for_each(|covered| cx.delete_events_to(covered));
                Effect::reply(to, count(state))
            }
            // Skips the panic hook, which would print a message for each of thousands of panics.
            OrderKind::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            OrderKind::Unencodable => write(&[EntryKind::Note, EntryKind::Unencodable]).then_reply(to, count),
            OrderKind::Overtagged => write(&[EntryKind::Note, EntryKind::Overtagged]).then_reply(to, count),
        }
    }

    fn apply(_: &mut EventEntries, _: &Entry) {
        unreachable!("an event-sourced entity writes its action log")
    }

    fn apply_with(&self, state: &mut EventEntries, entry: &Entry, _: &EventMeta<'_>) {
        state.numbers.push(entry.number);
        match entry.what {
            EntryKind::Send => {
                let delivery = state.tracker.deliver((), |_| entry.number).as_u64();
                if self.sends_early {
                    self.action_log.write(LoggedAction::Sent { delivery, entry: entry.number });
                }
            }
            EntryKind::Confirm(delivery) => {
                state.tracker.confirm(DeliveryId::new(delivery));
            }
            EntryKind::Open => state.is_closed = false,
            EntryKind::Close => state.is_closed = true,
            EntryKind::Note | EntryKind::Unencodable | EntryKind::Overtagged => {}
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &EventEntries, signal: &Signal) {
        match signal {
            Signal::RecoveryCompleted => {
                let (state, count) = (State::EventEntity(state.clone()), cx.seq_nr().as_u64());
                self.action_log.write(LoggedAction::Recovered { state, count });
            }
            Signal::SnapshotCompleted(seq_nr) => self.snapshot = self.snapshot.max(Some(*seq_nr)),
            // A new incarnation knows nothing of the snapshot.
            Signal::PreRestart => self.snapshot = None,
            _ => {}
        }
    }

    fn tags(&self, _: &EventEntries, entry: &Entry, _: &EventMeta<'_>) -> Tags {
        let tags = if entry.what == EntryKind::Overtagged { 40 } else { 0 };
        (0..tags).map(|tag| tag.to_string()).collect()
    }

    fn tracker<'a>(&'a mut self, state: &'a mut EventEntries) -> Option<Tracked<'a>> {
        let action_log = &self.action_log;
        Some(state.tracker.send_by(|attempt| {
            action_log.write(LoggedAction::Sent { delivery: attempt.id.as_u64(), entry: *attempt.message });
        }))
    }

    fn rollback_copy(&self, state: &EventEntries) -> Option<EventEntries> {
        self.rollback.then(|| state.clone())
    }
}

impl EventEntity {
    /// The entity with its name and its codecs, ready to be hosted.
    pub(super) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.id.clone();
        EventCodecs::new(Words).snapshots(Words).of(id, self)
    }
}
