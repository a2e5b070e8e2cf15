//! The reports of the test kits, and the mistakes that they find. Scenario persistence 55.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::{
    Codec, CodecId, DecodeError, EncodeError, EntityError, Manifest, NotStoredReason, ReplyAddress, ReplyTo,
};
use greylag_persistence::{
    Ctx, DurableState, Effect, EntityTestKit, EventCodecs, EventSourced, EventSourcedSettings, Persisted, SeqNr,
    StateCodec, StateEffect, StateTestKit, Withheld,
};

enum Command {
    Pay(u32, ReplyTo<u32>),
    Put(u32),
    Later,
    Unstash,
    /// Keeps its token for ever, so that there is no answer.
    Keep(ReplyTo<u32>),
    /// Drops its token.
    Drop(ReplyTo<u32>),
    End,
    Unwritable,
}

/// Encodes commands as words; the reply token is encoded too.
struct Words;

impl Codec<Command> for Words {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &Command) -> Manifest {
        "words".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["words".into()]
    }

    fn encode(&self, command: &Command, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let token = |to: &ReplyTo<u32>| format!("{} {}", to.write(None).node, to.address().ask_id);
        let words = match command {
            Command::Pay(much, to) => format!("pay {} {much}", token(to)),
            Command::Put(much) => format!("put {much}"),
            Command::Later => "later".to_owned(),
            Command::Unstash => "unstash".to_owned(),
            Command::Keep(to) => format!("keep {}", token(to)),
            Command::Drop(to) => format!("drop {}", token(to)),
            Command::End => "end".to_owned(),
            Command::Unwritable => {
                return Err(EncodeError::Unrepresentable { manifest: "words".into(), reason: "on purpose".into() });
            }
        };
        buffer.extend_from_slice(words.as_bytes());
        Ok(())
    }

    fn decode(&self, _: &str, bytes: Bytes) -> Result<Command, DecodeError> {
        let words: Vec<&str> = std::str::from_utf8(&bytes).unwrap().split(' ').collect();
        let token = || {
            let address = ReplyAddress { node: words[1].parse().unwrap(), ask_id: words[2].parse().unwrap() };
            ReplyTo::bind(address).expect("an ask of the kit opens a scope")
        };
        Ok(match words[0] {
            "pay" => Command::Pay(words[3].parse().unwrap(), token()),
            "put" => Command::Put(words[1].parse().unwrap()),
            "later" => Command::Later,
            "unstash" => Command::Unstash,
            "keep" => Command::Keep(token()),
            "drop" => Command::Drop(token()),
            "end" => Command::End,
            other => panic!("no command {other:?}"),
        })
    }
}

/// The value of event, state or answer that the codecs of these tests refuse to encode.
const UNWRITABLE: u32 = 777;

#[derive(Default)]
struct EventAccount {
    kept: Vec<ReplyTo<u32>>,
}

impl EventSourced for EventAccount {
    type Command = Command;
    type Event = u32;
    type State = u32;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings::test()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, _: &u32, command: Command) -> Effect<Self> {
        match command {
            Command::Pay(much, to) => Effect::persist(much).then_reply(to, |sum| *sum),
            Command::Put(much) => Effect::persist(much),
            Command::Later => Effect::stash(Command::Later),
            Command::Unstash => Effect::none().then_unstash_all(),
            Command::Keep(to) => {
                self.kept.push(to);
                Effect::none()
            }
            Command::Drop(_) => Effect::none(),
            Command::End => Effect::stop(),
            Command::Unwritable => Effect::unhandled(),
        }
    }

    fn apply(sum: &mut u32, much: &u32) {
        *sum += much;
    }
}

impl EventAccount {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, EventCodecs<Self>> {
        let id = "EventAccount|1".parse().unwrap();
        EventCodecs::new(RefusingCodec("event_account.paid"))
            .snapshots(RefusingCodec("event_account.state"))
            .of(id, self)
    }
}

/// The behaviour of `EventAccount` with a durable state.
#[derive(Default)]
struct StateAccount {
    kept: Vec<ReplyTo<u32>>,
}

impl DurableState for StateAccount {
    type Command = Command;
    type State = u32;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, sum: &u32, command: Command) -> StateEffect<Self> {
        match command {
            Command::Pay(much, to) => StateEffect::persist(sum + much).then_reply(to, |sum| *sum),
            Command::Put(much) => StateEffect::persist(much),
            Command::Later => StateEffect::stash(Command::Later),
            Command::Unstash => StateEffect::none().then_unstash_all(),
            Command::Keep(to) => {
                self.kept.push(to);
                StateEffect::none()
            }
            Command::Drop(_) => StateEffect::none(),
            Command::End => StateEffect::stop(),
            Command::Unwritable => StateEffect::unhandled(),
        }
    }
}

impl StateAccount {
    /// The entity with its id and its codecs.
    fn stored(self) -> Persisted<Self, StateCodec<Self>> {
        let id = "StateAccount|1".parse().unwrap();
        StateCodec::new(RefusingCodec("state_account.state")).of(id, self)
    }
}

/// JSON that refuses to write [`UNWRITABLE`].
struct RefusingCodec(&'static str);

impl Codec<u32> for RefusingCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &u32) -> Manifest {
        self.0.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![self.0.into()]
    }

    fn encode(&self, value: &u32, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        if *value == UNWRITABLE {
            return Err(EncodeError::Unrepresentable { manifest: self.0.into(), reason: "on purpose".into() });
        }
        json(self.0).encode(value, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<u32, DecodeError> {
        json(self.0).decode(manifest, bytes)
    }
}

fn event_account() -> EntityTestKit<EventAccount> {
    EntityTestKit::new(Instant::now(), || EventAccount::default().stored()).with_command_codec(Words)
}

fn state_account() -> StateTestKit<StateAccount> {
    StateTestKit::new(Instant::now(), || StateAccount::default().stored()).with_command_codec(Words)
}

/// The message of the panic of `f`.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).err().expect("it panics");
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap()
}

#[test]
fn scenario_55_a_kit_reports_reply_state_and_effect() {
    let mut kit = event_account();
    assert_eq!(kit.ask(|to| Command::Pay(5, to)), Ok(5));
    assert_eq!((kit.state(), kit.core().seq_nr()), (Some(&5), SeqNr::FIRST));
    assert!(kit.run(Command::Later).stashed);
    let effect = kit.run(Command::Unstash);
    assert!(!effect.stashed && !effect.unhandled && effect.events.is_empty() && effect.withheld.is_empty());
    assert!(kit.run(Command::End).stopped);

    let mut kit = state_account();
    assert_eq!(kit.ask(|to| Command::Pay(5, to)), Ok(5));
    assert_eq!(kit.state(), Some(&5));
    assert!(kit.run(Command::Later).stashed);
    assert!(kit.run(Command::End).stopped);
}

#[test]
fn scenario_55_a_kit_finds_a_missing_reply() {
    let (mut event_account, mut state_account) = (event_account(), state_account());
    assert_eq!(event_account.ask(Command::Drop), Err(EntityError::NoReply));
    assert_eq!(state_account.ask(Command::Drop), Err(EntityError::NoReply));
    let says = "the command was not answered";
    assert!(panic_of(|| event_account.ask(Command::Keep)).contains(says));
    assert!(panic_of(|| state_account.ask(Command::Keep)).contains(says));
}

#[test]
fn scenario_55_a_kit_finds_what_cannot_be_encoded() {
    // An event cannot be encoded.
    let mut kit = event_account();
    let refused = |answer: Result<u32, EntityError>| {
        assert!(matches!(&answer, Err(EntityError::NotStored(NotStoredReason::Rejected(_)))), "{answer:?}");
    };
    refused(kit.ask(|to| Command::Pay(UNWRITABLE, to)));
    let outcome = kit.run(Command::Put(UNWRITABLE));
    assert_eq!((outcome.withheld, outcome.events), (vec![Withheld::Write], vec![]));
    // A state cannot be encoded: one of encodable events, and one that was stored before.
    kit.ask(|to| Command::Pay(776, to)).unwrap();
    assert!(panic_of(|| kit.ask(|to| Command::Pay(1, to))).contains("the state cannot be encoded"));
    let mut kit = event_account();
    kit.initialize_state(&776, SeqNr::from(9));
    assert!(panic_of(|| kit.ask(|to| Command::Pay(1, to))).contains("the state cannot be encoded"));
    let mut kit = state_account();
    refused(kit.ask(|to| Command::Pay(UNWRITABLE, to)));
    assert_eq!(kit.run(Command::Put(UNWRITABLE)).withheld, [Withheld::Write]);
    // A command and an answer cannot be encoded.
    let says = "the command cannot be encoded";
    assert!(panic_of(|| event_account().run(Command::Unwritable)).contains(says));
    assert!(panic_of(|| state_account().run(Command::Unwritable)).contains(says));
    let mut kit = state_account();
    assert_eq!(kit.ask_coded(&RefusingCodec("sum"), |to| Command::Pay(5, to)), Ok(5));
    let mut kit = EntityTestKit::new(Instant::now(), || EventAccount::default().stored());
    assert_eq!(kit.ask_coded(&RefusingCodec("sum"), |to| Command::Pay(776, to)), Ok(776));
    let answer = panic_of(|| state_account().ask_coded(&RefuseAllCodec, |to| Command::Pay(5, to)));
    assert!(answer.contains("the answer cannot be encoded"), "{answer}");
}

/// A codec that encodes no value.
struct RefuseAllCodec;

impl Codec<u32> for RefuseAllCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &u32) -> Manifest {
        "never".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["never".into()]
    }

    fn encode(&self, _: &u32, _: &mut BytesMut) -> Result<(), EncodeError> {
        Err(EncodeError::Unrepresentable { manifest: "never".into(), reason: "on purpose".into() })
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<u32, DecodeError> {
        json("never").decode(manifest, bytes)
    }
}
