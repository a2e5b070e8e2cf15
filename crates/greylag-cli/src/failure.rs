//! The failures of a command, and their exit codes.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use greylag_management::{DialError, HandshakeError};
use tonic::{Code, Status};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The node answered, and refused or failed. Exit code 1.
    Refused(String),
    /// The command line is invalid. Exit code 2, as for everything that clap refuses.
    Usage(String),
    /// No node answers at the address. Exit code 3.
    Unreachable(String),
    /// Not done in time, but it may still happen. Exit code 4.
    TimedOut(String),
    /// A process answers at the address, and the two ends do not trust each other. Exit code 6.
    Untrusted(String),
    /// The reader of the output has closed it, so no message could be shown. Exit code 0.
    OutputClosed,
}

/// Optional parts of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    JournalSled,
    JournalPostgres,
}

impl Feature {
    /// Name of the cargo feature.
    fn name(self) -> &'static str {
        match self {
            Self::JournalSled => "journal-sled",
            Self::JournalPostgres => "journal-postgres",
        }
    }

    /// Whether this program was built with it.
    #[cfg(feature = "stores")]
    pub(crate) fn is_built(self) -> bool {
        match self {
            Self::JournalSled => cfg!(feature = "journal-sled"),
            Self::JournalPostgres => cfg!(feature = "journal-postgres"),
        }
    }

    /// The failure of a command that needs this feature, with advice how to get a program that has it.
    pub(crate) fn missing(self) -> Failure {
        let name = self.name();
        Failure::Usage(format!(
            "this program was built without the feature {name}, which the command needs; `cargo install --path \
             crates/greylag-cli --features {name}` builds one that has it"
        ))
    }
}

/// Exit code of `health` when there are problems.
pub(crate) const UNHEALTHY: u8 = 5;

impl Failure {
    /// The failure for the status of a call to the node at `address`.
    pub(crate) fn from_status(address: &str, status: &Status) -> Self {
        let message = status.message();
        if let Some(error) = dial_error(status) {
            return Self::from_dial(address, error);
        }
        match status.code() {
            _ if is_transport(status) => Self::Unreachable(format!(
                "the connection to {address} was lost: {}; the node may have ended",
                cause(status)
            )),
            Code::Unavailable => Self::Refused(format!("{address}: {message}")),
            // The text is that of another service's port, which names itself; an older node sends none.
            Code::Unimplemented if !message.is_empty() => {
                Self::Unreachable(format!("no admin service answers at {address}: {message}"))
            }
            Code::Unimplemented => {
                Self::Refused(format!("{address} does not know this command; it runs an older version"))
            }
            Code::DeadlineExceeded => Self::TimedOut(format!("{address}: {message}")),
            Code::InvalidArgument => Self::Usage(message.to_owned()),
            _ => Self::Refused(message.to_owned()),
        }
    }

    fn from_dial(address: &str, error: &DialError) -> Self {
        let advice = match error {
            DialError::WantsTls => "; name the authority of its certificate by --tls-ca",
            DialError::WantsPlainText => {
                "; leave out --tls-ca (and GREYLAG_TLS_CA), or set management.tls = \"on\" there"
            }
            DialError::WantsCertificate => "; name one by --tls-cert and --tls-key",
            DialError::NotBelieved(HandshakeError::ForeignAuthority) => {
                "; check that --tls-ca is the authority of this cluster"
            }
            DialError::NotBelieved(HandshakeError::WrongHost(_)) => {
                "; call it by the name in its certificate, or give that by --tls-host"
            }
            DialError::Unreachable(_) | DialError::Silent(_) => "; check that management.address is set there",
            _ => "",
        };
        if error.is_about_trust() {
            return Self::Untrusted(format!("{address}: {error}{advice}"));
        }
        Self::Unreachable(format!("no admin service answers at {address}: {error}{advice}"))
    }

    /// The failure for `what` that was not done within `limit`.
    pub(crate) fn timed_out(what: &str, limit: Duration) -> Self {
        Self::TimedOut(format!("{what} within {limit:?}; it may still happen (see --timeout)"))
    }

    /// Prints the failure on standard error; answers the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Refused(text) => (text, 1),
            Self::Usage(text) => (text, 2),
            Self::Unreachable(text) => (text, 3),
            Self::TimedOut(text) => (text, 4),
            Self::Untrusted(text) => (text, 6),
            Self::OutputClosed => return ExitCode::SUCCESS,
        };
        // If standard error is closed too, the exit code still tells the failure.
        let _ = writeln!(std::io::stderr(), "greylag: {text}");
        ExitCode::from(code)
    }
}

/// The error of dialling, if the connection failed.
fn dial_error(status: &Status) -> Option<&DialError> {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Whether the connection was lost: a status sent by the service has no source.
fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// The innermost cause: the system's own error.
fn cause(status: &Status) -> String {
    let mut innermost: &dyn std::error::Error = status;
    while let Some(next) = innermost.source() {
        innermost = next;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each answer of a node leads to the exit code that docs/cli.md promises.
    #[test]
    fn every_answer_has_its_exit_code() {
        let older = Failure::from_status("here:1", &Status::new(Code::Unimplemented, ""));
        assert!(matches!(older, Failure::Refused(text) if text.contains("older version")));
        for (code, exit, said) in [
            (Code::PermissionDenied, 1, "because"),
            (Code::NotFound, 1, "because"),
            (Code::FailedPrecondition, 1, "because"),
            (Code::Unavailable, 1, "here:1: because"),
            (Code::Unimplemented, 3, "no admin service answers at here:1: because"),
            (Code::Internal, 1, "because"),
            (Code::InvalidArgument, 2, "because"),
            (Code::DeadlineExceeded, 4, "here:1: because"),
        ] {
            let failure = Failure::from_status("here:1", &Status::new(code, "because"));
            let (text, found) = match failure {
                Failure::Refused(text) => (text, 1),
                Failure::Usage(text) => (text, 2),
                Failure::Unreachable(text) => (text, 3),
                Failure::TimedOut(text) => (text, 4),
                Failure::Untrusted(text) => (text, 6),
                Failure::OutputClosed => (String::new(), 0),
            };
            assert_eq!(found, exit, "{code:?}");
            assert!(text.contains(said), "{code:?}: {text}");
        }
    }
}
