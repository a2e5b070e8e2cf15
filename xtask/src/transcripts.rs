//! Where transcripts are run, read off the tests themselves, so that none is left out when they are recorded.

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::{Failure, root, run_with, rust_files};

/// How a test runs a folder of transcripts.
const CALL: &str = "transcript::run_dir(";

/// A test that runs transcripts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    package: String,
    /// The integration test of the package.
    target: String,
    /// The function.
    test: String,
}

/// Records the transcripts anew.
pub(crate) fn bless() -> Result<(), Failure> {
    let places = places(&root().join("crates"))?;
    let distinct = |name: fn(&Place) -> &str| places.iter().map(name).collect::<BTreeSet<_>>();
    // Some of the tests need features that no other crate turns on. A test that fails for another reason must not
    // keep those behind it from being recorded.
    let mut arguments = vec!["test", "--all-features", "--no-fail-fast"];
    arguments.extend(distinct(|place| &place.package).into_iter().flat_map(|package| ["--package", package]));
    arguments.extend(distinct(|place| &place.target).into_iter().flat_map(|target| ["--test", target]));
    // The rest of these targets has nothing to record.
    arguments.push("--");
    arguments.extend(distinct(|place| &place.test));
    run_with("cargo", &arguments, &[("GREYLAG_BLESS", "1")])
}

/// Every place below `crates` that runs transcripts.
fn places(crates: &Path) -> Result<BTreeSet<Place>, Failure> {
    let mut found = BTreeSet::new();
    for file in rust_files(crates)? {
        let text =
            std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let path = file.strip_prefix(crates).expect("it was found there");
        found.extend(places_in(path, &text)?);
    }
    Ok(found)
}

/// The places in one file, whose path begins with its package.
fn places_in(path: &Path, text: &str) -> Result<Vec<Place>, Failure> {
    let mut function = None;
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("fn ") {
            function = rest.split(['(', '<']).next();
        }
        if !line.contains(CALL) {
            continue;
        }
        let mut parts = path.iter().filter_map(|part| part.to_str());
        let (Some(package), Some("tests"), Some(target), Some(test)) =
            (parts.next(), parts.next(), parts.next(), function)
        else {
            return Err(format!("{}: only tests below `tests` can be told to record transcripts", path.display()));
        };
        let target = target.trim_end_matches(".rs");
        found.push(Place { package: package.into(), target: target.into(), test: test.into() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str =
        "fn one() {\n    transcript::run_dir(A, || {});\n}\n\nfn two() {\n    transcript::run_dir(B)\n}\n";

    #[test]
    fn every_function_that_runs_transcripts_is_found() {
        let place = |test: &str| Place { package: "a-crate".into(), target: "reader".into(), test: test.into() };
        for path in ["a-crate/tests/reader.rs", "a-crate/tests/reader/main.rs"] {
            assert_eq!(places_in(Path::new(path), TWO).unwrap(), [place("one"), place("two")]);
        }
        assert!(places_in(Path::new("a-crate/src/reader.rs"), TWO).is_err(), "its tests have no target to name");
    }

    /// Whatever folder holds transcripts of a crate, some test names it, and is found.
    #[test]
    fn every_folder_of_transcripts_is_recorded() {
        let crates = root().join("crates");
        let mut folders = 0;
        let places = places(&crates).unwrap();
        for tests in std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("tests")) {
            let Ok(entries) = std::fs::read_dir(&tests) else { continue };
            for folder in entries.map(|entry| entry.unwrap().path()) {
                let name = folder.file_name().unwrap().to_str().unwrap();
                if !folder.is_dir() || !name.ends_with("protocol") {
                    continue;
                }
                let call = format!("{CALL}concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/tests/{name}\")");
                let package = tests.parent().unwrap().file_name().unwrap().to_str().unwrap();
                let runs = |place: &&Place| {
                    let file = tests.join(&place.target).with_extension("rs");
                    place.package == package && std::fs::read_to_string(file).unwrap().contains(&call)
                };
                assert!(places.iter().any(|place| runs(&place)), "no test target records {}", folder.display());
                folders += 1;
            }
        }
        assert!(folders > 0);
    }
}
