//! The node's store of leases: chosen by the settings among the stores that the node knows.
//!
//! Source: cluster S10, S16, P5.

use std::fmt;
use std::path::PathBuf;

use greylag_cluster::Leases;

use crate::settings::NodeSettings;

/// Makes the leases of the cluster with the given name.
pub(crate) type MakeLeases = Box<dyn FnOnce(&str) -> Leases + Send>;

const KEY: &str = "cluster.sbr.lease_majority.lease";
const POSTGRES: &str = "postgres";

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
    fn leases(&self) -> Result<MakeLeases, (String, String)> {
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
    fn leases(&self) -> Result<MakeLeases, (String, String)> {
        let why = "\"postgres\": this program was built without the feature lease-postgres";
        Err((KEY.to_owned(), why.to_owned()))
    }
}

/// Puts the named store, or the only one of the program, into the settings. A store that the settings have already
/// stays. Returns the problems, as [`LeaseStoreSettings::problems`] does.
pub(crate) fn choose(settings: &mut NodeSettings, own: Vec<(String, MakeLeases)>) -> Vec<(String, String)> {
    if settings.cluster.leases.is_some() {
        return Vec::new();
    }
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).chain([POSTGRES.to_owned()]).collect();
    let refused = |why: String| vec![(KEY.to_owned(), why)];
    let make = match &settings.lease_store.name {
        Some(name) => match own.into_iter().find(|(own, _)| own == name) {
            Some((_, make)) => make,
            None if name == POSTGRES => match settings.lease_store.postgres.leases() {
                Ok(make) => make,
                // Reported by `LeaseStoreSettings::problems`.
                Err(_) => return Vec::new(),
            },
            None => return refused(format!("{name:?} is no store of leases; valid are {}", names.join(", "))),
        },
        None if own.len() > 1 => {
            return refused(format!("the program has several stores of leases; name one of {}", names.join(", ")));
        }
        None => match own.into_iter().next() {
            Some((_, make)) => make,
            None => return Vec::new(),
        },
    };
    settings.cluster.leases = Some(make(&settings.transport.cluster_name));
    Vec::new()
}
