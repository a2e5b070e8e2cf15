//! An entity that sends messages by a delivery tracker, and logs everything.
//!
//! `send a x b y` persists two events, which deliver x to a and y to b; `confirm 2` persists the confirmation of
//! delivery 2; `crash` panics. A `send` without room is logged.

use greylag_codec::json;
use greylag_persistence::{
    Ctx, DeliveryId, DeliveryTracker, Effect, EventCodecs, EventMeta, EventSourced, EventSourcedSettings, Persisted,
    PersistenceId, Signal, Tracked,
};
use serde::{Deserialize, Serialize};

use super::log::Log;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Sent { dest: String, text: String },
    Confirmed(DeliveryId),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(crate) tracker: DeliveryTracker<String, String>,
    /// Number of messages ever recorded for sending.
    pub(crate) sent: u64,
}

/// Receives the attempts: id, attempt, destination, text.
pub(crate) type Wire = Box<dyn FnMut(DeliveryId, u32, &str, &str) + Send>;

pub(crate) struct Outbox {
    pub(crate) id: PersistenceId,
    pub(crate) settings: EventSourcedSettings,
    pub(crate) log: Log,
    pub(crate) wire: Wire,
    pub(crate) rollback: bool,
}

impl Outbox {
    /// Logs the attempts.
    pub(crate) fn logging(id: &str, settings: EventSourcedSettings, log: Log) -> Self {
        let lines = log.clone();
        let wire: Wire = Box::new(move |id, attempt, dest, text| {
            assert!(text != "trap", "sending on purpose");
            lines.push(format!("  to {dest}: {id} {text}, attempt {attempt}"));
        });
        Self { id: id.parse().unwrap(), settings, log, wire, rollback: false }
    }
}

impl EventSourced for Outbox {
    type Command = String;
    type Event = Event;
    type State = Outgoing;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, state: &Outgoing, command: String) -> Effect<Self> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let log = self.log.clone();
        let effect = match words[0] {
            "send" => {
                let pairs: Vec<_> = words[1..].chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect();
                if !state.tracker.has_room(pairs.len()) {
                    log.push(format!("  no room for {}", pairs.len()));
                    return Effect::none();
                }
                Effect::persist_all(pairs.into_iter().map(|(dest, text)| Event::Sent { dest, text }).collect())
            }
            "confirm" => {
                let id = DeliveryId::new(words[1].parse().unwrap());
                if state.tracker.get(id).is_none() {
                    log.push(format!("  {id} is confirmed already"));
                    return Effect::none();
                }
                Effect::persist(Event::Confirmed(id))
            }
            "crash" => panic!("handler on purpose"),
            other => panic!("no command {other:?}"),
        };
        effect.then_run(move |_| log.push("  side effect"))
    }

    fn apply(_: &mut Outgoing, _: &Event) {
        unreachable!("the log names the numbers of events")
    }

    fn apply_with(&self, state: &mut Outgoing, event: &Event, meta: &EventMeta<'_>) {
        match event {
            Event::Sent { dest, text } => {
                let id = state.tracker.deliver(dest.clone(), |_| text.clone());
                state.sent += 1;
                self.log.push(format!("  apply {}: deliver {id}", meta.seq_nr));
            }
            Event::Confirmed(id) => {
                let first = state.tracker.confirm(*id);
                self.log.push(format!("  apply {}: confirm {id}{}", meta.seq_nr, if first { "" } else { " again" }));
            }
        }
    }

    fn on_signal(&mut self, _: &mut Ctx<'_, Self::Command>, _: &Outgoing, signal: &Signal) {
        self.log.push(format!("  signal {signal:?}"));
    }

    fn tracker<'a>(&'a mut self, state: &'a mut Outgoing) -> Option<Tracked<'a>> {
        let wire = &mut self.wire;
        Some(state.tracker.send_by(|attempt| wire(attempt.id, attempt.number, attempt.dest, attempt.message)))
    }

    fn rollback_copy(&self, state: &Outgoing) -> Option<Outgoing> {
        self.rollback.then(|| state.clone())
    }
}

impl Outbox {
    /// The entity with its id and its codecs.
    pub(crate) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.id.clone();
        EventCodecs::new(json("outbox.event")).snapshots(json("outbox.state")).of(id, self)
    }
}
