//! A client that writes HTTP/2 byte by byte, so that it can send what no correct node sends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::{Failure, Secrets};

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// One connection to a node's transport port.
pub(crate) struct Raw(Box<dyn Io>);

/// The only method of the transport's service.
const METHOD: &str = "/greylag.transport.v1.Transport/Open";
/// The time limit of connecting, of a write, and of waiting for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of a message that one HTTP/2 frame carries.
const PIECE: usize = 16 * 1024;

impl Raw {
    /// Connects from `from`, one of the many loopback addresses, so that a ban of that address refuses no other
    /// process.
    pub(crate) async fn connect(from: IpAddr, to: SocketAddr, secrets: Option<&Arc<Secrets>>) -> Result<Self, Failure> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let tcp = tokio::time::timeout(PATIENCE, socket.connect(to)).await??;
        tcp.set_nodelay(true)?;
        let Some(secrets) = secrets else { return Ok(Self(Box::new(tcp))) };
        let name = ServerName::try_from("127.0.0.1")?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client(secrets)?));
        let tls = tokio::time::timeout(PATIENCE, connector.connect(name, tcp)).await??;
        Ok(Self(Box::new(tls)))
    }

    /// Writes bytes; fails if the node has closed the connection, or has read nothing for `PATIENCE`.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        tokio::time::timeout(PATIENCE, self.0.write_all(bytes)).await??;
        Ok(tokio::time::timeout(PATIENCE, self.0.flush()).await??)
    }

    /// Sends the preface, the settings and the headers of a call. With `hears` false, the flow-control window is zero:
    /// the node has no room to answer.
    pub(crate) async fn call(&mut self, hears: bool) -> Result<(), Failure> {
        let mut head = vec![0x83, 0x86, 0x04, METHOD.len() as u8];
        head.extend(METHOD.as_bytes());
        head.extend(b"\x01\x01x\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
        let settings: &[u8] = if hears { &[] } else { &[0, 4, 0, 0, 0, 0] };
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        self.send(&frame(4, 0, 0, settings)).await?;
        // Acknowledge the node's settings: its windows count from then on.
        self.send(&frame(4, 1, 0, &[])).await?;
        self.send(&frame(1, 4, 1, &head)).await
    }

    /// Sends a message on the call.
    pub(crate) async fn say(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.announce(message.len() as u32).await?;
        for piece in message.chunks(PIECE) {
            self.send(&frame(0, 0, 1, piece)).await?;
        }
        Ok(())
    }

    /// Sends the prefix of a message that claims a length of `len` bytes.
    pub(crate) async fn announce(&mut self, len: u32) -> Result<(), Failure> {
        self.send(&frame(0, 0, 1, &[vec![0], len.to_be_bytes().to_vec()].concat())).await
    }

    /// Whether these bytes arrive from the node within `PATIENCE`.
    pub(crate) async fn hears(&mut self, wanted: &[u8]) -> bool {
        let mut heard: Vec<u8> = Vec::new();
        let mut buffer = [0; 4096];
        let listening = async {
            while !heard.windows(wanted.len()).any(|window| window == wanted) {
                match self.0.read(&mut buffer).await {
                    Ok(0) | Err(_) => return false,
                    Ok(n) => heard.extend(&buffer[..n]),
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, listening).await.unwrap_or(false)
    }
}

fn client(secrets: &Secrets) -> Result<ClientConfig, Failure> {
    let files = &secrets.files;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca)?)?;
    let (cert, key) = (CertificateDer::from_pem_file(&files.cert)?, PrivateKeyDer::from_pem_file(&files.key)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_client_auth_cert(vec![cert], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The encoded frame with a Hello.
pub(crate) fn hello(host: &str, port: u16, uid: u64, to_port: u16, lane: u64, seq: u64) -> Vec<u8> {
    let node = [bytes(1, host.as_bytes()), number(2, port.into()), fixed(3, uid)].concat();
    let hello = [
        number(1, 1),
        number(2, 1),
        bytes(3, b"storefront"),
        bytes(4, &node),
        bytes(5, b"127.0.0.1"),
        number(6, to_port.into()),
        number(8, lane),
        number(10, 1),
        number(11, seq),
    ];
    bytes(1, &hello.concat())
}

/// A batch of one envelope.
pub(crate) fn batch(path: &str, manifest: &str, payload: &[u8]) -> Vec<u8> {
    let envelope =
        [bytes(1, path.as_bytes()), number(5, 10), bytes(6, manifest.as_bytes()), bytes(7, payload)].concat();
    bytes(3, &bytes(1, &envelope))
}

pub(crate) fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    varint(value, &mut out);
    out
}

fn fixed(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3 | 1], value.to_le_bytes().to_vec()].concat()
}

pub(crate) fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
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
