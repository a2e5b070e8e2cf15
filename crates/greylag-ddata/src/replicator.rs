//! The replicator: one machine that holds the entries, serves requests, and keeps replicas equal.
//!
//! An update changes the entry here first, is logged for the peers, and is then confirmed by as many replicas as its
//! level says. Rounds of anti-entropy repair every loss. The machine reads no clock and draws from one seed: the same
//! inputs give the same effects.
//!
//! ```text
//! ReplicatorCore   takes inputs, and decides what follows for the others: callers, peers, gate, store, shutdown
//!   Requests       the requests that wait for other replicas: which to ask, and what their answers mean
//!   Rounds         the rounds of anti-entropy, catching up, and large values that are being received
//!   LocalReplica   what this replica holds, and under which rules it takes data in and lets messages out
//! ```
//!
//! Requests and rounds know the local replica and not each other. Source: ddata §3, §4, §10.

mod core;
mod expiry;
mod held_messages;
mod limiter;
mod local;
mod observed;
mod requests;
mod rounds;
mod shutdown;
mod storage;
mod wall_clock;
mod writer;

pub use self::core::ReplicatorCore;
