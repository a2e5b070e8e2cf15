use super::*;
use crate::gossip::reachability::Reachability;
use crate::gossip::reachability::Status::{self, Reachable, Terminated, Unreachable};
use crate::membership::app_version::AppVersion;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

fn member(name: char, status: MemberStatus) -> Member {
    let mut member = Member::joining(node(name), Arc::default(), AppVersion::default());
    member.status = status;
    if status > MemberStatus::WeaklyUp {
        member.up_number = name as u32;
    }
    member
}

/// One resolver, a state to change, and a clock that ticks second by second.
struct Bench {
    sbr: Sbr,
    gossip: Gossip,
    exits: ConfirmedExits,
    now: Instant,
}

impl Bench {
    /// The resolver of `a` among five members that are Up and have seen everything.
    fn new() -> Self {
        Self::of('a', "abcde", SbrSettings::default())
    }

    fn of(own: char, names: &str, settings: SbrSettings) -> Self {
        let now = Instant::now();
        let mut gossip = Gossip::default();
        for name in names.chars() {
            gossip.members.insert(member(name, MemberStatus::Up));
            gossip.seen.insert(node(name));
        }
        let sbr = Sbr::new(node(own), settings, now);
        let mut bench = Self { sbr, gossip, exits: ConfirmedExits::new(), now };
        bench.state();
        bench
    }

    fn state(&mut self) {
        self.sbr.on_state(self.now, &Arc::new(self.gossip.clone()), &self.exits);
    }

    fn mark(&mut self, observers: &str, subjects: &str, status: Status) {
        for observer in observers.chars() {
            for subject in subjects.chars() {
                self.gossip.reachability.set(&node(observer), &node(subject), status);
                self.gossip.seen.remove(&node(subject));
            }
        }
        self.state();
    }

    fn unreachable(&mut self, observers: &str, subjects: &str) {
        self.mark(observers, subjects, Unreachable);
    }

    fn reachable(&mut self, observers: &str, subjects: &str) {
        self.mark(observers, subjects, Reachable);
        self.seen(subjects);
    }

    fn seen(&mut self, names: &str) {
        self.gossip.seen.extend(names.chars().map(node));
        self.state();
    }

    /// Makes a new version that these members have seen, with no relevant difference.
    fn only_seen_by(&mut self, names: &str) {
        self.gossip.seen.retain(|address| names.chars().any(|name| node(name) == *address));
        self.state();
    }

    fn status(&mut self, name: char, status: MemberStatus) {
        let known = self.gossip.members.get(&node(name)).cloned();
        self.gossip.members.insert(Member { status, ..known.unwrap_or_else(|| member(name, status)) });
        self.state();
    }

    fn remove(&mut self, name: char) {
        self.gossip.members.remove(&node(name));
        self.gossip.reachability.retain(|address| *address != node(name));
        self.state();
    }

    /// Proves a death: the prover's record is Terminated, the member dead, and Down unless it is Exiting.
    fn prove(&mut self, prover: char, name: char) {
        let dead = self.gossip.members.get_mut(&node(name)).unwrap();
        dead.dead = true;
        if dead.status != MemberStatus::Exiting {
            dead.status = MemberStatus::Down;
        }
        self.mark(&prover.to_string(), &name.to_string(), Terminated);
    }

    fn decision(&mut self, seconds: u64) -> Option<(u64, DowningDecision)> {
        for second in 1..=seconds {
            self.now += Duration::from_secs(1);
            if let Some(decision) = self.sbr.decide(self.now, false) {
                return Some((second, decision));
            }
        }
        None
    }

    /// The members that the next decision downs, in order, and the second in which it came.
    fn run(&mut self, seconds: u64) -> Option<(u64, String)> {
        self.decision(seconds).map(|(second, decision)| (second, in_order(&decision)))
    }
}

fn in_order(decision: &DowningDecision) -> String {
    decision.downed.iter().map(|node| node.address().host().to_owned()).collect()
}

fn settings(seconds: u64, patience: DownAllWhenUnstable) -> SbrSettings {
    let stable_after = Duration::from_secs(seconds);
    SbrSettings { stable_after, down_all_when_unstable: patience, ..SbrSettings::default() }
}

/// cluster S2, S5.
#[test]
fn scenario_51_only_the_responsible_node_acts() {
    let mut other = Bench::of('b', "abcde", SbrSettings::default());
    other.unreachable("abc", "de");
    assert_eq!(other.run(10), None);
    // b leads once a is out of reach too; the change restarts the wait, and a's accusations are void.
    other.unreachable("bc", "a");
    assert_eq!(other.run(30), Some((20, "cb".into())), "two against three; the own side goes, self last");
    let mut follower = Bench::of('b', "abcde", settings(20, DownAllWhenUnstable::Off));
    follower.unreachable("abc", "de");
    assert_eq!(follower.run(100), None, "a leads");
    let mut joining = Bench::of('a', "bcde", settings(20, DownAllWhenUnstable::Off));
    joining.status('a', MemberStatus::Joining);
    joining.unreachable("a", "bcde");
    assert_eq!(joining.run(100), None, "it was never Up");
    for status in [MemberStatus::WeaklyUp, MemberStatus::Leaving] {
        let mut bench = Bench::of('a', "bcde", SbrSettings::default());
        bench.status('a', MemberStatus::WeaklyUp);
        bench.status('a', status);
        bench.unreachable("a", "bcde");
        assert_eq!(bench.run(30), Some((20, "a".into())), "{status} decides like any other");
    }
}

/// cluster S4: relevant changes restart the wait, others do not.
#[test]
fn scenario_51_only_what_is_relevant_restarts_the_wait() {
    let cases: [(&str, fn(&mut Bench), u64); 13] = [
        ("unreachable", |bench| bench.unreachable("abc", "d"), 20),
        ("reachable", |bench| bench.reachable("abc", "f"), 20),
        ("downed", |bench| bench.status('f', MemberStatus::Down), 20),
        ("up", |bench| bench.status('j', MemberStatus::Up), 20),
        ("exited", |bench| bench.status('c', MemberStatus::Exiting), 20),
        ("joining", |bench| bench.status('x', MemberStatus::Joining), 10),
        ("weakly up", |bench| bench.status('j', MemberStatus::WeaklyUp), 10),
        ("leaving", |bench| bench.status('c', MemberStatus::Leaving), 10),
        ("seen", |bench| bench.seen("b"), 10),
        ("one more accuser", |bench| bench.unreachable("d", "e"), 10),
        ("one accuser less", |bench| bench.reachable("a", "e"), 10),
        ("removed, and with it the only one that accuses i", |bench| bench.remove('g'), 10),
        ("removed, and accused until then", |bench| bench.remove('h'), 10),
    ];
    for (what, change, expected) in cases {
        let mut bench = Bench::of('a', "abcdefi", SbrSettings::default());
        bench.status('j', MemberStatus::Joining);
        bench.status('g', MemberStatus::Exiting);
        bench.status('h', MemberStatus::Exiting);
        bench.unreachable("abc", "efh");
        bench.unreachable("g", "i");
        assert_eq!(bench.run(10), None);
        change(&mut bench);
        let decision = bench.decision(30).map(|(second, _)| second);
        assert_eq!(decision, Some(expected), "{what}");
    }
}

/// cluster S4.
#[test]
fn scenario_51_members_that_heal_or_go_in_time_are_not_downed() {
    let mut healed = Bench::new();
    healed.unreachable("abc", "de");
    assert_eq!(healed.run(19), None);
    healed.reachable("abc", "de");
    assert_eq!(healed.run(100), None);
    let mut removed = Bench::new();
    removed.unreachable("abcd", "e");
    assert_eq!(removed.run(19), None);
    removed.remove('e');
    assert_eq!(removed.run(100), None);
    for status in [MemberStatus::Down, MemberStatus::Exiting] {
        let mut settled = Bench::new();
        settled.status('e', status);
        settled.unreachable("abcd", "e");
        assert_eq!(settled.run(100), None, "{status}");
    }
    let mut busy = Bench::new();
    busy.unreachable("abc", "de");
    for (second, name) in ('f'..='x').enumerate() {
        assert_eq!(busy.run(1), None, "after {second} s");
        busy.status(name, MemberStatus::Joining);
    }
    assert_eq!(busy.run(1), Some((1, "de".into())), "joining members do not put it off");
}

/// cluster S4, 84: a measurement may begin in the middle of a tick, by the leader's actions. Its first check lies ahead
/// all the same, whenever the last check was.
#[test]
fn the_first_look_comes_after_the_measurement_has_begun() {
    let mut bench = Bench::new();
    assert_eq!(bench.sbr.next_deadline(), None);
    for _ in 0..2 {
        bench.now += Duration::from_millis(1500);
        bench.unreachable("abc", "d");
        assert_eq!(bench.sbr.next_deadline(), Some(bench.now + TICK));
        assert_eq!(bench.run(2), None);
        bench.reachable("abc", "d");
        assert_eq!(bench.sbr.next_deadline(), None);
    }
}

/// cluster S4: a decision that downs no member is not repeated at each tick, but the wait starts anew.
#[test]
fn an_empty_decision_is_not_repeated_at_each_tick() {
    let mut bench = Bench::of('a', "abc", SbrSettings::default());
    bench.status('a', MemberStatus::Exiting);
    bench.unreachable("a", "bc");
    // The own side loses, and all of it is Exiting.
    for _ in 0..2 {
        assert_eq!(bench.run(30), Some((20, String::new())));
    }
}

/// cluster F9, S13: a node that woke from a pause decides nothing, and no deadline starts over.
#[test]
fn scenario_64_a_held_node_decides_as_soon_as_the_hold_ends() {
    let mut bench = Bench::new();
    bench.unreachable("abc", "de");
    for _ in 0..30 {
        bench.now += Duration::from_secs(1);
        assert_eq!(bench.sbr.decide(bench.now, true), None);
    }
    assert_eq!(bench.run(1), Some((1, "de".into())));
}

/// cluster S20: a proof postpones only a decision that leaves this node alive.
#[test]
fn a_proof_puts_off_only_a_decision_that_leaves_self_alive() {
    let mut winner = Bench::new();
    winner.unreachable("abcd", "e");
    assert_eq!(winner.run(10), None);
    winner.prove('a', 'd');
    assert_eq!(winner.run(30), Some((20, "e".into())), "a, b, c against e, 20 s after the proof");
    let mut loser = Bench::new();
    loser.unreachable("ab", "cde");
    assert_eq!(loser.run(10), None);
    loser.prove('a', 'b');
    assert_eq!(loser.run(30), Some((10, "a".into())), "at the old deadline");
}

/// cluster S20, S3: dead members count nowhere, and their accusations are void; that makes no member reachable.
#[test]
fn dead_members_do_not_count_and_their_accusations_are_void() {
    let mut alone = Bench::new();
    alone.unreachable("a", "bcd");
    for name in "bcd".chars() {
        alone.prove('a', name);
    }
    assert_eq!(alone.run(100), None, "every unreachable member is dead");
    let mut measured = Bench::new();
    measured.unreachable("abd", "e");
    assert_eq!(measured.run(9), None);
    measured.unreachable("d", "c");
    measured.seen("c");
    measured.prove('a', 'd');
    assert!(measured.sbr.unstable.as_ref().is_some_and(|unstable| !unstable.has_healed()), "c was never away for a");
    assert_eq!(measured.run(40), Some((20, "e".into())), "d is dead: a and b and c against e");
    let mut never = Bench::new();
    never.prove('b', 'e');
    assert!(never.sbr.unstable.is_none(), "a proof starts no measurement");
}

/// cluster S3: whose accusations count, and which members count.
#[test]
fn accusations_by_down_or_dead_members_are_void() {
    for dead in [false, true] {
        let mut bench = Bench::new();
        bench.unreachable("d", "c");
        bench.seen("c");
        let status = if dead { MemberStatus::Exiting } else { MemberStatus::Down };
        bench.gossip.members.get_mut(&node('d')).unwrap().dead = dead;
        bench.status('d', status);
        bench.unreachable("abc", "e");
        assert_eq!(bench.run(30), Some((20, "e".into())), "no other member accuses c; d is {status}, dead: {dead}");
    }
    for (confirmed, verdict) in [(true, Verdict::DownReachable), (false, Verdict::DownAll)] {
        let mut bench = Bench::of('c', "abcde", SbrSettings::default());
        bench.status('e', MemberStatus::Leaving);
        if confirmed {
            bench.exits.insert(node('e'), true);
        }
        bench.unreachable("cde", "ab");
        let (_, decision) = bench.decision(30).unwrap();
        assert_eq!(decision.verdict, verdict, "two against two, e confirmed: {confirmed}");
    }
}

/// cluster S13: after 17 s with 10 s and 7 s, each node in its own view.
#[test]
fn scenario_52_reachability_that_never_rests_ends_everybody() {
    let after = DownAllWhenUnstable::After(Duration::from_secs(7));
    for (own, expected) in [('a', "bcdea"), ('b', "b"), ('c', "c")] {
        let mut bench = Bench::of(own, "abcde", settings(10, after));
        bench.unreachable("abc", "de");
        assert_eq!(bench.run(2), None);
        bench.unreachable("b", "c");
        assert_eq!(bench.run(7), None);
        bench.reachable("b", "c");
        assert_eq!(bench.run(20), Some((8, expected.into())), "17 s after the first, at {own}");
    }
    let mut other_side = Bench::of('d', "abcde", settings(10, after));
    other_side.unreachable("de", "abc");
    assert_eq!(other_side.run(20), Some((10, "ed".into())), "a clean cut as seen from there");
}

/// cluster S13: the default patience, the longer of 4 s and three quarters of `stable_after`.
#[test]
fn the_patience_with_instability_follows_stable_after() {
    for (stable_after, expected) in [(20, 35), (4, 8)] {
        let mut bench = Bench::of('a', "abcde", settings(stable_after, DownAllWhenUnstable::On));
        bench.unreachable("abc", "de");
        let mut at = 0;
        let decision = loop {
            at += 2;
            bench.now += Duration::from_secs(2);
            if let Some(decision) = bench.sbr.decide(bench.now, false) {
                break decision;
            }
            if at % 4 == 2 {
                bench.unreachable("bc", "a");
            } else {
                bench.reachable("bc", "a");
            };
        };
        assert!(at >= expected && at <= expected + 3, "{at} s with {stable_after} s");
        assert_eq!(decision.verdict, Verdict::DownAll);
    }
    let mut off = Bench::of('a', "abcde", settings(4, DownAllWhenUnstable::Off));
    off.unreachable("abc", "de");
    for round in 0..50 {
        assert_eq!(off.run(2), None);
        if round % 2 == 0 {
            off.unreachable("b", "c");
        } else {
            off.reachable("b", "c");
        };
    }
}

/// cluster S13: two crashes 15 to 20 s apart; the three survivors stay.
#[test]
fn scenario_66_a_second_crash_takes_nobody_else_with_it() {
    for apart in [15, 17, 19] {
        let mut bench = Bench::new();
        bench.unreachable("abcd", "e");
        assert_eq!(bench.run(apart), None);
        bench.unreachable("abc", "d");
        let (second, decision) = bench.decision(30).unwrap();
        assert_eq!(in_order(&decision), "de", "{}", decision.reason);
        assert_eq!(second + apart, 35, "by the rule of instability, before the wait has begun anew");
    }
    // A change less than 6 s old is not quiet: all members are downed, since the sides could only guess.
    let mut late = Bench::new();
    late.unreachable("abcd", "e");
    assert_eq!(late.run(19), None);
    late.unreachable("abc", "d");
    assert_eq!(late.run(13), None);
    late.unreachable("ab", "c");
    let (second, decision) = late.decision(10).unwrap();
    assert_eq!((second, decision.verdict), (3, Verdict::DownAll));
}

/// cluster S11, S13: one node misses responses of healthy peers, steadily or changing; only this node is downed.
#[test]
fn scenario_66_one_sick_node_goes_alone() {
    let mut steady = Bench::new();
    steady.unreachable("b", "cd");
    steady.seen("cd");
    assert_eq!(steady.run(30), Some((20, "b".into())));
    let (_, decision) = changing_around_b(&mut Bench::new()).unwrap();
    assert_eq!(in_order(&decision), "b");
}

/// b misses the responses now of one member, now of another; some member is always accused.
fn changing_around_b(bench: &mut Bench) -> Option<(u64, DowningDecision)> {
    bench.unreachable("b", "c");
    for (before, subject) in "cdecdecdecde".chars().zip("decdecdecdec".chars()) {
        bench.unreachable("b", &subject.to_string());
        bench.reachable("b", &before.to_string());
        bench.seen(&subject.to_string());
        if let Some(decision) = bench.decision(4) {
            return Some(decision);
        }
    }
    None
}

/// cluster S11: e accuses all but a, and b, c and d have seen that state: the leader reaches them. A later version that
/// only e and a have seen, and that changes nothing else, does not make the three a side of their own.
#[test]
fn members_that_have_seen_all_accusations_are_reached_although_the_version_moved_on() {
    let mut bench = Bench::new();
    bench.unreachable("e", "bcd");
    assert_eq!(bench.run(1), None);
    bench.seen("bcd");
    assert_eq!(bench.run(18), None);
    bench.only_seen_by("ae");
    let (second, decision) = bench.decision(2).unwrap();
    assert_eq!((second, in_order(&decision)), (1, "e".into()), "{}", decision.reason);
}

/// cluster S11, S4: in a real cut members of the other side are accused anew, and the other side has not seen that. Its
/// having seen earlier accusations does not make it reached, nor its one member that none accuses anew.
#[test]
fn members_that_have_not_seen_the_latest_accusation_are_away() {
    let mut bench = Bench::new();
    bench.unreachable("e", "bcd");
    assert_eq!(bench.run(1), None);
    bench.seen("bcd");
    assert_eq!(bench.run(9), None);
    bench.only_seen_by("ae");
    bench.unreachable("a", "bc");
    let (second, decision) = bench.decision(20).unwrap();
    assert_eq!((second, in_order(&decision)), (10, "ea".into()), "two against three: {}", decision.reason);
}

/// cluster S11, scenario 66: the sick node is accused, too, and lags behind a version that changes nothing. The sick
/// node is downed, and not its accuser.
#[test]
fn scenario_66_the_sick_goes_and_not_who_accuses_it() {
    for lags in [false, true] {
        let mut bench = Bench::new();
        bench.unreachable("e", "bcd");
        bench.unreachable("b", "e");
        bench.seen("bcde");
        assert_eq!(bench.run(10), None);
        if lags {
            bench.only_seen_by("abcd");
        }
        let (_, decision) = bench.decision(20).unwrap();
        assert_eq!(in_order(&decision), "e", "it lags: {lags}; {}", decision.reason);
    }
}

/// cluster S11, S10: all marks stand, the links are back for one exchange, and then cut for good. A member that was
/// heard in that moment is no less away, for both sides accuse; and the minority of a lease waits as in any cut.
#[test]
fn a_member_heard_for_a_moment_of_a_cut_is_away() {
    let back_for_a_moment = |own: char, names: &str, (side, other): (&str, &str), settings: SbrSettings| {
        let mut bench = Bench::of(own, names, settings);
        bench.unreachable(side, other);
        assert_eq!(bench.run(9), None);
        for (observer, subject) in other.chars().flat_map(|o| side.chars().map(move |s| (o, s))) {
            bench.gossip.reachability.set(&node(observer), &node(subject), Unreachable);
        }
        bench.seen("a");
        bench.only_seen_by(side);
        bench
    };
    for strategy in [Strategy::KeepMajority { role: None }, Strategy::KeepOldest { role: None, down_if_alone: false }] {
        let settings = SbrSettings::with_strategy(strategy);
        let (_, decision) = back_for_a_moment('c', "abcd", ("cd", "ab"), settings).decision(30).unwrap();
        assert_eq!(in_order(&decision), "dc", "{}", decision.reason);
    }
    let settings = SbrSettings::with_strategy(Strategy::named("lease_majority", None).unwrap());
    let mut minority = back_for_a_moment('d', "abcde", ("de", "abc"), settings);
    assert_eq!(minority.request(40), Some((22, LeaseRequest::Acquire)), "20 s after both sides accused, and 2 s");
}

/// cluster S13: there is no measurement if all unreachable members are Exiting or removed.
#[test]
fn the_measurement_ends_with_the_last_member_that_could_be_downed() {
    for removed in [false, true] {
        let mut bench = Bench::new();
        bench.unreachable("abcd", "e");
        assert!(bench.sbr.unstable.is_some());
        if removed {
            bench.remove('e');
        } else {
            bench.status('e', MemberStatus::Exiting);
        }
        assert!(bench.sbr.unstable.is_none(), "removed: {removed}");
    }
}

/// cluster S13: the patience is four seconds at least.
#[test]
fn the_patience_with_instability_is_four_seconds_at_least() {
    let mut bench = Bench::of('a', "abcde", settings(4, DownAllWhenUnstable::On));
    bench.unreachable("abc", "de");
    let decided = (1..20).find(|second| {
        bench.now += Duration::from_secs(1);
        let decides = bench.sbr.decide(bench.now, false).is_some();
        if second % 2 == 1 {
            bench.unreachable("bc", "a");
        } else {
            bench.reachable("bc", "a");
        }
        decides
    });
    assert_eq!(decided, Some(8), "4 s, and no less than 4 s");
}

/// cluster S13: only the responsible node downs the sick one; another node ends itself 3 s later.
#[test]
fn only_the_leader_downs_the_sick_one() {
    let mut bench = Bench::of('d', "abcde", SbrSettings::default());
    bench.unreachable("b", "c");
    for (before, subject) in "cecececec".chars().zip("ececececc".chars()).take(8) {
        bench.unreachable("b", &subject.to_string());
        bench.reachable("b", &before.to_string());
        bench.seen(&subject.to_string());
        assert_eq!(bench.run(4), None, "a leads");
    }
    assert_eq!(bench.run(5), None, "a leads");
    let (_, decision) = bench.decision(5).unwrap();
    assert_eq!((decision.verdict, in_order(&decision)), (Verdict::DownSelf, "d".into()));
}

/// cluster S4, S11: having seen a state before the wait restarted proves nothing about the time since.
#[test]
fn members_that_have_seen_nothing_since_the_wait_restarted_are_away() {
    let mut bench = Bench::new();
    bench.unreachable("e", "bcd");
    assert_eq!(bench.run(1), None);
    bench.seen("bcd");
    bench.only_seen_by("ae");
    bench.status('f', MemberStatus::Up);
    let (second, decision) = bench.decision(30).unwrap();
    assert_eq!((second, in_order(&decision)), (20, "bcd".into()), "a wins the tie: {}", decision.reason);
}

/// cluster S13, S11: a node that has just heard from the sick one, and from no member that the sick one accuses, finds
/// no indirect connection. The sick one is downed alone all the same: it is reached, so it is no side of its own.
#[test]
fn scenario_66_a_sick_node_does_not_take_a_leader_along_that_believes_it() {
    let mut bench = Bench::of('b', "abcde", SbrSettings::default());
    bench.unreachable("c", "d");
    for (before, subject) in "dedededed".chars().zip("edededede".chars()).take(8) {
        assert_eq!(bench.run(4), None, "a leads");
        bench.unreachable("c", &subject.to_string());
        bench.reachable("c", &before.to_string());
    }
    bench.unreachable("c", "ade");
    let (_, decision) = bench.decision(4).unwrap();
    assert_eq!(in_order(&decision), "c", "{}", decision.reason);
}

/// cluster S13, S8, G1: a member that is in all records because it is cut off alone is no sick node, but a side, and
/// under keep_oldest the one that may survive.
#[test]
fn a_side_of_one_is_judged_by_the_strategy_and_not_as_a_sick_node() {
    let keep_oldest = Strategy::KeepOldest { role: None, down_if_alone: false };
    for (strategy, expected) in [(keep_oldest, "cb"), (Strategy::KeepMajority { role: None }, "a")] {
        let mut bench = Bench::of('b', "abcd", SbrSettings::with_strategy(strategy));
        bench.unreachable("bcd", "a");
        assert_eq!(bench.run(17), None);
        bench.unreachable("d", "b");
        assert_eq!(bench.run(1), None);
        bench.reachable("d", "b");
        assert_eq!(bench.run(16), None);
        // d's clock is a little fast: d has ended, and its accusations are void.
        bench.status('d', MemberStatus::Down);
        assert_eq!(bench.run(10), Some((1, expected.into())));
    }
}

/// cluster S13: an indirect connection is not sorted out while the picture still changes.
#[test]
fn an_unstable_picture_with_an_indirect_connection_ends_everybody() {
    let mut bench = Bench::new();
    bench.unreachable("b", "c");
    bench.unreachable("c", "b");
    bench.seen("bc");
    assert_eq!(bench.run(17), None);
    bench.unreachable("ad", "e");
    let (second, decision) = bench.decision(30).unwrap();
    assert_eq!((second, decision.verdict), (18, Verdict::DownAll), "{}", decision.reason);
}

/// cluster S13: the responsible node has 3 s; then each node judges for itself.
#[test]
fn nodes_that_are_not_responsible_wait_three_seconds_for_the_leader() {
    let mut bench = Bench::of('c', "abcde", SbrSettings::default());
    bench.unreachable("abcd", "e");
    assert_eq!(bench.run(15), None);
    bench.unreachable("abc", "d");
    let (second, decision) = bench.decision(40).unwrap();
    assert_eq!((second, decision.verdict, in_order(&decision)), (23, Verdict::DownSelf, "c".into()));
}

/// cluster S13: the measurement ends when all members are back; records about Down members, or of removed ones, are
/// void.
#[test]
fn the_measurement_ends_with_its_cause() {
    let mut bench = Bench::new();
    bench.unreachable("abc", "de");
    assert_eq!(bench.run(15), None);
    bench.reachable("abc", "de");
    assert!(bench.sbr.unstable.is_none());
    bench.unreachable("abc", "de");
    assert_eq!(bench.run(30), Some((20, "de".into())), "35 s after the first nothing is remembered");
    let mut down = Bench::new();
    down.unreachable("abcd", "e");
    down.status('e', MemberStatus::Down);
    assert!(down.sbr.unstable.is_none(), "who is Down is no cause");
    let mut void = Bench::of('a', "abcdefg", SbrSettings::default());
    void.unreachable("abcd", "ef");
    for round in 0..16 {
        assert_eq!(void.run(1), None);
        // g is Down, and alternately reachable and unreachable.
        if round == 0 {
            void.status('g', MemberStatus::Down);
        }
        if round % 2 == 0 {
            void.unreachable("abc", "g");
        } else {
            void.reachable("abc", "g");
        }
    }
    assert_eq!(void.run(30), Some((19, "ef".into())), "35 s after e and f fell silent, whatever g does");
}

/// cluster S13: other nodes see a decision by its Down members. A member that is still open is measured there from the
/// beginning of its own silence, not from that of the decided members, and not anew.
#[test]
fn scenario_66_a_decision_by_another_node_ends_what_it_decided() {
    let mut bench = Bench::of('b', "abcdef", SbrSettings::default());
    bench.unreachable("abcdf", "e");
    assert_eq!(bench.run(19), None);
    bench.unreachable("bdf", "c");
    assert_eq!(bench.run(1), None);
    // a, which leads, has not heard of c's silence yet.
    bench.status('e', MemberStatus::Down);
    assert_eq!(bench.run(36), None, "the second crash is 19 s younger than the first");
    let (second, decision) = bench.decision(10).unwrap();
    assert_eq!((second, decision.verdict), (1, Verdict::DownSelf), "38 s after c fell silent, if a does nothing");
}

/// cluster S13: a member that downs itself because of instability does not give the others more time.
#[test]
fn a_member_that_downs_itself_does_not_prolong_the_measurement() {
    let after = DownAllWhenUnstable::After(Duration::from_secs(7));
    let mut bench = Bench::of('c', "abcde", settings(10, after));
    bench.unreachable("abc", "de");
    assert_eq!(bench.run(2), None);
    bench.unreachable("b", "c");
    assert_eq!(bench.run(7), None);
    bench.reachable("b", "c");
    assert_eq!(bench.run(7), None);
    bench.status('b', MemberStatus::Down);
    assert_eq!(bench.run(20), Some((1, "c".into())), "17 s after the first change, as without b's end");
}

/// cluster S4, S11, scenario 73: a void accusation hides neither that its subject came back nor that it fell silent
/// again.
#[test]
fn scenario_73_void_accusations_hide_no_change() {
    let flapped = || {
        let mut bench = Bench::of('c', "abcd", SbrSettings::default());
        bench.unreachable("a", "b");
        bench.unreachable("b", "a");
        bench.seen("ab");
        assert_eq!(bench.run(5), None);
        // Now a and b are cut off; their accusations of each other stay.
        bench.unreachable("cd", "ab");
        assert_eq!(bench.run(9), None);
        // a comes back for a moment; b's accusation of a stays, and is void.
        bench.reachable("cd", "a");
        bench
    };
    let mut settled = flapped();
    assert_eq!(settled.run(30), Some((20, "b".into())), "not 20 s after the first accusation");
    let mut again = flapped();
    assert_eq!(again.run(6), None);
    again.unreachable("cd", "a");
    let (second, decision) = again.decision(30).unwrap();
    assert_eq!((second, decision.verdict), (15, Verdict::DownAll), "35 s after the first: it came back meanwhile");
}

/// cluster S11: a member that has seen the state since the wait began lives, unless it is accused now.
#[test]
fn scenario_50_stale_accusations_in_the_machine() {
    let mut bench = Bench::of('a', "abcdefg", SbrSettings::default());
    bench.unreachable("c", "b");
    assert_eq!(bench.run(5), None);
    bench.unreachable("adefg", "bc");
    assert_eq!(bench.run(30), Some((20, "bc".into())), "five survive");
    let mut heard = Bench::of('a', "abcdefg", SbrSettings::default());
    heard.unreachable("c", "b");
    heard.gossip.seen.remove(&node('c'));
    heard.state();
    let (_, decision) = heard.decision(30).unwrap();
    assert_eq!(in_order(&decision), "b", "c has not seen the newest state, but no member accuses it");
}

/// cluster S12: the limit is a setting of the machine.
#[test]
fn too_many_indirectly_connected_end_everybody() {
    let limited = SbrSettings { down_all_when_indirectly_connected: Some(0.5), ..SbrSettings::default() };
    for (settings, expected) in [(SbrSettings::default(), "bca"), (limited, "bcdea")] {
        let mut bench = Bench::of('a', "abcde", settings);
        bench.unreachable("a", "b");
        bench.unreachable("b", "c");
        bench.unreachable("c", "a");
        bench.seen("abc");
        let (_, decision) = bench.decision(30).unwrap();
        assert_eq!(in_order(&decision), expected, "{}", decision.reason);
    }
}

/// cluster S17: the log line of a decision.
#[test]
fn a_decision_explains_itself() {
    let mut bench = Bench::new();
    bench.status('d', MemberStatus::Joining);
    bench.unreachable("abc", "de");
    let (_, decision) = bench.decision(30).unwrap();
    assert_eq!(
        decision.to_string(),
        "keep_majority decides DownUnreachable: nothing relevant changed for 20s, and 3 members here outnumber 1 out \
         of reach; downed (2): d:1#100, e:1#101; unreachable (2): d:1#100, e:1#101; counted (4): a:1#97, b:1#98, \
         c:1#99, e:1#101; indirectly connected: none"
    );
    let mut pair = Bench::new();
    pair.unreachable("b", "c");
    pair.unreachable("c", "b");
    pair.seen("bc");
    pair.unreachable("abcd", "e");
    let (_, decision) = pair.decision(30).unwrap();
    assert_eq!(
        decision.reason,
        "nothing relevant changed for 20s, and some members reach b:1#98, c:1#99, and others do not; beyond that, 4 \
         members here outnumber 1 out of reach"
    );
    let (_, decision) = changing_around_b(&mut Bench::new()).unwrap();
    assert_eq!(
        decision.reason,
        "reachability has kept changing for 35s, and every accusation since then is by b:1#98 or against it: it is \
         sick, and goes alone"
    );
}

/// cluster S9.
#[test]
fn down_all_ends_every_side() {
    let mut bench = Bench::of('a', "abcde", SbrSettings::with_strategy(Strategy::DownAll));
    bench.unreachable("abc", "de");
    assert_eq!(bench.run(30), Some((20, "bcdea".into())));
}

mod clauses;

mod lease {
    use super::*;

    fn bench(own: char, here: &str, there: &str) -> Bench {
        let mut bench =
            Bench::of(own, "abcde", SbrSettings::with_strategy(Strategy::named("lease_majority", None).unwrap()));
        bench.unreachable(here, there);
        bench
    }

    impl Bench {
        /// Runs until the lease is requested or released; returns the request and the second in which it came.
        pub(super) fn request(&mut self, seconds: u64) -> Option<(u64, LeaseRequest)> {
            (0..=seconds).find_map(|second| {
                self.now += Duration::from_secs(u64::from(second > 0));
                assert_eq!(self.sbr.decide(self.now, false), None);
                self.sbr.lease_request(self.now).map(|request| (second, request))
            })
        }

        fn outcome(&mut self, outcome: LeaseOutcome) -> Option<String> {
            self.sbr.on_lease_outcome(outcome);
            self.sbr.decide(self.now, false).map(|decision| in_order(&decision))
        }

        /// Removes members from the state, with all their records.
        fn remove_all(&mut self, names: &str) {
            for name in names.chars() {
                self.gossip.members.remove(&node(name));
                self.gossip.seen.remove(&node(name));
            }
            self.gossip.reachability = Reachability::default().into();
            self.state();
        }
    }

    /// cluster S10.
    #[test]
    fn scenario_53_the_outcome_decides_and_the_reverse_if_there_is_none() {
        for (outcome, expected) in
            [(LeaseOutcome::Granted, "de"), (LeaseOutcome::Denied, "bca"), (LeaseOutcome::Failed, "bca")]
        {
            let mut bench = bench('a', "abc", "de");
            assert_eq!(bench.request(30), Some((20, LeaseRequest::Acquire)), "the bigger side asks at once");
            assert_eq!(bench.outcome(outcome), Some(expected.into()), "{outcome:?}");
        }
        let mut minority = bench('d', "de", "abc");
        assert_eq!(minority.request(30), Some((22, LeaseRequest::Acquire)), "the smaller side 2 s later");
        assert_eq!(minority.outcome(LeaseOutcome::Denied), Some("ed".into()));
    }

    /// cluster S10: ticks are ignored, and new states wait.
    #[test]
    fn states_wait_in_line_while_the_lease_is_asked_for() {
        let mut bench = bench('a', "abc", "de");
        bench.request(30).unwrap();
        assert_eq!(bench.sbr.next_deadline(), None, "nothing but the answer ends the wait");
        // Heal the cut now, too late: the other side may have been denied the lease.
        bench.gossip.reachability = Reachability::default().into();
        bench.state();
        bench.now += Duration::from_secs(3);
        assert_eq!(bench.sbr.decide(bench.now, false), None);
        assert_eq!(bench.sbr.lease_request(bench.now), None, "it is asked for once");
        assert_eq!(bench.outcome(LeaseOutcome::Granted), Some("de".into()));
        assert_eq!(bench.run(60), None, "the state that waited is the present one now");
    }

    /// cluster S10: a member that falls silent while the lease is requested is decided on after the decision.
    #[test]
    fn members_that_fall_silent_during_a_lease_request_are_decided_on_afterwards() {
        let mut bench = bench('a', "abcd", "e");
        assert_eq!(bench.request(30), Some((20, LeaseRequest::Acquire)));
        bench.unreachable("abc", "d");
        assert_eq!(bench.outcome(LeaseOutcome::Granted), Some("e".into()));
        assert_eq!(bench.request(30), Some((20, LeaseRequest::Acquire)), "d fell silent meanwhile");
    }

    /// cluster S10, F9: a node that woke from a pause acts when the hold ends, if it still holds the lease.
    #[test]
    fn a_grant_is_acted_on_after_a_hold_unless_it_was_lost() {
        for (lost, expected) in [(false, "de"), (true, "bca")] {
            let mut bench = bench('a', "abc", "de");
            bench.request(30).unwrap();
            bench.sbr.on_lease_outcome(LeaseOutcome::Granted);
            assert_eq!(bench.sbr.decide(bench.now, true), None, "held");
            if lost {
                bench.sbr.on_lease_lost();
            }
            let decision = bench.sbr.decide(bench.now, false).unwrap();
            assert_eq!(in_order(&decision), expected);
        }
    }

    /// cluster S10, scenario 53: two members that cannot reach each other make two leaders on one side. The one that is
    /// denied the lease waits for the other's decision under it, and only then ends its side.
    #[test]
    fn scenario_53_a_denied_node_hears_the_decision_of_a_leader_of_its_own_side_first() {
        let denied = || {
            let mut bench =
                Bench::of('b', "abcde", SbrSettings::with_strategy(Strategy::named("lease_majority", None).unwrap()));
            bench.unreachable("a", "c");
            bench.unreachable("c", "a");
            bench.seen("ac");
            assert_eq!(bench.request(30), Some((20, LeaseRequest::Acquire)));
            assert_eq!(bench.outcome(LeaseOutcome::Denied), None);
            bench
        };
        let mut told = denied();
        told.status('a', MemberStatus::Down);
        assert_eq!(told.run(1), None, "c is not Down yet");
        told.status('c', MemberStatus::Down);
        assert_eq!(told.run(60), None, "a has decided for both");
        assert!(!told.sbr.lease.is_waiting());
        let mut alone = denied();
        assert_eq!(alone.sbr.next_deadline(), Some(alone.now + Duration::from_secs(2)));
        assert_eq!(alone.run(60), Some((2, "acdeb".into())));
    }

    /// cluster S10, F9: a node that may have been removed meanwhile requests the lease, and obeys a denial; the effect
    /// of a grant waits until the node is trusted.
    #[test]
    fn scenario_64_a_suspect_node_asks_for_the_lease_and_ends_if_it_is_denied() {
        let asked = || {
            let mut bench = bench('d', "de", "abc");
            for second in 1..=22 {
                bench.now += Duration::from_secs(1);
                assert_eq!(bench.sbr.decide_against_self(bench.now), None);
                let request = bench.sbr.lease_request(bench.now);
                assert_eq!(request, (second == 22).then_some(LeaseRequest::Acquire), "after {second} s");
            }
            bench
        };
        for outcome in [LeaseOutcome::Denied, LeaseOutcome::Failed] {
            let mut denied = asked();
            denied.sbr.on_lease_outcome(outcome);
            let decision = denied.sbr.decide_against_self(denied.now).unwrap();
            assert_eq!((in_order(&decision).as_str(), decision.verdict), ("d", Verdict::DownSelf), "{outcome:?}");
        }
        let mut granted = asked();
        granted.sbr.on_lease_outcome(LeaseOutcome::Granted);
        assert_eq!(granted.sbr.decide_against_self(granted.now), None);
        let trusted = granted.sbr.decide(granted.now, false).unwrap();
        assert_eq!(in_order(&trusted), "abc");
    }

    /// cluster S10: the lease is released 40 s after all downed members are removed; a second verdict meanwhile need
    /// not wait.
    #[test]
    fn the_lease_is_given_back_after_all_downed_are_removed_for_a_while() {
        let mut bench = bench('a', "abc", "de");
        bench.request(30).unwrap();
        bench.outcome(LeaseOutcome::Granted).unwrap();
        bench.remove_all("d");
        assert_eq!(bench.request(50), None, "e is still there");
        bench.remove_all("e");
        assert_eq!(bench.request(60), Some((40, LeaseRequest::Release)));
        assert_eq!(bench.request(60), None, "once");
    }

    /// cluster S10: a lease that is held already is only confirmed.
    #[test]
    fn a_holder_waits_for_no_delay() {
        let mut bench = bench('a', "abc", "de");
        bench.request(30).unwrap();
        bench.outcome(LeaseOutcome::Granted).unwrap();
        bench.remove_all("de");
        // Now two of three are out of reach: this is the smaller side, and yet requests at once.
        bench.unreachable("a", "bc");
        bench.seen("a");
        assert_eq!(bench.request(30), Some((20, LeaseRequest::Acquire)));
        assert_eq!(bench.outcome(LeaseOutcome::Granted), Some("bc".into()));
    }
}
