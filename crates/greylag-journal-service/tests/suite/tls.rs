//! TLS between clients and servers: which certificates are trusted, and the errors of the others.

use std::time::Duration;

use crate::common::{append, id, loopback};
use greylag_journal_service::{BindError, ClientSettings, ConnectError, JournalClient, JournalServer, ServerSettings};
use greylag_persistence::{Health, Journal, SnapshotCriteria, SnapshotStore, Stores, Under, WriterEpoch, WriterUuid};
use greylag_testkit::certificates::{Authority, Files};
use greylag_transport::{HandshakeError, PeerSubject, Tls, TlsDialer, TlsSettings};
use tokio::io::AsyncReadExt;

const HOST: &str = "127.0.0.1";
const UUID: WriterUuid = WriterUuid::from_u128(1);

fn files(files: &Files) -> TlsSettings {
    TlsSettings::new(&files.key, &files.cert, &files.ca)
}

async fn serve(tls: TlsSettings) -> JournalServer {
    let settings = ServerSettings { tls: Tls::Files(tls), ..ServerSettings::test() };
    JournalServer::bind(loopback(), Stores::in_memory(), settings).await.unwrap()
}

async fn connect(server: &JournalServer, tls: Tls) -> Result<JournalClient, ConnectError> {
    let settings = ClientSettings { tls, connect_timeout: Duration::from_secs(5), ..ClientSettings::test() };
    JournalClient::connect(&server.local_address().to_string(), settings).await
}

/// The cause of a refused connection, which must be lack of trust.
fn distrust(connected: Result<JournalClient, ConnectError>) -> String {
    match connected {
        Err(ConnectError::Untrusted { cause, .. }) => cause,
        other => panic!("there must be no trust, but: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_certificates_of_one_authority_everything_is_served() {
    let authority = Authority::new();
    let server = serve(files(&authority.sign("server", &[HOST]))).await;
    // A client does not listen, so its certificate need not name a host.
    let client = connect(&server, Tls::Files(files(&authority.sign("client", &["anyone.example"])))).await.unwrap();
    let journal = client.journal();
    let claim = journal.claim(&id(1), UUID, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    journal.append(append(&id(1), &claim, UUID, 1, "a")).await.unwrap();
    assert_eq!(client.snapshots().load(&id(1), SnapshotCriteria::LATEST).await, Ok(None));
    assert_eq!(journal.health(), Health::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_is_refused() {
    let authority = Authority::new();
    let own = authority.sign("server", &[HOST]);
    let server = serve(files(&own)).await;
    let plain = distrust(connect(&server, Tls::LoopbackOnly).await);
    assert!(plain.contains("speaks TLS, and this client plain text"), "{plain}");
    // Our client always has a certificate with TLS; this dialer has none.
    let dialer = TlsDialer::open(&own.ca, None).unwrap();
    let socket = tokio::net::TcpStream::connect(server.local_address()).await.unwrap();
    let mut tls = dialer.connect(HOST, socket).await.unwrap();
    let verdict = HandshakeError::from(tls.read_u8().await.unwrap_err());
    assert!(matches!(verdict, HandshakeError::NoCertificate), "{verdict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_foreign_certificate_is_refused() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let own = authority.sign("server", &[HOST]);
    let server = serve(files(&own)).await;
    // The client trusts the server, but the server does not trust the client.
    let stranger = TlsSettings { ca: own.ca.clone(), ..files(&foreign.sign("stranger", &[HOST])) };
    let cause = distrust(connect(&server, Tls::Files(stranger)).await);
    assert!(cause.contains("does not believe this end's certificate"), "{cause}");
    // The client does not trust the server.
    let cause = distrust(connect(&server, Tls::Files(files(&foreign.sign("other", &[HOST])))).await);
    assert!(cause.contains("no authority that is believed here"), "{cause}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_compared_as_the_settings_say() {
    let authority = Authority::new();
    let client = || files(&authority.sign("client", &["anyone.example"]));
    let server = serve(files(&authority.sign("server", &["elsewhere.example"]))).await;
    let cause = distrust(connect(&server, Tls::Files(client())).await);
    assert!(cause.contains("not for the host that was dialled"), "{cause}");
    let lax = TlsSettings { verify_hostname: false, ..client() };
    connect(&server, Tls::Files(lax)).await.unwrap();

    let peer_subject = PeerSubject::Named("journal.example".into());
    let named =
        |hosts: &[&str]| TlsSettings { peer_subject: peer_subject.clone(), ..files(&authority.sign("s", hosts)) };
    let server = serve(named(&[HOST, "journal.example"])).await;
    // The server closes the connection after the handshake; a short timeout saves further tries, which end alike.
    let hasty = Duration::from_millis(300);
    let settings = ClientSettings { tls: Tls::Files(client()), connect_timeout: hasty, ..ClientSettings::test() };
    let refused = JournalClient::connect(&server.local_address().to_string(), settings).await;
    assert!(refused.is_err(), "its name is not the one that is wanted");
    let member = files(&authority.sign("member", &["journal.example"]));
    connect(&server, Tls::Files(member)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_plain_text_is_named_as_such() {
    let authority = Authority::new();
    let server = JournalServer::bind(loopback(), Stores::in_memory(), ServerSettings::test()).await.unwrap();
    let cause = distrust(connect(&server, Tls::Files(files(&authority.sign("client", &[HOST])))).await);
    assert!(cause.contains("does not speak TLS"), "{cause}");
}

/// A certificate replaced on disk is used from the next connection on, at both ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_while_both_run() {
    let (authority, next) = (Authority::new(), Authority::new());
    let soon = |files: TlsSettings| TlsSettings { reload_interval: Duration::from_millis(20), ..files };
    let (of_server, of_client) = (authority.sign("server", &[HOST]), authority.sign("client", &[HOST]));
    let server = serve(soon(files(&of_server))).await;
    let address = server.local_address();
    let client = connect(&server, Tls::Files(soon(files(&of_client)))).await.unwrap();
    next.sign("server", &[HOST]).replace(&of_server);
    next.sign("client", &[HOST]).replace(&of_client);
    // A client that trusts the new authority alone connects once the server has read its files again.
    let newcomer = files(&next.sign("newcomer", &[HOST]));
    while connect(&server, Tls::Files(newcomer.clone())).await.is_err() {
        tokio::task::yield_now().await;
    }
    server.shutdown().await;
    let settings = ServerSettings { tls: Tls::Files(files(&of_server)), ..ServerSettings::test() };
    let _server = JournalServer::bind(address, Stores::in_memory(), settings).await.unwrap();
    while client.journal().head(&id(1)).await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// Rule cluster T40: an address that others can reach needs TLS, or a setting that says plain text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_loopback_address_needs_a_choice_of_encryption() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let refused = JournalServer::bind(everywhere, Stores::in_memory(), ServerSettings::test()).await.unwrap_err();
    assert!(matches!(refused, BindError::PlainText { .. }), "{refused}");
    assert!(refused.to_string().contains("set ServerSettings::tls = Tls::None"), "{refused}");
    let nowhere = TlsSettings::new("no.key.pem", "no.cert.pem", "no.ca.pem");
    let settings = ServerSettings { tls: Tls::Files(nowhere.clone()), ..ServerSettings::test() };
    let refused = JournalServer::bind(loopback(), Stores::in_memory(), settings).await.unwrap_err();
    assert!(refused.to_string().contains("no.key.pem"), "{refused}");
    let settings = ClientSettings { tls: Tls::Files(nowhere), ..ClientSettings::test() };
    let refused = JournalClient::connect("127.0.0.1:1", settings).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Tls(_)), "{refused}");
}

/// persistence §9: an invalid setting is refused at start, by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_settings_are_refused_at_start() {
    let settings = ServerSettings { max_in_flight: 0, ..ServerSettings::test() };
    let refused = JournalServer::bind(loopback(), Stores::in_memory(), settings).await.unwrap_err();
    assert!(refused.to_string().contains("ServerSettings::max_in_flight "), "{refused}");
    let settings = ClientSettings { append_timeout: Duration::ZERO, ..ClientSettings::test() };
    let refused = JournalClient::connect("127.0.0.1:1", settings).await.unwrap_err();
    assert!(refused.to_string().contains("service.append_timeout"), "{refused}");
}
