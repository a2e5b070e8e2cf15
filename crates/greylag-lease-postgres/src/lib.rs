//! Leases in PostgreSQL: at most one owner holds each lease, by the clock of the server.
//!
//! ```no_run
//! use greylag_cluster::{LeaseProvider, LeaseSettings};
//! use greylag_lease_postgres::PostgresLeases;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = PostgresLeases::connect("host=db.example user=app password=secret dbname=app").await?;
//! let lease = leases.lease("shop-singleton-billing", "node-1.example:17355", &LeaseSettings::default())?;
//! if lease.acquire(Box::new(|lost| eprintln!("stop billing: {lost}"))).await? {
//!     // No other owner holds it, for as long as `lease.check()` says so.
//!     lease.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - A lease is one row. Acquire, renew and release are one statement each, decided by the row's lock and the
//!   *server's* clock; the clocks of the nodes are never compared.
//! - A holder that cannot renew learns that it lost the lease by a clock of its own that runs on while its machine is
//!   suspended (`CLOCK_BOOTTIME`). It counts from before its last successful renewal was *sent*, and ends
//!   `operation_timeout` before the server would grant the lease to another owner, so that the holder has time to stop
//!   what the lease protects. [`Lease::check`] knows at once; `on_lost` is called at most a second after waking.
//! - The row's `version` grows whenever the lease changes hands, and no version is used twice: storage of your own can
//!   fence by it.
//! - A connection exists only while a lease is held or asked for, so a thousand nodes do not hold a thousand
//!   connections. After a failure a new connection is made.
//!
//! Leases rely on a server that keeps its commits (`synchronous_commit` is switched on; a failover to an asynchronous
//! replica may lose a grant), and whose clock does not jump ahead by more than `operation_timeout`.
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
//! Over a network, use `verify-full`: a third party that can answer in the server's place can grant every lease twice.
//! The provider logs a warning for anything less. The system's authorities are not trusted unless named. Files are read
//! for each connection, so replaced certificates are used from the next connection on; over a Unix socket there is no
//! TLS.
//!
//! # The table
//! The table is made on demand, in the first schema of the search path, if the database user may create it:
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```
//! Otherwise let another user create it, and grant `select, insert, update` on it.
//!
//! Source: cluster S16.

mod error;
mod lease;
mod link;

pub use error::PostgresLeaseError;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use greylag_cluster::{Clock, Lease, LeaseError, LeaseProvider, LeaseSettings};
use greylag_postgres::Database;

use lease::PostgresLease;
use link::Link;

/// Leases in one database. Clones share one connection.
#[derive(Clone)]
pub struct PostgresLeases {
    link: Arc<Link>,
    clock: Clock,
}

impl fmt::Debug for PostgresLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLeases").field("database", &self.link.place()).finish()
    }
}

impl PostgresLeases {
    /// Connects once, and makes the table if it is missing, so that a wrong setup shows at start. `config`: as for
    /// libpq, key words or a URL; its password never appears in logs and errors.
    ///
    /// # Errors
    /// [`PostgresLeaseError`].
    pub async fn connect(config: &str) -> Result<Self, PostgresLeaseError> {
        let leases = Self::lazy(config)?;
        leases.link.probe().await?;
        Ok(leases)
    }

    /// Connects when a lease is first asked for.
    ///
    /// # Errors
    /// [`PostgresLeaseError::InvalidConfig`], [`PostgresLeaseError::InvalidTls`], and
    /// [`PostgresLeaseError::TlsFile`].
    pub fn lazy(config: &str) -> Result<Self, PostgresLeaseError> {
        Ok(Self::new(Database::parse(config)?))
    }

    /// As [`PostgresLeases::lazy`], with a password from a file instead of `config`.
    ///
    /// # Errors
    /// As [`PostgresLeases::lazy`], and [`PostgresLeaseError::PasswordFile`].
    pub fn lazy_with_password_file(config: &str, file: &Path) -> Result<Self, PostgresLeaseError> {
        Ok(Self::new(Database::parse(config)?.with_password_file(file)?))
    }

    fn new(database: Database) -> Self {
        if database.believes_anybody() {
            let place = database.place();
            tracing::warn!(
                place,
                "the certificate of the lease database is not verified, so any server that answers there is trusted; use \
                 sslmode=verify-full"
            );
        }
        Self { link: Arc::new(Link::new(database)), clock: Clock::system() }
    }

    /// Counts time by `clock`. Default [`Clock::system`]; another one is for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

impl LeaseProvider for PostgresLeases {
    fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
        let unusable = |why: String| LeaseError::Unusable { name: name.to_owned(), why };
        if name.contains('\0') || owner.contains('\0') {
            return Err(unusable("the name has a zero byte, which PostgreSQL does not store in texts".to_owned()));
        }
        if let Err(problems) = settings.validate() {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(unusable(texts.join("; ")));
        }
        Ok(Arc::new(PostgresLease::new(self.link.clone(), name, owner, *settings, self.clock.clone())))
    }
}
