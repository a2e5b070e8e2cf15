//! The meaning of a dial's error: which of its causes is the one that a person can do something about.

use std::error::Error;
use std::io;
use std::sync::{Arc, OnceLock};

use tonic::{Code, Status};

use super::HandshakeError;
use crate::dial_failure::DialFailure;

/// What a connection brought first: the listener's first bytes, by which another protocol is known, or how it broke.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard(Arc<OnceLock<First>>);

#[derive(Debug)]
enum First {
    Bytes(Vec<u8>),
    /// The other end judges a certificate after the handshake has ended for this one.
    Verdict(DialFailure),
}

/// Enough for the names of protocols.
const LOOKED_AT: usize = 16;

impl Heard {
    /// Keeps what the first read brought.
    pub(super) fn note(&self, read: Result<&[u8], &io::Error>) {
        let first = match read {
            Ok([]) => return,
            Ok(bytes) => First::Bytes(bytes[..bytes.len().min(LOOKED_AT)].to_vec()),
            Err(error) => {
                let verdict = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                let Some(verdict) = verdict else { return };
                First::Verdict(of_handshake(io::Error::other(verdict.clone()).into()))
            }
        };
        // There is one first read.
        let _ = self.0.set(first);
    }

    /// What keeps the two ends from speaking, if that is known. `None`: the listener may well speak HTTP/2.
    fn failure(&self) -> Option<DialFailure> {
        let other = |what: &str| Some(DialFailure::OtherProtocol(what.to_owned()));
        let bytes = match self.0.get()? {
            First::Verdict(failure) => return Some(failure.clone()),
            First::Bytes(bytes) => bytes.as_slice(),
        };
        match bytes {
            // An alert or a handshake of TLS.
            [0x15 | 0x16, 3, ..] => Some(DialFailure::Tls(
                "it speaks TLS, and was called in plain text: transport.tls is on there and not here".to_owned(),
            )),
            bytes if bytes.starts_with(b"HTTP/") => other("HTTP/1"),
            bytes if bytes.starts_with(b"SSH-") => other("SSH"),
            // Length, type and flags of a frame of settings, with which HTTP/2 begins.
            [_, _, _, 4, ..] | [] => None,
            bytes => other(&format!("it begins with {:?}", String::from_utf8_lossy(bytes))),
        }
    }
}

/// From the error of a socket that was to be connected.
pub(super) fn of_socket(error: &io::Error) -> DialFailure {
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

/// From what kept the two ends from speaking by TLS.
pub(super) fn of_handshake(error: HandshakeError) -> DialFailure {
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

/// From an error of the connection, which carries ours among its causes, or what was heard first.
pub(super) fn of_connection(error: &(dyn Error + 'static), heard: &Heard) -> DialFailure {
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
    heard.failure().unwrap_or_else(|| {
        let hint = if heard.0.get().is_none() { "; is transport.tls on at one end only?" } else { "" };
        DialFailure::Broken(format!("{}{hint}", causes(error)))
    })
}

/// From the answer to the call that opens a stream.
pub(super) fn of_status(status: &Status, heard: &Heard) -> DialFailure {
    if status.source().is_some() {
        return of_connection(status, heard);
    }
    match (status.code(), status.message()) {
        (Code::Unimplemented, "") => {
            DialFailure::OtherService("a service of gRPC listens there that is no node of a cluster".to_owned())
        }
        (Code::Unimplemented, said) => DialFailure::OtherService(said.to_owned()),
        // tonic makes it of an answer over HTTP that is none of gRPC.
        _ if status.message().contains("HTTP status code") => DialFailure::OtherProtocol(status.message().to_owned()),
        _ => heard.failure().unwrap_or_else(|| DialFailure::Broken(status.message().to_owned())),
    }
}

/// An error with what caused it, which tonic leaves out.
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
