//! Leases against a real, throw-away PostgreSQL.

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greylag_cluster::tck::{self, LeaseBench};
use greylag_cluster::{Clock, Lease, LeaseError, LeaseProvider, LeaseSettings, OnLost};
use greylag_lease_postgres::{PostgresLeaseError, PostgresLeases};
use greylag_testkit::postgres::Postgres;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

fn settings() -> LeaseSettings {
    LeaseSettings {
        heartbeat_timeout: Duration::from_secs(4),
        heartbeat_interval: Duration::from_millis(200),
        operation_timeout: Duration::from_secs(1),
    }
}

fn never() -> OnLost {
    Box::new(|_| {})
}

fn losses() -> (OnLost, mpsc::UnboundedReceiver<LeaseError>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let on_lost = move |error| {
        let _nobody_listens_any_more = sender.send(error);
    };
    (Box::new(on_lost), receiver)
}

/// Runs `test` with a server of its own. Without PostgreSQL the test is skipped, and prints so.
fn with_server(test: impl AsyncFnOnce(Postgres)) {
    let Some(server) = Postgres::start() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(server));
}

/// A proxy to the server that can be cut silently: bytes stop, and neither end is told.
struct Cable {
    port: u16,
    cut: watch::Sender<bool>,
}

impl Cable {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server, is_cut.clone()));
            }
        });
        Self { port, cut }
    }
}

async fn carry(mut near: TcpStream, server: u16, mut is_cut: watch::Receiver<bool>) {
    if *is_cut.borrow() {
        return drop(is_cut.wait_for(|cut| !cut).await);
    }
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    tokio::select! {
        _ended = copy_bidirectional(&mut near, &mut far) => {}
        _cut = is_cut.wait_for(|cut| *cut) => {}
    }
    // Both ends stay open and silent until the proxy is whole again.
    let _whole_again = is_cut.wait_for(|cut| !cut).await;
}

struct Bench {
    server: Postgres,
    cables: Vec<Cable>,
    providers: Mutex<Vec<PostgresLeases>>,
}

#[async_trait]
impl LeaseBench for Bench {
    fn provider(&self, node: usize) -> Arc<dyn LeaseProvider> {
        Arc::new(self.providers.lock().unwrap()[node].clone())
    }

    fn settings(&self) -> LeaseSettings {
        settings()
    }

    async fn take_away(&self, name: &str) -> bool {
        let sql = format!(
            "update greylag_lease set owner = 'thief:1', token = 0, version = version + 1 where name = '{name}'"
        );
        self.server.psql(&sql).unwrap();
        true
    }

    async fn cut(&self, node: usize, cut: bool) -> bool {
        self.cables[node].cut.send_replace(cut);
        true
    }
}

/// cluster 81: a lease expires by a clock that runs on while the holder's machine is suspended, though the timers of
/// the holder's runtime have not moved.
#[test]
fn scenario_81_a_resumed_holder_knows_that_its_lease_has_ended() {
    with_server(async |server| {
        let clock = Clock::for_test();
        let leases = PostgresLeases::connect(&server.config()).await.unwrap().clock(clock.clone());
        let settings = LeaseSettings { heartbeat_timeout: Duration::from_secs(120), ..LeaseSettings::default() };
        let lease = leases.lease("suspended", "a:1", &settings).unwrap();
        let (on_lost, mut lost) = losses();
        assert!(lease.acquire(on_lost).await.unwrap());
        assert!(lease.check());
        clock.jump(Duration::from_secs(600));
        assert!(!lease.check(), "at once, before any timer");
        let told = tokio::time::timeout(Duration::from_secs(60), lost.recv()).await.expect("soon after waking");
        assert!(matches!(told, Some(LeaseError::NotRenewed { .. })), "{told:?}");
        assert!(lease.acquire(never()).await.unwrap(), "and asks for it anew");
        assert!(lease.check());
    });
}

/// Source: cluster S16. The case of the cut node shows that the holder is the first to know.
#[test]
fn leases_in_postgres_conform() {
    with_server(async |server| {
        let mut cables = Vec::new();
        let mut providers = Vec::new();
        for _ in 0..4 {
            let cable = Cable::to(server.port()).await;
            let config = server.config().replace(&format!("port={}", server.port()), &format!("port={}", cable.port));
            providers.push(PostgresLeases::lazy(&config).unwrap());
            cables.push(cable);
        }
        let bench = Bench { server, cables, providers: Mutex::new(providers) };
        let report = tck::lease(&bench).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "every hook is there:\n{report}");
    });
}

async fn connect(server: &Postgres) -> PostgresLeases {
    PostgresLeases::connect(&server.config()).await.unwrap()
}

/// The database error within a lease's error.
fn cause(error: &LeaseError) -> &PostgresLeaseError {
    match error {
        LeaseError::Store { cause, .. } => cause.downcast_ref().unwrap(),
        other => panic!("another error: {other:?}"),
    }
}

/// Tries until the store answers again: the server is up, but the first try after the broken connection may fail.
async fn answered(lease: &Arc<dyn Lease>) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match lease.acquire(never()).await {
            Ok(granted) => return granted,
            Err(error) => assert!(Instant::now() < end, "no answer any more: {error:?}"),
        }
        tokio::task::yield_now().await;
    }
}

/// PostgreSQL refuses the second creator of a table in several ways, depending on timing.
#[test]
fn nodes_that_start_at_once_make_the_table_once() {
    with_server(async |server| {
        for _ in 0..40 {
            server.psql("drop table if exists greylag_lease").unwrap();
            let starts = (0..8).map(async |_| PostgresLeases::connect(&server.config()).await.map(drop));
            for started in futures::future::join_all(starts).await {
                started.unwrap();
            }
        }
    });
}

#[test]
fn a_held_lease_survives_a_restart_of_the_server() {
    with_server(async |mut server| {
        let leases = connect(&server).await;
        let (a, b) = (leases.lease("x", "a:1", &settings()).unwrap(), leases.lease("x", "b:1", &settings()).unwrap());
        let (on_lost, mut lost) = losses();
        assert!(a.acquire(on_lost).await.unwrap());
        server.stop();
        let error = b.acquire(never()).await.unwrap_err();
        assert!(
            matches!(cause(&error), PostgresLeaseError::Unreachable { .. } | PostgresLeaseError::Interrupted { .. }),
            "{error:?}"
        );
        server.restart().unwrap();
        assert!(!answered(&b).await, "the grant is on the server's disk");
        assert!(lost.try_recv().is_err() && a.check(), "renewed over a new connection");
        assert!(a.release().await.unwrap());
        assert!(b.acquire(never()).await.unwrap());
    });
}

#[test]
fn the_version_grows_with_every_change_of_owner_and_only_then() {
    with_server(async |server| {
        let leases = connect(&server).await;
        let version = || server.psql("select version from greylag_lease where name = 'x'").unwrap().trim().to_owned();
        let make = |owner: &str| leases.lease("x", owner, &settings()).unwrap();
        let (a, b, a_again) = (make("a:1"), make("b:1"), make("a:1"));
        a.acquire(never()).await.unwrap();
        a.acquire(never()).await.unwrap();
        assert_eq!(version(), "1");
        a.release().await.unwrap();
        assert!(b.acquire(never()).await.unwrap());
        assert_eq!(version(), "2", "not used again after a release");
        b.release().await.unwrap();
        a.acquire(never()).await.unwrap();
        let (on_lost, mut lost) = losses();
        a.acquire(on_lost).await.unwrap();
        assert!(a_again.acquire(never()).await.unwrap(), "a restarted process is the same owner");
        assert_eq!(version(), "4");
        let told = lost.recv().await.unwrap();
        assert!(matches!(told, LeaseError::TakenAway { .. }), "its predecessor is fenced: {told:?}");
        assert!(!a.check() && a_again.check());
    });
}

#[test]
fn a_late_renewal_does_not_revive_a_released_lease() {
    with_server(async |server| {
        let leases = connect(&server).await;
        let lease = leases.lease("x", "a:1", &settings()).unwrap();
        let (on_lost, mut lost) = losses();
        assert!(lease.acquire(on_lost).await.unwrap());
        // The lease is released in the row directly, as by a release that overtakes a renewal.
        server.psql("update greylag_lease set expires_at = '-infinity'").unwrap();
        assert!(lost.recv().await.is_some(), "the renewal found nothing to renew");
        assert_eq!(server.psql("select expires_at from greylag_lease").unwrap().trim(), "-infinity");
    });
}

#[test]
fn errors_of_the_database_say_what_to_do() {
    with_server(async |server| {
        let port = server.port();
        let failed = async |config: String| PostgresLeases::connect(&config).await.unwrap_err();
        let error = failed(server.config().replace("throw-away", "guessed")).await;
        assert!(matches!(error, PostgresLeaseError::WrongCredentials { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!(
                "the lease database at 127.0.0.1:{port}/postgres refuses the credentials; check user and password, \
                 sslmode and sslcert, and pg_hba.conf of the server"
            )
        );
        let error = failed(server.config().replace("dbname=postgres", "dbname=absent")).await;
        assert!(matches!(error, PostgresLeaseError::NoSuchDatabase { .. }), "{error:?}");
        let error = failed("host=127.0.0.1 port=1 user=x".to_owned()).await;
        assert!(matches!(error, PostgresLeaseError::Unreachable { .. }), "{error:?}");
        let error = failed("not a configuration".to_owned()).await;
        assert!(matches!(error, PostgresLeaseError::InvalidConfig(_)), "{error:?}");

        server.psql("create role guest login password 'g'; create schema other authorization guest").unwrap();
        let guest = format!("host=127.0.0.1 port={port} user=guest password=g dbname=postgres");
        let error = failed(guest.clone()).await;
        assert!(matches!(error, PostgresLeaseError::NotPermitted { .. }), "may not create: {error:?}");
        let own = PostgresLeases::connect(&format!("{guest} options='-c search_path=other'")).await.unwrap();
        let lease = own.lease("x", "a:1", &settings()).unwrap();
        assert!(lease.acquire(never()).await.unwrap(), "in a schema of its own it may");
        lease.release().await.unwrap();

        connect(&server).await;
        let leases = PostgresLeases::connect(&guest).await.unwrap();
        let lease = leases.lease("x", "a:1", &settings()).unwrap();
        let error = lease.acquire(never()).await.unwrap_err();
        assert!(matches!(cause(&error), PostgresLeaseError::NotPermitted { .. }), "may not use: {error:?}");
        server.psql("grant select, insert, update on greylag_lease to guest").unwrap();
        assert!(lease.acquire(never()).await.unwrap(), "what the documentation names is enough");
        assert!(lease.release().await.unwrap());
    });
}

#[test]
fn a_full_disk_and_a_standby_are_named_and_a_lease_survives_a_short_outage() {
    with_server(async |server| {
        let leases = connect(&server).await;
        let (a, b) = (leases.lease("x", "a:1", &settings()).unwrap(), leases.lease("y", "b:1", &settings()).unwrap());
        let (on_lost, mut lost) = losses();
        assert!(a.acquire(on_lost).await.unwrap());
        // A trigger raises the server's own error where the server would.
        server
            .psql(
                "create function is_full() returns trigger language plpgsql as $$ begin \
                 raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$; \
                 create trigger is_full before insert or update on greylag_lease for each row execute function is_full()",
            )
            .unwrap();
        let error = b.acquire(never()).await.unwrap_err();
        assert!(matches!(cause(&error), PostgresLeaseError::NoRoom { .. }), "{error:?}");
        assert!(cause(&error).source().unwrap().source().unwrap().to_string().contains("No space left"));
        assert!(a.check() && lost.try_recv().is_err(), "what was granted lasts for its time");
        server
            .psql(
                "drop trigger is_full on greylag_lease; alter database postgres set default_transaction_read_only = on",
            )
            .unwrap();
        let standby = connect(&server).await;
        let error = standby.lease("y", "b:1", &settings()).unwrap().acquire(never()).await.unwrap_err();
        assert!(matches!(cause(&error), PostgresLeaseError::ReadOnly { .. }), "{error:?}");
    });
}

#[test]
fn a_connection_exists_only_while_a_lease_is_held() {
    with_server(async |server| {
        let leases = connect(&server).await;
        let lease = leases.lease("x", "a:1", &settings()).unwrap();
        let count = "select count(*) from pg_stat_activity where backend_type = 'client backend' and application_name <> 'psql'";
        let connections = || server.psql(count).unwrap().trim().to_owned();
        // The server lists a closed connection until its process has ended.
        let comes_to = |wanted: &str| {
            let end = Instant::now() + Duration::from_secs(20);
            while connections() != wanted {
                assert!(Instant::now() < end, "{} connections stay, not {wanted}", connections());
            }
        };
        lease.acquire(never()).await.unwrap();
        assert_ne!(connections(), "0");
        comes_to("1");
        lease.release().await.unwrap();
        comes_to("0");
    });
}

#[test]
fn settings_that_lose_a_lease_by_one_lost_packet_are_refused() {
    let leases = PostgresLeases::lazy("host=x user=x").unwrap();
    let hasty = LeaseSettings { heartbeat_timeout: Duration::from_secs(2), ..settings() };
    let error = leases.lease("x", "a:1", &hasty).err().unwrap();
    assert!(error.to_string().contains("lease.heartbeat_timeout"), "{error}");
    assert!(matches!(leases.lease("a\0b", "a:1", &settings()), Err(LeaseError::Unusable { .. })));
}
