//! Codecs that the builder of a node sets up before it joins. Sharding scenario 110.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use greylag::core::{Codec, CodecId, DecodeError, EncodeError, Manifest};
use greylag::prelude::*;
use serde::{Deserializer, Serializer};

const TIME_LIMIT: Duration = Duration::from_secs(60);
const IDS: usize = 20;

/// An answer that serde cannot serialize, so that the format of its question cannot encode it.
#[derive(Debug, PartialEq)]
struct Seal(u8);

impl Serialize for Seal {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no ink"))
    }
}

impl<'de> Deserialize<'de> for Seal {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("no glasses"))
    }
}

struct ByHand;

impl Codec<Seal> for ByHand {
    fn id(&self) -> CodecId {
        CodecId::FIRST_USER
    }

    fn manifest(&self, _: &Seal) -> Manifest {
        "seal".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["seal".into()]
    }

    fn encode(&self, Seal(mark): &Seal, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.extend_from_slice(&[*mark]);
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<Seal, DecodeError> {
        match bytes[..] {
            [mark] => Ok(Seal(mark)),
            _ => Err(DecodeError::malformed(manifest, "one byte is a seal")),
        }
    }
}

const OFFICE: EntityKey<Ask> = EntityKey::new("Office");

#[derive(Serialize, Deserialize)]
struct Ask(ReplyTo<Seal>);

struct Office;

impl Entity for Office {
    type Message = Ask;

    fn receive(&mut self, Ask(to): Ask, _: &mut Ctx<'_, Ask>) -> Result<(), Failure> {
        to.reply(Seal(7));
        Ok(())
    }
}

/// The answers that the second of two nodes gets from entities on both.
async fn answers(name: &str, set_up: impl Fn(NodeBuilder) -> NodeBuilder) -> Vec<Result<Seal, AskError>> {
    let builder = || {
        let offices = EntityType::new(OFFICE, |_| Ok(Office)).codec(json("office"));
        set_up(Node::builder(name).bind("127.0.0.1", 0).start_timeout(TIME_LIMIT)).entity(offices)
    };
    let first = builder().start().await.expect("a cluster of one");
    // The first node has shards before the second one joins.
    first.entity_ref(OFFICE, "0").ask(Ask).timeout(TIME_LIMIT).await.expect("nothing is encoded on one node");
    let second = builder().seed_nodes([first.address().to_string()]).start().await.expect("it joins");
    let mut answers = Vec::new();
    for id in 0..IDS {
        answers.push(second.entity_ref(OFFICE, id.to_string()).ask(Ask).timeout(TIME_LIMIT).await);
    }
    second.shutdown().await.expect("it leaves in order");
    first.shutdown().await.expect("it leaves in order");
    answers
}

/// With the codec registered by the builder each answer arrives, wherever its entity lives; without it the answers of
/// the other node do not, and the errors name the type and the place without a codec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_110_a_codec_that_the_builder_registers_serves_from_the_first_message_on() {
    let registered = answers("codecs", |builder| builder.register(ByHand)).await;
    assert!(registered.iter().all(|answer| *answer == Ok(Seal(7))), "{registered:?}");
    let unregistered = answers("no-codecs", |builder| builder).await;
    let failed: Vec<_> = unregistered.into_iter().filter_map(Result::err).collect();
    assert!(!failed.is_empty(), "entities live on both nodes");
    for error in failed {
        let AskError::Codec { type_name, cause, .. } = &error else { panic!("{error:?}") };
        assert!(type_name.contains("Seal") && cause.contains("no ink"), "{error}");
    }
}
