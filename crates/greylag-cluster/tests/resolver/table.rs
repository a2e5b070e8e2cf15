//! The table of cases in `tests/data/resolver.txt`, whose head explains its columns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greylag_cluster::strategy::{Picture, Record, SeenBy, decide, resolve};
use greylag_cluster::{MemberStatus, Strategy, Verdict};
use greylag_core::UniqueAddress;

use super::sides::{self, Members};

const TABLE: &str = include_str!("../data/resolver.txt");

/// cluster S3, S5 to S12; scenarios 45 to 50 and the verdicts of 53.
#[test]
fn scenarios_45_to_50_the_table_of_the_resolver() {
    let rows: Vec<(usize, &str)> = TABLE
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
        .collect();
    let mut wrong = Vec::new();
    for (number, line) in &rows {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [strategy, members, view, records, verdict, downed] = columns[..] else {
            panic!("line {number} has {} columns", columns.len())
        };
        let actual = answer(strategy, members, view, records);
        if actual != (verdict.to_owned(), downed.to_owned()) {
            wrong.push(format!("{number}: {line}\n    is {} | {}", actual.0, actual.1));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(rows.len() >= 120, "{} rows", rows.len());
}

/// The verdict, and the members that it downs; with a lease, those on a grant and those on a denial.
fn answer(strategy: &str, members: &str, view: &str, records: &str) -> (String, String) {
    let (strategy, limit) = parse_strategy(strategy);
    let picture = parse_picture(members, view, records);
    let verdict = decide(&picture, &strategy).verdict;
    let downed = |verdict| letters(&resolve(&picture, &strategy, verdict, limit).downed);
    let name = match verdict {
        Verdict::AcquireLeaseAndDownUnreachable { delay } => format!("AcquireLease {}s", delay.as_secs()),
        Verdict::AcquireLeaseAndDownIndirectlyConnected => "AcquireLease indirect".to_owned(),
        other => format!("{other:?}"),
    };
    if verdict.lease_delay().is_some() {
        return (name, format!("{} / {}", downed(verdict.granted()), downed(verdict.denied())));
    }
    (name, downed(verdict))
}

fn letters(nodes: &BTreeSet<UniqueAddress>) -> String {
    let letters: String = nodes.iter().map(|node| node.address().host().to_owned()).collect();
    if letters.is_empty() { "-".to_owned() } else { letters }
}

fn parse_strategy(text: &str) -> (Strategy, Option<f64>) {
    let words: Vec<&str> = text.split_whitespace().collect();
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let role = value("role=").map(ToOwned::to_owned);
    let strategy = match words[0] {
        "majority" => Strategy::KeepMajority { role },
        "quorum" => Strategy::StaticQuorum { role, quorum_size: words[1].parse().expect("a size") },
        "oldest" => Strategy::KeepOldest { role, down_if_alone: !words.contains(&"though-alone") },
        "all" => Strategy::DownAll,
        "lease" => Strategy::LeaseMajority {
            lease_name: None,
            acquire_lease_delay_for_minority: Duration::from_secs(2),
            release_after: Duration::from_secs(40),
            role,
        },
        other => panic!("no strategy {other}"),
    };
    (strategy, value("limit=").map(|limit| limit.parse().expect("a fraction")))
}

fn index(name: char) -> usize {
    name as usize - 'a' as usize
}

fn nodes(names: &str) -> BTreeSet<UniqueAddress> {
    names.chars().map(|name| sides::node(index(name))).collect()
}

/// Ages and roles, as defined in the head of the table.
fn defaults(name: char) -> (u32, &'static [&'static str]) {
    match name {
        'a' => (5, &["r3"]),
        'b' => (4, &["r1", "r3"]),
        'c' => (3, &["r2"]),
        'd' => (2, &["r1", "r2", "r3"]),
        'e' => (1, &[]),
        other => (u32::try_from(index(other)).expect("few") + 1, &[]),
    }
}

fn parse_member(word: &str) -> (char, MemberStatus, bool) {
    let (name, status) = word.split_once(':').unwrap_or((word, "up"));
    let status = match status {
        "joining" => MemberStatus::Joining,
        "weakly" => MemberStatus::WeaklyUp,
        "up" => MemberStatus::Up,
        "preparing" => MemberStatus::PreparingForShutdown,
        "ready" => MemberStatus::ReadyForShutdown,
        "leaving" => MemberStatus::Leaving,
        "exiting" | "confirmed" => MemberStatus::Exiting,
        "down" => MemberStatus::Down,
        other => panic!("no status {other}"),
    };
    (name.chars().next().expect("a name"), status, word.ends_with(":confirmed"))
}

fn parse_picture(members: &str, view: &str, records: &str) -> Picture {
    let mut all = Members::new();
    let mut exits = BTreeSet::new();
    for word in members.split_whitespace() {
        let (name, status, confirmed) = parse_member(word);
        let (age, roles) = defaults(name);
        all.insert(sides::node(index(name)), sides::member(index(name), status, age, roles));
        if confirmed {
            exits.insert(sides::node(index(name)));
        }
    }
    let side = nodes(view);
    let own = sides::node(index(view.chars().next().expect("a member looks")));
    let words: BTreeMap<&str, &str> = records.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    let mut found: BTreeSet<Record> = BTreeSet::new();
    for word in records.split_whitespace() {
        if word == "cut" {
            let outside = || all.keys().filter(|address| !side.contains(*address));
            let cut =
                side.iter().flat_map(|observer| outside().map(move |subject| (observer.clone(), subject.clone())));
            found.extend(cut);
        } else if let Some((observers, subjects)) = word.split_once('>') {
            for observer in nodes(observers) {
                found.extend(nodes(subjects).into_iter().map(|subject| (observer.clone(), subject)));
            }
        }
    }
    let now = words.get("seen").map_or_else(|| side.clone(), |names| nodes(names));
    let named = |key: &str| words.get(key).map_or_else(|| now.clone(), |names| nodes(names));
    let (since, accused) = (named("since"), named("accused"));
    Picture::new(own, all, found, SeenBy { now, since, accused }, exits)
}
