//! Ids used by sharding: entity types, shards, entities, regions.
//!
//! Each id is a newtype that is checked when it is made, so that its users need not check again. Ids are cheap to clone
//! and ordered by their bytes; maps whose order matters use that order.

mod entity;

use std::fmt;
use std::sync::Arc;

use greylag_core::{DeadLetterReason, UniqueAddress};

pub use entity::EntityId;

use crate::error::InvalidTypeName;

/// The name under which every node of a cluster initialises an entity type.
///
/// UTF-8 without NUL and `|`, 1 to 128 bytes counted percent-encoded. Source: sharding §1.1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityTypeName(Arc<str>);

/// Compares names as text, so that maps by name can be searched by text.
impl std::borrow::Borrow<str> for EntityTypeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl EntityTypeName {
    /// The longest name in bytes, counted percent-encoded.
    pub const MAX_BYTES: usize = 128;

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidTypeName`] if it is empty, too long, or contains NUL or `|`.
    pub fn new(name: &str) -> Result<Self, InvalidTypeName> {
        let invalid = |why| InvalidTypeName { name: name.to_owned(), why };
        if name.is_empty() {
            return Err(invalid("it is empty"));
        }
        if name.contains(['\0', '|']) {
            return Err(invalid("it contains NUL or '|'"));
        }
        if percent_encode(name).len() > Self::MAX_BYTES {
            return Err(invalid("it is longer than 128 bytes when percent-encoded"));
        }
        Ok(Self(name.into()))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The form used in keys, paths and persistence ids: everything but letters, digits, `-`, `_`,
    /// `.` and `~` is percent-encoded, so parts joined by `/` or `|` stay apart.
    pub fn encoded(&self) -> String {
        percent_encode(&self.0)
    }
}

/// Percent-encodes all characters but the unreserved ones of RFC 3986.
pub fn percent_encode(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push('%');
            encoded.push(HEX[usize::from(byte >> 4)] as char);
            encoded.push(HEX[usize::from(byte & 15)] as char);
        }
    }
    encoded
}

/// The unit of placement and migration: 1 to 255 bytes of UTF-8. Source: sharding §1.1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(Arc<str>);

impl ShardId {
    /// The longest shard id in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks a shard id named by an extractor or a peer.
    ///
    /// # Errors
    /// [`DeadLetterReason::InvalidShardId`], the reason with which the message concerned is dropped.
    pub fn new(id: impl Into<Arc<str>>) -> Result<Self, DeadLetterReason> {
        let id = id.into();
        if id.is_empty() || id.len() > Self::MAX_BYTES { Err(DeadLetterReason::InvalidShardId) } else { Ok(Self(id)) }
    }

    /// The shard with this number, as the built-in extractors name it.
    pub fn from_index(index: u32) -> Self {
        Self(index.to_string().into())
    }

    /// The number of a shard that [`ShardId::from_index`] could have made, else `None`.
    pub fn index(&self) -> Option<u32> {
        Self::index_of(&self.0)
    }

    /// As [`ShardId::index`], for an unchecked name.
    pub(crate) fn index_of(name: &str) -> Option<u32> {
        let index: u32 = name.parse().ok()?;
        let canonical = !name.starts_with('+') && (name.len() == 1 || !name.starts_with('0'));
        canonical.then_some(index)
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id itself, shared.
    pub fn shared(&self) -> &Arc<str> {
        &self.0
    }

    /// As [`ShardId::shared`], without changing the reference count.
    pub(crate) fn into_shared(self) -> Arc<str> {
        self.0
    }
}

/// One region: its process, and its number in that process.
///
/// The incarnation is the recipient instance id of the region's transport registration, so that no message for a
/// stopped region reaches its successor in the same process. Source: sharding §1.1, cluster T25.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId {
    /// The process.
    pub node: UniqueAddress,
    /// Larger for every later region of the same type in that process; never 0.
    pub incarnation: u64,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.node, self.incarnation)
    }
}

impl fmt::Debug for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! shows_as_text {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
shows_as_text!(EntityTypeName, ShardId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_when_they_are_made() {
        assert!(EntityTypeName::new("Customer").is_ok());
        assert!(EntityTypeName::new("").is_err());
        assert!(EntityTypeName::new("a|b").is_err());
        assert!(EntityTypeName::new(&"ü".repeat(21)).is_ok(), "21 characters of 6 encoded bytes each");
        assert!(EntityTypeName::new(&"ü".repeat(22)).is_err());
        assert_eq!(EntityTypeName::new("a/b c").unwrap().encoded(), "a%2Fb%20c");
        assert_eq!(ShardId::new(""), Err(DeadLetterReason::InvalidShardId));
        assert_eq!(ShardId::new("x".repeat(256)), Err(DeadLetterReason::InvalidShardId));
    }

    #[test]
    fn only_canonical_numbers_are_indices() {
        assert_eq!(ShardId::from_index(17).index(), Some(17));
        for other in ["017", "+1", "x", "4294967296"] {
            assert_eq!(ShardId::new(other).unwrap().index(), None, "{other}");
        }
        assert_eq!(ShardId::from_index(0).index(), Some(0));
    }
}
