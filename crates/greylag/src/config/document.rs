//! `docs/configuration.md`, made from the tables that read the file, so that the two always agree.

use std::fmt::Write as _;

use super::keys;

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the tables in crates/greylag/src/config/keys; a test compares. To make it anew:
     GREYLAG_BLESS=1 cargo test -p greylag --all-features --lib configuration_md -->

A node is configured by its program, by the environment, and by a TOML file. Where a setting is given more than once,
**the program wins over the environment, the environment over the file, the file over the default**.

```rust,ignore
let node = Node::from_config(Config::new().file(\"greylag.toml\").environment()).start().await?;
```

- In the file, keys stand in tables: `[cluster.sbr]` and below it `stable_after = \"10s\"`.
- In the environment, `cluster.sbr.stable_after` is `GREYLAG_CLUSTER__SBR__STABLE_AFTER`: two underscores for each point.
  Lists are words separated by commas. A variable with one underscore for a point (`GREYLAG_CLUSTER_ROLES`) is not read, and
  a warning at the start names the right one.
- Durations have a unit: `\"100ms\"`, `\"5s\"`, `\"2m\"`, `\"1m30s\"`, `\"24h\"`. Sizes are numbers of bytes, or have a unit:
  `\"256KiB\"`, `\"2MiB\"`.
- An unknown key is refused, with the known one that is nearest. All problems are reported together, each with its key
  and line, and nothing is started.
- Times and sizes suit a production LAN. Settings marked \"the same on all nodes\" are compared when a node joins.

The column *rule* names the clause of the specification that the setting comes from.
";

/// The text of `docs/configuration.md`.
pub fn document() -> String {
    let keys = keys::all();
    let mut text = INTRODUCTION.to_owned();
    for (section, what) in keys::SECTIONS {
        let prefix = format!("{section}.");
        let of_section: Vec<_> = keys.iter().filter(|key| key.name.starts_with(&prefix)).collect();
        if of_section.is_empty() {
            continue;
        }
        let _infallible = write!(
            text,
            "\n## `{section}`\n\n{what}\n\n| setting | type | default | meaning | rule |\n|---|---|---|---|---|\n"
        );
        for key in of_section {
            let (name, default) = (&key.name, key.default());
            let _infallible = writeln!(
                text,
                "| `{name}` | {} | {} | {} | {} |",
                key.expected,
                code(&default),
                key.meaning,
                key.source
            );
        }
        if section == "cluster" {
            text.push_str(
                "| `cluster.role.<role>.min_number_of_members` | whole number | none | No node becomes Up before so many members with this role are known. | cluster M22 |\n",
            );
        }
    }
    text
}

/// Formats a default: values as code, words such as `required` as text.
fn code(default: &str) -> String {
    let is_word = default.starts_with(|c: char| c.is_alphabetic()) && default != "true" && default != "false";
    if is_word { default.to_owned() } else { format!("`{default}`") }
}
