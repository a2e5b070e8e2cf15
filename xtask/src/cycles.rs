//! Finds cycles of modules inside a crate: modules that use each other in a ring can only be understood together.
//!
//! `xtask/cycles.txt` lists the modules on cycles, and may only become shorter: a module outside of the list must not
//! join a cycle, and the line of a module that has left its cycle is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::modules::{Arrows, Crate};
use crate::run::{Failure, root, say};

/// The list of modules on cycles, one a line.
const LEDGER: &str = "xtask/cycles.txt";

/// Most line numbers that are shown for an arrow.
const LINES: usize = 4;

/// Checks the modules of all crates against the list, and prints the counts.
pub(crate) fn violations() -> Result<Vec<String>, Failure> {
    let ledger =
        std::fs::read_to_string(root().join(LEDGER)).map_err(|error| format!("cannot read {LEDGER}: {error}"))?;
    let ledger: Vec<&str> = ledger.lines().collect();
    let (mut on_cycles, mut modules, mut cycles) = (BTreeMap::new(), 0, 0);
    for read in crates()? {
        let found = components(&read.arrows());
        modules += read.files().count();
        cycles += found.len();
        let name = |module: &usize| read.modules[*module].name.clone();
        on_cycles.extend(found.iter().flat_map(|cycle| cycle.iter().map(|module| (name(module), cycle.len()))));
    }
    let found = compare_with_ledger(&on_cycles, &ledger);
    if found.is_empty() {
        say(&format!(
            "layers: {} of {modules} modules are on {cycles} cycles, all listed in {LEDGER}",
            on_cycles.len()
        ));
    }
    Ok(found)
}

/// The modules that are on a cycle but not in the list, and the reverse.
fn compare_with_ledger(on_cycles: &BTreeMap<String, usize>, ledger: &[&str]) -> Vec<String> {
    let listed: BTreeSet<&str> = ledger.iter().copied().collect();
    let added = on_cycles.iter().filter(|(name, _)| !listed.contains(name.as_str())).map(|(name, size)| {
        let of = name.split("::").next().unwrap_or_default();
        let how = format!("`cargo xtask layers --cycles {of}` shows the arrows");
        format!("{name} is on a cycle of {size} modules: reverse an arrow of the cycle, or move the item that the arrow leads to ({how})")
    });
    let gone = listed.iter().filter(|name| !on_cycles.contains_key(**name));
    let gone = gone.map(|name| format!("{LEDGER}: {name} is on no cycle any more: delete the line"));
    let sorted = ledger.iter().copied().eq(listed.iter().copied());
    let unsorted = (!sorted).then(|| format!("{LEDGER}: the lines are not sorted, or one is duplicated"));
    added.chain(gone).chain(unsorted).collect()
}

/// Prints each cycle of a crate with its arrows.
pub(crate) fn show(name: &str) -> Result<(), Failure> {
    let folder = root().join("crates").join(name);
    if !folder.is_dir() {
        return Err(format!("there is no crate crates/{name}"));
    }
    let read = Crate::read(&folder)?;
    let arrows = read.arrows();
    let cycles = components(&arrows);
    for line in cycles.iter().flat_map(|cycle| describe_cycle(&read, cycle, &arrows)) {
        say(&line);
    }
    say(&format!("layers: {name} has {} cycles of modules", cycles.len()));
    Ok(())
}

/// The lines that show one cycle.
fn describe_cycle(read: &Crate, cycle: &BTreeSet<usize>, arrows: &Arrows) -> Vec<String> {
    let name = |module: usize| read.modules[module].name.as_str();
    let mut lines = vec![format!("a cycle of {} modules:", cycle.len())];
    for ((from, to), places) in arrows.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to)) {
        let file = read.modules[*from].file.strip_prefix(root()).unwrap_or(Path::new("")).display().to_string();
        let first: Vec<_> = places.iter().take(LINES).map(ToString::to_string).collect();
        let more = if places.len() > LINES { format!(" and {} more", places.len() - LINES) } else { String::new() };
        lines.push(format!("  {} -> {}: {file}:{}{more}", name(*from), name(*to), first.join(",")));
    }
    lines
}

/// The crates of the product, in the order of their names.
pub(crate) fn crates() -> Result<Vec<Crate>, Failure> {
    let crates = root().join("crates");
    let listed = std::fs::read_dir(&crates).map_err(|error| format!("cannot list {}: {error}", crates.display()))?;
    let mut folders: Vec<_> = listed.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    folders.sort();
    folders.iter().map(|folder| Crate::read(folder)).collect()
}

/// The strongly connected components of more than one module.
fn components(arrows: &Arrows) -> Vec<BTreeSet<usize>> {
    let mut next: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(*from).or_default().insert(*to);
    }
    let reached: BTreeMap<usize, BTreeSet<usize>> = next.keys().map(|from| (*from, reached(*from, &next))).collect();
    let is_mutual = |from: usize, to: &usize| reached.get(to).is_some_and(|back| back.contains(&from));
    let mut found: Vec<BTreeSet<usize>> = Vec::new();
    for (from, to) in &reached {
        if !found.iter().any(|cycle| cycle.contains(from)) {
            let cycle: BTreeSet<usize> = to.iter().copied().filter(|to| is_mutual(*from, to)).collect();
            found.extend((!cycle.is_empty()).then_some(cycle));
        }
    }
    found
}

/// The modules that are reachable from `from`.
fn reached(from: usize, next: &BTreeMap<usize, BTreeSet<usize>>) -> BTreeSet<usize> {
    let (mut open, mut reached) = (vec![from], BTreeSet::new());
    while let Some(at) = open.pop() {
        let new = next.get(&at).into_iter().flatten().filter(|to| reached.insert(**to));
        open.extend(new);
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::tests::a_crate;

    #[test]
    fn modules_that_use_each_other_in_a_ring_are_one_cycle() {
        let files = [
            ("lib.rs", "pub mod a; pub mod b; pub mod c; pub mod d;"),
            ("a.rs", "use crate::b::B;\npub struct A(B);"),
            ("b.rs", "pub struct B(crate::c::C);\nuse crate::d::D;"),
            ("c.rs", "pub struct C(Box<super::a::A>);"),
            ("d.rs", "pub struct D;"),
        ];
        let read = a_crate(&files);
        let cycles = components(&read.arrows());
        assert_eq!(cycles, [BTreeSet::from([1, 2, 3])]);
        let shown = describe_cycle(&read, &cycles[0], &read.arrows());
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert!(shown[1].starts_with("  x::a -> x::b: ") && shown[1].ends_with(":1,2"), "{shown:?}");
    }

    #[test]
    fn a_parent_and_a_child_make_a_cycle_only_if_both_use_each_other() {
        let child = "pub struct B(super::A);";
        let passes_on = [("lib.rs", "mod a;"), ("a.rs", "mod b;\npub use b::B;\npub struct A;"), ("a/b.rs", child)];
        assert!(components(&a_crate(&passes_on).arrows()).is_empty());
        let uses =
            [("lib.rs", "mod a;"), ("a.rs", "mod b;\npub use b::B;\npub struct A(Option<B>);"), ("a/b.rs", child)];
        assert_eq!(components(&a_crate(&uses).arrows()), [BTreeSet::from([1, 2])]);
    }

    #[test]
    fn the_ledger_only_shrinks() {
        let on_cycles = BTreeMap::from([("x::a".to_owned(), 2), ("x::b".to_owned(), 2)]);
        assert!(compare_with_ledger(&on_cycles, &["x::a", "x::b"]).is_empty());
        let added = compare_with_ledger(&on_cycles, &["x::a"]);
        assert!(added.len() == 1 && added[0].starts_with("x::b is on a cycle of 2 modules"), "{added:?}");
        let gone = compare_with_ledger(&on_cycles, &["x::a", "x::b", "x::c"]);
        assert!(gone.len() == 1 && gone[0].contains("x::c is on no cycle any more"), "{gone:?}");
        assert_eq!(compare_with_ledger(&on_cycles, &["x::b", "x::a"]).len(), 1);
    }
}
