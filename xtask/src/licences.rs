//! Checks the licence of every crate that is built against `deny.toml`.
//!
//! A crate may change its licence with any version. `deny.toml` lists the licences that are allowed for every crate, and
//! exceptions for single crates; another licence is an error, and so is an exception that no crate needs any more.

use std::collections::BTreeSet;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::run::{Failure, command, output, root, run, say};

/// The licences that `deny.toml` allows.
#[derive(Debug)]
struct Policy {
    /// For every crate.
    allow: Vec<Licensee>,
    /// For the crate of that name.
    exceptions: Vec<(String, Vec<Licensee>)>,
}

/// A crate that the workspace depends on.
struct Package {
    name: String,
    version: String,
    /// The licence in its manifest.
    licence: Option<String>,
    /// The crates that depend on it directly.
    dependents: BTreeSet<String>,
}

/// Checks every crate in the lock file, with all features and for all targets.
pub(crate) fn licences() -> Result<(), Failure> {
    let policy = std::fs::read_to_string(root().join("deny.toml")).map_err(|error| format!("no deny.toml: {error}"))?;
    let policy = policy_in(&policy)?;
    let metadata = output("cargo", &["metadata", "--locked", "--format-version", "1", "--all-features"])?;
    let metadata = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = packages(&metadata);
    let violations = violations(&packages, &policy);
    if !violations.is_empty() {
        return Err(format!("{} violations of deny.toml:\n  {}", violations.len(), violations.join("\n  ")));
    }
    if command("cargo").args(["deny", "--version"]).output().is_ok_and(|output| output.status.success()) {
        run("cargo", &["deny", "check", "licenses"])?;
    }
    let exceptions = policy.exceptions.len();
    say(&format!(
        "licences: {} crates have licences that deny.toml allows, with {exceptions} exceptions",
        packages.len()
    ));
    Ok(())
}

/// Parses a `deny.toml`.
fn policy_in(text: &str) -> Result<Policy, Failure> {
    let table = DeTable::parse(text).map_err(|error| format!("deny.toml: {error}"))?;
    let licences = table.get_ref().get("licenses").ok_or("deny.toml has no section [licenses]")?.get_ref();
    let mut exceptions = Vec::new();
    for exception in list(licences, "exceptions") {
        let name = exception.get("crate").and_then(|name| name.get_ref().as_str());
        let name = name.ok_or("deny.toml: an exception names no crate")?;
        exceptions.push((name.to_owned(), allowed(exception)?));
    }
    Ok(Policy { allow: allowed(licences)?, exceptions })
}

/// The licences that a table allows.
fn allowed(table: &DeValue<'_>) -> Result<Vec<Licensee>, Failure> {
    let names = list(table, "allow").filter_map(DeValue::as_str);
    names
        .map(|name| Licensee::parse(name).map_err(|error| format!("deny.toml: `{name}` is not a licence: {error}")))
        .collect()
}

/// The members of a list in a table.
fn list<'a>(table: &'a DeValue<'a>, name: &str) -> impl Iterator<Item = &'a DeValue<'a>> {
    let list = table.get(name).and_then(|list| list.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter().map(Spanned::get_ref))
}

/// The crates in the output of `cargo metadata`.
fn packages(metadata: &Value) -> Vec<Package> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let all = members(&metadata["packages"]);
    let named = |id: &Value| all.iter().find(|package| package["id"] == *id).map(|package| text(&package["name"]));
    let nodes = members(&metadata["resolve"]["nodes"]);
    let above = |id: &Value| {
        let parents = nodes.iter().filter(|node| members(&node["dependencies"]).contains(id));
        parents.filter_map(|node| named(&node["id"])).collect()
    };
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        version: text(&package["version"]),
        licence: package["license"].as_str().map(ToOwned::to_owned),
        dependents: above(&package["id"]),
    };
    all.iter().map(package).collect()
}

/// The crates that the policy does not allow, and the exceptions that no crate needs.
fn violations(packages: &[Package], policy: &Policy) -> Vec<String> {
    let mut violations = Vec::new();
    let mut needed = BTreeSet::new();
    for package in packages {
        match satisfied(package, &policy.allow) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(why) => {
                violations.push(why);
                continue;
            }
        }
        let of_crate = policy.exceptions.iter().filter(|(name, _)| *name == package.name);
        let more: Vec<_> = policy.allow.iter().chain(of_crate.flat_map(|(_, allow)| allow)).cloned().collect();
        needed.insert(package.name.as_str());
        if satisfied(package, &more) != Ok(true) {
            violations.push(describe(package));
        }
    }
    let idle = policy.exceptions.iter().filter(|(name, _)| !needed.contains(name.as_str()));
    violations.extend(idle.map(|(name, _)| format!("{name}: no crate needs this exception any more: delete it")));
    violations
}

/// Whether the allowed licences satisfy the licence of a crate.
fn satisfied(Package { name, version, licence, .. }: &Package, allowed: &[Licensee]) -> Result<bool, Failure> {
    let licence = licence
        .as_ref()
        .ok_or(format!("{name} {version} names no licence: read the licence in its files, and add an exception"))?;
    // Old manifests write `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX)
        .map_err(|error| format!("{name} {version}: `{licence}` is not a licence expression: {}", error.reason))?;
    Ok(expression.evaluate(|wanted| allowed.iter().any(|licensee| licensee.satisfies(wanted))))
}

fn describe(Package { name, version, licence, dependents }: &Package) -> String {
    let licence = licence.as_deref().unwrap_or_default();
    let dependents: Vec<_> = dependents.iter().map(String::as_str).collect();
    let what = "replace it, or give it an exception in deny.toml with the reason";
    format!(
        "{name} {version} is {licence}, which deny.toml does not allow; {} depends on it: {what}",
        dependents.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0", "Unicode-3.0"]
        exceptions = [{ allow = ["ISC"], crate = "ring" }, { allow = ["Zlib"], crate = "foldhash" }]
    "#;

    fn package(name: &str, licence: Option<&str>) -> Package {
        let licence = licence.map(ToOwned::to_owned);
        Package { name: name.to_owned(), version: "1.0.0".to_owned(), licence, dependents: ["above".to_owned()].into() }
    }

    /// The failures, where both exceptions are needed.
    fn failures(name: &str, licence: Option<&str>) -> Vec<String> {
        let others = [package("ring", Some("Apache-2.0 AND ISC")), package("foldhash", Some("Zlib"))];
        let all: Vec<_> = others.into_iter().chain([package(name, licence)]).collect();
        violations(&all, &policy_in(POLICY).unwrap())
    }

    #[test]
    fn alternatives_are_enough_and_conjunctions_are_not() {
        let fine = [
            "MIT",
            "BSD-3-Clause OR MIT",
            "GPL-3.0-only/MIT",
            "Apache-2.0 / MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ];
        for licence in fine {
            assert!(failures("x", Some(licence)).is_empty(), "{licence}");
        }
        for licence in ["BSD-3-Clause", "MIT AND BSD-3-Clause", "ISC", "Apache-2.0 WITH LLVM-exception"] {
            let found = failures("x", Some(licence));
            assert_eq!(found.len(), 1, "{licence}");
            assert!(
                found[0].starts_with(&format!("x 1.0.0 is {licence}, which"))
                    && found[0].contains("above depends on it"),
                "{found:?}"
            );
        }
        assert!(failures("x", None)[0].contains("names no licence"));
        assert!(failures("x", Some("MIT nonsense"))[0].contains("is not a licence expression"));
    }

    #[test]
    fn an_unneeded_exception_is_reported() {
        let found =
            violations(&[package("ring", Some("ISC")), package("foldhash", Some("MIT"))], &policy_in(POLICY).unwrap());
        assert_eq!(found, ["foldhash: no crate needs this exception any more: delete it"]);
        assert!(policy_in("[licenses]\nallow = [\"nonsense\"]").unwrap_err().contains("`nonsense` is not a licence"));
    }

    #[test]
    fn dependents_of_a_crate_come_from_the_graph() {
        let metadata = serde_json::json!({
            "packages": [
                {"id": "a", "name": "upper", "version": "1.0.0", "license": "MIT"},
                {"id": "b", "name": "lower", "version": "2.0.0", "license": null},
            ],
            "resolve": {"nodes": [{"id": "a", "dependencies": ["b"]}, {"id": "b", "dependencies": []}]},
        });
        let found = packages(&metadata);
        assert_eq!(found[1].dependents.iter().collect::<Vec<_>>(), ["upper"]);
        assert_eq!((found[0].licence.as_deref(), found[1].licence.as_deref()), (Some("MIT"), None));
    }
}
