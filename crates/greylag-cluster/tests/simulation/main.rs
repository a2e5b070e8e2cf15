//! The membership machines and singleton managers of whole clusters, on virtual time.

mod deaths;
mod downing;
mod lease;
mod membership;
mod partitions;
mod singleton;
mod walks;
mod world;
