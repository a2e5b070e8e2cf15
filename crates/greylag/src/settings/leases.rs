//! Settings of the node's store of leases.
//!
//! Source: cluster S10, S16, P5.

use std::fmt;
use std::path::PathBuf;

use greylag_cluster::Leases;

/// Makes the leases of the cluster with the given name.
pub(crate) type MakeLeases = Box<dyn FnOnce(&str) -> Leases + Send>;

/// The setting that names the store.
pub(crate) const STORE_KEY: &str = "cluster.sbr.lease_majority.lease";
/// Name of the store in PostgreSQL.
pub(crate) const POSTGRES: &str = "postgres";

/// The store for the leases of the resolver and of singletons.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseStoreSettings {
    /// Name of the store: `postgres`, or one that the program gave by
    /// [`NodeBuilder::lease_provider`](crate::NodeBuilder::lease_provider). `None`, the default: the program's store,
    /// if it gave one.
    pub name: Option<String>,
    /// `cluster.lease.postgres.*`; used only by the store `postgres`.
    pub postgres: PostgresLeaseSettings,
}

/// Settings of the store `postgres`; needs feature `lease-postgres`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PostgresLeaseSettings {
    /// Connection string as for libpq, key words or a URL, with `sslmode` and its files.
    pub connection: Secret,
    /// A file with the password, if the connection string has none. Default none.
    pub password_file: Option<PathBuf>,
}

/// Text that is never printed, since it may hold a password.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(nothing)" } else { "Secret(…)" })
    }
}

impl LeaseStoreSettings {
    pub(crate) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Problems of these settings alone, whatever stores the program gives: the key with its section, and why.
    pub(crate) fn problems(&self) -> Vec<(String, String)> {
        if self.name.as_deref() != Some(POSTGRES) {
            return Vec::new();
        }
        self.postgres.leases().err().into_iter().collect()
    }
}

impl PostgresLeaseSettings {
    #[cfg(feature = "lease-postgres")]
    pub(crate) fn leases(&self) -> Result<MakeLeases, (String, String)> {
        use greylag_lease_postgres::{PostgresLeaseError, PostgresLeases};

        let refused = |key: &str, why: String| (format!("cluster.lease.postgres.{key}"), why);
        if self.connection.is_empty() {
            return Err(refused("connection", "the store postgres needs a connection string".to_owned()));
        }
        let connection = self.connection.reveal();
        let leases = match &self.password_file {
            None => PostgresLeases::lazy(connection),
            Some(file) => PostgresLeases::lazy_with_password_file(connection, file),
        };
        let leases = leases.map_err(|error| match error {
            PostgresLeaseError::PasswordFile { .. } => refused("password_file", error.to_string()),
            _ => refused("connection", error.to_string()),
        })?;
        Ok(Box::new(|cluster| Leases::new(cluster, leases)))
    }

    #[cfg(not(feature = "lease-postgres"))]
    pub(crate) fn leases(&self) -> Result<MakeLeases, (String, String)> {
        let why = "\"postgres\": this program was built without the feature lease-postgres";
        Err((STORE_KEY.to_owned(), why.to_owned()))
    }
}
