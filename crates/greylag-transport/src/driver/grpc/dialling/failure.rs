//! Classifies a dial's error: finds the cause that a person can do something about.

use std::error::Error;
use std::io;
use std::sync::{Arc, OnceLock};

use tonic::{Code, Status};

use crate::dials::failure::DialFailure;
use crate::driver::grpc::tls::HandshakeError;

/// The first event of a connection: the listener's first bytes, which tell another protocol, or how the connection
/// broke.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstRead(Arc<OnceLock<First>>);

#[derive(Debug)]
enum First {
    Bytes(Vec<u8>),
    /// The other end's rejection of our certificate, which comes after the handshake has ended for this end.
    Verdict(DialFailure),
}

/// First bytes kept: enough to tell protocols apart.
const LOOKED_AT: usize = 16;

impl FirstRead {
    /// Records the result of the first read.
    pub(crate) fn note(&self, read: Result<&[u8], &io::Error>) {
        let first = match read {
            Ok([]) => return,
            Ok(bytes) => First::Bytes(bytes[..bytes.len().min(LOOKED_AT)].to_vec()),
            Err(error) => {
                let verdict = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                let Some(verdict) = verdict else { return };
                First::Verdict(of_handshake(io::Error::other(verdict.clone()).into()))
            }
        };
        // Only the first read is recorded.
        let _ = self.0.set(first);
    }

    /// Why the two ends cannot speak, if the first read tells. `None`: the listener may well speak HTTP/2.
    fn failure(&self) -> Option<DialFailure> {
        let other = |what: &str| Some(DialFailure::OtherProtocol(what.to_owned()));
        let bytes = match self.0.get()? {
            First::Verdict(failure) => return Some(failure.clone()),
            First::Bytes(bytes) => bytes.as_slice(),
        };
        match bytes {
            // A TLS alert or handshake.
            [0x15 | 0x16, 3, ..] => Some(DialFailure::Tls(
                "it speaks TLS, and was called in plain text: transport.tls is on there and not here".to_owned(),
            )),
            bytes if bytes.starts_with(b"HTTP/") => other("HTTP/1"),
            bytes if bytes.starts_with(b"SSH-") => other("SSH"),
            // Length, type and flags of a SETTINGS frame, with which HTTP/2 begins.
            [_, _, _, 4, ..] | [] => None,
            bytes => other(&format!("it begins with {:?}", String::from_utf8_lossy(bytes))),
        }
    }
}

/// Classifies the error of connecting a socket.
pub(crate) fn of_socket(error: &io::Error) -> DialFailure {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => DialFailure::Refused,
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown | Kind::AddrNotAvailable => {
            DialFailure::NoRoute(error.to_string())
        }
        Kind::TimedOut => DialFailure::Silent,
        _ => DialFailure::Broken(error.to_string()),
    }
}

/// Classifies the error of a TLS handshake.
pub(crate) fn of_handshake(error: HandshakeError) -> DialFailure {
    match error {
        HandshakeError::NotTls => DialFailure::Tls(
            "it speaks plain text, and was called by TLS: transport.tls is on here and not there".to_owned(),
        ),
        HandshakeError::Broken(cause) => {
            DialFailure::Tls(format!("the TLS handshake broke off ({cause}); is transport.tls on there?"))
        }
        HandshakeError::NotHttp2 => DialFailure::OtherProtocol(HandshakeError::NotHttp2.to_string()),
        other => DialFailure::Tls(other.to_string()),
    }
}

/// Classifies an error of the connection: by our own error among its causes, or by the first bytes read.
pub(crate) fn of_connection(error: &(dyn Error + 'static), first_read: &FirstRead) -> DialFailure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<DialFailure>() {
            return found.clone();
        }
        if error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return DialFailure::Silent;
        }
        cause = error.source();
    }
    first_read.failure().unwrap_or_else(|| {
        let hint = if first_read.0.get().is_none() { "; is transport.tls on at one end only?" } else { "" };
        DialFailure::Broken(format!("{}{hint}", causes(error)))
    })
}

/// Classifies the answer to the call that opens a stream.
pub(crate) fn of_status(status: &Status, first_read: &FirstRead) -> DialFailure {
    if status.source().is_some() {
        return of_connection(status, first_read);
    }
    match (status.code(), status.message()) {
        (Code::Unimplemented, "") => {
            DialFailure::OtherService("a service of gRPC listens there that is no node of a cluster".to_owned())
        }
        (Code::Unimplemented, said) => DialFailure::OtherService(said.to_owned()),
        // tonic's text for an HTTP answer that is not gRPC.
        _ if status.message().contains("HTTP status code") => DialFailure::OtherProtocol(status.message().to_owned()),
        _ => first_read.failure().unwrap_or_else(|| DialFailure::Broken(status.message().to_owned())),
    }
}

/// The text of an error with its causes, which tonic's text omits.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}
