//! Detects other clusters of the same name, which are never merged with.
//!
//! A leader asks every seed node whether it belongs to another cluster. The answer holds both clusters' ids and sizes,
//! and these four numbers of one exchange decide which of the two clusters ends, if the settings want one to end. A
//! node that another cluster asks sends a question of its own, because any process can send a question with any
//! numbers; once its own question is answered, the first exchange decides on its side, too. This node refuses all other
//! messages of a process whose Hello named another cluster.
//!
//! ```text
//! leader --IslandProbe{id, size, nonce}--> each seed node --IslandProbeAnswer{asked, own, nonce}--> leader
//!                                          (of another cluster) --IslandProbe--> leader --IslandProbeAnswer--> it
//! ```
//!
//! Source: cluster M24 (Hello), M25b.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use crate::core::{Effect, LogLevel};
use crate::gossip::state::Gossip;
use crate::membership::event::ClusterEvent;
use crate::membership::health::ForeignCluster;
use crate::membership::message::{Island, Message};

/// The time between two rounds of questions in a young cluster, and between two log lines about one foreign cluster.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two rounds in an older cluster.
const LATER_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a foreign cluster counts as present after the last message from it.
const REMEMBER: Duration = Duration::from_secs(150);
/// Limit of addresses that this node asks because they asked; seed nodes are always asked.
const MOST_PROBED: usize = 256;
/// Limit of foreign clusters in log and events; an operator needs no more to act.
const MOST_CLUSTERS: usize = 16;
/// Limit of remembered addresses whose Hello named a cluster.
const MOST_HELLOS: usize = 10_000;

/// This node's knowledge of other clusters.
#[derive(Debug, Default)]
pub(in crate::core) struct ForeignClusters {
    /// Every seed node that was named to this node.
    seeds: BTreeSet<NodeAddress>,
    /// For each address whose Hello named a cluster: the newest process, and the cluster.
    hellos: BTreeMap<NodeAddress, (UniqueAddress, u128)>,
    /// Whether this node heard of a cluster before it belonged to one: then it never forms one (cluster M24).
    heard_of_cluster: bool,
    leads_since: Option<Instant>,
    probe_at: Option<Instant>,
    met: Option<(Instant, ForeignCluster)>,
    /// When each foreign cluster was last reported, and with which size.
    reported: BTreeMap<u128, (Instant, Option<u32>)>,
    probed: Probed,
}

/// This node's questions to other clusters, by address.
#[derive(Debug, Default)]
struct Probed(BTreeMap<NodeAddress, Asked>);

#[derive(Debug)]
struct Asked {
    at: Instant,
    /// `None` once it was answered.
    nonce: Option<u64>,
    /// The id and size of this node's cluster in the question.
    own: Island,
    /// The exchange that this question only verifies: this node's own island in its answer to the asker, and the
    /// asker's island.
    verifies: Option<(Island, Island)>,
}

impl Probed {
    /// Notes a question that is sent; an earlier one to the same address is void.
    fn ask(&mut self, now: Instant, to: NodeAddress, asked: Asked) {
        self.0.retain(|_, asked| now.saturating_duration_since(asked.at) < REMEMBER);
        self.0.insert(to, asked);
    }

    /// Whether an address that asked may be asked in turn: limited in frequency and in number.
    fn may_ask(&self, now: Instant, address: &NodeAddress) -> bool {
        match self.0.get(address) {
            Some(asked) => now.saturating_duration_since(asked.at) >= PROBE_INTERVAL,
            None => {
                self.0.values().filter(|asked| now.saturating_duration_since(asked.at) < REMEMBER).count() < MOST_PROBED
            }
        }
    }

    /// Takes the first answer to the latest question to this address. Returns the exchange that the question
    /// verifies, if it does; `None` for any other answer.
    fn take_answered(&mut self, by: &NodeAddress, asked: Island, nonce: u64) -> Option<Option<(Island, Island)>> {
        let known = self.0.get_mut(by).filter(|known| known.nonce == Some(nonce) && known.own == asked)?;
        known.nonce = None;
        Some(known.verifies)
    }
}

impl ForeignClusters {
    pub(in crate::core) fn new(seeds: &[NodeAddress]) -> Self {
        Self { seeds: seeds.iter().cloned().collect(), ..Self::default() }
    }

    pub(in crate::core) fn add_seeds(&mut self, seeds: &[NodeAddress]) {
        self.seeds.extend(seeds.iter().cloned());
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Instant> {
        self.probe_at
    }

    /// The foreign cluster that was heard of lately.
    pub(in crate::core) fn met(&self, now: Instant) -> Option<ForeignCluster> {
        self.met.filter(|(at, _)| now.saturating_duration_since(*at) < REMEMBER).map(|(_, met)| met)
    }

    /// Returns the size to report, if this cluster is to be reported now.
    fn note_size(&mut self, now: Instant, cluster: u128, size: Option<u32>) -> Option<Option<u32>> {
        let age = |at: Instant| now.saturating_duration_since(at);
        self.reported.retain(|_, (at, _)| age(*at) < REMEMBER);
        let known = self.reported.get(&cluster).copied();
        let size = size.or(known.and_then(|(_, size)| size));
        let reported_lately = known.is_some_and(|(at, known)| known == size && age(at) < PROBE_INTERVAL);
        if reported_lately || (known.is_none() && self.reported.len() >= MOST_CLUSTERS) {
            return None;
        }
        self.reported.insert(cluster, (now, size));
        Some(size)
    }

    /// Starts or stops the questions of a leader; a new one asks soon, and often at first.
    pub(in crate::core) fn note_leader(&mut self, now: Instant, leads: bool) {
        match (leads, self.leads_since) {
            (true, None) => {
                self.leads_since = Some(now);
                self.probe_at = Some(now + PROBE_INTERVAL);
            }
            (false, Some(_)) => (self.leads_since, self.probe_at) = (None, None),
            _ => {}
        }
    }

    /// The memory for strangers is bounded, and only a leader has questions to ask. Source: cluster M25b.
    pub(in crate::core) fn check_invariants(&self, leads: bool) {
        debug_assert!(self.hellos.len() <= MOST_HELLOS, "Hellos take bounded room");
        debug_assert!(self.reported.len() <= MOST_CLUSTERS, "reports of clusters take bounded room");
        debug_assert!(self.probed.0.len() <= MOST_PROBED + self.seeds.len(), "questions take bounded room");
        debug_assert_eq!(self.leads_since.is_some(), leads, "this machine knows whether this node leads");
        debug_assert_eq!(self.leads_since.is_some(), self.probe_at.is_some(), "a leader asks again");
    }

    fn note_hello(&mut self, peer: &UniqueAddress, cluster_id: Option<u128>) {
        match cluster_id {
            Some(id) => {
                self.hellos.insert(peer.address().clone(), (peer.clone(), id));
                if self.hellos.len() > MOST_HELLOS {
                    // Forget another address than the newest: a process that still runs says Hello again.
                    let other = self.hellos.keys().find(|address| *address != peer.address()).cloned();
                    other.and_then(|address| self.hellos.remove(&address));
                }
            }
            // Forget the cluster of a former process; a Hello without an id keeps what the same process named before.
            _ if self.hellos.get(peer.address()).is_some_and(|(known, _)| known != peer) => {
                self.hellos.remove(peer.address());
            }
            _ => {}
        }
    }
}

/// Asking other clusters, and reporting them.
impl ForeignClusters {
    /// Whether this node heard of a cluster before it belonged to one: then it never forms one (cluster M24).
    pub(in crate::core) fn heard_of_cluster(&self) -> bool {
        self.heard_of_cluster
    }

    /// Notes that a cluster exists, while this node belongs to none.
    pub(in crate::core) fn on_heard_of_cluster(&mut self) {
        self.heard_of_cluster = true;
    }

    /// Notes a Hello, heard by a node that belongs to a cluster or not.
    pub(in crate::core) fn on_hello(&mut self, peer: &UniqueAddress, cluster_id: Option<u128>, belongs: bool) {
        self.note_hello(peer, cluster_id);
        if cluster_id.is_some() && !belongs {
            self.heard_of_cluster = true;
        }
    }

    /// The cluster that this process belongs to, if it is not `own`, this node's.
    pub(in crate::core) fn other_cluster_of(&self, peer: &UniqueAddress, own: u128) -> Option<u128> {
        let (known, id) = self.hellos.get(peer.address())?;
        (known == peer && *id != own).then_some(*id)
    }

    /// Reports another cluster of this name at once, and again every few seconds.
    pub(in crate::core) fn on_met(
        &mut self,
        now: Instant,
        theirs: u128,
        size: Option<u32>,
        own: &Gossip,
        out: &mut Vec<Effect>,
    ) {
        let Some(size) = self.note_size(now, theirs, size) else { return };
        let met = ForeignCluster { cluster_id: theirs, size };
        self.met = Some((now, met));
        let size = met.size.map_or_else(|| "an unknown number of".to_owned(), |size| size.to_string());
        let text = format!(
            "another cluster of this name exists: {theirs:032x} with {size} members, ours is {:032x} with {}; \
             end one of the two (see on_foreign_cluster)",
            own.cluster_id,
            own.members.len()
        );
        out.push(Effect::Log(LogLevel::Error, text));
        out.push(Effect::Publish(ClusterEvent::ForeignClusterDetected { theirs, size: met.size }));
    }

    /// The seed nodes to ask now, all but this node. For `young_for` after this node became the leader it asks often.
    pub(in crate::core) fn on_tick(
        &mut self,
        now: Instant,
        young_for: Duration,
        own: &NodeAddress,
    ) -> Vec<NodeAddress> {
        let (Some(since), Some(due)) = (self.leads_since, self.probe_at) else { return Vec::new() };
        if due > now {
            return Vec::new();
        }
        let young = now.saturating_duration_since(since) < young_for;
        self.probe_at = Some(now + if young { PROBE_INTERVAL } else { LATER_PROBE_INTERVAL });
        self.seeds.iter().filter(|seed| *seed != own).cloned().collect()
    }

    /// Asks which cluster an address belongs to; only the answer to this question counts, and only once.
    pub(in crate::core) fn ask(&mut self, now: Instant, to: NodeAddress, question: Question, out: &mut Vec<Effect>) {
        let Question { own: asked, nonce, verifies } = question;
        self.probed.ask(now, to.clone(), Asked { at: now, nonce: Some(nonce), own: asked, verifies });
        out.push(Effect::Send { to: to.into(), message: Message::IslandProbe { asked, nonce } });
    }

    /// Whether to ask the process in turn that asked this node: the question itself proves nothing, since any process
    /// may claim any size.
    pub(in crate::core) fn asks_in_turn(&self, now: Instant, from: &UniqueAddress, own: Island, asked: Island) -> bool {
        own.cluster_id != asked.cluster_id && self.probed.may_ask(now, from.address())
    }

    /// Handles an answer to a question of this node, which belongs to the cluster `ours`. Returns both clusters as one
    /// exchange shows them, if the answer completes one.
    pub(in crate::core) fn on_answer(
        &mut self,
        from: &UniqueAddress,
        ours: u128,
        asked: Island,
        own: Island,
        nonce: u64,
    ) -> Option<(Island, Island)> {
        let verified = self.probed.take_answered(from.address(), asked, nonce)?;
        if asked.cluster_id != ours || own.cluster_id == asked.cluster_id {
            return None;
        }
        match verified {
            // Use the numbers of one exchange on both sides, so that not both end; if a cluster told two sizes, the
            // smaller counts.
            Some((ours, theirs)) if theirs.cluster_id == own.cluster_id => {
                Some((ours, Island { size: theirs.size.min(own.size), ..theirs }))
            }
            Some(_) => None,
            None => Some((asked, own)),
        }
    }
}

/// A question to another cluster.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Question {
    /// The id and size of this node's cluster.
    pub(in crate::core) own: Island,
    /// The number by which the answer is known.
    pub(in crate::core) nonce: u64,
    /// The exchange that the question only verifies: this node's own island in its answer to the asker, and the asker's
    /// island.
    pub(in crate::core) verifies: Option<(Island, Island)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory for Hellos is bounded in addresses, and always keeps the newest.
    #[test]
    fn hellos_are_remembered_up_to_a_number() {
        let mut clusters = ForeignClusters::default();
        let peer = |number: usize| format!("n{number}:1#1").parse::<UniqueAddress>().unwrap();
        (0..MOST_HELLOS).for_each(|number| clusters.note_hello(&peer(number), Some(7)));
        assert_eq!(clusters.hellos.len(), MOST_HELLOS);
        clusters.note_hello(&peer(MOST_HELLOS), Some(7));
        assert_eq!(clusters.hellos.len(), MOST_HELLOS);
        assert!(clusters.hellos.contains_key(peer(MOST_HELLOS).address()));
    }
}
