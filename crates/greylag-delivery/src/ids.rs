//! Ids of producers, streams (numbering spaces), controllers and kinds of work, and the numbers of messages.
//!
//! Two kinds of number must never be confused. A *link number* (`u64`) counts the frames of one
//! producer controller and starts again with a new one. A [`SeqNr`] counts the messages of a stream
//! for as long as the stream lives. The pair ([`StreamId`], [`SeqNr`]) is the identity of a message:
//! it survives resending, a crash, a move of the entity and a new link.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use greylag_core::UniqueAddress;

/// Upper limit of totals, link numbers and epochs: larger numbers are refused as invalid, so that no arithmetic below
/// overflows.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 62;

/// The name that an application gives to a logical producer: 1 to 256 bytes of UTF-8.
///
/// Unique in the cluster per logical producer; any characters. The id never becomes part of a path or a key. Source:
/// delivery §0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(Arc<str>);

impl ProducerId {
    /// The longest producer id in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Checks a producer id.
    ///
    /// # Errors
    /// [`InvalidProducerId`] if the id is empty or too long.
    pub fn new(id: impl Into<Arc<str>>) -> Result<Self, InvalidProducerId> {
        let id = id.into();
        match id.len() {
            1..=Self::MAX_BYTES => Ok(Self(id)),
            length => Err(InvalidProducerId { length }),
        }
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A producer id that is empty or longer than [`ProducerId::MAX_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a producer id has 1 to 256 bytes, this one has {length}")]
pub struct InvalidProducerId {
    /// The length of the refused id in bytes.
    pub length: usize,
}

greylag_core::debug_is_sentence!(InvalidProducerId);

/// The id of one numbering space of [`SeqNr`]s.
///
/// An in-memory producer draws a fresh stream id at every start. A producer that numbers its messages by its input
/// alone uses a stable one, so that consumers recognise messages that it sends again. Source: delivery §0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u128);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The incarnation of a stream's controller. A higher epoch fences the lower ones.
///
/// Raised only by a writer whose claim was accepted. Source: delivery §0, C2a, P14.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a stream that only ever has one controller: an in-memory one.
    pub const FIRST: Self = Self(1);
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a message in its stream: 1 for the first, 0 for no message.
///
/// Strictly increasing per stream, and per stream at each entity; an entity sees gaps, because other entities use
/// numbers of the same stream. Applications deduplicate by stream id and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SeqNr(pub u64);

impl SeqNr {
    /// No message.
    pub const NONE: Self = Self(0);

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SeqNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SeqNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One incarnation of one controller.
///
/// `path` is the transport's recipient path of the controller, and is never reused; `instance` distinguishes the links
/// of one controller, and is never reused either. A message for an ended controller is dropped, never handed to a
/// successor. Source: delivery §0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerRef {
    /// The node (process) of the controller.
    pub node: UniqueAddress,
    /// The recipient path on that node.
    pub path: Arc<str>,
    /// The link, or the incarnation, below that path.
    pub instance: u64,
}

impl fmt::Display for ControllerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.node, self.path, self.instance)
    }
}

impl fmt::Debug for ControllerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ControllerRef {
    type Err = InvalidControllerRef;

    /// Parses `host:port#uid/path@instance`, the format of `Display`.
    fn from_str(text: &str) -> Result<Self, InvalidControllerRef> {
        let read = || {
            let (node, rest) = text.split_once('/')?;
            let (path, instance) = rest.rsplit_once('@')?;
            Some(Self { node: node.parse().ok()?, path: path.into(), instance: instance.parse().ok()? })
        };
        read().ok_or_else(|| InvalidControllerRef { text: text.to_owned() })
    }
}

/// A text that is no controller reference.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no reference of a controller: those read `host:port#uid/path@instance`")]
pub struct InvalidControllerRef {
    /// The text.
    pub text: String,
}

greylag_core::debug_is_sentence!(InvalidControllerRef);

/// Serialises a controller reference as text, so that messages can carry it.
#[cfg(feature = "serde")]
mod serde_impls {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::ControllerRef;

    impl Serialize for ControllerRef {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for ControllerRef {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        }
    }
}

/// The name of one kind of work: 1 to 200 bytes of UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey(Arc<str>);

impl ServiceKey {
    /// The longest key in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Checks a key.
    ///
    /// # Errors
    /// [`InvalidServiceKey`] if the key is empty or too long.
    pub fn new(key: impl Into<Arc<str>>) -> Result<Self, InvalidServiceKey> {
        let key = key.into();
        match key.len() {
            1..=Self::MAX_BYTES => Ok(Self(key)),
            length => Err(InvalidServiceKey { length }),
        }
    }

    /// The key itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A service key that is empty or longer than [`ServiceKey::MAX_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a service key has 1 to 200 bytes, this one has {length}")]
pub struct InvalidServiceKey {
    /// The length of the refused key in bytes.
    pub length: usize,
}

greylag_core::debug_is_sentence!(InvalidServiceKey);

/// The identity of a message. Deliveries with equal ids carry the same message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The producer that sent the message.
    pub producer_id: ProducerId,
    /// The stream of the message.
    pub stream_id: StreamId,
    /// The number of the message in its stream.
    pub seq_nr: SeqNr,
}

/// The identity of a producer: its name, its stream, and its epoch within the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The numbering space of its messages.
    pub stream_id: StreamId,
    /// The incarnation of the stream's controller; consumers refuse lower epochs of the same stream.
    pub epoch: Epoch,
}

impl ProducerIdentity {
    /// A stable identity, for an application that numbers its input the same way in every run and that owns `epoch` by
    /// a claim that its store accepted.
    pub fn stable(producer_id: ProducerId, stream_id: StreamId, epoch: Epoch) -> Self {
        Self { producer_id, stream_id, epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_reads_back_as_it_is_displayed() {
        let node = "[::1]:17355#7".parse().unwrap();
        let controller = ControllerRef { node, path: "delivery/a@b/c".into(), instance: 3 };
        assert_eq!(controller.to_string().parse(), Ok(controller));
        for nonsense in ["", "a", "a:1#1/x", "a:1/x@1", "a:1#1/x@y", "/@", "a:1#1@7"] {
            let refused = nonsense.parse::<ControllerRef>().unwrap_err();
            assert!(refused.to_string().contains(nonsense), "{refused}");
        }
    }

    /// A controller reference is serialised as text.
    #[cfg(feature = "serde")]
    #[test]
    fn a_controller_is_text_within_messages() {
        use greylag_core::Codec;

        let controller: ControllerRef = "a.example:17355#7/delivery/1@3".parse().unwrap();
        let (codec, mut written) = (greylag_codec::json::<ControllerRef>("controller"), bytes::BytesMut::new());
        codec.encode(&controller, &mut written).unwrap();
        assert_eq!(&written[..], br#""a.example:17355#7/delivery/1@3""#);
        assert_eq!(codec.decode("controller", written.freeze()), Ok(controller));
        assert!(codec.decode("controller", bytes::Bytes::from_static(br#""nobody""#)).is_err());
    }

    #[test]
    fn producer_ids_take_any_characters_but_not_any_length() {
        assert_eq!(ProducerId::new("orders (north)/7").unwrap().as_str(), "orders (north)/7");
        assert_eq!(ProducerId::new(""), Err(InvalidProducerId { length: 0 }));
        assert_eq!(ProducerId::new("x".repeat(257)), Err(InvalidProducerId { length: 257 }));
    }
}
