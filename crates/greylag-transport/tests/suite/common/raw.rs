//! A caller that speaks HTTP/2 byte by byte, so that it can send what no node would send.

#![allow(dead_code, unreachable_pub, reason = "each of the programs that include this file uses a part")]

use std::sync::Arc;
use std::time::Duration;

use greylag_transport::TlsSettings;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::LONG;
use super::certificates::load;

pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire for S {}

pub struct Raw(pub Box<dyn Wire>);

impl Raw {
    pub async fn connect(port: u16) -> Self {
        Self(Box::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap()))
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // Ignore errors: the other side may have hung up already.
        self.0.write_all(bytes).await.ok();
        self.0.flush().await.ok();
    }

    /// Sends preface, settings, and the head of a call.
    pub async fn call(&mut self) {
        self.call_path("/greylag.transport.v1.Transport/Open").await;
    }

    pub async fn call_path(&mut self, path: &str) {
        self.call_with(path, &[]).await;
    }

    async fn call_with(&mut self, path: &str, settings: &[u8]) {
        let mut head = vec![0x83, 0x86, 0x04, path.len() as u8];
        head.extend(path.as_bytes());
        head.extend(b"\x01\x01x");
        head.extend(b"\x0f\x10\x10application/grpc");
        head.extend(b"\x00\x02te\x08trailers");
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        self.send(&frame(4, 0, 0, settings)).await;
        self.send(&frame(1, 4, 1, &head)).await;
    }

    /// Begins a call with an answer window of 0, so that the called side can send no byte of an answer.
    pub async fn call_unheard(&mut self) {
        self.call_with("/greylag.transport.v1.Transport/Open", &[0, 4, 0, 0, 0, 0]).await;
    }

    /// Sends a message on the call.
    pub async fn say(&mut self, message: &[u8]) {
        let mut data = vec![0];
        data.extend((message.len() as u32).to_be_bytes());
        data.extend(message);
        self.send(&frame(0, 0, 1, &data)).await;
    }

    /// Waits for the answer to a Hello, and acknowledges the other side's HTTP/2 settings.
    pub async fn settle(&mut self) {
        assert!(self.hear("127.0.0.1").await, "the Hello is accepted");
        self.send(&frame(4, 1, 0, &[])).await;
    }

    /// Waits until the other side has read everything that was sent before.
    pub async fn ping(&mut self) {
        self.send(&frame(6, 0, 0, b"read it?")).await;
        assert!(self.hear("read it?").await, "it answers a ping");
    }

    /// Sends the head of a message that claims to have `len` bytes.
    pub async fn announce(&mut self, len: u32) {
        self.send(&frame(0, 0, 1, &[vec![0], len.to_be_bytes().to_vec()].concat())).await;
    }

    /// Sends a piece of a message, the first one with the head.
    pub async fn continue_message(&mut self, (index, piece): (usize, &[u8]), len: u32) {
        if index == 0 {
            self.announce(len).await;
        }
        self.send(&frame(0, 0, 1, piece)).await;
    }

    /// Reads until `wanted` was among the bytes (true), or the other side hangs up (false).
    pub async fn hear(&mut self, wanted: &str) -> bool {
        let mut heard: Vec<u8> = Vec::new();
        let mut buffer = [0; 4096];
        let listen = async {
            loop {
                if heard.windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
                    return true;
                }
                match self.0.read(&mut buffer).await {
                    Ok(0) | Err(_) => return false,
                    Ok(n) => heard.extend(&buffer[..n]),
                }
            }
        };
        tokio::time::timeout(LONG, listen).await.expect("it answers, or hangs up")
    }

    /// Reads until the other side hangs up.
    pub async fn until_closed(&mut self) {
        let mut buffer = [0; 4096];
        let close = async { while !matches!(self.0.read(&mut buffer).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(LONG, close).await.expect("it hangs up");
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A message as DATA frames of the call.
pub fn data_frames(message: &[u8]) -> Vec<u8> {
    let mut data = vec![0];
    data.extend((message.len() as u32).to_be_bytes());
    data.extend(message);
    data.chunks(16 * 1024).flat_map(|piece| frame(0, 0, 1, piece)).collect()
}

// --- protobuf, as far as the tests need it -----------------------------------------------------------

pub fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    varint(value, &mut out);
    out
}

pub fn fixed(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3 | 1], value.to_le_bytes().to_vec()].concat()
}

pub fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(value.len() as u64, &mut out);
    out.extend(value);
    out
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn node(host: &str, port: u16, uid: u64) -> Vec<u8> {
    [bytes(1, host.as_bytes()), number(2, port.into()), fixed(3, uid)].concat()
}

/// The fields of a Hello that tests vary.
#[derive(Clone)]
pub struct Hello {
    pub version: u64,
    pub min_supported: u64,
    pub cluster: &'static str,
    pub host: &'static str,
    pub port: u16,
    pub uid: u64,
    pub to_port: u16,
    /// 1 control, 2 ordinary, 3 large.
    pub lane: u64,
    pub index: u64,
    pub seq: u64,
    /// 0 for none.
    pub cluster_id: u8,
}

impl Hello {
    /// A Hello that is accepted.
    pub fn to(to_port: u16) -> Self {
        let (cluster, host) = ("test", "127.0.0.1");
        Self {
            version: 1,
            min_supported: 1,
            cluster,
            host,
            port: 9,
            uid: 77,
            to_port,
            lane: 2,
            index: 0,
            seq: 1,
            cluster_id: 0,
        }
    }

    pub fn frame(&self) -> Vec<u8> {
        let hello = [
            number(1, self.version),
            number(2, self.min_supported),
            bytes(3, self.cluster.as_bytes()),
            bytes(4, &node(self.host, self.port, self.uid)),
            bytes(5, b"127.0.0.1"),
            number(6, self.to_port.into()),
            number(8, self.lane),
            number(9, self.index),
            number(10, 1),
            number(11, self.seq),
            if self.cluster_id == 0 { Vec::new() } else { bytes(13, &[self.cluster_id; 16]) },
        ];
        bytes(1, &hello.concat())
    }
}

/// A frame with one message, a number, for a recipient.
pub fn message(path: &str, payload: u32) -> Vec<u8> {
    let envelope =
        [bytes(1, path.as_bytes()), number(5, 2), bytes(6, b"number"), bytes(7, payload.to_string().as_bytes())];
    bytes(3, &bytes(1, &envelope.concat()))
}

/// A frame with one numbered message.
pub fn numbered(path: &str, seq: u64) -> Vec<u8> {
    let envelope = [bytes(1, path.as_bytes()), number(5, 2), bytes(6, b"number"), bytes(7, b"1")];
    bytes(4, &[number(1, seq), bytes(2, &envelope.concat())].concat())
}

/// A flush: asks for an answer once everything before it was taken.
pub fn flush(id: u64) -> Vec<u8> {
    bytes(10, &number(1, id))
}

/// A frame of `count` envelopes for a path that is not registered.
pub fn empty_envelopes(count: usize) -> Vec<u8> {
    bytes(3, &bytes(1, &bytes(1, b"control/nobody")).repeat(count))
}

/// A frame with one answer, a number, to a question of the process `uid`.
pub fn answer(uid: u64, ask_id: u64, value: u32) -> Vec<u8> {
    let value = value.to_string();
    let (path, target) = (bytes(1, b"asks"), fixed(4, uid));
    let envelope = [path, target, number(5, 2), bytes(6, b"number"), bytes(7, value.as_bytes()), number(8, ask_id)];
    bytes(3, &bytes(1, &envelope.concat()))
}

/// A frame of exactly `len` bytes.
pub fn message_of(path: &str, len: usize) -> Vec<u8> {
    let sized = |payload: usize| {
        let envelope = [bytes(1, path.as_bytes()), number(5, 2), bytes(6, b"text"), bytes(7, &vec![b' '; payload])];
        bytes(3, &bytes(1, &envelope.concat()))
    };
    let rest = sized(len).len() - len;
    let frame = sized(len - rest);
    assert_eq!(frame.len(), len);
    frame
}

/// A frame in which `from` says that it has quarantined the node `to`.
pub fn quarantined(from: (&str, u16, u64), to: (&str, u16, u64)) -> Vec<u8> {
    let (from, to) = (node(from.0, from.1, from.2), node(to.0, to.1, to.2));
    bytes(7, &[bytes(1, &from), bytes(2, &to), number(3, 1)].concat())
}

// --- TLS ----------------------------------------------------------------------------------------------

/// A verifier that accepts every server.
#[derive(Debug)]
struct Naive;

impl ServerCertVerifier for Naive {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Connects with TLS, showing the certificate in these files or none; returns the server's certificate.
pub async fn connect_tls(port: u16, own: Option<&TlsSettings>) -> (Raw, CertificateDer<'static>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(Naive));
    let mut config = match own.map(load) {
        Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = tokio::time::timeout(Duration::from_secs(20), connector.connect(name, tcp)).await.unwrap().unwrap();
    let shown = tls.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    (Raw(Box::new(tls)), shown)
}
