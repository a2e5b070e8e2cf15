//! Checks the crate graph, and that no crate names what it must not know.
//!
//! Reports an arrow that the graph does not allow, tokio outside of drivers, a clock or unseeded randomness inside a
//! machine, a driver whose select prefers the timer to the inbox, and a new cycle of modules. Each message has the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::run::{Failure, output, root, rust_files, say};
use crate::{cycles, sabotage};

/// The crates that a crate may depend on directly. A crate may also use everything that these crates may use.
///
/// A new arrow is a design change with its own review: change ARCHITECTURE.md with this table.
const ARROWS: &[(&str, &[&str])] = &[
    ("greylag-core", &[]),
    ("greylag-crdt-derive", &[]),
    ("greylag-crdt", &["greylag-crdt-derive"]),
    ("greylag-testkit", &[]),
    ("greylag-codec", &["greylag-core"]),
    ("greylag-transport", &["greylag-core"]),
    ("greylag-cluster", &["greylag-transport"]),
    // The crates on PostgreSQL share the connection and its TLS, nothing else.
    ("greylag-postgres", &["greylag-transport"]),
    ("greylag-lease-postgres", &["greylag-cluster", "greylag-postgres"]),
    ("greylag-ddata", &["greylag-crdt", "greylag-cluster", "greylag-transport"]),
    ("greylag-persistence", &["greylag-codec"]),
    ("greylag-store-sled", &["greylag-ddata"]),
    ("greylag-journal-sled", &["greylag-persistence", "greylag-store-sled"]),
    ("greylag-journal-postgres", &["greylag-persistence", "greylag-postgres"]),
    ("greylag-journal-service", &["greylag-persistence", "greylag-transport"]),
    ("greylag-sharding", &["greylag-cluster", "greylag-ddata", "greylag-persistence"]),
    ("greylag-delivery", &["greylag-sharding", "greylag-persistence", "greylag-ddata"]),
    ("greylag-delivery-postgres", &["greylag-delivery", "greylag-postgres"]),
    ("greylag-delivery-sled", &["greylag-delivery", "greylag-store-sled"]),
    // Below the facade, so that a config file can turn the admin service on.
    ("greylag-management", &["greylag-cluster"]),
    // Calls nodes over the wire, and opens journals itself.
    (
        "greylag-cli",
        &[
            "greylag-management",
            "greylag-journal-sled",
            "greylag-journal-postgres",
            "greylag-journal-service",
            // For the data of coordinators in a journal.
            "greylag-sharding",
        ],
    ),
    // A crate of its own, so that programs without DNS discovery need not build the resolver of names.
    ("greylag-discovery-dns", &["greylag-cluster"]),
    (
        "greylag",
        &[
            "greylag-delivery",
            "greylag-journal-sled",
            "greylag-journal-postgres",
            "greylag-journal-service",
            "greylag-management",
            "greylag-discovery-dns",
            "greylag-lease-postgres",
        ],
    ),
];

/// External crates, the only crates of the workspace that may name them, and the reason.
const CONFINED: &[(&str, &[&str], &str)] = &[
    (
        "tonic",
        &["greylag-transport", "greylag-journal-service", "greylag-management", "greylag-cli"],
        "only transport, journal service, management and the command line use gRPC",
    ),
    (
        "tonic-prost",
        &["greylag-transport", "greylag-journal-service", "greylag-management", "greylag-cli"],
        "only transport, journal service, management and the command line use gRPC",
    ),
    ("sled", &["greylag-store-sled"], "replacing the storage engine must change one crate only"),
    (
        "tokio-postgres",
        &["greylag-postgres", "greylag-lease-postgres", "greylag-journal-postgres", "greylag-delivery-postgres"],
        "only the crates on PostgreSQL name its client",
    ),
];

/// Crates that depend on no async runtime.
const PURE: &[&str] = &["greylag-core", "greylag-codec", "greylag-crdt", "greylag-crdt-derive", "greylag-testkit"];

/// The crates that `greylag-crdt` may depend on, directly or not, with every feature: without I/O, clock and async. A
/// crate that is not listed has not been reviewed.
const TREE_OF_CRDT: &[&str] = &[
    "arrayvec",
    "cobs",
    "crdts",
    "greylag-crdt",
    "greylag-crdt-derive",
    "postcard",
    "proc-macro2",
    "quote",
    "serde",
    "serde_core",
    "serde_derive",
    "smallvec",
    "syn",
    "thiserror",
    "thiserror-impl",
    "triomphe",
    "twox-hash",
    "unicode-ident",
];

/// The crates of the workspace that `greylag-ddata` may depend on, directly or not, without its feature `cluster`.
const STANDALONE: &[&str] =
    &["greylag-core", "greylag-crdt", "greylag-crdt-derive", "greylag-ddata", "greylag-transport"];

/// The crates that the command line must not depend on without features: its commands for members and shards need no
/// store.
const NOT_IN_A_LIGHT_CLI: &[&str] = &[
    "greylag-cluster",
    "greylag-journal-postgres",
    "greylag-journal-service",
    "greylag-journal-sled",
    "greylag-persistence",
    "greylag-sharding",
    "sled",
    "tokio-postgres",
    "tracing-subscriber",
];

/// Crates of which every module may use tokio and the clock: they use a disk or gRPC, or start drivers.
const DRIVER_CRATES: &[&str] = &[
    "greylag-journal-sled",
    "greylag-journal-service",
    "greylag-postgres",
    "greylag-lease-postgres",
    "greylag-journal-postgres",
    "greylag-delivery-postgres",
    "greylag-delivery-sled",
    "greylag-store-sled",
    "greylag-management",
    "greylag-cli",
    "greylag",
];

/// The words that a machine must not contain, and the reason.
const FORBIDDEN: &[(&str, &str)] = &[
    ("tokio", "a machine cannot wait or spawn; tokio belongs in src/driver"),
    ("async fn", "a machine cannot wait; async belongs in src/driver"),
    ("Instant::now", "time is an argument of `handle`"),
    ("SystemTime::now", "wall-clock time arrives as data in an input"),
    ("thread_rng", "randomness comes from a generator with a seed"),
    ("rand::rng()", "randomness comes from a generator with a seed"),
    ("rand::random", "randomness comes from a generator with a seed"),
    ("from_os_rng", "randomness comes from a generator with a seed"),
    ("RandomState", "std's hash order is unseeded randomness"),
    ("thread::spawn", "a machine has no threads"),
    ("thread::sleep", "a machine cannot wait"),
    ("std::net::Tcp", "a machine holds no socket"),
    ("std::fs::", "a machine uses no disk"),
];

/// Runs all checks, and reports all violations together.
pub(crate) fn layers() -> Result<(), Failure> {
    let metadata = metadata()?;
    let mut violations = graph_violations(&metadata);
    violations.extend(tree_violations()?);
    violations.extend(standalone_violations()?);
    violations.extend(light_violations()?);
    violations.extend(source_violations(&root().join("crates"))?);
    violations.extend(sabotage::violations(&metadata)?);
    violations.extend(cycles::violations()?);
    if violations.is_empty() {
        say("layers: every arrow is allowed, every machine is pure, no shipped crate omits a clause");
        return Ok(());
    }
    Err(format!("{} layer violations:\n  {}", violations.len(), violations.join("\n  ")))
}

/// The packages of the workspace as cargo describes them: dependencies and features.
fn metadata() -> Result<Value, Failure> {
    let metadata = output("cargo", &["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .or_else(|_| output("cargo", &["metadata", "--format-version", "1", "--no-deps"]))?;
    serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))
}

fn graph_violations(metadata: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        if !Path::new(manifest).starts_with(root().join("crates")) {
            continue;
        }
        let Some(allowed) = allowed(name) else {
            violations.push(format!("{name} is not in the crate graph; add it to ARROWS in xtask/src/layers.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            let to = dependency["name"].as_str().unwrap_or_default();
            violations.extend(arrow_violation(name, to, &allowed));
        }
    }
    violations
}

/// The crates in the dependency tree of `greylag-crdt` that have not been reviewed.
fn tree_violations() -> Result<Vec<String>, Failure> {
    let tree = ["tree", "-p", "greylag-crdt", "--all-features", "-e", "normal,build", "--prefix", "none", "--offline"];
    let tree = output("cargo", &tree).or_else(|_| output("cargo", &tree[..tree.len() - 1]))?;
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let unknown = names.into_iter().filter(|name| !TREE_OF_CRDT.contains(name));
    let why = "check that it has no I/O, clock or async, then add it to TREE_OF_CRDT";
    Ok(unknown.map(|name| format!("greylag-crdt depends on {name}: {why}")).collect())
}

/// The crates of the workspace in the dependency tree of `greylag-ddata` without features that it must not depend on:
/// the replicator works without a cluster (ddata I2).
fn standalone_violations() -> Result<Vec<String>, Failure> {
    let tree = ["tree", "-p", "greylag-ddata", "-e", "normal,build", "--prefix", "none", "--offline"];
    let tree = output("cargo", &tree).or_else(|_| output("cargo", &tree[..tree.len() - 1]))?;
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let ours = names.into_iter().filter(|name| name.starts_with("greylag"));
    let foreign = ours.filter(|name| !STANDALONE.contains(name));
    Ok(foreign
        .map(|name| {
            format!("greylag-ddata depends on {name} without its features: the replicator must work without a cluster")
        })
        .collect())
}

/// The crates in the dependency tree of `greylag-cli` without features that only its stores need: these crates make the
/// first build long.
fn light_violations() -> Result<Vec<String>, Failure> {
    let tree = ["tree", "-p", "greylag-cli", "-e", "normal,build", "--prefix", "none", "--offline"];
    let tree = output("cargo", &tree).or_else(|_| output("cargo", &tree[..tree.len() - 1]))?;
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let heavy = names.into_iter().filter(|name| NOT_IN_A_LIGHT_CLI.contains(name));
    Ok(heavy
        .map(|name| {
            format!("greylag-cli depends on {name} without its features: commands for members and shards need no store")
        })
        .collect())
}

/// All crates below `name`, or `None` if `name` is not in the graph.
fn allowed(name: &str) -> Option<BTreeSet<&'static str>> {
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let mut below = BTreeSet::new();
    let mut open: Vec<&str> = arrows.get(name)?.to_vec();
    while let Some(next) = open.pop() {
        if let Some((next, further)) = arrows.get_key_value(next)
            && below.insert(*next)
        {
            open.extend(further.iter());
        }
    }
    if !["greylag-crdt", "greylag-crdt-derive", "greylag-testkit", "greylag-core"].contains(&name) {
        below.insert("greylag-core");
    }
    Some(below)
}

fn arrow_violation(name: &str, to: &str, allowed: &BTreeSet<&str>) -> Option<String> {
    if to.starts_with("greylag") && !allowed.contains(to) {
        return Some(format!("{name} -> {to}: the crate graph has no such arrow"));
    }
    if let Some((_, owners, why)) = CONFINED.iter().find(|(confined, ..)| *confined == to)
        && !owners.contains(&name)
    {
        return Some(format!("{name} -> {to}: {why}"));
    }
    (PURE.contains(&name) && (to.starts_with("tokio") || to == "futures"))
        .then(|| format!("{name} -> {to}: the crate must not depend on an async runtime"))
}

fn source_violations(crates: &Path) -> Result<Vec<String>, Failure> {
    let mut violations = Vec::new();
    for file in rust_files(crates)? {
        let shown = file.strip_prefix(crates).expect("listed below it").display().to_string();
        let text =
            std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        violations.extend(preference_violations(&shown, &text));
        if !is_driver(&shown) {
            violations.extend(text_violations(&shown, &text));
        }
    }
    Ok(violations)
}

/// Whether a file below `crates/` may use tokio and the clock.
fn is_driver(path: &str) -> bool {
    let mut parts = path.split('/');
    let crate_name = parts.next().unwrap_or_default();
    if DRIVER_CRATES.contains(&crate_name) || parts.next() != Some("src") {
        return true; // Tests, benchmarks and examples drive machines.
    }
    let inner: Vec<_> = parts.collect();
    inner.iter().any(|part| matches!(*part, "driver" | "driver.rs" | "tck" | "tck.rs" | "generated" | "tests.rs" | "tests"))
        // Its transcript runner reads files.
        || crate_name == "greylag-testkit"
        // A program that replicates without a cluster draws its id there, once.
        || path == "greylag-crdt/src/causality/replica/random.rs"
}

fn text_violations(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let tests_follow = lines.peek().is_some_and(|(_, next)| next.trim_start().starts_with("mod "));
        if line.trim() == "#[cfg(test)]" && tests_follow {
            break; // Unit tests are at the end of the file.
        }
        let code = line.split("//").next().unwrap_or_default();
        for (word, why) in FORBIDDEN {
            if code.contains(word) {
                violations.push(format!("crates/{path}:{}: `{word}`: {why}", index + 1));
            }
        }
    }
    violations
}

/// Reports drivers whose select prefers the timer to the inbox: a deadline that does not move would starve every input
/// (cluster 84).
fn preference_violations(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        if !code.starts_with("biased;") {
            continue;
        }
        let indent = line.len() - code.len();
        // The arms are indented at least as deep as the word itself.
        let is_arm = |line: &&&str| line.trim().is_empty() || line.len() - line.trim_start().len() >= indent;
        if lines[index + 1..]
            .iter()
            .take_while(is_arm)
            .any(|arm| arm.contains("::Tick") || arm.contains("next_deadline"))
        {
            let why = "a select in a driver is unbiased: neither a due deadline nor a full inbox starves the other";
            violations.push(format!("crates/{path}:{}: `biased`: {why}", index + 1));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_prefers_its_timer_is_named() {
        let select = |first: &str| {
            format!(
                "    let input = tokio::select! {{\n        {first}() = sleep => Input::Tick,\n        x = inbox.recv() => x,\n    }};\n"
            )
        };
        let found = preference_violations("greylag-cluster/src/driver/node.rs", &select("biased;\n        "));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/greylag-cluster/src/driver/node.rs:2:"), "{found:?}");
        assert!(preference_violations("x", &select("")).is_empty());
        let without_machine =
            "    select! {\n        biased;\n        a = answer => a,\n    }\n    machine.handle(Input::Tick);\n";
        assert!(preference_violations("x", without_machine).is_empty());
    }

    fn violation(name: &str, to: &str) -> Option<String> {
        arrow_violation(name, to, &allowed(name).unwrap())
    }

    #[test]
    fn arrows_down_are_allowed_and_arrows_up_are_not() {
        assert_eq!(violation("greylag-delivery", "greylag-transport"), None);
        assert_eq!(violation("greylag-cluster", "greylag-core"), None);
        assert!(violation("greylag-cluster", "greylag-sharding").unwrap().contains("no such arrow"));
        assert!(violation("greylag-crdt", "greylag-core").is_some());
        assert!(violation("greylag-persistence", "greylag-cluster").is_some());
        assert!(allowed("greylag-new").is_none());
    }

    #[test]
    fn engines_and_runtimes_are_confined() {
        assert!(violation("greylag-cluster", "tonic").unwrap().contains("gRPC"));
        assert!(violation("greylag-journal-sled", "sled").is_some());
        assert_eq!(violation("greylag-store-sled", "sled"), None);
        assert!(violation("greylag-core", "tokio").unwrap().contains("async runtime"));
    }

    #[test]
    fn a_machine_that_reads_a_clock_or_draws_unseeded_is_named() {
        for (word, _) in FORBIDDEN {
            let text = format!("fn f() {{\n    {word}();\n}}\n");
            let found = text_violations("greylag-cluster/src/core.rs", &text);
            assert!(found.iter().any(|line| line.starts_with("crates/greylag-cluster/src/core.rs:2:")), "{word}");
        }
    }

    #[test]
    fn forbidden_words_are_allowed_in_comments_tests_and_drivers() {
        assert!(
            text_violations("x", "// no Instant::now here\n#[cfg(test)]\nmod tests { Instant::now(); }\n").is_empty()
        );
        assert!(is_driver("greylag-cluster/src/driver.rs"));
        assert!(is_driver("greylag-sharding/src/driver/shard.rs"));
        assert!(is_driver("greylag-cluster/tests/simulation.rs"));
        assert!(!is_driver("greylag-cluster/src/core.rs"));
    }
}
