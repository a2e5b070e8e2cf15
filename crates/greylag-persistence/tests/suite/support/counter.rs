//! A counter whose commands spell out the effect that its handler returns.
//!
//! `add 1 2 | run | reply | stop` persists two events, then runs three side effects. Some events
//! are special: 666 panics in `apply`, 777 cannot be encoded, 888 gets too many tags, 999 wants a snapshot. Others test
//! adapters: `2+3` is read as two events, `gone` as none, and -444, tagged `red`, is written
//! as `-44+-400`. A delivery of stream 666 panics in `prune_marks`.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest, ReplyAddress, ReplyTo};
use greylag_persistence::{
    Ctx, Effect, EventCodecs, EventMeta, EventSeq, EventSourced, EventSourcedSettings, Mark, Marks, Persisted,
    PersistenceId, SeqNr, Signal, StoredCodec, StreamId, Tags, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::log::Log;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) sum: i64,
    pub(crate) active: bool,
}

pub(crate) struct Counter {
    pub(crate) id: PersistenceId,
    pub(crate) settings: EventSourcedSettings,
    pub(crate) log: Log,
    pub(crate) rollback: bool,
    pub(crate) panics_on: Option<&'static str>,
    /// Whether it asks to delete more events than there are whenever a snapshot is saved.
    pub(crate) oversteps: bool,
    asks: u64,
}

impl Counter {
    pub(crate) fn new(id: &str, settings: EventSourcedSettings, log: Log) -> Self {
        Self { id: id.parse().unwrap(), settings, log, rollback: false, panics_on: None, oversteps: false, asks: 0 }
    }

    fn ask(&mut self) -> ReplyTo<i64> {
        self.asks += 1;
        ReplyTo::new(ReplyAddress { node: "node:1#1".parse().unwrap(), ask_id: self.asks }, Arc::new(self.log.clone()))
    }

    fn with_chain<'c>(&mut self, mut effect: Effect<Self>, chain: impl Iterator<Item = &'c str>) -> Effect<Self> {
        for side_effect in chain {
            let mut words = side_effect.split_whitespace();
            let log = self.log.clone();
            effect = match words.next().unwrap() {
                "run" => {
                    effect.then_run_at(move |state, seq_nr| log.push(format!("  run with {} at {seq_nr}", state.sum)))
                }
                "reply" => effect.then_reply(self.ask(), |state| state.sum),
                "unstash" => effect.then_unstash_all(),
                "stop" => effect.then_stop(),
                "passivate" => effect.then_passivate(),
                "panic" => effect.then_run(|_| panic!("callback on purpose")),
                "owned" => effect.when_owned(),
                "mark" => {
                    let (stream, total) = words.next().unwrap().split_once('/').unwrap();
                    effect.with_mark(Mark {
                        producer_id: "producer".into(),
                        stream_id: StreamId::from_u128(stream.parse().unwrap()),
                        total_seq_nr: total.parse().unwrap(),
                    })
                }
                "mark-empty" => effect.mark_empty(true),
                "own-meta" => effect.with_metadata("gl.delivery", Bytes::from_static(b"junk")),
                "meta" => effect.with_metadata("note", Bytes::copy_from_slice(words.next().unwrap().as_bytes())),
                other => panic!("no side effect {other:?}"),
            };
        }
        effect
    }
}

/// How counters store their events.
pub(crate) fn event_codec() -> StoredCodec<String> {
    StoredCodec::new(RefusingCodec).to_journal(as_written).from_journal(as_read)
}

impl EventSourced for Counter {
    type Command = String;
    type Event = String;
    type State = Count;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Count, command: String) -> Effect<Self> {
        let mut parts = command.split('|').map(str::trim);
        let mut words = parts.next().unwrap().split_whitespace();
        let words: Vec<&str> = words.by_ref().collect();
        self.log.push(format!("  handle {:?} at {}", words.join(" "), cx.seq_nr()));
        let events = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let effect = match words[0] {
            "add" => Effect::persist_all(events(&words[1..])),
            "active?" if state.active => Effect::persist_all(events(&words[1..])),
            "active?" => return Effect::stash(command),
            "stash" => Effect::stash("none | run".into()),
            "activate" => Effect::persist_all(vec!["on".into(), words[1].into()]),
            "none" => Effect::none(),
            "unhandled" => Effect::unhandled(),
            "panic" => panic!("handler on purpose"),
            "overstep" => {
                cx.delete_events_to(SeqNr::from(99_u32));
                Effect::persist_all(events(&words[1..]))
            }
            "delete" => {
                cx.delete_events_to(words.get(1).map_or(SeqNr::MAX, |to| SeqNr::from(to.parse::<u32>().unwrap())));
                Effect::none()
            }
            "deliver" => {
                let (stream, total) = words[1].split_once('/').unwrap();
                if cx.marks().covers(StreamId::from_u128(stream.parse().unwrap()), total.parse().unwrap()) {
                    self.log.push(format!("  {} is a duplicate", words[1]));
                    return Effect::none();
                }
                let mark = format!("mark {}", words[1]);
                let effect = Effect::persist(words[2].to_owned());
                return self.with_chain(effect, [mark.as_str()].into_iter().chain(parts));
            }
            other => panic!("no command {other:?}"),
        };
        self.with_chain(effect, parts)
    }

    fn apply(state: &mut Count, event: &String) {
        match event.as_str() {
            "on" => state.active = true,
            "666" => panic!("apply on purpose"),
            number => state.sum += number.parse::<i64>().unwrap(),
        }
    }

    fn apply_with(&self, state: &mut Count, event: &String, meta: &EventMeta<'_>) {
        let note = meta.metadata.get("note").map(|note| format!(" note {}", String::from_utf8_lossy(note)));
        self.log.push(format!("  apply {event} at {}{}", meta.seq_nr, note.unwrap_or_default()));
        Self::apply(state, event);
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Count, signal: &Signal) {
        let text = format!("{signal:?}");
        self.log.push(format!("  signal {} with {}", short(&text), state.sum));
        if self.oversteps && matches!(signal, Signal::SnapshotCompleted(_)) {
            cx.delete_events_to(SeqNr::from(99_u32));
        }
        if self.panics_on.is_some_and(|name| text.starts_with(name)) {
            self.panics_on = None;
            panic!("signal handler on purpose");
        }
    }

    fn tags(&self, _: &Count, event: &String, _: &EventMeta<'_>) -> Tags {
        match event.as_str() {
            "888" => (0..17).map(|tag| tag.to_string()).collect(),
            "-444" => ["red".to_owned()].into(),
            _ => Tags::new(),
        }
    }

    fn snapshot_when(&self, _: &Count, event: &String, _: SeqNr) -> bool {
        event == "999"
    }

    fn prune_marks(&self, marks: &mut Marks, _: Timestamp) {
        assert!(marks.of(StreamId::from_u128(666)).is_none(), "prune_marks on purpose");
    }

    fn rollback_copy(&self, state: &Count) -> Option<Count> {
        self.rollback.then(|| state.clone())
    }
}

impl Counter {
    /// The entity with its id and its codecs.
    pub(crate) fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = self.id.clone();
        EventCodecs::new(event_codec()).snapshots(json("counter.state")).of(id, self)
    }
}

fn as_written(event: &String) -> String {
    if event == "-444" { "-44+-400".to_owned() } else { event.clone() }
}

fn as_read(event: String) -> EventSeq<String> {
    match event.split_once('+') {
        Some((one, other)) => EventSeq::Many(vec![one.to_owned(), other.to_owned()]),
        None if event == "gone" => EventSeq::Many(Vec::new()),
        None => EventSeq::One(event),
    }
}

/// Shortens signals: leaves out fields that repeat information shown elsewhere.
fn short(text: &str) -> &str {
    text.split_once(" { min_seq_nr").map_or(text, |(head, _)| head)
}

/// JSON that refuses to write 777.
struct RefusingCodec;

impl Codec<String> for RefusingCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &String) -> Manifest {
        "counter.event".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["counter.event".into()]
    }

    fn encode(&self, event: &String, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        if event == "777" {
            return Err(EncodeError::Unrepresentable { manifest: "counter.event".into(), reason: "on purpose".into() });
        }
        json("counter.event").encode(event, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<String, DecodeError> {
        json("counter.event").decode(manifest, bytes)
    }
}
