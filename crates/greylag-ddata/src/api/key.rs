//! Names of entries.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// The id of an entry, without its type.
pub type KeyId = Arc<str>;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 1_024;

/// The id of an entry together with the type of its value.
///
/// Ids are 1 to 1,024 bytes of UTF-8. An id that ends in `*` names every entry whose id begins with the part before the
/// `*`, and serves for subscriptions only. Source: ddata A5, R17.
pub struct Key<T> {
    id: KeyId,
    value: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The key of one entry.
    ///
    /// # Errors
    /// [`InvalidKey`] if the id is empty, too long, or ends in `*`.
    pub fn new(id: impl Into<KeyId>) -> Result<Self, InvalidKey> {
        let id = id.into();
        match problem(&id) {
            Some(why) => Err(InvalidKey { id, why }),
            None => Ok(Self { id, value: PhantomData }),
        }
    }

    /// All entries whose ids begin with `prefix`; for subscriptions only.
    pub fn prefix(prefix: &str) -> Self {
        Self { id: format!("{prefix}*").into(), value: PhantomData }
    }

    /// The id.
    pub fn id(&self) -> &KeyId {
        &self.id
    }
}

/// Why an id cannot name an entry; `None` if it can.
pub(crate) fn problem(id: &str) -> Option<&'static str> {
    match id {
        "" => Some("it is empty"),
        _ if id.len() > MAX_ID_BYTES => Some("it has more than 1024 bytes"),
        _ if id.ends_with('*') => Some("it ends in '*', which names a prefix"),
        _ => None,
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        Self { id: self.id.clone(), value: PhantomData }
    }
}

/// Keys are equal if their ids are.
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<T> Eq for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// The id cannot name an entry. Nothing was done.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {id:?} is invalid: {why}")]
pub struct InvalidKey {
    /// The id.
    pub id: KeyId,
    /// What is wrong with the id.
    pub why: &'static str,
}

greylag_core::debug_is_sentence!(InvalidKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_ids_say_why() {
        assert_eq!(Key::<()>::new("").unwrap_err().why, "it is empty");
        assert_eq!(Key::<()>::new("a*").unwrap_err().why, "it ends in '*', which names a prefix");
        assert_eq!(Key::<()>::new("x".repeat(1_025)).unwrap_err().why, "it has more than 1024 bytes");
        assert!(Key::<()>::new("x".repeat(1_024)).is_ok());
        assert_eq!(&**Key::<()>::prefix("cart-").id(), "cart-*");
    }
}
