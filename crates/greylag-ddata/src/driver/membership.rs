//! The sources of membership.

#[cfg(feature = "cluster")]
mod from_cluster;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use greylag_core::{CodecId, NodeAddress, UniqueAddress};
use greylag_transport::{
    Destination, Envelope, Inbound, Receiver, Recipient, Remoting, TransportEvent, TransportListener,
};
use tokio::sync::{mpsc, watch};

use super::mail::mailboxes;
use crate::api::error::StartError;
use crate::api::settings::ReplicatorSettings;
use crate::membership::replicas::{Replica, ReplicaStatus, Replicas};
use crate::membership::static_membership::{Sign, StaticEffect, StaticMembership};

/// The manifests of a ping and of its answer; both are empty.
const PING: &str = "gl.ddata.ping/1";
const PONG: &str = "gl.ddata.pong/1";

/// A source of membership.
#[derive(Debug)]
pub struct Membership {
    source: Source,
    /// Roles of this node, for sources that know no roles.
    roles: BTreeSet<String>,
}

#[derive(Debug)]
enum Source {
    /// A channel on which the program publishes the members.
    Watch(watch::Receiver<Arc<Replicas>>),
    /// A fixed list, and the addresses to take out of it; the replicator finds out which process runs at each address.
    Static(Vec<NodeAddress>, mpsc::UnboundedReceiver<NodeAddress>),
    /// The cluster publishes the members, and lets the replicator flush before this node is gone.
    #[cfg(feature = "cluster")]
    Cluster(greylag_cluster::Cluster),
}

impl Membership {
    /// A fixed list of peers. Every peer counts as a voter from the start and is unreachable until it is met; a peer
    /// that returns as a new process replaces its former one. Source: ddata I2.
    ///
    /// Messages of another process that claims a peer's address change nothing, unless that process answers a dial of
    /// this node to the address.
    pub fn fixed(peers: impl IntoIterator<Item = NodeAddress>) -> Self {
        Self::fixed_with_handle(peers).1
    }

    /// As [`Self::fixed`], with a handle that takes peers out of the list if they will not come.
    pub fn fixed_with_handle(peers: impl IntoIterator<Item = NodeAddress>) -> (PeersHandle, Self) {
        let (taken_out, receiver) = mpsc::unbounded_channel();
        (PeersHandle { taken_out }, Self::of(Source::Static(peers.into_iter().collect(), receiver)))
    }

    /// The members that the program publishes on `replicas`.
    pub fn watch(replicas: watch::Receiver<Arc<Replicas>>) -> Self {
        Self::of(Source::Watch(replicas))
    }

    /// The members that the program sets through the handle, beginning with `first`.
    pub fn manual(first: Replicas) -> (MembershipHandle, Self) {
        let (sender, receiver) = watch::channel(Arc::new(first));
        (MembershipHandle { sender }, Self::watch(receiver))
    }

    /// The members of a cluster that have all the roles of the replicator's settings. The replicator takes part in the
    /// cluster's orderly shutdown: it flushes after regions and singletons have written their last. Source: ddata I1,
    /// G15.
    #[cfg(feature = "cluster")]
    pub fn from_cluster(cluster: &greylag_cluster::Cluster) -> Self {
        Self::of(Source::Cluster(cluster.clone()))
    }

    /// Sets the roles of this node, for membership that comes from no cluster. Default none.
    #[must_use]
    pub fn with_roles<R: Into<String>>(mut self, roles: impl IntoIterator<Item = R>) -> Self {
        self.roles = roles.into_iter().map(Into::into).collect();
        self
    }

    fn of(source: Source) -> Self {
        Self { source, roles: BTreeSet::new() }
    }

    /// Checks that this node has all roles that the replicator needs. Source: ddata I1.
    pub(super) fn check_roles(&self, required: &BTreeSet<String>) -> Result<(), StartError> {
        let own = match &self.source {
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster) => from_cluster::own_roles(cluster),
            Source::Watch(_) | Source::Static(..) => self.roles.clone(),
        };
        if required.is_subset(&own) {
            return Ok(());
        }
        let (required, own) = (required.iter().cloned().collect(), own.into_iter().collect());
        Err(StartError::RoleMismatch { required, own })
    }

    /// The cluster, if it is the source.
    #[cfg(feature = "cluster")]
    pub(super) fn cluster(&self) -> Option<greylag_cluster::Cluster> {
        match &self.source {
            Source::Cluster(cluster) => Some(cluster.clone()),
            Source::Watch(_) | Source::Static(..) => None,
        }
    }

    fn has_peers_outside_the_cluster(&self) -> bool {
        match self.source {
            Source::Watch(_) | Source::Static(..) => true,
            #[cfg(feature = "cluster")]
            Source::Cluster(_) => false,
        }
    }

    /// Connects the source with a node; the channel ends when the source publishes no more.
    pub(super) fn attach(
        self,
        settings: &ReplicatorSettings,
        remoting: &Arc<dyn Remoting>,
    ) -> watch::Receiver<Arc<Replicas>> {
        if self.has_peers_outside_the_cluster() {
            // Take messages of strangers: peers need not be members of this node's cluster; the replicator itself
            // accepts messages of its peers only (cluster T17).
            let (ordinary, bulk) = mailboxes(&settings.name);
            [ordinary, bulk].iter().for_each(|recipient| remoting.open_to_strangers(&recipient.path, true));
        }
        match self.source {
            Source::Watch(replicas) => replicas,
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster) => from_cluster::follow(&cluster, settings.roles.clone()),
            Source::Static(peers, taken_out) => {
                let own = remoting.self_address().clone();
                let machine = StaticMembership::new(own, peers, settings.unreachable_after, Instant::now());
                let (sender, receiver) = watch::channel(Arc::new(machine.replicas()));
                let recipient = Recipient::new(format!("ddata-peers/{}", settings.name));
                tokio::spawn(watch_peers(machine, recipient, remoting.clone(), taken_out, sender));
                receiver
            }
        }
    }
}

/// Lets a program take peers out of a fixed list.
#[derive(Debug, Clone)]
pub struct PeersHandle {
    taken_out: mpsc::UnboundedSender<NodeAddress>,
}

impl PeersHandle {
    /// Takes the peer at this address out of the list for good: no level counts it any more, the start after a full
    /// stop does not wait for it, and what its process left is pruned. Call this at every node; the machine must not
    /// come back under this address before all nodes were started with another list. An address that is not in the list
    /// is ignored. Source: ddata I2, Z11.
    pub fn removed(&self, peer: &NodeAddress) {
        // Ignore the error: a replicator that has ended waits for no peer.
        drop(self.taken_out.send(peer.clone()));
    }
}

/// Lets a program set the replicas.
#[derive(Debug)]
pub struct MembershipHandle {
    sender: watch::Sender<Arc<Replicas>>,
}

impl MembershipHandle {
    /// Replaces the set of replicas.
    pub fn publish(&self, replicas: Replicas) {
        self.sender.send_replace(Arc::new(replicas));
    }

    /// Adds a process that is joining: it may catch up, and counts for nothing yet. It is taken for reachable, and for
    /// younger than all others.
    pub fn joined(&self, process: UniqueAddress) {
        self.enter(process, ReplicaStatus::Joining);
    }

    /// Makes a process a full member, which counts from now on.
    pub fn up(&self, process: UniqueAddress) {
        self.enter(process, ReplicaStatus::Up);
    }

    /// Marks a process as leaving; it counts until it is removed.
    pub fn leaving(&self, process: &UniqueAddress) {
        self.change(process, |replica| replica.status = ReplicaStatus::Leaving);
    }

    /// Removes a process for good: its messages are dropped, and what it left is pruned.
    pub fn removed(&self, process: &UniqueAddress) {
        self.sender.send_modify(|replicas| {
            let replicas = Arc::make_mut(replicas);
            replicas.others.retain(|replica| replica.address != *process);
            replicas.removed.insert(process.clone());
        });
    }

    /// Marks a process as unreachable.
    pub fn unreachable(&self, process: &UniqueAddress) {
        self.change(process, |replica| replica.reachable = false);
    }

    /// Marks a process as reachable again.
    pub fn reachable(&self, process: &UniqueAddress) {
        self.change(process, |replica| replica.reachable = true);
    }

    /// Sets the status of a process, unless it was removed: a removed process never returns, since a restarted one has
    /// another uid.
    fn enter(&self, process: UniqueAddress, status: ReplicaStatus) {
        self.sender.send_modify(|replicas| {
            if replicas.removed.contains(&process) {
                return;
            }
            let replicas = Arc::make_mut(replicas);
            match replicas.others.iter_mut().find(|replica| replica.address == process) {
                Some(known) => known.status = status,
                None => {
                    let youngest = replicas.others.iter().map(|replica| replica.age).max().unwrap_or(0);
                    let age = youngest.max(replicas.own_age).saturating_add(1);
                    replicas.others.push(Replica { address: process, status, reachable: true, age });
                }
            }
        });
    }

    fn change(&self, process: &UniqueAddress, change: impl FnOnce(&mut Replica)) {
        self.sender.send_modify(|replicas| {
            if let Some(known) = Arc::make_mut(replicas).others.iter_mut().find(|known| known.address == *process) {
                change(known);
            }
        });
    }
}

/// One sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SignOfLife {
    process: UniqueAddress,
    sign: Sign,
    /// Whether the process asked for an answer.
    is_ping: bool,
}

/// Receives signs of life, and queues them.
struct SignReceiver {
    signs: mpsc::Sender<SignOfLife>,
}

impl Receiver for SignReceiver {
    fn receive(&self, message: Inbound) {
        // Ignore a full queue: further signs of life follow.
        let is_ping = message.manifest == PING;
        drop(self.signs.try_send(SignOfLife { process: message.from, sign: Sign::Word, is_ping }));
    }
}

impl TransportListener for SignReceiver {
    fn on_event(&self, event: &mut TransportEvent) {
        // Any process can say Hello under an address; only an answered dial shows which one listens there.
        let (info, sign) = match event {
            TransportEvent::PeerHandshake(info) => (info, Sign::Word),
            TransportEvent::DialAnswered(info) => (info, Sign::AnsweredDial),
            _ => return,
        };
        drop(self.signs.try_send(SignOfLife { process: info.peer.clone(), sign, is_ping: false }));
    }
}

/// Runs the machine of a fixed list until the replicator has ended.
async fn watch_peers(
    mut machine: StaticMembership,
    recipient: Recipient,
    remoting: Arc<dyn Remoting>,
    mut taken_out: mpsc::UnboundedReceiver<NodeAddress>,
    replicas: watch::Sender<Arc<Replicas>>,
) {
    let (sender, mut signs) = mpsc::channel(1_024);
    let receiver = Arc::new(SignReceiver { signs: sender });
    remoting.open_to_strangers(&recipient.path, true);
    remoting.register(&recipient.path, receiver.clone());
    remoting.listen(None, receiver);
    let word = |to: Destination, manifest: &'static str| {
        let envelope = Envelope::new(recipient.clone(), CodecId::PROST, manifest, Bytes::new());
        // Ignore a refused message: the next ping repeats it.
        drop(remoting.send(&to, envelope));
    };
    let mut effects = Vec::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(machine.next_deadline().into()) => {
                machine.on_tick(Instant::now(), &mut effects);
            }
            () = replicas.closed() => break,
            Some(SignOfLife { process, sign, is_ping }) = signs.recv() => {
                if is_ping {
                    word(Destination::Incarnation(process.clone()), PONG);
                }
                machine.on_heard(Instant::now(), &process, sign, &mut effects);
            }
            Some(peer) = taken_out.recv() => machine.on_taken_out(&peer, &mut effects),
        }
        for effect in effects.drain(..) {
            match effect {
                StaticEffect::Ping(address) => word(Destination::Address(address), PING),
                StaticEffect::AskWho(address) => remoting.ask_who(&address),
                StaticEffect::Publish(now) => drop(replicas.send_replace(Arc::new(now))),
            }
        }
    }
    remoting.unregister(&recipient.path);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use greylag_transport::PeerInfo;

    use super::*;

    /// ddata I2: of all transport events only an answered dial tells which process listens at an address.
    #[test]
    fn only_an_answered_dial_identifies_the_listening_process() {
        let (sender, mut signs) = mpsc::channel(9);
        let receiver = SignReceiver { signs: sender };
        let peer: UniqueAddress = "a:1#999".parse().unwrap();
        let (ip, host_id, cluster_id) = (Ipv4Addr::LOCALHOST.into(), None, None);
        let info = |reached| PeerInfo { peer: peer.clone(), ip, reached, host_id: host_id.clone(), cluster_id };
        receiver.on_event(&mut TransportEvent::PeerHandshake(info(false)));
        receiver.on_event(&mut TransportEvent::PeerHandshake(info(true)));
        receiver.on_event(&mut TransportEvent::PeerTerminating(peer.clone()));
        receiver.on_event(&mut TransportEvent::DialAnswered(info(true)));
        drop(receiver);
        let told: Vec<Sign> = std::iter::from_fn(|| signs.try_recv().ok()).map(|found| found.sign).collect();
        assert_eq!(told, [Sign::Word, Sign::Word, Sign::AnsweredDial]);
    }
}
