//! Checks that no shipped crate can omit a clause of the specification.
//!
//! Simulations omit clauses on purpose, by the feature `sabotage` of the crates with machines. Cargo builds a crate once,
//! with the features of all its users; so a single dependency that turned `sabotage` on would ship it to every user.

use std::path::Path;

use serde_json::Value;

use crate::run::{Failure, root, rust_files};

/// The feature that lets a simulation omit clauses.
const FEATURE: &str = "sabotage";

/// The only package whose program, not only whose tests, omits clauses. No crate depends on it.
const SIMULATION: &str = "greylag-simulation";

/// The files of a crate in which the feature may be asked for: the first defines `Omissions`, which is empty without the
/// feature, and the second exports the names of the clauses. All other code asks an `Omissions`, in one form.
const FILES: &[&str] = &["omissions.rs", "lib.rs"];

/// Every place that turns the feature on outside of tests and the simulation, and every file that asks for it itself.
pub(crate) fn violations(metadata: &Value) -> Result<Vec<String>, Failure> {
    let mut violations = feature_violations(metadata);
    let crates = root().join("crates");
    for file in rust_files(&crates)? {
        let shown = file.strip_prefix(&crates).expect("listed below it").display().to_string();
        let text =
            std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        violations.extend(text_violations(&shown, &text));
    }
    Ok(violations)
}

fn feature_violations(metadata: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let shipped = dependencies.filter(|dependency| dependency["kind"] != "dev" && name != SIMULATION);
        for dependency in shipped.filter(|dependency| names(&dependency["features"], |feature| feature == FEATURE)) {
            let to = dependency["name"].as_str().unwrap_or_default();
            violations.push(format!(
                "{name} -> {to}: only {SIMULATION} and dev-dependencies turn the feature `{FEATURE}` on, for every user of \
                 {name} gets it, too"
            ));
        }
        // `x/sabotage`, `x?/sabotage`, or the package's own.
        let turns_on = |feature: &str| feature.rsplit('/').next() == Some(FEATURE);
        for (feature, on) in package["features"].as_object().into_iter().flatten() {
            if feature != FEATURE && names(on, turns_on) {
                violations.push(format!(
                    "{name}: the feature `{feature}` turns `{FEATURE}` on, which only `{FEATURE}` may do"
                ));
            }
        }
    }
    violations
}

fn names(features: &Value, wanted: impl Fn(&str) -> bool) -> bool {
    features.as_array().into_iter().flatten().filter_map(Value::as_str).any(wanted)
}

fn text_violations(path: &str, text: &str) -> Vec<String> {
    let of_machines = path.split('/').nth(1) == Some("src");
    let file = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !of_machines || FILES.contains(&file) {
        return Vec::new();
    }
    let asks = format!("feature = \"{FEATURE}\"");
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains(&asks));
    lines
        .map(|(index, _)| {
            format!(
                "crates/{path}:{}: `{FEATURE}` is asked for in omissions.rs only: ask an `Omissions` here",
                index + 1
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, kind: Option<&str>, features: &Value) -> Value {
        let dependency = json!({ "name": "greylag-cluster", "kind": kind, "features": ["sabotage"] });
        json!({ "packages": [{ "name": name, "dependencies": [dependency], "features": features }] })
    }

    #[test]
    fn a_shipped_dependency_that_turns_sabotage_on_is_named() {
        for kind in [None, Some("build")] {
            let found = feature_violations(&package("greylag", kind, &json!({})));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("greylag -> greylag-cluster:"), "{found:?}");
        }
        assert!(feature_violations(&package("greylag-cluster", Some("dev"), &json!({}))).is_empty());
        assert!(feature_violations(&package(SIMULATION, None, &json!({}))).is_empty());
    }

    #[test]
    fn a_feature_that_turns_sabotage_on_is_named() {
        let of = |features: Value| feature_violations(&package("greylag", Some("dev"), &features));
        for on in ["sabotage", "greylag-ddata/sabotage", "greylag-ddata?/sabotage"] {
            let found = of(json!({ "default": ["ddata", on], "ddata": ["dep:greylag-ddata"] }));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("greylag: the feature `default`"), "{found:?}");
        }
        assert!(of(json!({ "sabotage": ["greylag-crdt/sabotage"] })).is_empty());
    }

    #[test]
    fn a_machine_that_asks_for_the_feature_itself_is_named() {
        let text = "fn f() {\n    #[cfg(feature = \"sabotage\")]\n    g();\n}\n";
        let found = text_violations("greylag-cluster/src/core/machine.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/greylag-cluster/src/core/machine.rs:2:"), "{found:?}");
        assert!(text_violations("greylag-cluster/src/testing/omissions.rs", text).is_empty());
        assert!(text_violations("greylag-cluster/src/lib.rs", text).is_empty());
        assert!(text_violations("greylag-cluster/tests/suite/main.rs", text).is_empty());
    }
}
