//! What can be wrong between a node and its database, split by what is to be done about it.

use std::path::PathBuf;

use tokio_postgres::error::SqlState;

/// Why the database did not answer as it should.
#[derive(Debug, thiserror::Error)]
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
    /// Nobody answers there.
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

impl PostgresLeaseError {
    pub(crate) fn new(place: &str, cause: tokio_postgres::Error) -> Self {
        let place = place.to_owned();
        let Some(state) = cause.code() else {
            match about_tls(&cause) {
                Some(AboutTls::None) => return Self::NoTls { place, cause },
                Some(AboutTls::Distrust) => return Self::NotTrusted { place, cause },
                None => {}
            }
            return if cause.is_closed() {
                Self::Interrupted { place, cause }
            } else {
                Self::Unreachable { place, cause }
            };
        };
        match state.code().get(..2) {
            _ if *state == SqlState::INVALID_CATALOG_NAME => Self::NoSuchDatabase { place, cause },
            _ if *state == SqlState::INSUFFICIENT_PRIVILEGE => Self::NotPermitted { place, cause },
            _ if *state == SqlState::READ_ONLY_SQL_TRANSACTION => Self::ReadOnly { place, cause },
            Some("28") => Self::WrongCredentials { place, cause },
            Some("53") => Self::NoRoom { place, cause },
            Some("57" | "08") => Self::Interrupted { place, cause },
            _ => Self::Refused { place, cause },
        }
    }
}

enum AboutTls {
    None,
    Distrust,
}

/// What a handshake said, or, in TLS 1.3, the first answer after it.
fn about_tls(error: &tokio_postgres::Error) -> Option<AboutTls> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<rustls::Error>() || inside.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
        {
            return Some(AboutTls::Distrust);
        }
        // The client library has no type for it.
        if error.to_string() == "server does not support TLS" {
            return Some(AboutTls::None);
        }
        cause = error.source();
    }
    None
}
