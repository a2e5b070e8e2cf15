//! Numbered control messages. They are few, so the generated types serve; they do not use a stream's table of names,
//! because they outlive streams.

use std::time::Duration;

use bytes::Bytes;
use greylag_core::{CodecId, Uid};
use prost::Message;

use super::malformed::Malformed;
use super::names::check_name;
use crate::generated as pb;
use crate::messages::envelope::{AskHeader, EncodedMessage, Recipient};

/// The frame of a numbered message.
pub(crate) fn write_reliable(seq: u64, message: &EncodedMessage) -> Bytes {
    let EncodedMessage { recipient, target_uid, codec, manifest, payload, ask } = message;
    let envelope = pb::Envelope {
        path: recipient.path.to_string(),
        sub_path: recipient.below().to_owned(),
        instance: recipient.instance,
        target_uid: target_uid.map_or(0, Uid::get),
        codec_id: codec.as_u32(),
        manifest: manifest.to_string(),
        payload: payload.clone(),
        ask_id: ask.map_or(0, |ask| ask.id),
        ask_budget_ms: ask.map_or(0, |ask| u64::try_from(ask.budget.as_millis()).unwrap_or(u64::MAX)),
        ..pb::Envelope::default()
    };
    frame(seq, Some(envelope))
}

/// The frame that tells the receiver that everything up to `seq` that did not arrive was given up.
pub(crate) fn write_skip(seq: u64) -> Bytes {
    frame(seq, None)
}

fn frame(seq: u64, envelope: Option<pb::Envelope>) -> Bytes {
    let content = pb::frame::Content::Reliable(pb::Reliable { seq, envelope });
    pb::Frame { content: Some(content) }.encode_to_vec().into()
}

pub(super) fn read(envelope: Option<pb::Envelope>) -> Result<Option<Box<EncodedMessage>>, Malformed> {
    let Some(envelope) = envelope else { return Ok(None) };
    if envelope.path_id != 0 || envelope.manifest_id != 0 {
        return Err(Malformed("a numbered message with numbered names".to_owned()));
    }
    for name in [&envelope.path, &envelope.sub_path, &envelope.manifest] {
        check_name(name)?;
    }
    let ask_budget = Duration::from_millis(envelope.ask_budget_ms);
    Ok(Some(Box::new(EncodedMessage {
        recipient: Recipient::new(envelope.path).with_sub_path(envelope.sub_path).with_instance(envelope.instance),
        target_uid: Uid::new(envelope.target_uid),
        codec: CodecId::from_u32(envelope.codec_id),
        manifest: envelope.manifest.into(),
        payload: envelope.payload,
        ask: (envelope.ask_id != 0).then_some(AskHeader { id: envelope.ask_id, budget: ask_budget }),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::envelope::Envelope;
    use crate::wire::{Frame, read_frame, write_frame};

    /// Cluster T28: the frames of `docs/formats/transport.md`.
    #[test]
    fn numbered_messages_are_what_the_format_says() {
        let recipient = Recipient::new("control/watch");
        let envelope = Envelope::new(recipient, CodecId::JSON, "w", &b"{}"[..]).to_uid(Uid::new(9).unwrap());
        let message = EncodedMessage::new(&envelope).unwrap();
        let bytes = write_reliable(300, &message);
        assert_eq!(hex(&bytes), "222608ac0212210a0d636f6e74726f6c2f776174636821090000000000000028023201773a027b7d");
        assert_eq!(read_frame(bytes), Ok(Frame::Reliable { seq: 300, message: Some(Box::new(message)) }));
        for (frame, expected) in [
            (Frame::Reliable { seq: 300, message: None }, "220308ac02"),
            (Frame::Ack(300), "2a0308ac02"),
            (Frame::Nack(300), "320308ac02"),
        ] {
            let bytes = if matches!(frame, Frame::Reliable { .. }) { write_skip(300) } else { write_frame(&frame) };
            assert_eq!((hex(&bytes).as_str(), read_frame(bytes)), (expected, Ok(frame)));
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
