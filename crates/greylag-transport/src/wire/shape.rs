//! The limits of a frame's content, checked before anything is allocated for it.
//!
//! The generated types allocate a value for each repeated field and each entry of a map, many times the two bytes that
//! it may take in a frame. So repeated fields are counted first, and a frame with more of them than any node writes is
//! refused before it takes more than twice its bytes. Source: cluster T36, 82.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::limits::{MAX_FEATURES, MAX_HELLO};
use super::malformed::{Malformed, skip};

// Fields of `Frame`.
const HELLO: u32 = 1;
const HELLO_REPLY: u32 = 2;
const BATCH: u32 = 3;
const RELIABLE: u32 = 4;
// `Hello.features`; `HelloReply.accepted` and its `features`; `Reliable.envelope` and its `metadata`.
const HELLO_FEATURES: u32 = 12;
const ACCEPTED: u32 = 1;
const ACCEPTED_FEATURES: u32 = 3;
const ENVELOPE: u32 = 2;
const METADATA: u32 = 11;

/// The most bytes of an envelope's metadata (cluster T8).
const MAX_METADATA: usize = 1024;

/// Refuses a frame whose content could take more than twice its bytes.
pub(super) fn check(frame: &[u8]) -> Result<(), Malformed> {
    let (mut features, mut metadata) = (0, 0);
    for field in Fields(frame) {
        match field? {
            (BATCH, _) => return Err(Malformed("a batch beside other fields".to_owned())),
            (HELLO | HELLO_REPLY, _) if frame.len() > MAX_HELLO => {
                return Err(Malformed(format!("a Hello of {} bytes, at most {MAX_HELLO} are allowed", frame.len())));
            }
            (HELLO, hello) => features += count(hello, HELLO_FEATURES)?,
            (HELLO_REPLY, reply) => {
                for accepted in of_number(reply, ACCEPTED) {
                    features += count(accepted?, ACCEPTED_FEATURES)?;
                }
            }
            (RELIABLE, reliable) => {
                for envelope in of_number(reliable, ENVELOPE) {
                    for entry in of_number(envelope?, METADATA) {
                        metadata += entry?.len() + 2;
                    }
                }
            }
            _ => {}
        }
    }
    if features > MAX_FEATURES {
        return Err(Malformed(format!("{features} features, at most {MAX_FEATURES} are allowed")));
    }
    if metadata > MAX_METADATA {
        return Err(Malformed(format!("{metadata} bytes of metadata, at most {MAX_METADATA} are allowed")));
    }
    Ok(())
}

/// The contents of every field of this number.
fn of_number(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    Fields(message).filter_map(move |field| match field {
        Ok((found, content)) => (found == number).then_some(Ok(content)),
        Err(error) => Some(Err(error)),
    })
}

fn count(message: &[u8], number: u32) -> Result<usize, Malformed> {
    of_number(message, number).try_fold(0, |count, field| field.map(|_| count + 1))
}

/// The fields of a message, by number and content; the content is empty for fields that are no message or text.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<(u32, &'a [u8]), Malformed> {
        let (number, wire) = decode_key(&mut self.0)?;
        if wire != WireType::LengthDelimited {
            skip(wire, number, &mut self.0)?;
            return Ok((number, &[]));
        }
        let len = usize::try_from(decode_varint(&mut self.0)?).unwrap_or(usize::MAX);
        let content = self.0.split_off(..len);
        let left = self.0.len();
        content
            .map(|content| (number, content))
            .ok_or_else(|| Malformed(format!("a field of {len} bytes in {left} bytes")))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;

    use super::super::read_frame;
    use crate::generated as pb;

    fn refused(frame: Vec<u8>) -> String {
        read_frame(Bytes::from(frame)).expect_err("it is refused").to_string()
    }

    /// Cluster 82: other fields beside a batch must not cause the batch to be read by the generated types, in which
    /// each envelope takes a hundred times its two bytes.
    #[test]
    fn a_batch_beside_an_unknown_field_is_refused() {
        let batch = [1 << 3 | 2, 0].repeat(1 << 20);
        let mut frame = Vec::new();
        super::super::write_batch_head(batch.len(), &mut frame);
        frame.extend(batch);
        let (before, after) = ([&[0xf8, 0x06, 0x01][..], &frame].concat(), [&frame, &[0xf8, 0x06, 0x01][..]].concat());
        for frame in [before, after] {
            assert!(super::check(&frame).is_err(), "before anything is made of it");
            assert!(refused(frame).contains("a batch beside other fields"));
        }
    }

    /// Cluster 82: repeated fields are counted before they are read.
    #[test]
    fn fields_that_repeat_without_end_are_refused() {
        let features = || vec![String::new(); 4000];
        let hello = pb::Hello { features: features(), ..pb::Hello::default() };
        let accepted = pb::Accepted { features: features(), ..pb::Accepted::default() };
        let reply = pb::HelloReply { answer: Some(pb::hello_reply::Answer::Accepted(accepted)) };
        let metadata = (0..200).map(|n| (n.to_string(), String::new())).collect();
        let envelope = pb::Envelope { path: "x".to_owned(), metadata, ..pb::Envelope::default() };
        use pb::frame::Content;
        for (content, why) in [
            (Content::Hello(hello), "4000 features"),
            (Content::HelloReply(reply), "4000 features"),
            (Content::Reliable(pb::Reliable { seq: 1, envelope: Some(envelope) }), "bytes of metadata"),
        ] {
            let why_not = refused(pb::Frame { content: Some(content) }.encode_to_vec());
            assert!(why_not.contains(why), "{why_not}");
        }
        let long = pb::Hello { host_id: "x".repeat(20_000), ..pb::Hello::default() };
        let frame = pb::Frame { content: Some(Content::Hello(long)) }.encode_to_vec();
        assert!(refused(frame).contains("a Hello of 200"));
    }
}
