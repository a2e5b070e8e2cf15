//! Finds the tests that run transcripts by reading the test files, so that every transcript is recorded.

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::{Failure, root, run_with, rust_files};

/// The call by which a test runs a folder of transcripts.
const CALL: &str = "transcript::run_dir(";

/// A test that runs transcripts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TranscriptTest {
    package: String,
    /// The integration test of the package.
    target: String,
    /// The function.
    test: String,
}

/// Records all transcripts again.
pub(crate) fn bless() -> Result<(), Failure> {
    let found = transcript_tests(&root().join("crates"))?;
    let distinct = |name: fn(&TranscriptTest) -> &str| found.iter().map(name).collect::<BTreeSet<_>>();
    // All features, because some of the tests need features that no other crate enables. `--no-fail-fast`, so that the
    // transcripts of the tests after a failed one are recorded, too.
    let mut arguments = vec!["test", "--all-features", "--no-fail-fast"];
    arguments.extend(distinct(|test| &test.package).into_iter().flat_map(|package| ["--package", package]));
    arguments.extend(distinct(|test| &test.target).into_iter().flat_map(|target| ["--test", target]));
    // Other tests of these targets record nothing.
    arguments.push("--");
    arguments.extend(distinct(|test| &test.test));
    run_with("cargo", &arguments, &[("GREYLAG_BLESS", "1")])
}

/// Every test below `crates` that runs transcripts.
fn transcript_tests(crates: &Path) -> Result<BTreeSet<TranscriptTest>, Failure> {
    let mut found = BTreeSet::new();
    for file in rust_files(crates)? {
        let text =
            std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let path = file.strip_prefix(crates).expect("the file is below the folder that was searched");
        found.extend(tests_in(path, &text)?);
    }
    Ok(found)
}

/// The tests in one file; the path begins with the package.
fn tests_in(path: &Path, text: &str) -> Result<Vec<TranscriptTest>, Failure> {
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
            return Err(format!("{}: only tests below `tests` can record transcripts; move the test", path.display()));
        };
        let target = target.trim_end_matches(".rs");
        found.push(TranscriptTest { package: package.into(), target: target.into(), test: test.into() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const TWO: &str =
        "fn one() {\n    transcript::run_dir(A, || {});\n}\n\nfn two() {\n    transcript::run_dir(B)\n}\n";

    #[test]
    fn every_function_that_runs_transcripts_is_found() {
        let test_of =
            |test: &str| TranscriptTest { package: "a-crate".into(), target: "reader".into(), test: test.into() };
        for path in ["a-crate/tests/reader.rs", "a-crate/tests/reader/main.rs"] {
            assert_eq!(tests_in(Path::new(path), TWO).unwrap(), [test_of("one"), test_of("two")]);
        }
        assert!(tests_in(Path::new("a-crate/src/reader.rs"), TWO).is_err(), "its tests have no target to name");
    }

    /// For every folder of transcripts a test that runs it is found.
    #[test]
    fn every_folder_of_transcripts_is_recorded() {
        let crates = root().join("crates");
        let mut folders = 0;
        let found = transcript_tests(&crates).unwrap();
        for tests in std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("tests")) {
            let Ok(entries) = std::fs::read_dir(&tests) else { continue };
            for folder in entries.map(|entry| entry.unwrap().path()) {
                let name = folder.file_name().unwrap().to_str().unwrap();
                if !folder.is_dir() || !name.ends_with("protocol") {
                    continue;
                }
                let call = format!("{CALL}concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/tests/{name}\")");
                let package = tests.parent().unwrap().file_name().unwrap().to_str().unwrap();
                let calls = |file: &PathBuf| std::fs::read_to_string(file).unwrap().contains(&call);
                let file = rust_files(&tests).unwrap().into_iter().find(calls);
                let file = file.unwrap_or_else(|| panic!("no test runs {}", folder.display()));
                let target = file.strip_prefix(&tests).unwrap().iter().next().unwrap().to_str().unwrap();
                let target = target.trim_end_matches(".rs");
                let records = |test_of: &TranscriptTest| test_of.package == package && test_of.target == target;
                assert!(found.iter().any(records), "no test target records {}", folder.display());
                folders += 1;
            }
        }
        assert!(folders > 0);
    }
}
