use std::sync::Arc;

use super::*;

fn address(text: &str) -> UniqueAddress {
    text.parse().expect("an address")
}

fn member_at(text: &str, status: MemberStatus, up_number: u32) -> Member {
    let roles = BTreeSet::from(["dc-default".to_owned(), "shop".to_owned()]);
    let joining = Member::joining(address(text), Arc::new(roles), "1.2.0".parse().expect("a version"));
    Member { status, up_number, ..joining }
}

fn view() -> MembershipView {
    let mut view = MembershipView::empty(address("a:1#1"));
    view.members =
        vec![member_at("a:1#1", MemberStatus::Up, 1), member_at("b:1#2", MemberStatus::Joining, Member::NOT_UP)].into();
    view.leader = Some(address("a:1#1"));
    view.cluster_id = 255;
    view.converged = true;
    view
}

#[test]
fn members_carry_status_age_and_duties_but_no_implicit_role() {
    let told = members(&view(), &Condition::default(), "shop");
    assert_eq!((told.self_address.as_str(), told.self_uid, told.cluster_name.as_str()), ("a:1", 1, "shop"));
    assert_eq!(told.cluster_id, format!("{:032x}", 255));
    assert_eq!((told.leader.as_str(), told.oldest.as_str()), ("a:1#1", "a:1#1"));
    assert_eq!(told.role_oldest.get("shop").map(String::as_str), Some("a:1#1"));
    assert_eq!(told.members[0].roles, ["shop"]);
    assert_eq!((told.members[0].status(), told.members[0].up_number), (v1::Status::Up, Some(1)));
    assert_eq!((told.members[1].status(), told.members[1].up_number), (v1::Status::Joining, None));
}

/// cluster M36: each problem is named, with the members that report it.
#[test]
fn health_names_what_is_amiss_and_who_says_so() {
    let well = health(&view(), &Condition::default(), Readiness::default(), &TransportStats::default());
    assert_eq!((well.healthy, well.initialized, well.ready), (true, true, true), "{:?}", well.problems);

    let mut ill = view();
    ill.unreachable = BTreeSet::from([address("b:1#2")]).into();
    ill.converged = false;
    let accusations = vec![(address("a:1#1"), address("b:1#2"))];
    let condition = Condition { accusations, foreign_cluster: Some(7), ..Condition::default() };
    let held = HeldAddress { holder: address("c:1#3"), claimant: address("c:1#9") };
    let condition = Condition { held_addresses: vec![held], ..condition };
    let readiness =
        Readiness { not_ready: vec!["journal is down: full".to_owned()], degraded: vec!["states: low".to_owned()] };
    let told = health(&ill, &condition, readiness, &TransportStats::default());
    assert!(told.problems.contains(&"journal is down: full".to_owned()), "{:?}", told.problems);
    assert_eq!(
        (told.ready, &told.not_ready[..], &told.degraded[..]),
        (false, &["journal is down: full".to_owned()][..], &["states: low".to_owned()][..])
    );
    assert!(!told.healthy);
    let waits = "c:1#9 waits for the removal of c:1#3";
    assert!(told.problems.iter().any(|problem| problem.starts_with(waits)), "{:?}", told.problems);
    assert!(told.problems[0].contains("another cluster"), "{:?}", told.problems);
    assert!(told.problems.contains(&"b:1#2 is unreachable to a:1#1".to_owned()), "{:?}", told.problems);
    assert_eq!(told.unreachable[0].observers, ["a:1#1"]);

    let alone = health(
        &MembershipView::empty(address("a:1#1")),
        &Condition::default(),
        Readiness::default(),
        &TransportStats::default(),
    );
    assert_eq!((alone.healthy, alone.initialized), (false, false));
}

#[test]
fn an_event_is_known_by_its_kind_and_names_whom_it_concerns() {
    let view = view();
    let told = |of: &ClusterEvent| event(of, &view, &Condition::default(), "shop");
    let up = told(&ClusterEvent::MemberUp(view.members[0].clone()));
    assert_eq!((up.kind.as_str(), up.member.expect("a member").address.as_str()), ("MemberUp", "a:1"));
    let removed = ClusterEvent::MemberRemoved {
        member: view.members[1].clone(),
        previous_status: MemberStatus::Exiting,
        clean: true,
    };
    let removed = told(&removed);
    assert_eq!(removed.kind, "MemberRemoved");
    assert_eq!((removed.details["previous_status"].as_str(), removed.details["clean"].as_str()), ("Exiting", "true"));
    assert_eq!(told(&ClusterEvent::SelfDowned).kind, "SelfDowned");
    assert_eq!(told(&ClusterEvent::Lagged { missed: 3 }).details["missed"], "3");
    let snapshot = told(&ClusterEvent::Snapshot(Arc::new(view.clone())));
    assert_eq!((snapshot.kind.as_str(), snapshot.snapshot.expect("members").members.len()), ("Snapshot", 2));
}
