//! Leases over TLS, against a real, throw-away PostgreSQL with certificates of the test's own.
//!
//! A test program of its own, since a process has only one log subscriber.

use std::error::Error as _;
use std::io::Write;
use std::sync::{Arc, Mutex};

use greylag_cluster::{LeaseProvider, LeaseSettings};
use greylag_lease_postgres::{PostgresLeaseError, PostgresLeases};
use greylag_testkit::certificates::{Authority, Files};
use greylag_testkit::postgres::{PASSWORD, Postgres, ServerTls};

/// Address of the server.
const HOST: &str = "127.0.0.1";

/// Runs `test` with a server that has a certificate. Without PostgreSQL the test is skipped, and prints so.
fn with_server(files: &Files, clients: Option<&Authority>, test: impl AsyncFnOnce(Postgres)) {
    let believed = clients.map(|authority| authority.sign("unused", &["a"]).ca);
    let tls = ServerTls { key: &files.key, cert: &files.cert, clients: believed.as_deref() };
    let Some(server) = Postgres::start_with_tls(tls) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(server));
}

async fn connect(server: &Postgres, words: &str) -> Result<PostgresLeases, PostgresLeaseError> {
    PostgresLeases::connect(&format!("{} {words}", server.config())).await
}

/// Whether the server sees TLS on the lease's connection.
fn is_encrypted(server: &Postgres) -> bool {
    let sql = "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where application_name <> 'psql' and \
               backend_type = 'client backend'";
    let told = server.psql(sql).unwrap();
    assert_eq!(told.lines().count(), 1, "one connection: {told}");
    told.trim() == "t"
}

async fn holds_encrypted(server: &Postgres, leases: &PostgresLeases) -> bool {
    let lease = leases.lease("x", "a:1", &LeaseSettings::default()).unwrap();
    assert!(lease.acquire(Box::new(|_| {})).await.unwrap());
    let encrypted = is_encrypted(server);
    assert!(lease.release().await.unwrap());
    encrypted
}

/// Cluster S16 over a network: with `verify-full` nothing is sent to a server unless the authority has signed its
/// certificate for this very host.
#[test]
fn verify_full_checks_the_authority_and_the_host() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let root = authority.sign("root", &["a"]).ca.display().to_string();
    let foreign_root = foreign.sign("root", &["a"]).ca.display().to_string();
    with_server(&authority.sign("server", &[HOST]), None, async |server| {
        let leases = connect(&server, &format!("sslmode=verify-full sslrootcert={root}")).await.unwrap();
        assert!(holds_encrypted(&server, &leases).await);
        for mode in ["verify-full", "verify-ca", "require"] {
            let error = connect(&server, &format!("sslmode={mode} sslrootcert={foreign_root}")).await.unwrap_err();
            assert!(matches!(error, PostgresLeaseError::NotTrusted { .. }), "{mode}: {error:?}");
        }
    });
    with_server(&authority.sign("elsewhere", &["db.example"]), None, async |server| {
        let error = connect(&server, &format!("sslmode=verify-full sslrootcert={root}")).await.unwrap_err();
        assert!(matches!(error, PostgresLeaseError::NotTrusted { .. }), "{error:?}");
        assert!(format!("{error:?}").contains("db.example"), "the source says whose it is: {error:?}");
        let leases = connect(&server, &format!("sslmode=verify-ca sslrootcert={root}")).await.unwrap();
        assert!(holds_encrypted(&server, &leases).await, "the authority is enough for verify-ca");
        for (mode, encrypted) in [("require", true), ("prefer", true), ("disable", false)] {
            let leases = connect(&server, &format!("sslmode={mode}")).await.unwrap();
            assert_eq!(holds_encrypted(&server, &leases).await, encrypted, "{mode}");
        }
        assert!(holds_encrypted(&server, &connect(&server, "").await.unwrap()).await, "the default prefers it");
    });
}

#[test]
fn a_server_may_ask_for_a_certificate() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let shows = |files: &Files| {
        let (root, cert, key) = (files.ca.display(), files.cert.display(), files.key.display());
        format!("sslmode=verify-full sslrootcert={root} sslcert={cert} sslkey={key}")
    };
    with_server(&authority.sign("server", &[HOST]), Some(&authority), async |server| {
        let own = authority.sign("node", &["node.example"]);
        let leases = connect(&server, &shows(&own)).await.unwrap();
        assert!(holds_encrypted(&server, &leases).await);
        let nameless = format!("sslmode=verify-full sslrootcert={}", own.ca.display());
        let error = connect(&server, &nameless).await.unwrap_err();
        assert!(matches!(error, PostgresLeaseError::WrongCredentials { .. }), "{error:?}");
        let stranger = Files { ca: own.ca.clone(), ..foreign.sign("stranger", &["s"]) };
        let error = connect(&server, &shows(&stranger)).await.unwrap_err();
        assert!(
            matches!(error, PostgresLeaseError::NotTrusted { .. } | PostgresLeaseError::Unreachable { .. }),
            "{error:?}"
        );
        let error = connect(&server, "sslmode=disable").await.unwrap_err();
        assert!(matches!(error, PostgresLeaseError::WrongCredentials { .. }), "{error:?}");
        // A certificate replaced on disk is used from the next connection on.
        foreign.sign("node", &["node.example"]);
        std::fs::copy(foreign.file("node", "key"), &own.key).unwrap();
        std::fs::copy(foreign.file("node", "cert"), &own.cert).unwrap();
        let lease = leases.lease("y", "a:1", &LeaseSettings::default()).unwrap();
        lease.acquire(Box::new(|_| {})).await.unwrap_err();
        authority.sign("node", &["node.example"]);
        assert!(lease.acquire(Box::new(|_| {})).await.unwrap());
    });
}

#[test]
fn unusable_options_are_named_at_start() {
    let authority = Authority::new();
    let files = authority.sign("node", &["a"]);
    let missing = authority.file("missing", "ca").display().to_string();
    let key = files.key.display().to_string();
    for (words, named) in [
        (format!("sslmode=verify-full sslrootcert={missing}"), missing.as_str()),
        (format!("sslmode=verify-full sslrootcert={key}"), key.as_str()),
        ("sslmode=verify-full".to_owned(), "sslrootcert"),
        ("sslmode=sometimes".to_owned(), "verify-full"),
    ] {
        let error = PostgresLeases::lazy(&format!("host=a user=b {words}")).unwrap_err().to_string();
        assert!(error.contains(named), "{words}: {error}");
    }
}

/// A server without TLS gets another error than an untrusted one.
#[test]
fn a_server_without_tls_is_named() {
    let Some(server) = Postgres::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let error = connect(&server, "sslmode=require").await.unwrap_err();
        assert!(matches!(error, PostgresLeaseError::NoTls { .. }), "{error:?}");
        // A Unix socket has no TLS, since no other machine can read its traffic.
        let socket = server.socket_directory().display();
        let over_socket = format!("host={socket} port={} user=postgres dbname=postgres sslmode=require", server.port());
        PostgresLeases::connect(&over_socket).await.unwrap();
    });
}

/// The log, in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Every kind of failure, at the most verbose log level: the password is in no log and in no error.
#[test]
fn the_password_is_in_no_log_and_no_error() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    const SECRET: &str = "correct-horse";
    let authority = Authority::new();
    let root = authority.sign("root", &["a"]).ca.display().to_string();
    with_server(&authority.sign("server", &[HOST]), None, async |server| {
        let wrong = server.config().replace(PASSWORD, SECRET);
        let mut said = Vec::new();
        for config in [
            wrong.clone(),
            format!("{wrong} sslmode=verify-full sslrootcert={root}"),
            format!("{wrong} sslmode=verify-full"),
            format!("{wrong} sslmode={SECRET}2"),
            wrong.replace(&format!("port={}", server.port()), "port=1"),
            format!("{wrong} nonsense=1"),
            format!("{wrong} port={SECRET}"),
            format!("postgres://a:{SECRET}@db.example:70000/x"),
        ] {
            let error = PostgresLeases::connect(&config).await.unwrap_err();
            let mut text = format!("{error} {error:?}");
            let mut source = error.source();
            while let Some(cause) = source {
                text += &format!(" {cause} {cause:?}");
                source = cause.source();
            }
            said.push(text);
        }
        let far = PostgresLeases::lazy(&format!("host=db.example user=a password={SECRET}")).unwrap();
        said.push(format!("{far:?}"));
        let told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(told.contains("WARN") && told.contains("db.example") && told.contains("verify-full"), "{told}");
        said.push(told);
        // The word in the place of a mode is shown, since a mode is no secret.
        let shown = |text: &str| text.replace(&format!("sslmode={SECRET}2"), "");
        for text in said {
            assert!(!shown(&text).contains(SECRET), "{text}");
        }
    });
}

#[test]
fn a_password_may_stand_in_a_file() {
    let authority = Authority::new();
    with_server(&authority.sign("server", &[HOST]), None, async |server| {
        let file = authority.file("password", "txt");
        std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
        let config = server.config().replace(&format!("password={PASSWORD}"), "");
        let leases = PostgresLeases::lazy_with_password_file(&config, &file).unwrap();
        assert!(holds_encrypted(&server, &leases).await);
        let error = PostgresLeases::lazy_with_password_file(&config, &authority.file("no", "txt")).unwrap_err();
        assert!(matches!(error, PostgresLeaseError::PasswordFile { .. }), "{error:?}");
    });
}
