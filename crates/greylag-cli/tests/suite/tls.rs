//! The built binary against admin services by TLS: which callers are trusted, and the errors of the others.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Node, code, greylag, json, output_text, program};
use greylag_cluster::MemberStatus;
use greylag_management::{ManagementServer, ManagementSettings, StartError};
use greylag_testkit::certificates::{Authority, Files};
use greylag_transport::{PeerSubject, Tls, TlsSettings};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

/// Host of all nodes of these tests.
const HOST: &str = "127.0.0.1";

fn settings(files: &Files) -> TlsSettings {
    TlsSettings::new(&files.key, &files.cert, &files.ca)
}

/// A node whose admin service presents this certificate, and lets trusted callers change the cluster.
async fn node(tls: TlsSettings) -> Node {
    let node = Node::start(ManagementSettings::at("127.0.0.1:0").with_writes().with_tls(Tls::Files(tls))).await;
    node.cluster.join_self().await.unwrap();
    node.cluster.wait_up().await.unwrap();
    node
}

fn path(path: &Path) -> &str {
    path.to_str().expect("made for the test")
}

/// Options that trust this authority and present this certificate.
fn shows(files: &Files) -> [&str; 6] {
    ["--tls-ca", path(&files.ca), "--tls-cert", path(&files.cert), "--tls-key", path(&files.key)]
}

/// Cluster T40, for the admin service: a caller of the same authority is let in, by options and by
/// environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_the_same_authority_is_let_in() {
    let authority = Authority::new();
    let node = node(settings(&authority.sign("node", &[HOST]))).await;
    let operator = authority.sign("operator", &["operator.example"]);
    let listed = json(&node.run(&[&["members", "--json"][..], &shows(&operator)].concat()).await);
    assert_eq!(listed["self"], node.unique());
    let mut command = program();
    command.env("GREYLAG_ADDRESS", node.admin()).env("GREYLAG_TLS_CA", &operator.ca);
    command.env("GREYLAG_TLS_CERT", &operator.cert).env("GREYLAG_TLS_KEY", &operator.key);
    assert_eq!(json(&command.args(["health", "--json"]).output().await.unwrap())["healthy"], true);
    node.end().await;
}

/// Cluster T40: if caller and service do not trust each other, nothing is changed or shown, and the error has advice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_trust_name_the_side_that_refuses() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let node = node(settings(&authority.sign("node", &[HOST]))).await;
    let (operator, stranger) = (authority.sign("operator", &["o"]), foreign.sign("stranger", &["s"]));
    let ca = path(&operator.ca);
    let pretender = Files { ca: operator.ca.clone(), ..stranger.clone() };
    let address = node.address();
    for (arguments, wanted) in [
        (&[][..], ["it speaks TLS", "--tls-ca"]),
        (&["--tls-ca", ca], ["asks for a certificate", "--tls-cert"]),
        (&shows(&stranger), ["no authority that is believed here", "--tls-ca"]),
        (&shows(&pretender), ["does not believe the certificate that was shown", "log of the node"]),
    ] {
        for command in [&["members"][..], &["down", &address], &["watch"]] {
            let refused = node.run(&[command, arguments].concat()).await;
            assert_eq!(code(&refused), 6, "{command:?} {arguments:?}: {}", output_text(&refused));
            assert!(refused.stdout.is_empty(), "{}", output_text(&refused));
            for wanted in wanted {
                assert!(output_text(&refused).contains(wanted), "{arguments:?}: {wanted}: {}", output_text(&refused));
            }
        }
    }
    assert_eq!(node.cluster.view().self_status(), Some(MemberStatus::Up), "nothing has changed");

    let plain = Node::writable().await;
    let refused = plain.run(&[&["members"][..], &shows(&operator)].concat()).await;
    assert_eq!(code(&refused), 6, "{}", output_text(&refused));
    assert!(output_text(&refused).contains("it speaks plain text") && output_text(&refused).contains("management.tls"));
    for node in [plain, node] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_must_be_for_the_host_that_is_called() {
    let authority = Authority::new();
    let node = node(settings(&authority.sign("node", &["node.example"]))).await;
    let operator = authority.sign("operator", &["o"]);
    let call = [&["members"][..], &shows(&operator)].concat();
    let refused = node.run(&call).await;
    assert_eq!(code(&refused), 6, "{}", output_text(&refused));
    for wanted in ["not for the host", "node.example", "127.0.0.1", "--tls-host"] {
        assert!(output_text(&refused).contains(wanted), "{wanted}: {}", output_text(&refused));
    }
    let named = node.run(&[&call[..], &["--tls-host", "node.example"]].concat()).await;
    assert_eq!(code(&named), 0, "{}", output_text(&named));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_options_name_the_missing_one() {
    let authority = Authority::new();
    let files = authority.sign("operator", &["o"]);
    let (ca, cert, key) = (path(&files.ca), path(&files.cert), path(&files.key));
    let missing = authority.file("missing", "ca");
    for (arguments, wanted) in [
        (&["--tls-cert", cert, "--tls-key", key][..], "--tls-ca"),
        (&["--tls-host", "a"], "--tls-ca"),
        (&["--tls-ca", ca, "--tls-cert", cert], "--tls-key"),
        (&["--tls-ca", path(&missing)], path(&missing)),
        (&["--tls-ca", key], "it holds no certificate"),
        (&["--tls-ca", ca, "--tls-cert", key, "--tls-key", key], "it holds no certificate"),
    ] {
        let refused = greylag("127.0.0.1:1", &[&["members"][..], arguments].concat()).await;
        assert_eq!(code(&refused), 2, "{arguments:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains(wanted), "{arguments:?}: {}", output_text(&refused));
    }
}

/// Cluster T40: `management.tls_mutual` and `management.tls_peer_subject`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_asked_of_callers_is_configurable() {
    let authority = Authority::new();
    let open = node(TlsSettings { mutual: false, ..settings(&authority.sign("open", &[HOST])) }).await;
    let operator = authority.sign("operator", &["shop.example"]);
    let without = open.run(&["members", "--tls-ca", path(&operator.ca)]).await;
    assert_eq!(code(&without), 0, "{}", output_text(&without));

    let files = settings(&authority.sign("shop", &[HOST, "shop.example"]));
    let shop = node(TlsSettings { peer_subject: PeerSubject::Named("shop.example".to_owned()), ..files }).await;
    let let_in = shop.run(&[&["members"][..], &shows(&operator)].concat()).await;
    assert_eq!(code(&let_in), 0, "{}", output_text(&let_in));
    let other = authority.sign("other", &["bank.example"]);
    let refused = shop.run(&[&["members"][..], &shows(&other)].concat()).await;
    assert_eq!(code(&refused), 6, "{}", output_text(&refused));
    for node in [open, shop] {
        node.end().await;
    }
}

/// Cluster T40: the files are read again while the service runs. A running `watch` goes on; a new call gets the new
/// certificate and needs one of the new authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_on_disk_without_a_restart() {
    let (authority, successor) = (Authority::new(), Authority::new());
    let files = authority.sign("node", &[HOST]);
    let often = TlsSettings { reload_interval: Duration::from_millis(20), ..settings(&files) };
    let node = node(often).await;
    let (before, after) = (authority.sign("operator", &["o"]), successor.sign("operator", &["o"]));
    let mut watch = program();
    watch.args(["watch", "--json", "--address", &node.admin()]).args(shows(&before)).stdout(Stdio::piped());
    let mut watch = watch.spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let first: Value = serde_json::from_str(&lines.next_line().await.unwrap().expect("a line")).expect("JSON");
    assert_eq!(first["event"], "Snapshot");

    successor.sign("node", &[HOST]).replace(&files);
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let called = node.run(&[&["members"][..], &shows(&after)].concat()).await;
        match code(&called) {
            0 => break,
            // The files were not read again yet, or were read between two replacements.
            6 => assert!(tokio::time::Instant::now() < end, "it is never read: {}", output_text(&called)),
            _ => panic!("{}", output_text(&called)),
        }
    }
    let refused = node.run(&[&["members"][..], &shows(&before)].concat()).await;
    assert_eq!(code(&refused), 6, "{}", output_text(&refused));

    // An unusable file is not used, and reported.
    std::fs::write(&files.cert, "-----BEGIN CERTIFICATE-----\nnonsense").unwrap();
    assert_eq!(node.admin.reload_tls().unwrap_err().file, files.cert);
    assert_eq!(code(&node.run(&[&["members"][..], &shows(&after)].concat()).await), 0);

    node.cluster.shutdown().await;
    let mut told = Vec::new();
    while let Some(line) = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await.unwrap().unwrap() {
        told.push(line);
    }
    assert!(told.iter().any(|line| line.contains("MemberExited")), "the old stream told the rest: {told:?}");
    assert_eq!(watch.wait().await.unwrap().code(), Some(0));
    node.end().await;
}

/// A caller that begins a handshake and never ends it keeps neither other callers out, nor the service from ending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_callers_block_no_other_caller() {
    let authority = Authority::new();
    let node = node(settings(&authority.sign("node", &[HOST]))).await;
    let operator = authority.sign("operator", &["o"]);
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(tokio::net::TcpStream::connect(node.admin()).await.unwrap());
    }
    let called = node.run(&[&["members"][..], &shows(&operator)].concat()).await;
    assert_eq!(code(&called), 0, "{}", output_text(&called));
    node.end().await;
    let heard = tokio::time::timeout(Duration::from_secs(20), silent[0].read(&mut [0])).await.expect("it is cut off");
    assert!(matches!(heard, Ok(0) | Err(_)), "{heard:?}");
}

/// Cluster T40: plain text on an address that others can reach needs a setting that says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_loopback_address_needs_a_choice_of_encryption() {
    let authority = Authority::new();
    let files = authority.sign("node", &[HOST]);
    let node = Node::writable().await;
    let start = async |tls: Tls| {
        let settings = ManagementSettings::at("0.0.0.0:0").with_tls(tls);
        ManagementServer::start(settings, node.cluster.clone(), node.transport.clone()).await
    };
    let error = start(Tls::LoopbackOnly).await.unwrap_err();
    assert!(matches!(error, StartError::PlainText { .. }), "{error}");
    assert!(error.to_string().contains("management.tls = \"on\""), "{error}");
    for meant in [Tls::None, Tls::Files(settings(&files))] {
        start(meant).await.unwrap().expect("it is on").shutdown().await;
    }
    let error = start(Tls::Files(TlsSettings { key: files.cert.clone(), ..settings(&files) })).await.unwrap_err();
    assert!(matches!(&error, StartError::Tls(error) if error.file == files.cert), "{error}");
    let error = start(Tls::Files(TlsSettings::new("", "", &files.ca))).await.unwrap_err().to_string();
    assert!(error.contains("management.tls_key") && error.contains("management.tls_cert"), "{error}");
    node.end().await;
}
