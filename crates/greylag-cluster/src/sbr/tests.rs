use super::*;
use crate::app_version::AppVersion;
use crate::settings::Strategy;

fn node(name: char) -> UniqueAddress {
    format!("{name}:1#{}", name as u32).parse().unwrap()
}

fn nodes(names: &str) -> BTreeSet<UniqueAddress> {
    names.chars().map(node).collect()
}

fn names(nodes: &BTreeSet<UniqueAddress>) -> String {
    nodes.iter().map(|node| node.address().host().to_owned()).collect()
}

fn member(name: char, status: MemberStatus) -> Member {
    let mut member = Member::joining(node(name), Arc::default(), AppVersion::default());
    member.status = status;
    if status > MemberStatus::WeaklyUp {
        member.up_number = name as u32;
    }
    member
}

/// What the first of `side` sees when `side` cannot reach the rest of `members`.
fn picture(side: &str, members: &[(char, MemberStatus)], extra: &[(char, char)]) -> Picture {
    let all: BTreeMap<UniqueAddress, Member> =
        members.iter().map(|(name, status)| (node(*name), member(*name, *status))).collect();
    let outside = members.iter().map(|(name, _)| *name).filter(|name| !side.contains(*name));
    let mut records: BTreeSet<_> =
        outside.flat_map(|subject| side.chars().map(move |observer| (node(observer), node(subject)))).collect();
    records.extend(extra.iter().map(|(observer, subject)| (node(*observer), node(*subject))));
    let own = node(side.chars().next().unwrap());
    Picture::new(own, all, records, &nodes(side), &nodes(side), BTreeSet::new())
}

fn majority() -> Strategy {
    Strategy::KeepMajority { role: None }
}

fn up(names: &str) -> Vec<(char, MemberStatus)> {
    names.chars().map(|name| (name, MemberStatus::Up)).collect()
}

fn downed(side: &str, members: &[(char, MemberStatus)]) -> String {
    let picture = picture(side, members, &[]);
    names(&resolve(&picture, &majority(), decide(&picture, &majority()).verdict, None).downed)
}

#[test]
fn scenario_45_keep_majority() {
    for (all, side, expected) in [
        ("abcde", "ace", "bd"),
        ("abcde", "bd", "bd"),
        ("abcd", "ab", "cd"),
        ("abcd", "cd", "cd"),
        ("ab", "a", "b"),
        ("ab", "b", "b"),
        ("abcde", "ab", "ab"),
        ("abcde", "cd", "cd"),
        ("abcde", "e", "e"),
    ] {
        assert_eq!(downed(side, &up(all)), expected, "{side} of {all}");
    }
}

#[test]
fn scenario_46_joining_members_do_not_count_but_are_downed() {
    let members =
        [('b', MemberStatus::Up), ('d', MemberStatus::Up), ('a', MemberStatus::Joining), ('c', MemberStatus::Up)];
    // Two against one, but the joining one may be Up over there, and the lowest address with it.
    assert_eq!(downed("bd", &members), "abcd");
    assert_eq!(downed("ac", &members), "ac");
}

/// Every view of five members, every cut, every pair of statuses: the two sides never both survive.
#[test]
fn scenario_69_two_sides_with_views_one_step_apart_never_both_survive() {
    use MemberStatus::{Down, Exiting, Joining, Leaving, Up, WeaklyUp};
    let further = |status: MemberStatus| match status {
        Joining => Up,
        WeaklyUp => Up,
        Up => Leaving,
        Leaving => Exiting,
        other => other,
    };
    let statuses = [Joining, WeaklyUp, Up, Leaving, Exiting, Down];
    let all = "abcd";
    let mut cases = 0;
    for code in 0..statuses.len().pow(4) {
        let mut rest = code;
        let mut left: Vec<(char, MemberStatus)> = Vec::new();
        for name in all.chars() {
            left.push((name, statuses[rest % statuses.len()]));
            rest /= statuses.len();
        }
        for mask in 1_u32..15 {
            let side = |bit: u32| -> String {
                all.chars().enumerate().filter(|(i, _)| (mask >> i) & 1 == bit).map(|(_, name)| name).collect()
            };
            let (ours, theirs) = (side(1), side(0));
            for step in 0..=all.len() {
                let mut right = left.clone();
                if step > 0 {
                    right[step - 1].1 = further(right[step - 1].1);
                }
                let survivors = |side: &str, view: &[(char, MemberStatus)]| -> bool {
                    let picture = picture(side, view, &[]);
                    let counts = picture.counted(None).any(|m| side.contains(m.address.address().host()));
                    let downed = resolve(&picture, &majority(), decide(&picture, &majority()).verdict, None).downed;
                    let downed = names(&downed);
                    counts
                        && picture.has_anything_to_decide()
                        && side.chars().any(|name| {
                            let status = view.iter().find(|(n, _)| *n == name).unwrap().1;
                            status.is_settled() && status != Leaving && !downed.contains(name)
                        })
                };
                cases += 1;
                assert!(
                    !(survivors(&ours, &left) && survivors(&theirs, &right)),
                    "{ours} with {left:?} and {theirs} with {right:?} both survive"
                );
            }
        }
    }
    assert!(cases > 80_000);
}

#[test]
fn scenario_49_and_66_indirect_connections() {
    let decide_names =
        |picture: &Picture| names(&resolve(picture, &majority(), decide(picture, &majority()).verdict, None).downed);
    // One broken pair of five, both accusing each other: the two go.
    let pair = picture("abcde", &up("abcde"), &[('a', 'b'), ('b', 'a')]);
    assert_eq!(decide_names(&pair), "ab");
    // One sick node that misses the answers of two healthy ones: it alone goes.
    let sick = picture("abcde", &up("abcde"), &[('a', 'b'), ('a', 'c')]);
    assert_eq!(decide_names(&sick), "a");
    // A cycle of three.
    let cycle = picture("abcde", &up("abcde"), &[('a', 'b'), ('b', 'c'), ('c', 'a')]);
    assert_eq!(decide_names(&cycle), "abc");
    // A broken pair, and a crash beside it.
    let crash = picture("abde", &up("abcde"), &[('a', 'b'), ('b', 'a')]);
    assert_eq!(decide_names(&crash), "abc");
}

#[test]
fn scenario_50_stale_accusations_of_a_crashed_observer_take_nobody_with_them() {
    // c accused b, then both crashed; the five others accuse both.
    let picture = picture("adefg", &up("abcdefg"), &[('c', 'b')]);
    assert!(picture.indirectly_connected().is_empty());
    assert_eq!(names(&resolve(&picture, &majority(), decide(&picture, &majority()).verdict, None).downed), "bc");
}

struct Bench {
    sbr: Sbr,
    gossip: Gossip,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let mut gossip = Gossip::default();
        for name in "abcde".chars() {
            gossip.members.insert(node(name), member(name, MemberStatus::Up));
            gossip.seen.insert(node(name));
        }
        let mut bench = Self { sbr: Sbr::new(node('a'), SbrSettings::default(), now), gossip, now };
        bench.state();
        bench
    }

    fn state(&mut self) {
        self.sbr.on_state(self.now, &Arc::new(self.gossip.clone()), &ConfirmedExits::new());
    }

    fn mark(&mut self, observers: &str, subjects: &str, status: crate::reachability::Status) {
        for observer in observers.chars() {
            for subject in subjects.chars() {
                self.gossip.reachability.set(&node(observer), &node(subject), status);
                self.gossip.seen.remove(&node(subject));
            }
        }
        self.state();
    }

    /// Ticks second by second; the decision, and after how many seconds it came.
    fn run(&mut self, seconds: u64) -> Option<(u64, String)> {
        for second in 1..=seconds {
            self.now += Duration::from_secs(1);
            if let Some(decision) = self.sbr.decide(self.now, false) {
                return Some((second, names(&decision.downed.into_iter().collect())));
            }
        }
        None
    }
}

#[test]
fn scenario_51_only_after_stable_after_and_only_what_still_stands() {
    use crate::reachability::Status::{Reachable, Unreachable};
    let mut bench = Bench::new();
    bench.mark("abc", "de", Unreachable);
    assert_eq!(bench.run(10), None);
    // A joining member does not put the decision off.
    bench.gossip.members.insert(node('x'), member('x', MemberStatus::Joining));
    bench.state();
    assert_eq!(bench.run(20), Some((10, "de".into())));
    let mut healed = Bench::new();
    healed.mark("abc", "de", Unreachable);
    assert_eq!(healed.run(19), None);
    healed.mark("abc", "de", Reachable);
    assert_eq!(healed.run(100), None);
}

#[test]
fn a_proof_puts_off_only_a_decision_that_leaves_self_alive() {
    use crate::reachability::Status::{Terminated, Unreachable};
    let prove = |bench: &mut Bench, name| {
        let dead = bench.gossip.members.get_mut(&node(name)).unwrap();
        (dead.status, dead.dead) = (MemberStatus::Down, true);
        bench.mark("a", &name.to_string(), Terminated);
    };
    let mut winner = Bench::new();
    winner.mark("abcd", "e", Unreachable);
    assert_eq!(winner.run(10), None);
    prove(&mut winner, 'd');
    assert_eq!(winner.run(30), Some((20, "e".into())), "a, b, c against e, 20 s after the proof");
    let mut loser = Bench::new();
    loser.mark("ab", "cde", Unreachable);
    assert_eq!(loser.run(10), None);
    prove(&mut loser, 'b');
    assert_eq!(loser.run(30), Some((10, "a".into())), "at the old deadline");
}

#[test]
fn scenario_52_reachability_that_never_rests_ends_everybody() {
    use crate::reachability::Status::{Reachable, Unreachable};
    let mut bench = Bench::new();
    bench.mark("abc", "de", Unreachable);
    let mut decision = None;
    for round in 0..10 {
        decision = bench.run(4);
        if decision.is_some() {
            break;
        }
        bench.mark("b", "c", if round % 2 == 0 { Unreachable } else { Reachable });
    }
    assert_eq!(decision.map(|(_, names)| names), Some("abcde".into()));
}
