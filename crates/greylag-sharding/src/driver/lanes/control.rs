//! Sending control messages of one entity type to other nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{CodecId, UniqueAddress};
use greylag_transport::{AskHeader, Destination, Envelope, Recipient, Remoting, SendError};

use crate::driver::region::event::Event;
use crate::ids::EntityTypeName;
use crate::parts::Cutter;

/// Time between two log lines about refusals by the transport for one node.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Sends control messages, each in as many frames as it needs.
pub(crate) struct ControlLane {
    name: EntityTypeName,
    remoting: Arc<dyn Remoting>,
    path: Arc<str>,
    cutter: Cutter,
    /// Held while the frames of a long message are sent, since a receiver joins them in order.
    in_order: Mutex<()>,
    /// When a refusal was last logged, by node; updated only at refusals.
    logged: Mutex<BTreeMap<UniqueAddress, Instant>>,
}

impl ControlLane {
    pub(crate) fn new(name: EntityTypeName, remoting: Arc<dyn Remoting>) -> Self {
        let path = control_path(&name).into();
        Self { name, remoting, path, cutter: Cutter::default(), in_order: Mutex::default(), logged: Mutex::default() }
    }

    /// Sends one message. `ask`: header that makes the transport answer "no such recipient".
    ///
    /// # Errors
    /// The event to publish if the transport does not take the message. The message is repeated by its deadline, so the
    /// caller has nothing else to do.
    pub(crate) fn send(
        &self,
        to: &UniqueAddress,
        (manifest, bytes): (&'static str, Bytes),
        mut ask: Option<AskHeader>,
    ) -> Result<(), Event> {
        let destination = Destination::Incarnation(to.clone());
        let frames = self.cutter.frames(manifest, bytes);
        let _in_order = (frames.len() > 1).then(|| self.in_order.lock().unwrap_or_else(PoisonError::into_inner));
        for (frame_manifest, frame) in frames {
            let recipient = Recipient { path: self.path.clone(), sub_path: None, instance: 0 };
            let mut envelope = Envelope::new(recipient, CodecId::INTERNAL, frame_manifest, frame);
            envelope.ask = ask.take();
            if let Err(rejected) = self.remoting.send(&destination, envelope.to_uid(to.uid())) {
                self.log(to, manifest, rejected.error);
                return Err(Event::ControlRefused { to: to.clone(), message: manifest, error: rejected.error });
            }
        }
        Ok(())
    }

    fn log(&self, to: &UniqueAddress, message: &str, error: SendError) {
        if matches!(error, SendError::Quarantined | SendError::ShuttingDown) {
            // Not an error: the membership reports the end of a node that is quarantined or shuts down.
            return tracing::debug!(entity_type = %self.name, %to, message, %error, "control message was not sent");
        }
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| at.elapsed() < LOG_EVERY);
        if !logged.contains_key(to) {
            logged.insert(to.clone(), Instant::now());
            tracing::error!(
                entity_type = %self.name, %to, message, %error,
                "control message was not sent; it will be repeated, shards may wait until then"
            );
        }
    }
}

/// The path at which a node takes the control messages of a type.
pub(crate) fn control_path(name: &EntityTypeName) -> String {
    format!("{}sharding/{}", Recipient::CONTROL_PREFIX, name.encoded())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Joiner;
    use greylag_core::Registry;
    use greylag_transport::memory::MemoryNetwork;
    use greylag_transport::{GrpcTransport, Inbound, QuarantineReason, Receiver, TransportSettings};

    /// Sharding scenario 98: a message that the transport refuses is an event that names the node, the kind and the
    /// reason.
    #[tokio::test]
    async fn scenario_98_a_refused_control_message_is_an_event() {
        let network = MemoryNetwork::new();
        let peer: UniqueAddress = "b:1#2".parse().unwrap();
        let node = network.node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let lane = ControlLane::new(EntityTypeName::new("Echo").expect("valid"), node.clone());
        let message = || ("greylag.sharding.region", Bytes::from(vec![0; 200_000]));
        assert_eq!(lane.send(&peer, message(), None), Ok(()));
        node.quarantine(&peer, QuarantineReason::Manual, false);
        let (to, error) = (peer.clone(), SendError::Quarantined);
        let refused = Event::ControlRefused { to, message: "greylag.sharding.region", error };
        assert_eq!(lane.send(&peer, message(), None), Err(refused));
    }

    /// Keeps the messages that arrive.
    struct Inbox(tokio::sync::mpsc::UnboundedSender<Inbound>);

    impl Receiver for Inbox {
        fn receive(&self, message: Inbound) {
            self.0.send(message).ok();
        }
    }

    /// Sharding scenario 98: a long message reaches the other node whole, in frames that fit its lane.
    #[tokio::test]
    async fn scenario_98_a_long_control_message_arrives_in_frames_of_at_most_64_kib() {
        let network = MemoryNetwork::new();
        let (sender, mut inbox) = tokio::sync::mpsc::unbounded_channel();
        let peer: UniqueAddress = "b:1#2".parse().unwrap();
        let other = network.node(peer.clone(), Arc::new(Registry::new()));
        let name = EntityTypeName::new("Echo").expect("valid");
        other.register(&control_path(&name), Arc::new(Inbox(sender)));
        let node = network.node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let sent = Bytes::from((0..200_000_u32).map(|n| n as u8).collect::<Vec<_>>());
        let manifest = crate::wire::MANIFESTS[0];
        assert_eq!(ControlLane::new(name, node).send(&peer, (manifest, sent.clone()), None), Ok(()));
        let (mut joiner, mut frames) = (Joiner::default(), 0);
        let whole = loop {
            let wait = tokio::time::timeout(Duration::from_secs(60), inbox.recv());
            let Inbound { from, payload, .. } = wait.await.expect("the rest arrives").expect("it is registered");
            frames += 1;
            assert!(payload.len() + 512 <= 64 * 1024, "{} bytes and a header", payload.len());
            if let Some(whole) = joiner.take(&from, payload).expect("it is a piece") {
                break whole;
            }
        };
        assert_eq!((whole, frames), ((manifest, sent), 4));
    }

    /// Sharding scenario 98: no frame of a long message is too large for the lane; a frame that is would be an event.
    #[tokio::test]
    async fn scenario_98_a_frame_beyond_the_limit_of_the_transport_is_an_event() {
        let peer: UniqueAddress = "b:1#2".parse().unwrap();
        let lane = async |settings: TransportSettings| {
            let transport = GrpcTransport::bind(settings, Arc::new(Registry::new())).await.expect("it listens");
            ControlLane::new(EntityTypeName::new("Echo").expect("valid"), transport)
        };
        let message = || ("greylag.sharding.region", Bytes::from(vec![0; 200_000]));
        let by_default = lane(TransportSettings::test()).await;
        assert_eq!(by_default.send(&peer, message(), None), Ok(()));
        let max = 32 * 1024;
        let narrow = lane(TransportSettings { maximum_control_frame_size: max, ..TransportSettings::test() }).await;
        let refused = narrow.send(&peer, message(), None).unwrap_err();
        let Event::ControlRefused { to, message, error: SendError::TooLarge { size, max: told } } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((to, message, told), (peer.clone(), "greylag.sharding.region", max));
        assert!(size > max, "{size} bytes");
    }
}
