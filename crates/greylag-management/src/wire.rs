//! Converts domain types to protobuf. The other direction is not needed: requests have only addresses.

use std::collections::{BTreeMap, BTreeSet};

use greylag_cluster::{ClusterEvent, HeldAddress, Member, MemberStatus, MembershipView, Readiness};
use greylag_core::UniqueAddress;
use greylag_transport::TransportStats;

use crate::condition::Condition;
use crate::v1;

/// The members of a view, with the leaders and the oldest members, in all and by role.
pub(crate) fn members(view: &MembershipView, condition: &Condition, cluster_name: &str) -> v1::MembersReply {
    let roles: BTreeSet<&String> = view.members.iter().flat_map(user_roles).collect();
    let oldest = |role| view.oldest(role).map(|member| member.address.to_string());
    let role_leaders = view.role_leaders.iter().filter(|(role, _)| roles.contains(role));
    v1::MembersReply {
        self_address: view.self_address.address().to_string(),
        self_uid: view.self_address.uid().get(),
        cluster_name: cluster_name.to_owned(),
        cluster_id: cluster_id(view.cluster_id),
        members: view.members.iter().map(|one| member(one, view, condition)).collect(),
        leader: view.leader.as_ref().map(ToString::to_string).unwrap_or_default(),
        role_leaders: role_leaders.map(|(role, leader)| (role.clone(), leader.to_string())).collect(),
        oldest: oldest(None).unwrap_or_default(),
        role_oldest: roles.iter().filter_map(|role| Some(((*role).clone(), oldest(Some(role))?))).collect(),
        converged: view.converged,
        tombstones: view.tombstones.len() as u64,
    }
}

fn user_roles(member: &Member) -> impl Iterator<Item = &String> {
    member.roles.iter().filter(|role| !role.starts_with("dc-"))
}

fn cluster_id(id: u128) -> String {
    if id == 0 { String::new() } else { format!("{id:032x}") }
}

fn member(member: &Member, view: &MembershipView, condition: &Condition) -> v1::Member {
    v1::Member {
        address: member.address.address().to_string(),
        uid: member.address.uid().get(),
        status: status(member.status).into(),
        roles: user_roles(member).cloned().collect(),
        up_number: (member.up_number != Member::NOT_UP).then_some(member.up_number),
        app_version: member.app_version.to_string(),
        data_center: member.data_center.to_string(),
        unreachable: view.unreachable.contains(&member.address),
        unreachable_by: strings(condition.observers_of(&member.address)),
        dead: member.dead,
    }
}

fn strings<'a>(addresses: impl IntoIterator<Item = &'a UniqueAddress>) -> Vec<String> {
    addresses.into_iter().map(ToString::to_string).collect()
}

fn status(status: MemberStatus) -> v1::Status {
    match status {
        MemberStatus::Joining => v1::Status::Joining,
        MemberStatus::WeaklyUp => v1::Status::WeaklyUp,
        MemberStatus::Up => v1::Status::Up,
        MemberStatus::PreparingForShutdown => v1::Status::PreparingForShutdown,
        MemberStatus::ReadyForShutdown => v1::Status::ReadyForShutdown,
        MemberStatus::Leaving => v1::Status::Leaving,
        MemberStatus::Exiting => v1::Status::Exiting,
        MemberStatus::Down => v1::Status::Down,
    }
}

/// The problems of node and cluster, and the facts that they were derived from. Source: cluster M36.
pub(crate) fn health(
    view: &MembershipView,
    condition: &Condition,
    readiness: Readiness,
    stats: &TransportStats,
) -> v1::HealthReply {
    let mut problems = problems(view, condition);
    // Reasons of the layers above; those of the cluster are among the problems already.
    let others: Vec<_> = readiness.not_ready.iter().filter(|reason| !problems.contains(reason)).cloned().collect();
    problems.extend(others);
    let mut dead_letters = BTreeMap::new();
    for (key, count) in &stats.dead_letters {
        *dead_letters.entry(key.reason.to_string()).or_default() += count;
    }
    let unreachable = view.unreachable.iter().map(|member| v1::Unreachable {
        member: member.to_string(),
        observers: strings(condition.observers_of(member)),
    });
    let accusations = condition
        .accusations
        .iter()
        .map(|(observer, subject)| v1::Accusation { observer: observer.to_string(), subject: subject.to_string() });
    v1::HealthReply {
        healthy: problems.is_empty(),
        problems,
        initialized: view.self_status().is_some(),
        self_status: view.self_status().map_or(v1::Status::Unknown, status).into(),
        leader: view.leader.as_ref().map(ToString::to_string).unwrap_or_default(),
        converged: view.converged,
        accusations: accusations.collect(),
        unseen: strings(&condition.unseen),
        unreachable: unreachable.collect(),
        foreign_cluster: cluster_id(condition.foreign_cluster.unwrap_or_default()),
        self_suspect: view.self_suspect,
        dead_letters: dead_letters.into_iter().collect(),
        ready: readiness.is_ready(),
        not_ready: readiness.not_ready,
        degraded: readiness.degraded,
    }
}

/// The problems as sentences, the worst first. A node that converges within the next second is well, so an unconverged
/// state is a problem only together with what blocks it.
fn problems(view: &MembershipView, condition: &Condition) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(theirs) = condition.foreign_cluster {
        problems
            .push(format!("another cluster of the same name exists: {theirs:032x}; ours is {:032x}", view.cluster_id));
    }
    for HeldAddress { holder, claimant } in &condition.held_addresses {
        problems.push(format!("{claimant} waits for the removal of {holder}, a member at its address on another host"));
    }
    match view.self_status() {
        None => problems.push("this node is no member of a cluster".to_owned()),
        Some(MemberStatus::Up) => {}
        Some(status) => problems.push(format!("this node is {status}")),
    }
    if view.self_suspect {
        problems.push("this node may have been removed without knowing it; its single writers wait".to_owned());
    }
    if view.self_status().is_some() && view.leader.is_none() {
        problems.push("there is no leader".to_owned());
    }
    for member in &view.unreachable {
        let observers = strings(condition.observers_of(member));
        let by = if observers.is_empty() { String::new() } else { format!(" to {}", observers.join(", ")) };
        problems.push(format!("{member} is unreachable{by}"));
    }
    if !view.converged && view.unreachable.is_empty() && !condition.unseen.is_empty() {
        problems
            .push(format!("not converged: the state was not seen yet by {}", strings(&condition.unseen).join(", ")));
    }
    problems
}

/// The counters of the transport.
pub(crate) fn counters(stats: TransportStats) -> v1::CountersReply {
    let letters = stats.dead_letters.into_iter().map(|(key, count)| v1::DeadLetters {
        reason: key.reason.to_string(),
        lane: key.lane.map(|lane| lane.to_string()).unwrap_or_default(),
        peer: key.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        count,
    });
    v1::CountersReply {
        sent_envelopes: stats.sent_envelopes,
        sent_frames: stats.sent_frames,
        sent_bytes: stats.sent_bytes,
        received_envelopes: stats.received_envelopes,
        received_frames: stats.received_frames,
        skipped_frames: stats.skipped_frames,
        malformed_frames: stats.malformed_frames,
        dead_letters: letters.collect(),
        certificate_days_left: stats.certificate_days_left,
    }
}

/// One event, for people and programs.
///
/// The kind is the variant's name. An event without fields of its own in this version has only its kind, and a sentence
/// in `text`.
pub(crate) fn event(
    event: &ClusterEvent,
    view: &MembershipView,
    condition: &Condition,
    cluster_name: &str,
) -> v1::WatchEvent {
    let debug = format!("{event:?}");
    let kind = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let mut told = v1::WatchEvent { kind: kind.to_owned(), ..v1::WatchEvent::default() };
    let mut detail = |name: &str, value: String| drop(told.details.insert(name.to_owned(), value));
    let mut concerned: Option<&Member> = None;
    match event {
        ClusterEvent::Snapshot(snapshot) => told.snapshot = Some(members(snapshot, condition, cluster_name)),
        ClusterEvent::MemberRemoved { member, previous_status, clean } => {
            concerned = Some(member);
            detail("previous_status", previous_status.to_string());
            detail("clean", clean.to_string());
        }
        ClusterEvent::MemberJoined(member)
        | ClusterEvent::MemberWeaklyUp(member)
        | ClusterEvent::MemberUp(member)
        | ClusterEvent::MemberPreparingForShutdown(member)
        | ClusterEvent::MemberReadyForShutdown(member)
        | ClusterEvent::MemberLeft(member)
        | ClusterEvent::MemberExited(member)
        | ClusterEvent::MemberDowned(member)
        | ClusterEvent::UnreachableMember(member)
        | ClusterEvent::ReachableMember(member) => concerned = Some(member),
        ClusterEvent::TombstoneClean(address) => detail("address", address.to_string()),
        ClusterEvent::TombstoneAdded { address, clean } => {
            detail("address", address.to_string());
            detail("clean", clean.to_string());
        }
        ClusterEvent::LeaderChanged(leader) => {
            detail("leader", leader.as_ref().map(ToString::to_string).unwrap_or_default());
        }
        ClusterEvent::RoleLeaderChanged { role, leader } => {
            detail("role", role.clone());
            detail("leader", leader.as_ref().map(ToString::to_string).unwrap_or_default());
        }
        ClusterEvent::SeenChanged { converged, seen_by } => {
            detail("converged", converged.to_string());
            detail("seen_by", strings(seen_by.iter()).join(" "));
        }
        ClusterEvent::LocalPause(duration) => detail("duration_ms", duration.as_millis().to_string()),
        ClusterEvent::ThisNodeQuarantined { by, reason } => {
            detail("by", by.to_string());
            detail("reason", format!("{reason:?}"));
        }
        ClusterEvent::DowningDecision(decision) => {
            detail("strategy", decision.strategy.clone());
            detail("verdict", decision.verdict.to_string());
            detail("downed", strings(&decision.downed).join(" "));
            detail("unreachable", strings(&decision.unreachable).join(" "));
            detail("reason", decision.reason.to_string());
        }
        ClusterEvent::ProvenDead { member, how } => {
            detail("address", member.to_string());
            detail("how", format!("{how:?}"));
        }
        ClusterEvent::ForeignClusterDetected { theirs, size } => {
            detail("cluster_id", cluster_id(*theirs));
            detail("size", size.map(|size| size.to_string()).unwrap_or_default());
        }
        ClusterEvent::SingletonStuck { name } => detail("name", name.clone()),
        ClusterEvent::Lagged { missed } => detail("missed", missed.to_string()),
        ClusterEvent::ReachabilityChanged
        | ClusterEvent::SelfDowned
        | ClusterEvent::SelfSuspect
        | ClusterEvent::SelfTrusted
        | ClusterEvent::ClusterShuttingDown => {}
        _ => detail("text", debug.clone()),
    }
    told.member = concerned.map(|one| member(one, view, condition));
    told
}

#[cfg(test)]
mod tests;
