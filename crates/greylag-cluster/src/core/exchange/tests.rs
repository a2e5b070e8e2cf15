use super::*;
use crate::core::{ClusterCore, Command, Input};
use crate::gossip::reachability::Status;
use crate::membership::app_version::AppVersion;
use crate::membership::member::{Member, MemberStatus};
use crate::membership::message::PROTOCOL;
use crate::testing::side_by_side::STEPS;

const MEMBERS: u64 = 1000;

fn node(number: u64) -> UniqueAddress {
    format!("n{number:04}:1#{}", number + 1).parse().unwrap()
}

/// A member of a big cluster whose state three members have changed.
struct Bench {
    core: ClusterCore,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let core = ClusterCore::new(node(0), ClusterSettings::default(), 1, now);
        let mut bench = Self { core, now };
        bench.handle(Input::Command(Command::JoinSeeds(vec![node(0).address().clone()])));
        let join = Message::Join {
            roles: vec!["dc-default".to_owned()],
            app_version: AppVersion::default(),
            protocol: PROTOCOL,
            cluster_id: bench.core.gossip().cluster_id,
            data_center: "default".into(),
            host_id: None,
        };
        bench.receive(join);
        bench.gossip(|gossip| {
            for number in 2..MEMBERS {
                let mut member = Member::joining(node(number), Arc::default(), AppVersion::default());
                (member.status, member.up_number) = (MemberStatus::Up, number as u32);
                gossip.members.insert(member);
            }
            gossip.version.increment(&node(1));
            gossip.version.increment(&node(2));
        });
        assert_eq!(bench.core.gossip().members.len() as u64, MEMBERS);
        bench
    }

    fn handle(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.core.handle(self.now, input, &mut out);
        out
    }

    /// Handles a message of another member.
    fn receive(&mut self, message: Message) -> Vec<Effect> {
        let received_at = self.now;
        self.handle(Input::Message { from: node(1), message, received_at })
    }

    /// Handles gossip: this node's state after `change`, as the wire carries it.
    fn gossip(&mut self, change: impl FnOnce(&mut Gossip)) -> Vec<Effect> {
        let mut gossip = Gossip::clone(self.core.gossip());
        change(&mut gossip);
        gossip.seen.move_to(gossip.members.places().clone());
        let sent = Message::GossipEnvelope { to: node(0), gossip: Arc::new(gossip), suspect: false };
        self.receive(Message::from_bytes(sent.manifest(), sent.to_bytes()).unwrap())
    }
}

fn steps(work: impl FnOnce()) -> usize {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}

/// cluster C5: a status compares two digests and the versions, sends nothing, changes nothing, and reads no member.
#[test]
fn a_status_of_the_same_state_costs_a_walk_along_its_version() {
    let mut bench = Bench::new();
    let gossip = bench.core.gossip().clone();
    let view = bench.core.view().clone();
    let version: VectorVersion = gossip.version.iter().map(|(node, count)| (node.clone(), count)).collect();
    let entries = version.iter().len();
    let seen_digest = gossip.seen.digest();
    let status = Message::GossipStatus { to: node(0), version: version.into(), seen_digest, suspect: false };
    let taken = steps(|| assert_eq!(bench.receive(status), []));
    assert!(taken <= entries + 1, "{taken} steps for {entries} entries");
    assert!(Arc::ptr_eq(bench.core.gossip(), &gossip), "the state is the same value");
    assert!(Arc::ptr_eq(bench.core.view(), &view), "and so is what is shown");
}

/// cluster C5: the members, and everything derived from them, are shared with the state before.
#[test]
fn a_change_of_seen_copies_nothing_else() {
    let mut bench = Bench::new();
    let before = bench.core.gossip().clone();
    let taken = steps(|| {
        bench.gossip(|gossip| {
            gossip.seen.insert(node(7));
        });
    });
    let after = bench.core.gossip();
    assert!(after.seen.contains(&node(7)) && !before.seen.contains(&node(7)));
    assert!(taken <= before.version.iter().len() + 1, "{taken} steps");
    assert!(after.members.is(&before.members) && after.seen.uses_places(before.members.places()));
    assert!(Shared::is(&after.reachability, &before.reachability) && Shared::is(&after.version, &before.version));
    assert!(bench.core.view().members.is(&before.members));
}

/// cluster C5: a newer state is read from the wire as a value of its own; its equal parts are replaced by this node's.
#[test]
fn a_newer_state_shares_what_it_does_not_change() {
    let mut bench = Bench::new();
    let before = bench.core.gossip().clone();
    bench.gossip(|gossip| {
        gossip.reachability.set(&node(1), &node(2), Status::Unreachable);
        gossip.version.increment(&node(1));
    });
    let after = bench.core.gossip();
    assert_eq!(after.reachability.status(&node(1), &node(2)), Status::Unreachable);
    assert!(after.members.is(&before.members) && after.seen.uses_places(before.members.places()));
    assert!(Shared::is(&after.tombstones, &before.tombstones));
    assert!(Shared::is(&bench.core.view().unreachable, after.reachability.unreachable()), "derived once");
}

/// cluster M6: each arriving state is counted by the relation of its version to that of this node.
#[test]
fn states_that_arrive_are_counted_by_what_they_know() {
    let mut bench = Bench::new();
    let older = Gossip::clone(bench.core.gossip());
    let counts = |bench: &Bench| {
        let stats = bench.core.gossip_stats();
        [stats.same, stats.newer, stats.older, stats.merged]
    };
    let [same, newer, older_ones, merged] = counts(&bench);
    bench.gossip(|_| {});
    assert_eq!(counts(&bench), [same + 1, newer, older_ones, merged]);
    bench.gossip(|gossip| gossip.version.increment(&node(1)));
    assert_eq!(counts(&bench), [same + 1, newer + 1, older_ones, merged]);
    bench.gossip(|gossip| *gossip = older.clone());
    assert_eq!(counts(&bench), [same + 1, newer + 1, older_ones + 1, merged]);
    bench.gossip(|gossip| {
        *gossip = older.clone();
        gossip.version.increment(&node(2));
    });
    assert_eq!(counts(&bench), [same + 1, newer + 1, older_ones + 1, merged + 1]);
}

/// cluster M11, C5: a target is drawn by places, and no address is copied.
#[test]
fn a_gossip_at_rest_is_a_status_with_the_shared_version() {
    let mut bench = Bench::new();
    bench.gossip(|gossip| (0..MEMBERS).for_each(|number| _ = gossip.seen.insert(node(number))));
    let version = bench.core.gossip().version.clone();
    bench.now += Duration::from_secs(3);
    let mut out = Vec::new();
    let taken = steps(|| bench.core.gossip_to_one(&mut out));
    let [Effect::Send { message: Message::GossipStatus { version: sent, .. }, .. }] = out.as_slice() else {
        panic!("{out:?}")
    };
    assert!(Shared::is(sent, &version) && taken == 0);
}

#[test]
fn scenario_34_the_bias_falls_with_the_size_of_the_cluster() {
    for (members, expected) in [(2, 0.8), (400, 0.8), (800, 0.44), (1200, 0.08), (5000, 0.08)] {
        let p = different_view_probability(0.8, 400, members);
        assert!((p - expected).abs() < 1e-9, "{members}: {p}");
    }
}
