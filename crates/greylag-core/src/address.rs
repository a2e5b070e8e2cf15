//! The identity of a node.
//!
//! A [`NodeAddress`] is a place where a process can be reached; a [`UniqueAddress`] is one process
//! at that place. A process that restarts keeps the first and changes the second, so everything
//! that must not outlive a process is keyed by the second.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

/// Host and port at which a node is reached, as the node itself advertises it.
///
/// The host is lower-cased. The order is host byte-wise, then port as a number, so `a:9000` comes
/// before `a:10000`; leader election and tie-breaks rest on it.
///
/// Source: cluster T1, T2.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    host: Arc<str>,
    port: u16,
}

impl PartialOrd for NodeAddress {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NodeAddress {
    fn cmp(&self, other: &Self) -> Ordering {
        // Compare pointers first: equal hosts in a sorted list of nodes mostly share one text.
        let hosts = if Arc::ptr_eq(&self.host, &other.host) { Ordering::Equal } else { self.host.cmp(&other.host) };
        hosts.then(self.port.cmp(&other.port))
    }
}

impl NodeAddress {
    /// Makes an address from its parts.
    ///
    /// # Errors
    /// [`InvalidAddress`] if the host is empty, has white space or an underscore in its last label,
    /// or if the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, InvalidAddress> {
        let invalid = |why| InvalidAddress { address: format!("{host}:{port}"), why };
        if host.is_empty() {
            return Err(invalid("the host is empty"));
        }
        if host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("the host contains white space"));
        }
        if host.rsplit('.').next().is_some_and(|label| label.contains('_')) {
            return Err(invalid("the last label of the host contains an underscore"));
        }
        if port == 0 {
            return Err(invalid("the port is 0"));
        }
        Ok(Self { host: host.to_lowercase().into(), port })
    }

    /// The host, lower-cased; an IPv6 address is without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The text form with the cluster's name: `greylag://<cluster>@<host>:<port>`.
    pub fn to_uri(&self, cluster: &str) -> String {
        format!("greylag://{cluster}@{self}")
    }
}

impl FromStr for NodeAddress {
    type Err = InvalidAddress;

    /// Reads `host:port`, `[v6]:port`, or the long form `greylag://<cluster>@host:port`.
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = |why| InvalidAddress { address: text.to_owned(), why };
        let short = match text.strip_prefix("greylag://") {
            Some(rest) => rest.split_once('@').ok_or(invalid("the cluster name is missing"))?.1,
            None => text,
        };
        let (host, port) = short.rsplit_once(':').ok_or(invalid("the port is missing"))?;
        let port = port.parse().map_err(|_| invalid("the port is not a number from 1 to 65535"))?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Self::new(host, port).map_err(|error| InvalidAddress { address: text.to_owned(), ..error })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a node address.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid node address {address:?}: {why}; write it as host:port")]
pub struct InvalidAddress {
    /// The text as it was given.
    pub address: String,
    /// The rule that the text breaks, for people.
    pub why: &'static str,
}

crate::debug_is_sentence!(InvalidAddress);

/// The random number of one process incarnation.
///
/// Drawn when the process starts, never stored, never used again. Source: cluster T1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(NonZeroU64);

impl Uid {
    /// A uid, or `None` for 0, which no process may have.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One process incarnation at an address.
///
/// Equality, hashing and every map key use the whole, so that a restarted process is never taken
/// for its predecessor. Written `host:port#uid`. Source: cluster T1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueAddress {
    address: NodeAddress,
    uid: Uid,
}

impl UniqueAddress {
    /// The incarnation `uid` at `address`.
    pub fn new(address: NodeAddress, uid: Uid) -> Self {
        Self { address, uid }
    }

    /// Where the process is reached.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// The number of the incarnation.
    pub fn uid(&self) -> Uid {
        self.uid
    }

    /// Bytes whose order is the order of unique addresses: host, 0, port and uid big-endian.
    ///
    /// Last-writer-wins ties are decided on them (ddata K1, Y6), so they are a wire format.
    pub fn order_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.address.host.len() + 11);
        self.write_order_bytes(&mut bytes);
        bytes
    }

    /// Appends [`UniqueAddress::order_bytes`].
    pub fn write_order_bytes(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.address.host.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&self.address.port.to_be_bytes());
        bytes.extend_from_slice(&self.uid.get().to_be_bytes());
    }
}

impl FromStr for UniqueAddress {
    type Err = InvalidAddress;

    /// Reads `host:port#uid`.
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = |why| InvalidAddress { address: text.to_owned(), why };
        let (address, uid) = text.rsplit_once('#').ok_or(invalid("the uid is missing"))?;
        let uid = uid.parse().ok().and_then(Uid::new);
        Ok(Self::new(address.parse()?, uid.ok_or(invalid("the uid is not a positive number"))?))
    }
}

impl fmt::Display for UniqueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.address, self.uid)
    }
}

impl fmt::Debug for UniqueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "serde")]
mod serde_impls {
    use super::{NodeAddress, UniqueAddress};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    macro_rules! as_text {
        ($($type:ty),*) => {$(
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }
            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                }
            }
        )*};
    }
    as_text!(NodeAddress, UniqueAddress);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_order_is_host_then_numeric_port_then_uid() {
        let parse = |text: &str| text.parse::<UniqueAddress>().unwrap();
        let sorted = ["a:9000#9", "a:10000#1", "a:10000#2", "b:1#1"].map(parse);
        assert!(sorted.is_sorted());
        let bytes = sorted.map(|ua| ua.order_bytes());
        assert!(bytes.is_sorted(), "the byte form sorts like the addresses");
    }

    #[test]
    fn every_text_form_reads_back() {
        for text in ["a:1", "[::1]:17355", "x.example:65535"] {
            assert_eq!(text.parse::<NodeAddress>().unwrap().to_string(), text);
        }
        let address: NodeAddress = "greylag://shop@B.example:17355".parse().unwrap();
        assert_eq!(address.to_uri("shop"), "greylag://shop@b.example:17355");
    }

    #[test]
    fn refused_addresses_say_why() {
        for (text, why) in [
            (":1", "the host is empty"),
            ("a", "the port is missing"),
            ("a:0", "the port is 0"),
            ("a:70000", "the port is not a number from 1 to 65535"),
            ("a b:1", "the host contains white space"),
            ("x.a_b:1", "the last label of the host contains an underscore"),
        ] {
            assert_eq!(text.parse::<NodeAddress>().unwrap_err().why, why, "{text}");
        }
    }
}
