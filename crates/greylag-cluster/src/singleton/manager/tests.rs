use std::sync::Arc;

use super::*;
use crate::membership::app_version::AppVersion;
use crate::membership::member::Member;
use crate::membership::view::Tombstone;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

/// Members in the order of their age.
fn view(own: char, members: &[(char, MemberStatus)]) -> Arc<MembershipView> {
    let mut view = MembershipView::empty(node(own));
    for (age, (name, status)) in members.iter().enumerate() {
        let mut member = Member::joining(node(*name), Arc::default(), AppVersion::default());
        (member.status, member.up_number) = (*status, age as u32 + 1);
        view.members.insert(member);
    }
    Arc::new(view)
}

struct Bench {
    manager: SingletonManager,
    own: char,
    now: Instant,
}

impl Bench {
    fn new(own: char) -> Self {
        let manager = SingletonManager::new(node(own), &SingletonSettings::default(), &ClusterSettings::default());
        Self { manager, own, now: Instant::now() }
    }

    fn input(&mut self, input: ManagerInput) -> Vec<String> {
        let mut out = Vec::new();
        self.manager.handle(self.now, input, &mut out);
        let text = |effect: &ManagerEffect| match effect {
            ManagerEffect::Send(m) => format!("{:?} {} {}", m.kind, m.to.address().host(), m.attempt),
            ManagerEffect::StartInstance { up_number } => format!("start {up_number}"),
            other => format!("{other:?}"),
        };
        out.iter().map(text).collect()
    }

    fn view(&mut self, members: &[(char, MemberStatus)]) -> Vec<String> {
        self.input(ManagerInput::View(view(self.own, members)))
    }

    fn message(&mut self, kind: Kind, from: char, attempt: u64) -> Vec<String> {
        let (from, to) = (node(from), node(self.own));
        self.input(ManagerInput::Message(SingletonMessage { kind, from, to, attempt }))
    }
}

use MemberStatus::{Exiting, Leaving, Up};

#[test]
fn scenario_56_every_predecessor_must_be_settled_not_only_the_latest() {
    let mut bench = Bench::new('d');
    bench.view(&[('a', Up), ('b', Up), ('c', Up), ('d', Up)]);
    // b offered its instance once; a and c leave: three nodes may have run it.
    bench.message(Kind::TakeOverFromMe, 'b', 0);
    bench.view(&[('a', Exiting), ('b', Up), ('c', Up), ('d', Up)]);
    let asked = bench.view(&[('a', Exiting), ('b', Exiting), ('c', Exiting), ('d', Up)]);
    assert_eq!(asked, ["HandOverToMe a 1", "HandOverToMe b 2", "HandOverToMe c 3"]);
    assert!(bench.message(Kind::HandOverDone, 'c', 3).is_empty(), "one of three");
    assert!(bench.message(Kind::HandOverDone, 'a', 9).is_empty(), "an answer to nothing that was asked");
    assert!(bench.message(Kind::HandOverDone, 'a', 1).is_empty(), "two of three");
    assert_eq!(bench.message(Kind::HandOverDone, 'b', 2), ["start 4"]);
}

#[test]
fn an_earlier_oldest_that_is_still_a_member_is_asked_too() {
    let mut bench = Bench::new('c');
    bench.view(&[('a', Up), ('b', Up), ('c', Up)]);
    // b once considered itself the oldest, and claimed.
    assert_eq!(bench.message(Kind::HandOverToMe, 'b', 5), ["HandOverDone b 5"]);
    let own_number = |number| {
        let mut changed = MembershipView::clone(&view('c', &[('a', Up), ('b', Up), ('c', Up)]));
        changed.members.get_mut(&node('c')).unwrap().up_number = number;
        Arc::new(changed)
    };
    // A lower number arrives by merge: now this node is the oldest, although no member has left.
    let asked = bench.input(ManagerInput::View(own_number(0)));
    assert_eq!(asked, ["HandOverToMe a 1", "HandOverToMe b 2"]);
    assert!(bench.message(Kind::HandOverDone, 'a', 1).is_empty());
    assert_eq!(bench.message(Kind::HandOverDone, 'b', 2), ["start 0"]);
}

#[test]
fn answers_that_cross_with_an_own_answer_are_void() {
    let mut bench = Bench::new('b');
    bench.view(&[('a', Up), ('b', Up)]);
    assert_eq!(bench.view(&[('a', Exiting), ('b', Up)]), ["HandOverToMe a 1"]);
    // c claims by an older view; this node answers, and c must clear this node in turn.
    bench.view(&[('a', Exiting), ('b', Up), ('c', Up)]);
    assert_eq!(bench.message(Kind::HandOverToMe, 'c', 7), ["HandOverDone c 7", "HandOverToMe c 2"]);
    assert!(bench.message(Kind::HandOverDone, 'a', 1).is_empty(), "c is not settled yet");
    assert_eq!(bench.message(Kind::HandOverToMe, 'c', 8), ["HandOverDone c 8", "HandOverToMe c 3"]);
    assert!(bench.message(Kind::HandOverDone, 'c', 2).is_empty(), "sent before c was cleared again");
    assert_eq!(bench.message(Kind::HandOverDone, 'c', 3), ["start 2"]);
}

/// Cluster P3: a process answers in the name of a former one only if that is gone: its death was proven, or this
/// process replaced it on its host, or the operator vouches for it.
#[test]
fn a_claim_for_an_older_process_of_this_address_is_answered_in_its_name() {
    let older: UniqueAddress = "b:1#9999".parse().unwrap();
    let claim = SingletonMessage { kind: Kind::HandOverToMe, from: node('a'), to: older.clone(), attempt: 4 };
    let done = SingletonMessage { kind: Kind::HandOverDone, from: older.clone(), to: node('a'), attempt: 4 };
    let (off, local, on) = (ProofOfDeath::Off, ProofOfDeath::Local, ProofOfDeath::On);
    for (policy, dead, host, answers) in [
        (local, false, Some("here"), true),
        (local, false, Some("elsewhere"), false),
        (local, false, None, false),
        (local, true, Some("elsewhere"), true),
        (off, false, Some("here"), false),
        (off, true, None, true),
        (on, false, None, true),
    ] {
        let mut view = MembershipView::clone(&view('b', &[('a', Up), ('b', Up)]));
        view.members.get_mut(&node('b')).unwrap().host_id = Some("here".into());
        let host_id = host.map(Into::into);
        view.tombstones.insert(older.clone(), Tombstone { dead, clean: dead, host_id, wall_ms: 0 });
        let cluster = ClusterSettings { proof_of_death: policy, ..ClusterSettings::default() };
        let mut manager = SingletonManager::new(node('b'), &SingletonSettings::default(), &cluster);
        let (now, mut out) = (Instant::now(), Vec::new());
        manager.handle(now, ManagerInput::View(Arc::new(view)), &mut out);
        out.clear();
        manager.handle(now, ManagerInput::Message(claim.clone()), &mut out);
        let expected: Vec<_> = answers.then(|| ManagerEffect::Send(done.clone())).into_iter().collect();
        assert_eq!(out, expected, "{policy:?}, dead: {dead}, {host:?}");
    }
}

/// Cluster M30, P5: no instance starts on a node that is itself Leaving, as on the last two that leave together while a
/// full shutdown is prepared.
#[test]
fn nothing_starts_on_a_node_that_leaves() {
    let mut bench = Bench::new('b');
    bench.view(&[('a', Up), ('b', Up)]);
    bench.view(&[('a', Leaving), ('b', Leaving)]);
    let mut gone = MembershipView::clone(&view('b', &[('a', Leaving), ('b', Leaving)]));
    gone.members.remove(&node('a'));
    gone.tombstones.insert(node('a'), Tombstone { clean: true, ..Tombstone::default() });
    assert_eq!(bench.input(ManagerInput::View(Arc::new(gone))), Vec::<String>::new());
    bench.now += Duration::from_secs(60);
    assert_eq!(bench.input(ManagerInput::Tick), Vec::<String>::new());
}

#[test]
fn an_unclean_removal_holds_the_start_until_its_margin_ends_or_it_turns_clean() {
    for turns_clean in [false, true] {
        let mut bench = Bench::new('b');
        bench.view(&[('a', Up), ('b', Up)]);
        let removed = |clean: bool| {
            let mut removed = MembershipView::clone(&view('b', &[]));
            let own = view('b', &[('a', Up), ('b', Up)]);
            removed.members = vec![own.member(&node('b')).unwrap().clone()].into();
            removed.tombstones.insert(node('a'), Tombstone { clean, ..Tombstone::default() });
            ManagerInput::View(Arc::new(removed))
        };
        assert!(!bench.input(removed(false)).iter().any(|effect| effect.starts_with("start")));
        bench.now += Duration::from_secs(19);
        assert!(!bench.input(ManagerInput::Tick).iter().any(|effect| effect.starts_with("start")));
        let ended = if turns_clean {
            bench.input(removed(true))
        } else {
            bench.now += Duration::from_secs(1);
            bench.input(ManagerInput::Tick)
        };
        assert_eq!(ended, ["start 2"]);
    }
}

#[test]
fn a_leaver_without_successor_stops_at_once() {
    let mut bench = Bench::new('a');
    assert_eq!(bench.view(&[('a', Up)]), ["start 1"]);
    bench.view(&[('a', Leaving)]);
    bench.view(&[('a', Exiting)]);
    assert_eq!(bench.input(ManagerInput::ExitingPhase), ["StopInstance"]);
    assert_eq!(bench.input(ManagerInput::InstanceEnded), ["ExitingDone"]);
    assert_eq!(bench.manager.state(), ManagerState::End);
}

/// cluster F9: the hold after a pause ends at its deadline, not later.
#[test]
fn a_pause_holds_the_start_until_its_deadline_and_no_longer() {
    let mut bench = Bench::new('a');
    bench.input(ManagerInput::LocalPause);
    assert!(bench.view(&[('a', Up)]).is_empty(), "held");
    let end = bench.now + 3 * ClusterSettings::default().failure_detector.heartbeat_interval;
    bench.now = end - Duration::from_nanos(1);
    assert!(bench.input(ManagerInput::Tick).is_empty(), "held to the last");
    bench.now = end;
    assert_eq!(bench.input(ManagerInput::Tick), ["start 1"]);
}
