//! Where a replicator learns of its peers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use greylag_core::{CodecId, NodeAddress, UniqueAddress};
use greylag_transport::{
    Destination, Envelope, Inbound, Receiver, Recipient, Remoting, TransportEvent, TransportListener,
};
use tokio::sync::{mpsc, watch};

use crate::replicas::Replicas;
use crate::settings::ReplicatorSettings;
use crate::static_membership::{StaticEffect, StaticMembership};

/// The manifests of a ping and of its answer; neither has content.
const PING: &str = "gl.ddata.ping/1";
const PONG: &str = "gl.ddata.pong/1";

/// A source of membership.
#[derive(Debug)]
pub struct Membership {
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Somebody publishes.
    Watch(watch::Receiver<Arc<Replicas>>),
    /// A fixed list; the replicator finds out who runs there.
    Static(Vec<NodeAddress>),
    /// The cluster says, and has the replicator flush before this node is gone.
    #[cfg(feature = "cluster")]
    Cluster(greylag_cluster::Cluster, Option<String>),
}

impl Membership {
    /// A fixed list of peers. Every one counts as a voter from the start and is unreachable until it
    /// is met; one that returns as a new process takes the place of the old. Source: ddata I2.
    pub fn fixed(peers: impl IntoIterator<Item = NodeAddress>) -> Self {
        Self { source: Source::Static(peers.into_iter().collect()) }
    }

    /// Whatever is published.
    pub fn watch(replicas: watch::Receiver<Arc<Replicas>>) -> Self {
        Self { source: Source::Watch(replicas) }
    }

    /// What the program says through the handle, beginning with `first`.
    pub fn manual(first: Replicas) -> (MembershipHandle, Self) {
        let (sender, receiver) = watch::channel(Arc::new(first));
        (MembershipHandle { sender }, Self::watch(receiver))
    }

    /// The members of a cluster that have the role, or all. The replicator takes part in the cluster's
    /// orderly shutdown: it flushes after regions and singletons have written their last.
    /// Source: ddata I1, G15.
    #[cfg(feature = "cluster")]
    pub fn from_cluster(cluster: &greylag_cluster::Cluster, role: Option<String>) -> Self {
        Self { source: Source::Cluster(cluster.clone(), role) }
    }

    /// The cluster that the source is, if it is one.
    #[cfg(feature = "cluster")]
    pub(super) fn cluster(&self) -> Option<greylag_cluster::Cluster> {
        match &self.source {
            Source::Cluster(cluster, _) => Some(cluster.clone()),
            Source::Watch(_) | Source::Static(_) => None,
        }
    }

    /// Connects the source with a node; the channel ends when nobody publishes any more.
    pub(super) fn attach(
        self,
        settings: &ReplicatorSettings,
        remoting: &Arc<dyn Remoting>,
    ) -> watch::Receiver<Arc<Replicas>> {
        match self.source {
            Source::Watch(replicas) => replicas,
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster, role) => super::from_cluster::follow(&cluster, role),
            Source::Static(peers) => {
                let own = remoting.self_address().clone();
                let machine = StaticMembership::new(own, peers, settings.unreachable_after, Instant::now());
                let (sender, receiver) = watch::channel(Arc::new(machine.replicas()));
                let recipient = Recipient::new(format!("ddata-peers/{}", settings.name));
                tokio::spawn(watch_peers(machine, recipient, remoting.clone(), sender));
                receiver
            }
        }
    }
}

/// Lets a program say who the replicas are.
#[derive(Debug)]
pub struct MembershipHandle {
    sender: watch::Sender<Arc<Replicas>>,
}

impl MembershipHandle {
    /// From now on these are the replicas.
    pub fn publish(&self, replicas: Replicas) {
        self.sender.send_replace(Arc::new(replicas));
    }
}

/// Signs of life, as they come in.
struct Ear {
    heard: mpsc::Sender<(UniqueAddress, bool)>,
}

impl Receiver for Ear {
    fn receive(&self, message: Inbound) {
        // A lost sign of life is followed by others.
        drop(self.heard.try_send((message.from, message.manifest == PING)));
    }
}

impl TransportListener for Ear {
    fn on_event(&self, event: &mut TransportEvent) {
        if let TransportEvent::PeerHandshake(info) = event {
            drop(self.heard.try_send((info.peer.clone(), false)));
        }
    }
}

/// Runs the machine of a fixed list until nobody listens any more.
async fn watch_peers(
    mut machine: StaticMembership,
    recipient: Recipient,
    remoting: Arc<dyn Remoting>,
    replicas: watch::Sender<Arc<Replicas>>,
) {
    let (heard, mut signs) = mpsc::channel(1_024);
    let ear = Arc::new(Ear { heard });
    remoting.register(&recipient.path, ear.clone());
    remoting.listen(None, ear);
    let word = |to: Destination, manifest: &'static str| {
        let envelope = Envelope::new(recipient.clone(), CodecId::PROST, manifest, Bytes::new());
        // What is refused is said again with the next ping.
        drop(remoting.send(&to, envelope));
    };
    let mut effects = Vec::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(machine.next_deadline().into()) => {
                machine.on_tick(Instant::now(), &mut effects);
            }
            () = replicas.closed() => break,
            Some((process, answer)) = signs.recv() => {
                if answer {
                    word(Destination::Incarnation(process.clone()), PONG);
                }
                machine.on_heard(Instant::now(), &process, &mut effects);
            }
        }
        for effect in effects.drain(..) {
            match effect {
                StaticEffect::Ping(address) => word(Destination::Address(address), PING),
                StaticEffect::Publish(now) => drop(replicas.send_replace(Arc::new(now))),
            }
        }
    }
    remoting.unregister(&recipient.path);
}
