//! A throw-away PostgreSQL server, made from the installed binaries, for tests of parts that use PostgreSQL.
//!
//! ```no_run
//! use greylag_testkit::postgres::Postgres;
//!
//! let Some(server) = Postgres::start() else { return }; // says `SKIPPED: …` on standard output
//! assert_eq!(server.psql("select 1").unwrap().trim(), "1");
//! let _connect_to = server.config();
//! ```
//!
//! The server keeps its data in a directory of its own, listens on a free port of the loopback interface, and ends when
//! the value is dropped, or with the process if that dies first. It trusts every client on its socket, and requires the
//! password over TCP. It does not sync to disk: its data survive a [`Postgres::restart`], not a power loss.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The user that owns the databases.
pub const USER: &str = "postgres";
/// The password of connections over TCP.
pub const PASSWORD: &str = "throw-away";

/// How many ports are tried: another process may take a free port before the server does.
const TRIES: usize = 5;
const START_WITHIN: Duration = Duration::from_secs(60);

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// PostgreSQL is not installed. Debian: the package `postgresql`.
    #[error("the server binaries of PostgreSQL are missing: {0}; install the package postgresql")]
    NotInstalled(String),
    /// PostgreSQL is installed, but does not start.
    #[error("PostgreSQL does not start: {0}")]
    DoesNotStart(String),
    /// A file or a process could not be created.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    directory: TempDir,
    binaries: PathBuf,
    run_as: Option<(u32, u32)>,
    port: u16,
    options: Vec<String>,
    server: Option<Server>,
}

/// Certificates of a server with TLS, and the clients that it accepts. All files are PEM, and copied.
#[derive(Debug, Clone, Copy)]
pub struct ServerTls<'a> {
    /// The server's private key.
    pub key: &'a Path,
    /// The certificate of the private key.
    pub cert: &'a Path,
    /// Accepts only clients with a certificate of this authority; the password is required as well. `None`: every
    /// client with the password, by TLS or not.
    pub clients: Option<&'a Path>,
}

/// How a server ends before it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server ends at once and tells its clients so (SIGQUIT), as in [`Postgres::stop`].
    Crash,
    /// All processes of the server are killed (SIGKILL); no client is told.
    Killed,
    /// The server rolls back open transactions, writes everything to its tables, and ends (SIGINT).
    Orderly,
}

/// The server's process, and a shell beside it that ends it when our end of the pipe closes, so that no server outlives
/// a killed test.
#[derive(Debug)]
struct Server {
    process: Child,
    lifeline: Option<ChildStdin>,
}

impl Server {
    fn end(&mut self) {
        drop(self.lifeline.take());
        let _reaped = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

// `exec` replaces the shell by the server: a process that a shell starts in the background ignores SIGQUIT until it
// sets a handler. The server may ignore the signal all the same, if the tests run in the background, so the signal is
// repeated until the server has ended.
const SHELL: &str =
    r#"exec 3<&0; (read -r _ <&3; while kill -QUIT $$ 2>&-; do sleep 0.05; done) & exec "$0" "$@" 3<&- </dev/null"#;

impl Postgres {
    /// Starts a server. Without the binaries prints a line that begins with `SKIPPED:` (which the gate counts as a
    /// failure) and returns `None`.
    ///
    /// # Panics
    /// If PostgreSQL is installed but does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with settings, such as `max_connections=10`.
    ///
    /// # Panics
    /// As [`Postgres::start`].
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        Self::or_skip(Self::try_start(settings))
    }

    /// The same with TLS.
    ///
    /// # Panics
    /// As [`Postgres::start`].
    #[must_use]
    pub fn start_with_tls(tls: ServerTls<'_>) -> Option<Self> {
        Self::or_skip(Self::prepare(&[]).and_then(|mut server| {
            server.encrypt(tls)?;
            server.launch_on_a_free_port()?;
            Ok(server)
        }))
    }

    fn or_skip(started: Result<Self, PostgresError>) -> Option<Self> {
        match started {
            Ok(server) => Some(server),
            Err(PostgresError::NotInstalled(what)) => {
                // Printed uncaptured by the test harness, on a line of its own.
                let _ = writeln!(io::stdout(), "\nSKIPPED: a test needs PostgreSQL, and {what}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a server.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub fn try_start(settings: &[&str]) -> Result<Self, PostgresError> {
        let mut server = Self::prepare(settings)?;
        server.launch_on_a_free_port()?;
        Ok(server)
    }

    fn prepare(settings: &[&str]) -> Result<Self, PostgresError> {
        let binaries = binaries()?;
        let directory = tempfile::Builder::new().prefix("greylag-pg-").tempdir()?;
        let run_as = other_user()?;
        if let Some((user, group)) = run_as {
            chown(directory.path(), Some(user), Some(group))?;
        }
        let options = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let server = Self { directory, binaries, run_as, port: 0, options, server: None };
        server.init()?;
        Ok(server)
    }

    fn encrypt(&mut self, tls: ServerTls<'_>) -> Result<(), PostgresError> {
        let mut files = vec![("ssl_key_file", tls.key), ("ssl_cert_file", tls.cert)];
        files.extend(tls.clients.map(|authority| ("ssl_ca_file", authority)));
        for (setting, from) in files {
            let to = self.directory.path().join(setting);
            fs::copy(from, &to)?;
            // The server refuses a key file that others can read.
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600))?;
            if let Some((user, group)) = self.run_as {
                chown(&to, Some(user), Some(group))?;
            }
            self.options.push(format!("{setting}={}", to.display()));
        }
        self.options.push("ssl=on".to_owned());
        if tls.clients.is_some() {
            let rules = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n";
            fs::write(self.data().join("pg_hba.conf"), rules)?;
        }
        Ok(())
    }

    fn init(&self) -> Result<(), PostgresError> {
        let password = self.directory.path().join("password");
        fs::write(&password, PASSWORD)?;
        let mut command = self.command("initdb");
        command.args(["--username", USER, "--encoding", "UTF8", "--locale", "C", "--no-sync"]);
        command.args(["--auth-local", "trust", "--auth-host", "scram-sha-256"]);
        command.arg("--pwfile").arg(&password).arg("--pgdata").arg(self.data());
        let output = command.output()?;
        if output.status.success() { Ok(()) } else { Err(PostgresError::DoesNotStart(words(&output))) }
    }

    fn launch_on_a_free_port(&mut self) -> Result<(), PostgresError> {
        let mut last = None;
        for _ in 0..TRIES {
            self.port = crate::port::unused().port();
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| PostgresError::DoesNotStart("no port".to_owned())))
    }

    fn launch(&mut self) -> Result<(), PostgresError> {
        let (server, says) = self.spawn()?;
        let mut heard = String::new();
        loop {
            match says.recv_timeout(START_WITHIN) {
                Ok(line) if line.contains("database system is ready to accept connections") => break,
                // A client that connects too early is refused; that is no failure of the server.
                Ok(line) if line.contains("FATAL:  the database system is") => {}
                Ok(line) => heard = heard + &line + "\n",
                Err(_) => return Err(PostgresError::DoesNotStart(heard)),
            }
            if heard.contains("FATAL") {
                return Err(PostgresError::DoesNotStart(heard));
            }
        }
        self.server = Some(server);
        Ok(())
    }

    /// A starting server, and the lines that it prints. The server ends when the value is dropped.
    fn spawn(&self) -> Result<(Server, mpsc::Receiver<String>), PostgresError> {
        let mut command = self.as_user(Command::new("sh"));
        command.args(["-c", SHELL]).arg(self.binaries.join("postgres")).arg("-D").arg(self.data());
        let port = self.port;
        let socket = self.directory.path().display().to_string();
        let own = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("unix_socket_directories={socket}"),
            "fsync=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "shared_buffers=16MB".to_owned(),
            "max_wal_size=64MB".to_owned(),
            "autovacuum=off".to_owned(),
        ];
        for setting in own.iter().chain(&self.options) {
            command.arg("-c").arg(setting);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let lifeline = process.stdin.take();
        let log = process.stderr.take();
        let server = Server { process, lifeline };
        let (said, says) = mpsc::channel();
        // The pipe is read for as long as the server lives, which would otherwise block when it is full.
        std::thread::spawn(move || {
            for line in log.into_iter().flat_map(|log| BufReader::new(log).lines()).map_while(Result::ok) {
                let _started_already = said.send(line);
            }
        });
        Ok((server, says))
    }

    /// Connection string of key words: the loopback address, [`USER`], [`PASSWORD`], and the database `postgres`.
    pub fn config(&self) -> String {
        format!("host=127.0.0.1 port={} user={USER} password={PASSWORD} dbname=postgres", self.port)
    }

    /// The port on 127.0.0.1. A restart keeps it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the socket, for connections without a password.
    pub fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs statements as [`USER`], and returns the rows, a line each, fields separated by `|`.
    ///
    /// # Errors
    /// The server's error.
    pub fn psql(&self, sql: &str) -> Result<String, String> {
        let mut command = self.command("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", "postgres"]);
        command.arg("-h").arg(self.socket_directory()).arg("-p").arg(self.port.to_string()).args(["-c", sql]);
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Stops the server as in a crash: connections break, transactions are not finished.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Stops the server if it runs, and starts it again with its data, on the same port.
    ///
    /// # Errors
    /// [`PostgresError::DoesNotStart`].
    pub fn restart(&mut self) -> Result<(), PostgresError> {
        self.stop();
        self.launch()
    }

    /// Ends the server in this way, and starts it again with its data, on the same port.
    ///
    /// # Errors
    /// [`PostgresError::DoesNotStart`].
    pub fn restart_after(&mut self, end: End) -> Result<(), PostgresError> {
        if let Some(server) = &self.server {
            let pid = server.process.id().to_string();
            // The children are listed before their parent is killed, since they are found through it.
            let all = r#"kill -STOP $0; kill -KILL $(cat /proc/$0/task/$0/children) $0"#;
            match end {
                End::Crash => {}
                End::Killed => drop(Command::new("sh").args(["-c", all]).arg(&pid).output()?),
                End::Orderly => drop(Command::new("sh").args(["-c", "kill -INT $0"]).arg(&pid).output()?),
            }
        }
        if let Some(mut server) = self.server.take() {
            if end != End::Crash {
                server.process.wait()?;
            }
            server.end();
        }
        let began_at = Instant::now();
        loop {
            match self.launch() {
                // Killed processes keep their shared memory until they are gone, and there is no way to wait for that.
                Err(PostgresError::DoesNotStart(said))
                    if said.contains("pre-existing shared memory block") && began_at.elapsed() < START_WITHIN => {}
                launched => return launched,
            }
        }
    }

    /// Starts the server with its data, and stops it as in a crash after `after`: in the midst of its recovery, if that
    /// takes longer.
    ///
    /// # Errors
    /// If the server cannot be started at all.
    pub fn stop_while_starting(&mut self, after: Duration) -> Result<(), PostgresError> {
        self.stop();
        let (server, _says) = self.spawn()?;
        std::thread::sleep(after);
        drop(server);
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        self.as_user(Command::new(self.binaries.join(program)))
    }

    fn as_user(&self, mut command: Command) -> Command {
        if let Some((user, group)) = self.run_as {
            command.uid(user).gid(group);
        }
        // The current directory of the test may be one that the other user cannot enter.
        command.current_dir(self.directory.path()).env("LC_ALL", "C");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop(); // before its directory is deleted
    }
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Directory of the server's binaries, from `pg_config`: on Debian it is not in the path.
fn binaries() -> Result<PathBuf, PostgresError> {
    let missing = |what: &str| PostgresError::NotInstalled(what.to_owned());
    let asked = Command::new("pg_config").arg("--bindir").output();
    let told = asked.ok().filter(|output| output.status.success());
    let mut candidates: Vec<PathBuf> =
        told.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).into_iter().collect();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        candidates.extend(versions.filter_map(|entry| entry.ok().map(|entry| entry.path().join("bin"))));
    }
    let whole = |candidate: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| candidate.join(name).exists());
    candidates.into_iter().find(whole).ok_or_else(|| missing("neither pg_config nor /usr/lib/postgresql lead to them"))
}

/// The user to run the server as, since PostgreSQL refuses to run as root: `postgres`, or else `nobody`.
fn other_user() -> Result<Option<(u32, u32)>, PostgresError> {
    if fs::metadata("/proc/self").map(|own| own.uid()).unwrap_or(1) != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let ids = |name: &str| {
        let mut fields =
            users.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(name))?;
        let user = fields.nth(2)?.parse().ok()?;
        Some((user, fields.next()?.parse().ok()?))
    };
    let found = ids("postgres").or_else(|| ids("nobody"));
    found.map(Some).ok_or_else(|| PostgresError::DoesNotStart("run as root, and no other user is known".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_keeps_its_data_over_a_restart_and_ends_with_its_value() {
        let Some(mut server) = Postgres::start() else { return };
        server.psql("create table kept (n int); insert into kept values (7)").unwrap();
        server.restart().unwrap();
        for end in [End::Crash, End::Killed, End::Orderly] {
            server.restart_after(end).unwrap();
            assert_eq!(server.psql("select n from kept").unwrap().trim(), "7", "{end:?}");
        }
        assert!(server.psql("select nonsense").unwrap_err().contains("nonsense"));
        let (port, directory) = (server.port(), server.socket_directory().to_owned());
        drop(server);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is closed");
        assert!(!directory.exists(), "nothing is left behind");
    }
}
