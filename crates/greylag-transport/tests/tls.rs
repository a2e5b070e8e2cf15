//! Encrypted associations: which certificates are accepted, for which host, and how they are replaced.

#[path = "suite/common/mod.rs"]
mod common;

use common::{logs, raw};
use std::time::Duration;

use common::certificates::{Authority, load, with};
use common::{LONG, Node, next, node, number, read, until};
use greylag_core::{DeadLetterReason, Registry};
use greylag_transport::{
    AskError, BindError, Destination, Envelope, GrpcTransport, Intrusion, Lane, PeerSubject, Recipient, RejectCode,
    Remoting, Tls, TlsSettings, TransportEvent, TransportSettings,
};

/// The host of all nodes in these tests.
const HOST: &str = "127.0.0.1";

fn refused(event: TransportEvent) -> Option<(RejectCode, String)> {
    match event {
        TransportEvent::HandshakeRejected { code, detail, .. } => Some((code, detail)),
        _ => None,
    }
}

/// Checks that a message to `to` does not arrive within the handshake's time limit.
async fn does_not_reach(from: &Node, to: &Node) {
    let asked = from.ask(&to.here(), "inbox", LONG).await;
    assert!(
        matches!(
            asked,
            Err(AskError::Dropped(DeadLetterReason::HandshakeTimeout | DeadLetterReason::HandshakeRejected))
        ),
        "{asked:?}"
    );
}

fn hasty(settings: TransportSettings) -> TransportSettings {
    TransportSettings { handshake_timeout: Duration::from_millis(300), ..settings }
}

/// Cluster T40, T5: the large lane has its own connection, encrypted like every other.
#[tokio::test]
async fn scenario_13_with_the_right_host_messages_flow_on_all_lanes() {
    let authority = Authority::new();
    let a = node(with(authority.sign("a", &[HOST]))).await;
    let b = node(with(authority.sign("b", &["b.example", HOST]))).await;
    for (path, lane) in [("control/x", Lane::CONTROL), ("x", Lane::ordinary(0)), ("bulk/x", Lane::LARGE)] {
        let recipient = Recipient::new(path);
        assert_eq!(a.transport.lane_of(&recipient), lane);
        let mut inbox = b.register(path);
        a.transport.send(&b.here(), Envelope { recipient, ..number(3) }).unwrap();
        assert_eq!(read(&next(&mut inbox).await), 3);
    }
}

/// Cluster T40: the dialling side looks in the certificate for the host that it dials.
#[tokio::test]
async fn scenario_13_with_a_certificate_for_another_host_there_is_no_association() {
    logs::keep();
    let authority = Authority::new();
    let a = node(hasty(with(authority.sign("a", &[HOST])))).await;
    let b = node(hasty(with(authority.sign("b", &["b.example", "127.0.0.2"])))).await;
    does_not_reach(&a, &b).await;
    assert!(a.transport.peer(b.transport.self_address().address()).is_none(), "no handshake came about");
    assert!(logs::has(&["WARN", "the certificate does not name this node's host", "b.example"]));
    assert!(logs::has(&["WARN", "a dial failed", "not valid for name"]));
}

/// Cluster T16: the called side looks in the certificate for the host that the caller claims to be.
#[tokio::test]
async fn a_hello_in_the_name_of_another_host_is_unauthorized() {
    logs::keep();
    let authority = Authority::new();
    let mut a = node(with(authority.sign("a", &["a.example"]))).await;
    let b = node(with(authority.sign("b", &[HOST]))).await;
    a.tell(&b.here(), 1);
    let (code, detail) = a.event(refused).await;
    assert_eq!(code, RejectCode::Unauthorized);
    assert!(detail.contains("127.0.0.1") && detail.contains("a.example"), "{detail}");
    assert_eq!(b.transport.stats().intruded(Intrusion::Refused(RejectCode::Unauthorized)), 1);
    assert!(logs::has(&["WARN", "Unauthorized", "a.example", &format!(":{}", a.port())]));
    assert_eq!(b.transport.stats().received_envelopes, 0);
}

/// Scenario 2 under TLS: the certificate is for both names, the node has one address.
#[tokio::test]
async fn scenario_02_a_wrong_name_is_refused_with_both_spellings_under_tls() {
    let authority = Authority::new();
    let mut a = node(with(authority.sign("a", &[HOST]))).await;
    let b = node(with(authority.sign("b", &[HOST, "localhost"]))).await;
    let alias: Destination = Destination::Address(format!("localhost:{}", b.port()).parse().unwrap());
    a.tell(&alias, 1);
    let (code, detail) = a.event(refused).await;
    assert_eq!(code, RejectCode::UnknownAddress);
    assert!(detail.contains("localhost:") && detail.contains("127.0.0.1:"), "{detail}");
    until(|| a.dropped(DeadLetterReason::HandshakeRejected) == 1).await;
    let Destination::Address(address) = &alias else { unreachable!() };
    assert_eq!((a.transport.peer(address), a.knows(b.port()), b.knows(a.port())), (None, false, false));
}

#[tokio::test]
async fn without_host_verification_the_authority_decides_alone() {
    let authority = Authority::new();
    let lax = |name| TlsSettings { verify_hostname: false, ..authority.sign(name, &["elsewhere.example"]) };
    let (a, mut b) = (node(with(lax("a"))).await, node(with(lax("b"))).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let foreign = Authority::new();
    let c = node(hasty(with(TlsSettings { verify_hostname: false, ..foreign.sign("c", &[HOST]) }))).await;
    does_not_reach(&c, &b).await;
}

/// Cluster T40, `tls_mutual`: callers need not show a certificate, called nodes do.
#[tokio::test]
async fn without_mutual_authentication_only_the_called_side_is_known() {
    let authority = Authority::new();
    let open = |name| TlsSettings { mutual: false, ..authority.sign(name, &[HOST]) };
    let (a, mut b) = (node(with(open("a"))).await, node(with(open("b"))).await);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    let (mut caller, _) = raw::connect_tls(b.port(), None).await;
    caller.call().await;
    caller.say(&raw::Hello::to(b.port()).frame()).await;
    caller.say(&raw::message("inbox", 2)).await;
    assert_eq!(b.next().await, 2);
}

/// Cluster T40, `tls_peer_subject`: one authority may serve several clusters.
#[tokio::test]
async fn peers_share_a_name_where_that_is_asked_for() {
    let authority = Authority::new();
    let with_subject =
        |name, hosts: &[&str], peer_subject| hasty(with(TlsSettings { peer_subject, ..authority.sign(name, hosts) }));
    // Do not verify hosts: all these nodes share one host, which would then be a shared name.
    let lax = |settings: TransportSettings| match settings.tls {
        Tls::Files(tls) => hasty(with(TlsSettings { verify_hostname: false, ..tls })),
        _ => unreachable!("it was made with a certificate"),
    };
    let a = node(lax(with_subject("a", &["a.example", "shop.example"], PeerSubject::Shared))).await;
    let mut b = node(lax(with_subject("b", &["b.example", "shop.example"], PeerSubject::Shared))).await;
    let c = node(lax(with_subject("c", &["c.example", "bank.example"], PeerSubject::Any))).await;
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    does_not_reach(&a, &c).await;
    does_not_reach(&c, &a).await;
    assert!(a.transport.stats().intruded(Intrusion::Certificate) > 0);
    // The name itself may be required, and then the own certificate has to have it.
    let bank = PeerSubject::Named("bank.example".to_owned());
    let mut d = node(lax(with_subject("d", &["bank.example"], bank.clone()))).await;
    c.tell(&d.here(), 2);
    assert_eq!(d.next().await, 2);
    does_not_reach(&b, &d).await;
    let odd = with_subject("e", &["shop.example"], bank);
    let error = GrpcTransport::bind(odd, Registry::new().into()).await.unwrap_err();
    assert!(matches!(&error, BindError::Tls(error) if error.why.contains("bank.example")), "{error}");
}

/// Cluster T40: plain text on an address that other hosts reach has to be configured explicitly.
#[tokio::test]
async fn plain_text_beyond_loopback_has_to_be_asked_for() {
    logs::keep();
    let everywhere =
        |tls| TransportSettings { bind_host: Some("0.0.0.0".to_owned()), tls, ..TransportSettings::test() };
    let bind = async |settings| GrpcTransport::bind(settings, Registry::new().into()).await;
    let error = bind(everywhere(Tls::LoopbackOnly)).await.unwrap_err();
    assert!(matches!(error, BindError::PlainText { .. }), "{error}");
    assert!(error.to_string().contains("tls = none"));
    let public = |settings| TransportSettings { canonical_host: Some("203.0.113.7".to_owned()), ..settings };
    let meant = bind(public(everywhere(Tls::None))).await.unwrap();
    assert!(logs::has(&["WARN", "tls = none"]));
    meant.shutdown().await;
    let authority = Authority::new();
    let encrypted = bind(everywhere(Tls::Files(authority.sign("a", &[HOST])))).await.unwrap();
    encrypted.shutdown().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_at_start() {
    let authority = Authority::new();
    let good = authority.sign("a", &[HOST]);
    let other = authority.sign("b", &[HOST]);
    let missing = authority.file("missing", "key");
    for (tls, file) in [
        (TlsSettings { key: missing.clone(), ..good.clone() }, &missing),
        (TlsSettings { key: good.cert.clone(), ..good.clone() }, &good.cert),
        (TlsSettings { cert: good.key.clone(), ..good.clone() }, &good.key),
        (TlsSettings { ca: good.key.clone(), ..good.clone() }, &good.key),
        // A certificate of another key.
        (TlsSettings { key: other.key.clone(), ..good.clone() }, &good.cert),
    ] {
        let error = GrpcTransport::bind(with(tls), Registry::new().into()).await.unwrap_err();
        assert!(matches!(&error, BindError::Tls(error) if error.file == *file), "{error}");
    }
}

/// Cluster T40, and issue "Done when" 9: certificates are replaced under load without losing a message, and new
/// connections show the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_while_a_thousand_messages_a_second_flow() {
    const MESSAGES: u32 = 1500;
    let authority = Authority::new();
    let often = |name| TlsSettings { reload_interval: Duration::from_millis(20), ..authority.sign(name, &[HOST]) };
    let (files_a, files_b) = (often("a"), often("b"));
    let (a, mut b) = (node(with(files_a.clone())).await, node(with(files_b.clone())).await);
    let (_, first) = raw::connect_tls(b.port(), Some(&files_a)).await;
    assert_eq!(first, load(&files_b).0);
    let to = b.here();
    let transport = a.transport.clone();
    let sender = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(1));
        for n in 0..MESSAGES {
            pace.tick().await;
            transport.send(&to, number(n)).unwrap();
        }
    });
    for n in 0..MESSAGES {
        assert_eq!(b.next().await, n);
        if n % 400 == 200 {
            // Replace the key before the certificate: a reader that comes between finds a pair that does not match.
            let reloads = u64::from(n / 400 + 1);
            authority.sign("a", &[HOST]);
            authority.sign("b", &[HOST]);
            until(|| a.transport.stats().tls_reloads >= reloads && b.transport.stats().tls_reloads >= reloads).await;
            let (_, shown) = raw::connect_tls(b.port(), Some(&files_a)).await;
            assert_eq!(shown, load(&files_b).0);
            assert_ne!(shown, first);
        }
    }
    sender.await.unwrap();
    let stats = a.transport.stats();
    assert_eq!(stats.dead_letters.values().sum::<u64>(), 0);
    let events: Vec<_> = std::iter::from_fn(|| b.events.try_recv().ok()).collect();
    let lost = |event: &&TransportEvent| matches!(event, TransportEvent::LinkLost { .. });
    assert_eq!(events.iter().find(lost).map(|event| format!("{event:?}")), None, "no stream broke");
    // A new node, and new lanes of the old ones, use the certificates of now.
    let c = node(with(authority.sign("c", &[HOST]))).await;
    c.tell(&b.here(), MESSAGES);
    assert_eq!(b.next().await, MESSAGES);
}

/// Cluster T40: files that cannot be used are not used.
#[tokio::test]
async fn a_broken_file_keeps_the_certificate_before() {
    logs::keep();
    let authority = Authority::new();
    let files = authority.sign("b", &[HOST]);
    let a = node(with(authority.sign("a", &[HOST]))).await;
    let mut b = node(with(files.clone())).await;
    let before = load(&files).0;
    assert_eq!(b.transport.reload_tls(), Ok(false), "nothing is new");
    std::fs::write(&files.cert, "-----BEGIN CERTIFICATE-----\nnonsense").unwrap();
    let error = b.transport.reload_tls().unwrap_err();
    assert_eq!(error.file, files.cert);
    assert_eq!(b.transport.stats().tls_reload_failures, 1);
    assert!(logs::has(&["ERROR", "the certificate is not replaced", &files.cert.display().to_string()]));
    let (_, shown) = raw::connect_tls(b.port(), Some(&files_of(&authority))).await;
    assert_eq!(shown, before);
    a.tell(&b.here(), 1);
    assert_eq!(b.next().await, 1);
    // A new authority counts from the next connection on, for both directions.
    let successor = Authority::new();
    let new = successor.sign("b", &[HOST]);
    for (from, to) in [(&new.key, &files.key), (&new.cert, &files.cert), (&new.ca, &files.ca)] {
        std::fs::copy(from, to).unwrap();
    }
    assert_eq!(b.transport.reload_tls(), Ok(true));
    a.tell(&b.here(), 2);
    assert_eq!(b.next().await, 2, "the stream that is open stays");
    let mut c = node(with(successor.sign("c", &[HOST]))).await;
    b.tell(&c.here(), 3);
    assert_eq!(c.next().await, 3);
}

/// Files of a certificate signed by the authority.
fn files_of(authority: &Authority) -> TlsSettings {
    authority.sign("some", &[HOST])
}

/// persistence 74: a private key that other users can read causes a warning with its name.
#[tokio::test]
async fn scenario_74_a_key_that_others_can_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    logs::keep();
    let authority = Authority::new();
    let words = |key: &std::path::Path| ["WARN".to_owned(), "others can read".to_owned(), key.display().to_string()];
    let is_named = |key: &std::path::Path| logs::has(&words(key).each_ref().map(String::as_str));
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let settings = authority.sign(name, &[HOST]);
        std::fs::set_permissions(&settings.key, std::fs::Permissions::from_mode(mode)).unwrap();
        greylag_transport::TlsFiles::of_caller(settings.clone()).unwrap();
        assert_eq!(is_named(&settings.key), mode == 0o644, "{name}");
    }
}

/// Cluster 83: with an expired certificate no new link is made, in either direction, and both sides log why; a
/// certificate that ends soon is warned of and counted.
#[tokio::test]
async fn scenario_83_certificates_end() {
    logs::keep();
    let authority = Authority::new();
    let good = node(hasty(with(authority.sign("good", &[HOST])))).await;
    let soon = node(with(authority.sign_for_days("soon", &[HOST], 5))).await;
    assert_eq!(soon.transport.stats().certificate_days_left, Some(5));
    assert_eq!(soon.transport.certificate_days_left(), Some(5));
    assert_eq!(
        soon.ask(&good.here(), "unregistered", LONG).await,
        Err(AskError::NoSuchRecipient),
        "it is good until then"
    );
    until(|| logs::has(&["WARN", "ends soon", "days_left=5", "soon.cert.pem"])).await;

    let ended = node(hasty(with(authority.sign_for_days("ended", &[HOST], -2)))).await;
    assert_eq!(ended.transport.stats().certificate_days_left, Some(-2));
    until(|| logs::has(&["ERROR", "has expired", "ended.cert.pem"])).await;
    // The node as caller: refused by the called node, and told why.
    does_not_reach(&ended, &good).await;
    let good_port = good.port().to_string();
    until(|| logs::has(&["a dial failed", &good_port, "this node's certificate has expired"])).await;
    until(|| logs::has(&["refused", "Certificate", "xpired"])).await;
    // The node as called: refused by the caller, and told why.
    does_not_reach(&good, &ended).await;
    let ended_port = ended.port().to_string();
    until(|| logs::has(&["a dial failed", &ended_port, "xpired"])).await;
    assert!(ended.transport.stats().intruded(Intrusion::Certificate) >= 1, "its callers say why they hang up");
}
