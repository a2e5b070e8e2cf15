//! Finds large parts of the code: types with many fields, types with `impl` blocks in many files, folders with many files.
//! A large part holds a second noun, which should be let out.
//!
//! `xtask/sizes.txt` lists those that may be large, each with its size and the reason. A part outside of the list must
//! not become large, a listed part must not grow, and the line of a part that has shrunk is corrected or deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cycles::crates;
use crate::modules::Crate;
use crate::run::{Failure, root, rust_files, say};

/// The list of parts that may be large: name, size and reason, one a line.
const LEDGER: &str = "xtask/sizes.txt";

/// Types with more fields are large.
const FIELDS: usize = 15;
/// Types with `impl` blocks in more files are large.
const FILES_OF_A_TYPE: usize = 3;
/// Folders with more files of their own are large.
const FILES_OF_A_FOLDER: usize = 12;

/// A large part: its name, which says what was counted, and its size.
type Large = (String, usize);

/// Prints the large parts, the largest first, and compares them with the list.
pub(crate) fn sizes() -> Result<(), Failure> {
    let crates = crates()?;
    let files = rust_files(&root().join("crates"))?;
    let found = [
        (format!("types with more than {FIELDS} fields"), crates.iter().flat_map(many_fields).collect::<Vec<_>>()),
        (
            format!("types with `impl` blocks in more than {FILES_OF_A_TYPE} files"),
            crates.iter().flat_map(spread).map(|(name, files)| (format!("{name} (files)"), files)).collect(),
        ),
        (format!("folders in src with more than {FILES_OF_A_FOLDER} files"), full_folders(&files)),
    ];
    for (what, large) in &found {
        print_list(what, large.clone());
    }
    let ledger =
        std::fs::read_to_string(root().join(LEDGER)).map_err(|error| format!("cannot read {LEDGER}: {error}"))?;
    let large: Vec<Large> = found.into_iter().flat_map(|(_, large)| large).collect();
    let violations = compare_with_ledger(&large, &ledger);
    violations.iter().for_each(|violation| say(violation));
    if violations.is_empty() { Ok(()) } else { Err(format!("sizes: {} differences from {LEDGER}", violations.len())) }
}

fn print_list(what: &str, mut large: Vec<Large>) {
    large.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
    say(&format!("sizes: {}: {}", what, large.len()));
    for (name, size) in large {
        say(&format!("  {size:3} {name}"));
    }
}

/// The large parts that the list does not allow, and the lines of the list that say more than is true. A line is
/// `name: size: reason`.
fn compare_with_ledger(large: &[Large], ledger: &str) -> Vec<String> {
    let mut allowed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    for line in ledger.lines() {
        let mut parts = line.splitn(3, ": ");
        let parsed = (parts.next(), parts.next().and_then(|size| size.parse().ok()), parts.next());
        match parsed {
            (Some(name), Some(size), Some(reason)) if !reason.trim().is_empty() => {
                allowed.insert(name, size);
            }
            _ => violations.push(format!("{LEDGER}: `{line}` is not `name: size: reason`")),
        }
    }
    for (name, size) in large {
        match allowed.remove(name.as_str()) {
            Some(allowed) if allowed == *size => {}
            Some(allowed) if allowed < *size => violations.push(format!(
                "{name} has grown from {allowed} to {size}: it holds a second noun, which should be let out"
            )),
            Some(_) => violations.push(format!("{LEDGER}: {name} has shrunk to {size}: write that")),
            None => violations.push(format!("{name} has {size}: it holds a second noun, which should be let out")),
        }
    }
    let gone = allowed.keys().map(|name| format!("{LEDGER}: {name} is not large any more: delete the line"));
    violations.extend(gone);
    violations
}

/// The types of a crate with many fields, without those of tests.
fn many_fields(read: &Crate) -> Vec<(String, usize)> {
    let types = read
        .modules
        .iter()
        .flat_map(|module| module.types.iter().map(|(name, fields)| (format!("{}::{name}", module.name), *fields)));
    types.filter(|(_, fields)| *fields > FIELDS).collect()
}

/// The types of a crate with `impl` blocks, inherent or of traits, in many files.
fn spread(read: &Crate) -> Vec<(String, usize)> {
    let mut files: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (at, module) in read.modules.iter().enumerate() {
        for path in &module.impls {
            if let Some((of, Some(name))) = read.resolve(at, path) {
                files.entry(format!("{}::{name}", read.modules[of].name)).or_default().insert(module.whole);
            }
        }
    }
    files.into_iter().map(|(name, files)| (name, files.len())).filter(|(_, files)| *files > FILES_OF_A_TYPE).collect()
}

/// The folders below a `src` that contain many of these files directly.
fn full_folders(files: &[PathBuf]) -> Vec<(String, usize)> {
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    let folder_of = |file: &'_ PathBuf| file.parent().is_some_and(|folder| folder.iter().any(|part| part == "src"));
    for folder in files.iter().filter(|file| folder_of(file)).filter_map(|file| file.parent()) {
        *folders.entry(folder).or_default() += 1;
    }
    let named = |folder: &Path| folder.strip_prefix(root()).unwrap_or(folder).display().to_string();
    let full = folders.into_iter().filter(|(_, files)| *files > FILES_OF_A_FOLDER);
    full.map(|(folder, files)| (named(folder), files)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::tests::a_crate;

    #[test]
    fn a_type_with_many_fields_is_named_and_one_of_tests_is_not() {
        let fields: String = (0..16).map(|field| format!("f{field}: u8, ")).collect();
        let text = format!(
            "struct Large {{ {fields} }}\nenum E {{ Wide {{ {fields} }} }}\n#[cfg(test)]\nstruct T {{ {fields} }}\nstruct S(u8);"
        );
        let found = many_fields(&a_crate(&[("lib.rs", &text)]));
        assert_eq!(found, [("x::Large".to_owned(), 16), ("x::E::Wide".to_owned(), 16)]);
    }

    #[test]
    fn a_type_that_is_spread_over_files_is_named_by_where_it_stands() {
        let of = "impl super::a::Wide {}\nimpl super::a::Wide { fn f() {} }";
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "pub struct Wide;\nimpl Wide {}"),
            ("b.rs", of),
            ("c.rs", "use crate::a::Wide;\nimpl Default for Wide {}"),
            ("d.rs", of),
        ];
        assert_eq!(spread(&a_crate(&files)), [("x::a::Wide".to_owned(), 4)]);
        let three = [("lib.rs", "mod a; mod b; mod c;"), files[1], files[2], files[3]];
        assert!(spread(&a_crate(&three)).is_empty());
    }

    #[test]
    fn what_is_large_must_be_listed_with_its_size_and_a_reason() {
        let large = [("x::Wide".to_owned(), 16), ("x/src".to_owned(), 13)];
        let whole = "x::Wide: 16: counters\nx/src: 13: one room a noun\n";
        assert!(compare_with_ledger(&large, whole).is_empty());
        for (ledger, says) in [
            ("x::Wide: 16: counters\n", "x/src has 13"),
            ("x::Wide: 15: counters\nx/src: 13: rooms\n", "has grown from 15 to 16"),
            ("x::Wide: 17: counters\nx/src: 13: rooms\n", "has shrunk to 16"),
            ("x::Wide: 16: counters\nx/src: 13: rooms\nx::Gone: 20: counters\n", "x::Gone is not large any more"),
            ("x::Wide: 16: \nx/src: 13: rooms\n", "is not `name: size: reason`"),
        ] {
            let violations = compare_with_ledger(&large, ledger);
            assert!(violations.iter().any(|violation| violation.contains(says)), "{ledger}: {violations:?}");
        }
    }

    #[test]
    fn a_folder_with_many_files_is_named() {
        let in_folder =
            |folder: &str| (0..13).map(|file| PathBuf::from(format!("{folder}/{file}.rs"))).collect::<Vec<_>>();
        let files = [in_folder("x/src/a"), in_folder("x/tests"), vec![PathBuf::from("x/src/lib.rs")]].concat();
        assert_eq!(full_folders(&files), [("x/src/a".to_owned(), 13)]);
    }
}
