//! Stores, opened for a command.

use std::process::ExitCode;

use greylag_persistence::Import;

use super::url::Url;
use crate::failure::Failure;

/// How a command uses a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read while others use it, if the store can be shared.
    Shared,
    /// With no other process in the store.
    Alone,
    /// With no other process in the store, which is created if it does not exist.
    AloneOrNew,
}

/// An open store.
pub(crate) struct OpenStore {
    archive: Box<dyn Import>,
    name: String,
}

impl OpenStore {
    /// Opens the store of this URL. Only [`Access::AloneOrNew`] creates one, or changes its schema.
    pub(crate) async fn open(url: Url, access: Access) -> Result<Self, Failure> {
        match url {
            #[cfg(feature = "journal-sled")]
            Url::Sled(path) => sled::open(&path, access).await,
            #[cfg(feature = "journal-postgres")]
            Url::Postgres { config, schema } => postgres::open(&config, schema, access).await,
            #[cfg(not(all(feature = "journal-sled", feature = "journal-postgres")))]
            other => Err(other.feature().missing()),
        }
    }

    /// The store, for copying and reading.
    pub(crate) fn archive(&self) -> &dyn Import {
        self.archive.as_ref()
    }

    /// Its URL, without secrets.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Closes the store. The outcome is that of the command, unless only closing failed.
    pub(crate) async fn close(self, done: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
        let closed = self.archive.stores().journal.close().await;
        let code = done?;
        closed.map_err(|error| Failure::Refused(format!("{}: {error}; what was written is stored", self.name)))?;
        Ok(code)
    }
}

#[cfg(feature = "journal-sled")]
mod sled {
    use std::path::Path;

    use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings};

    use super::{Access, OpenStore};
    use crate::failure::Failure;

    pub(super) async fn open(path: &Path, access: Access) -> Result<OpenStore, Failure> {
        // Opening would create a missing store, which a mistyped path must not.
        if access != Access::AloneOrNew && !path.join("db").is_file() {
            let path = path.display();
            let why = format!("there is no journal in {path}: it has no file db; check the path");
            return Err(Failure::Unreachable(why));
        }
        let mut settings = SledJournalSettings::default();
        if access == Access::Alone {
            settings.verify_commits = u64::MAX;
        }
        let journal = SledJournal::open(path, settings).await.map_err(|error| {
            let advice = match &error {
                OpenError::Locked { .. } => "; stop the node that uses it",
                _ => "",
            };
            Failure::Unreachable(format!("sled:{}: {error}{advice}", path.display()))
        })?;
        let name = format!("sled:{}", journal.path().display());
        Ok(OpenStore { archive: Box::new(journal), name })
    }
}

#[cfg(feature = "journal-postgres")]
mod postgres {
    use greylag_journal_postgres::{Migrate, OpenError, PostgresJournal, PostgresJournalSettings};

    use super::super::url::shown;
    use super::{Access, OpenStore};
    use crate::failure::Failure;

    pub(super) async fn open(config: &str, schema: String, access: Access) -> Result<OpenStore, Failure> {
        let name = format!("{}?schema={schema}", shown(config));
        let migrate = if access == Access::AloneOrNew { Migrate::Apply } else { Migrate::Refuse };
        let settings = PostgresJournalSettings { schema, migrate, ..Default::default() };
        let journal = match access {
            Access::Shared => PostgresJournal::open(config, settings).await,
            Access::Alone | Access::AloneOrNew => PostgresJournal::open_exclusive(config, settings).await,
        };
        let journal = journal.map_err(|error| match &error {
            OpenError::Settings(_) | OpenError::Config(_) => Failure::Usage(error.to_string()),
            OpenError::InUse { .. } => Failure::Refused(error.to_string()),
            OpenError::Unavailable { .. } => Failure::Unreachable(error.to_string()),
        })?;
        Ok(OpenStore { archive: Box::new(journal), name })
    }
}
