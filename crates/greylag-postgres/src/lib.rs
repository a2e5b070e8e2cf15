//! Connections to PostgreSQL for the stores: the connection string, TLS, and the kinds of failures.
//!
//! ```
//! use greylag_postgres::Database;
//!
//! let database = Database::parse("host=db.example user=app password=secret dbname=app")?;
//! assert_eq!(database.place(), "db.example:5432/app");
//! assert!(database.believes_anybody(), "over a network, say sslmode=verify-full");
//! // Within a runtime: `let (client, _) = database.connect("journal database").await?;`
//! # Ok::<(), greylag_postgres::ConfigError>(())
//! ```
//!
//! # TLS
//! As with libpq, by words of the connection string: `sslmode` with `sslrootcert`, `sslcert` and `sslkey`.
//!
//! | `sslmode` | encrypted | which server is believed |
//! |---|---|---|
//! | `disable` | no | any |
//! | `prefer` (default) | if the server can | any |
//! | `require` | yes | any; with `sslrootcert` as `verify-ca` |
//! | `verify-ca` | yes | a server that an authority in `sslrootcert` has signed |
//! | `verify-full` | yes | that, if its certificate is for the host of the connection string |
//!
//! The system's authorities are not trusted unless named. Files are read for each connection, so replaced certificates
//! are used from the next connection on. Over a Unix socket there is no TLS. A connection string that names a socket
//! beside other hosts would reach those hosts without TLS, too, so it is refused with `require` and above, and warned
//! of below.
//!
//! # Silence
//! A connection whose server vanished silently ends within a minute: the kernel sends three probes after 30 s of
//! silence, 10 s apart, and sent data may stay unacknowledged for 60 s. The words `keepalives_idle`,
//! `keepalives_interval`, `keepalives_retries` and `tcp_user_timeout` of the connection string, in seconds, change
//! that; `keepalives=0` switches probes off.

mod database_error;
mod error;
mod exposed_file;
mod failure;
mod keepalive;
mod tls;

pub use database_error::DatabaseError;
pub use error::{ConfigError, ConnectError, Trouble, advised, told};
pub use failure::Failure;

use std::fmt;
use std::path::Path;
use std::str::FromStr as _;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, NoTls};

use exposed_file::warn_if_exposed;
use tls::Tls;

/// A database and how to reach it. Its `Debug` form has no password.
#[derive(Clone)]
pub struct Database {
    config: Config,
    tls: Tls,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.place()).finish()
    }
}

impl Database {
    /// Parses a connection string as for libpq, key words or a URL.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`], [`ConfigError::Tls`], [`ConfigError::TlsFile`].
    pub fn parse(config: &str) -> Result<Self, ConfigError> {
        let (rest, tls) = Tls::take(config)?;
        let mut config = Config::from_str(&rest).map_err(ConfigError::Invalid)?;
        let is_socket = |host: &Host| !matches!(host, Host::Tcp(_));
        let has_socket = config.get_hosts().iter().any(is_socket);
        if has_socket && !config.get_hosts().iter().all(is_socket) {
            // One TLS mode applies to all hosts, and a socket has no TLS.
            tls.check_beside_socket()?;
        }
        keepalive::fill_in(&mut config, &rest);
        // A socket has no TLS, and needs none.
        config.ssl_mode(if has_socket { SslMode::Disable } else { tls.mode() });
        Ok(Self { config, tls })
    }

    /// The same database, with the password from a file.
    ///
    /// # Errors
    /// [`ConfigError::PasswordFile`].
    pub fn with_password_file(mut self, file: &Path) -> Result<Self, ConfigError> {
        let password = std::fs::read_to_string(file)
            .map_err(|cause| ConfigError::PasswordFile { file: file.to_owned(), cause })?;
        warn_if_exposed(file);
        self.config.password(password.trim_end_matches(['\r', '\n']));
        Ok(self)
    }

    /// Address of the database, without the password.
    pub fn place(&self) -> String {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .map(|host| match host {
                Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        let ports: Vec<String> = self.config.get_ports().iter().map(ToString::to_string).collect();
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("{}:{}/{database}", hosts.join(","), if ports.is_empty() { "5432".to_owned() } else { ports.join(",") })
    }

    /// Whether, over a network, a third party could read the traffic and answer in the server's place. Worth a warning.
    pub fn believes_anybody(&self) -> bool {
        let is_far = |host: &Host| match host {
            Host::Tcp(name) => {
                name != "localhost" && !name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            #[cfg(unix)]
            Host::Unix(_) => false,
        };
        self.tls.believes_anybody() && self.config.get_hosts().iter().any(is_far)
    }

    /// Makes one connection. A task carries its bytes until it ends: the handle aborts the task, which breaks the
    /// connection at once. When the client is dropped, the task ends after the server has answered the last request.
    /// `what` names the database in the log.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(&self, what: &'static str) -> Result<(Client, AbortHandle), ConnectError> {
        match self.tls.connector()? {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls).await?;
                Ok((client, self.drive(what, connection)))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                Ok((client, self.drive(what, connection)))
            }
        }
    }

    fn drive<S, T>(&self, what: &'static str, connection: Connection<S, T>) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let place = self.place();
        let carried = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::info!(%place, %error, "the connection to the {what} ended");
            }
        });
        carried.abort_handle()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The log, in memory.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<u8>>>);

    impl Told {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Scenario persistence 71: a socket among the hosts must not switch TLS off for the other hosts.
    #[test]
    fn scenario_71_one_socket_among_the_hosts_is_refused_where_tls_is_meant() {
        let authority = greylag_testkit::certificates::Authority::new();
        let files = authority.sign("db", &["db.example"]);
        let root = files.ca.display();
        let mixed = "host=/run/postgresql,db.example user=app";
        for mode in [
            format!("sslmode=verify-full sslrootcert={root}"),
            format!("sslmode=verify-ca sslrootcert={root}"),
            "sslmode=require".to_owned(),
        ] {
            let error = Database::parse(&format!("{mixed} {mode}")).unwrap_err().to_string();
            assert!(error.contains("socket") && error.contains(mode.split(' ').next().unwrap()), "{error}");
        }
        // In a mode that does not require TLS, the mix is only warned of.
        for mode in ["", "sslmode=prefer", "sslmode=disable"] {
            let told = Told::default();
            let writer = told.clone();
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
            tracing::subscriber::with_default(log, || Database::parse(&format!("{mixed} {mode}")).unwrap());
            let told = told.text();
            assert!(told.contains("WARN") && told.contains("names a socket among its hosts"), "{mode}: {told:?}");
        }
        // Hosts of one kind are accepted.
        for hosts in ["host=/run/postgresql,/tmp", "host=db.example,other.example"] {
            let database =
                Database::parse(&format!("{hosts} user=app sslmode=verify-full sslrootcert={root}")).unwrap();
            let is_socket = hosts.contains("=/");
            let mode = if is_socket { SslMode::Disable } else { SslMode::Require };
            assert_eq!(database.config.get_ssl_mode(), mode, "{hosts}");
        }
    }
}
