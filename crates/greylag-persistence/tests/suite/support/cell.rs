//! An entity with a number, whose commands spell out the effect that its handler returns.
//!
//! `set 5 | run | reply | stop` persists a state, then runs three side effects. Some numbers
//! fail on purpose: 777 cannot be encoded, 888 gets a tag that no store takes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest, ReplyAddress, ReplyTo};
use greylag_persistence::{
    Ctx, DurableState, DurableStateSettings, Persisted, PersistenceId, StateCodec, StateEffect, StateSignal,
};
use serde::{Deserialize, Serialize};

use super::log::Log;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) number: i64,
    pub(crate) active: bool,
}

pub(crate) struct Cell {
    pub(crate) id: PersistenceId,
    pub(crate) settings: DurableStateSettings,
    pub(crate) log: Log,
    pub(crate) panics_on: Option<&'static str>,
    asks: u64,
}

impl Cell {
    pub(crate) fn new(id: &str, settings: DurableStateSettings, log: Log) -> Self {
        Self { id: id.parse().unwrap(), settings, log, panics_on: None, asks: 0 }
    }

    fn ask(&mut self) -> ReplyTo<i64> {
        self.asks += 1;
        ReplyTo::new(ReplyAddress { node: "node:1#1".parse().unwrap(), ask_id: self.asks }, Arc::new(self.log.clone()))
    }

    fn with_chain<'c>(
        &mut self,
        mut effect: StateEffect<Self>,
        chain: impl Iterator<Item = &'c str>,
    ) -> StateEffect<Self> {
        for side_effect in chain {
            let log = self.log.clone();
            effect = match side_effect {
                "run" => effect.then_run_at(move |state, revision| {
                    log.push(format!("  run with {} at {revision}", state.number));
                }),
                "owned" => effect.when_owned(),
                "reply" => effect.then_reply(self.ask(), |state| state.number),
                "unstash" => effect.then_unstash_all(),
                "stop" => effect.then_stop(),
                "passivate" => effect.then_passivate(),
                "panic" => effect.then_run(|_| panic!("callback on purpose")),
                other => panic!("no side effect {other:?}"),
            };
        }
        effect
    }
}

impl DurableState for Cell {
    type Command = String;
    type State = Content;

    fn settings(&self, _: &DurableStateSettings) -> DurableStateSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Self::Command>, state: &Content, command: String) -> StateEffect<Self> {
        let mut parts = command.split('|').map(str::trim);
        let words: Vec<&str> = parts.next().unwrap().split_whitespace().collect();
        self.log.push(format!("  handle {:?} with {} at {}", words.join(" "), state.number, cx.revision()));
        let number = || words[1].parse::<i64>().unwrap();
        let effect = match words[0] {
            "set" => StateEffect::persist(Content { number: number(), ..*state }),
            "add" => StateEffect::persist(Content { number: state.number + number(), ..*state }),
            "active?" if state.active => {
                StateEffect::persist(Content { number: state.number + number(), active: true })
            }
            "active?" => return StateEffect::stash(command),
            "stash" => StateEffect::stash("none | run".to_owned()),
            "activate" => StateEffect::persist(Content { number: number(), active: true }),
            "delete" => StateEffect::delete(),
            "none" => StateEffect::none(),
            "unhandled" => StateEffect::unhandled(),
            "panic" => panic!("handler on purpose"),
            other => panic!("no command {other:?}"),
        };
        self.with_chain(effect, parts)
    }

    fn on_signal(&mut self, _: &mut Ctx<'_, Self::Command>, state: &Content, signal: &StateSignal) {
        let text = format!("{signal:?}");
        self.log.push(format!("  signal {text} with {}", state.number));
        if self.panics_on.is_some_and(|name| text.starts_with(name)) {
            self.panics_on = None;
            panic!("signal handler on purpose");
        }
    }

    fn tag(&self, state: &Content) -> Option<String> {
        (state.number == 888).then(|| "t".repeat(129))
    }
}

impl Cell {
    /// The entity with its id and its codecs.
    pub(crate) fn stored(self) -> Persisted<Self, StateCodec<Self>> {
        let id = self.id.clone();
        StateCodec::new(RefusingCodec).of(id, self)
    }
}

/// JSON that refuses to write 777.
struct RefusingCodec;

impl Codec<Content> for RefusingCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &Content) -> Manifest {
        "cell.content".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["cell.content".into()]
    }

    fn encode(&self, state: &Content, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        if state.number == 777 {
            return Err(EncodeError::Unrepresentable { manifest: "cell.content".into(), reason: "on purpose".into() });
        }
        json("cell.content").encode(state, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<Content, DecodeError> {
        json("cell.content").decode(manifest, bytes)
    }
}
