//! Errors between a node and its database.

use std::path::PathBuf;

use tokio_postgres::error::SqlState;

/// Why a connection string cannot be used.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// The text is not a connection string.
    #[error("the connection string is invalid; write host=… user=… dbname=…")]
    Invalid(#[source] tokio_postgres::Error),
    /// The words about TLS are invalid.
    #[error("the connection string is invalid: {why}")]
    Tls {
        /// Description of the error.
        why: String,
    },
    /// A certificate or key file cannot be used.
    #[error("cannot use {}: {why}", file.display())]
    TlsFile {
        /// Path of the file.
        file: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password from {}: {cause}", file.display())]
    PasswordFile {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        cause: std::io::Error,
    },
}

greylag_core::debug_is_sentence!(ConfigError);

/// Why a connection could not be made.
#[derive(thiserror::Error)]
pub enum ConnectError {
    /// A file that the connection string names cannot be used any more.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server refused the connection, or none answered.
    #[error(transparent)]
    Failed(#[from] tokio_postgres::Error),
}

greylag_core::debug_is_sentence!(ConnectError);

/// The kind of an error of the client library, split by what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// One end does not trust the other's certificate. No password was sent.
    NotTrusted,
    /// TLS is required, and the server has none.
    NoTls,
    /// No server answers at the address.
    Unreachable,
    /// The server is stopping or starting, or the connection broke.
    Interrupted,
    /// The server refuses the credentials.
    WrongCredentials,
    /// The server has no database of this name.
    NoSuchDatabase,
    /// The user lacks a permission.
    NotPermitted,
    /// The server is a standby, or was made read-only.
    ReadOnly,
    /// The server has no room: disk, memory or connections.
    NoRoom,
    /// Any other error: the server refuses the statement.
    Refused,
}

impl Trouble {
    /// The kind of `error`.
    pub fn of(error: &tokio_postgres::Error) -> Self {
        let Some(state) = error.code() else {
            return match about_tls(error) {
                Some(trouble) => trouble,
                None if error.is_closed() => Self::Interrupted,
                None => Self::Unreachable,
            };
        };
        match state.code().get(..2) {
            _ if *state == SqlState::INVALID_CATALOG_NAME => Self::NoSuchDatabase,
            _ if *state == SqlState::INSUFFICIENT_PRIVILEGE => Self::NotPermitted,
            _ if *state == SqlState::READ_ONLY_SQL_TRANSACTION => Self::ReadOnly,
            Some("28") => Self::WrongCredentials,
            Some("53") => Self::NoRoom,
            Some("57" | "08") => Self::Interrupted,
            _ => Self::Refused,
        }
    }
}

/// The kind of an error of the TLS handshake, or, in TLS 1.3, of the first answer after it.
fn about_tls(error: &tokio_postgres::Error) -> Option<Trouble> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<rustls::Error>() || inside.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
        {
            return Some(Trouble::NotTrusted);
        }
        // The client library has no type for this error.
        if error.to_string() == "server does not support TLS" {
            return Some(Trouble::NoTls);
        }
        cause = error.source();
    }
    None
}

/// The text of an error of the client library with all its causes, and advice.
pub fn advised(error: &tokio_postgres::Error) -> String {
    let advice = match Trouble::of(error) {
        Trouble::NotTrusted => "check sslrootcert, the host's name in the server's certificate, and sslcert",
        Trouble::NoTls => "set ssl = on there, or another sslmode in the connection string",
        Trouble::Unreachable => "check host, port and network, and that it runs",
        Trouble::Interrupted => "it restarts, or the connection broke; the next try connects anew",
        Trouble::WrongCredentials => "check user and password, sslmode and sslcert, and pg_hba.conf of the server",
        Trouble::NoSuchDatabase => "create the database, or name another by dbname=…",
        Trouble::NotPermitted => "let the user create tables, or apply the migrations for it and grant it their use",
        Trouble::ReadOnly => "name the primary in the connection string",
        Trouble::NoRoom => "free disk space, or raise max_connections",
        Trouble::Refused => return told(error),
    };
    format!("{}; {advice}", told(error))
}

/// The text of an error of the client library with all its causes and the server's code.
pub fn told(error: &tokio_postgres::Error) -> String {
    if let Some(database) = error.as_db_error() {
        return format!("{} ({})", database.message(), database.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
