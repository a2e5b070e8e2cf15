//! Associations between nodes: who is spoken to, over which lane, in which order, and what became
//! of what could not be delivered.
//!
//! The crate has two halves. The pure half (always built) holds what layers above name: envelopes,
//! recipients, lanes, the [`Remoting`] trait, and the association machine. The feature `grpc` adds
//! the driver that carries frames over tonic streams.

mod ask;
pub mod association;
mod dead_letters;
mod driver;
mod endpoint;
mod envelope;
mod error;
#[allow(missing_docs, clippy::all, unreachable_pub, dead_code)]
#[path = "generated/greylag.transport.v1.rs"]
mod generated;
mod hello;
mod lane;
#[cfg(feature = "grpc")]
mod queue;
mod remoting;
mod settings;
mod wire;

pub use ask::AskTable;
pub use dead_letters::{DeadLetterKey, DeadLetters, LogLine};
#[cfg(feature = "grpc")]
pub use driver::grpc::{Fault, GrpcTransport, TransportStats};
pub use driver::memory;
pub use envelope::{AskHeader, Envelope, Inbound, Payload, PayloadValue, Recipient};
pub use error::{BindError, ConfigError, ConfigErrors};
pub use lane::{Lane, LaneKind};
pub use remoting::{
    Answer, AskError, Destination, OpenAsk, PeerInfo, QuarantineReason, Receiver, RejectCode, Remoting, SendError,
    SendRejected, TransportEvent, TransportListener,
};
pub use settings::{Tls, TransportSettings};
