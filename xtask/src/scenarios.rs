//! `docs/scenarios.md` names a test for each scenario; a test that is not there proves nothing.

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::{Failure, root, rust_files, say};

/// Checks that every row names a test function, or a transcript file, that exists.
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
    if missing.is_empty() {
        say(&format!("scenarios: {} rows, each names a test that is there", rows.len()));
        return Ok(());
    }
    Err(format!("docs/scenarios.md:\n  {}", missing.join("\n  ")))
}

/// `| cluster 12 | greylag_cluster::gossip::test_name | note |` as scenario and test.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (scenario, test) = (cells.next()?, cells.next()?);
    let numbered = scenario.rsplit(' ').next()?.starts_with(|c: char| c.is_ascii_digit());
    numbered.then_some((scenario, test.trim_matches('`')))
}

/// The name of the test in a word such as `crate::module::test` or `tests/protocol/file.txt`.
///
/// A word that names only a crate, a module's file, or nothing at all is `None`.
fn test_name(word: &str) -> Option<&str> {
    let is_path = word.contains("::") || word.contains('/');
    let last = word.rsplit([':', '/']).next().unwrap_or(word);
    let is_name = last.ends_with(".txt") || (last.contains('_') && (is_path || !last.starts_with("greylag_")));
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
    for directory in ["crates", "examples", "simulation"] {
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
        let directory = member.path().join("tests/protocol");
        if directory.is_dir() {
            names.extend(list(&directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
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
        assert_eq!(row("| scenario | test | note |"), None);
        assert_eq!(row("|---|---|---|"), None);
        assert_eq!(test_name("greylag_cluster::gossip::merge_commutes"), Some("merge_commutes"));
        assert_eq!(test_name("tests/protocol/join.txt"), Some("join.txt"));
        assert_eq!(test_name("greylag_cluster"), None);
        assert_eq!(test_name("tests/simulation.rs"), None);
    }

    #[test]
    fn a_star_stands_for_at_least_one_test() {
        let names = BTreeSet::from(["scenario_14_a".to_owned(), "join_2.txt".to_owned()]);
        assert!(exists("scenario_14_*", &names) && exists("join_*.txt", &names));
        assert!(!exists("scenario_15_*", &names) && !exists("scenario_14", &names));
    }

    #[test]
    fn this_test_is_among_the_names() {
        let names: Vec<_> =
            "fn one() {}\n async fn two_b<T>() {}".split("fn ").skip(1).filter_map(identifier).collect();
        assert_eq!(names, ["one", "two_b"]);
    }
}
