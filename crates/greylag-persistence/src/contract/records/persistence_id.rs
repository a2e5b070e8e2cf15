//! The name of an entity's history in the stores, and its slice.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use twox_hash::XxHash3_64;

/// Number of slices. A constant for ever: changing it would move ids between slices.
pub const SLICES: u16 = 1024;

/// The longest id in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 255;

/// The separator that [`PersistenceId::of`] puts between entity type and entity id.
pub const SEPARATOR: char = '|';

/// The name of one history: 1 to 255 bytes of UTF-8, not blank, without control characters.
///
/// Ids compare byte-wise. Cheap to clone. Source: persistence §1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistenceId(Arc<str>);

impl PersistenceId {
    /// Joins both parts as `type|id`.
    ///
    /// # Errors
    /// [`InvalidPersistenceId`] if a part contains `|`, or the whole is blank, too long or has
    /// control characters.
    pub fn of(entity_type: &str, entity_id: &str) -> Result<Self, InvalidPersistenceId> {
        Self::of_with_separator(entity_type, SEPARATOR, entity_id)
    }

    /// Joins both parts by another separator than `|`.
    ///
    /// # Errors
    /// As [`PersistenceId::of`], for that separator.
    pub fn of_with_separator(
        entity_type: &str,
        separator: char,
        entity_id: &str,
    ) -> Result<Self, InvalidPersistenceId> {
        for part in [entity_type, entity_id] {
            if part.contains(separator) {
                return Err(InvalidPersistenceId::SeparatorInside { part: part.to_owned(), separator });
            }
            if part.trim().is_empty() {
                return Err(InvalidPersistenceId::Blank);
            }
        }
        Self::unique(&format!("{entity_type}{separator}{entity_id}"))
    }

    /// `id` unchanged.
    ///
    /// # Errors
    /// [`InvalidPersistenceId`] if it is blank, too long or has control characters.
    pub fn unique(id: &str) -> Result<Self, InvalidPersistenceId> {
        if id.trim().is_empty() {
            return Err(InvalidPersistenceId::Blank);
        }
        if id.len() > MAX_ID_BYTES {
            return Err(InvalidPersistenceId::TooLong { bytes: id.len() });
        }
        if id.chars().any(char::is_control) {
            return Err(InvalidPersistenceId::ControlCharacter { id: id.escape_debug().to_string() });
        }
        Ok(Self(id.into()))
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the first `|`, or nothing.
    pub fn entity_type(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(entity_type, _)| entity_type)
    }

    /// The part after the first `|`, or the whole.
    pub fn entity_id(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&self.0, |(_, entity_id)| entity_id)
    }

    /// The slice that the id falls into: `XXH3_64(id, seed 0) mod 1024`.
    pub fn slice(&self) -> u16 {
        let slice = XxHash3_64::oneshot(self.0.as_bytes()) % u64::from(SLICES);
        u16::try_from(slice).expect("a remainder of 1024 fits")
    }
}

/// Divides all slices into `n` ranges of the same size.
///
/// # Errors
/// [`InvalidSliceCount`] unless `n` divides 1024.
pub fn slice_ranges(n: u16) -> Result<Vec<Range<u16>>, InvalidSliceCount> {
    if n == 0 || !SLICES.is_multiple_of(n) {
        return Err(InvalidSliceCount { n });
    }
    let size = SLICES / n;
    Ok((0..n).map(|i| i * size..(i + 1) * size).collect())
}

impl FromStr for PersistenceId {
    type Err = InvalidPersistenceId;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        Self::unique(id)
    }
}

impl fmt::Display for PersistenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PersistenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Why a text is not a persistence id; nothing was stored under it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPersistenceId {
    /// The id or a part of it is only white space.
    #[error("a persistence id and its parts must not be blank")]
    Blank,
    /// More than [`MAX_ID_BYTES`].
    #[error("a persistence id has at most {MAX_ID_BYTES} bytes, this one has {bytes}")]
    TooLong {
        /// The text's length in UTF-8.
        bytes: usize,
    },
    /// The id contains a control character; these separate fields on disk.
    #[error("persistence id {id:?} contains a control character")]
    ControlCharacter {
        /// The id, escaped.
        id: String,
    },
    /// A part contains the separator, so the id could not be split into its parts again.
    #[error("{part:?} contains the separator {separator:?}; choose another separator, or `unique`")]
    SeparatorInside {
        /// The part refused.
        part: String,
        /// The separator.
        separator: char,
    },
}

greylag_core::debug_is_sentence!(InvalidPersistenceId);

/// 1024 slices cannot be divided into this many equal ranges.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{n} does not divide {SLICES}; use a power of two up to {SLICES}")]
pub struct InvalidSliceCount {
    /// The count asked for.
    pub n: u16,
}

greylag_core::debug_is_sentence!(InvalidSliceCount);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_the_specification() {
        for (id, slice) in
            [("a", 543), ("Counter|1", 944), ("Counter|42", 860), ("ShoppingCart|cart-1", 502), ("日本|東京", 572)]
        {
            assert_eq!(PersistenceId::unique(id).unwrap().slice(), slice, "{id}");
        }
    }

    #[test]
    fn ranges_cover_all_slices_or_are_refused() {
        assert_eq!(slice_ranges(4).unwrap(), [0..256, 256..512, 512..768, 768..1024]);
        assert_eq!(slice_ranges(1024).unwrap().len(), 1024);
        for n in [0, 3, 2048] {
            assert_eq!(slice_ranges(n), Err(InvalidSliceCount { n }));
        }
    }

    /// Scenario persistence 9.
    #[test]
    fn malformed_ids_are_refused_at_construction() {
        assert_eq!(PersistenceId::unique(" \u{2003}"), Err(InvalidPersistenceId::Blank));
        assert_eq!(PersistenceId::of("Counter", ""), Err(InvalidPersistenceId::Blank));
        assert!(PersistenceId::unique(&"x".repeat(255)).is_ok());
        assert_eq!(PersistenceId::unique(&"é".repeat(128)), Err(InvalidPersistenceId::TooLong { bytes: 256 }));
        assert!(matches!(PersistenceId::unique("a\u{1f}b"), Err(InvalidPersistenceId::ControlCharacter { .. })));
        assert!(matches!(PersistenceId::unique("a\0"), Err(InvalidPersistenceId::ControlCharacter { .. })));
        assert!(matches!(PersistenceId::of("a|b", "c"), Err(InvalidPersistenceId::SeparatorInside { .. })));
        assert!(matches!(PersistenceId::of("a", "b|c"), Err(InvalidPersistenceId::SeparatorInside { .. })));
        assert_eq!(PersistenceId::of_with_separator("a|b", '/', "c").unwrap().as_str(), "a|b/c");
    }

    #[test]
    fn parts_come_back() {
        let id = PersistenceId::of("Cart", "7").unwrap();
        assert_eq!((id.as_str(), id.entity_type(), id.entity_id()), ("Cart|7", "Cart", "7"));
        let id = PersistenceId::unique("a|b|c").unwrap();
        assert_eq!((id.entity_type(), id.entity_id()), ("a", "b|c"));
        let id = PersistenceId::unique("plain").unwrap();
        assert_eq!((id.entity_type(), id.entity_id()), ("", "plain"));
    }
}
