//! The sides of a partition: the picture of each, and whether it survives its decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_cluster::strategy::{Picture, Record, SeenBy, decide, resolve};
use greylag_cluster::{AppVersion, Member, MemberStatus, Strategy, Verdict};
use greylag_core::UniqueAddress;

pub(crate) type Members = BTreeMap<UniqueAddress, Member>;

/// The nodes `a` to `l`, whose addresses are in the order of their names.
pub(crate) fn node(index: usize) -> UniqueAddress {
    let name = char::from(b'a' + u8::try_from(index).expect("a few members"));
    format!("{name}:1#{}", index + 1).parse().expect("an address")
}

pub(crate) fn member(index: usize, status: MemberStatus, up_number: u32, roles: &[&str]) -> Member {
    let roles = roles.iter().map(|role| (*role).to_owned()).collect();
    let mut member = Member::joining(node(index), Arc::new(roles), AppVersion::default());
    member.status = status;
    if status > MemberStatus::WeaklyUp {
        member.up_number = up_number;
    }
    member
}

/// The picture of the first node of `side`: all of the side accuse all others, and only the side has seen that.
pub(crate) fn picture(side: &BTreeSet<UniqueAddress>, members: &Members, before: &BTreeSet<Record>) -> Picture {
    let outside = || members.keys().filter(|address| !side.contains(*address));
    let mut records: BTreeSet<Record> =
        side.iter().flat_map(|observer| outside().map(move |subject| (observer.clone(), subject.clone()))).collect();
    records.extend(before.iter().cloned());
    let node = side.first().expect("a side has members").clone();
    let seen_by = SeenBy { now: side.clone(), since: side.clone(), accused: side.clone() };
    Picture::new(node, members.clone(), records, seen_by, BTreeSet::new())
}

/// Whether a member of the side can go on hosting singletons after these were downed. An Exiting member ends by itself,
/// as does a leaving one with no other left to exchange gossip with (cluster M26), and a member that was never WeaklyUp
/// or Up hosts nothing.
pub(crate) fn has_survivor(
    picture: &Picture,
    side: &BTreeSet<UniqueAddress>,
    downed: &BTreeSet<UniqueAddress>,
) -> bool {
    let left = side.iter().filter(|address| !downed.contains(*address));
    let statuses: Vec<MemberStatus> =
        left.filter_map(|address| picture.members.get(address)).map(|member| member.status).collect();
    let hosts = statuses.iter().filter(|status| **status == MemberStatus::WeaklyUp || status.is_settled()).count();
    let leaving = statuses.iter().filter(|status| **status == MemberStatus::Leaving).count();
    hosts > leaving || leaving > 1
}

/// The verdict of a side, if it has a member that can decide, and something to decide.
pub(crate) fn verdict(picture: &Picture, side: &BTreeSet<UniqueAddress>, strategy: &Strategy) -> Option<Verdict> {
    let can_decide = has_survivor(picture, side, &BTreeSet::new());
    (can_decide && picture.has_anything_to_decide()).then(|| decide(picture, strategy).verdict)
}

/// Whether the side survives this verdict.
pub(crate) fn survives(
    picture: &Picture,
    side: &BTreeSet<UniqueAddress>,
    strategy: &Strategy,
    verdict: Option<Verdict>,
) -> bool {
    let downed = verdict.map(|verdict| resolve(picture, strategy, verdict, None).downed).unwrap_or_default();
    has_survivor(picture, side, &downed)
}

/// The members after the leader's action: all that wait are Up, the youngest of all, and all that leave are Exiting
/// (cluster M20).
pub(crate) fn after_leader_action(members: &Members) -> Members {
    let mut after = members.clone();
    let mut next = 100;
    for member in after.values_mut() {
        match member.status {
            MemberStatus::Joining | MemberStatus::WeaklyUp => {
                member.status = MemberStatus::Up;
                member.up_number = next;
                next += 1;
            }
            MemberStatus::Leaving => member.status = MemberStatus::Exiting,
            _ => {}
        }
    }
    after
}

/// The members with one of them a step further, in every way except to Down: members that an operator downed before a
/// cut are not known to both sides in general.
pub(crate) fn one_step_further(members: &Members) -> Vec<Members> {
    use MemberStatus::{Exiting, Joining, Leaving, Up, WeaklyUp};
    let mut views = Vec::new();
    for (address, member) in members {
        let next: &[MemberStatus] = match member.status {
            Joining => &[WeaklyUp, Up, Leaving],
            WeaklyUp => &[Up, Leaving],
            Up => &[Leaving],
            Leaving => &[Exiting],
            _ => &[],
        };
        for status in next {
            let mut view = members.clone();
            let moved = view.get_mut(address).expect("it is a key");
            moved.status = *status;
            if *status == Up {
                moved.up_number = 100;
            }
            views.push(view);
        }
    }
    views
}
