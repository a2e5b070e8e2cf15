//! Stores by their URLs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use greylag_journal_postgres::{Migrate, OpenError, PostgresJournal, PostgresJournalSettings};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{Import, Journal as _};

use crate::failure::Failure;

/// What is to be done with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read beside others, where the store can be shared.
    Shared,
    /// Nobody else meanwhile.
    Alone,
    /// The same, and it is made if it does not exist.
    AloneOrNew,
}

/// An open store.
pub(crate) enum Opened {
    Sled(SledJournal),
    Postgres { journal: PostgresJournal, name: String },
}

/// A URL taken apart.
#[derive(Debug, PartialEq, Eq)]
enum Url {
    Sled(PathBuf),
    Postgres { config: String, schema: String },
}

impl Url {
    fn parse(url: &str) -> Result<Self, Failure> {
        let usage = |why: &str| {
            Failure::Usage(format!(
                "{:?} names no store: {why}; write sled:/path/to/directory, or postgres://user@host/database?schema=name",
                shown(url)
            ))
        };
        if let Some(path) = url.strip_prefix("sled:") {
            let path = if path.starts_with("///") { &path[2..] } else { path };
            return match path {
                "" => Err(usage("the directory is missing")),
                path if path.starts_with("//") => Err(usage("a directory of this machine has no host")),
                path => Ok(Self::Sled(path.into())),
            };
        }
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(usage("it begins with neither sled: nor postgres://"));
        }
        // `schema` is ours; everything else goes to the driver.
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut rest) = ("public", Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) if name.contains('%') => {
                    return Err(usage("a schema is written as it is, without %"));
                }
                Some(("schema", name)) => schema = name,
                _ => rest.push(pair),
            }
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        Ok(Self::Postgres { config: format!("{base}{query}"), schema: schema.to_owned() })
    }
}

/// A URL without who logs in, and with which password.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    format!("{scheme}://{host}{path}")
}

impl Opened {
    /// Opens the store of this URL. Only [`Access::AloneOrNew`] makes one, or changes its schema.
    pub(crate) async fn open(url: &str, access: Access) -> Result<Self, Failure> {
        match Url::parse(url)? {
            Url::Sled(path) => open_sled(&path, access).await.map(Self::Sled),
            Url::Postgres { config, schema } => {
                let migrate = if access == Access::AloneOrNew { Migrate::Apply } else { Migrate::Refuse };
                let settings = PostgresJournalSettings { schema: schema.clone(), migrate, ..Default::default() };
                let journal = match access {
                    Access::Shared => PostgresJournal::open(&config, settings).await,
                    Access::Alone | Access::AloneOrNew => PostgresJournal::open_exclusive(&config, settings).await,
                };
                let journal = journal.map_err(|error| match &error {
                    OpenError::Settings(_) | OpenError::Config(_) => Failure::Usage(error.to_string()),
                    OpenError::InUse { .. } => Failure::Refused(error.to_string()),
                    OpenError::Unavailable { .. } => Failure::Unreachable(error.to_string()),
                })?;
                Ok(Self::Postgres { journal, name: format!("{}?schema={schema}", shown(&config)) })
            }
        }
    }

    /// The store, for copying and reading.
    pub(crate) fn archive(&self) -> &dyn Import {
        match self {
            Self::Sled(journal) => journal,
            Self::Postgres { journal, .. } => journal,
        }
    }

    /// Its URL, without secrets.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Sled(journal) => format!("sled:{}", journal.path().display()),
            Self::Postgres { name, .. } => name.clone(),
        }
    }

    /// Closes it. What was done before tells the outcome, unless only closing failed.
    pub(crate) async fn close(self, done: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
        let closed = match &self {
            Self::Sled(journal) => journal.close().await,
            Self::Postgres { journal, .. } => journal.close().await,
        };
        let code = done?;
        closed.map_err(|error| Failure::Refused(format!("{}: {error}; what was written is safe", self.name())))?;
        Ok(code)
    }
}

async fn open_sled(path: &Path, access: Access) -> Result<SledJournal, Failure> {
    // Opening makes a store where there is none; a mistyped path must not.
    if access != Access::AloneOrNew && !path.join("db").is_file() {
        let path = path.display();
        return Err(Failure::Unreachable(format!("there is no journal in {path}: it has no file db; check the path")));
    }
    let mut settings = SledJournalSettings::default();
    if access == Access::Alone {
        settings.verify_commits = u64::MAX;
    }
    SledJournal::open(path, settings).await.map_err(|error| {
        let advice = match &error {
            greylag_journal_sled::OpenError::Locked { .. } => "; stop the node that uses it",
            _ => "",
        };
        Failure::Unreachable(format!("sled:{}: {error}{advice}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postgres(config: &str, schema: &str) -> Url {
        Url::Postgres { config: config.to_owned(), schema: schema.to_owned() }
    }

    #[test]
    fn urls_name_stores() {
        for (url, meant) in [
            ("sled:/var/journal", Url::Sled("/var/journal".into())),
            ("sled:///var/journal", Url::Sled("/var/journal".into())),
            ("sled:journal", Url::Sled("journal".into())),
            ("postgres://db/shop", postgres("postgres://db/shop", "public")),
            ("postgresql://u@db/shop?schema=a", postgres("postgresql://u@db/shop", "a")),
            (
                "postgres://db/shop?sslmode=require&schema=a&connect_timeout=3",
                postgres("postgres://db/shop?sslmode=require&connect_timeout=3", "a"),
            ),
        ] {
            assert_eq!(Url::parse(url).unwrap(), meant, "{url}");
        }
        for url in ["", "sled:", "sled://host/x", "/var/journal", "mysql://db/shop", "postgres://db?schema=a%20b"] {
            assert!(matches!(Url::parse(url), Err(Failure::Usage(_))), "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(shown("postgres://app:secret@db:5432/shop?password=secret"), "postgres://db:5432/shop");
        let Err(Failure::Usage(told)) = Url::parse("mysql://app:secret@db/shop") else { panic!("it is no store") };
        assert!(!told.contains("secret"), "{told}");
    }
}
