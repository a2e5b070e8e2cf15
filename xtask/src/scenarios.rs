//! `docs/scenarios.md` names a test for each scenario and for each rule; a test that is not there proves nothing.
//!
//! A document that is whole in Greylag stands in [`WHOLE`]: each of its scenarios, of its rules and of the cases of
//! its conformance kits must have a row. A rule that we left may have none if `docs/departures.md` gives the reason under its id.

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::{Failure, root, rust_files, say};

/// A document that is built whole: its name, its last scenario, and its rules as prefix and last number.
struct Whole {
    document: &'static str,
    scenarios: u32,
    rules: &'static [(&'static str, u32)],
    /// Rules that were put between others later and so bear a letter.
    lettered: &'static [&'static str],
    /// Its conformance kits, each with its last case.
    kits: &'static [(&'static str, u32)],
}

/// The documents that are whole. What `ddata` says of speed (its rules H) is shown by benchmarks, and how its laws
/// are named (L) is up to the suites; `persistence` numbers no rules but those of journals (J), and `sharding` none but its
/// invariants (I). The rules of `delivery` (P, C, K, W, S, D) are what its scenarios show.
const WHOLE: &[Whole] = &[
    Whole {
        document: "cluster",
        scenarios: 85,
        rules: &[("T", 42), ("M", 37), ("F", 12), ("S", 20), ("P", 8), ("G", 4), ("C", 7)],
        lettered: &["M25a", "M25b", "P3a"],
        kits: &[],
    },
    Whole {
        document: "ddata",
        scenarios: 94,
        rules: &[
            ("K", 12),
            ("Y", 11),
            ("A", 10),
            ("R", 17),
            ("G", 17),
            ("Z", 11),
            ("U", 7),
            ("E", 4),
            ("I", 4),
            ("O", 6),
        ],
        lettered: &[],
        kits: &[],
    },
    Whole {
        document: "persistence",
        scenarios: 77,
        rules: &[("J", 13)],
        lettered: &[],
        kits: &[("journal", 46), ("snapshots", 16), ("states", 14), ("queries", 12), ("crash", 7)],
    },
    Whole { document: "sharding", scenarios: 114, rules: &[("I", 6)], lettered: &[], kits: &[] },
    Whole { document: "delivery", scenarios: 103, rules: &[], lettered: &[], kits: &[] },
];

impl Whole {
    /// The ids that must have a row: `cluster 1`, …, `cluster T1`, …, `persistence journal 1`, ….
    fn ids(&self) -> impl Iterator<Item = String> {
        let numbered = (1..=self.scenarios).map(|number| format!("{} {number}", self.document));
        let rules = self.rules.iter().flat_map(|(prefix, last)| (1..=*last).map(move |n| format!("{prefix}{n}")));
        let rules = rules.chain(self.lettered.iter().map(|rule| (*rule).to_owned()));
        let cases = self.kits.iter().flat_map(|(kit, last)| (1..=*last).map(move |n| format!("{kit} {n}")));
        let rules = rules.chain(cases);
        numbered.chain(rules.map(|rule| format!("{} {rule}", self.document)))
    }
}

/// The ids of whole documents that have neither a row nor a reasoned departure.
fn uncovered(rows: &[(&str, &str)], departures: &str) -> Vec<String> {
    let covered: BTreeSet<&str> = rows.iter().map(|(id, _)| *id).collect();
    let ids = WHOLE.iter().flat_map(Whole::ids);
    ids.filter(|id| !covered.contains(id.as_str()) && !names(departures, id)).collect()
}

/// Whether `text` names exactly this id: `cluster T1` is not in `cluster T12`.
fn names(text: &str, id: &str) -> bool {
    text.match_indices(id).any(|(at, _)| !text[at + id.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Checks that every row names a test function, or a transcript file, that exists, and that nothing of a whole
/// document lacks its row.
pub(crate) fn scenarios() -> Result<(), Failure> {
    let path = root().join("docs/scenarios.md");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    if rows.is_empty() {
        return Err("docs/scenarios.md has no row `| <document> <number> | <test> | <note> |`".to_owned());
    }
    let names = test_names(&root())?;
    let mut missing = Vec::new();
    for (scenario, tests) in &rows {
        let named: Vec<_> = tests.split([' ', ',', ';', '(', ')', '`']).filter_map(test_name).collect();
        if named.is_empty() {
            missing.push(format!("{scenario}: {tests:?} names no test"));
        }
        let absent = named.iter().filter(|name| !exists(name, &names));
        missing.extend(absent.map(|name| format!("{scenario}: there is no test {name}")));
    }
    let departures = std::fs::read_to_string(root().join("docs/departures.md"))
        .map_err(|error| format!("cannot read docs/departures.md: {error}"))?;
    let uncovered = uncovered(&rows, &departures);
    missing.extend(uncovered.into_iter().map(|id| format!("{id}: no row, and no departure tells why")));
    if missing.is_empty() {
        say(&format!("scenarios: {} rows, each names a test that is there", rows.len()));
        return Ok(());
    }
    Err(format!("docs/scenarios.md:\n  {}", missing.join("\n  ")))
}

/// `| cluster 12 | greylag_cluster::gossip::test_name | note |` as scenario, or rule, and test.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (scenario, test) = (cells.next()?, cells.next()?);
    // What tables are headed by, and the lines under it, are one word.
    scenario.contains(' ').then_some((scenario, test.trim_matches('`')))
}

/// The name of the test in a word such as `crate::module::test` or `tests/protocol/file.txt`.
///
/// A word that names only a crate, a module's file, or nothing at all is `None`.
fn test_name(word: &str) -> Option<&str> {
    let is_path = word.contains("::") || word.contains('/');
    let last = word.rsplit([':', '/']).next().unwrap_or(word);
    let is_case = word.contains("::tck::");
    let is_name =
        last.ends_with(".txt") || is_case || (last.contains('_') && (is_path || !last.starts_with("greylag_")));
    (is_name && !last.ends_with(".rs")).then_some(last)
}

/// `scenario_14_*` stands for every test that begins so.
fn exists(name: &str, names: &BTreeSet<String>) -> bool {
    match name.split_once('*') {
        Some((begin, end)) => names.iter().any(|known| known.starts_with(begin) && known.ends_with(end)),
        None => names.contains(name),
    }
}

/// The names of all functions, and of all transcripts.
fn test_names(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut names = BTreeSet::new();
    for directory in ["attack", "crates", "examples", "jobs", "netns", "simulation", "soak"] {
        for file in rust_files(&root.join(directory))? {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            names.extend(text.split("fn ").skip(1).filter_map(identifier));
            // Tables of named cases make their tests with a macro.
            names.extend(text.lines().filter_map(|line| identifier(line.trim().strip_prefix("case ")?)));
        }
    }
    names.extend(transcripts(&root.join("crates"))?);
    Ok(names)
}

fn identifier(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

fn transcripts(crates: &Path) -> Result<Vec<String>, Failure> {
    let list = |path: &Path| std::fs::read_dir(path).map_err(|e| format!("cannot list {}: {e}", path.display()));
    let mut names = Vec::new();
    for member in list(crates)?.filter_map(Result::ok) {
        let tests = member.path().join("tests");
        let directories = if tests.is_dir() { list(&tests)?.collect() } else { Vec::new() };
        for directory in directories.into_iter().filter_map(Result::ok).map(|entry| entry.path()) {
            if directory.is_dir() && directory.to_string_lossy().ends_with("protocol") {
                names.extend(list(&directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_from_the_table_around_them() {
        assert_eq!(row("| cluster 12 | `a::b::c` | note |"), Some(("cluster 12", "a::b::c")));
        assert_eq!(row("| cluster M25a | a::b | |"), Some(("cluster M25a", "a::b")));
        assert_eq!(row("| scenario | test | note |"), None);
        assert_eq!(row("| ddata L1-L6, L7 | a::b | |"), Some(("ddata L1-L6, L7", "a::b")));
        assert_eq!(row("|---|---|---|"), None);
        assert_eq!(test_name("greylag_cluster::gossip::merge_commutes"), Some("merge_commutes"));
        assert_eq!(test_name("tests/protocol/join.txt"), Some("join.txt"));
        assert_eq!(test_name("greylag_cluster"), None);
        assert_eq!(test_name("greylag_persistence::tck::snapshots::newest"), Some("newest"));
        assert_eq!(test_name("tests/simulation.rs"), None);
    }

    #[test]
    fn a_star_stands_for_at_least_one_test() {
        let names = BTreeSet::from(["scenario_14_a".to_owned(), "join_2.txt".to_owned()]);
        assert!(exists("scenario_14_*", &names) && exists("join_*.txt", &names));
        assert!(!exists("scenario_15_*", &names) && !exists("scenario_14", &names));
    }

    #[test]
    fn a_rule_without_a_row_is_found_unless_a_departure_names_it() {
        let ids: Vec<_> = WHOLE.iter().flat_map(Whole::ids).collect();
        let rows: Vec<_> = ids.iter().filter(|id| *id != "cluster T1").map(|id| (id.as_str(), "a::b_c")).collect();
        assert_eq!(uncovered(&rows, "- **cluster T12.** Otherwise."), ["cluster T1"]);
        assert!(uncovered(&rows, "- **cluster T1.** Otherwise.").is_empty());
    }

    #[test]
    fn this_test_is_among_the_names() {
        let names: Vec<_> =
            "fn one() {}\n async fn two_b<T>() {}".split("fn ").skip(1).filter_map(identifier).collect();
        assert_eq!(names, ["one", "two_b"]);
    }
}
