use std::sync::Arc;

use greylag_transport::QuarantineReason;

use super::*;
use crate::core::{ClusterCore, Command, Input};
use crate::gossip::reachability::Status;
use crate::gossip::state::Gossip;
use crate::membership::app_version::AppVersion;
use crate::membership::event::Proof;
use crate::membership::member::Member;
use crate::settings::SbrSettings;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

fn member(name: char) -> Member {
    let mut member = Member::joining(node(name), Arc::default(), AppVersion::default());
    member.status = MemberStatus::Up;
    member.up_number = name as u32;
    member
}

/// Downs each member that becomes unreachable: on the event if `at_once`, else at the next tick.
struct Eager {
    at_once: bool,
    waiting: Vec<UniqueAddress>,
    heard: Arc<std::sync::Mutex<Vec<String>>>,
}

impl DowningProvider for Eager {
    fn handle(
        &mut self,
        _now: Instant,
        input: DowningInput<'_>,
        cluster: &DowningContext<'_>,
        out: &mut Vec<DownCommand>,
    ) {
        let name = match input {
            DowningInput::Event(event) => format!("{event:?}").split(['(', ' ']).next().unwrap().to_owned(),
            DowningInput::Tick => "Tick".to_owned(),
        };
        self.heard.lock().unwrap().push(name);
        if let DowningInput::Event(ClusterEvent::UnreachableMember(member)) = input {
            self.waiting.push(member.address.clone());
        }
        let missing: Vec<UniqueAddress> = self.waiting.clone();
        if (self.at_once || matches!(input, DowningInput::Tick)) && !missing.is_empty() {
            assert!(cluster.view.unreachable.is_superset(&missing.iter().cloned().collect()));
            out.push(DownCommand { targets: missing, reason: "it is gone".to_owned() });
            self.waiting.retain(|address| cluster.view.member(address).is_some_and(|m| m.status < MemberStatus::Down));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

struct Bench {
    core: ClusterCore,
    now: Instant,
    heard: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Bench {
    fn new(at_once: bool) -> Self {
        let heard = Arc::<std::sync::Mutex<Vec<String>>>::default();
        let listener = heard.clone();
        let custom = CustomDowning::new("eager", Duration::from_secs(9), move |_| Eager {
            at_once,
            waiting: Vec::new(),
            heard: listener.clone(),
        });
        let now = Instant::now();
        let settings = ClusterSettings::default().with_custom_downing(custom);
        assert_eq!(settings.removal_margin(), Duration::from_secs(9));
        let mut bench = Self { core: ClusterCore::new(node('a'), settings, 1, now), now, heard };
        let seeds = vec![node('a').address().clone()];
        bench.input(Input::Command(Command::JoinSeeds(seeds)));
        bench
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.core.handle(self.now, input, &mut out);
        out
    }

    /// Puts b and c into the cluster, and lets c accuse b.
    fn lose_b(&mut self) -> Vec<Effect> {
        let mut gossip = Gossip::clone(self.core.gossip());
        gossip.members.insert(member('b'));
        gossip.members.insert(member('c'));
        gossip.reachability.set(&node('c'), &node('b'), Status::Unreachable);
        let mut out = Vec::new();
        self.core.change(self.now, gossip, &mut out);
        self.core.tell_provider(self.now, 0, &mut out);
        out
    }

    fn status(&self, name: char) -> Option<MemberStatus> {
        self.core.gossip().members.get(&node(name)).map(|member| member.status)
    }
}

/// cluster S18: a provider gets a snapshot and then events, and its commands are carried out and logged like decisions
/// of the resolver.
#[test]
fn a_provider_takes_the_resolvers_place() {
    let mut bench = Bench::new(true);
    let effects = bench.lose_b();
    assert_eq!(bench.status('b'), Some(MemberStatus::Down));
    let heard = bench.heard.lock().unwrap().clone();
    assert_eq!(heard[0], "Snapshot");
    let expected = ["MemberUp", "MemberUp", "UnreachableMember", "DowningDecision", "MemberDowned"];
    for event in expected {
        assert!(heard.contains(&event.to_owned()), "{event} in {heard:?}");
    }
    let decision = effects.iter().filter_map(published).find_map(|event| match event {
        ClusterEvent::DowningDecision(decision) => Some(decision.to_string()),
        _ => None,
    });
    let line = decision.unwrap();
    assert!(line.starts_with("eager decides Custom: it is gone; downed (1): b:1#98; unreachable (1)"), "{line}");
    assert!(effects.contains(&Effect::Log(LogLevel::Warn, line)));
}

/// cluster S18, F9: right after a pause nothing is decided; once decisions are allowed the provider gets another tick.
#[test]
fn a_provider_is_held_after_a_pause_and_asked_again() {
    let mut bench = Bench::new(true);
    bench.now += Duration::from_secs(10);
    bench.input(Input::Tick);
    bench.lose_b();
    assert_eq!(bench.status('b'), Some(MemberStatus::Up), "this node has just woken");
    let mut ticks = 0;
    while bench.status('b') == Some(MemberStatus::Up) {
        let deadline = bench.core.next_deadline().expect("it is asked again");
        bench.now = bench.now.max(deadline);
        bench.input(Input::Tick);
        ticks += 1;
        assert!(ticks < 200, "the node neither spins nor forgets");
    }
    assert!(bench.heard.lock().unwrap().contains(&"Tick".to_owned()));
}

fn warnings(settings: ClusterSettings, size: u8) -> usize {
    let now = Instant::now();
    let mut core = ClusterCore::new(node('a'), settings, 1, now);
    core.handle(now, Input::Command(Command::JoinSeeds(vec![node('a').address().clone()])), &mut Vec::new());
    let mut count = 0;
    for name in (b'b'..b'a' + size).map(char::from) {
        let mut gossip = Gossip::clone(core.gossip());
        gossip.members.insert(member(name));
        let mut out = Vec::new();
        core.change(now, gossip, &mut out);
        let is_warning =
            |effect: &&Effect| matches!(effect, Effect::Log(LogLevel::Warn, text) if text.contains("members"));
        count += out.iter().filter(is_warning).count();
    }
    count
}

/// cluster S7: a warning at the sixth Up with a quorum of three, and at each after it.
#[test]
fn scenario_47_a_warning_at_every_up_beyond_the_quorum() {
    let quorum = |size| {
        let strategy = Strategy::StaticQuorum { role: None, quorum_size: 3 };
        warnings(ClusterSettings::default().with_resolver(SbrSettings::with_strategy(strategy)), size)
    };
    assert_eq!((quorum(5), quorum(6), quorum(8)), (0, 1, 3));
}

/// cluster S4: a warning at every Up while the cluster has more members than each member watches, and fewer than twice
/// as many.
#[test]
fn a_warning_at_every_up_while_loss_is_found_in_stages() {
    let mut settings = ClusterSettings::default().with_resolver(SbrSettings::default());
    settings.failure_detector.monitored_by_nr_of_members = 3;
    let count = |size| warnings(settings.clone(), size);
    // More than 3 + 1 members, and less than 8.
    assert_eq!((count(4), count(5), count(7), count(8), count(10)), (0, 1, 3, 3, 3));
    assert_eq!(warnings(ClusterSettings::default(), 7), 0, "without a resolver there is no warning");
}

/// cluster S19: a report that this node was quarantined counts only from a member that is not Down itself, only for the
/// reason of removal, and not from a member that is about to end in order.
#[test]
fn scenario_54_a_removal_is_believed_from_members_that_are_not_down() {
    use QuarantineReason::{DeliveryGaveUp, Manual, RemovedFromMembership};
    let cases = [
        ('b', RemovedFromMembership, MemberStatus::Up, true),
        ('c', RemovedFromMembership, MemberStatus::Up, false),
        ('z', RemovedFromMembership, MemberStatus::Up, false),
        ('b', Manual, MemberStatus::Up, false),
        ('b', DeliveryGaveUp, MemberStatus::Up, false),
        ('b', RemovedFromMembership, MemberStatus::Leaving, true),
        ('b', RemovedFromMembership, MemberStatus::Exiting, false),
    ];
    for (by, reason, own, believed) in cases {
        let now = Instant::now();
        let mut core = ClusterCore::new(node('a'), ClusterSettings::default(), 1, now);
        core.handle(now, Input::Command(Command::JoinSeeds(vec![node('a').address().clone()])), &mut Vec::new());
        for status in [MemberStatus::Up, MemberStatus::Leaving, MemberStatus::Exiting] {
            let mut gossip = Gossip::clone(core.gossip());
            gossip.members.insert(member('b'));
            let mut c = member('c');
            c.status = MemberStatus::Down;
            gossip.members.insert(c);
            gossip.members.get_mut(&node('a')).unwrap().status = status;
            core.change(now, gossip, &mut Vec::new());
            if status == own {
                break;
            }
        }
        let mut out = Vec::new();
        core.handle(now, Input::ThisNodeQuarantined { by: node(by), reason }, &mut out);
        let downed = out.contains(&Effect::Publish(ClusterEvent::SelfDowned));
        assert_eq!(downed, believed, "{by} says {reason:?} to a member that is {own}");
        assert!(out.iter().any(|effect| matches!(effect, Effect::Log(LogLevel::Warn, _))), "{by}: it is logged");
    }
}

/// A node `a` with status `own`, with a `b` of status `of_b`, and an Up `c`.
fn core_with(own: MemberStatus, of_b: MemberStatus) -> (ClusterCore, Instant) {
    let now = Instant::now();
    let mut core = ClusterCore::new(node('a'), ClusterSettings::default(), 1, now);
    core.handle(now, Input::Command(Command::JoinSeeds(vec![node('a').address().clone()])), &mut Vec::new());
    let path = [MemberStatus::Up, MemberStatus::Leaving, MemberStatus::Exiting, MemberStatus::Down];
    for status in path {
        let mut gossip = Gossip::clone(core.gossip());
        gossip.members.insert(member('c'));
        let mut b = member('b');
        b.status = status.min(of_b);
        gossip.members.insert(b);
        gossip.members.get_mut(&node('a')).unwrap().status = status.min(own);
        core.change(now, gossip, &mut Vec::new());
    }
    (core, now)
}

/// cluster S20: an Exiting member keeps its status and is only marked dead; any other goes Down; a node that is Exiting
/// or Down itself proves no death, and no node proves its own.
#[test]
fn a_proof_marks_exiting_members_dead_and_downs_others() {
    use MemberStatus::{Down, Exiting, Leaving, Up};
    for (own, of_b, expected) in [
        (Up, Up, (Down, true)),
        (Leaving, Up, (Down, true)),
        (Up, Exiting, (Exiting, true)),
        (Up, Down, (Down, true)),
        (Exiting, Up, (Up, false)),
        (Down, Up, (Up, false)),
    ] {
        let (mut core, now) = core_with(own, of_b);
        let mut out = Vec::new();
        for name in ['b', 'a'] {
            core.handle(now, Input::DeathWitnessed(node(name)), &mut out);
        }
        let b = core.gossip().members.get(&node('b')).unwrap();
        assert_eq!((b.status, b.dead), expected, "{own} proves a death of {of_b}");
        assert!(!core.gossip().members.get(&node('a')).unwrap().dead);
        let terminated = core.gossip().reachability.status(&node('a'), &node('b')) == Status::Terminated;
        let told = out.iter().any(|effect| matches!(published(effect), Some(ClusterEvent::ProvenDead { .. })));
        assert_eq!((terminated, told), (expected.1, expected.1));
    }
}

/// A member that left in order and closed its port before this node heard of its exit causes no warning; any other
/// death does.
#[test]
fn the_closed_port_of_a_member_that_leaves_is_no_warning() {
    use MemberStatus::{Exiting, Leaving, Up};
    for (of_b, how, expected) in [
        (Exiting, Proof::Refused, LogLevel::Info),
        (Exiting, Proof::Witnessed, LogLevel::Warn),
        (Leaving, Proof::Refused, LogLevel::Info),
        (Up, Proof::Refused, LogLevel::Warn),
    ] {
        let (mut core, now) = core_with(Up, of_b);
        let mut out = Vec::new();
        core.prove_dead(now, &[node('b')], how, &mut out);
        let level = out.iter().find_map(|effect| match effect {
            Effect::Log(level, text) if text.contains("is dead") => Some(*level),
            _ => None,
        });
        assert_eq!(level, Some(expected), "{of_b}, {how:?}");
    }
}

/// cluster S20: no dial of a member whose exit is confirmed or that is dead, none by a node that leaves for good, none
/// with `off`; for any other watched member the loss of its control stream starts one.
#[test]
fn scenario_62_members_without_a_confirmed_exit_are_dialled() {
    use MemberStatus::{Exiting, Up};
    let dials = |core: &mut ClusterCore, now| {
        let mut out = Vec::new();
        core.handle(now, Input::LinkLost(node('b')), &mut out);
        out.contains(&Effect::Dial(node('b')))
    };
    let (mut core, now) = core_with(Up, Up);
    assert!(dials(&mut core, now));
    let (mut core, now) = core_with(Up, Exiting);
    assert!(dials(&mut core, now), "its exit is not confirmed");
    let (mut core, now) = core_with(Up, Exiting);
    let message = crate::membership::message::Message::ExitingConfirmed { clean: true };
    core.handle(now, Input::Message { from: node('b'), message, received_at: now }, &mut Vec::new());
    assert!(!dials(&mut core, now), "its exit is confirmed");
    let (mut core, now) = core_with(Up, Up);
    core.handle(now, Input::DeathWitnessed(node('b')), &mut Vec::new());
    assert!(!dials(&mut core, now), "it is dead");
    let (mut core, now) = core_with(Exiting, Up);
    assert!(!dials(&mut core, now), "this node leaves for good");
}
