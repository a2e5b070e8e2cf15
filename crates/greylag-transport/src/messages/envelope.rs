//! Envelopes: a message, its recipient, and the codec and manifest that it is read by.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use greylag_core::{CodecId, EncodeError, Manifest, Uid, UniqueAddress};

use crate::lanes::lane::LaneKind;

/// The longest path, sub-path or manifest, in bytes. Names are kept, logged and compared, so they are bounded apart
/// from the message.
pub(crate) const MAX_NAME: usize = 4096;

/// The recipient of a message, on the node it is sent to.
///
/// The lane key is path and sub-path together: all messages with one lane key share one lane and one decode worker, and
/// arrive in the order they were enqueued (cluster T6, T23). The instance id is not part of the lane key; instance 0
/// means the receiver that is registered when the message arrives (cluster T25).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recipient {
    /// The registered path, such as `cluster` or `sharding/Customer`.
    pub path: Arc<str>,
    /// The part of the receiver that is meant, such as a shard; never empty.
    pub sub_path: Option<Arc<str>>,
    /// The instance meant, or 0 for the current one.
    pub instance: u64,
}

impl Recipient {
    /// Prefix of control recipients' paths; fixed in code (cluster T6).
    pub const CONTROL_PREFIX: &'static str = "control/";
    /// The path of heartbeats, fixed in code: messages for this path, or below it, leave before everything else that
    /// waits in the control lane. Source: cluster T26.
    pub const HEARTBEAT: &'static str = "control/heartbeat";
    /// Prefix of bulk recipients' paths, which take the large lane; fixed in code.
    pub const BULK_PREFIX: &'static str = "bulk/";

    /// The receiver that is registered at `path` when the message arrives.
    pub fn new(path: impl Into<Arc<str>>) -> Self {
        Self { path: path.into(), sub_path: None, instance: 0 }
    }

    /// Sets the part of the recipient below its path; an empty `sub_path` means none.
    #[must_use]
    pub fn with_sub_path(mut self, sub_path: impl Into<Arc<str>>) -> Self {
        self.sub_path = Some(sub_path.into()).filter(|sub_path| !sub_path.is_empty());
        self
    }

    /// The sub-path; empty where there is none.
    pub fn below(&self) -> &str {
        self.sub_path.as_deref().unwrap_or_default()
    }

    /// Restricts the recipient to this instance.
    #[must_use]
    pub fn with_instance(mut self, instance: u64) -> Self {
        self.instance = instance;
        self
    }

    /// Whether messages for this recipient leave before all others in their lane.
    pub(crate) fn is_heartbeat(&self) -> bool {
        let below = self.path.strip_prefix(Self::HEARTBEAT);
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }

    /// The lane kind as far as the path decides it; user patterns may still make an ordinary one large.
    pub fn lane_kind(&self) -> LaneKind {
        if self.path.starts_with(Self::CONTROL_PREFIX) {
            LaneKind::Control
        } else if self.path.starts_with(Self::BULK_PREFIX) {
            LaneKind::Large
        } else {
            LaneKind::Ordinary
        }
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if let Some(sub_path) = &self.sub_path {
            write!(f, "/{sub_path}")?;
        }
        if self.instance != 0 {
            write!(f, "@{}", self.instance)?;
        }
        Ok(())
    }
}

/// A value that the lane writer encodes, so that senders do not pay for it (cluster T27).
///
/// Handed back unsent (cluster T18) it returns as itself, so its sender can route it anew.
pub trait PayloadValue: Send + 'static {
    /// Appends the bytes.
    ///
    /// # Errors
    /// [`EncodeError`]; the message is then a dead letter `SerializeFailed`.
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError>;

    /// Estimates the encoded size in bytes, the same value each time; queues count the estimate until the value is
    /// encoded. Default 0: then only the queue's bound in messages applies.
    fn size_hint(&self) -> usize {
        0
    }

    /// The value itself, for a downcast to its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// The content of an envelope.
pub enum Payload {
    /// A message that is encoded already.
    Bytes(Bytes),
    /// A message that the lane writer encodes.
    Value(Box<dyn PayloadValue>),
}

impl Payload {
    /// The bytes of the payload, estimated if it is a value; 0 if the value's estimate panics.
    pub(crate) fn size_hint(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Value(value) => catch_unwind(AssertUnwindSafe(|| value.size_hint())).unwrap_or(0),
        }
    }

    /// The payload encoded. `manifest` names the message in the error.
    pub(crate) fn to_bytes(&self, manifest: &str) -> Result<Bytes, EncodeError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::Value(value) => {
                let mut buffer = BytesMut::new();
                encode(&**value, manifest, &mut buffer)?;
                Ok(buffer.freeze())
            }
        }
    }
}

/// Encodes a value. The code is its sender's and runs where the messages of others wait, so a panic in it ends only
/// this message (cluster T27).
pub(crate) fn encode(value: &dyn PayloadValue, manifest: &str, buffer: &mut BytesMut) -> Result<(), EncodeError> {
    catch_unwind(AssertUnwindSafe(|| value.encode(buffer))).unwrap_or_else(|_| {
        tracing::error!(manifest, "an encoder panicked");
        Err(EncodeError::Unrepresentable { manifest: manifest.to_owned(), reason: "its encoder panicked".to_owned() })
    })
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Value(_) => f.write_str("Value"),
        }
    }
}

/// Marks an envelope as a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskHeader {
    /// The asker's number for the question.
    pub id: u64,
    /// The time that the asker still waits, so that a receiver may skip expired work.
    pub budget: Duration,
}

/// A message on its way out.
#[derive(Debug)]
pub struct Envelope {
    /// The recipient.
    pub recipient: Recipient,
    /// The only incarnation that may get it; `None` for any process that runs at the address (cluster T15).
    pub target_uid: Option<Uid>,
    /// The codec that wrote, or will write, the payload.
    pub codec: CodecId,
    /// The message's stable name.
    pub manifest: Manifest,
    /// The message.
    pub payload: Payload,
    /// Set for questions of this node itself; a question that is forwarded for another node carries its
    /// [`greylag_core::ReplyAddress`] in the message only.
    pub ask: Option<AskHeader>,
    /// Enqueued even when the queue is full (sharding's marks; cluster T22).
    pub must_enqueue: bool,
}

impl Envelope {
    /// A plain message that is encoded already.
    pub fn new(recipient: Recipient, codec: CodecId, manifest: impl Into<Manifest>, payload: impl Into<Bytes>) -> Self {
        Self::with_payload(recipient, codec, manifest, Payload::Bytes(payload.into()))
    }

    /// A plain message.
    pub fn with_payload(recipient: Recipient, codec: CodecId, manifest: impl Into<Manifest>, payload: Payload) -> Self {
        Self { recipient, target_uid: None, codec, manifest: manifest.into(), payload, ask: None, must_enqueue: false }
    }

    /// Makes the message a question: `id` is the `ask_id` of [`crate::Remoting::open_ask`], `budget` its timeout. A
    /// question that is dropped anywhere on its way, or refused by its recipient, then ends at once.
    #[must_use]
    pub fn asking(mut self, id: u64, budget: Duration) -> Self {
        self.ask = Some(AskHeader { id, budget });
        self
    }

    /// Restricts the message to the incarnation `uid`.
    #[must_use]
    pub fn to_uid(mut self, uid: Uid) -> Self {
        self.target_uid = Some(uid);
        self
    }
}

/// A message whose payload is encoded, so that it can be written more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedMessage {
    pub(crate) recipient: Recipient,
    pub(crate) target_uid: Option<Uid>,
    pub(crate) codec: CodecId,
    pub(crate) manifest: Manifest,
    pub(crate) payload: Bytes,
    pub(crate) ask: Option<AskHeader>,
}

impl EncodedMessage {
    pub(crate) fn new(envelope: &Envelope) -> Result<Self, EncodeError> {
        Ok(Self {
            recipient: envelope.recipient.clone(),
            target_uid: envelope.target_uid,
            codec: envelope.codec,
            manifest: envelope.manifest.clone(),
            payload: envelope.payload.to_bytes(&envelope.manifest)?,
            ask: envelope.ask,
        })
    }

    /// The message as an envelope; the payload is shared.
    pub(crate) fn to_envelope(&self) -> Envelope {
        let (recipient, manifest) = (self.recipient.clone(), self.manifest.clone());
        let envelope = Envelope::new(recipient, self.codec, manifest, self.payload.clone());
        Envelope { target_uid: self.target_uid, ask: self.ask, ..envelope }
    }
}

/// A message that arrived, from a process that is known to be its origin (cluster T16).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// The process at the other end of the stream.
    pub from: UniqueAddress,
    /// The recipient.
    pub recipient: Recipient,
    /// The codec that wrote the payload.
    pub codec: CodecId,
    /// The message's stable name.
    pub manifest: Manifest,
    /// The message.
    pub payload: Bytes,
    /// Set for questions.
    pub ask: Option<AskHeader>,
}

impl Inbound {
    /// The bytes that the message counts for in a queue: its payload and its names.
    pub fn size(&self) -> usize {
        self.payload.len() + self.manifest.len() + self.recipient.path.len() + self.recipient.below().len()
    }
}
