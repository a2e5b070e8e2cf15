//! The lanes and paths of one entity type, by which its region reaches other nodes.

pub(super) mod control;
pub(super) mod data;
pub(super) mod handover;
pub(super) mod wire;

use std::sync::Arc;

use bytes::Bytes;
use greylag_core::{CodecId, UniqueAddress};
use greylag_transport::{AskHeader, Destination, Envelope, Remoting};

use self::control::ControlLane;
use self::data::DataLane;
use crate::driver::region::event::Event;
use crate::frame;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::machine::message::Mark;

/// See the module's description.
pub(super) struct Lanes<M> {
    control: ControlLane,
    pub(super) data: Arc<DataLane<M>>,
    direct_path: Arc<str>,
    remoting: Arc<dyn Remoting>,
}

impl<M: Send + 'static> Lanes<M> {
    pub(super) fn new(name: &EntityTypeName, data: DataLane<M>, remoting: Arc<dyn Remoting>) -> Self {
        let control = ControlLane::new(name.clone(), remoting.clone());
        Self { control, data: Arc::new(data), direct_path: direct_path(name).into(), remoting }
    }

    /// The path at which messages to one incarnation arrive.
    pub(super) fn direct_path(&self) -> &Arc<str> {
        &self.direct_path
    }

    /// Sends a control message to a node.
    ///
    /// # Errors
    /// The event to publish if the transport does not take the message.
    pub(super) fn send_control(
        &self,
        to: &UniqueAddress,
        message: (&'static str, Bytes),
        ask: Option<AskHeader>,
    ) -> Result<(), Event> {
        self.control.send(to, message, ask)
    }

    /// Appends a mark to the shard's lane to another region.
    ///
    /// # Errors
    /// The event to publish if the peer is gone: marks bypass the queue's bound.
    pub(super) fn send_mark(&self, to: &RegionId, shard: &ShardId, mark: &Mark) -> Result<(), Event> {
        let bytes = frame::encode_mark(mark);
        let mut envelope =
            Envelope::new(self.data.recipient(shard.clone()), CodecId::INTERNAL, frame::MARK_MANIFEST, bytes);
        envelope.must_enqueue = true;
        let envelope = envelope.to_uid(to.node.uid());
        let sent = self.remoting.send(&Destination::Incarnation(to.node.clone()), envelope);
        sent.map_err(|rejected| {
            let (to, message) = (to.node.clone(), frame::MARK_MANIFEST);
            Event::ControlRefused { to, message, error: rejected.error }
        })
    }
}

/// The path at which messages to one incarnation arrive; the sub-path is the shard.
pub(crate) fn direct_path(name: &EntityTypeName) -> String {
    format!("sharding-direct/{}", name.encoded())
}
