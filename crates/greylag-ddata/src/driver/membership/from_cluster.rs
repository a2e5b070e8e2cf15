//! Membership from the cluster crate.

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_cluster::{Cluster, Member, MemberStatus, MembershipView};
use tokio::sync::watch;

use crate::membership::replicas::{Replica, ReplicaStatus, Replicas};

/// Converts a view of the cluster for replicators that need `roles`: members of any status; members that were never Up
/// come last.
fn replicas(view: &MembershipView, roles: &BTreeSet<String>) -> Replicas {
    let matches = |member: &&Member| roles.iter().all(|role| member.has_role(role));
    let mut members: Vec<&Member> = view.members.iter().filter(matches).collect();
    members.sort_by(|one, other| one.age_order(other));
    let member = |age: usize, member: &Member| Replica {
        address: member.address.clone(),
        status: status(member.status),
        reachable: view.is_reachable(&member.address),
        age: age as u64,
    };
    let (own, others): (Vec<Replica>, Vec<Replica>) = members
        .iter()
        .enumerate()
        .map(|(age, found)| member(age, found))
        .partition(|replica| replica.address == view.self_address);
    Replicas {
        own_status: own.first().map(|own| own.status),
        own_age: own.first().map_or(u64::MAX, |own| own.age),
        others,
        unmet: BTreeSet::new(),
        removed: view.tombstones.keys().cloned().collect(),
    }
}

fn status(status: MemberStatus) -> ReplicaStatus {
    match status {
        MemberStatus::Joining => ReplicaStatus::Joining,
        MemberStatus::WeaklyUp => ReplicaStatus::WeaklyUp,
        MemberStatus::Up | MemberStatus::PreparingForShutdown | MemberStatus::ReadyForShutdown => ReplicaStatus::Up,
        MemberStatus::Leaving => ReplicaStatus::Leaving,
        MemberStatus::Exiting => ReplicaStatus::Exiting,
        MemberStatus::Down => ReplicaStatus::Down,
    }
}

/// The roles that this node has.
pub(super) fn own_roles(cluster: &Cluster) -> BTreeSet<String> {
    let settings = cluster.settings();
    settings.roles.iter().cloned().chain([format!("dc-{}", settings.data_center.as_str())]).collect()
}

/// Publishes the replicas that have these roles whenever the cluster changes.
pub(super) fn follow(cluster: &Cluster, roles: BTreeSet<String>) -> watch::Receiver<Arc<Replicas>> {
    let (sender, receiver) = watch::channel(Arc::new(replicas(&cluster.view(), &roles)));
    let (cluster, mut events) = (cluster.clone(), cluster.subscribe());
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                event = events.next() => if event.is_none() { return },
            }
            let now = replicas(&cluster.view(), &roles);
            sender.send_if_modified(|published| {
                let changed = **published != now;
                if changed {
                    *published = Arc::new(now);
                }
                changed
            });
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use greylag_cluster::AppVersion;

    use super::*;

    fn member(name: &str, status: MemberStatus, up_number: u32, roles: &[&str]) -> Member {
        let roles = roles.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let address = format!("{name}:1#1").parse().unwrap();
        Member { status, up_number, ..Member::joining(address, Arc::new(roles), AppVersion::default()) }
    }

    /// ddata G2, I1, vocabulary: every member with all the roles is known, also one that was never Up; only voters
    /// count, and members that were never Up are the youngest.
    #[test]
    fn members_of_any_status_are_known() {
        let members = [
            member("a", MemberStatus::WeaklyUp, Member::NOT_UP, &["x", "y"]),
            member("b", MemberStatus::Joining, Member::NOT_UP, &["x", "y"]),
            member("c", MemberStatus::Up, 2, &["x", "y"]),
            member("d", MemberStatus::ReadyForShutdown, 1, &["x", "y"]),
            member("e", MemberStatus::Up, 3, &["x"]),
        ];
        let mut view = MembershipView::empty("c:1#1".parse().unwrap());
        view.members = members.into_iter().collect();
        let found = replicas(&view, &["x".to_owned(), "y".to_owned()].into());
        let others: Vec<(&str, ReplicaStatus)> =
            found.others.iter().map(|replica| (replica.address.address().host(), replica.status)).collect();
        let expected = [("d", ReplicaStatus::Up), ("a", ReplicaStatus::WeaklyUp), ("b", ReplicaStatus::Joining)];
        assert_eq!((others, found.own_status, found.own_age), (expected.to_vec(), Some(ReplicaStatus::Up), 1));
        assert_eq!(found.voter_count(), 2);
    }
}
