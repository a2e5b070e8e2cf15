//! The id of one entity.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use greylag_core::DeadLetterReason;

/// Texts of up to this many bytes are stored inline, so that an id has three words.
const SHORT: usize = 22;

/// The id of an entity in its type: 1 to 1024 bytes of UTF-8, not normalised. Source: sharding §1.1.
///
/// An id of up to 22 bytes needs no memory beyond the value, and its copies share no reference count for which two
/// processors would contend. A longer id is shared by its copies.
#[derive(Clone, PartialEq, Eq)]
pub struct EntityId(Text);

#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// The text, padded with zero bytes, so that two values with equal texts are equal by their bytes.
    Short {
        length: u8,
        bytes: [u8; SHORT],
    },
    Long(Arc<str>),
}

impl EntityId {
    /// The longest entity id in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Checks an entity id.
    ///
    /// # Errors
    /// [`DeadLetterReason::EmptyEntityId`] or [`DeadLetterReason::EntityIdTooLong`].
    pub fn new(id: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, DeadLetterReason> {
        let text = id.as_ref().as_bytes();
        match text.len() {
            0 => Err(DeadLetterReason::EmptyEntityId),
            length if length <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..length].copy_from_slice(text);
                Ok(Self(Text::Short { length: length as u8, bytes }))
            }
            length if length <= Self::MAX_BYTES => Ok(Self(Text::Long(id.into()))),
            _ => Err(DeadLetterReason::EntityIdTooLong),
        }
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Short { .. } => std::str::from_utf8(self.as_bytes()).expect("it was made of a text"),
            Text::Long(text) => text,
        }
    }

    /// The bytes of the id: what hashes and comparisons read.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(text) => text.as_bytes(),
        }
    }
}

/// Ordered by bytes, which is also the order of texts.
impl Ord for EntityId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for EntityId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for EntityId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_checked_when_they_are_made() {
        assert_eq!(EntityId::new(""), Err(DeadLetterReason::EmptyEntityId));
        assert_eq!(EntityId::new("x".repeat(1025)), Err(DeadLetterReason::EntityIdTooLong));
        assert!(EntityId::new("x".repeat(1024)).is_ok());
    }

    #[test]
    fn a_short_id_needs_no_memory_of_its_own_and_a_long_one_is_shared() {
        assert_eq!(size_of::<Option<EntityId>>(), 24, "the niche of the tag serves options");
        let text: Arc<str> = "x".repeat(SHORT).into();
        let short = EntityId::new(text.clone()).unwrap();
        assert_eq!((Arc::strong_count(&text), short.as_str()), (1, &*text));
        let text: Arc<str> = "x".repeat(SHORT + 1).into();
        let long = EntityId::new(text.clone()).unwrap();
        let copy = long.clone();
        assert_eq!((Arc::strong_count(&text), copy.as_str()), (3, long.as_str()));
    }

    proptest! {
        /// Ids behave as their texts, whether short or long.
        #[test]
        fn ids_are_equal_ordered_and_shown_as_their_texts(one in "[a-cü\0]{1,30}", other in "[a-cü\0]{1,30}") {
            let (a, b) = (EntityId::new(one.as_str()).unwrap(), EntityId::new(other.as_str()).unwrap());
            prop_assert_eq!(a.as_str(), &one);
            prop_assert_eq!(a == b, one == other);
            prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            prop_assert_eq!(format!("{b} {b:?}"), format!("{other} {other}"));
        }
    }
}
