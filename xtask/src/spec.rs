//! Checks the specification in `docs/spec`: each citation must name an anchor, and each anchor must be unique.
//!
//! A rule is anchored as `<a id="T8"></a>`, a section as `s2.9`, a scenario as `n31`, a case of a conformance kit as
//! `journal-24`, an entry of the README's settled list as `settled-7`. [`crate::citations`] describes how texts cite them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::citations::{Found, Vocabulary, citations, shown};
use crate::run::{Failure, output, root, say};

/// The documents that texts cite, and their paths.
const DOCUMENTS: &[(&str, &str)] = &[
    ("cluster", "docs/spec/cluster.md"),
    ("ddata", "docs/spec/ddata.md"),
    ("delivery", "docs/spec/delivery.md"),
    ("persistence", "docs/spec/persistence.md"),
    ("sharding", "docs/spec/sharding.md"),
    ("README", "docs/spec/README.md"),
    ("style", "docs/style.md"),
];

/// Extensions of the files that are searched for citations.
const CITING: &[&str] = &[".rs", ".proto", ".toml", ".txt", ".sql", ".md"];

/// The table of the tests of each scenario and rule: its rows count as citations of tests.
const SCENARIOS: &str = "docs/scenarios.md";

/// Most names of a list that are printed without `--unused`.
const NAMED_UNASKED: usize = 12;

/// The anchors of each document.
pub(crate) type Anchors = BTreeMap<String, BTreeSet<String>>;

/// Checks that every citation names an anchor and that every anchor is unique; prints the rules without a citation.
pub(crate) fn spec(unused: bool) -> Result<(), Failure> {
    let (anchors, mut failures) = anchors()?;
    let words = vocabulary(&anchors);
    let files = citing_files()?;
    let mut found = Vec::new();
    for path in &files {
        let text =
            std::fs::read_to_string(root().join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
        found.push((path.as_str(), citations(path, &text, &words)));
    }
    failures.extend(found.iter().flat_map(|(path, found)| citation_errors(path, found, &anchors)));
    print_counts(&found, &anchors, unused);
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("{} errors in citations and anchors:\n  {}", failures.len(), failures.join("\n  ")))
}

/// The anchors of all documents, and the errors in them.
pub(crate) fn anchors() -> Result<(Anchors, Vec<String>), Failure> {
    read(&root(), DOCUMENTS)
}

/// The anchors of the documents, and an error for each duplicate.
fn read(root: &Path, documents: &[(&str, &str)]) -> Result<(Anchors, Vec<String>), Failure> {
    let (mut anchors, mut twice) = (Anchors::new(), Vec::new());
    for (name, path) in documents {
        let text = std::fs::read_to_string(root.join(path))
            .map_err(|error| format!("cannot read {path}, which is cited as `{name}`: {error}"))?;
        let of_document = anchors.entry((*name).to_owned()).or_default();
        for (line, id) in anchors_in(&text) {
            if !of_document.insert(id.to_owned()) {
                twice.push(format!("{path}:{line}: the anchor {id} is a duplicate, so a citation is ambiguous"));
            }
        }
    }
    Ok((anchors, twice))
}

/// The names that can be cited, for documents with these anchors.
pub(crate) fn vocabulary(anchors: &Anchors) -> Vocabulary {
    let kits = anchors.values().flatten().filter_map(|anchor| Some(anchor.split_once('-')?.0.to_owned()));
    Vocabulary { documents: anchors.keys().cloned().collect(), kits: kits.collect() }
}

/// The ids in `<a id="…"></a>`, with their lines.
fn anchors_in(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        line.split("<a id=\"").skip(1).filter_map(move |rest| Some((index + 1, rest.split_once('"')?.0)))
    })
}

/// The files that are searched for citations, committed or not.
fn citing_files() -> Result<Vec<String>, Failure> {
    let all = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let is_citing = |path: &&str| CITING.iter().any(|ending| path.ends_with(ending)) && root().join(path).is_file();
    Ok(all.lines().filter(is_citing).map(ToOwned::to_owned).collect())
}

/// An error for each citation without an anchor.
fn citation_errors(path: &str, found: &Found, anchors: &Anchors) -> Vec<String> {
    let missing = found.citations.iter().filter(|cited| !anchors[&cited.document].contains(&cited.anchor));
    let described = missing.map(|cited| {
        let near = near(&cited.document, &cited.anchor, anchors);
        let citation = shown(&cited.document, &cited.anchor);
        format!("{path}:{}: there is no {citation}; {near}", cited.line)
    });
    described.collect()
}

/// Similar anchors, which the author of a citation without an anchor may have meant.
fn near(document: &str, anchor: &str, anchors: &Anchors) -> String {
    let (kind, number) = split(anchor);
    let mut alike: Vec<_> = anchors[document].iter().filter(|other| split(other).0 == kind).collect();
    alike.sort_by_key(|other| split(other).1.abs_diff(number));
    // A section without sections of its own.
    let above = anchors[document].get(kind.trim_end_matches('.')).filter(|_| alike.is_empty());
    let elsewhere =
        anchors.iter().filter(|(_, of_other)| of_other.contains(anchor)).map(|(other, _)| shown(other, anchor));
    let here = alike.into_iter().take(2).chain(above).map(|other| shown(document, other));
    match here.chain(elsewhere).collect::<Vec<_>>() {
        none if none.is_empty() => format!("{document} has nothing of that kind"),
        some => format!("there is {}", some.join(", ")),
    }
}

/// Splits an anchor into its kind and its number, to find neighbours: `M25a` is `M` and 25, `s2.9` is `s2.` and 9.
fn split(anchor: &str) -> (&str, u32) {
    let number = anchor.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let kind = number.trim_end_matches(|c: char| c.is_ascii_digit());
    (kind, number[kind.len()..].parse().unwrap_or_default())
}

/// Prints counts of citations and anchors, and the rules without a citation.
fn print_counts(found: &[(&str, Found)], anchors: &Anchors, all: bool) {
    let cited = |from: fn(&str) -> bool| -> usize {
        found.iter().filter(|(path, _)| from(path)).map(|(_, found)| found.citations.len()).sum()
    };
    let (total, shown) = (cited(|_| true), cited(is_code_or_test));
    let anchored: usize = anchors.values().map(BTreeSet::len).sum();
    say(&format!("spec: {total} citations of {anchored} anchors, {shown} of them in code, tests and {SCENARIOS}"));
    let unused = uncited(found, anchors);
    say(&format!("spec: {} rules that no code and no test cites: {}", unused.len(), named(&unused, all)));
    let lines = found.iter().flat_map(|(path, found)| found.prose.iter().map(move |line| format!("{path}:{line}")));
    let prose: Vec<_> = lines.collect();
    let taken = "numbers after the name of a document that were not read as citations";
    say(&format!("spec: {} {taken}: {}", prose.len(), named(&prose, all)));
}

/// Whether a citation in this file counts as code or test. Other pages only mention the rule.
fn is_code_or_test(path: &str) -> bool {
    !path.ends_with(".md") || path == SCENARIOS
}

fn named(names: &[String], all: bool) -> String {
    match names {
        [] => "none".to_owned(),
        few if all || few.len() <= NAMED_UNASKED => few.join(", "),
        many => format!("{}, … (`--unused` names all)", many[..NAMED_UNASKED].join(", ")),
    }
}

/// The rules that neither code nor a test nor the table of scenarios cites.
fn uncited(found: &[(&str, Found)], anchors: &Anchors) -> Vec<String> {
    let cited: BTreeSet<_> = found
        .iter()
        .filter(|(path, _)| is_code_or_test(path))
        .flat_map(|(_, found)| found.citations.iter().map(|cited| (cited.document.as_str(), cited.anchor.as_str())))
        .collect();
    let all = anchors.iter().flat_map(|(document, ids)| ids.iter().map(|id| (document.as_str(), id.as_str())));
    let rules = all.filter(|(_, id)| id.starts_with(|c: char| c.is_ascii_uppercase()));
    rules.filter(|rule| !cited.contains(rule)).map(|(document, id)| shown(document, id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Anchors {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        Anchors::from([
            ("alpha".to_owned(), ids(&["T7", "T8", "T80", "s2.9", "s2.12", "n31", "journal-3"])),
            ("beta".to_owned(), ids(&["D4", "n98"])),
        ])
    }

    fn failures(text: &str) -> Vec<String> {
        citation_errors("a.rs", &citations("a.rs", text, &vocabulary(&documents())), &documents())
    }

    #[test]
    fn a_citation_that_leads_nowhere_is_named_with_what_is_near() {
        assert!(failures("// alpha T7 and T8, §2.9, scenario 31, journal 3").is_empty());
        assert_eq!(failures("x\n// alpha T9."), ["a.rs:2: there is no alpha T9; there is alpha T8, alpha T7"]);
        assert_eq!(failures("// alpha D4"), ["a.rs:1: there is no alpha D4; there is beta D4"]);
        assert_eq!(failures("// alpha §2.9.4"), ["a.rs:1: there is no alpha §2.9.4; there is alpha §2.9"]);
        assert_eq!(failures("// beta §3"), ["a.rs:1: there is no beta §3; beta has nothing of that kind"]);
        assert_eq!(failures("/// alpha 98"), ["a.rs:1: there is no alpha 98; there is alpha 31, beta 98"]);
    }

    #[test]
    fn an_anchor_that_stands_twice_is_named() {
        let place = tempfile::tempdir().unwrap();
        let text = "### <a id=\"s1\"></a>1\n<a id=\"T8\"></a>**T8** x <a id=\"n1\"></a>\n<a id=\"T8\"></a>";
        std::fs::write(place.path().join("alpha.md"), text).unwrap();
        let (anchors, twice) = read(place.path(), &[("alpha", "alpha.md")]).unwrap();
        assert_eq!(anchors["alpha"].iter().collect::<Vec<_>>(), ["T8", "n1", "s1"]);
        assert_eq!(twice.len(), 1);
        assert!(twice[0].starts_with("alpha.md:3: the anchor T8"), "{twice:?}");
        assert!(read(place.path(), &[("beta", "beta.md")]).unwrap_err().contains("beta.md"));
    }

    #[test]
    fn rules_are_used_by_code_and_by_the_table_but_not_by_other_pages() {
        let found = |path, text| (path, citations(path, text, &vocabulary(&documents())));
        let files = [found("a.rs", "// alpha T7"), found(SCENARIOS, "| alpha T8 | a::b |"), found("b.md", "alpha T80")];
        assert_eq!(uncited(&files, &documents()), ["alpha T80", "beta D4"]);
        assert_eq!(named(&vec!["x".to_owned(); 13], false).matches("x,").count(), 12);
    }
}
