//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

#[cfg(feature = "sharding")]
mod codecs;
#[cfg(feature = "ddata-sled")]
mod durable;
#[cfg(all(
    feature = "delivery",
    feature = "discovery-dns",
    feature = "journal-postgres",
    feature = "journal-service",
    feature = "journal-sled",
    feature = "lease-postgres",
    feature = "management"
))]
mod errors;
#[cfg(all(feature = "journal-sled", feature = "journal-postgres", feature = "journal-service"))]
mod journals;
mod leases;
mod node;
mod pages;
#[cfg(feature = "sharding")]
mod persistence;
mod singletons;
#[cfg(all(feature = "sharding", feature = "management", feature = "journal-sled"))]
mod stores;
#[cfg(feature = "sharding")]
mod strangers;
