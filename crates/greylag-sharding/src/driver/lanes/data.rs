//! Sending a type's messages to regions of other nodes.
//!
//! A message is enqueued on its shard's lane as a value, and encoded by the lane's writer, so that a message that is
//! given back is unchanged. Every message of a region passes here, on the sender's thread, and is dropped by the
//! writer's: their common data has one reference count, since each count is a cache line that moves between processors.
//!
//! Source: sharding §2.1, §10.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use greylag_core::{Codec, CodecId, EncodeError, Generation};
use greylag_transport::{
    AskHeader, Destination, Envelope, Payload, PayloadValue, Recipient, Remoting, SendError as Rejection,
};

use crate::driver::node::clock;
use crate::frame;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::machine::message::Stamp;
use crate::parcel::{Content, Parcel};
use crate::start::{START_MANIFEST, put_request};

/// Data that the messages of one region share.
pub(crate) struct DataLane<M> {
    /// The sending region.
    pub(crate) id: RegionId,
    /// Digest of the region's fingerprint.
    pub(crate) digest: u32,
    /// The path on any node at which the type's messages and marks arrive.
    pub(crate) path: Arc<str>,
    codec: Option<Arc<dyn Codec<M>>>,
    codec_id: CodecId,
    remoting: Arc<dyn Remoting>,
}

/// The routing header of a message.
pub(crate) enum Stamped {
    /// The message leaves the region it was submitted to, by its first route.
    Straight(Generation),
    /// The message came from another region, or is sent again.
    Forwarded(Box<Stamp>),
}

/// A message for another node, encoded by the lane writer.
struct Outgoing<M> {
    stamp: Stamped,
    parcel: Parcel<M>,
    lane: Arc<DataLane<M>>,
}

impl<M: Send + 'static> PayloadValue for Outgoing<M> {
    fn encode(&self, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let Self { stamp, parcel, lane } = self;
        match stamp {
            Stamped::Straight(generation) => {
                frame::put_straight(buffer, *generation, lane.id.incarnation, lane.digest, &parcel.id);
            }
            Stamped::Forwarded(stamp) => frame::put_header(buffer, stamp, lane.digest, &parcel.id),
        }
        match (&parcel.content, &lane.codec) {
            (Content::Value { message, .. }, Some(codec)) => codec.encode(message, buffer),
            (Content::Bytes { payload, .. }, _) => {
                buffer.extend_from_slice(payload);
                Ok(())
            }
            (Content::Start(reply_to), _) => {
                put_request(buffer, reply_to);
                Ok(())
            }
            (Content::Value { .. }, None) => Err(EncodeError::NotRegistered { type_name: std::any::type_name::<M>() }),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl<M: Send + 'static> DataLane<M> {
    /// The lane of a region whose messages are encoded by `codec`; without a codec nothing is sent.
    pub(crate) fn new(
        name: &EntityTypeName,
        id: RegionId,
        digest: u32,
        (codec, codec_id): (Option<Arc<dyn Codec<M>>>, CodecId),
        remoting: Arc<dyn Remoting>,
    ) -> Self {
        Self { id, digest, path: data_path(name).into(), codec, codec_id, remoting }
    }

    /// The recipient, on any node, of a shard's messages and marks.
    pub(crate) fn recipient(&self, shard: ShardId) -> Recipient {
        Recipient { path: self.path.clone(), sub_path: Some(shard.into_shared()), instance: 0 }
    }

    /// Enqueues a message, whose content has its manifest, on its shard's lane, or gives the message back.
    #[allow(clippy::result_large_err, reason = "the caller gets back what it gave")]
    pub(crate) fn put(
        self: &Arc<Self>,
        to: &Destination,
        recipient: Recipient,
        stamp: Stamped,
        mut parcel: Parcel<M>,
    ) -> Result<(), (Rejection, Parcel<M>)> {
        let (codec, manifest) = match &mut parcel.content {
            Content::Bytes { codec, manifest, .. } => (*codec, manifest.clone()),
            Content::Value { manifest, .. } => (self.codec_id, manifest.take().unwrap_or_else(|| "".into())),
            Content::Start(_) => (CodecId::INTERNAL, START_MANIFEST.into()),
        };
        // The header lets the transport end an ask of this node; a forwarded ask belongs to another node.
        let ask = parcel
            .ask
            .as_ref()
            .filter(|ask| ask.asker.is_none())
            .map(|ask| AskHeader { id: ask.id, budget: ask.deadline.saturating_duration_since(clock::now()) });
        let value = Payload::Value(Box::new(Outgoing { stamp, parcel, lane: self.clone() }));
        let mut envelope = Envelope::with_payload(recipient, codec, manifest, value);
        envelope.ask = ask;
        self.remoting.send(to, envelope).map_err(|rejected| {
            let Some((_, parcel)) = Self::unpack(*rejected.envelope) else {
                unreachable!("the envelope comes back as it was sent")
            };
            (rejected.error, parcel)
        })
    }

    /// Takes an own message out of its envelope, with its header.
    pub(crate) fn unpack(envelope: Envelope) -> Option<(Stamp, Parcel<M>)> {
        let Payload::Value(value) = envelope.payload else { return None };
        let Outgoing { stamp, mut parcel, lane } = *value.into_any().downcast::<Outgoing<M>>().ok()?;
        if let Content::Value { manifest, .. } = &mut parcel.content {
            *manifest = Some(envelope.manifest);
        }
        let stamp = match stamp {
            Stamped::Straight(generation) => Stamp::straight(lane.id.clone(), generation),
            Stamped::Forwarded(stamp) => *stamp,
        };
        Some((stamp, parcel))
    }
}

/// The path at which a type's messages and marks arrive; the sub-path is the shard.
pub(crate) fn data_path(name: &EntityTypeName) -> String {
    format!("sharding/{}", name.encoded())
}
