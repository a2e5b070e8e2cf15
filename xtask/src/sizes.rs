//! Lists large parts of the code: types with many fields, types with `impl` blocks in many files, folders with many files.
//!
//! The task fails at nothing, because some types must be large. The counts show whether a change made the code smaller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cycles::crates;
use crate::modules::Crate;
use crate::run::{Failure, root, rust_files, say};

/// Types with more fields are listed.
const FIELDS: usize = 15;
/// Types with `impl` blocks in more files are listed.
const FILES_OF_A_TYPE: usize = 3;
/// Folders with more files of their own are listed.
const FILES_OF_A_FOLDER: usize = 12;

/// Prints the large types and folders with their sizes, the largest first.
pub(crate) fn sizes() -> Result<(), Failure> {
    let crates = crates()?;
    let fields = crates.iter().flat_map(many_fields).collect();
    print_list(&format!("types with more than {FIELDS} fields"), fields);
    let spread = crates.iter().flat_map(spread).collect();
    print_list(&format!("types with `impl` blocks in more than {FILES_OF_A_TYPE} files"), spread);
    let files = rust_files(&root().join("crates"))?;
    print_list(&format!("folders in src with more than {FILES_OF_A_FOLDER} files"), full_folders(&files));
    Ok(())
}

fn print_list(what: &str, mut found: Vec<(String, usize)>) {
    found.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
    say(&format!("sizes: {}: {}", what, found.len()));
    for (name, size) in found {
        say(&format!("  {size:3} {name}"));
    }
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
    fn a_folder_with_many_files_is_named() {
        let in_folder =
            |folder: &str| (0..13).map(|file| PathBuf::from(format!("{folder}/{file}.rs"))).collect::<Vec<_>>();
        let files = [in_folder("x/src/a"), in_folder("x/tests"), vec![PathBuf::from("x/src/lib.rs")]].concat();
        assert_eq!(full_folders(&files), [("x/src/a".to_owned(), 13)]);
    }
}
