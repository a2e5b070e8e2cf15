//! What can be wrong between a node and its database, split by what is to be done about it.

use std::path::PathBuf;

use greylag_postgres::{ConfigError, ConnectError, Trouble};

/// Why the database did not answer as it should.
#[derive(thiserror::Error)]
pub enum PostgresLeaseError {
    /// The connection string is not one.
    #[error("the connection string of the lease database is invalid; write host=… user=… dbname=…")]
    InvalidConfig(#[source] tokio_postgres::Error),
    /// What the connection string says about TLS makes no sense.
    #[error("the connection string of the lease database is invalid: {why}")]
    InvalidTls {
        /// What is wrong.
        why: String,
    },
    /// A file of a certificate cannot be used.
    #[error("cannot use {} for the lease database: {why}", file.display())]
    TlsFile {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file of the password cannot be read.
    #[error("cannot read the password of the lease database from {}: {cause}", file.display())]
    PasswordFile {
        /// The file.
        file: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The server's certificate is not believed, or ours not by the server. Nothing was asked, and no
    /// password was sent.
    #[error(
        "the lease database at {place} is not trusted, or does not trust this node; check sslrootcert, the host's name in \
         the server's certificate, and sslcert: see the source"
    )]
    NotTrusted {
        /// Where.
        place: String,
        /// What the handshake said.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// TLS is demanded, and the server has none.
    #[error(
        "the lease database at {place} speaks no TLS; set ssl = on there, or another sslmode in the connection string"
    )]
    NoTls {
        /// Where.
        place: String,
        /// What the client said.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// No server answers there.
    #[error("the lease database at {place} cannot be reached; check host, port and network, and that it runs")]
    Unreachable {
        /// Where.
        place: String,
        /// What the connection said.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// No answer in time. What was asked may be done or not.
    #[error("the lease database at {place} did not answer within {after:?}")]
    Silent {
        /// Where.
        place: String,
        /// How long it had.
        after: std::time::Duration,
    },
    /// The server does not let this user in.
    #[error(
        "the lease database at {place} refuses the credentials; check user and password, sslmode and sslcert, and \
         pg_hba.conf of the server"
    )]
    WrongCredentials {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server has no database of this name.
    #[error("the lease database at {place} does not exist; create it, or name another by dbname=…")]
    NoSuchDatabase {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The user may not use the table, or not make it.
    #[error(
        "the user of the lease database at {place} lacks a permission; let it create tables, or create greylag_lease \
         for it and grant select, insert, update on it"
    )]
    NotPermitted {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server stops, starts, or was lost meanwhile. The next try makes a new connection.
    #[error("the lease database at {place} is restarting, or the connection broke; the next try connects anew")]
    Interrupted {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server is a standby, or was made read-only.
    #[error("the lease database at {place} is read-only; name the primary in the connection string")]
    ReadOnly {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server has no room: disk, memory or connections.
    #[error(
        "the lease database at {place} has no room left; free disk space, or raise max_connections: see the source"
    )]
    NoRoom {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// Something else; most likely the table is not ours.
    #[error("the lease database at {place} refuses a statement; check that table greylag_lease is the one documented")]
    Refused {
        /// Where.
        place: String,
        /// The server's words.
        #[source]
        cause: tokio_postgres::Error,
    },
}

greylag_core::debug_is_sentence!(PostgresLeaseError);

impl From<ConfigError> for PostgresLeaseError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Invalid(cause) => Self::InvalidConfig(cause),
            ConfigError::Tls { why } => Self::InvalidTls { why },
            ConfigError::TlsFile { file, why } => Self::TlsFile { file, why },
            ConfigError::PasswordFile { file, cause } => Self::PasswordFile { file, cause },
        }
    }
}

impl PostgresLeaseError {
    pub(crate) fn new(place: &str, cause: tokio_postgres::Error) -> Self {
        let place = place.to_owned();
        match Trouble::of(&cause) {
            Trouble::NotTrusted => Self::NotTrusted { place, cause },
            Trouble::NoTls => Self::NoTls { place, cause },
            Trouble::Unreachable => Self::Unreachable { place, cause },
            Trouble::Interrupted => Self::Interrupted { place, cause },
            Trouble::WrongCredentials => Self::WrongCredentials { place, cause },
            Trouble::NoSuchDatabase => Self::NoSuchDatabase { place, cause },
            Trouble::NotPermitted => Self::NotPermitted { place, cause },
            Trouble::ReadOnly => Self::ReadOnly { place, cause },
            Trouble::NoRoom => Self::NoRoom { place, cause },
            Trouble::Refused => Self::Refused { place, cause },
        }
    }

    pub(crate) fn not_connected(place: &str, error: ConnectError) -> Self {
        match error {
            ConnectError::Config(error) => error.into(),
            ConnectError::Failed(cause) => Self::new(place, cause),
        }
    }
}
