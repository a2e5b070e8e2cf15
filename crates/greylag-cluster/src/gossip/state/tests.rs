use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::gossip::reachability::Status;
use crate::gossip::version::Relation;
use crate::membership::app_version::AppVersion;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

fn member(name: char, status: MemberStatus) -> Member {
    let mut member = Member::joining(node(name), Arc::default(), AppVersion::default());
    member.status = status;
    member.up_number = if status > MemberStatus::WeaklyUp { name as u32 } else { Member::NOT_UP };
    member
}

fn state(members: &[(char, MemberStatus)]) -> Gossip {
    let members = members.iter().map(|(name, status)| member(*name, *status)).collect();
    Gossip { members, ..Gossip::default() }
}

/// cluster M9, G3.
#[test]
fn scenario_30_the_further_status_wins_for_every_pair() {
    for left in MemberStatus::ALL {
        for right in MemberStatus::ALL {
            let (a, b) = (state(&[('a', left)]), state(&[('a', right)]));
            let (ab, ba) = (a.merged(&b).gossip, b.merged(&a).gossip);
            assert_eq!(ab, ba, "{left} and {right}");
            assert_eq!(ab.members.get(&node('a')).unwrap().status, left.max(right));
            let number = a.members.get(&node('a')).unwrap().up_number.min(b.members.get(&node('a')).unwrap().up_number);
            assert_eq!(ab.members.get(&node('a')).unwrap().up_number, number);
            assert!(ab.seen.is_empty());
        }
    }
}

/// cluster M6, M29.
#[test]
fn scenario_31_removed_members_stay_removed_and_their_versions_go() {
    let x = node('x');
    for status in MemberStatus::ALL {
        let mut kept = state(&[('a', MemberStatus::Up), ('x', status)]);
        kept.version.increment(&x);
        kept.version.increment(&node('a'));
        let mut removed = state(&[('b', MemberStatus::Up)]);
        removed.version.increment(&node('b'));
        removed.tombstones.insert(x.clone(), Tombstone { wall_ms: 1, ..Tombstone::default() });
        // A restarted process at the same address is another member.
        let again: UniqueAddress = "x:1#9999".parse().unwrap();
        let fresh = Member::joining(again.clone(), Arc::default(), AppVersion::default());
        removed.members.insert(fresh);
        for merged in [kept.merged(&removed), removed.merged(&kept)] {
            assert!(!merged.gossip.members.contains_key(&x) && merged.gossip.members.contains_key(&again));
            assert_eq!(merged.gossip.version.count(&x), 0);
            assert!(merged.needs_version, "it lost a version entry and is neither of the two");
            assert!(merged.gossip.is_sound());
        }
    }
}

/// cluster M6.
#[test]
fn a_merge_that_equals_one_side_needs_no_version() {
    let mut before = state(&[('a', MemberStatus::Up), ('x', MemberStatus::Down)]);
    before.version.increment(&node('x'));
    let mut after = state(&[('a', MemberStatus::Up)]);
    after.version.increment(&node('a'));
    after.tombstones.insert(node('x'), Tombstone::default());
    assert_eq!(before.version.compare(&after.version), Relation::Concurrent);
    assert!(!before.merged(&after).needs_version);
    assert!(after.same_content(&before.merged(&after).gossip));
}

/// cluster M4.
#[test]
fn a_broken_state_is_repaired() {
    let mut gossip = state(&[('a', MemberStatus::Up)]);
    gossip.seen.insert(node('z'));
    gossip.version.increment(&node('z'));
    gossip.reachability.set(&node('z'), &node('a'), Status::Unreachable);
    assert!(!gossip.is_sound());
    assert_eq!(gossip.repair(), Some(true));
    assert!(gossip.is_sound());
    assert_eq!(gossip.repair(), None);
}

/// cluster M4: a record about a non-member breaks the invariant even if it says Reachable.
#[test]
fn a_record_about_no_member_is_repaired() {
    let mut gossip = state(&[('a', MemberStatus::Up), ('b', MemberStatus::Up)]);
    gossip.reachability.set(&node('a'), &node('b'), Status::Unreachable);
    gossip.version.increment(&node('a'));
    let sound = gossip.clone();
    gossip.reachability.set(&node('a'), &node('z'), Status::Unreachable);
    gossip.reachability.set(&node('a'), &node('z'), Status::Reachable);
    assert!(!gossip.is_sound() && sound.is_sound());
    assert_eq!(gossip.repair(), Some(false));
    assert!(gossip.is_sound() && gossip.reachability.rows()[&node('a')].keys().eq([&node('b')]));
}

/// cluster M17.
#[test]
fn convergence_waits_for_settled_members_and_standing_accusations() {
    use MemberStatus::{Down, Exiting, Joining, Up};
    let (a, b) = (node('a'), node('b'));
    let none = ConfirmedExits::new();
    // Check that the cheap test of a view agrees with the list of blockers.
    let blockers = |gossip: &Gossip, at: &UniqueAddress| {
        let found = gossip.blockers(at, &none);
        assert_eq!(gossip.view(at, &none, false).converged, found.is_none(), "{found:?}");
        found
    };
    let mut gossip = state(&[('a', Up), ('b', Up), ('c', Joining)]);
    gossip.seen.insert(a.clone());
    assert_eq!(
        blockers(&gossip, &a).unwrap().unseen,
        std::slice::from_ref(&b),
        "joining members need not have seen it"
    );
    gossip.seen.insert(b.clone());
    assert_eq!(blockers(&gossip, &a), None);
    gossip.reachability.set(&a, &b, Status::Unreachable);
    assert_eq!(blockers(&gossip, &a).unwrap().accusations, [(a.clone(), b.clone())]);
    assert_eq!(blockers(&gossip, &b), None, "accusations of the node itself are left to others");
    for status in [Down, Exiting] {
        gossip.members.get_mut(&b).unwrap().status = status;
        assert_eq!(blockers(&gossip, &a), None);
    }
}

/// cluster M18.
#[test]
fn the_leader_is_the_first_settled_reachable_member() {
    use MemberStatus::{Down, Exiting, Joining, Leaving, Up, WeaklyUp};
    let none = ConfirmedExits::new();
    let leader = |members: &[(char, MemberStatus)], from: char| {
        state(members).leader(&node(from), None, &none).map(|leader| leader.address().host().to_owned())
    };
    assert_eq!(leader(&[('a', Joining), ('b', Up)], 'b').as_deref(), Some("b"));
    assert_eq!(leader(&[('a', Down), ('b', Leaving)], 'b').as_deref(), Some("b"));
    assert_eq!(leader(&[('a', Exiting), ('b', Joining), ('c', WeaklyUp)], 'c').as_deref(), Some("c"));
    assert_eq!(leader(&[('a', Down)], 'a'), None);
    let mut gossip = state(&[('a', Up), ('b', Up)]);
    gossip.reachability.set(&node('b'), &node('a'), Status::Unreachable);
    assert_eq!(gossip.leader(&node('b'), None, &none), Some(&node('b')));
    assert_eq!(gossip.leader(&node('a'), None, &none), Some(&node('a')), "no node is unreachable to itself");
}

fn any_gossip() -> impl Strategy<Value = Gossip> {
    let entry = (0..5_u8, 0..9_usize, any::<bool>());
    let record = (0..5_u8, 0..5_u8, any::<bool>());
    let parts =
        (prop::collection::vec(entry, 0..5), prop::collection::vec(record, 0..6), prop::collection::vec(0..5_u8, 0..6));
    parts.prop_map(|(members, records, versions)| {
        let name = |index: u8| (b'a' + index) as char;
        let mut gossip = Gossip::default();
        for (index, status, dead) in members {
            match MemberStatus::ALL.get(status) {
                Some(status) => {
                    let mut fresh = member(name(index), *status);
                    fresh.dead = dead && *status >= MemberStatus::Exiting;
                    gossip.members.insert(fresh);
                }
                None => {
                    let tombstone = Tombstone { wall_ms: u64::from(index), clean: dead, dead, host_id: None };
                    gossip.tombstones.insert(node(name(index)), tombstone);
                }
            }
        }
        for (observer, subject, terminated) in records {
            let status = if terminated { Status::Terminated } else { Status::Unreachable };
            gossip.reachability.set(&node(name(observer)), &node(name(subject)), status);
        }
        for index in versions {
            gossip.version.increment(&node(name(index)));
        }
        gossip.repair();
        gossip
    })
}

/// Whether equal versions of a row mean equal rows, as in any real run; drawn states need not comply.
fn rows_agree(a: &Gossip, b: &Gossip) -> bool {
    let versions = |observer| (a.reachability.version(observer), b.reachability.version(observer));
    a.reachability.versions().keys().all(|observer| {
        let (left, right) = versions(observer);
        left != right || a.reachability.rows().get(observer) == b.reachability.rows().get(observer)
    })
}

proptest! {
    #[test]
    fn scenario_30_merge_is_commutative_idempotent_and_sound(a in any_gossip(), b in any_gossip()) {
        prop_assume!(rows_agree(&a, &b));
        let (ab, ba) = (a.merged(&b).gossip, b.merged(&a).gossip);
        prop_assert!(ab.is_sound());
        prop_assert_eq!(&ab.members, &ba.members);
        prop_assert_eq!(&ab.reachability, &ba.reachability);
        prop_assert_eq!(&ab.tombstones, &ba.tombstones);
        prop_assert!(a.merged(&a).gossip.same_content(&a));
        prop_assert!(ab.merged(&a).gossip.same_content(&ab));
        for address in a.members.keys().chain(b.members.keys()) {
            let buried = ab.tombstones.contains_key(address);
            prop_assert!(buried != ab.members.contains_key(address), "no member vanishes without a tombstone");
        }
    }
}
