//! Sources of settings: a TOML file and environment variables. Both are read into flat keys.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::given::Given;
use super::key::{Key, nearest};
use super::problem::{Origin, Problem};

/// One given key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) given: Given,
    pub(super) origin: Origin,
}

/// Reads a file's text.
pub(super) fn file(name: &str, text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let origin = |span: Range<usize>| {
        let before = text.get(..span.start).unwrap_or_default();
        Origin::File { file: name.to_owned(), line: before.matches('\n').count() + 1 }
    };
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    match DeTable::parse(text) {
        Ok(table) => flatten("", table.get_ref(), &origin, &mut entries, &mut problems),
        Err(error) => problems.push(Problem {
            origin: origin(error.span().unwrap_or_default()),
            key: String::new(),
            why: format!("invalid TOML: {}", error.message()),
        }),
    }
    (entries, problems)
}

fn flatten(
    prefix: &str,
    table: &DeTable<'_>,
    origin: &impl Fn(Range<usize>) -> Origin,
    entries: &mut Vec<Entry>,
    problems: &mut Vec<Problem>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        if let DeValue::Table(inner) = value.get_ref() {
            flatten(&key, inner, origin, entries, problems);
            continue;
        }
        let origin = origin(name.span());
        match given(value.get_ref()) {
            Some(given) => entries.push(Entry { key, given, origin }),
            None => {
                let why = format!("a {} cannot be the value of a setting", value.get_ref().type_str());
                problems.push(Problem { origin, key, why });
            }
        }
    }
}

fn given(value: &DeValue<'_>) -> Option<Given> {
    Some(match value {
        DeValue::String(text) => Given::Text(text.to_string()),
        DeValue::Integer(number) => Given::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()?),
        DeValue::Float(number) => Given::Float(number.as_str().parse().ok()?),
        DeValue::Boolean(value) => Given::Bool(*value),
        DeValue::Array(items) => Given::List(items.iter().map(|item| given(item.get_ref())).collect::<Option<_>>()?),
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}

/// Reads variables: `GREYLAG_CLUSTER__SBR__STABLE_AFTER` is `cluster.sbr.stable_after`.
///
/// Two underscores stand for a point, because keys have single ones. Variables without two, such as
/// `GREYLAG_ADDRESS` of the command line, or with another first word, are not settings.
pub(super) fn environment(variables: impl IntoIterator<Item = (String, String)>, sections: &[&str]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (variable, value) in variables {
        let Some(rest) = variable.strip_prefix("GREYLAG_") else { continue };
        let key = rest.to_lowercase().replace("__", ".");
        if !key.split_once('.').is_some_and(|(section, _)| sections.contains(&section)) {
            continue;
        }
        entries.push(Entry { key, given: Given::Word(value), origin: Origin::Environment(variable) });
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

/// Warnings of variables that look like settings but are not read: with one underscore for a point, or one too many
/// before the section.
pub(super) fn unread_variables(
    variables: impl IntoIterator<Item = (String, String)>,
    sections: &[&str],
    keys: &[Key],
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (variable, _) in variables {
        let Some(rest) = variable.strip_prefix("GREYLAG_") else { continue };
        let words = rest.to_lowercase();
        let is_read = words.split_once("__").is_some_and(|(section, _)| sections.contains(&section));
        let flat = |name: &str| name.replace('.', "_");
        let spoken = words.trim_start_matches('_').replace("__", "_");
        let section =
            sections.iter().find(|section| spoken.strip_prefix(**section).is_some_and(|rest| rest.starts_with('_')));
        let (false, Some(section)) = (is_read, section) else { continue };
        let meant = keys.iter().find(|key| flat(&key.name) == spoken).map(|key| key.name.as_str());
        let point = spoken.replacen('_', ".", 1);
        let near = || nearest(&point, keys.iter().map(|key| key.name.as_str()));
        let advice = match (meant, near()) {
            (Some(key), _) => format!("write {} for {key}", variable_of(key)),
            (None, Some(key)) => format!("did you mean {} for {key}?", variable_of(key)),
            (None, None) => format!("settings of that section begin with {}", variable_of(&format!("{section}."))),
        };
        warnings.push(format!(
            "the variable {variable} is not a setting, and is not read: two underscores stand for each point; {advice}"
        ));
    }
    warnings.sort();
    warnings
}

/// The variable that gives this key.
fn variable_of(key: &str) -> String {
    format!("GREYLAG_{}", key.replace('.', "__").to_uppercase())
}
