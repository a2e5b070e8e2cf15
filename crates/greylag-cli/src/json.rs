//! The shapes of `--json`. They are a promise (`docs/cli.md`): fields are added, never renamed.

use std::collections::BTreeMap;

use greylag_management::v1;
use serde::Serialize;

/// A status as text: `Up`, `WeaklyUp`.
pub(crate) fn status(status: v1::Status) -> &'static str {
    match status {
        v1::Status::Unknown => "Unknown",
        v1::Status::Joining => "Joining",
        v1::Status::WeaklyUp => "WeaklyUp",
        v1::Status::Up => "Up",
        v1::Status::PreparingForShutdown => "PreparingForShutdown",
        v1::Status::ReadyForShutdown => "ReadyForShutdown",
        v1::Status::Leaving => "Leaving",
        v1::Status::Exiting => "Exiting",
        v1::Status::Down => "Down",
    }
}

/// The text; `None` if it is empty, which on the wire means absent.
fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn sorted<V: Clone>(map: &std::collections::HashMap<String, V>) -> BTreeMap<String, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[derive(Debug, Serialize)]
pub(crate) struct Member {
    /// `host:port#uid`, as other fields name members, and for readers whose numbers are too small for a uid.
    unique: String,
    address: String,
    uid: u64,
    status: &'static str,
    roles: Vec<String>,
    up_number: Option<u32>,
    app_version: String,
    data_center: String,
    unreachable: bool,
    unreachable_by: Vec<String>,
    dead: bool,
}

impl From<&v1::Member> for Member {
    fn from(member: &v1::Member) -> Self {
        Self {
            unique: format!("{}#{}", member.address, member.uid),
            address: member.address.clone(),
            uid: member.uid,
            status: status(member.status()),
            roles: member.roles.clone(),
            up_number: member.up_number,
            app_version: member.app_version.clone(),
            data_center: member.data_center.clone(),
            unreachable: member.unreachable,
            unreachable_by: member.unreachable_by.clone(),
            dead: member.dead,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Members {
    #[serde(rename = "self")]
    itself: String,
    cluster_name: String,
    cluster_id: Option<String>,
    converged: bool,
    leader: Option<String>,
    role_leaders: BTreeMap<String, String>,
    oldest: Option<String>,
    role_oldest: BTreeMap<String, String>,
    tombstones: u64,
    members: Vec<Member>,
}

impl From<&v1::MembersReply> for Members {
    fn from(reply: &v1::MembersReply) -> Self {
        Self {
            itself: format!("{}#{}", reply.self_address, reply.self_uid),
            cluster_name: reply.cluster_name.clone(),
            cluster_id: non_empty(&reply.cluster_id),
            converged: reply.converged,
            leader: non_empty(&reply.leader),
            role_leaders: sorted(&reply.role_leaders),
            oldest: non_empty(&reply.oldest),
            role_oldest: sorted(&reply.role_oldest),
            tombstones: reply.tombstones,
            members: reply.members.iter().map(Member::from).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Unreachable {
    member: String,
    observers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Accusation {
    observer: String,
    subject: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Health {
    healthy: bool,
    problems: Vec<String>,
    initialized: bool,
    self_status: Option<&'static str>,
    self_suspect: bool,
    leader: Option<String>,
    converged: bool,
    accusations: Vec<Accusation>,
    unseen: Vec<String>,
    unreachable: Vec<Unreachable>,
    foreign_cluster: Option<String>,
    dead_letters: BTreeMap<String, u64>,
    ready: bool,
    not_ready: Vec<String>,
    degraded: Vec<String>,
}

impl From<&v1::HealthReply> for Health {
    fn from(reply: &v1::HealthReply) -> Self {
        let accusations = reply.accusations.iter().cloned();
        let unreachable = reply.unreachable.iter().cloned();
        Self {
            healthy: reply.healthy,
            problems: reply.problems.clone(),
            initialized: reply.initialized,
            self_status: reply.initialized.then(|| status(reply.self_status())),
            self_suspect: reply.self_suspect,
            leader: non_empty(&reply.leader),
            converged: reply.converged,
            accusations: accusations.map(|one| Accusation { observer: one.observer, subject: one.subject }).collect(),
            unseen: reply.unseen.clone(),
            unreachable: unreachable.map(|one| Unreachable { member: one.member, observers: one.observers }).collect(),
            foreign_cluster: non_empty(&reply.foreign_cluster),
            dead_letters: sorted(&reply.dead_letters),
            ready: reply.ready,
            not_ready: reply.not_ready.clone(),
            degraded: reply.degraded.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
struct DeadLetters {
    reason: String,
    lane: Option<String>,
    peer: Option<String>,
    count: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Counters {
    sent_envelopes: u64,
    sent_frames: u64,
    sent_bytes: u64,
    received_envelopes: u64,
    received_frames: u64,
    skipped_frames: u64,
    malformed_frames: u64,
    dead_letters: Vec<DeadLetters>,
}

impl From<&v1::CountersReply> for Counters {
    fn from(reply: &v1::CountersReply) -> Self {
        let letters = reply.dead_letters.iter().map(|letters| DeadLetters {
            reason: letters.reason.clone(),
            lane: non_empty(&letters.lane),
            peer: non_empty(&letters.peer),
            count: letters.count,
        });
        Self {
            sent_envelopes: reply.sent_envelopes,
            sent_frames: reply.sent_frames,
            sent_bytes: reply.sent_bytes,
            received_envelopes: reply.received_envelopes,
            received_frames: reply.received_frames,
            skipped_frames: reply.skipped_frames,
            malformed_frames: reply.malformed_frames,
            dead_letters: letters.collect(),
        }
    }
}

/// One line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct Event {
    wall_ms: u64,
    event: String,
    member: Option<Member>,
    snapshot: Option<Members>,
    details: BTreeMap<String, String>,
}

impl From<&v1::WatchEvent> for Event {
    fn from(event: &v1::WatchEvent) -> Self {
        Self {
            wall_ms: event.wall_ms,
            event: event.kind.clone(),
            member: event.member.as_ref().map(Member::from),
            snapshot: event.snapshot.as_ref().map(Members::from),
            details: sorted(&event.details),
        }
    }
}

/// Result of a command that changes something.
#[derive(Debug, Serialize)]
pub(crate) struct Done {
    command: &'static str,
    members: Vec<String>,
    /// Whether the command waited until the change was complete.
    completed: bool,
}

impl Done {
    pub(crate) fn of(command: &'static str, members: Vec<String>, completed: bool) -> Self {
        Self { command, members, completed }
    }
}
