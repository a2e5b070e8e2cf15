//! `serialize_messages`: messages within a node are encoded and decoded too. Source: sharding §7.

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DeadLetterReason, DecodeError, EncodeError, Manifest};
use serde::{Deserialize, Serialize};

use super::*;
use crate::settings::RuntimeSettings;

const NOTES: EntityKey<Note> = EntityKey::new("NoteEntity");

#[derive(Serialize, Deserialize)]
enum Note {
    Keep {
        text: String,
        /// A mistake that only shows when a message is encoded.
        #[serde(skip)]
        forgotten: String,
    },
    Read(ReplyTo<(String, String)>),
}

#[derive(Default)]
struct NoteEntity(String, String);

impl Entity for NoteEntity {
    type Message = Note;

    fn receive(&mut self, note: Note, _: &mut Ctx<'_, Note>) -> Result<(), Failure> {
        match note {
            Note::Keep { text, forgotten } => (self.0, self.1) = (text, forgotten),
            Note::Read(reply_to) => reply_to.reply((self.0.clone(), self.1.clone())),
        }
        Ok(())
    }
}

/// A codec that encodes what it cannot decode, or does not encode at all.
struct Broken {
    writes: bool,
}

impl Codec<Note> for Broken {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &Note) -> Manifest {
        "note".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["note".into()]
    }

    fn encode(&self, note: &Note, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        if self.writes {
            json::<Note>("note").encode(note, buffer)
        } else {
            Err(EncodeError::NotRegistered { type_name: "a part of it" })
        }
    }

    fn decode(&self, _: &str, _: Bytes) -> Result<Note, DecodeError> {
        Err(DecodeError::malformed("note", "nothing was written"))
    }
}

async fn note_region(serialize_messages: bool, codec: impl Codec<Note>) -> Region<Note> {
    let runtime = RuntimeSettings { serialize_messages, ..RuntimeSettings::default() };
    let sharding = alone(ShardingSettings { runtime, ..ShardingSettings::test() }).await;
    sharding.init(EntityType::new(NOTES, |_| Ok(NoteEntity::default())).codec(codec)).unwrap()
}

#[tokio::test]
async fn fields_lost_by_a_codec_are_lost_on_one_node_with_serialize_messages() {
    for (serialize_messages, forgotten) in [(false, "secret"), (true, "")] {
        let region = note_region(serialize_messages, json("note")).await;
        let one = region.entity_ref("1");
        one.tell(Note::Keep { text: "a".to_owned(), forgotten: "secret".to_owned() }).unwrap();
        let read = one.ask(Note::Read).timeout(PATIENCE).await.unwrap();
        assert_eq!(read, ("a".to_owned(), forgotten.to_owned()), "serialize_messages: {serialize_messages}");
    }
}

#[tokio::test]
async fn asks_that_cannot_be_encoded_or_decoded_fail_at_once() {
    let question = async |writes| {
        let region = note_region(true, Broken { writes }).await;
        region.entity_ref("1").ask(Note::Read).timeout(PATIENCE).await.unwrap_err()
    };
    let error = question(false).await;
    assert_eq!(error, AskError::Send(SendError::Dropped(DeadLetterReason::SerializeFailed)));
    assert_eq!(question(true).await, AskError::Dropped(DeadLetterReason::Undecodable));
}
