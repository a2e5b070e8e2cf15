//! The reports to the layers above about a dial that reaches no node: in words for the person who wrote the address.

use std::time::Duration;

use crate::common::certificates::{Authority, with};
use crate::common::{LONG, Node, node};
use greylag_core::CodecId;
use greylag_transport::{
    Destination, DialFailure, Envelope, Recipient, RejectCode, Remoting, TransportEvent, TransportSettings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Sends a message on the control lane, the only one whose failing dials are reported.
fn dial(node: &Node, address: &str) {
    let question = Envelope::new(Recipient::new("control/test"), CodecId::JSON, "number", "1".as_bytes());
    node.transport.send(&Destination::Address(address.parse().unwrap()), question).unwrap();
}

/// Dials this address; returns why the dial failed.
async fn dialled(node: &mut Node, address: &str) -> DialFailure {
    dial(node, address);
    let failed = |event| match event {
        TransportEvent::DialFailed { address: dialled, failure } if dialled.to_string() == address => Some(failure),
        _ => None,
    };
    node.event(failed).await
}

/// A listener of this host that reads, answers with these bytes, and hangs up.
async fn answering(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 64]).await;
            let _ = socket.write_all(words).await;
            let _ = socket.shutdown().await;
            let _ = tokio::time::timeout(LONG, socket.read_to_end(&mut Vec::new())).await;
        }
    });
    address
}

/// A port of this host that refuses connections.
fn refusing() -> String {
    greylag_testkit::port::unused().to_string()
}

#[tokio::test]
async fn a_port_that_refuses_and_one_that_says_nothing_are_told_apart() {
    let mut caller = node(TransportSettings::test()).await;
    assert_eq!(dialled(&mut caller, &refusing()).await, DialFailure::Refused);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hasty = TransportSettings { connection_timeout: Duration::from_millis(200), ..TransportSettings::test() };
    let mut hasty = node(hasty).await;
    let address = silent.local_addr().unwrap().to_string();
    assert_eq!(dialled(&mut hasty, &address).await, DialFailure::Silent);
}

#[tokio::test]
async fn a_host_name_without_an_address_is_told() {
    let mut caller = node(TransportSettings::test()).await;
    let failure = dialled(&mut caller, "no-such-host.invalid:17355").await;
    assert!(matches!(&failure, DialFailure::UnknownHost(_)), "{failure}");
}

#[tokio::test]
async fn a_port_of_another_protocol_is_told_by_its_first_words() {
    let mut caller = node(TransportSettings::test()).await;
    for (words, told) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "HTTP/1"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"-ERR unknown command\r\n", "-ERR"),
    ] {
        let failure = dialled(&mut caller, &answering(words).await).await;
        assert!(matches!(&failure, DialFailure::OtherProtocol(what) if what.contains(told)), "{told}: {failure}");
    }
    // A TLS listener answers plain text with an alert.
    let failure = dialled(&mut caller, &answering(&[0x15, 3, 3, 0, 2, 2, 70]).await).await;
    assert!(matches!(&failure, DialFailure::Tls(what) if what.contains("called in plain text")), "{failure}");
}

#[tokio::test]
async fn tls_at_one_end_and_authorities_that_differ_are_told() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut caller = node(with(ours.sign("caller", &["127.0.0.1"]))).await;
    let plain = node(TransportSettings::test()).await;
    let failure = dialled(&mut caller, &format!("127.0.0.1:{}", plain.port())).await;
    assert!(
        matches!(&failure, DialFailure::Tls(what) if what.contains("transport.tls is on here") || what.contains("transport.tls on there")),
        "{failure}"
    );
    let stranger = node(with(theirs.sign("stranger", &["127.0.0.1"]))).await;
    let failure = dialled(&mut caller, &format!("127.0.0.1:{}", stranger.port())).await;
    assert!(matches!(&failure, DialFailure::Tls(what) if what.contains("authority")), "{failure}");
    // Dial a TLS listener in plain text, too.
    let mut caller = node(TransportSettings::test()).await;
    let failure = dialled(&mut caller, &format!("127.0.0.1:{}", stranger.port())).await;
    // If the other end hung up before its alert was read, the text tells only the likely setting.
    assert!(failure.to_string().contains("transport.tls"), "{failure}");
}

/// A name that leads to a node with another address is reported: an entry in a list of seed nodes must be the node's
/// own address.
#[tokio::test]
async fn a_node_of_another_address_is_told() {
    let mut caller = node(TransportSettings::test()).await;
    let target = node(TransportSettings::test()).await;
    dial(&caller, &format!("localhost:{}", target.port()));
    let refused = |event| match event {
        TransportEvent::HandshakeRejected { code: RejectCode::UnknownAddress, detail, .. } => Some(detail),
        _ => None,
    };
    let detail = caller.event(refused).await;
    assert!(detail.contains(&target.transport.self_address().address().to_string()), "{detail}");
}
