//! Questions to the manager from every node, and the codecs of questions and answers.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest, ReplyTo, TokenCodec};
use prost::Message;

use crate::generated as proto;
use crate::machine::daemon::{Answer, Question};
use crate::wire;

const QUESTION_MANIFEST: &str = "greylag.sharding.daemon.question";
const ANSWER_MANIFEST: &str = "greylag.sharding.daemon.answer";

/// A question, and the token to answer it.
#[derive(Debug)]
pub(in crate::driver) struct Command {
    pub(super) question: Question,
    pub(super) reply_to: ReplyTo<Answer>,
}

/// The codec of answers.
struct AnswerCodec;

impl Codec<Answer> for AnswerCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &Answer) -> Manifest {
        ANSWER_MANIFEST.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![ANSWER_MANIFEST.into()]
    }

    fn encode(&self, answer: &Answer, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.extend_from_slice(&wire::encode_daemon_answer(answer));
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<Answer, DecodeError> {
        wire::decode_daemon_answer(manifest, &bytes)
    }
}

static TOKENS: LazyLock<TokenCodec<Answer>> = LazyLock::new(|| ReplyTo::with(AnswerCodec));

/// The codec of questions.
pub(super) struct CommandCodec;

impl Codec<Command> for CommandCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &Command) -> Manifest {
        QUESTION_MANIFEST.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![QUESTION_MANIFEST.into()]
    }

    fn encode(&self, command: &Command, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let change_to = match command.question {
            Question::Change(count) => Some(count),
            Question::Number => None,
        };
        let question = proto::DaemonQuestion { change_to, reply_to: TOKENS.write(&command.reply_to).into() };
        question.encode(buffer).expect("a growing buffer has room");
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<Command, DecodeError> {
        let read = proto::DaemonQuestion::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))?;
        let reply_to = TOKENS.read(&read.reply_to).map_err(|error| DecodeError::malformed(manifest, error))?;
        Ok(Command { question: read.change_to.map_or(Question::Number, Question::Change), reply_to })
    }
}
