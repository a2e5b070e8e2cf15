//! Checks `docs/scenarios.md`, which names a test for each scenario and for each rule: the tests must exist where they are
//! said to be.
//!
//! Each anchor of `docs/spec` for a scenario, a rule or a case of the conformance kits needs a row. [`SHOWN_OTHERWISE`]
//! lists the rules that need none; scenarios and rules without a test are listed, each with its reason, at the end of the
//! page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::citations::{Vocabulary, citations, shown};
use crate::run::{Failure, root, rust_files, say};
use crate::spec::{self, Anchors};

/// The documents with scenarios.
const DOCUMENTS: &[&str] = &["cluster", "ddata", "delivery", "persistence", "sharding"];

/// The rules of a document, by their first letters, that need no row. The rules D of `cluster` and `ddata` describe
/// differences from other systems, and the rules that they name have the tests; the scenarios of `delivery` test its rules.
const SHOWN_OTHERWISE: &[(&str, &str)] = &[("cluster", "D"), ("ddata", "D"), ("delivery", "CDIKPSW")];

/// Heading of the list of scenarios and rules without a test, such as `- cluster T42: the reason`.
const WITHOUT: &str = "## Without a test, and why";

/// The ids that must have a row: `cluster 1`, `cluster T1`, `persistence journal 1`.
fn needed(anchors: &Anchors) -> BTreeSet<String> {
    let all = anchors.iter().flat_map(|(document, ids)| ids.iter().map(move |id| (document.as_str(), id.as_str())));
    let shown_by_tests = all.filter(|(document, id)| DOCUMENTS.contains(document) && needs_row(document, id));
    shown_by_tests.map(|(document, id)| shown(document, id)).collect()
}

fn needs_row(document: &str, id: &str) -> bool {
    let is_section = id.strip_prefix('s').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let otherwise = |(of, letters): &(&str, &str)| *of == document && id.starts_with(|c| letters.contains(c));
    !is_section && !SHOWN_OTHERWISE.iter().any(otherwise)
}

/// The ids that have neither a row nor a line in the list of those without a test, and the errors in that list.
fn coverage_errors(
    covered: &BTreeSet<String>,
    without: &BTreeMap<&str, &str>,
    needed: &BTreeSet<String>,
) -> Vec<String> {
    let bare = needed.iter().filter(|id| !covered.contains(*id) && !without.contains_key(id.as_str()));
    let bare = bare.map(|id| format!("{id}: no row, and no reason under `{WITHOUT}`"));
    let listed = without.iter().filter_map(|(id, reason)| {
        let wrong = if covered.contains(*id) {
            "has a row: delete it from the list of those without a test"
        } else if !needed.contains(*id) {
            "needs no row, or is not in docs/spec: delete it from the list of those without a test"
        } else if reason.is_empty() {
            "is on the list of those without a test, but without a reason: add the reason"
        } else {
            return None;
        };
        Some(format!("{id}: {wrong}"))
    });
    bare.chain(listed).collect()
}

/// The ids that the tests of a row cover completely: `ddata A7, A8` are two, and `ddata Z6 (types)` is a part of one.
fn covered_ids(ids: &str, words: &Vocabulary) -> Vec<String> {
    let cited = if ids.contains('(') { Vec::new() } else { citations("", ids, words).citations };
    cited.iter().map(|cited| shown(&cited.document, &cited.anchor)).collect()
}

/// The ids without a test, each with its reason; a reason may continue in further lines.
fn without_test(page: &str) -> BTreeMap<&str, &str> {
    let list = page.split_once(WITHOUT).map_or("", |(_, list)| list);
    let entries = list.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(':'));
    entries.map(|(id, reason)| (id.trim(), reason.trim())).collect()
}

/// Checks that every row names an existing test function or transcript file, and that no scenario and no rule lacks its
/// row.
pub(crate) fn scenarios() -> Result<(), Failure> {
    let path = root().join("docs/scenarios.md");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    if rows.is_empty() {
        return Err("docs/scenarios.md has no row `| <document> <number> | <test> | <note> |`".to_owned());
    }
    let places = Places::read(&root())?;
    let mut missing = Vec::new();
    for (scenario, tests) in &rows {
        let words = tests.split([' ', ',', ';', '(', ')', '`']);
        let named: Vec<_> = words.filter_map(|word| Some((word, test_name(word)?))).collect();
        if named.is_empty() {
            missing.push(format!("{scenario}: {tests:?} names no test"));
        }
        let absent = named.iter().filter(|(word, name)| !places.have(word, name));
        missing.extend(absent.map(|(word, _)| format!("{scenario}: there is no test {word}")));
    }
    let (anchors, _) = spec::anchors()?;
    let without = without_test(&text);
    let words = spec::vocabulary(&anchors);
    let covered = rows.iter().flat_map(|(ids, _)| covered_ids(ids, &words)).collect();
    missing.extend(coverage_errors(&covered, &without, &needed(&anchors)));
    if missing.is_empty() {
        let untested = format!("{} ids are listed as without a test", without.len());
        say(&format!("scenarios: {} rows, each names an existing test; {untested}", rows.len()));
        return Ok(());
    }
    Err(format!("docs/scenarios.md:\n  {}", missing.join("\n  ")))
}

/// `| cluster 12 | greylag_cluster::gossip::test_name | note |` as scenario, or rule, and test.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (scenario, test) = (cells.next()?, cells.next()?);
    // The headings of tables, and the lines under them, are one word.
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

/// Where the functions and the transcripts of the workspace are, by their names.
#[derive(Default)]
struct Places(BTreeMap<String, Vec<Place>>);

/// A file that has a test of some name.
#[derive(Clone, Default)]
struct Place {
    /// The folders of the file and the file itself, in the spelling of modules: `crates`, `greylag_cluster`, `src`, `gossip`.
    path: Vec<String>,
    /// The modules that are written in the file.
    inline: BTreeSet<String>,
}

impl Places {
    /// Reads the names of all functions, and of all transcripts.
    fn read(root: &Path) -> Result<Self, Failure> {
        let mut places = Self::default();
        for directory in ["attack", "crates", "examples", "jobs", "netns", "simulation", "soak"] {
            for file in rust_files(&root.join(directory))? {
                let text =
                    std::fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
                places.add(file.strip_prefix(root).expect("the file is below the root"), &text);
            }
        }
        for name in transcripts(&root.join("crates"))? {
            places.0.entry(name).or_default().push(Place::default());
        }
        Ok(places)
    }

    /// Adds the functions of a file.
    fn add(&mut self, file: &Path, text: &str) {
        let path = file.with_extension("").iter().filter_map(|part| Some(part.to_str()?.replace('-', "_"))).collect();
        let written = |rest: &&str| rest.find(['{', ';']).is_some_and(|end| rest[end..].starts_with('{'));
        let place = Place { path, inline: text.split("mod ").skip(1).filter(written).filter_map(identifier).collect() };
        let functions = text.split("fn ").skip(1).filter_map(identifier);
        // A macro makes tests of tables with named cases.
        let cases = text.lines().filter_map(|line| identifier(line.trim().strip_prefix("case ")?));
        for name in functions.chain(cases).collect::<BTreeSet<_>>() {
            self.0.entry(name).or_default().push(place.clone());
        }
    }

    /// Whether a test of this name is where the word says; `scenario_14_*` matches every test with that prefix.
    fn have(&self, word: &str, name: &str) -> bool {
        let modules = modules(word);
        let is_there = |known: &str| self.0.get(known).is_some_and(|all| all.iter().any(|place| place.is_in(&modules)));
        match name.split_once('*') {
            Some((begin, end)) => {
                self.0.keys().any(|known| known.starts_with(begin) && known.ends_with(end) && is_there(known))
            }
            None => is_there(name),
        }
    }
}

impl Place {
    /// Whether the place is in these modules: each is a folder of its path, in that order, or written in its file.
    fn is_in(&self, modules: &[&str]) -> bool {
        let mut path = self.path.iter();
        // `path` keeps its position where a module is written in the file.
        let mut on_path =
            |module: &str| path.any(|part| part == module || module.strip_prefix("greylag_") == Some(part));
        self.path.is_empty() || modules.iter().all(|module| self.inline.contains(*module) || on_path(module))
    }
}

/// The crate and the modules that a word such as `crate::module::test` or `tests/module.rs::test` names before the test.
fn modules(word: &str) -> Vec<&str> {
    let parts = word.split("::").flat_map(|part| part.trim_end_matches(".rs").split('/'));
    let mut modules: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    modules.pop();
    modules
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
        let names = ["scenario_14_a", "join_2.txt"].map(|name| (name.to_owned(), vec![Place::default()]));
        let places = Places(BTreeMap::from(names));
        let have = |name| places.have(name, name);
        assert!(have("scenario_14_*") && have("join_*.txt"));
        assert!(!have("scenario_15_*") && !have("scenario_14"));
    }

    #[test]
    fn a_test_is_looked_for_in_the_modules_that_its_row_names() {
        let mut places = Places::default();
        places
            .add(Path::new("crates/greylag-cluster/src/gossip/state.rs"), "mod tests {\n    fn merge_commutes() {}\n}");
        places.add(Path::new("crates/greylag-cluster/tests/suite/sockets.rs"), "fn three_restarts() {}");
        places.add(Path::new("simulation/tests/persistence.rs"), "fn promises() {}");
        let have = |word| places.have(word, test_name(word).unwrap());
        for word in [
            "greylag_cluster::gossip::state::tests::merge_commutes",
            "state::tests::merge_*",
            "greylag_cluster::sockets::three_restarts",
            "tests/suite/sockets.rs::three_restarts",
            "three_restarts",
        ] {
            assert!(have(word), "{word}");
        }
        assert!(places.have("greylag_simulation::persistence::promises", "promises"));
        for word in
            ["greylag_ddata::sockets::three_restarts", "greylag_cluster::core::merge_commutes", "sockets::merge_*"]
        {
            assert!(!have(word), "{word}");
        }
    }

    #[test]
    fn rows_are_needed_for_anchors_of_rules_and_scenarios() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let anchors = Anchors::from([
            ("cluster".to_owned(), ids(&["T1", "M25a", "s1.2", "n12", "D1"])),
            ("persistence".to_owned(), ids(&["journal-3", "states-2"])),
            ("README".to_owned(), ids(&["settled-1"])),
        ]);
        let found: Vec<_> = needed(&anchors).into_iter().collect();
        assert_eq!(
            found,
            ["cluster 12", "cluster M25a", "cluster T1", "persistence journal 3", "persistence states 2"]
        );
    }

    #[test]
    fn a_rule_without_a_row_is_found_unless_it_is_listed_with_a_reason() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let (covered, needed) = (ids(&["ddata A1"]), ids(&["ddata A1", "ddata A2", "ddata A3"]));
        let found = |page: &str| coverage_errors(&covered, &without_test(page), &needed);
        let both = found("- ddata A2: before the heading");
        assert!(both.len() == 2 && both[0].starts_with("ddata A2: no row"), "{both:?}");
        assert!(found(&format!("{WITHOUT}\n\n- ddata A2: reason\n- ddata A3: other\n")).is_empty());
        let page = format!("{WITHOUT}\n- ddata A1: had none\n- ddata A2:\n- ddata A3: x\n- ddata A4: gone\n");
        let stale = found(&page);
        assert!(stale.len() == 3 && stale[0].contains("has a row") && stale[1].contains("reason"), "{stale:?}");
        assert!(stale[2].starts_with("ddata A4: needs no row"), "{stale:?}");
    }

    #[test]
    fn a_row_may_show_several_ids_and_one_with_a_remark_shows_a_part() {
        let words = crate::citations::tests::words();
        assert_eq!(covered_ids("alpha A1, A2–A4", &words), ["alpha A1", "alpha A2", "alpha A3", "alpha A4"]);
        assert_eq!(covered_ids("beta journal 3", &words), ["beta journal 3"]);
        assert!(covered_ids("alpha A1 (one part)", &words).is_empty());
    }
}
