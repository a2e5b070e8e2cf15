//! Clauses that show in few pictures only: each test fails without the clause that it names.

use super::*;

/// cluster S3, S20: a dead member is not part of the picture. If the witness was wrong, and the process that counts as
/// dead has seen the state, that makes no member indirectly connected.
#[test]
fn a_dead_member_that_answers_makes_nobody_indirectly_connected() {
    let mut bench = Bench::new();
    bench.prove('a', 'd');
    bench.seen("d");
    bench.unreachable("abc", "e");
    let (_, decision) = bench.decision(30).unwrap();
    assert_eq!(in_order(&decision), "e", "{}", decision.reason);
    assert_eq!(decision.unreachable, BTreeSet::from([node('e')]), "d is not out of reach but gone");
}

/// cluster S20, S3: the accusations of an Exiting member are void once it is dead.
#[test]
fn accusations_by_dead_members_end_the_measurement() {
    let mut bench = Bench::new();
    bench.status('d', MemberStatus::Exiting);
    bench.unreachable("d", "c");
    assert!(bench.sbr.unstable.is_some());
    bench.prove('a', 'd');
    assert!(bench.sbr.unstable.is_none(), "no other member accuses c");
}

/// cluster S20, S13: a proof restarts no part of the measurement: neither its beginning nor the quiet before the
/// ordinary verdict; and it makes no member reachable.
#[test]
fn a_proof_does_not_restart_the_measurement() {
    for status in [MemberStatus::Up, MemberStatus::Exiting] {
        for accused_before in [false, true] {
            let mut bench = Bench::of('a', "abcdefg", SbrSettings::default());
            bench.status('d', status);
            bench.unreachable("abcg", if accused_before { "de" } else { "e" });
            assert_eq!(bench.run(19), None);
            bench.unreachable("abcg", "f");
            assert_eq!(bench.run(14), None);
            bench.prove('a', 'd');
            let expected = Some((2, "ef".into()));
            assert_eq!(bench.run(30), expected, "35 s after e fell silent; d was {status}, accused: {accused_before}");
        }
    }
}

/// cluster S13: of the accusations since the first change, those whose subject is Down or dead by now do not count.
#[test]
fn accusations_of_the_down_and_the_dead_hide_no_sick_node() {
    for dead in [false, true] {
        let mut bench = Bench::of('a', "abcdef", SbrSettings::default());
        bench.unreachable("b", "c");
        if dead {
            bench.status('f', MemberStatus::Exiting);
        }
        bench.unreachable("a", "f");
        if dead {
            bench.prove('a', 'f');
        } else {
            bench.status('f', MemberStatus::Down);
        }
        let (_, decision) = changing_around_b(&mut bench).unwrap();
        assert_eq!(in_order(&decision), "b", "f is dead: {dead}; {}", decision.reason);
    }
}

/// cluster F9: a node that may have been removed meanwhile decides nothing about others, and carries out only its own
/// part of a verdict against its side.
#[test]
fn scenario_64_a_suspect_node_decides_nothing_about_others() {
    let suspect_for = |bench: &mut Bench, seconds: u64| {
        (1..=seconds).find_map(|second| {
            bench.now += Duration::from_secs(1);
            bench.sbr.decide_against_self(bench.now).map(|decision| (second, in_order(&decision), decision.verdict))
        })
    };
    let mut winner = Bench::new();
    winner.unreachable("abc", "de");
    assert_eq!(suspect_for(&mut winner, 60), None);
    assert_eq!(winner.run(1), Some((1, "de".into())), "trusted again");
    let mut loser = Bench::of('d', "abcde", SbrSettings::default());
    loser.unreachable("de", "abc");
    assert_eq!(suspect_for(&mut loser, 60), Some((20, "d".into(), Verdict::DownSelf)));
}
