//! Associations between nodes: which processes are spoken to, over which lane, in which order, and how messages end
//! that cannot be delivered.
//!
//! Two nodes in one process, over real sockets; one tells, then asks:
//!
#![cfg_attr(feature = "grpc", doc = "```")]
#![cfg_attr(not(feature = "grpc"), doc = "```ignore (needs the feature grpc)")]
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use greylag_codec::json;
//! use greylag_core::{Registry, ReplyAddress, ReplyPort, ReplyTo};
//! use greylag_transport::{
//!     Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, TransportSettings,
//! };
//!
//! /// Answers a number with its double; numbers that are merely told are printed.
//! struct Doubler {
//!     registry: Arc<Registry>,
//!     answers: Arc<dyn ReplyPort>,
//! }
//!
//! impl Receiver for Doubler {
//!     fn receive(&self, message: Inbound) {
//!         let number: u32 = self.registry.decode_as(message.codec, &message.manifest, message.payload).unwrap();
//!         match message.ask {
//!             Some(ask) => {
//!                 let asker = ReplyAddress { node: message.from, ask_id: ask.id };
//!                 ReplyTo::new(asker, self.answers.clone()).reply(2 * number);
//!             }
//!             None => println!("{} told us {number}", message.from),
//!         }
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let registry = Arc::new(Registry::new());
//! registry.register::<u32>(json("number"))?;
//! let a = GrpcTransport::bind(TransportSettings::test(), registry.clone()).await?;
//! let b = GrpcTransport::bind(TransportSettings::test(), registry.clone()).await?;
//! b.register("doubler", Arc::new(Doubler { registry: registry.clone(), answers: b.reply_port() }));
//!
//! // A message is a recipient at a node, and what the registry makes of a value.
//! let number = |n: u32| {
//!     let encoded = registry.encode(&n).expect("it was registered");
//!     Envelope::new(Recipient::new("doubler"), encoded.codec, encoded.manifest, encoded.payload)
//! };
//! let to_b = Destination::from(b.self_address().clone());
//! a.send(&to_b, number(20)).expect("the queue has room");
//!
//! let timeout = Duration::from_secs(5);
//! let ask = a.open_ask(timeout);
//! a.send(&to_b, number(21).asking(ask.address.ask_id, timeout)).expect("the queue has room");
//! assert_eq!(*ask.answer.await?.downcast::<u32>().unwrap(), 42);
//!
//! a.shutdown().await; // queued messages are read, the peer is told
//! b.shutdown().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//! - Delivery is at most once. Messages of one lane key arrive in the order in which they were
//!   queued, also those of different senders, across reconnects; nothing is promised between lanes.
//! - A message for one incarnation reaches that process or none, never its successor.
//! - Sending never waits. A full queue refuses the message and gives it back.
//! - Every dropped message is counted, by reason, lane and peer; a question that is dropped ends
//!   its ask at once wherever that can be known.
//! - A quarantined process is refused in both directions, for ever; messages queued for it are
//!   handed back to the listeners that asked for that.
//!
//! # Two halves
//! The pure half (always built) is what layers above name, the [`association`] machine, and the
//! [`memory`] network for their tests. The feature `grpc` adds `GrpcTransport`, which carries the
//! same envelopes over tonic streams: one connection per lane and direction, many envelopes a
//! frame, control traffic on threads of its own.

// Without sockets the memory network carries messages, and it needs no lanes, sizes or log limits.
#![cfg_attr(not(feature = "grpc"), allow(dead_code))]

mod admission;
pub mod association;
mod dials;
mod driver;
mod endpoints;
mod error;
#[cfg(all(feature = "grpc", any(test, feature = "fuzzing")))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "grpc")]
#[allow(missing_docs, clippy::all, unreachable_pub, dead_code)]
mod generated {
    include!("generated/greylag.transport.v1.rs");
}
mod holder;
mod lanes;
mod messages;
pub mod reliable;
mod remoting;
mod settings;
mod tls;
pub mod watch;
#[cfg(feature = "grpc")]
mod wire;

#[cfg(feature = "grpc")]
pub use admission::control::Intrusion;
pub use dials::failure::DialFailure;
pub use dials::reach::is_out_of_reach;
#[cfg(feature = "grpc")]
pub use driver::beside;
#[cfg(feature = "grpc")]
pub use driver::grpc::{Fault, GrpcTransport, HandshakeError, TlsDialer, TlsFiles, TransportStats};
pub use driver::memory;
pub use endpoints::dead_letters::{DeadLetter, DeadLetterEvents, DeadLetterKey, DeadLetters, LogLine, Suppressed};
pub use error::{BindError, ConfigError, ConfigErrors, TlsError};
pub use holder::{Holder, Replacers};
pub use lanes::lane::{Lane, LaneKind, lane_key_hash};
pub use messages::ask::AskTable;
pub use messages::envelope::{AskHeader, Envelope, Inbound, Payload, PayloadValue, Recipient};
pub use remoting::{
    Answer, AskError, DEGRADED_DAYS, Destination, OpenAsk, PeerInfo, QuarantineReason, Receiver, RejectCode, Remoting,
    SendError, SendRejected, Sending, TransportEvent, TransportListener,
};
pub use settings::{OnReliableGiveUp, TransportSettings};
#[cfg(feature = "tls")]
pub use tls::verifier::HostVerifier;
pub use tls::{PeerSubject, Tls, TlsSettings, others_can_read};
