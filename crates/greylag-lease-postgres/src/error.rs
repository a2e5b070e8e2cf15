//! Errors between a node and its database, split by what to do about them.

use std::path::PathBuf;

use greylag_postgres::{ConfigError, ConnectError, Trouble};

/// Why the lease database did not answer as it should.
#[derive(thiserror::Error)]
pub enum PostgresLeaseError {
    /// The text is not a connection string.
    #[error("the connection string of the lease database is invalid; write host=… user=… dbname=…")]
    InvalidConfig(#[source] tokio_postgres::Error),
    /// The words about TLS are invalid.
    #[error("the connection string of the lease database is invalid: {why}")]
    InvalidTls {
        /// Description of the error.
        why: String,
    },
    /// A certificate or key file cannot be used.
    #[error("cannot use {} for the lease database: {why}", file.display())]
    TlsFile {
        /// Path of the file.
        file: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password of the lease database from {}: {cause}", file.display())]
    PasswordFile {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        cause: std::io::Error,
    },
    /// One end does not trust the other's certificate. No statement and no password was sent.
    #[error(
        "the lease database at {place} is not trusted, or does not trust this node; check sslrootcert, the host's name in \
         the server's certificate, and sslcert: see the source"
    )]
    NotTrusted {
        /// Address of the database, without the password.
        place: String,
        /// Error of the handshake.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// TLS is required, and the server has none.
    #[error(
        "the lease database at {place} speaks no TLS; set ssl = on there, or another sslmode in the connection string"
    )]
    NoTls {
        /// Address of the database, without the password.
        place: String,
        /// Error of the client library.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// No server answers at the address.
    #[error("the lease database at {place} cannot be reached; check host, port and network, and that it runs")]
    Unreachable {
        /// Address of the database, without the password.
        place: String,
        /// Error of the connection.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// No answer in time. The statement may have been done or not.
    #[error("the lease database at {place} did not answer within {after:?}")]
    Silent {
        /// Address of the database, without the password.
        place: String,
        /// The time limit.
        after: std::time::Duration,
    },
    /// The server refuses the credentials.
    #[error(
        "the lease database at {place} refuses the credentials; check user and password, sslmode and sslcert, and \
         pg_hba.conf of the server"
    )]
    WrongCredentials {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server has no database of this name.
    #[error("the lease database at {place} does not exist; create it, or name another by dbname=…")]
    NoSuchDatabase {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The user may not use the table, or not create it.
    #[error(
        "the user of the lease database at {place} lacks a permission; let it create tables, or create greylag_lease \
         for it and grant select, insert, update on it"
    )]
    NotPermitted {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server is stopping or starting, or the connection broke. The next try makes a new connection.
    #[error("the lease database at {place} is restarting, or the connection broke; the next try connects anew")]
    Interrupted {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server is a standby, or was made read-only.
    #[error("the lease database at {place} is read-only; name the primary in the connection string")]
    ReadOnly {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// The server has no room: disk, memory or connections.
    #[error(
        "the lease database at {place} has no room left; free disk space, or raise max_connections: see the source"
    )]
    NoRoom {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
        #[source]
        cause: tokio_postgres::Error,
    },
    /// Any other error; most likely the table is not the documented one.
    #[error("the lease database at {place} refuses a statement; check that table greylag_lease is the one documented")]
    Refused {
        /// Address of the database, without the password.
        place: String,
        /// Error of the server.
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
