//! Encodes and decodes messages by protobuf.
//!
//! Decoding never panics: an index out of its table, an unknown status or an invalid address makes the whole message
//! unreadable. Allocations are bounded by the size of the bytes. Source: cluster T36; the schema is
//! `proto/cluster.proto`.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use greylag_core::{DecodeError, NodeAddress, Uid, UniqueAddress};
use prost::Message as _;

use crate::error::JoinRejection;
use crate::generated as pb;
use crate::gossip::reachability::{Reachability, Record, Status};
use crate::gossip::seen::Seen;
use crate::gossip::state::Gossip;
use crate::gossip::version::VectorVersion;
use crate::membership::app_version::AppVersion;
use crate::membership::member::{DEFAULT_DC, Member, MemberStatus};
use crate::membership::members::Members;
use crate::membership::message::{Island, Message};
use crate::membership::places::Places;
use crate::membership::view::Tombstone;
use crate::singleton::{Kind, ProxyMessage, SingletonMessage};

/// The manifest of [`SingletonMessage`].
pub(crate) const SINGLETON: &str = "cluster.singleton";
/// The manifest of [`ProxyMessage`].
pub(crate) const SINGLETON_PROXY: &str = "cluster.singleton-proxy";

/// Limit of a host's name, in bytes; a boot id and a namespace have about 60.
const MAX_HOST_ID: usize = 256;

/// The fault of a message; the caller adds its manifest.
type Malformed = &'static str;

impl Message {
    /// Encodes the message; its manifest travels beside it.
    pub fn to_bytes(&self) -> Bytes {
        encode(self)
    }

    /// Decodes the bytes of [`Message::to_bytes`], by the message's [`Message::manifest`].
    ///
    /// # Errors
    /// The manifest is unknown, or the bytes are no such message.
    pub fn from_bytes(manifest: &str, bytes: Bytes) -> Result<Self, DecodeError> {
        decode(manifest, bytes)
    }
}

/// Writes a message.
pub(crate) fn encode(message: &Message) -> Bytes {
    let bytes = match message {
        Message::InitJoin { to, protocol, config } => pb::InitJoin {
            to_host: to.host().to_owned(),
            to_port: to.port().into(),
            protocol: *protocol,
            config: config.clone().into_iter().collect(),
        }
        .encode_to_vec(),
        Message::InitJoinAck { cluster_id, config } => {
            pb::InitJoinAck { cluster_id: id_bytes(*cluster_id), config: config.clone().into_iter().collect() }
                .encode_to_vec()
        }
        Message::InitJoinNack => pb::InitJoinNack {}.encode_to_vec(),
        Message::Join { roles, app_version, protocol, cluster_id, data_center, host_id } => pb::Join {
            roles: roles.clone(),
            app_version: app_version.as_str().to_owned(),
            protocol: *protocol,
            cluster_id: id_bytes(*cluster_id),
            data_center: if **data_center == *DEFAULT_DC { String::new() } else { data_center.to_string() },
            host_id: host_id.as_deref().unwrap_or_default().to_owned(),
        }
        .encode_to_vec(),
        Message::JoinDeferred { retry_after } => {
            pb::JoinDeferred { retry_after_ms: retry_after.as_millis() as u64 }.encode_to_vec()
        }
        Message::JoinRejected { reason } => rejection(reason).encode_to_vec(),
        Message::Welcome { to, gossip } => {
            pb::Welcome { to: Some(node(to)), gossip: Some(encode_gossip(gossip)) }.encode_to_vec()
        }
        Message::GossipEnvelope { to, gossip, suspect } => {
            pb::GossipEnvelope { to: Some(node(to)), gossip: Some(encode_gossip(gossip)), suspect: *suspect }
                .encode_to_vec()
        }
        Message::GossipStatus { to, version, seen_digest, suspect } => pb::GossipStatus {
            to: Some(node(to)),
            nodes: version.iter().map(|(address, _)| node(address)).collect(),
            counts: version.iter().map(|(_, count)| count).collect(),
            seen_digest: *seen_digest,
            suspect: *suspect,
        }
        .encode_to_vec(),
        Message::ExitingConfirmed { clean } => pb::ExitingConfirmed { clean: *clean }.encode_to_vec(),
        Message::IslandProbe { asked, nonce } => {
            pb::IslandProbe { cluster_id: id_bytes(asked.cluster_id), size: asked.size, nonce: *nonce }.encode_to_vec()
        }
        Message::IslandProbeAnswer { asked, own, nonce } => {
            pb::IslandProbeAnswer { asked: Some(island(*asked)), own: Some(island(*own)), nonce: *nonce }
                .encode_to_vec()
        }
        Message::Heartbeat { to, seq } | Message::HeartbeatRsp { to, seq } => {
            pb::Heartbeat { to: Some(node(to)), seq: *seq }.encode_to_vec()
        }
    };
    bytes.into()
}

/// Reads a message.
pub(crate) fn decode(manifest: &str, bytes: Bytes) -> Result<Message, DecodeError> {
    parse(manifest, bytes).map_err(|error| match error {
        Wire::Unknown => {
            DecodeError::UnknownManifest { codec: greylag_core::CodecId::INTERNAL, manifest: manifest.to_owned() }
        }
        Wire::Protobuf(error) => DecodeError::malformed(manifest, error),
        Wire::Malformed(why) => DecodeError::malformed(manifest, why),
    })
}

enum Wire {
    Unknown,
    Protobuf(prost::DecodeError),
    Malformed(Malformed),
}

impl From<prost::DecodeError> for Wire {
    fn from(error: prost::DecodeError) -> Self {
        Self::Protobuf(error)
    }
}

impl From<Malformed> for Wire {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

fn parse(manifest: &str, bytes: Bytes) -> Result<Message, Wire> {
    Ok(match manifest {
        "cluster.init-join" => {
            let pb::InitJoin { to_host, to_port, protocol, config } = pb::InitJoin::decode(bytes)?;
            Message::InitJoin { to: address(&to_host, to_port)?, protocol, config: config.into_iter().collect() }
        }
        "cluster.init-join-ack" => {
            let pb::InitJoinAck { cluster_id, config } = pb::InitJoinAck::decode(bytes)?;
            Message::InitJoinAck { cluster_id: id(&cluster_id)?, config: config.into_iter().collect() }
        }
        "cluster.init-join-nack" => Message::InitJoinNack,
        "cluster.join" => {
            let join = pb::Join::decode(bytes)?;
            let pb::Join { roles, app_version, protocol, cluster_id, data_center, host_id } = join;
            let data_center = if data_center.is_empty() { DEFAULT_DC } else { &data_center }.into();
            let app_version = version_text(&app_version)?;
            let (cluster_id, host_id) = (id(&cluster_id)?, read_host(&host_id)?);
            Message::Join { roles, app_version, protocol, cluster_id, data_center, host_id }
        }
        "cluster.join-deferred" => {
            let retry_after = Duration::from_millis(pb::JoinDeferred::decode(bytes)?.retry_after_ms);
            Message::JoinDeferred { retry_after }
        }
        "cluster.join-rejected" => Message::JoinRejected { reason: read_rejection(&pb::JoinRejected::decode(bytes)?)? },
        "cluster.welcome" => {
            let pb::Welcome { to, gossip } = pb::Welcome::decode(bytes)?;
            Message::Welcome { to: read_node(to.as_ref())?, gossip: read_gossip(gossip)? }
        }
        "cluster.gossip" => {
            let pb::GossipEnvelope { to, gossip, suspect } = pb::GossipEnvelope::decode(bytes)?;
            Message::GossipEnvelope { to: read_node(to.as_ref())?, gossip: read_gossip(gossip)?, suspect }
        }
        "cluster.gossip-status" => read_status(pb::GossipStatus::decode(bytes)?)?,
        "cluster.exiting-confirmed" => Message::ExitingConfirmed { clean: pb::ExitingConfirmed::decode(bytes)?.clean },
        "cluster.island-probe" => {
            let pb::IslandProbe { cluster_id, size, nonce } = pb::IslandProbe::decode(bytes)?;
            Message::IslandProbe { asked: Island { cluster_id: id(&cluster_id)?, size }, nonce }
        }
        "cluster.island-probe-answer" => {
            let pb::IslandProbeAnswer { asked, own, nonce } = pb::IslandProbeAnswer::decode(bytes)?;
            Message::IslandProbeAnswer { asked: read_island(asked.as_ref())?, own: read_island(own.as_ref())?, nonce }
        }
        "cluster.heartbeat" => {
            let pb::Heartbeat { to, seq } = pb::Heartbeat::decode(bytes)?;
            Message::Heartbeat { to: read_node(to.as_ref())?, seq }
        }
        "cluster.heartbeat-rsp" => {
            let pb::Heartbeat { to, seq } = pb::Heartbeat::decode(bytes)?;
            Message::HeartbeatRsp { to: read_node(to.as_ref())?, seq }
        }
        _ => return Err(Wire::Unknown),
    })
}

/// Writes a message between singleton managers.
pub(crate) fn encode_singleton(message: &SingletonMessage) -> Bytes {
    use pb::singleton::Kind as Pb;
    let kind = match message.kind {
        Kind::HandOverToMe => Pb::HandOverToMe,
        Kind::HandOverInProgress => Pb::HandOverInProgress,
        Kind::HandOverDone => Pb::HandOverDone,
        Kind::TakeOverFromMe => Pb::TakeOverFromMe,
    };
    let SingletonMessage { from, to, attempt, .. } = message;
    let message = pb::Singleton { kind: kind.into(), to: Some(node(to)), attempt: *attempt, from: Some(node(from)) };
    message.encode_to_vec().into()
}

/// Reads a message between singleton managers.
pub(crate) fn decode_singleton(bytes: Bytes) -> Result<SingletonMessage, DecodeError> {
    use pb::singleton::Kind as Pb;
    let malformed = |why: &dyn std::fmt::Display| DecodeError::malformed(SINGLETON, why);
    let message = pb::Singleton::decode(bytes).map_err(|error| malformed(&error))?;
    let kind = match message.kind() {
        Pb::HandOverToMe => Kind::HandOverToMe,
        Pb::HandOverInProgress => Kind::HandOverInProgress,
        Pb::HandOverDone => Kind::HandOverDone,
        Pb::TakeOverFromMe => Kind::TakeOverFromMe,
        Pb::Unknown => return Err(malformed(&"unknown kind")),
    };
    let node = |node: Option<&pb::Node>| read_node(node).map_err(|why| malformed(&why));
    let (from, to) = (node(message.from.as_ref())?, node(message.to.as_ref())?);
    Ok(SingletonMessage { kind, from, to, attempt: message.attempt })
}

/// Writes a message between a proxy and a node that may run the instance.
pub(crate) fn encode_proxy(message: ProxyMessage) -> Bytes {
    use pb::singleton_proxy::Kind as Pb;
    let (kind, instance) = match message {
        ProxyMessage::Identify => (Pb::Identify, 0),
        ProxyMessage::Here { instance } => (Pb::Here, instance),
        ProxyMessage::NotHere { instance } => (Pb::NotHere, instance.unwrap_or(0)),
    };
    pb::SingletonProxy { kind: kind.into(), instance }.encode_to_vec().into()
}

/// Reads a message between a proxy and a node that may run the instance.
pub(crate) fn decode_proxy(bytes: Bytes) -> Result<ProxyMessage, DecodeError> {
    use pb::singleton_proxy::Kind as Pb;
    let malformed = |why: &dyn std::fmt::Display| DecodeError::malformed(SINGLETON_PROXY, why);
    let message = pb::SingletonProxy::decode(bytes).map_err(|error| malformed(&error))?;
    let instance = Some(message.instance).filter(|instance| *instance != 0);
    match (message.kind(), instance) {
        (Pb::Identify, _) => Ok(ProxyMessage::Identify),
        (Pb::Here, Some(instance)) => Ok(ProxyMessage::Here { instance }),
        (Pb::Here, None) => Err(malformed(&"an instance without a number")),
        (Pb::NotHere, instance) => Ok(ProxyMessage::NotHere { instance }),
        (Pb::Unknown, _) => Err(malformed(&"unknown kind")),
    }
}

impl Gossip {
    /// The size of this state on the wire in bytes, uncompressed.
    pub fn encoded_len(&self) -> usize {
        encode_gossip(self).encoded_len()
    }
}

// --- parts of messages --------------------------------------------------------------------------

fn node(address: &UniqueAddress) -> pb::Node {
    let uid = address.uid().get();
    pb::Node { host: address.address().host().to_owned(), port: address.address().port().into(), uid }
}

fn address(host: &str, port: u32) -> Result<NodeAddress, Malformed> {
    let port = u16::try_from(port).map_err(|_| "a port above 65535")?;
    NodeAddress::new(host, port).map_err(|_| "not a node address")
}

fn read_node(node: Option<&pb::Node>) -> Result<UniqueAddress, Malformed> {
    let node = node.ok_or("a node is missing")?;
    let uid = Uid::new(node.uid).ok_or("a uid is 0")?;
    Ok(UniqueAddress::new(address(&node.host, node.port)?, uid))
}

fn island(island: Island) -> pb::Island {
    pb::Island { cluster_id: id_bytes(island.cluster_id), size: island.size }
}

fn read_island(island: Option<&pb::Island>) -> Result<Island, Malformed> {
    let island = island.ok_or("an island is missing")?;
    Ok(Island { cluster_id: id(&island.cluster_id)?, size: island.size })
}

fn id_bytes(id: u128) -> Bytes {
    if id == 0 { Bytes::new() } else { Bytes::copy_from_slice(&id.to_be_bytes()) }
}

fn id(bytes: &[u8]) -> Result<u128, Malformed> {
    match bytes.len() {
        0 => Ok(0),
        16 => Ok(bytes.iter().fold(0, |id, byte| (id << 8) | u128::from(*byte))),
        _ => Err("a cluster id has not 16 bytes"),
    }
}

/// Reads a member's host, whose length is bounded: it is kept and gossiped for as long as the member is.
fn read_host(text: &str) -> Result<Option<Arc<str>>, Malformed> {
    match text.len() {
        0 => Ok(None),
        1..=MAX_HOST_ID => Ok(Some(text.into())),
        _ => Err("a host id of more than 256 bytes"),
    }
}

fn version_text(text: &str) -> Result<AppVersion, Malformed> {
    text.parse().map_err(|_| "not an application version")
}

fn rejection(reason: &JoinRejection) -> pb::JoinRejected {
    use pb::join_rejected::Reason;
    let (reason, our_protocol, their_protocol) = match reason {
        JoinRejection::Removed => (Reason::Removed, 0, 0),
        JoinRejection::PreparingForShutdown => (Reason::PreparingForShutdown, 0, 0),
        JoinRejection::IncompatibleProtocol { ours, theirs } => (Reason::IncompatibleProtocol, *ours, *theirs),
        JoinRejection::WrongCluster => (Reason::WrongCluster, 0, 0),
    };
    pb::JoinRejected { reason: reason.into(), our_protocol, their_protocol }
}

fn read_rejection(message: &pb::JoinRejected) -> Result<JoinRejection, Malformed> {
    use pb::join_rejected::Reason;
    Ok(match message.reason() {
        Reason::Removed => JoinRejection::Removed,
        Reason::PreparingForShutdown => JoinRejection::PreparingForShutdown,
        Reason::IncompatibleProtocol => {
            JoinRejection::IncompatibleProtocol { ours: message.our_protocol, theirs: message.their_protocol }
        }
        Reason::WrongCluster => JoinRejection::WrongCluster,
        Reason::Unknown => return Err("unknown reason"),
    })
}

fn read_status(status: pb::GossipStatus) -> Result<Message, Malformed> {
    if status.nodes.len() != status.counts.len() {
        return Err("nodes and counts differ in number");
    }
    let nodes: Vec<UniqueAddress> = status.nodes.iter().map(|n| read_node(Some(n))).collect::<Result<_, _>>()?;
    Ok(Message::GossipStatus {
        to: read_node(status.to.as_ref())?,
        version: nodes.into_iter().zip(status.counts).collect::<VectorVersion>().into(),
        seen_digest: status.seen_digest,
        suspect: status.suspect,
    })
}

// --- the state ----------------------------------------------------------------------------------

/// The processes that a state names: its members in their order, then all others.
struct Nodes<'a> {
    members: &'a Places,
    others: Table<UniqueAddress>,
}

impl Nodes<'_> {
    fn place(&mut self, address: &UniqueAddress) -> u32 {
        let member = self.members.find(address).map(|place| place as u32);
        member.unwrap_or_else(|| self.members.len() as u32 + self.others.place(address))
    }

    fn encode(&self) -> Vec<pb::Node> {
        self.members.addresses().chain(&self.others.values).map(node).collect()
    }
}

/// Assigns each distinct value its place in a table.
struct Table<T> {
    index: BTreeMap<T, u32>,
    values: Vec<T>,
}

impl<T: Ord + Clone> Table<T> {
    fn new() -> Self {
        Self { index: BTreeMap::new(), values: Vec::new() }
    }

    fn place<Q>(&mut self, value: &Q) -> u32
    where
        T: Borrow<Q>,
        Q: Ord + ToOwned<Owned = T> + ?Sized,
    {
        if let Some(place) = self.index.get(value) {
            return *place;
        }
        let place = self.values.len() as u32;
        self.index.insert(value.to_owned(), place);
        self.values.push(value.to_owned());
        place
    }
}

fn encode_gossip(gossip: &Gossip) -> pb::Gossip {
    let mut nodes = Nodes { members: gossip.members.places(), others: Table::new() };
    let mut roles = Table::new();
    let mut app_versions = Table::new();
    let mut hosts: Table<String> = Table::new();
    let mut host = |id: &Option<Arc<str>>| id.as_deref().map_or(0, |id| hosts.place(id) + 1);
    let members = (0..)
        .zip(&gossip.members)
        .map(|(place, member)| pb::Member {
            node: place,
            up_number_plus_one: if member.up_number == Member::NOT_UP { 0 } else { member.up_number.saturating_add(1) },
            status: encode_status(member.status).into(),
            dead: member.dead,
            roles: member.roles.iter().map(|role| roles.place(role.as_str())).collect(),
            app_version: app_versions.place(member.app_version.as_str()),
            host_plus_one: host(&member.host_id),
        })
        .collect();
    let rows = gossip
        .reachability
        .versions()
        .iter()
        .map(|(observer, version)| {
            let row = gossip.reachability.rows().get(observer);
            let records = row.into_iter().flatten().map(|(subject, record)| pb::Record {
                subject: nodes.place(subject),
                status: encode_reachable(record.status).into(),
                version: record.version,
            });
            let records = records.collect();
            pb::Row { observer: nodes.place(observer), version: *version, records }
        })
        .collect();
    let seen = gossip.seen.iter().map(|address| nodes.place(address)).collect();
    let versions =
        gossip.version.iter().map(|(address, count)| pb::Version { node: nodes.place(address), count }).collect();
    let tombstones = gossip
        .tombstones
        .iter()
        .map(|(address, tombstone)| pb::Tombstone {
            node: nodes.place(address),
            wall_ms: tombstone.wall_ms,
            clean: tombstone.clean,
            dead: tombstone.dead,
            host_plus_one: host(&tombstone.host_id),
        })
        .collect();
    pb::Gossip {
        cluster_id: id_bytes(gossip.cluster_id),
        nodes: nodes.encode(),
        roles: roles.values,
        app_versions: app_versions.values,
        members,
        seen,
        rows,
        versions,
        tombstones,
        hosts: hosts.values,
    }
}

fn at<T>(table: &[T], place: u32) -> Result<&T, Malformed> {
    table.get(place as usize).ok_or("an index is outside of its table")
}

fn read_gossip(gossip: Option<pb::Gossip>) -> Result<Arc<Gossip>, Malformed> {
    let gossip = gossip.ok_or("the state is missing")?;
    let nodes: Vec<UniqueAddress> = gossip.nodes.iter().map(|n| read_node(Some(n))).collect::<Result<_, _>>()?;
    let app_versions: Vec<AppVersion> =
        gossip.app_versions.iter().map(|text| version_text(text)).collect::<Result<_, _>>()?;
    let hosts: Vec<Option<Arc<str>>> = gossip.hosts.iter().map(|text| read_host(text)).collect::<Result<_, _>>()?;
    let host = |plus_one: u32| plus_one.checked_sub(1).map_or(Ok(None), |place| at(&hosts, place).cloned());
    let mut members: Vec<Member> = Vec::with_capacity(gossip.members.len());
    let mut before: Option<&pb::Member> = None;
    for member in &gossip.members {
        let address = at(&nodes, member.node)?.clone();
        let app_version = at(&app_versions, member.app_version)?.clone();
        // Share the roles of the member before if they are equal, as they mostly are.
        let like = members.last().filter(|_| before.is_some_and(|before| before.roles == member.roles));
        let mut read = match like {
            Some(like) => Member { address, app_version, ..like.clone() },
            None => {
                let roles = member.roles.iter().map(|place| at(&gossip.roles, *place).cloned());
                Member::joining(address, Arc::new(roles.collect::<Result<_, _>>()?), app_version)
            }
        };
        before = Some(member);
        read.up_number = member.up_number_plus_one.checked_sub(1).unwrap_or(Member::NOT_UP);
        read.status = read_member_status(member.status())?;
        read.dead = member.dead;
        read.host_id = host(member.host_plus_one)?;
        members.push(read);
    }
    let mut rows = BTreeMap::new();
    let mut row_versions = BTreeMap::new();
    for row in &gossip.rows {
        let observer = at(&nodes, row.observer)?.clone();
        let mut records = BTreeMap::new();
        for record in &row.records {
            let status = read_reachable(record.status())?;
            records.insert(at(&nodes, record.subject)?.clone(), Record { status, version: record.version });
        }
        rows.insert(observer.clone(), records);
        row_versions.insert(observer, row.version);
    }
    let members: Members = members.into();
    let mut seen = Seen::none_of(members.places());
    let mut strangers = Vec::new();
    for place in &gossip.seen {
        let address = at(&nodes, *place)?;
        // Keep non-members among the seen: they break an invariant, which the machine repairs and counts (cluster M4).
        if members.contains_key(address) {
            seen.insert(address.clone());
        } else {
            strangers.push(address.clone());
        }
    }
    seen.extend(strangers);
    let mut versions = Vec::new();
    for version in &gossip.versions {
        versions.push((at(&nodes, version.node)?.clone(), version.count));
    }
    let mut tombstones = BTreeMap::new();
    for tombstone in &gossip.tombstones {
        let pb::Tombstone { wall_ms, clean, dead, node, host_plus_one } = *tombstone;
        let tombstone = Tombstone { wall_ms, clean, dead, host_id: host(host_plus_one)? };
        tombstones.insert(at(&nodes, node)?.clone(), tombstone);
    }
    Ok(Arc::new(Gossip {
        members,
        seen,
        reachability: Reachability::from_parts(rows, row_versions).into(),
        version: versions.into_iter().collect::<VectorVersion>().into(),
        tombstones: tombstones.into(),
        cluster_id: id(&gossip.cluster_id)?,
    }))
}

fn encode_status(status: MemberStatus) -> pb::Status {
    match status {
        MemberStatus::Joining => pb::Status::Joining,
        MemberStatus::WeaklyUp => pb::Status::WeaklyUp,
        MemberStatus::Up => pb::Status::Up,
        MemberStatus::PreparingForShutdown => pb::Status::PreparingForShutdown,
        MemberStatus::ReadyForShutdown => pb::Status::ReadyForShutdown,
        MemberStatus::Leaving => pb::Status::Leaving,
        MemberStatus::Exiting => pb::Status::Exiting,
        MemberStatus::Down => pb::Status::Down,
    }
}

fn read_member_status(status: pb::Status) -> Result<MemberStatus, Malformed> {
    let known = MemberStatus::ALL.into_iter().find(|known| encode_status(*known) == status);
    known.ok_or("unknown member status")
}

fn encode_reachable(status: Status) -> pb::Reachable {
    match status {
        Status::Reachable => pb::Reachable::Reachable,
        Status::Unreachable => pb::Reachable::Unreachable,
        Status::Terminated => pb::Reachable::Terminated,
    }
}

fn read_reachable(status: pb::Reachable) -> Result<Status, Malformed> {
    let known = [Status::Reachable, Status::Unreachable, Status::Terminated];
    known.into_iter().find(|known| encode_reachable(*known) == status).ok_or("unknown reachability")
}

#[cfg(test)]
mod tests;
