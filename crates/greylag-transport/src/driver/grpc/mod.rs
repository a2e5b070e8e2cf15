//! Envelopes over tonic streams.
//!
//! A transport owns two small runtimes: one for control streams, heartbeats and the listening
//! socket, on which membership runs too ([`GrpcTransport::control_runtime`]), and one for data
//! streams and the decoding of messages, so that neither user code nor load can stall a heartbeat
//! (cluster T6, C7). Dropping the transport ends both at once, as a crash would;
//! [`GrpcTransport::shutdown`] is the orderly way.
//!
//! ```text
//! transport, remoting          what users hold
//! dialling   accepting         streams, outbound and inbound
//! sending    receiving         messages on their way into queues, and from workers to receivers
//! shared                       one part of each room, by which the tasks of all rooms reach one another
//! peers                        one association machine for each address
//! local      tls               the own node
//! ```

mod accepting;
mod binding;
mod codec;
mod dialling;
mod host;
mod http2;
mod listeners;
mod local;
mod peers;
mod receiving;
mod remoting;
mod sending;
mod shared;
mod stats;
mod tls;
mod transport;

pub use peers::Fault;
pub use stats::TransportStats;
pub use tls::{HandshakeError, TlsDialer, TlsFiles};
pub use transport::GrpcTransport;
