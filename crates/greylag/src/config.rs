//! Settings from a TOML file and from the environment.
//!
//! ```toml
//! [transport]
//! cluster_name = "bank"
//! canonical_host = "node-1.example"
//! tls = "none"
//!
//! [cluster]
//! seed_nodes = ["node-1.example:17355", "node-2.example:17355", "node-3.example:17355"]
//! roles = ["accounts"]
//!
//! [cluster.sbr]
//! active_strategy = "keep_majority"
//! stable_after = "10s"
//!
//! [management]
//! address = "127.0.0.1:17356"
//! ```
//!
//! If a setting is given more than once, the program wins over the environment, the environment over the file, the file
//! over the default. In the environment `cluster.sbr.stable_after` is `GREYLAG_CLUSTER__SBR__STABLE_AFTER`: two
//! underscores for each point.
//!
//! Nothing is guessed. An unknown key is refused, and the error names the nearest known key; a value of another type
//! and values that cannot work together are refused, too. All problems are reported at once, each with its key and
//! line. `docs/configuration.md` lists every key.

mod document;
mod draft;
mod given;
mod key;
mod keys;
mod problem;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;

use draft::Draft;
use key::{Key, nearest};
pub use problem::{ConfigProblems, Origin, Problem};
use source::Entry;

use crate::settings::NodeSettings;

/// Sources of settings besides the program.
#[derive(Clone, Default)]
pub struct Config {
    file: Option<File>,
    variables: Vec<(String, String)>,
}

#[derive(Clone)]
enum File {
    Path(PathBuf),
    Text { name: String, text: String },
}

/// Settings as they were read, and the source of each.
#[derive(Debug, Clone)]
pub struct ReadSettings {
    /// The settings, not yet checked for combinations that cannot work.
    pub settings: NodeSettings,
    /// Source of each key that was given.
    origins: BTreeMap<String, Origin>,
    warnings: Vec<String>,
}

/// Prints no values: an environment and a file hold secrets, also of other programs.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.file.as_ref().map(|file| match file {
            File::Path(path) => path.display().to_string(),
            File::Text { name, .. } => name.clone(),
        });
        let variables = self.variables.iter().map(|(name, _)| name).filter(|name| name.starts_with("GREYLAG_"));
        f.debug_struct("Config").field("file", &file).field("variables", &variables.collect::<Vec<_>>()).finish()
    }
}

impl Config {
    /// No sources: every setting has its default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a file.
    #[must_use]
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        Self { file: Some(File::Path(path.into())), ..self }
    }

    /// Reads this text like a file; `name` is the file's name in messages.
    #[must_use]
    pub fn text(self, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { file: Some(File::Text { name: name.into(), text: text.into() }), ..self }
    }

    /// Reads the variables of this process, which win over the file.
    #[must_use]
    pub fn environment(self) -> Self {
        // A variable that is not Unicode cannot be a setting.
        let own =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        self.variables(own)
    }

    /// Reads these variables, which win over the file.
    #[must_use]
    pub fn variables<N: Into<String>, V: Into<String>>(self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, ..self }
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// [`ConfigProblems`]: all unreadable files, unknown keys, and values of another type.
    pub fn read(&self) -> Result<ReadSettings, ConfigProblems> {
        let keys = keys::all();
        let sections = keys::SECTIONS.map(|(section, _)| section);
        let (mut entries, mut problems) = self.read_file();
        entries.extend(source::environment(self.variables.iter().cloned(), &sections));
        let warnings = source::unread_variables(self.variables.iter().cloned(), &sections, &keys);
        let (mut draft, mut origins) = (Draft::default(), BTreeMap::new());
        for entry in entries {
            match apply(&keys, &mut draft, &entry) {
                Ok(()) => {
                    origins.insert(entry.key, entry.origin);
                }
                Err(why) => problems.push(Problem { origin: entry.origin, key: entry.key, why }),
            }
        }
        if !problems.is_empty() {
            problems.sort_by(|a, b| a.origin.cmp(&b.origin));
            return Err(ConfigProblems(problems));
        }
        Ok(ReadSettings { settings: draft.finish(), origins, warnings })
    }

    /// Whether there is neither a file nor a variable to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_none() && self.variables.is_empty()
    }

    fn read_file(&self) -> (Vec<Entry>, Vec<Problem>) {
        match &self.file {
            None => (Vec::new(), Vec::new()),
            Some(File::Text { name, text }) => source::file(name, text),
            Some(File::Path(path)) => {
                let name = path.display().to_string();
                match std::fs::read_to_string(path) {
                    Ok(text) => source::file(&name, &text),
                    Err(error) => {
                        let origin = Origin::File { file: name, line: 0 };
                        let why = format!("the config file cannot be read: {error}");
                        (Vec::new(), vec![Problem { origin, key: String::new(), why }])
                    }
                }
            }
        }
    }
}

/// Sets the value of an entry.
fn apply(keys: &[Key], draft: &mut Draft, entry: &Entry) -> Result<(), String> {
    if let Some(key) = keys.iter().find(|key| key.name == entry.key) {
        return key.set(draft, &entry.given);
    }
    if let Some(role) = role_of_minimum(&entry.key) {
        let least = <usize as given::Value>::read(&entry.given);
        let least = least.map_err(|_| format!("{} is not valid; expected: whole number", entry.given.shown()))?;
        draft.settings.cluster.role_min_number_of_members.insert(role.to_owned(), least);
        return Ok(());
    }
    let names = keys.iter().map(|key| key.name.as_str());
    Err(match nearest(&entry.key, names) {
        Some(name) => format!("there is no such setting; did you mean {name}?"),
        None => "there is no such setting; docs/configuration.md lists them".to_owned(),
    })
}

/// The role in `cluster.role.<role>.min_number_of_members`, the one key that contains a name of the user's.
fn role_of_minimum(key: &str) -> Option<&str> {
    key.strip_prefix("cluster.role.")?.strip_suffix(".min_number_of_members").filter(|role| !role.is_empty())
}

impl ReadSettings {
    /// Warnings of variables that look like settings but are none, each with the right name. A node logs them when it
    /// starts.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Checks that each setting works, alone and together with the others.
    ///
    /// # Errors
    /// [`ConfigProblems`]: all problems, of all sections, with the source of each given setting.
    pub fn validate(&self) -> Result<(), ConfigProblems> {
        self.validate_with(Vec::new())
    }

    /// The same, with further problems, between the settings and the program.
    pub(crate) fn validate_with(&self, more: Vec<(String, String)>) -> Result<(), ConfigProblems> {
        let mut found = self.settings.problems();
        found.extend(more);
        if found.is_empty() {
            return Ok(());
        }
        let problem = |(key, why): (String, String)| {
            let origin = self.origins.get(&key).cloned().unwrap_or(Origin::Program);
            Problem { origin, key, why }
        };
        Err(ConfigProblems(found.into_iter().map(problem).collect()))
    }
}

pub use document::document;

#[cfg(test)]
mod tests;
